"""What is made of a downstream's answers: tables, and properties over every state that an unknown call can be in."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import ToolCallResolved
from services.tool_executor.claiming.reconcile import (
    Answer,
    AskAgain,
    LeaveToPeople,
    ReconcileLimits,
    answer_of,
    delay_ms,
    next_step,
    over_at_ms,
    unknown_reconcilable,
    why_not_again,
)
from services.tool_executor.output import INLINE_BYTES_MAX
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    USER,
    History,
    approved,
    cancel_requested,
    claimed,
    created,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)

LIMITS = ReconcileLimits(first_seconds=2, most_seconds=60, tries=3, grace_seconds=10, lease_seconds=30)


def unknown_call(last: bool = False) -> History:
    history = History().with_running_call("reconcilable", last)
    history.apply(lost(history.only_call))
    assert history.only_call.status == "unknown"
    return history


def step_of(history: History, answer: Answer, *, early: bool = False, tries: int = 0):
    call = history.only_call
    now_ms = over_at_ms(call, LIMITS) - (1 if early else 0)
    return next_step(history.state, call, answer, now_ms, now_ms, tries + 1, tries, LIMITS)


# What is asked about


def test_unknown_reconcilable_calls_of_the_pool_are_asked_about():
    history = unknown_call()
    assert unknown_reconcilable(history.state, "builtin") == [history.only_call]
    assert unknown_reconcilable(history.state, "gpu") == []
    history.apply(resolved(history.only_call))
    assert unknown_reconcilable(history.state, "builtin") == []


def test_calls_of_other_classes_are_for_people():
    assert unknown_reconcilable(History().with_unknown_call().state, "builtin") == []


def test_a_call_of_a_turn_that_is_over_is_asked_about_too():
    history = unknown_call()
    history.apply(turn_ended(history.state, "failed"))
    assert unknown_reconcilable(history.state, "builtin") == [history.only_call]


def test_nothing_is_asked_while_importing():
    history = History()
    history.apply(created(importing=True), IMPORTER)
    history.apply(submitted("i1"), IMPORTER)
    history.apply(turn_started(history.state), IMPORTER)
    history.apply(step_started(history.state), IMPORTER)
    history.apply(step_finished(history.state, calls=[proposed(0)]), IMPORTER)
    history.apply(approved(history.only_call), IMPORTER)
    history.apply(dispatched(history.only_call, "reconcilable"), IMPORTER)
    history.apply(claimed(history.only_call), IMPORTER)
    history.apply(lost(history.only_call), IMPORTER)
    assert history.only_call.status == "unknown"
    assert unknown_reconcilable(history.state, "builtin") == []


# What a hook says


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"status": "not_done"}, Answer("not_done")),
        ({"status": "unknown", "note": "the ledger is closed"}, Answer("unknown", note="the ledger is closed")),
        ({"status": "not_done", "result": {"ignored": 1}, "note": 7}, Answer("not_done")),
        ({"status": "done"}, Answer("done")),
        (
            {"status": "done", "result": "ch_1"},
            Answer("done", {"content": [{"type": "text", "text": "ch_1"}], "is_error": False, "bytes_cut": 0}),
        ),
        (
            {"status": "done", "result": {"content": [{"type": "text", "text": "ch_1"}]}},
            Answer("done", {"content": [{"type": "text", "text": "ch_1"}]}),
        ),
        (
            {"status": "done", "result": {"id": 1}},
            Answer(
                "done",
                {
                    "content": [{"type": "text", "text": '{"id": 1}'}],
                    "is_error": False,
                    "bytes_cut": 0,
                    "structured": {"id": 1},
                },
            ),
        ),
    ],
)
def test_answers(said, answer):
    assert answer_of(said) == answer


@pytest.mark.parametrize(
    "said", [None, [], "done", 1, math.nan, {}, {"status": None}, {"status": "DONE"}, {"status": []}]
)
def test_garbage_says_nothing_and_is_named(said):
    answer = answer_of(said)
    assert (answer.status, answer.result) == ("unknown", None)
    assert repr(said.get("status") if isinstance(said, dict) else said) in answer.note


def test_what_the_log_cannot_carry_is_replaced_and_what_is_too_large_is_cut():
    answer = answer_of({"status": "done", "result": {"n": 2**60, "text": "\x00"}, "note": "\x00" + "x" * 5_000})
    assert answer.result["structured"] == {"n": str(2**60), "text": "\u2400"}
    assert answer.note.startswith("\u2400x")
    assert len(answer.note) == 1_000
    for large in ("x" * 100_000, {"content": ["x" * 100_000]}, ["x" * 100_000]):
        assert len(str(answer_of({"status": "done", "result": large}).result)) < INLINE_BYTES_MAX + 1_000


# What follows from it


def test_done_is_believed_at_once():
    step = step_of(unknown_call(), Answer("done", "r", "charge ch_1"), early=True)
    assert (step.decision, step.result, step.attempt) == ("succeeded", "r", 1)
    assert step.note == "the downstream says that it was done: charge ch_1"


def test_not_done_is_believed_only_when_nobody_can_be_at_it_any_more():
    history = unknown_call()
    call = history.only_call
    assert over_at_ms(call, LIMITS) == call.claimed_ms + 30_000 + call.timeout_ms + 10_000
    assert over_at_ms(replace(call, lease_seconds=None), LIMITS) == over_at_ms(call, LIMITS)
    assert over_at_ms(replace(call, lease_seconds=5), LIMITS) == over_at_ms(call, LIMITS) - 25_000
    early = step_of(history, Answer("not_done"), early=True, tries=2)
    assert early == AskAgain(over_at_ms(call, LIMITS), is_try=False), (
        "it is no try, and the wait ends with the deadline"
    )
    assert step_of(history, Answer("not_done"), tries=2).decision == "again"


def test_an_answer_that_was_asked_for_before_the_deadline_is_of_before_it():
    history = unknown_call()
    call = history.only_call
    over_ms = over_at_ms(call, LIMITS)
    step = next_step(history.state, call, Answer("not_done"), over_ms - 1, over_ms + 5_000, 1, 0, LIMITS)
    assert step == AskAgain(over_ms + 5_000, is_try=False)
    assert next_step(history.state, call, Answer("done"), over_ms - 1, over_ms, 1, 0, LIMITS).decision == "succeeded"


def test_long_before_that_it_is_asked_again_with_growing_pauses():
    history = unknown_call()
    call = history.only_call
    now_ms = call.claimed_ms
    pauses = [
        next_step(history.state, call, Answer("not_done"), now_ms, now_ms, n, 0, LIMITS).at_ms - now_ms
        for n in range(1, 8)
    ]
    assert pauses == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (lambda history: None, None),
        (lambda history: history.apply(cancel_requested(history.state), USER), "its turn is over or being cancelled"),
        (lambda history: history.apply(turn_ended(history.state, "failed")), "its turn is over or being cancelled"),
    ],
)
def test_not_done_runs_again_or_has_failed(begin, why):
    history = unknown_call()
    begin(history)
    step = step_of(history, Answer("not_done", note="no such charge"))
    assert step.decision == ("again" if why is None else "failed")
    assert why is None or why in step.note
    assert step.note.endswith("no such charge")
    history.apply(step, EXECUTOR)
    assert history.only_call.status == ("repeatable" if why is None else "settled")


def test_the_last_attempt_does_not_run_again():
    history = unknown_call(last=True)
    assert why_not_again(history.state, history.only_call) == "it was its last attempt"
    step = step_of(history, Answer("not_done"))
    assert (step.decision, step.note) == ("failed", "the downstream says that it was not done; it was its last attempt")
    history.apply(step, EXECUTOR)
    assert history.only_call.outcome == "failed"


def test_what_it_cannot_say_is_asked_again_and_left_to_people_in_the_end():
    history = unknown_call()
    for tries in range(2):
        step = step_of(history, Answer("unknown"), tries=tries)
        assert step == AskAgain(over_at_ms(history.only_call, LIMITS) + delay_ms(LIMITS, tries + 1), is_try=True)
    assert step_of(history, Answer("unknown"), tries=2) == LeaveToPeople("the downstream cannot say")
    assert step_of(history, Answer("unknown", note="closed"), tries=2) == LeaveToPeople("closed")


@given(st.integers(0, 10**9))
def test_pauses_never_pass_the_most(asked: int):
    assert 2_000 <= delay_ms(LIMITS, asked) <= 60_000


# Properties

BEGINNINGS = st.sampled_from(
    [
        lambda history: None,
        lambda history: history.apply(cancel_requested(history.state), USER),
        lambda history: history.apply(turn_ended(history.state, "failed")),
    ]
)
STATUSES = st.sampled_from(["done", "not_done", "unknown"])


@given(
    BEGINNINGS,
    st.booleans(),
    STATUSES,
    st.integers(-200_000, 200_000),
    st.integers(0, 60_000),
    st.integers(1, 40),
    st.integers(0, 40),
)
def test_what_is_resolved_takes_effect_and_asking_ends(begin, last, status, later_ms, took_ms, asked, tries):
    history = unknown_call(last)
    begin(history)
    call = history.only_call
    asked_ms = over_at_ms(call, LIMITS) + later_ms
    now_ms = asked_ms + took_ms
    step = next_step(history.state, call, Answer(status), asked_ms, now_ms, asked, tries, LIMITS)
    match step:
        case ToolCallResolved():
            assert history.append(step, EXECUTOR).effect == "applied"
            assert history.only_call.status in {"settled", "repeatable"}
            assert status == "done" or (status == "not_done" and later_ms >= 0)
            assert (history.only_call.outcome == "succeeded") == (status == "done")
        case AskAgain(at_ms=at_ms, is_try=is_try):
            assert now_ms <= at_ms <= now_ms + 60_000
            assert is_try or at_ms <= max(now_ms, over_at_ms(call, LIMITS)), "what is no try ends with the deadline"
            assert is_try or asked_ms < over_at_ms(call, LIMITS)
            assert not is_try or tries + 1 < LIMITS.tries
        case LeaveToPeople():
            assert status == "unknown"


@given(st.permutations(["done", "not_done", "late end"]))
def test_of_several_answers_the_first_counts(order):
    """Two executors asked, and the attempt that was taken for lost ended after all."""
    history = unknown_call()
    call = history.only_call
    events = {
        "late end": finished(call, "succeeded", result="late"),
        "done": step_of(history, Answer("done", "r")),
        "not_done": step_of(history, Answer("not_done")),
    }
    effects = {name: history.append(events[name], EXECUTOR).effect for name in order}
    assert effects[order[0]] == "applied"
    if order[0] == "not_done":
        # It may run again, but has not been dispatched: the late end is still the proof of what it did.
        assert effects == {"not_done": "applied", "done": "superseded", "late end": "applied"}
    else:
        assert not any(effects[name] == "applied" for name in order[1:])
    assert (history.only_call.status, history.only_call.outcome) == ("settled", "succeeded")
