"""What the runtime decides in each situation. That it always fits and comes to rest: `tests/property/test_services.py`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from pydantic import JsonValue

from schemas.config import Config, ToolPolicy
from schemas.config import Limits as OwnLimits
from schemas.events import (
    Confirmed,
    Context,
    Event,
    InputMode,
    ProposedCall,
    StepStarted,
    ThreadClosed,
    ThreadCloseRequested,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallLost,
    TurnCancelRequested,
    TurnEnded,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import idempotency_key
from schemas.state import NOTHING
from schemas.tools import Catalog, CatalogSource, ToolSpec, tools_hash
from services.runtime.decide import (
    RUNTIME,
    Append,
    Calling,
    CallModel,
    Decisions,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    World,
    decide,
)
from services.runtime.limits import Limits
from tests.support.histories import (
    CONFIG,
    EXECUTOR,
    IMPORTER,
    KEY,
    NO_HASH,
    USER,
    History,
    approval_requested,
    approved,
    cancel_requested,
    claimed,
    created,
    denied,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_started,
)

E = TypeVar("E", bound=Event)
SHELL = ToolSpec(name="shell")
READ = ToolSpec(name="read", effect="pure")
SEND = ToolSpec(name="send", effect="idempotent", parallel=True, max_attempts=2, timeout_seconds=5)
ASK = ToolSpec(name="ask", timeout_seconds=7)
BUILTIN = CatalogSource(source="builtin", pool="builtin", tools=(SHELL, READ, SEND))
CLIENT = CatalogSource(source="crm", pool="client", tools=(ASK,))
LIMITS = Limits(steps_per_turn=5, turn_seconds=3_600, parallel_calls=2, model_tries=2, calls_per_step=3)
SHOWN = Context(confirmed_seq=1, items=0, hash=NO_HASH)
MINE = "A"


def no_complaint(tool: ToolSpec, args: dict[str, JsonValue], malformed: str | None) -> str | None:
    return None if malformed is None else f"not an object: {malformed}"


def world(history: History, **fields: object) -> World:
    known = World(
        owner=MINE,
        agent_version="7",
        catalog=Catalog({"builtin": BUILTIN, "crm": CLIENT}),
        limits=LIMITS,
        confirmed=Confirmed(seq=history.state.seq, chain=history.state.chain),
        context=lambda: SHOWN,
        arguments_problem=no_complaint,
    )
    return replace(known, **fields)


def decided(history: History, after_seconds: float = 0, **fields: object) -> Decisions:
    return decide(KEY, history.state, history.now_ms + int(1000 * after_seconds), world(history, **fields))


def appended(history: History, kind: type[E], after_seconds: float = 0, **fields: object) -> E:
    """The one event that is decided, which has to fit."""
    (append,) = [each for each in decided(history, after_seconds, **fields) if not isinstance(each, DropModelCall)]
    assert isinstance(append, Append), append
    assert isinstance(append.event, kind), append.event
    history.apply(append.event, append.actor)
    return append.event


def looks_again(history: History, after_seconds: float = 0, **fields: object) -> float:
    """Seconds from now, where nothing else is decided."""
    (look,) = decided(history, after_seconds, **fields)
    assert isinstance(look, LookAgain)
    return (look.at_ms - history.now_ms) / 1000 - after_seconds


def idle(**config: object) -> History:
    history = History()
    history.apply(created(config=Config(model="scripted:test", **config)), USER)
    return history


def in_turn(**config: object) -> History:
    history = idle(**config)
    history.apply(submitted("i1"), USER)
    history.apply(turn_started(history.state))
    return history


def in_step(**config: object) -> History:
    history = in_turn(**config)
    history.apply(step_started(history.state))
    return history


def calling(history: History) -> Calling:
    turn = history.state.turn
    assert turn is not None and turn.step is not None
    return Calling(turn.turn, turn.step.step, turn.step.attempt, turn.step.starts[-1])


def with_calls(*calls: ProposedCall, **config: object) -> History:
    history = in_step(**config)
    history.apply(step_finished(history.state, calls=calls))
    return history


def with_approved(*calls: ProposedCall, **config: object) -> History:
    history = with_calls(*calls, **config)
    for call in list(history.state.calls.values()):
        history.apply(approved(call, by="policy:never"))
    return history


def settle(history: History, name: str) -> None:
    history.apply(dispatched(history.call(name)))
    history.apply(claimed(history.call(name)), EXECUTOR)
    history.apply(finished(history.call(name)), EXECUTOR)


# Between turns


@pytest.mark.parametrize("make", [History, idle])
def test_nothing_to_do(make: Callable[[], History]) -> None:
    assert list(decided(make())) == []


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    assert list(decided(idle(), calling=Calling(1, 1, 1, NO_HASH))) == [DropModelCall()]


def test_a_queued_input_starts_a_turn() -> None:
    history = idle()
    history.apply(submitted("i1"), USER)
    history.apply(submitted("i2"), USER)
    started = appended(history, TurnStarted)
    assert (started.turn, started.inputs, started.agent_version) == (1, ("i1",), "7")


def test_an_interrupting_input_goes_first() -> None:
    history = idle()
    for name, mode in (("i1", "queue"), ("i2", "interrupt"), ("i3", "interrupt")):
        history.apply(submitted(name, mode), USER)
    assert appended(history, TurnStarted).inputs == ("i2",)


def test_a_turn_takes_all_inputs_where_the_thread_says_so() -> None:
    history = idle(one_turn_per_input=False)
    modes: Sequence[InputMode] = ("queue", "interrupt", "steer")
    for number, mode in enumerate(modes):
        history.apply(submitted(f"i{number}", mode), USER)
    assert appended(history, TurnStarted).inputs == ("i0", "i1", "i2")


def test_a_held_queue_starts_nothing() -> None:
    history = in_step(on_recovery="interrupt")
    history.apply(submitted("i2"), USER)
    history.apply(cancel_requested(history.state, "recovery"))
    appended(history, TurnEnded)
    assert list(decided(history)) == []


def test_a_closing_thread_is_closed() -> None:
    history = idle()
    history.apply(submitted("i1"), USER)
    history.apply(ThreadCloseRequested(), USER)
    appended(history, ThreadClosed)
    assert list(decided(history)) == []


def test_nothing_is_decided_while_importing() -> None:
    """Also not in a turn that the importer has opened."""
    history = History()
    history.apply(created(importing=True), IMPORTER)
    history.apply(submitted("i1"), IMPORTER)
    assert list(decided(history)) == []
    history.apply(turn_started(history.state), IMPORTER)
    assert list(decided(history, after_seconds=100_000)) == []


# Steps


def test_a_turn_begins_with_a_step() -> None:
    history = in_turn()
    started = appended(history, StepStarted)
    assert (started.turn, started.step, started.attempt, started.inputs, started.owner) == (1, 1, 1, (), MINE)
    assert started.context == SHOWN
    assert started.tools_hash == tools_hash((SHELL, READ, SEND, ASK))


def test_a_step_is_shown_the_tools_that_the_thread_names() -> None:
    history = in_turn(tools=("read", "unheard-of"))
    assert appended(history, StepStarted).tools_hash == tools_hash((READ,))


def test_a_step_needs_the_transcript() -> None:
    assert list(decided(in_turn(), context=lambda: None)) == [LoadTranscript()]


def test_steering_is_taken_by_the_next_step() -> None:
    history = in_turn()
    history.apply(submitted("s1", "steer"), USER)
    history.apply(submitted("s2", "steer", expected_turn=1), USER)
    history.apply(submitted("q1", "queue"), USER)
    assert appended(history, StepStarted).inputs == ("s1", "s2")


def test_the_model_is_asked_by_the_owner_of_the_step() -> None:
    history = in_step()
    call, look = decided(history)
    assert call == CallModel(calling(history))
    assert isinstance(look, LookAgain)


def test_while_the_model_is_asked_only_the_turns_time_counts() -> None:
    history = in_step()
    assert looks_again(history, calling=calling(history)) == pytest.approx(3_600, abs=5)


def test_an_answer_to_a_start_that_lost_is_dropped_and_the_step_started_again() -> None:
    """`B`'s start won: its answer may come, and may not. This process asks all the same."""
    history = in_turn()
    history.apply(step_started(history.state, owner="B"))
    assert decided(history, calling=Calling(1, 1, 1, NO_HASH))[0] == DropModelCall()
    started = appended(history, StepStarted, calling=Calling(1, 1, 1, NO_HASH))
    assert (started.step, started.attempt, started.owner) == (1, 2, MINE)


