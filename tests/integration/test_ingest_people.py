"""What waits for people, and what became of inputs: on the projector's real views."""

import asyncio
from typing import Any

import asyncpg
import httpx2

from schemas.tools import CatalogSource, ToolSpec
from services.ingest.api_keys import create_key
from tests.support.recorded import histories
from tests.support.worlds.ingest import SQL, Place, position

CALL = "1.1.0"
SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


async def with_calls(place: Place, client: httpx2.AsyncClient, count: int, tenant: str = "dev") -> tuple[str, str]:
    """A thread with calls that wait for approval; and the position of the last record."""
    created = await client.post("/v1/threads", json={"input": {"text": "go"}}, headers={"x-threadlog-tenant": tenant})
    thread = created.json()["thread"]
    await place.append(thread, histories.turn_started(place.state(thread)))
    await place.append(thread, histories.step_started(place.state(thread)))
    calls = [histories.proposed(index) for index in range(count)]
    at_least = await place.append(thread, histories.step_finished(place.state(thread), calls=calls))
    for call in place.state(thread).calls.values():
        asked = histories.approval_requested(call, expires_at_ms=histories.START_MS)
        at_least = await place.append(thread, asked)
    return thread, at_least


async def with_unknown(place: Place, client: httpx2.AsyncClient) -> tuple[str, str]:
    thread, _ = await with_calls(place, client, 1)
    await place.append(thread, histories.approved(place.state(thread).calls[CALL]))
    await place.append(thread, histories.dispatched(place.state(thread).calls[CALL]))
    await place.append(thread, histories.claimed(place.state(thread).calls[CALL]), "service:tool-executor")
    return thread, await place.append(thread, histories.lost(place.state(thread).calls[CALL]))


