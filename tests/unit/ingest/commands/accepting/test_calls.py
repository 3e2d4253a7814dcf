import pytest
from pydantic import JsonValue

from schemas.canonical import call_hash
from schemas.events import ToolCallApproved, ToolCallDenied, ToolCallFinished, ToolCallResolved
from services.ingest.commands.accepting import calls as accept_calls
from services.ingest.commands.accepting.accept import Accepted, CallFacts
from services.ingest.http.problems import (
    ARGUMENTS_DO_NOT_FIT,
    CALL_NOT_OPEN,
    NOT_FOUND,
    TOO_LARGE,
    Problem,
    ProblemType,
)
from services.ingest.http.requests import DecideCall, PostResult, ResolveCall
from tests.unit.ingest.commands.accepting.test_accept import LIMITS, accepted, command, only_event, refused

HASH = "a" * 64
WAITING = CallFacts("book", 1, "client", "00000000-0000-5000-8000-000000000001")


def fits(_tool: str, _args: object) -> None:
    return None


def decided(request: DecideCall, facts: CallFacts | None = None) -> Accepted | Problem:
    return accept_calls.decide_call(command(), "1.1.0", request, facts, LIMITS, fits)


def test_a_decision_names_who_made_it() -> None:
    outcome = accepted(decided(DecideCall(decision="approve", call_hash=HASH)))
    assert only_event(outcome) == ToolCallApproved(call="1.1.0", call_hash=HASH, by="user:ann")
    assert outcome.judged
    denied = DecideCall(decision="deny", call_hash=HASH, reason="no")
    assert only_event(decided(denied)) == ToolCallDenied(call="1.1.0", call_hash=HASH, by="user:ann", reason="no")
    assert isinstance(only_event(decided(DecideCall(decision="deny", call_hash=HASH))), ToolCallDenied)


def test_what_a_decision_could_have_been_is_known() -> None:
    deny = accepted(decided(DecideCall(decision="deny", call_hash=HASH)))
    assert deny.absent() == [command().event_id(ToolCallApproved)]


@pytest.mark.parametrize(
    "body",
    [
        {"decision": "deny", "scope": "turn"},
        {"decision": "deny", "args": {}},
        {"decision": "approve", "tool": "book"},
    ],
)
def test_what_does_not_belong_to_a_decision_is_refused(body: dict[str, JsonValue]) -> None:
    with pytest.raises(ValueError, match=r"belong to an approval|needs the scope"):
        DecideCall.model_validate({**body, "call_hash": HASH})


def test_edited_arguments_are_hashed_with_the_tool() -> None:
    edited = DecideCall(decision="approve", call_hash=HASH, args={"seat": 2}, scope="turn")
    event = only_event(decided(edited, WAITING))
    assert isinstance(event, ToolCallApproved)
    assert event.edited is not None
    assert event.edited.call_hash == call_hash("book", {"seat": 2})
    assert refused(decided(edited)) is NOT_FOUND


def test_edited_arguments_have_a_limit_before_they_are_checked() -> None:
    long = DecideCall(decision="approve", call_hash=HASH, args={"seat": "x" * LIMITS.input_bytes_max})
    assert refused(decided(long, WAITING)) is TOO_LARGE


def test_edited_arguments_are_checked_as_the_tools() -> None:
    asked: list[object] = []

    def no_seat(tool: str, args: object) -> Problem:
        asked.append((tool, args))
        return Problem(ARGUMENTS_DO_NOT_FIT, "There is no such seat.")

    edited = DecideCall(decision="approve", call_hash=HASH, args={"seat": 0})
    outcome = accepted(accept_calls.decide_call(command(), "1.1.0", edited, WAITING, LIMITS, no_seat))
    assert outcome.refusal is not None and outcome.refusal.type is ARGUMENTS_DO_NOT_FIT
    assert asked == [("book", {"seat": 0})]


def test_a_client_tool_gets_its_result() -> None:
    request = PostResult(outcome="succeeded", result={"ok": True})
    outcome = accepted(accept_calls.post_result(command(), "1.1.0", request, WAITING, LIMITS))
    assert only_event(outcome) == ToolCallFinished(
        call="1.1.0", attempt=1, claim=WAITING.claim or "", outcome="succeeded", result={"ok": True}
    )


@pytest.mark.parametrize(
    ("facts", "result", "problem"),
    [
        (None, 1, NOT_FOUND),
        (WAITING._replace(pool="builtin"), 1, CALL_NOT_OPEN),
        (WAITING._replace(claim=None), 1, CALL_NOT_OPEN),
        (WAITING, "x" * 30, TOO_LARGE),
    ],
)
def test_a_result_that_nobody_waits_for_is_refused(
    facts: CallFacts | None, result: JsonValue, problem: ProblemType
) -> None:
    request = PostResult(outcome="failed", result=result)
    assert refused(accept_calls.post_result(command(), "1.1.0", request, facts, LIMITS)) is problem


def test_an_unknown_call_is_settled_at_the_attempt_that_was_looked_at() -> None:
    request = ResolveCall(decision="succeeded", attempt=2, result="seat 2", note="in the ledger")
    event = only_event(accept_calls.resolve_call(command(), "1.1.0", request, LIMITS))
    assert event == ToolCallResolved(
        call="1.1.0", attempt=2, decision="succeeded", result="seat 2", note="in the ledger"
    )
    long = ResolveCall(decision="failed", attempt=1, result="x" * 30, note="n")
    assert refused(accept_calls.resolve_call(command(), "1.1.0", long, LIMITS)) is TOO_LARGE


@pytest.mark.parametrize(
    "body",
    [
        {"decision": "again", "attempt": 1, "note": "n", "result": 1},
        {"decision": "again", "attempt": 1},
        {"decision": "again", "attempt": 1, "note": ""},
        {"decision": "again", "note": "n"},
    ],
)
def test_a_resolution_says_of_which_attempt_and_why(body: dict[str, JsonValue]) -> None:
    with pytest.raises(ValueError, match=r"attempt|note|a result belongs"):
        ResolveCall.model_validate(body)
