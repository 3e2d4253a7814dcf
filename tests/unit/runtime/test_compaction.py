"""When a summary is asked for, what it is asked about, and what its answer or its failure comes to."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.config import Limits as OwnLimits
from schemas.events import (
    ContextCompacted,
    ContextCompactionFailed,
    ContextCompactionRequested,
    ThreadCloseRequested,
    ThreadRewound,
)
from schemas.transcript import Item
from services.runtime.compaction import ASKED, after_failure, question, summed_up, to_summary
from services.runtime.decisions import (
    Append,
    CallModel,
    Decisions,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    Summarising,
    SummaryTries,
)
from services.runtime.model import AnswerItem, ModelAnswer, ModelCall, ModelFailure, TokenUsage
from tests.support.deciding import LIMITS, appended, decided, idle, in_step, in_turn, looks_again, with_calls
from tests.support.histories import (
    USER,
    History,
    cancel_requested,
    compacted,
    proposed,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)


def asked_for(history: History) -> History:
    history.apply(ContextCompactionRequested(), USER)
    return history


def after_a_turn(**config: object) -> History:
    history = in_step(**config)
    history.apply(step_finished(history.state, "done"))
    history.apply(turn_ended(history.state))
    return history


def calls(decisions: Decisions) -> list[Summarising]:
    return [each.calling for each in decisions if isinstance(each, CallModel) and isinstance(each.calling, Summarising)]


def some(_: int) -> int:
    return 3


def none(_: int) -> int:
    return 0


# When


def test_between_turns_the_model_is_asked_about_all_that_was_read_back_before_the_next_turn_begins() -> None:
    history = asked_for(after_a_turn())
    history.apply(submitted("i2"), USER)
    state = history.state
    decisions = decided(history, summed_up=some)
    assert list(decisions) == [CallModel(Summarising(state.compaction_seq, 0, state.seq, 1))]
    assert list(decided(history, summed_up=some, calling=calls(decisions)[0])) == []
    assert list(decided(history, summed_up=some, is_ahead=True)) == []
    assert list(decided(history)) == [LoadTranscript()]


def test_a_turn_is_asked_about_at_a_boundary_only() -> None:
    history = asked_for(with_calls())
    state = history.state
    [call, look] = decided(history, summed_up=some)
    assert call == CallModel(Summarising(state.compaction_seq, 0, state.seq, 1))
    assert isinstance(look, LookAgain)
    history = with_calls(proposed(0))
    asked_for(history)
    assert not calls(decided(history, summed_up=some))


def test_a_failed_step_is_a_boundary_and_an_open_one_is_not() -> None:
    history = in_step()
    history.apply(step_failed(history.state))
    asked_for(history)
    assert calls(decided(history, summed_up=some))
    history.apply(step_started(history.state, owner="B"))
    assert not calls(decided(history, summed_up=some))


def test_what_a_turn_begins_with_is_not_left_to_a_summary() -> None:
    history = after_a_turn()
    history.apply(submitted("i2"), USER)
    history.apply(turn_started(history.state))
    turn = history.state.turn
    assert turn is not None
    asked_for(history)
    [calling] = calls(decided(history, summed_up=some))
    assert calling.through_seq == turn.started_seq - 1
    history.apply(compacted(history.state, turn.started_seq - 1))
    asked_for(history)
    event = appended(history, ContextCompactionFailed, summed_up=some)
    assert event.error.kind == "empty"


def test_a_cancelled_turn_ends_first_and_a_closing_thread_asks_for_nothing() -> None:
    history = asked_for(in_turn())
    [calling] = calls(decided(history, summed_up=some))
    history.apply(cancel_requested(history.state), USER)
    assert decided(history, summed_up=some, calling=calling)[0] == DropModelCall()
    assert not calls(decided(history, summed_up=some))
    history = asked_for(after_a_turn())
    history.apply(ThreadCloseRequested(), USER)
    assert not calls(decided(history, summed_up=some))


def test_a_rewind_meanwhile_asks_anew() -> None:
    history = asked_for(after_a_turn())
    [calling] = calls(decided(history, summed_up=some))
    history.apply(ThreadRewound(to_turn=1), USER)
    drop, call = decided(history, summed_up=some, calling=calling)
    assert drop == DropModelCall()
    assert call == CallModel(Summarising(history.state.compaction_seq, history.state.base, history.state.seq, 1))


# By itself


def limited(tokens: int, **fields: object) -> Any:
    return {"limits": replace(LIMITS, context_tokens=tokens), **fields}


def test_a_context_beyond_the_limit_is_compacted_before_the_next_step() -> None:
    history = with_calls()
    history.apply(submitted("more", "steer"), USER)
    request = appended(history, ContextCompactionRequested, **limited(100))
    assert (request.base, request.turn) == (0, 1)
    assert calls(decided(history, **limited(100, summed_up=some)))


@pytest.mark.parametrize(
    ("service", "own", "is_due"), [(110, None, False), (0, None, False), (0, 109, True), (109, 500, True)]
)
def test_the_limit_is_the_narrower_of_both(service: int, own: int | None, is_due: bool) -> None:
    history = with_calls(limits=OwnLimits(context_tokens=own))
    history.apply(submitted("more", "steer"), USER)
    first = decided(history, **limited(service))[0]
    assert isinstance(first, Append)
    assert isinstance(first.event, ContextCompactionRequested) == is_due


def test_after_a_failure_it_is_not_asked_for_again_in_the_same_turn() -> None:
    history = with_calls()
    history.apply(submitted("more", "steer"), USER)
    appended(history, ContextCompactionRequested, **limited(100))
    appended(history, ContextCompactionFailed, **limited(100, summed_up=none))
    first = decided(history, **limited(100))[0]
    assert isinstance(first, Append)
    assert first.event.kind == "step.started"


# Failures


def failed(history: History, failures: int, **fields: object) -> SummaryTries:
    tries = SummaryTries(history.state.compaction_seq, failures, True, history.now_ms + 2_000, "overloaded")
    return tries._replace(**fields)  # type: ignore[arg-type]  # as the test names them


def test_a_failed_try_is_repeated_later_and_the_last_ends_the_request() -> None:
    history = asked_for(after_a_turn())
    assert looks_again(history, tries=failed(history, 1), summed_up=some) == 2
    [calling] = calls(decided(history, 2, tries=failed(history, 1), summed_up=some))
    assert calling.attempt == 2
    event = appended(history, ContextCompactionFailed, tries=failed(history, 2), summed_up=some)
    assert (event.error.kind, event.error.message) == ("model", "overloaded")
    assert not history.state.compaction_requested


def test_a_failure_that_is_final_is_not_repeated_and_one_of_another_request_does_not_count() -> None:
    history = asked_for(after_a_turn())
    decisions = decided(history, tries=failed(history, 5, requested=1), summed_up=some)
    assert calls(decisions)[0].attempt == 1
    appended(history, ContextCompactionFailed, tries=failed(history, 1, retriable=False), summed_up=some)


def test_where_there_is_nothing_to_sum_up_the_request_fails() -> None:
    history = asked_for(idle())
    event = appended(history, ContextCompactionFailed, summed_up=none)
    assert event.error.kind == "empty"


# Question and answer


def item(place: int, kind: str = "message", thread: str | None = None) -> Item:
    content = {"kind": kind, "text": f"at {place}"}
    return Item(place, 0, kind, 1, None, place, content, "d", thread=thread)  # type: ignore[arg-type]  # any of them


def test_a_summary_stands_for_what_is_inherited_an_earlier_summary_and_what_has_a_place_by_then() -> None:
    items = [item(90, thread="parent"), item(9, "summary"), item(4), item(5), item(6)]
    assert summed_up(items, 5) == items[:4]
    assert summed_up([item(9, "summary"), item(10)], 9) == ()
    assert summed_up([item(10)], 9) == ()
    asked = question(items[:2])
    assert [each.get("text") for each in asked] == ["at 90", "at 9", None]
    assert asked[-1]["content"] == [{"type": "text", "text": ASKED}]


def test_an_answer_is_a_summary_by_its_text() -> None:
    calling = Summarising(7, 3, 6, 1)
    answer = ModelAnswer(
        [AnswerItem("reasoning", "hm"), AnswerItem("text", "One.\ud800"), AnswerItem("text", "Two.")],
        [ModelCall("shell", {})],
        usage=TokenUsage(5, 4, 3, 2),
    )
    summary = to_summary(calling, answer, 100)
    assert isinstance(summary, ContextCompacted)
    assert (summary.base, summary.through_seq) == (3, 6)
    assert summary.summary.startswith("One.")
    assert summary.summary.endswith("\n\nTwo.")
    assert (summary.usage.input_tokens, summary.usage.cached_tokens) == (5, 3)


@pytest.mark.parametrize(
    ("answer", "retriable"), [([], True), ([AnswerItem("text", " ")], True), ([AnswerItem("text", "x" * 101)], False)]
)
def test_an_answer_without_a_text_or_with_too_much_of_it_is_a_failure(
    answer: list[AnswerItem], retriable: bool
) -> None:
    failure = to_summary(Summarising(7, 3, 6, 2), ModelAnswer(answer), 100)
    assert isinstance(failure, ModelFailure)
    assert failure.retriable is retriable
    assert after_failure(Summarising(7, 3, 6, 2), failure, 99) == SummaryTries(7, 2, retriable, 99, failure.error)