async def pages(client: httpx2.AsyncClient, path: str, **query: str) -> list[dict[str, Any]]:
    """All entries, two at a time."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(20):
        given = {**query, "limit": "2"} | ({} if cursor is None else {"cursor": cursor})
        answer = await client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        found += answer.json()["data"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found
    raise AssertionError("the list does not end")


async def test_approvals_are_listed_with_what_is_needed_to_decide(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    threads = [await with_calls(place, client, 3) for _ in range(2)]
    for _, at_least in threads:
        assert (await client.get("/v1/approvals", params={"at_least": at_least})).status_code == 200
    names = sorted(thread for thread, _ in threads)
    everything = await pages(client, "/v1/approvals")
    assert [(row["thread"], row["call"]) for row in everything] == [
        (thread, f"1.1.{index}") for thread in names for index in range(3)
    ]
    of_one = await pages(client, "/v1/approvals", thread=names[1])
    assert of_one == everything[3:]
    call = place.state(names[0]).calls[CALL]
    asked_at = everything[0].pop("requested_at")
    assert asked_at.endswith("Z")
    assert everything[0] == {
        "thread": names[0],
        "call": CALL,
        "turn": 1,
        "step": 1,
        "index": 0,
        "attempt": 0,
        "tool": "shell",
        "args": call.args,
        "malformed": None,
        "call_hash": call.call_hash,
        "effect": None,
        "reason": histories.approval_requested(call).reason,
        "expires_at": "2026-09-21T14:13:20.000Z",
        "turn_status": "open",
    }
    decided = await client.post(
        f"/v1/threads/{names[0]}/tool-calls/{CALL}/decision",
        json={"decision": "approve", "call_hash": call.call_hash},
    )
    left = await pages(client, "/v1/approvals", thread=names[0], at_least=position(decided))
    assert [row["call"] for row in left] == ["1.1.1", "1.1.2"]


async def test_lists_of_a_tenant_show_nothing_of_another(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    waiting, at_least = await with_calls(place, client, 1)
    lost, at_least_lost = await with_unknown(place, client)
    other = {"x-threadlog-tenant": "umbrella"}
    for path, thread, position_ in (
        ("/v1/approvals", waiting, at_least),
        ("/v1/unknown-calls", lost, at_least_lost),
    ):
        assert len((await client.get(path, params={"at_least": position_})).json()["data"]) == 1
        assert (await client.get(path, headers=other)).json() == {"data": [], "next_cursor": None}
        foreign = await client.get(path, params={"thread": thread}, headers=other)
        never = await client.get(path, params={"thread": "never"}, headers=other)
        assert (foreign.status_code, foreign.content) == (404, never.content)
        assert (await client.get(path, params={"at_least": "3"})).status_code == 400
        assert (await client.get(path, params={"at_least": "3", "thread": thread})).status_code == 200
        for cursor in ("x", "WzEsMSwxLDFd", "WyJcdTAwMDAiLDEsMSwxXQ"):
            assert (await client.get(path, params={"cursor": cursor})).status_code == 400


async def test_unknown_calls_are_listed_and_settled(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    thread, at_least = await with_unknown(place, client)
    listed = (await client.get("/v1/unknown-calls", params={"at_least": at_least})).json()
    [row] = listed["data"]
    assert (row["thread"], row["call"], row["attempt"], row["effect"]) == (thread, CALL, 1, "unsafe")
    assert (row["executor"], row["turn_status"], row["lost_attempts"]) == ("E1", "open", 1)
    assert row["evidence"] and row["idempotency_key"] and row["claimed_at"]
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/resolution"
    again = await client.post(path, json={"decision": "again", "attempt": 1, "note": "it is not there"})
    assert again.status_code == 200, again.text
    late = await client.post(path, json={"decision": "abandoned", "attempt": 1, "note": "never mind"})
    decided = late.json()["decided"]
    assert late.status_code == 409
    assert decided.pop("at").endswith("Z")
    assert decided == {"by": "user:dev", "decision": "again", "reason": "it is not there"}
    assert late.json()["call"]["status"] == "repeatable"
    assert await pages(client, "/v1/unknown-calls", at_least=position(again)) == []


async def test_a_refused_decision_learns_what_the_views_know(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    thread, _ = await with_calls(place, client, 1)
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/decision"
    body = {"call_hash": place.state(thread).calls[CALL].call_hash}
    ann, bob = {"x-threadlog-subject": "ann"}, {"x-threadlog-subject": "bob"}
    denied = await client.post(path, json={"decision": "deny", "reason": "not today", **body}, headers=ann)
    late = await client.post(path, json={"decision": "approve", **body}, headers=bob)
    assert (denied.status_code, late.status_code) == (200, 409)
    decided, recorded = late.json()["decided"], late.json()["recorded"]
    assert decided.pop("at") == recorded.pop("at")
    assert decided == {"by": "user:ann", "decision": "denied", "reason": "not today"}
    assert recorded == {"outcome": "denied", "result": "The call was denied. not today"}


async def test_of_answers_through_several_processes_the_first_in_the_log_counts(place: Place) -> None:
    await place.project()
    clients = [await place.ingest() for _ in range(3)]
    thread, _ = await with_calls(place, clients[0], 1)
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/decision"
    call_hash = place.state(thread).calls[CALL].call_hash
    bodies = [{"decision": name, "call_hash": call_hash} for name in ("approve", "deny", "approve", "deny")]
    answers = await asyncio.gather(
        *[
            clients[n % 3].post(path, json=body, headers={"x-threadlog-subject": f"person-{n}"})
            for n, body in enumerate(bodies)
        ]
    )
    statuses = [answer.status_code for answer in answers]
    assert sorted(statuses) == [200, 409, 409, 409]
    first = statuses.index(200)
    for answer in answers:
        if answer.status_code == 409:
            decided = answer.json()["decided"]
            assert decided["by"] == f"user:person-{first}"
            assert decided["decision"] == ("approved", "denied")[first % 2]
    await clients[0].aclose()
    later = await (await place.ingest()).post(path, json=bodies[0])
    assert later.json()["decided"]["by"] == f"user:person-{first}"


async def test_edited_arguments_are_checked_against_the_catalog(place: Place) -> None:
    await place.project()
    await place.offer(CatalogSource(source="test", pool="builtin", tools=(ToolSpec(name="shell", input_schema=SHELL),)))
    client = await place.ingest()
    thread, at_least = await with_calls(place, client, 1)
    [row] = (await client.get("/v1/approvals", params={"at_least": at_least})).json()["data"]
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/decision"
    body = {"decision": "approve", "call_hash": row["call_hash"]}
    unfit = await client.post(path, json={**body, "args": {"command": 3}})
    assert (unfit.status_code, unfit.json()["errors"][0]["place"]) == (422, "args.command")
    fit = await client.post(path, json={**body, "args": {"command": "ls"}})
    assert fit.status_code == 200, fit.text
    shown = await client.get(f"/v1/threads/{thread}/tool-calls", params={"at_least": position(fit)})
    [call] = shown.json()["data"]
    assert (call["args"], call["decision"], call["decided_by"]) == ({"command": "ls"}, "edited", "user:dev")


async def test_the_same_result_is_answered_alike_and_another_learns_of_it(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    thread, _ = await with_calls(place, client, 1)
    await place.append(thread, histories.approved(place.state(thread).calls[CALL]))
    await place.append(thread, histories.dispatched(place.state(thread).calls[CALL], pool="client"))
    await place.append(thread, histories.lost(place.state(thread).calls[CALL]))
    await place.append(thread, histories.resolved(place.state(thread).calls[CALL], "again"), "user:ann")
    await place.append(thread, histories.dispatched(place.state(thread).calls[CALL], pool="client"))
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/result"
    body = {"outcome": "succeeded", "result": {"seat": 2.0, "rows": [1, "ä"]}}
    first = await client.post(path, json=body, headers={"idempotency-key": "k"})
    for headers in ({"idempotency-key": "k"}, {"idempotency-key": "l"}, {"x-threadlog-subject": "bob"}, {}):
        again = await client.post(path, json=body, headers=headers)
        assert (again.status_code, again.json()) == (200, first.json())
    other = await client.post(path, json={"outcome": "failed"})
    recorded = other.json()["recorded"]
    assert (other.status_code, recorded["outcome"], recorded["result"]) == (409, "succeeded", body["result"])


async def test_each_input_shows_which_turn_and_step_took_it(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    thread = (await client.post("/v1/threads", json={})).json()["thread"]
    path = f"/v1/threads/{thread}/inputs"

    async def submit(**body: object) -> str:
        return str((await client.post(path, json={"text": "x", **body})).json()["input"])

    started = await submit()
    await place.append(thread, histories.turn_started(place.state(thread)))
    steering = await submit(mode="steer", expected_turn=1)
    await place.append(thread, histories.step_started(place.state(thread)))
    discarded = await submit(mode="steer", expected_turn=1)
    withdrawn, left = await submit(), await submit(mode="interrupt")
    last = await client.post(f"{path}/{withdrawn}/withdraw")
    at_least = await place.append(thread, histories.turn_ended(place.state(thread), "aborted"))
    assert last.status_code == 200
    found = await pages(client, path, at_least=at_least)
    assert [(row["input"], row["status"], row["turn"], row["step"], row["mode"]) for row in found] == [
        (started, "taken", 1, None, "queue"),
        (steering, "taken", 1, 1, "steer"),
        (discarded, "discarded", None, None, "steer"),
        (withdrawn, "withdrawn", None, None, "queue"),
        (left, "queued", None, None, "interrupt"),
    ]
    assert [row["dropped"] for row in found] == [None, None, "turn.ended", "input.withdrawn", None]
    assert [row["expected_turn"] for row in found] == [None, 1, 1, None, None]
    assert {row["submitted_by"] for row in found} == {"user:dev"}
    assert found[0]["items"] == [{"type": "text", "text": "x"}]
    refused = await client.post(f"{path}/{steering}/withdraw")
    assert (refused.status_code, refused.json()["turn"], refused.json()["step"]) == (409, 1, 1)
    assert refused.json()["input_status"] == "taken"


async def test_a_thread_that_closed_elsewhere_takes_no_input(place: Place) -> None:
    await place.project()
    one, two = await place.ingest(), await place.ingest()
    thread = (await one.post("/v1/threads", json={})).json()["thread"]
    closed = await one.post(f"/v1/threads/{thread}/close")
    await two.get(f"/v1/threads/{thread}?at_least={position(closed)}")
    for client in (one, two):
        answer = await client.post(f"/v1/threads/{thread}/inputs", json={"text": "x"})
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "thread-closing")


async def test_who_lacks_the_right_neither_decides_nor_resolves(place: Place) -> None:
    await place.project()
    anybody, client = await place.ingest(), await place.ingest(ingest_auth="keys")
    waiting, _ = await with_calls(place, anybody, 1)
    lost, at_least = await with_unknown(place, anybody)
    connection = await asyncpg.connect(place.dsn)
    try:
        scopes = ["threads:read", "threads:write"]
        key = await create_key(connection, SQL, tenant="dev", subject="bot", scopes=scopes)
    finally:
        await connection.close()
    headers = {"authorization": f"Bearer {key}"}
    listed = await client.get("/v1/unknown-calls", params={"at_least": at_least}, headers=headers)
    assert [row["thread"] for row in listed.json()["data"]] == [lost]
    before = place.state(waiting).seq, place.state(lost).seq
    decision = {"decision": "approve", "call_hash": place.state(waiting).calls[CALL].call_hash}
    resolution = {"decision": "again", "attempt": 1, "note": "surely"}
    for path, body in (
        (f"/v1/threads/{waiting}/tool-calls/{CALL}/decision", decision),
        (f"/v1/threads/{lost}/tool-calls/{CALL}/resolution", resolution),
    ):
        answer = await client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (403, "forbidden")
        assert answer.json()["detail"] == "The API key needs the scope tools:decide."
    assert (place.state(waiting).seq, place.state(lost).seq) == before
