import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.events import InputSubmitted
from services.chassis.artifacts.store import PIECE_BYTES, sha256_of
from tests.unit.ingest.world import World

TEXT = b"what was measured\n"
HASH = sha256_of(TEXT)
PATH = f"/v1/artifacts/{HASH}"
OTHER = {"x-threadlog-tenant": "other"}


async def put(world: World, content: Any = TEXT, path: str = PATH, **headers: str) -> Any:
    return await world.client.put(path, content=content, headers={"content-type": "text/plain"} | headers)


async def test_what_was_uploaded_is_read() -> None:
    world = World()
    answer = await put(world)
    assert (answer.status_code, answer.json()) == (
        201,
        {"sha256": HASH, "size": len(TEXT), "media_type": "text/plain"},
    )
    read = await world.client.get(PATH)
    assert (read.status_code, read.content) == (200, TEXT)
    assert read.headers["content-type"] == "text/plain"
    assert read.headers["etag"] == f'"{HASH}"'
    assert read.headers["content-disposition"] == "attachment"
    assert read.headers["x-content-type-options"] == "nosniff"
    head = await world.client.head(PATH)
    assert head.status_code == 200
    assert {k: head.headers[k] for k in ("content-length", "etag")} == {
        "content-length": str(len(TEXT)),
        "etag": f'"{HASH}"',
    }


async def test_uploading_again_changes_nothing() -> None:
    world = World()
    await put(world)
    again = await put(world, **{"content-type": "text/html"})
    assert (again.status_code, again.json()["media_type"]) == (200, "text/plain")


async def test_a_large_one_comes_back_in_pieces() -> None:
    world = World()
    whole = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"end"

    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 70_000):
            yield whole[start : start + 70_000]

    path = f"/v1/artifacts/{sha256_of(whole)}"
    assert (await put(world, body(), path)).status_code == 201
    assert (await world.client.get(path)).content == whole
    assert world.registry.get_sample_value("threadlog_ingest_artifact_bytes_total", {"direction": "up"}) == len(whole)
    assert world.registry.get_sample_value("threadlog_ingest_artifact_bytes_total", {"direction": "down"}) == len(whole)


@pytest.mark.parametrize(
    ("asked", "status", "content", "content_range"),
    [
        ("bytes=5-7", 206, TEXT[5:8], f"bytes 5-7/{len(TEXT)}"),
        ("bytes=-3", 206, TEXT[-3:], f"bytes {len(TEXT) - 3}-{len(TEXT) - 1}/{len(TEXT)}"),
        ("bytes=1-2,4-5", 200, TEXT, None),
    ],
)
async def test_a_range_is_read(asked: str, status: int, content: bytes, content_range: str | None) -> None:
    world = World()
    await put(world)
    answer = await world.client.get(PATH, headers={"range": asked})
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers.get("content-range") == content_range