def test_a_late_answer_to_an_earlier_attempt_is_still_waited_for() -> None:
    history = in_step()
    mine = calling(history)
    history.apply(step_started(history.state, owner="B"))
    assert looks_again(history, calling=mine) > 0


def test_an_answer_without_calls_completes_the_turn() -> None:
    history = in_step()
    history.apply(step_finished(history.state, "done"))
    assert appended(history, TurnEnded).outcome == "completed"


def test_steering_that_came_with_the_answer_makes_another_step() -> None:
    history = in_step()
    history.apply(submitted("s1", "steer"), USER)
    history.apply(step_finished(history.state, "done"))
    started = appended(history, StepStarted)
    assert (started.step, started.inputs) == (2, ("s1",))


def test_the_results_of_calls_are_shown_in_another_step() -> None:
    history = with_approved(proposed(0))
    settle(history, "1.1.0")
    assert appended(history, StepStarted).step == 2


def test_a_turn_that_takes_too_many_steps_fails() -> None:
    history = with_approved(proposed(0), limits=OwnLimits(steps_per_turn=1))
    settle(history, "1.1.0")
    ended = appended(history, TurnEnded)
    assert ended.outcome == "failed"
    assert ended.reason is not None and "steps" in ended.reason


def test_a_failed_step_is_tried_again_after_its_time() -> None:
    history = in_step()
    failed = step_failed(history.state).model_copy(update={"retry_at_ms": history.now_ms + 10_000})
    history.apply(failed)
    assert 0 < looks_again(history) <= 10
    started = appended(history, StepStarted, after_seconds=10)
    assert (started.attempt, started.step) == (2, 1)


