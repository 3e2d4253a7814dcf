"""What the runtime decides about tool calls: policy, order, dispatch, giving up."""

import pytest

from schemas.config import ToolPolicy
from schemas.events import (
    Event,
    ProposedCall,
    StepStarted,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallLost,
    TurnEnded,
)
from schemas.ids import idempotency_key
from schemas.tools import Catalog, CatalogSource
from services.runtime.deciding.decisions import RUNTIME, Append
from tests.support.recorded.deciding import SHELL, appended, decided, looks_again, settle, with_approved, with_calls
from tests.support.recorded.histories import (
    EXECUTOR,
    KEY,
    USER,
    approval_requested,
    approved,
    claimed,
    denied,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_finished,
    step_started,
)

# Judging calls


def judged(call: ProposedCall, **config: object) -> tuple[Event, str]:
    history = with_calls(call, **config)
    (append,) = decided(history)
    assert isinstance(append, Append)
    history.apply(append.event, append.actor)
    return append.event, append.actor


@pytest.mark.parametrize(
    ("tool", "config", "kind"),
    [
        ("shell", {"approval": "never"}, ToolCallApproved),
        ("shell", {"approval": "always"}, ToolCallApprovalRequested),
        ("shell", {"approval": "on_effect"}, ToolCallApprovalRequested),
        ("read", {"approval": "on_effect"}, ToolCallApproved),
        ("read", {"approval": "always"}, ToolCallApprovalRequested),
        ("shell", {"tool_policies": {"shell": ToolPolicy(approval="always")}}, ToolCallApprovalRequested),
        ("shell", {"approval": "always", "tool_policies": {"shell": ToolPolicy(approval="never")}}, ToolCallApproved),
        ("shell", {"approval": "always", "tool_policies": {"shell": ToolPolicy()}}, ToolCallApprovalRequested),
    ],
)
def test_policy_says_who_approves(tool: str, config: dict[str, object], kind: type[Event]) -> None:
    event, actor = judged(proposed(0, tool), **config)
    assert isinstance(event, kind)
    assert actor == (RUNTIME if kind is ToolCallApprovalRequested else event.by)  # type: ignore[attr-defined]


def test_an_unknown_tool_is_denied_and_the_known_ones_named() -> None:
    event, actor = judged(proposed(0, "rm"), tools=("read",))
    assert isinstance(event, ToolCallDenied)
    assert (event.by, actor) == ("policy:catalog", "policy:catalog")
    assert "'rm'" in event.reason and "read" in event.reason and "shell" not in event.reason


def test_without_any_tools_it_says_so() -> None:
    event, _ = judged(proposed(0, "shell"), tools=())
    assert isinstance(event, ToolCallDenied) and "none" in event.reason


def test_arguments_that_do_not_fit_are_denied_with_the_complaint() -> None:
    call = proposed(0).model_copy(update={"malformed": "{oops", "args": {}})
    event, _ = judged(call)
    assert isinstance(event, ToolCallDenied)
    assert (event.by, event.reason) == ("policy:arguments", "not an object: {oops")


def test_calls_beyond_the_limit_are_denied() -> None:
    history = with_calls(*[proposed(index) for index in range(5)])
    events = [append.event for append in decided(history) if isinstance(append, Append)]
    assert [type(event) for event in events] == [ToolCallApproved] * 3 + [ToolCallDenied] * 2
    assert events[-1].by == "policy:limits"  # type: ignore[attr-defined]


@pytest.mark.parametrize("scope", ["turn", "thread"])
@pytest.mark.parametrize("tool", [None, "shell"])
def test_what_was_granted_before_is_approved(scope: str, tool: str | None) -> None:
    history = with_calls(proposed(0), approval="always")
    history.apply(approval_requested(history.only_call))
    history.apply(approved(history.only_call, scope=scope, tool=tool), USER)
    settle(history, "1.1.0")
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, calls=[proposed(0), proposed(1, args={"command": "other"})]))
    events = [append.event for append in decided(history) if isinstance(append, Append)]
    assert isinstance(events[0], ToolCallApproved) and events[0].by == USER
    assert isinstance(events[1], ToolCallApproved if tool else ToolCallApprovalRequested)


def test_an_approval_expires() -> None:
    history = with_calls(proposed(0), approval="always")
    asked = appended(history, ToolCallApprovalRequested)
    assert asked.expires_at_ms is not None
    assert looks_again(history) == pytest.approx(3_600, abs=10)
    appended(history, ToolCallApprovalExpired, after_seconds=86_400)
    appended(history, StepStarted)


def test_an_approval_without_an_end_waits() -> None:
    history = with_calls(proposed(0), approval="always")
    history.apply(approval_requested(history.only_call, None))
    assert looks_again(history) > 0


# Dispatching


def test_a_dispatch_says_everything_that_an_executor_needs() -> None:
    history = with_approved(proposed(0, "send"))
    event = appended(history, ToolCallDispatched)
    assert (event.pool, event.effect, event.attempt, event.last) == ("builtin", "idempotent", 1, False)
    assert event.timeout_ms == 5_000
    assert event.idempotency_key == idempotency_key(KEY, "1.1.0")
    assert event.deadline_ms == history.now_ms - 1_000 + 600_000 + 5_000
    assert looks_again(history) == pytest.approx(600 + 5, abs=2)


def test_a_client_tool_waits_longer_and_its_dispatch_is_the_claim() -> None:
    history = with_approved(proposed(0, "ask"))
    event = appended(history, ToolCallDispatched)
    assert event.deadline_ms == history.now_ms - 1_000 + 86_400_000 + 7_000
    assert history.only_call.status == "running"


