"""One tenant asks with another's ids: every operation of the API, all ids real. The answer is the one that ids get which
exist nowhere, byte for byte but for the ids themselves, and nothing of the other's is in it.

Driven from the OpenAPI document: an operation without a case here fails, and so does a parameter that names something
and is in no case.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import asyncpg
import httpx2
import orjson
from pydantic import JsonValue

from schemas.config import Config
from schemas.events import ArtifactRecorded, Lineage, PlanProposed, Task, ThreadConfigured, ThreadCreated
from services.chassis.artifacts.store import sha256_of
from services.ingest.api_keys import create_key
from services.ingest.app import openapi_document
from services.ingest.http.auth import SCOPES
from services.ingest.settings import IngestSettings
from tests.support.recorded import histories
from tests.support.worlds.ingest import SQL, Place

OWNER: Final = "dev"
"""The tenant of what is asked for."""
MARK: Final = "mark-of-the-owner"
"""In every text of that tenant."""
VAGUE: Final = frozenset(
    {"limit", "wait", "archived", "status", "updated_after", "until", "effects", "at", "from", "to"}
)
"""Parameters that name nothing that could be somebody's."""
OF_OPERATORS: Final = "/v1/ops/"

Queries = Sequence[Mapping[str, str]]
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Ids:
    thread: str
    call: str
    unknown_call: str
    attempt: int
    call_hash: str
    event_id: str
    input: str
    turn: int
    version: int
    """Of the plan."""
    seq: int
    position: str
    model: str
    label: str
    idempotency_key: str
    sha256: str
    """Of an artifact."""
    job: str
    """Of an import."""
    cursors: Mapping[str, str] = field(default_factory=dict)
    """By path, of the second page."""


@dataclass(frozen=True)
class Case:
    """What is asked, as templates over `Ids`: a query each, with the same body."""

    queries: Queries = ({},)
    body: Mapping[str, JsonValue] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    call: str = "{call}"


PAGED: Final[Queries] = ({}, {"at_least": "{position}"}, {"at_least": "{seq}"}, {"cursor": "{cursor}"})
OF_TENANT: Final[Queries] = ({}, {"at_least": "{position}"}, {"thread": "{thread}"}, {"cursor": "{cursor}"})
KEYED: Final = {"Idempotency-Key": "{idempotency_key}"}

