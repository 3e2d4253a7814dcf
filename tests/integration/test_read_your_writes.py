"""Every write answers its position and, when asked, its effect; every read waits for a position, with a limit."""

import re
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from schemas.events import FileChange, TurnCancelRequested
from schemas.tools import CatalogSource, ToolSpec
from services.ingest.app import openapi_document
from services.ingest.files.turn_diff import RESTORE_TOOL
from tests.support.recorded import histories
from tests.support.worlds.ingest import PARTITIONS, Place, position

OPERATIONS = {
    operation["operationId"]: (method, path)
    for path, methods in openapi_document()["paths"].items()
    for method, operation in methods.items()
}
NOT_OF_VIEWS = {"get_import", "list_import_files", "get_artifact", "head_artifact", "get_diff"}
"""What is read elsewhere, and what always waits until the views hold the log as of the request."""
NOT_OF_THREADS = {"create_import", "put_artifact", "head_artifact"}
"""No thread has an event of it yet."""
READS = sorted(
    name
    for name, (method, path) in OPERATIONS.items()
    if method == "get" and "/ops/" not in path and name not in NOT_OF_VIEWS
)
WRITES = sorted(name for name, (method, _) in OPERATIONS.items() if method != "get" and name not in NOT_OF_THREADS)

Command = Callable[[Place, httpx2.AsyncClient, str], Awaitable[httpx2.Response]]


@pytest.fixture
async def client(place: Place) -> httpx2.AsyncClient:
    await place.project()
    return await place.ingest(at_least_wait_seconds=0.2)


async def test_every_read_waits_for_a_position_up_to_a_limit(place: Place, client: httpx2.AsyncClient) -> None:
    made = await client.post("/v1/threads", json={"input": {"text": "hello"}})
    thread, event = made.json()["thread"], made.json()["events"][0]["id"]
    partition, offset = made.json()["position"].values()
    assert len(READS) >= 12
    for name in READS:
        path = OPERATIONS[name][1].format(thread=thread, event_id=event)
        assert "{" not in path, f"{name} needs another parameter here"
        for _ in range(100):  # the views have come so far, sooner or later
            answer = await client.get(f"{path}?at_least={partition}:{offset}")
            if answer.status_code != 503:
                break
        assert answer.status_code == 200, f"{name}: {answer.text}"
        late = await client.get(f"{path}?at_least={partition}:{offset + 1000}")
        assert (late.status_code, late.json()["type"].rpartition("/")[2]) == (503, "views-behind"), name
        assert int(late.headers["retry-after"]) >= 1
        for wrong in ("1:2:3", f"{PARTITIONS}:0"):
            bad = await client.get(f"{path}?at_least={wrong}")
            assert (bad.status_code, bad.json()["type"].rpartition("/")[2]) == (400, "bad-cursor"), name
    described = openapi_document()["paths"]
    for name in READS:
        parameters = {one["name"] for one in described[OPERATIONS[name][1]]["get"]["parameters"]}
        assert "at_least" in parameters, name


async def test_a_stream_waits_as_a_page_does(client: httpx2.AsyncClient) -> None:
    made = await client.post("/v1/threads?wait=applied", json={})
    path = f"/v1/threads/{made.json()['thread']}/events"
    late = await client.get(f"{path}?at_least=999", headers={"accept": "text/event-stream"})
    assert (late.status_code, late.headers["retry-after"]) == (503, "1")


