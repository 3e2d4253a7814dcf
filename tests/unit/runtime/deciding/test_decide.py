"""What the runtime decides in each situation of a turn; of calls: `test_decide_calls.py`.

That what it decides always fits and comes to rest is in `tests/property/test_decide.py`.
"""

from collections.abc import Callable, Sequence

import pytest

from schemas.config import Limits as OwnLimits
from schemas.events import (
    InputMode,
    Lineage,
    StepStarted,
    ThreadClosed,
    ThreadCloseRequested,
    ToolCallDispatched,
    ToolCallLost,
    TurnCancelRequested,
    TurnEnded,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import derive_child_input
from schemas.state import NOTHING
from schemas.tools import tools_hash
from services.runtime.deciding.decide import decide
from services.runtime.deciding.decisions import Append, Calling, CallModel, DropModelCall, LoadTranscript, LookAgain
from tests.support.recorded.deciding import (
    ASK,
    MINE,
    READ,
    SEND,
    SHELL,
    SHOWN,
    appended,
    calling,
    decided,
    idle,
    in_step,
    in_turn,
    looks_again,
    settle,
    with_approved,
    with_calls,
    world,
)
from tests.support.recorded.histories import (
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
    dispatched,
    proposed,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)

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


def test_the_first_turn_of_a_child_takes_its_task_whatever_interrupts() -> None:
    lineage = Lineage(kind="child", parent="p", seq=1, chain=NO_HASH, call="1.1.0", depth=1)
    history = History()
    history.apply(created(lineage=lineage))
    task = derive_child_input(history.key)
    history.apply(submitted("i1", mode="interrupt"), USER)
    early = decided(history)[0]
    assert isinstance(early, Append) and isinstance(early.event, TurnStarted) and early.event.inputs == ("i1",)
    history.apply(submitted(task))
    assert appended(history, TurnStarted).inputs == (task,)
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "done"))
    history.apply(turn_ended(history.state))
    history.apply(submitted("i2"), USER)
    assert appended(history, TurnStarted).inputs == ("i1",)


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


def test_the_next_turn_waits_until_the_end_of_the_last_was_read_back() -> None:
    history = in_step()
    history.apply(submitted("i2"), USER)
    history.apply(step_finished(history.state))
    appended(history, TurnEnded, is_ahead=True)
    assert list(decided(history, is_ahead=True)) == []
    assert appended(history, TurnStarted).inputs == ("i2",)


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


def test_a_state_of_nothing_is_nothing_to_do() -> None:
    assert list(decide(KEY, NOTHING, 0, world(History()))) == []
    assert CONFIG.model == "scripted:test"
