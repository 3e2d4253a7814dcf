"""Decisions, results and resolutions as a client sees them, on a simulated log."""

from typing import Any

import httpx2
import pytest
from pydantic import JsonValue

from schemas.canonical import call_hash
from schemas.events import ToolCallLost, ToolCallResolved
from schemas.ids import TenantId, ThreadKey
from schemas.state import Call
from schemas.tools import Catalog
from services.ingest.commands.accepting.accept import CallFacts
from services.ingest.http.auth import Principal
from tests.support.recorded import histories
from tests.unit.ingest.threads import in_turn, slug, with_call
from tests.unit.ingest.world import SHELL, World

CALL = "1.1.0"


def call_of(world: World, thread: str) -> Call:
    return world.state(thread).calls[CALL]


async def decide(world: World, thread: str, decision: str, **more: Any) -> httpx2.Response:
    subject = more.pop("subject", "dev")
    body = {"decision": decision, "call_hash": call_of(world, thread).call_hash} | more
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/decision"
    return await world.post(path, body, headers={"x-threadlog-subject": subject})


async def resolve(world: World, thread: str, decision: str, attempt: int = 1, **more: Any) -> httpx2.Response:
    body = {"decision": decision, "attempt": attempt, "note": "I looked"} | more
    return await world.post(f"/v1/threads/{thread}/tool-calls/{CALL}/resolution", body)


async def post_result(world: World, thread: str, body: JsonValue, key: str | None = None) -> httpx2.Response:
    return await world.post(f"/v1/threads/{thread}/tool-calls/{CALL}/result", body, key=key)


async def with_unknown(world: World) -> str:
    thread = await with_call(world, pool="client")
    await world.service_appends(thread, histories.lost(call_of(world, thread)))
    assert call_of(world, thread).status == "unknown"
    return thread


# Decisions


async def test_the_first_decision_counts_and_the_others_learn_whose_it_was() -> None:
    world = World()
    thread = await with_call(world)
    approved = await decide(world, thread, "approve", subject="ann")
    denied = await decide(world, thread, "deny", subject="bob", reason="no")
    assert (approved.status_code, denied.status_code) == (200, 409)
    body = denied.json()
    assert slug(body) == "not-applied"
    at = body["decided"].pop("at")
    assert at.startswith("2026-") and at.endswith("Z")
    assert body["decided"] == {"by": "user:ann", "decision": "approved", "reason": None}
    assert (body["effect"], body["reason"]) == ("superseded", "the call is approved, approved by user:ann")
    assert "It was decided by user:ann: approved." in body["detail"]
    assert body["call"]["status"] == "approved"
    assert "recorded" not in body


async def test_a_decision_sent_again_is_answered_alike() -> None:
    world = World()
    thread = await with_call(world)
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/decision"
    of_call = {"call_hash": call_of(world, thread).call_hash}
    first = [await world.post(path, {"decision": name, **of_call}, key=name) for name in ("deny", "approve")]
    again = [await world.post(path, {"decision": name, **of_call}, key=name) for name in ("deny", "approve")]
    assert [answer.status_code for answer in first] == [200, 409]
    assert [answer.json() for answer in first] == [answer.json() for answer in again]


async def test_a_decision_for_what_a_policy_has_approved_learns_of_the_policy() -> None:
    world = World()
    thread = await with_call(world)
    call = call_of(world, thread)
    await world.service_appends(thread, histories.approved(call, by="policy:never"), "policy:never")
    answer = await decide(world, thread, "deny")
    assert (answer.status_code, answer.json()["decided"]["by"]) == (409, "policy:never")


async def test_a_decision_that_comes_after_its_time_learns_so() -> None:
    world = World()
    thread = await with_call(world)
    await world.service_appends(thread, histories.approval_requested(call_of(world, thread)))
    await world.service_appends(thread, histories.approval_expired(call_of(world, thread)))
    answer = await decide(world, thread, "approve")
    body = answer.json()
    assert answer.status_code == 409
    assert (body["decided"]["by"], body["decided"]["decision"]) == (None, "expired")
    assert body["recorded"]["outcome"] == "expired"
    assert "decided by the time that was given for it: expired" in body["detail"]


async def test_a_decision_for_a_settled_call_learns_how_it_was_settled() -> None:
    world = World()
    thread = await with_call(world)
    await world.post(f"/v1/threads/{thread}/turns/1/cancel")
    answer = await decide(world, thread, "approve")
    body = answer.json()
    assert (answer.status_code, body["reason"]) == (409, "the call is cancelled")
    assert (body["call"]["status"], body["recorded"]["outcome"]) == ("settled", "cancelled")
    assert "decided" not in body