CASES: Final[Mapping[tuple[str, str], Case]] = {
    ("post", "/v1/threads"): Case(body={"input": {"text": "mine"}}, headers=KEYED),
    ("get", "/v1/threads"): Case(({}, {"at_least": "{position}"}, {"label": "{label}"}, {"cursor": "{cursor}"})),
    ("get", "/v1/threads/{thread}"): Case(({}, {"at_least": "{position}"}, {"at_least": "{seq}"})),
    ("patch", "/v1/threads/{thread}"): Case(body={"title": "taken"}, headers=KEYED),
    ("post", "/v1/threads/{thread}/close"): Case(body={}, headers=KEYED),
    ("get", "/v1/threads/{thread}/events"): Case(
        ({}, {"after": "{seq}"}, {"at_least": "{position}"}, {"at_least": "{seq}"}, {"until": "turn_end"}),
        headers={"Last-Event-ID": "{seq}"},
    ),
    ("get", "/v1/threads/{thread}/state"): Case(({}, {"at": "{seq}"}, {"at_least": "{position}"}, {"at": "1"})),
    ("post", "/v1/threads/{thread}/inputs"): Case(
        ({}, {"wait": "applied"}), {"text": "x", "mode": "steer", "expected_turn": "{turn}"}, KEYED
    ),
    ("post", "/v1/threads/{thread}/inputs/{input}/withdraw"): Case(({}, {"wait": "applied"}), {}, KEYED),
    ("post", "/v1/threads/{thread}/turns/{turn}/cancel"): Case(({}, {"wait": "applied"}), {}, KEYED),
    ("get", "/v1/threads/{thread}/commands/{event_id}"): Case(({}, {"at_least": "{position}"}, {"at_least": "{seq}"})),
    ("post", "/v1/threads/{thread}/tool-calls/{call}/decision"): Case(
        body={"decision": "approve", "call_hash": "{call_hash}"}, headers=KEYED
    ),
    ("post", "/v1/threads/{thread}/tool-calls/{call}/result"): Case(
        body={"outcome": "succeeded", "result": 1}, headers=KEYED, call="{unknown_call}"
    ),
    ("post", "/v1/threads/{thread}/tool-calls/{call}/resolution"): Case(
        body={"decision": "abandoned", "attempt": "{attempt}", "note": "x"}, headers=KEYED, call="{unknown_call}"
    ),
    ("get", "/v1/threads/{thread}/turns/{turn}/diff"): Case(),
    ("post", "/v1/threads/{thread}/turns/{turn}/restore"): Case(({}, {"wait": "applied"}), {}, KEYED),
    ("put", "/v1/artifacts/{sha256}"): Case(body={}),
    ("get", "/v1/artifacts/{sha256}"): Case(headers={"Range": "bytes=0-", "If-None-Match": '"{sha256}"'}),
    ("head", "/v1/artifacts/{sha256}"): Case(),
    ("post", "/v1/imports"): Case(
        body={"tool": "codex", "files": [{"path": "a.jsonl", "sha256": "0" * 64, "size": 1}]}, headers=KEYED
    ),
    ("get", "/v1/imports/{import}"): Case(),
    ("get", "/v1/imports/{import}/files"): Case(({}, {"after": "0"})),
    ("post", "/v1/threads/{thread}/fork"): Case(({}, {"wait": "applied"}), {"at": {"seq": "{seq}"}}, KEYED),
    ("post", "/v1/threads/{thread}/rewind"): Case(({}, {"wait": "applied"}), {"to_turn": "{turn}"}, KEYED),
    ("post", "/v1/threads/{thread}/compact"): Case(({}, {"wait": "applied"}), {}, KEYED),
    ("post", "/v1/threads/{thread}/children"): Case(({}, {"wait": "applied"}), {"title": "mine"}, KEYED),
    ("post", "/v1/threads/{thread}/plan"): Case(body={"tasks": [{"id": "a", "title": "A"}]}, headers=KEYED),
    ("post", "/v1/threads/{thread}/plan/{version}/decision"): Case(body={"decision": "approve"}, headers=KEYED),
    **{
        ("get", f"/v1/threads/{{thread}}/{name}"): Case(PAGED)
        for name in ("inputs", "items", "turns", "steps", "tool-calls", "plan", "children")
    },
    ("get", "/v1/approvals"): Case(OF_TENANT),
    ("get", "/v1/unknown-calls"): Case(OF_TENANT),
    ("get", "/v1/usage"): Case(OF_TENANT),
    ("get", "/v1/ops/stuck"): Case(),
    ("get", "/v1/ops/dead-letters"): Case(
        (
            {},
            {"tenant": OWNER},
            {"topic": "thread-events"},
            {"partition": "0"},
            {"fault": "no_key"},
            {"cursor": "{cursor}"},
            {"since": "2026-01-01T00:00:00Z"},
        )
    ),
    ("get", "/v1/ops/windows"): Case(
        (
            {},
            {"tenant": OWNER},
            {"step_minutes": "5"},
            {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
            {"cursor": "{cursor}"},
        )
    ),
}


def operations() -> dict[tuple[str, str], list[str]]:
    """The parameters of each, by name."""
    return {
        (method, path): [f"{each['in']}:{each['name']}" for each in operation.get("parameters", [])]
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
    }


def test_every_operation_and_parameter_has_a_case() -> None:
    found = operations()
    assert found.keys() <= CASES.keys(), "an operation needs a case here: what does another tenant get of it?"
    assert len(found) >= 23
    for operation, parameters in found.items():
        case = CASES[operation]
        covered = {f"query:{name}" for query in case.queries for name in query}
        covered |= {f"header:{name}" for name in case.headers} | {
            name for name in parameters if name.startswith("path:")
        }
        left = {name for name in parameters if name.partition(":")[2] not in VAGUE} - covered
        assert not left, f"{operation} takes {left}: what does it give of another tenant's?"


class Asker:
    def __init__(self, client: httpx2.AsyncClient, key: str) -> None:
        self._client = client
        self._key = key

    async def ask(
        self, operation: tuple[str, str], query: Mapping[str, str], ids: Ids, **headers: str
    ) -> httpx2.Response:
        method, path = operation
        case = CASES[operation]
        values = {**vars(ids), "import": ids.job, "cursor": ids.cursors.get(path, "")}
        called = {**values, "call": case.call.format(**values)}
        given: dict[str, Any] = {}
        if case.body is not None:
            given["json"] = _filled(case.body, values)
        return await self._client.request(
            method,
            path.format(**called),
            params={name: text.format(**values) for name, text in query.items()},
            headers={
                **{name: text.format(**values) for name, text in case.headers.items()},
                "authorization": f"Bearer {self._key}",
                **headers,
            },
            **given,
        )


def _filled(body: Mapping[str, JsonValue], values: Mapping[str, object]) -> dict[str, object]:
    """`"{turn}"` becomes the number, texts with other placeholders are formatted."""
    return {
        name: values[value[1:-1]]
        if isinstance(value, str) and value[:1] + value[-1:] == "{}"
        else _filled(value, values)
        if isinstance(value, dict)
        else value
        for name, value in body.items()
    }


async def asker(place: Place, client: httpx2.AsyncClient, tenant: str, scopes: frozenset[str] = SCOPES) -> Asker:
    connection = await asyncpg.connect(place.dsn)
    try:
        subject = f"{MARK}@example.com" if tenant == OWNER else "ann@example.com"
        return Asker(client, await create_key(connection, SQL, tenant=tenant, subject=subject, scopes=scopes - {"ops"}))
    finally:
        await connection.close()


async def owned(place: Place, owner: Asker) -> Ids:
    """Threads with everything in them that an id could name, and the ids of it."""
    ids = nowhere()
    body = {"title": MARK, "labels": {"mark": MARK}, "input": {"text": MARK}}
    for number in range(3):  # the last one is asked for; the others make lists that have a second page
        created = await owner._client.post(
            "/v1/threads",
            json=body,
            headers={"authorization": f"Bearer {owner._key}", "idempotency-key": f"{MARK}-{number}"},
        )
        assert created.status_code in {200, 202}, created.text
        ids = replace(ids, thread=created.json()["thread"], idempotency_key=f"{MARK}-{number}")
        await filled(place, ids.thread)
    thread = ids.thread
    submitted = [event["id"] for event in created.json()["events"]]
    for child in (f"{thread}-1", f"{thread}-2"):
        lineage = Lineage(kind="child", parent=thread, seq=1, chain="0" * 64, depth=1)
        await place.append(child, ThreadCreated(config=Config(model="m"), title=MARK, lineage=lineage))
    state = place.state(thread)
    at_least = await place.append(
        thread, ArtifactRecorded(sha256="ab" * 32, size=1, media_type="text/plain", name=MARK)
    )
    artifact = sha256_of(MARK.encode())
    headers = {"authorization": f"Bearer {owner._key}"}
    stored = await owner._client.put(f"/v1/artifacts/{artifact}", content=MARK, headers=headers)
    assert stored.status_code in {200, 201}, stored.text
    unknown = next(call.call for call in state.calls.values() if call.status == "unknown")
    waiting = next(call for call in state.calls.values() if call.status == "waiting")
    return replace(
        ids,
        call=waiting.call,
        call_hash=waiting.call_hash,
        unknown_call=unknown,
        attempt=state.calls[unknown].attempt,
        event_id=submitted[0],
        input=submitted[-1],
        turn=2,
        version=2,
        seq=state.seq,
        position=at_least,
        model=IngestSettings().ingest_default_model,
        label=f"mark:{MARK}",
        sha256=artifact,
    )


async def filled(place: Place, thread: str) -> None:
    """A turn that has ended, and an open one with a call that waits, one that is unknown, and a plan."""
    for is_open in (False, True):
        # Of another model each, so that what was used takes two pages.
        await place.append(thread, ThreadConfigured(patch={"model": f"of-{is_open}"}))
        await place.append(thread, histories.submitted(f"more-{is_open}", text=MARK), "user:ann")
        await place.append(thread, histories.turn_started(place.state(thread)))
        await place.append(thread, histories.step_started(place.state(thread)))
        calls = [histories.proposed(index, args={"command": f"{MARK} {index}"}) for index in range(4 * is_open)]
        await place.append(thread, histories.step_finished(place.state(thread), calls=calls))
        if not is_open:
            await place.append(thread, histories.turn_ended(place.state(thread)))
    for number, call in enumerate(place.state(thread).calls):
        await place.append(thread, histories.approval_requested(place.state(thread).calls[call]))
        if number < 2:  # lost while it ran
            await place.append(thread, histories.approved(place.state(thread).calls[call]))
            await place.append(thread, histories.dispatched(place.state(thread).calls[call]))
            await place.append(thread, histories.claimed(place.state(thread).calls[call]), "service:tool-executor")
            await place.append(thread, histories.lost(place.state(thread).calls[call]))
    for version in (1, 2):
        await place.append(thread, PlanProposed(plan_version=version, tasks=(Task(id="one", title=MARK),)))


def nowhere() -> Ids:
    """Nobody's, as long as real ones."""
    return Ids(
        thread="00000000-0000-4000-8000-00000000dead",
        call="7.7.7",
        unknown_call="8.8.8",
        attempt=9,
        call_hash="0" * 64,
        event_id="00000000-0000-4000-8000-0000000000ad",
        input="00000000-0000-4000-8000-0000000000af",
        turn=77,
        version=77,
        seq=1,
        position="0:0",
        model="nobody/model",
        label="nobody:here",
        idempotency_key="nobodys",
        sha256="0" * 64,
        job="00000000-0000-5000-8000-0000000000aa",
    )


def plain(answer: httpx2.Response, ids: Ids) -> tuple[int, bytes, str]:
    """What is left of an answer without the ids that were asked for and those that were made for it."""
    body = answer.content
    for name in ("thread", "event_id", "input", "call_hash", "call", "unknown_call"):
        body = body.replace(str(getattr(ids, name)).encode(), b"ID")
    body = UUID.sub(b"ID", body)
    body = re.sub(rb'"(offset|partition|seq|turn|attempt)":\d+', rb'"\1":0', body)
    body = re.sub(rb"\bturn \d+", b"turn 0", body)
    return answer.status_code, body, answer.headers.get("content-type", "")


async def test_another_tenant_gets_what_nobodys_ids_get(place: Place) -> None:
    await place.project()
    client = await place.ingest(ingest_auth="keys", page_default=1)
    owner = await asker(place, client, OWNER)
    real = await with_cursors(owner, await owned(place, owner))
    stranger, nobody = await asker(place, client, "umbrella"), nowhere()
    before = place.state(real.thread)
    # Once on a process that has the owner's thread in its memory, and once on one that knows nothing.
    cold = await place.ingest(ingest_auth="keys", page_default=1)
    for asking in (stranger, Asker(cold, stranger._key)):
        for operation in operations():
            if "{thread}" not in operation[1]:
                continue
            for query in CASES[operation].queries:
                for accept in ("application/json", "text/event-stream"):
                    got = await asking.ask(operation, query, real, accept=accept)
                    expected = await asking.ask(operation, query, replace(nobody, **shared(real)), accept=accept)
                    assert got.status_code == 404, (operation, query, got.status_code, got.text)
                    assert plain(got, real) == plain(expected, nobody), (operation, query)
                    assert MARK not in got.text
    assert place.state(real.thread) == before, "what a stranger sends changes nothing"


def shared(real: Ids) -> dict[str, Any]:
    """What is nobody's own: positions of partitions that all tenants share, cursors, numbers."""
    return {"position": real.position, "cursors": real.cursors, "seq": real.seq}


async def with_cursors(owner: Asker, ids: Ids) -> Ids:
    """Each list's second page. The owner sees it all: what the stranger does not get is there to be had."""
    cursors = {}
    for operation in operations():
        method, path = operation
        if method != "get" or path.startswith(OF_OPERATORS):
            continue
        if path.startswith(("/v1/artifacts/", "/v1/imports/")):
            continue  # asked for below
        answer = await owner.ask(operation, {"at_least": ids.position}, ids)
        assert answer.status_code == 200, (operation, answer.text)
        shown = answer.json()
        if shown.get("next_cursor"):
            cursors[path] = shown["next_cursor"]
        if path != "/v1/usage":
            assert MARK in answer.text or path.rpartition("/")[2] in {
                "turns",
                "steps",
                "inputs",
                "{event_id}",
                "diff",
            }, operation
    paged = {path for (method, path), names in operations().items() if method == "get" and "query:cursor" in names}
    assert {path for path in paged if not path.startswith(OF_OPERATORS)} == cursors.keys()
    return replace(ids, cursors=cursors)


async def test_lists_of_a_tenant_are_empty_for_another(place: Place) -> None:
    await place.project()
    client = await place.ingest(ingest_auth="keys", page_default=1)
    owner = await asker(place, client, OWNER)
    real, nobody = await with_cursors(owner, await owned(place, owner)), nowhere()
    stranger = await asker(place, client, "umbrella")
    for operation in operations():
        method, path = operation
        if method != "get" or "{thread}" in path or path.startswith(OF_OPERATORS):
            continue
        for query in CASES[operation].queries:
            got = await stranger.ask(operation, query, real)
            expected = await stranger.ask(operation, query, replace(nobody, **shared(real)))
            assert plain(got, real) == plain(expected, nobody), (operation, query, got.text)
            if "thread" in query or "{" in path:
                assert got.status_code == 404, (operation, query, got.text)
            else:
                assert (got.status_code, got.json()["data"]) == (200, []), (operation, query, got.text)
            assert MARK not in got.text


async def test_artifacts_of_a_tenant_are_nobodys_for_another(place: Place) -> None:
    client = await place.ingest(ingest_auth="keys")
    owner, stranger = await asker(place, client, OWNER), await asker(place, client, "umbrella")
    real = replace(nowhere(), sha256=sha256_of(MARK.encode()))
    headers = {"authorization": f"Bearer {owner._key}"}
    assert (await client.put(f"/v1/artifacts/{real.sha256}", content=MARK, headers=headers)).status_code == 201
    assert (await client.get(f"/v1/artifacts/{real.sha256}", headers=headers)).text == MARK
    for method in ("get", "head"):
        got = await stranger.ask((method, "/v1/artifacts/{sha256}"), {}, real)
        expected = await stranger.ask((method, "/v1/artifacts/{sha256}"), {}, nowhere())
        assert (got.status_code, got.content) == (expected.status_code, expected.content) == (404, expected.content)
    named = {"items": [{"type": "artifact", "sha256": real.sha256, "media_type": "text/plain"}]}
    refused = await client.post(
        "/v1/threads", json={"input": named}, headers={"authorization": f"Bearer {stranger._key}"}
    )
    assert (refused.status_code, refused.json()["missing"]) == (422, [real.sha256])


async def test_imports_of_a_tenant_are_nobodys_for_another(place: Place) -> None:
    client = await place.ingest(ingest_auth="keys")
    owner, stranger = await asker(place, client, OWNER), await asker(place, client, "umbrella")
    created = await owner.ask(("post", "/v1/imports"), {}, nowhere())
    assert created.status_code == 202, created.text
    real = replace(nowhere(), job=created.json()["id"])
    for operation in (("get", "/v1/imports/{import}"), ("get", "/v1/imports/{import}/files")):
        for query in CASES[operation].queries:
            assert (await owner.ask(operation, query, real)).status_code == 200
            got = await stranger.ask(operation, query, real)
            expected = await stranger.ask(operation, query, nowhere())
            assert (got.status_code, got.content) == (expected.status_code, expected.content)
            assert got.status_code == 404
    same_key = await stranger.ask(("post", "/v1/imports"), {}, nowhere())
    assert (same_key.status_code, same_key.json()["id"] == real.job) == (202, False), "its key is its own"


async def test_parts_of_anothers_thread_are_not_found_in_ones_own(place: Place) -> None:
    """Calls, events, inputs and turns are named within a thread: in the stranger's own they are nobody's."""
    await place.project()
    client = await place.ingest(ingest_auth="keys", views_wait_seconds=10)
    owner = await asker(place, client, OWNER)
    real, nobody = await owned(place, owner), nowhere()
    stranger = await asker(place, client, "umbrella")
    created = await stranger.ask(("post", "/v1/threads"), {"wait": "applied"}, real)
    assert (created.status_code, created.json()["thread"] == real.thread) == (200, False), "its key is its own"
    own = created.json()["thread"]
    for operation in operations():
        path = operation[1]
        if not re.search(r"\{(input|turn|event_id|call)\}", path):
            continue
        for query in CASES[operation].queries:
            got = await stranger.ask(operation, query, replace(real, thread=own, idempotency_key="one", seq=1))
            other = replace(nobody, thread=own, position=real.position, idempotency_key="two")
            expected = await stranger.ask(operation, query, other)
            assert got.status_code in {202, 404, 409}, (operation, query, got.status_code, got.text)
            assert plain(got, replace(real, thread=own)) == plain(expected, other), (operation, query)
            assert MARK not in got.text


async def test_operators_routes_need_their_scope(place: Place) -> None:
    await place.project()
    client = await place.ingest(ingest_auth="keys")
    owner = await asker(place, client, OWNER)
    real = await owned(place, owner)
    for operation in operations():
        if operation[1].startswith(OF_OPERATORS):
            for query in CASES[operation].queries:
                for ids in (real, nowhere()):
                    refused = await owner.ask(operation, query, ids)
                    assert refused.status_code == 403, (operation, query, refused.text)
                    assert MARK not in refused.text


async def test_without_a_key_nobody_gets_anything(place: Place) -> None:
    await place.project()
    client = await place.ingest(ingest_auth="keys")
    nobody = Asker(client, "tl_0000000000000000_" + "A" * 43)
    for operation in operations():
        for query in CASES[operation].queries:
            answer = await nobody.ask(operation, query, nowhere())
            assert answer.status_code == 401, (operation, answer.text)
            if operation[0] != "head":
                assert orjson.loads(answer.content)["title"] == "No valid API key"