async def test_a_range_outside_is_refused() -> None:
    world = World()
    await put(world)
    answer = await world.client.get(PATH, headers={"range": "bytes=99-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(TEXT)}")
    assert answer.json()["type"].endswith("/range-not-satisfiable")


async def test_who_has_it_reads_nothing() -> None:
    world = World()
    await put(world)
    answer = await world.client.get(PATH, headers={"if-none-match": f'"{HASH}"'})
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize("known", ['"x", "' + HASH + '"', f'W/"{HASH}"', "*"])
async def test_who_may_have_it_reads_nothing(known: str) -> None:
    world = World()
    await put(world)
    assert (await world.client.get(PATH, headers={"if-none-match": known})).status_code == 304


@pytest.mark.parametrize("named", ["image/png\r\nset-cookie: a=b", "image/\N{SNOWMAN}", ""])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_type_that_is_none_is_no_header(named: str, method: str) -> None:
    """Tools and imported files name types that nobody has checked."""
    world = World()
    await world.artifacts.put("dev", HASH, TEXT, named)
    answer = await world.client.request(method, PATH)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_one_of_another_tenant_answers_as_one_that_never_was(method: str) -> None:
    world = World()
    await put(world)
    foreign = await world.client.request(method, PATH, headers=OTHER)
    never = await world.client.request(method, f"/v1/artifacts/{'0' * 64}", headers=OTHER)
    assert (foreign.status_code, foreign.content) == (never.status_code, never.content)
    assert foreign.status_code == 404


async def test_other_bytes_are_refused_and_not_stored() -> None:
    world = World()
    answer = await put(world, b"else")
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (422, "artifact-mismatch")
    assert sha256_of(b"else") in answer.json()["detail"]
    assert not world.artifacts.objects


@pytest.mark.parametrize("sha256", ["abc", HASH.upper(), HASH + "0", "..%2f..%2fetc", "g" * 64])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_what_is_no_sha256_is_refused(method: str, sha256: str) -> None:
    answer = await World().client.request(method, f"/v1/artifacts/{sha256}")
    assert answer.status_code in {422, 404}
    assert not (answer.status_code == 404 and "%" not in sha256)


@pytest.mark.parametrize("declared", [True, False])
async def test_one_that_is_too_large_is_refused(declared: bool) -> None:
    world = World(artifact_bytes_max=100)

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 60
        yield b"x" * 60

    answer = await put(world, b"x" * 120 if declared else body(), f"/v1/artifacts/{sha256_of(b'x' * 120)}")
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (413, "too-large")
    assert not world.artifacts.objects


async def test_a_media_type_that_is_none_is_refused() -> None:
    assert (await put(World(), **{"content-type": "x" * 300})).status_code == 422


async def test_a_client_that_stalls_or_leaves_stores_nothing() -> None:
    world = World(send_seconds_max=0.01)
    left = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        yield TEXT
        await left.wait()
        yield b""

    answer = await put(world, stalls())
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (400, "malformed-body")
    assert not world.artifacts.objects


async def test_too_many_transfers_of_a_tenant_wait_and_others_do_not() -> None:
    world = World(ingest_transfers_per_tenant_max=1)
    with world.transfers.place("dev"):
        answer = await put(world)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert (await put(world, **OTHER)).status_code == 201
    assert (await put(world)).status_code == 201


async def test_too_many_transfers_of_all_wait() -> None:
    world = World(ingest_transfers_max=1)
    with world.transfers.place("another"):
        assert (await put(world)).status_code == 429


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_a_store_that_is_away_is_told(method: str) -> None:
    world = World()
    await put(world)
    world.artifacts.away = True
    answer = await world.client.request(method, PATH, content=TEXT if method == "PUT" else None)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]


async def downloaded(world: World, path: str, sent: list[Any], received: Any, on_sent: Any = lambda: None) -> None:
    async def send(message: Any) -> None:
        sent.append(message)
        on_sent()
        await asyncio.sleep(0)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await world.app(scope, received, send)  # type: ignore[arg-type]  # ASGI's own types