async def test_a_decision_about_other_arguments_learns_the_hash_in_force() -> None:
    world = World()
    thread = await with_call(world)
    answer = await decide(world, thread, "approve", call_hash="a" * 64)
    body = answer.json()
    in_force = call_of(world, thread).call_hash
    assert (answer.status_code, body["reason"]) == (409, "the call is another one: its hash differs")
    assert body["call"]["call_hash"] == in_force
    assert f"The hash in force is {in_force}." in body["detail"]
    assert call_of(world, thread).status == "proposed"


async def test_a_decision_for_no_call_is_not_recorded() -> None:
    world = World()
    thread = await with_call(world)
    body = {"decision": "approve", "call_hash": "a" * 64}
    before = len(world.folded(thread))
    for call in ("1.1.7", "9.9.9"):
        answer = await world.post(f"/v1/threads/{thread}/tool-calls/{call}/decision", body)
        assert (answer.status_code, slug(answer.json())) == (404, "not-found")
        assert call in answer.json()["detail"]
    assert len(world.folded(thread)) == before


async def test_only_who_may_decides() -> None:
    world = World()
    thread = await with_call(world)

    async def writer(_headers: object) -> Principal:
        return Principal(TenantId("dev"), "bot", frozenset({"threads:read", "threads:write"}))

    world.authenticator.principal = writer  # type: ignore[method-assign]
    before = len(world.folded(thread))
    for answer in (await decide(world, thread, "approve"), await resolve(world, thread, "abandoned")):
        assert (answer.status_code, slug(answer.json())) == (403, "forbidden")
        assert "tools:decide" in answer.json()["detail"]
    assert len(world.folded(thread)) == before


async def test_decisions_go_on_without_a_database() -> None:
    world = World()
    thread = await with_call(world)
    world.views.is_away = True
    approved = await decide(world, thread, "approve")
    denied = await decide(world, thread, "deny")
    assert (approved.status_code, denied.status_code) == (200, 409)
    assert "decided" not in denied.json()
    assert denied.json()["reason"] == "the call is approved, approved by user:dev"
    unknown = await world.post(
        f"/v1/threads/elsewhere/tool-calls/{CALL}/decision", {"decision": "deny", "call_hash": "a" * 64}
    )
    assert (unknown.status_code, slug(unknown.json())) == (503, "views-unavailable")


async def test_views_that_stay_behind_leave_the_folds_reason() -> None:
    world = World()
    thread = await with_call(world)
    await decide(world, thread, "approve")
    world.views.held_at = len(world.broker.records("thread-events", world.known.partition(world.key(thread))))
    denied = await decide(world, thread, "deny")
    assert (denied.status_code, "decided" in denied.json()) == (409, False)


# Edited arguments and scopes


async def test_edited_arguments_are_what_runs() -> None:
    world = World()
    thread = await with_call(world)
    answer = await decide(world, thread, "approve", args={"command": "ls"})
    assert answer.status_code == 200
    call = call_of(world, thread)
    assert (call.args, call.call_hash) == ({"command": "ls"}, call_hash("shell", {"command": "ls"}))
    denied = await decide(world, thread, "deny")
    assert denied.json()["decided"]["decision"] == "edited"


async def test_edited_arguments_have_to_fit_the_tools_schema() -> None:
    world = World()
    thread = await with_call(world)
    before = len(world.folded(thread))
    answer = await decide(world, thread, "approve", args={"command": 3, "cwd": "/"})
    body = answer.json()
    assert (answer.status_code, slug(body)) == (422, "arguments-do-not-fit")
    assert {error["place"] for error in body["errors"]} == {"args", "args.command"}
    assert body["detail"] == "args.command: 3 is not of type 'string'."
    assert body["schema"] == SHELL
    assert len(world.folded(thread)) == before


async def test_edited_arguments_are_not_guessed_about() -> None:
    world = World()
    thread = await with_call(world)
    before = len(world.folded(thread))
    world.catalog.catalog = Catalog()
    gone = await decide(world, thread, "approve", args={"command": "ls"})
    world.catalog.ready.clear()
    early = await decide(world, thread, "approve", args={"command": "ls"})
    assert (gone.status_code, slug(gone.json())) == (409, "tool-not-in-catalog")
    assert (early.status_code, slug(early.json()), early.headers["retry-after"]) == (503, "catalog-not-loaded", "1")
    assert "'shell'" in gone.json()["detail"]
    assert len(world.folded(thread)) == before
    assert (await decide(world, thread, "approve")).status_code == 200