def test_the_last_attempt_is_called_so() -> None:
    history = with_approved(proposed(0, "send"))
    appended(history, ToolCallDispatched)
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(lost(history.only_call))
    assert appended(history, ToolCallDispatched).last is True
    assert history.only_call.attempt == 2


def test_a_tool_with_hardly_any_time_still_has_some() -> None:
    quick = CatalogSource(source="builtin", pool="builtin", tools=(SHELL.model_copy(update={"timeout_seconds": 1e-6}),))
    history = with_approved(proposed(0))
    assert appended(history, ToolCallDispatched, catalog=Catalog({"builtin": quick})).timeout_ms == 1


def test_calls_with_effects_run_one_at_a_time_in_their_order() -> None:
    history = with_approved(proposed(0), proposed(1))
    assert appended(history, ToolCallDispatched).call == "1.1.0"
    assert looks_again(history) > 0
    history.apply(claimed(history.call("1.1.0")), EXECUTOR)
    history.apply(finished(history.call("1.1.0")), EXECUTOR)
    assert appended(history, ToolCallDispatched).call == "1.1.1"


def test_pure_and_parallel_calls_run_beside_others_within_the_limit() -> None:
    history = with_approved(proposed(0, "shell"), proposed(1, "read"), proposed(2, "send"))
    events = [append.event for append in decided(history) if isinstance(append, Append)]
    assert [event.call for event in events] == ["1.1.0", "1.1.1"]  # type: ignore[attr-defined]
    for event in events:
        history.apply(event)
    assert looks_again(history) > 0
    history.apply(finished(history.call("1.1.1"), claim="x"), EXECUTOR)
    assert appended(history, ToolCallDispatched).call == "1.1.2"


def test_a_call_whose_tool_is_gone_comes_to_an_end_at_once() -> None:
    history = with_approved(proposed(0))
    event = appended(history, ToolCallDispatched, catalog=Catalog())
    assert (event.pool, event.last) == ("gone", True)
    appended(history, ToolCallLost, catalog=Catalog())
    assert history.only_call.outcome == "not_started"


def test_a_call_whose_tool_is_gone_and_that_may_have_run_is_unknown() -> None:
    history = with_approved(proposed(0, "send"))
    appended(history, ToolCallDispatched)
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(lost(history.only_call))
    appended(history, ToolCallDispatched, catalog=Catalog())
    appended(history, ToolCallLost, catalog=Catalog())
    assert history.only_call.status == "unknown"


def test_a_call_that_nobody_claims_is_given_up_and_dispatched_again() -> None:
    history = with_approved(proposed(0, "send"))
    deadline_ms = appended(history, ToolCallDispatched).deadline_ms
    seconds = (deadline_ms - history.now_ms) // 1000
    assert looks_again(history, after_seconds=seconds - 1) == pytest.approx(1, abs=1)
    given_up = appended(history, ToolCallLost, after_seconds=seconds + 1)
    assert given_up.claim is None
    assert appended(history, ToolCallDispatched, after_seconds=seconds + 1).attempt == 2


def test_a_call_that_was_claimed_late_has_its_tools_time() -> None:
    history = with_approved(proposed(0, "send"))
    appended(history, ToolCallDispatched)
    history.now_ms += 650_000
    history.apply(claimed(history.only_call), EXECUTOR)
    assert looks_again(history) == pytest.approx(5 + 60, abs=2)
    given_up = appended(history, ToolCallLost, after_seconds=66)
    assert given_up.claim == history.only_call.claim


def test_what_is_unknown_waits_for_a_person() -> None:
    history = with_approved(proposed(0))
    history.apply(dispatched(history.only_call))
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(lost(history.only_call))
    assert history.only_call.status == "unknown"
    assert looks_again(history, after_seconds=10_000) > 0
    history.apply(resolved(history.only_call), USER)
    appended(history, StepStarted)


def test_or_ends_the_turn_where_the_thread_says_so() -> None:
    history = with_approved(proposed(0), proposed(1, "read"), on_unknown="end")
    history.apply(dispatched(history.call("1.1.0")))
    history.apply(claimed(history.call("1.1.0")), EXECUTOR)
    history.apply(lost(history.call("1.1.0")))
    settle(history, "1.1.1")
    ended = appended(history, TurnEnded)
    assert (ended.outcome, ended.unknown_calls) == ("failed", ("1.1.0",))


def test_a_downstream_that_can_be_asked_is_asked_before_the_turn_ends() -> None:
    history = with_approved(proposed(0), on_unknown="end")
    history.apply(dispatched(history.only_call, effect="reconcilable"))
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(lost(history.only_call))
    asked_seconds = looks_again(history)
    assert asked_seconds > history.only_call.timeout_ms / 1000
    ended = appended(history, TurnEnded, after_seconds=asked_seconds + 1)
    assert (ended.outcome, ended.unknown_calls) == ("failed", ("1.1.0",))


def test_an_unknown_call_holds_back_those_after_it() -> None:
    history = with_approved(proposed(0), proposed(1), on_unknown="end")
    history.apply(dispatched(history.call("1.1.0")))
    history.apply(claimed(history.call("1.1.0")), EXECUTOR)
    history.apply(lost(history.call("1.1.0")))
    assert looks_again(history) > 0


def test_a_denied_call_is_shown_to_the_model() -> None:
    history = with_calls(proposed(0))
    history.apply(denied(history.only_call), USER)
    appended(history, StepStarted)
