"""The artifact store's contract, kept by the folder, by a bucket, and by the store in memory."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.chassis.artifacts.object_store import ObjectArtifacts
from services.chassis.artifacts.store import (
    PIECE_BYTES,
    ArtifactInfo,
    ArtifactMismatchError,
    ArtifactMissingError,
    ArtifactStore,
    ArtifactsUnavailableError,
    ArtifactTooLargeError,
    Stored,
    collected,
    sha256_of,
)
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.processes.s3_server import BUCKET, S3Server, s3_server

BYTES_MAX = 12 * PIECE_BYTES
TEXT = b"what a tool said\n"
HASH = sha256_of(TEXT)


@pytest.fixture(scope="module")
async def bucket() -> AsyncIterator[S3Server]:
    async with s3_server() as server:
        yield server


@pytest.fixture(params=["memory", "folder", "bucket"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> ArtifactStore:
    match request.param:
        case "memory":
            return MemoryArtifacts(bytes_max=BYTES_MAX)
        case "folder":
            return ObjectArtifacts((tmp_path / "some artifacts").as_uri(), BYTES_MAX, 10)
        case _:
            bucket.objects.clear()
            for name, value in (
                ("ENDPOINT_URL", bucket.url),
                ("REGION", "eu-west-1"),
                ("ACCESS_KEY_ID", "key"),
                ("SECRET_ACCESS_KEY", "secret"),
            ):
                monkeypatch.setenv(f"AWS_{name}", value)
            return ObjectArtifacts(f"s3://{BUCKET}/below/here", BYTES_MAX, 10)


async def in_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


async def names(store: ArtifactStore, tenant: str | None = None, *, aside: bool = False) -> set[tuple[str, str, int]]:
    return {(found.tenant, found.sha256, found.size) async for found in store.list(tenant, aside=aside)}


async def test_what_was_put_is_there_with_size_and_type(store: ArtifactStore) -> None:
    assert await store.put("acme", HASH, TEXT, "text/plain") == Stored(len(TEXT), was_there=False)
    assert await store.head("acme", HASH) == ArtifactInfo(len(TEXT), "text/plain")
    assert await collected(await store.get("acme", HASH)) == TEXT


async def test_nothing_is_there_before(store: ArtifactStore) -> None:
    assert await store.head("acme", HASH) is None
    assert await store.touch("acme", HASH) is None
    assert await names(store) == set()
    assert await names(store, "acme") == set()
    with pytest.raises(ArtifactMissingError):
        await store.get("acme", HASH)


@pytest.mark.parametrize(
    "chunks", [(), (TEXT,), (TEXT, b"", TEXT), (b"x" * PIECE_BYTES, b"y" * (9 * PIECE_BYTES), b"z")]
)
async def test_a_stream_is_stored_as_it_came(store: ArtifactStore, chunks: tuple[bytes, ...]) -> None:
    whole = b"".join(chunks)
    assert (await store.put("acme", sha256_of(whole), in_chunks(*chunks), "text/plain")).size == len(whole)
    pieces = [piece async for piece in await store.get("acme", sha256_of(whole))]
    assert b"".join(pieces) == whole
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


async def test_putting_again_says_so_and_keeps_the_type(store: ArtifactStore) -> None:
    await store.put("acme", HASH, TEXT, "text/plain")
    assert await store.put("acme", HASH, in_chunks(TEXT), "text/html") == Stored(len(TEXT), was_there=True)
    assert await store.head("acme", HASH) == ArtifactInfo(len(TEXT), "text/plain")


@pytest.mark.parametrize("streamed", [False, True])
async def test_bytes_with_another_hash_leave_nothing(store: ArtifactStore, streamed: bool) -> None:
    with pytest.raises(ArtifactMismatchError, match=HASH):
        await store.put("acme", sha256_of(b"else"), in_chunks(TEXT) if streamed else TEXT, "text/plain")
    assert await names(store) == set()


@pytest.mark.parametrize("streamed", [False, True])
async def test_too_many_bytes_leave_nothing(store: ArtifactStore, streamed: bool) -> None:
    whole = b"x" * (BYTES_MAX + 1)
    with pytest.raises(ArtifactTooLargeError):
        await store.put("acme", sha256_of(whole), in_chunks(whole[:5], whole[5:]) if streamed else whole, "text/plain")
    assert await names(store) == set()


async def test_a_stream_that_breaks_leaves_nothing(store: ArtifactStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield TEXT
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await store.put("acme", HASH, broken(), "text/plain")
    assert await names(store) == set()


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (3, 9), (16, 17), (5, None), (0, 99), (17, None), (99, None), (4, 4)]
)
async def test_a_range_gives_what_there_is_of_it(store: ArtifactStore, start: int, end: int | None) -> None:
    await store.put("acme", HASH, TEXT, "text/plain")
    assert await collected(await store.get("acme", HASH, start, end)) == TEXT[start:end]


async def test_tenants_do_not_meet(store: ArtifactStore) -> None:
    """Also those whose names differ only in what a folder may take for the same."""
    await store.put("Acme", HASH, TEXT, "text/plain")
    assert await store.head("acme", HASH) is None
    await store.put("acme", sha256_of(b"b"), b"b", "text/plain")
    assert await names(store, "Acme") == {("Acme", HASH, len(TEXT))}
    assert await names(store, "acme") == {("acme", sha256_of(b"b"), 1)}
    assert len(await names(store)) == 2
    assert await names(store, "acm") == set()


async def test_touching_makes_it_new(store: ArtifactStore) -> None:
    await store.put("acme", HASH, TEXT, "text/plain")
    [before] = [found.touched_ms async for found in store.list()]
    await asyncio.sleep(0.02)  # the store's own clock has to move
    assert await store.touch("acme", HASH) == ArtifactInfo(len(TEXT), "text/plain")
    [touched] = [found.touched_ms async for found in store.list()]
    await asyncio.sleep(0.02)
    await store.put("acme", HASH, TEXT, "text/plain")
    [put] = [found.touched_ms async for found in store.list()]
    assert before < touched < put


async def test_what_was_set_aside_is_listed_apart(store: ArtifactStore) -> None:
    await store.put("acme", HASH, TEXT, "text/plain")
    await store.set_aside("acme", HASH)
    assert await names(store) == set()
    assert await names(store, aside=True) == await names(store, "acme", aside=True) == {("acme", HASH, len(TEXT))}
    assert await names(store, "other", aside=True) == set()


@pytest.mark.parametrize("wanted", ["head", "touch", "get", "put"])
async def test_whoever_misses_it_takes_it_back(store: ArtifactStore, wanted: str) -> None:
    await store.put("acme", HASH, TEXT, "text/plain")
    await store.set_aside("acme", HASH)
    match wanted:
        case "get":
            assert await collected(await store.get("acme", HASH)) == TEXT
        case "put":
            assert await store.put("acme", HASH, TEXT, "text/html") == Stored(len(TEXT), was_there=True)
        case _:
            assert await getattr(store, wanted)("acme", HASH) == ArtifactInfo(len(TEXT), "text/plain")
    assert await names(store) == {("acme", HASH, len(TEXT))}
    assert await names(store, aside=True) == set()
    assert await store.head("acme", HASH) == ArtifactInfo(len(TEXT), "text/plain")


async def test_deleting_takes_only_what_was_set_aside(store: ArtifactStore) -> None:
    await store.put("acme", HASH, TEXT, "text/plain")
    await store.delete_aside("acme", HASH)
    assert await store.head("acme", HASH) is not None
    await store.set_aside("acme", HASH)
    await store.delete_aside("acme", HASH)
    await store.delete_aside("acme", HASH)
    assert await store.head("acme", HASH) is None


async def test_setting_aside_what_is_missing_does_nothing(store: ArtifactStore) -> None:
    await store.set_aside("acme", HASH)
    assert await names(store, aside=True) == set()


async def test_it_goes_on_where_the_object_is_set_aside_while_it_is_read(store: ArtifactStore) -> None:
    whole = b"x" * (2 * PIECE_BYTES)
    await store.put("acme", sha256_of(whole), whole, "text/plain")
    pieces = await store.get("acme", sha256_of(whole))
    first = await anext(pieces)
    await store.set_aside("acme", sha256_of(whole))
    assert first + await collected(pieces) == whole


async def test_what_two_collectors_set_aside_lies_there_since_then(store: ArtifactStore) -> None:
    """The second may have listed it before the first came to it."""
    await store.put("acme", HASH, TEXT, "text/plain")
    since = await store.now_ms()
    await store.set_aside("acme", HASH)
    await store.set_aside("acme", HASH)
    [aside] = [found async for found in store.list(aside=True)]
    assert aside.touched_ms >= since
    assert await store.head("acme", HASH) == ArtifactInfo(len(TEXT), "text/plain")


async def test_the_time_is_the_one_by_which_objects_are_listed(store: ArtifactStore) -> None:
    before = await store.now_ms()
    await store.put("acme", HASH, TEXT, "text/plain")
    [put] = [found async for found in store.list()]
    assert before <= put.touched_ms < await store.now_ms() + 1_000
    assert len(await names(store)) == 1
    assert await names(store, aside=True) == set()


async def test_what_lies_aside_without_a_time_lies_there_since_it_was_seen(tmp_path: Path) -> None:
    """Whoever took it back may have taken away the companion of a collector that set it aside once more."""
    store = ObjectArtifacts(tmp_path.as_uri(), BYTES_MAX, 10)
    await store.put("acme", HASH, TEXT, "text/plain")
    await store.set_aside("acme", HASH)
    [aside] = (tmp_path / "=").rglob("*.type")
    aside.unlink()
    since = await store.now_ms()
    assert [found async for found in store.list(aside=True)] == []
    [listed] = [found async for found in store.list(aside=True)]
    assert listed.touched_ms >= since


async def test_a_spool_without_room_is_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    store = ObjectArtifacts(tmp_path.as_uri(), BYTES_MAX, 10)
    whole = b"x" * (6 * PIECE_BYTES)
    with pytest.raises(ArtifactsUnavailableError, match="temporary file"):
        await store.put("acme", sha256_of(whole), in_chunks(whole), "text/plain")


async def test_a_store_that_is_away_says_so_and_may_come_back(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    store = ObjectArtifacts((tmp_path / "folder").as_uri(), BYTES_MAX, 10)
    for attempt in (store.put("acme", HASH, TEXT, "text/plain"), store.head("acme", HASH), store.get("acme", HASH)):
        with pytest.raises(ArtifactsUnavailableError, match="folder") as raised:
            await attempt
        assert raised.value.retriable
    (tmp_path / "folder").unlink()
    await store.put("acme", HASH, TEXT, "text/plain")


async def test_a_put_that_was_cancelled_leaves_nothing_or_all(tmp_path: Path) -> None:
    store = ObjectArtifacts(tmp_path.as_uri(), BYTES_MAX, 10)
    whole = b"x" * BYTES_MAX
    put = asyncio.ensure_future(store.put("acme", sha256_of(whole), whole, "text/plain"))
    await asyncio.sleep(0.001)
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    found = await names(store)
    assert found in (set(), {("acme", sha256_of(whole), len(whole))})
    await store.put("acme", sha256_of(whole), whole, "text/plain")
    assert await collected(await store.get("acme", sha256_of(whole))) == whole