@pytest.mark.parametrize("more", [{"args": {"command": "ls"}}, {"scope": "thread", "tool": "shell"}])
async def test_a_decision_that_was_recorded_is_answered_alike_once_its_tool_has_left(
    more: dict[str, JsonValue],
) -> None:
    world = World()
    thread = await with_call(world)
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/decision"
    body = {"decision": "approve", "call_hash": call_of(world, thread).call_hash} | more
    first = await world.post(path, body, key="k")
    world.catalog.catalog = Catalog()
    again = await world.post(path, body, key="k")
    new = await world.post(path, body, key="l")
    assert (first.status_code, again.json()) == (200, first.json())
    assert (new.status_code, slug(new.json())) == (409, "tool-not-in-catalog")


async def test_edited_arguments_need_the_call() -> None:
    world = World()
    thread = await with_call(world)
    body = {"decision": "approve", "call_hash": "a" * 64, "args": {}}
    missing = await world.post(f"/v1/threads/{thread}/tool-calls/1.1.7/decision", body)
    assert (missing.status_code, slug(missing.json())) == (404, "not-found")
    world.views.is_away = True
    away = await decide(world, thread, "approve", args={"command": "ls"})
    assert (away.status_code, slug(away.json())) == (503, "views-unavailable")


@pytest.mark.parametrize("scope", ["turn", "thread"])
@pytest.mark.parametrize("tool", [None, "shell"])
async def test_an_approval_may_reach_further_than_its_call(scope: str, tool: str | None) -> None:
    world = World()
    thread = await with_call(world)
    asked_hash = call_of(world, thread).call_hash
    answer = await decide(world, thread, "approve", scope=scope, tool=tool)
    assert answer.status_code == 200
    state = world.state(thread)
    assert state.turn is not None
    [grant] = state.turn.grants if scope == "turn" else state.grants
    assert (grant.call_hash, grant.tool, grant.by) == (None if tool else asked_hash, tool, "user:dev")


async def test_a_grant_names_a_tool_that_there_is() -> None:
    world = World()
    thread = await with_call(world)
    answer = await decide(world, thread, "approve", scope="thread", tool="shel")
    assert (answer.status_code, slug(answer.json())) == (409, "tool-not-in-catalog")
    assert call_of(world, thread).status == "proposed"


# Results


async def test_the_same_result_is_answered_alike_whoever_brings_it() -> None:
    world = World()
    thread = await with_call(world, pool="client")
    body = {"outcome": "succeeded", "result": {"seat": 2}}
    first = await post_result(world, thread, body, "k")
    again = await post_result(world, thread, body, "k")
    other_key = await post_result(world, thread, body, "l")
    without = await post_result(world, thread, body)
    assert [answer.status_code for answer in (first, again, other_key, without)] == [200] * 4
    assert first.json() == again.json() == other_key.json() == without.json()
    assert first.json()["effect"] == "applied"


async def test_another_result_learns_what_was_recorded() -> None:
    world = World()
    thread = await with_call(world, pool="client")
    await post_result(world, thread, {"outcome": "succeeded", "result": {"seat": 2}})
    for body in ({"outcome": "failed", "result": {"seat": 2}}, {"outcome": "succeeded", "result": {"seat": 3}}):
        answer = await post_result(world, thread, body)
        assert (answer.status_code, slug(answer.json())) == (409, "not-applied")
        recorded = answer.json()["recorded"]
        assert (recorded["outcome"], recorded["result"]) == ("succeeded", {"seat": 2})
    assert call_of(world, thread).outcome == "succeeded"


async def test_a_result_after_the_cancel_learns_of_it() -> None:
    world = World()
    thread = await with_call(world, pool="client")
    call = call_of(world, thread)
    await world.post(f"/v1/threads/{thread}/turns/1/cancel")
    await world.service_appends(thread, histories.lost(call))
    assert call_of(world, thread).status == "unknown"
    late = await post_result(world, thread, {"outcome": "succeeded"})
    assert late.status_code == 200, "a result that comes late settles what was unknown"


async def test_a_result_is_never_for_a_claim_that_the_views_alone_hold_for_the_one_in_force() -> None:
    """Whoever follows the thread sees the second dispatch before the views do, and posts the result at once."""
    world = World()
    thread = await with_unknown(world)
    await resolve(world, thread, "again")
    world.views.held_at = len(world.broker.records("thread-events", world.known.partition(world.key(thread))))
    await world.service_appends(thread, histories.dispatched(call_of(world, thread), pool="client"))
    early = await post_result(world, thread, {"outcome": "succeeded"}, "k")
    assert (early.status_code, slug(early.json())) == (503, "views-behind")
    world.views.held_at = None
    again = await post_result(world, thread, {"outcome": "succeeded"}, "k")
    assert (again.status_code, call_of(world, thread).outcome) == (200, "succeeded")


