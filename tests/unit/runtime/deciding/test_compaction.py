"""When a summary is asked for, what it is asked about, and what its answer or its failure comes to."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.config import Limits as OwnLimits
from schemas.events import (
    CONTEXT_TOO_LONG,
    ContextCompacted,
    ContextCompactionFailed,
    ContextCompactionRequested,
    Failure,
    StepFailed,
    StepStarted,
    ThreadCloseRequested,
    ThreadRewound,
    TurnEnded,
)
from schemas.tools import ToolSpec
from schemas.transcript import Item
from services.runtime.deciding.compaction import (
    ASKED,
    HALVINGS_MAX,
    after_failure,
    asked_with,
    question,
    summed_up,
    to_summary,
)
from services.runtime.deciding.decisions import (
    Append,
    CallModel,
    Decisions,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    Summarising,
    SummaryTries,
)
from services.runtime.models.port import AnswerItem, ModelAnswer, ModelCall, ModelFailure, ModelRequest, TokenUsage
from tests.support.recorded.deciding import (
    LIMITS,
    appended,
    decided,
    idle,
    in_step,
    in_turn,
    looks_again,
    settle,
    with_calls,
)
from tests.support.recorded.histories import (
    USER,
    History,
    approved,
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


# Where the model refuses a context


def too_long(history: History) -> StepFailed:
    failed = step_failed(history.state, retriable=False)
    return failed.model_copy(update={"error": Failure(kind=CONTEXT_TOO_LONG, message="200001 tokens > 200000")})


def refused(*inputs: str, **config: object) -> History:
    """After a step with a call, and another one that takes what a person has said meanwhile."""
    history = with_calls(proposed(0), **config)
    history.apply(approved(history.call("1.1.0"), by="policy:never"))
    settle(history, "1.1.0")
    for name in inputs:
        history.apply(submitted(name, "steer"), USER)
    history.apply(step_started(history.state))
    history.apply(too_long(history))
    return history


def test_a_context_that_is_too_long_is_summed_up_and_the_step_tried_again() -> None:
    history = refused()
    request = appended(history, ContextCompactionRequested)
    assert (request.base, request.turn) == (0, 1)
    [calling] = calls(decided(history, summed_up=some))
    assert calling.through_seq == history.state.seq
    history.apply(compacted(history.state))
    again = appended(history, StepStarted)
    assert (again.step, again.attempt) == (2, 2)
    history.apply(step_finished(history.state, "done"))
    assert appended(history, TurnEnded).outcome == "completed"


def test_what_is_too_long_is_no_failure_that_counts() -> None:
    history = refused()
    history.apply(compacted(history.state))
    for _ in range(LIMITS.model_tries):
        history.apply(step_started(history.state))
        assert history.state.turn is not None and history.state.turn.step is not None
        history.apply(step_failed(history.state))
    assert history.state.turn.step.failures == LIMITS.model_tries
    assert appended(history, TurnEnded, 60).outcome == "failed"


@pytest.mark.parametrize("inputs", [(), ("more",)])
def test_one_that_is_too_long_with_its_summary_ends_the_turn_and_says_so(inputs: tuple[str, ...]) -> None:
    history = refused(*inputs)
    appended(history, ContextCompactionRequested)
    [calling] = calls(decided(history, summed_up=some))
    history.apply(compacted(history.state, calling.through_seq))
    appended(history, StepStarted)
    history.apply(too_long(history))
    appended(history, ContextCompactionRequested)
    assert appended(history, ContextCompactionFailed, summed_up=none).error.kind == "empty"
    end = appended(history, TurnEnded)
    assert (end.outcome, end.reason) == (
        "failed",
        "the context is too long for the model, and no summary could take its place: 200001 tokens > 200000",
    )


def test_what_a_person_has_said_and_no_step_has_answered_is_not_left_to_a_summary() -> None:
    history = refused("more", "and more")
    turn = history.state.turn
    assert turn is not None and turn.step is not None
    appended(history, ContextCompactionRequested)
    [calling] = calls(decided(history, summed_up=some))
    assert calling.through_seq == turn.step.seq - 1
    assert history.records[calling.through_seq].kind == "step.started"


def test_where_no_summary_comes_the_turn_ends() -> None:
    history = in_step()
    history.apply(too_long(history))
    appended(history, ContextCompactionRequested)
    appended(history, ContextCompactionFailed, summed_up=none)
    assert appended(history, TurnEnded).outcome == "failed"


def test_a_summary_that_a_person_asks_for_will_do() -> None:
    history = asked_for(refused())
    assert calls(decided(history, summed_up=some))
    history.apply(compacted(history.state))
    appended(history, StepStarted)


def test_a_failure_of_another_kind_after_that_is_one_of_its_own() -> None:
    history = refused()
    history.apply(compacted(history.state))
    appended(history, StepStarted)
    history.apply(step_failed(history.state, retriable=False))
    end = appended(history, TurnEnded)
    assert end.reason == "the provider is overloaded"


def test_a_question_for_a_summary_that_is_too_long_is_followed_by_a_shorter_one_at_once() -> None:
    history = asked_for(after_a_turn())
    tries = SummaryTries(history.state.compaction_seq)
    shown = [item(place) for place in range(1, 5)]
    request = ModelRequest("m", {}, None, [], (ToolSpec(name="shell"),))
    for halvings in range(HALVINGS_MAX + 1):
        [calling] = calls(decided(history, tries=tries, summed_up=some))
        assert (calling.attempt, calling.halvings) == (1, halvings)
        asked = asked_with(request, shown, calling)
        assert (len(asked.items), len(asked.tools)) == ((2, 0) if halvings else (5, 1))
        assert asked.is_summary and asked.tool_choice == "none"
        tries = after_failure(calling, ModelFailure("too long", retriable=False, too_long=True), 99_000)
    event = appended(history, ContextCompactionFailed, tries=tries, summed_up=some)
    assert (event.error.kind, event.error.message) == (CONTEXT_TOO_LONG, "too long")


def test_a_shorter_question_fails_as_any_other_does() -> None:
    history = asked_for(after_a_turn())
    tries = failed(history, 1, halvings=2)
    assert looks_again(history, tries=tries, summed_up=some) == 2
    [calling] = calls(decided(history, 2, tries=tries, summed_up=some))
    assert (calling.attempt, calling.halvings) == (2, 2)
    assert after_failure(calling, ModelFailure("down", retriable=True), 7) == tries._replace(
        failures=2, retry_at_ms=7, error="down"
    )


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
    ("answer", "retriable"),
    [
        ([], True),
        ([AnswerItem("text", " ")], True),
        ([AnswerItem("text", "x" * 99)], False),
        ([AnswerItem("text", "x" + "\x01" * 20 + "x")], False),
    ],
)
def test_an_answer_without_a_text_or_with_too_much_of_it_is_a_failure(
    answer: list[AnswerItem], retriable: bool
) -> None:
    failure = to_summary(Summarising(7, 3, 6, 2), ModelAnswer(answer), 100)
    assert isinstance(failure, ModelFailure)
    assert failure.retriable is retriable
    assert after_failure(Summarising(7, 3, 6, 2), failure, 99) == SummaryTries(7, 2, retriable, 99, failure.error)