def test_a_step_that_fails_too_often_fails_the_turn() -> None:
    history = in_step()
    history.apply(step_failed(history.state))
    history.apply(step_started(history.state))
    history.apply(step_failed(history.state))
    ended = appended(history, TurnEnded)
    assert (ended.outcome, ended.reason) == ("failed", "the provider is overloaded")


def test_a_step_that_failed_for_good_fails_the_turn() -> None:
    history = in_step()
    history.apply(step_failed(history.state, retriable=False))
    assert appended(history, TurnEnded).outcome == "failed"


def test_a_step_that_was_handed_over_goes_on_at_once_however_often() -> None:
    history = in_step()
    for _ in range(5):
        history.apply(step_failed(history.state, handed_over=True))
        appended(history, StepStarted)
    assert history.state.turn is not None and history.state.turn.step is not None
    assert (history.state.turn.step.attempt, history.state.turn.step.failures) == (6, 0)


# Taking over


def found_open(history: History) -> str:
    return calling(history).started


def test_an_open_step_of_a_dead_owner_is_recovered_and_asked_again() -> None:
    history = in_turn()
    history.apply(step_started(history.state, owner="dead"))
    recovered = appended(history, TurnRecovered, taken_over=found_open(history))
    assert (recovered.owner, "dead" in recovered.found) == (MINE, True)
    assert appended(history, StepStarted).attempt == 2