async def test_a_key_that_was_used_for_a_lost_attempt_is_good_for_the_next_one() -> None:
    """A backend may well use the call's id as its key. The first result lost the race against the end of its time."""
    world = World()
    thread = await with_call(world, "client", "ask")
    facts = world.views.call_facts

    async def raced(key: ThreadKey, call: str) -> CallFacts | None:
        world.views.call_facts = facts  # type: ignore[method-assign]  # once
        found = await facts(key, call)
        lost = ToolCallLost(call=CALL, attempt=1, claim=call_of(world, thread).claim, evidence="its time is over")
        await world.service_appends(thread, lost)
        await resolve(world, thread, "again")
        await world.service_appends(thread, histories.dispatched(call_of(world, thread), pool="client"))
        return found

    world.views.call_facts = raced  # type: ignore[method-assign]
    body = {"outcome": "succeeded", "result": {"seat": 2}}
    late = await post_result(world, thread, body, CALL)
    assert (late.status_code, late.json()["reason"]) == (409, "it speaks of a claim that is not in force")
    again = await post_result(world, thread, body, CALL)
    assert (again.status_code, call_of(world, thread).outcome) == (200, "succeeded")
    assert (await post_result(world, thread, body, CALL)).json() == again.json()
    other = await post_result(world, thread, {"outcome": "failed"}, CALL)
    assert (other.status_code, slug(other.json())) == (422, "idempotency-conflict")


async def test_the_same_result_for_another_attempt_is_answered_alike() -> None:
    """Of a pure call any attempt's result wins: a retry may find a later one in force."""
    world = World()
    thread = await with_call(world)
    await decide(world, thread, "approve")
    await world.service_appends(thread, histories.dispatched(call_of(world, thread), "pure", pool="client"))
    lost = ToolCallLost(call=CALL, attempt=1, claim=call_of(world, thread).claim, evidence="its time is over")
    facts = world.views.call_facts

    async def raced(key: ThreadKey, call: str) -> CallFacts | None:
        world.views.call_facts = facts  # type: ignore[method-assign]  # once
        found = await facts(key, call)
        await world.service_appends(thread, lost)
        await world.service_appends(thread, histories.dispatched(call_of(world, thread), "pure", pool="client"))
        return found

    world.views.call_facts = raced  # type: ignore[method-assign]
    body = {"outcome": "succeeded", "result": {"seat": 2}}
    first = await post_result(world, thread, body, "k")
    again = await post_result(world, thread, body, "k")
    other = await post_result(world, thread, {"outcome": "succeeded", "result": {"seat": 3}})
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 409)
    assert first.json()["events"] == again.json()["events"]


async def test_a_result_that_a_person_has_settled_learns_of_the_person() -> None:
    world = World()
    thread = await with_unknown(world)
    await resolve(world, thread, "failed", note="the seat is taken")
    answer = await post_result(world, thread, {"outcome": "succeeded"})
    assert (answer.status_code, answer.json()["decided"]["reason"]) == (409, "the seat is taken")
    assert answer.json()["recorded"]["outcome"] == "failed"


async def test_nobody_posts_the_result_of_an_executors_tool() -> None:
    world = World()
    for thread in (await with_call(world), await with_call(world, pool="remote")):
        answer = await post_result(world, thread, {"outcome": "failed"})
        assert (answer.status_code, slug(answer.json())) == (409, "call-not-open")
        assert "wait_for" in world.views.asked  # the views might have lagged behind
    missing = await world.post(f"/v1/threads/{thread}/tool-calls/1.1.7/result", {"outcome": "failed"})
    assert (missing.status_code, slug(missing.json())) == (404, "not-found")


async def test_a_result_that_is_too_large_or_no_json_is_refused() -> None:
    world = World()
    thread = await with_call(world, pool="client")
    path = f"/v1/threads/{thread}/tool-calls/{CALL}/result"
    large = await post_result(world, thread, {"outcome": "succeeded", "result": "x" * 40_000})
    json = {"content-type": "application/json"}
    broken = await world.client.post(path, content=b'{"outcome": "succeeded", "result": {', headers=json)
    not_a_number = await world.client.post(path, content=b'{"outcome": "succeeded", "result": NaN}', headers=json)
    unstorable = await world.client.post(path, content=b'{"outcome": "succeeded", "result": "\\u0000"}', headers=json)
    nameless = await post_result(world, thread, {"outcome": "timed_out"})
    for answer, status, name in (
        (large, 413, "too-large"),
        (broken, 400, "malformed-json"),
        (not_a_number, 400, "malformed-json"),
        (unstorable, 422, "unstorable"),
        (nameless, 422, "invalid-request"),
    ):
        assert (answer.status_code, slug(answer.json())) == (status, name), answer.text
    assert call_of(world, thread).status == "running"