async def _create(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    return await client.post("/v1/threads?wait=applied", json={"input": {"text": "hello"}})


async def _patch(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    body = {"title": "A trip", "archived": True, "config": {"model": "other"}}
    return await client.patch(f"/v1/threads/{thread}?wait=applied", json=body)


async def _close(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    return await client.post(f"/v1/threads/{thread}/close?wait=applied")


async def _submit(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    return await client.post(f"/v1/threads/{thread}/inputs?wait=applied", json={"text": "and another"})


async def _withdraw(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    sent = (await _submit(place, client, thread)).json()
    return await client.post(f"/v1/threads/{thread}/inputs/{sent['input']}/withdraw?wait=applied")


async def _cancel(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await place.append(thread, histories.turn_started(place.state(thread)))
    return await client.post(f"/v1/threads/{thread}/turns/1/cancel?wait=applied", json={})


async def _with_call(place: Place, thread: str, *, is_approved: bool) -> str:
    await place.append(thread, histories.turn_started(place.state(thread)))
    await place.append(thread, histories.step_started(place.state(thread)))
    await place.append(thread, histories.step_finished(place.state(thread), calls=[histories.proposed(0)]))
    call = place.state(thread).calls["1.1.0"]
    if not is_approved:
        return await place.append(thread, histories.approval_requested(call))
    return await place.append(thread, histories.approved(call, by="policy:never"), "policy:never")


async def _decide(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await _with_call(place, thread, is_approved=False)
    body = {"decision": "approve", "call_hash": place.state(thread).calls["1.1.0"].call_hash}
    return await client.post(f"/v1/threads/{thread}/tool-calls/1.1.0/decision?wait=applied", json=body)


async def _result(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await _with_call(place, thread, is_approved=True)
    at_least = await place.append(thread, histories.dispatched(place.state(thread).calls["1.1.0"], pool="client"))
    await _shown(client, thread, at_least)
    body = {"outcome": "succeeded", "result": "42"}
    return await client.post(f"/v1/threads/{thread}/tool-calls/1.1.0/result?wait=applied", json=body)


async def _resolve(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await _with_call(place, thread, is_approved=True)
    await place.append(thread, histories.dispatched(place.state(thread).calls["1.1.0"]))
    await place.append(thread, histories.claimed(place.state(thread).calls["1.1.0"]), "service:executor")
    at_least = await place.append(thread, histories.lost(place.state(thread).calls["1.1.0"]))
    await _shown(client, thread, at_least)
    body = {"decision": "succeeded", "attempt": 1, "note": "It is in the ledger."}
    return await client.post(f"/v1/threads/{thread}/tool-calls/1.1.0/resolution?wait=applied", json=body)


async def _propose(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    body = {"tasks": [{"id": "look", "title": "Look"}]}
    return await client.post(f"/v1/threads/{thread}/plan?wait=applied", json=body)


async def _decide_plan(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    version = (await _propose(place, client, thread)).json()["plan_version"]
    return await client.post(f"/v1/threads/{thread}/plan/{version}/decision?wait=applied", json={"decision": "approve"})


async def _ended_turn(place: Place, client: httpx2.AsyncClient, thread: str) -> None:
    await place.append(thread, histories.turn_started(place.state(thread)))
    await _last_step(place, client, thread)


async def _last_step(place: Place, client: httpx2.AsyncClient, thread: str) -> None:
    await place.append(thread, histories.step_started(place.state(thread)))
    await place.append(thread, histories.step_finished(place.state(thread), "fine"))
    await _shown(client, thread, await place.append(thread, histories.turn_ended(place.state(thread))))


async def _fork(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await _ended_turn(place, client, thread)
    return await client.post(f"/v1/threads/{thread}/fork?wait=applied", json={"at": {"turn": 1}})


async def _rewind(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await _ended_turn(place, client, thread)
    return await client.post(f"/v1/threads/{thread}/rewind?wait=applied", json={"to_turn": 1})


async def _restore(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await place.offer(CatalogSource(source="builtin", pool="builtin", tools=(ToolSpec(name=RESTORE_TOOL),)))
    await _with_call(place, thread, is_approved=True)
    await place.append(thread, histories.dispatched(place.state(thread).calls["1.1.0"]))
    await place.append(thread, histories.claimed(place.state(thread).calls["1.1.0"]), "service:executor")
    done = histories.finished(place.state(thread).calls["1.1.0"])
    changed = done.model_copy(update={"changes": (FileChange(path="notes.txt", after="5e" * 32),)})
    await place.append(thread, changed, "service:executor")
    await _last_step(place, client, thread)
    for _ in range(100):  # the catalog is followed beside
        answer = await client.post(f"/v1/threads/{thread}/turns/1/restore?wait=applied", json={})
        if answer.status_code == 200:
            break
    return answer


async def _compact(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    return await client.post(f"/v1/threads/{thread}/compact?wait=applied", json={})


async def _create_child(place: Place, client: httpx2.AsyncClient, thread: str) -> httpx2.Response:
    await _ended_turn(place, client, thread)
    return await client.post(f"/v1/threads/{thread}/children?wait=applied", json={"input": {"text": "help"}})


async def _shown(client: httpx2.AsyncClient, thread: str, at_least: str) -> None:
    for _ in range(100):
        if (await client.get(f"/v1/threads/{thread}?at_least={at_least}")).status_code == 200:
            return
    raise AssertionError(f"the views do not come to {at_least}")


COMMANDS: dict[str, Command] = {
    "create_thread": _create,
    "patch_thread": _patch,
    "close_thread": _close,
    "submit_input": _submit,
    "withdraw_input": _withdraw,
    "cancel_turn": _cancel,
    "decide_call": _decide,
    "post_result": _result,
    "resolve_call": _resolve,
    "propose_plan": _propose,
    "decide_plan": _decide_plan,
    "fork_thread": _fork,
    "rewind_thread": _rewind,
    "restore_files": _restore,
    "compact_thread": _compact,
    "create_child": _create_child,
}


def test_every_write_is_tried() -> None:
    assert sorted(COMMANDS) == WRITES
    for name in WRITES:
        method, path = OPERATIONS[name]
        assert "wait" in {one["name"] for one in openapi_document()["paths"][path][method]["parameters"]}, name


@pytest.mark.parametrize("name", WRITES)
async def test_every_write_answers_its_position_and_effect(place: Place, client: httpx2.AsyncClient, name: str) -> None:
    created = await client.post("/v1/threads?wait=applied", json={"input": {"text": "hello"}})
    thread = created.json()["thread"]
    await _shown(client, thread, position(created))
    answer = await COMMANDS[name](place, client, thread)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["effect"] == "applied" and told["seq"] > 0
    assert all(event["effect"] == "applied" and event["seq"] > 0 for event in told["events"])
    assert re.fullmatch(r"\d+:\d+", position(answer))
    await _shown(client, told["thread"], position(answer))
    last = told["events"][-1]
    page = (await client.get(f"/v1/threads/{told['thread']}/events?after={last['seq'] - 1}&limit=1")).json()
    [shown] = page["events"]
    assert (shown["id"], shown["effect"], shown["position"]) == (last["id"], "applied", told["position"])


async def test_a_write_that_lost_a_race_says_so_and_the_page_explains_it(
    place: Place, client: httpx2.AsyncClient
) -> None:
    thread = (await client.post("/v1/threads?wait=applied", json={"input": {"text": "hello"}})).json()["thread"]
    await place.append(thread, histories.turn_started(place.state(thread)))
    await place.append(thread, TurnCancelRequested(turn=1, reason="limit"))
    lost = await client.post(f"/v1/threads/{thread}/turns/1/cancel?wait=applied", json={})
    assert (lost.json()["effect"], lost.json()["reason"]) == ("superseded", "turn 1 is being cancelled")
    await _shown(client, thread, position(lost))
    page = (await client.get(f"/v1/threads/{thread}/events?effects=all")).json()
    explained = [(event["type"], event["effect"], event["reason"]) for event in page["events"][-2:]]
    assert explained == [
        ("turn.cancel_requested", "applied", None),
        ("turn.cancel_requested", "superseded", "turn 1 is being cancelled"),
    ]