def test_or_its_turn_is_interrupted() -> None:
    history = in_turn(on_recovery="interrupt")
    history.apply(step_started(history.state, owner="dead"))
    recovered, cancelled = decided(history, taken_over=found_open(history))
    assert isinstance(recovered, Append) and isinstance(recovered.event, TurnRecovered)
    assert isinstance(cancelled, Append) and isinstance(cancelled.event, TurnCancelRequested)
    for append in (recovered, cancelled):
        history.apply(append.event)
    assert appended(history, TurnEnded).outcome == "interrupted"


def test_a_takeover_says_nothing_of_later_steps() -> None:
    """Its turn was ended meanwhile, or its step started again: what is open now was never found open."""
    history = in_turn(on_recovery="interrupt")
    history.apply(step_started(history.state, owner="dead"))
    found = found_open(history)
    history.apply(step_started(history.state))
    assert decided(history, taken_over=found)[0] == CallModel(calling(history))


def test_a_partition_that_came_back_to_its_owner_is_no_recovery() -> None:
    history = in_step()
    assert decided(history, taken_over=found_open(history))[0] == CallModel(calling(history))


# The turn's time, and cancelling


def test_a_turn_that_works_too_long_is_cancelled_and_fails() -> None:
    history = in_step()
    cancelled = appended(history, TurnCancelRequested, after_seconds=3_600)
    assert cancelled.reason == "limit"
    assert appended(history, TurnEnded).outcome == "failed"


def test_waiting_for_people_is_not_working() -> None:
    history = with_calls(proposed(0), approval="always")
    history.apply(approval_requested(history.only_call))
    assert looks_again(history, after_seconds=80_000) == pytest.approx(3_600, abs=20)
    history.now_ms += 80_000_000
    history.apply(approved(history.only_call), USER)
    appended(history, ToolCallDispatched)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("user", "aborted"), ("parent", "aborted"), ("limit", "failed"), ("recovery", "interrupted")],
)
def test_a_cancelled_turn_ends_by_its_cause(reason: str, outcome: str) -> None:
    history = in_step()
    history.apply(cancel_requested(history.state, reason))  # type: ignore[arg-type]  # the reasons above
    decisions = decided(history, calling=Calling(1, 1, 1, NO_HASH))
    assert decisions[0] == DropModelCall()
    assert appended(history, TurnEnded).outcome == outcome


def test_a_cancelled_turn_waits_for_the_kill_then_gives_up() -> None:
    history = with_approved(proposed(0))
    history.apply(dispatched(history.only_call))
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(cancel_requested(history.state), USER)
    assert looks_again(history) == pytest.approx(60, abs=1)
    given_up = appended(history, ToolCallLost, after_seconds=60)
    assert given_up.claim == history.only_call.claim
    ended = appended(history, TurnEnded)
    assert (ended.outcome, ended.unknown_calls) == ("aborted", ("1.1.0",))


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
    assert looks_again(history) == pytest.approx(600 + 5 + 60, abs=2)


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


def test_a_call_whose_tool_is_gone_still_comes_to_an_end() -> None:
    history = with_approved(proposed(0))
    event = appended(history, ToolCallDispatched, catalog=Catalog())
    assert (event.pool, event.last) == ("gone", True)
    appended(history, ToolCallLost, after_seconds=200, catalog=Catalog())
    assert history.only_call.outcome == "not_started"


def test_a_call_that_nobody_claims_is_given_up_and_dispatched_again() -> None:
    history = with_approved(proposed(0, "send"))
    appended(history, ToolCallDispatched)
    given_up = appended(history, ToolCallLost, after_seconds=700)
    assert given_up.claim is None
    assert appended(history, ToolCallDispatched, after_seconds=700).attempt == 2


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


def test_a_state_of_nothing_is_nothing_to_do() -> None:
    assert list(decide(KEY, NOTHING, 0, world(History()))) == []
    assert CONFIG.model == "scripted:test"