# Resolutions


async def test_an_unknown_call_is_settled_by_a_person_who_says_why() -> None:
    world = World()
    thread = await with_unknown(world)
    answer = await resolve(world, thread, "succeeded", result="seat 2", note="in the ledger")
    assert answer.status_code == 200
    record, _, _ = world.folded(thread)[-1]
    assert record.actor == "user:dev"
    assert isinstance(record.data, ToolCallResolved)
    assert (record.data.decision, record.data.note) == ("succeeded", "in the ledger")
    again = await resolve(world, thread, "abandoned")
    body = again.json()
    assert again.status_code == 409
    del body["decided"]["at"]
    assert body["decided"] == {"by": "user:dev", "decision": "succeeded", "reason": "in the ledger"}
    assert (body["recorded"]["outcome"], body["recorded"]["result"]) == ("succeeded", "seat 2")


async def test_a_resolution_for_no_call_is_not_found() -> None:
    world = World()
    thread = await with_unknown(world)
    missing = await world.post(
        f"/v1/threads/{thread}/tool-calls/9.9.9/resolution", {"decision": "abandoned", "attempt": 1, "note": "gone"}
    )
    assert (missing.status_code, slug(missing.json())) == (404, "not-found")


async def test_a_resolution_of_a_call_that_runs_is_refused() -> None:
    world = World()
    thread = await with_call(world, pool="client")
    answer = await resolve(world, thread, "failed")
    assert (answer.status_code, answer.json()["reason"]) == (409, "the call is running")
    assert (answer.json()["call"]["status"], "decided" in answer.json()) == ("running", False)


async def test_a_second_opinion_about_an_earlier_attempt_is_refused() -> None:
    world = World()
    thread = await with_unknown(world)
    assert (await resolve(world, thread, "again")).status_code == 200
    early = await resolve(world, thread, "again")
    await world.service_appends(thread, histories.dispatched(call_of(world, thread), pool="client"))
    await world.service_appends(thread, histories.lost(call_of(world, thread)))
    late = await resolve(world, thread, "again", attempt=1)
    assert (early.status_code, late.status_code) == (409, 409)
    assert early.json()["decided"]["decision"] == "again"
    assert late.json()["reason"] == "attempt 2 is the last"
    assert late.json()["call"]["attempt"] == 2
    assert (await resolve(world, thread, "again", attempt=2)).status_code == 200


async def test_a_call_cannot_run_again_once_its_turn_is_over() -> None:
    world = World()
    thread = await with_unknown(world)
    await world.post(f"/v1/threads/{thread}/turns/1/cancel")
    cancelling = await resolve(world, thread, "again")
    await world.service_appends(thread, histories.turn_ended(world.state(thread), "aborted"))
    over = await resolve(world, thread, "again")
    assert cancelling.json()["reason"] == "turn 1 is being cancelled: the call cannot run again in it"
    assert over.json()["reason"] == "turn 1 is over: the call cannot run again in it"
    assert (cancelling.status_code, over.status_code) == (409, 409)
    assert (await resolve(world, thread, "abandoned")).status_code == 200


async def test_another_tenants_calls_are_not_there() -> None:
    world = World()
    thread = await with_unknown(world)
    mallory = {"x-threadlog-tenant": "umbrella"}
    hash_ = call_of(world, thread).call_hash
    before = len(world.folded(thread))
    for route, body in (
        ("decision", {"decision": "approve", "call_hash": hash_}),
        ("result", {"outcome": "succeeded"}),
        ("resolution", {"decision": "again", "attempt": 1, "note": "mine"}),
    ):
        answer = await world.post(f"/v1/threads/{thread}/tool-calls/{CALL}/{route}", body, headers=mallory)
        assert (answer.status_code, slug(answer.json())) == (404, "thread-not-found")
    assert len(world.folded(thread)) == before
    assert world.folded(thread, "umbrella") == []


async def test_a_turn_without_calls_has_none_to_decide_on() -> None:
    world = World()
    thread = await in_turn(world)
    body = {"decision": "deny", "call_hash": "a" * 64}
    answer = await world.post(f"/v1/threads/{thread}/tool-calls/{CALL}/decision", body)
    assert answer.status_code == 404
