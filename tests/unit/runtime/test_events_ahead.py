"""Own events under way, whatever the log makes of them."""

import pytest

from schemas.events import TurnCancelRequested
from services.chassis.log.port import LogError
from services.runtime.events_ahead import EventsAhead
from services.runtime.outcomes import Outcome, RetryLater, SetAside, after_failed_append
from tests.support.recorded.histories import USER, History, cancel_requested, step_started, submitted, turn_started


def started() -> tuple[History, EventsAhead]:
    """A thread with an input, whose turn and first step are under way; both are in the records of a fork of it."""
    log = History().idle()
    log.apply(submitted("i1"), USER)
    ahead, mine = EventsAhead(), log.fork()
    for event in (turn_started, step_started):
        made = mine.apply(event(mine.state))
        assert ahead.add(log.state, made.record).effect == "applied"
    return mine, ahead


def test_the_state_ahead_has_all_that_is_under_way() -> None:
    mine, ahead = started()
    confirmed = mine.states[0]
    latest = ahead.latest(confirmed)
    assert latest.turn is not None and latest.turn.step is not None
    assert confirmed.turn is None
    assert len(ahead.events) == 2


def test_an_event_that_does_not_fit_is_not_remembered() -> None:
    mine, ahead = started()
    verdict = ahead.add(mine.states[0], mine.make(turn_started(mine.states[0])).record)
    assert verdict.effect != "applied"
    assert len(ahead.events) == 2


def test_what_is_read_back_is_no_longer_under_way() -> None:
    mine, ahead = started()
    for left, record, state in zip((1, 0), mine.records, mine.states[1:], strict=True):
        ahead.read_back(state, record)
        assert len(ahead.events) == left
    assert ahead.state is None
    assert ahead.latest(mine.state) is mine.state
    ahead.read_back(mine.state, mine.records[-1])
    assert ahead.events == []


def test_a_record_of_somebody_else_comes_before_what_is_under_way() -> None:
    mine, ahead = started()
    log = History(mine.key, mine.states[0], drawn=100)
    log.add(mine.encoded[0])
    ahead.read_back(log.state, log.records[-1])
    log.apply(cancel_requested(log.state), USER)
    ahead.read_back(log.state, log.records[-1])
    assert isinstance(log.records[-1].data, TurnCancelRequested)
    latest = ahead.latest(log.state)
    assert latest.turn is not None and latest.turn.cancelling == "user" and latest.turn.step is None
    [step] = ahead.events
    assert step.changes == ()


def test_events_whose_append_failed_are_forgotten() -> None:
    mine, ahead = started()
    ahead.withdraw(mine.states[0], ahead.events[1:])
    latest = ahead.latest(mine.states[0])
    assert latest.turn is not None and latest.turn.step is None
    ahead.withdraw(mine.states[0], ahead.events[:])
    assert ahead.state is None


class _FinalError(LogError):
    retriable = False


class _PassingError(LogError):
    retriable = True


FINAL = _FinalError("too large")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(FINAL, SetAside(FINAL)), (_PassingError("away"), RetryLater()), (TimeoutError(), RetryLater())],
)
def test_only_a_final_error_of_the_log_sets_a_thread_aside(error: Exception, outcome: Outcome) -> None:
    assert after_failed_append(error) == outcome