class Client:
    """As a server shows one: its request, then nothing until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._asked = False

    async def __call__(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_a_download_that_breaks_is_not_taken_for_whole() -> None:
    world = World()
    whole = b"x" * (2 * PIECE_BYTES)
    path = f"/v1/artifacts/{sha256_of(whole)}"
    await put(world, whole, path)
    sent: list[Any] = []

    def breaks() -> None:
        world.artifacts.away = len(sent) > 1

    await downloaded(world, path, sent, Client(), breaks)
    assert [message.get("more_body") for message in sent] == [None, True]


async def test_a_download_ends_where_its_client_has_left() -> None:
    """A server takes what is sent to nobody, and drops it."""
    world = World()
    whole = b"x" * (9 * PIECE_BYTES)
    path = f"/v1/artifacts/{sha256_of(whole)}"
    await put(world, whole, path)
    sent: list[Any] = []
    client = Client()

    def leaves() -> None:
        if len(sent) > 1:
            client.left.set()

    await downloaded(world, path, sent, client, leaves)
    assert len(sent) < 5
    with world.transfers.place("dev"):
        assert (await world.client.get(path)).content == whole


# Inputs that name artifacts


def named(**more: object) -> dict[str, object]:
    return {"type": "artifact", "sha256": HASH, "media_type": "text/plain", **more}


async def test_an_input_names_an_artifact() -> None:
    world = World()
    await put(world)
    thread = await world.created()
    before = world.clock.now_ms()
    world.clock.ms += 5_000
    body = {"items": [{"type": "text", "text": "look"}, named(name="measured.txt")]}
    assert (await world.post(f"/v1/threads/{thread}/inputs", body)).status_code == 202
    event = world.folded(thread)[-1][0].data
    assert isinstance(event, InputSubmitted)
    assert event.items[1].model_dump(exclude_none=True) == named(name="measured.txt", size=len(TEXT))
    [listed] = [found async for found in world.artifacts.list()]
    assert listed.touched_ms == before + 5_000


async def test_a_first_input_names_an_artifact() -> None:
    world = World()
    await put(world)
    thread = await world.created({"input": {"items": [named()]}})
    event = world.folded(thread)[-1][0].data
    assert isinstance(event, InputSubmitted)
    assert event.items[0].model_dump()["size"] == len(TEXT)


@pytest.mark.parametrize("headers", [{}, OTHER])
async def test_an_input_with_an_artifact_that_is_not_there_is_refused(headers: dict[str, str]) -> None:
    world = World()
    if headers:
        await put(world)
    body = {"input": {"items": [named()]}}
    answer = await world.post("/v1/threads", body, headers=headers)
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (422, "artifact-missing")
    assert answer.json()["missing"] == [HASH]


async def test_an_input_with_an_artifact_waits_for_no_store_that_is_away() -> None:
    world = World()
    thread = await world.created()
    world.artifacts.away = True
    assert (await world.post(f"/v1/threads/{thread}/inputs", {"items": [named()]})).status_code == 503
    assert (await world.post(f"/v1/threads/{thread}/inputs", {"text": "hi"})).status_code == 202


@pytest.mark.parametrize("more", [{"sha256": "abc"}, {"media_type": ""}, {"size": 3}, {"name": ""}])
async def test_a_misshapen_artifact_is_refused(more: dict[str, object]) -> None:
    world = World()
    await put(world)
    thread = await world.created()
    answer = await world.post(f"/v1/threads/{thread}/inputs", {"items": [named(**more)]})
    assert answer.status_code == 422


# Configurations whose skills name artifacts


def skilled(sha256: str = HASH) -> dict[str, object]:
    return {"skills": [{"name": "review", "version": "1", "sha256": sha256}]}


async def asked(world: World, how: str, config: dict[str, object]) -> Any:
    if how == "create":
        return await world.post("/v1/threads", {"config": config})
    thread = await world.created()
    return await world.client.patch(f"/v1/threads/{thread}", json={"config": config})


NAMING = ["create", "patch"]


@pytest.mark.parametrize("how", NAMING)
async def test_a_skill_is_touched_before_it_is_named(how: str) -> None:
    world = World()
    await put(world)
    before = world.clock.now_ms()
    world.clock.ms += 5_000
    assert (await asked(world, how, skilled())).status_code in {200, 202}
    [listed] = [found async for found in world.artifacts.list()]
    assert listed.touched_ms == before + 5_000


@pytest.mark.parametrize("how", NAMING)
@pytest.mark.parametrize("tenant", ["other", None])
async def test_a_skill_that_is_not_there_is_not_named(how: str, tenant: str | None) -> None:
    world = World()
    if tenant is not None:
        await put(world, **{"x-threadlog-tenant": tenant})
    answer = await asked(world, how, skilled())
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (422, "artifact-missing")
    assert answer.json()["missing"] == [HASH]


@pytest.mark.parametrize("how", NAMING)
async def test_a_skill_is_named_by_no_store_that_is_away(how: str) -> None:
    world = World()
    await put(world)
    world.artifacts.away = True
    assert (await asked(world, how, skilled())).status_code == 503
    assert (await asked(world, how, {"skills": []})).status_code == 202


@pytest.mark.parametrize("skills", [None, "x", [1], [{"sha256": 1}], [{"sha256": "../x"}], {"a": 1}])
async def test_misshapen_skills_ask_the_store_nothing(skills: object) -> None:
    world = World()
    thread = await world.created()
    world.artifacts.away = True
    answer = await world.client.patch(f"/v1/threads/{thread}", json={"config": {"skills": skills}})
    assert answer.status_code == (202 if skills is None else 422)
