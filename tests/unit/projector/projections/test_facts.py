"""What can be counted of a record: each number for the events that have it, and that their sums are the fold's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import Record
from schemas.events import Failure, ThreadImportEnded, Usage
from schemas.other_topics.effects import Facts
from schemas.thread import Verdict
from services.projector.projections import events
from services.projector.projections.changes import Applied
from services.projector.projections.events import bare_event_row, event_row
from services.projector.projections.facts import Facts as Said
from services.projector.projections.facts import facts
from tests.support.recorded.histories import (
    CONFIG,
    IMPORTER,
    RUNTIME,
    USER,
    History,
    approval_requested,
    approved,
    cancel_requested,
    created,
    denied,
    finished,
    proposed,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)
from tests.support.recorded.strategies import any_records
from tests.support.recorded.walks import CHOICES, Choice, walk


def applied(history: History) -> list[Applied]:
    rows = zip(history.records, history.states, history.states[1:], history.verdicts, strict=False)
    return [Applied(record, before, after, Verdict(*verdict)) for record, before, after, verdict in rows]


def last(history: History) -> Said | None:
    return facts(applied(history)[-1])


@given(st.lists(CHOICES, min_size=1, max_size=60))
def test_the_sums_are_what_the_fold_counts(choices: list[Choice]) -> None:
    history = walk(choices)
    said = [facts(one) or {} for one in applied(history)]
    for number, state in enumerate(history.states):
        statuses = [call.status for call in state.calls.values()]
        until = said[:number]
        assert sum(int(one.get("waiting", 0)) for one in until) == statuses.count("waiting")
        assert sum(int(one.get("unknown", 0)) for one in until) == statuses.count("unknown")
        ended = [one for one in until if "turn_ms" in one]
        assert len(ended) == state.last_turn - (state.turn is not None)
        assert not ended or ended[-1]["outcome"] == state.last_outcome
    taken = [one for one in history.verdicts if one[0] == "applied"]
    assert sum(int(one.get("inputs", 0)) for one in said) <= len(taken)


@given(st.lists(CHOICES, min_size=1, max_size=60))
def test_facts_are_small_and_as_they_are_described(choices: list[Choice]) -> None:
    for one in applied(walk(choices)):
        said = facts(one)
        if said is not None:
            assert said
            assert Facts.model_validate(said).model_dump(exclude_none=True) == said


@given(any_records())
def test_any_record_has_facts_or_none(record: Record) -> None:
    history = History().with_unknown_call()
    for effect in ("applied", "superseded", "rejected"):
        facts(Applied(record, history.state, history.state, Verdict(effect)))


def test_an_input_counts_where_it_was_accepted() -> None:
    history = History().idle()
    history.append(submitted("one"), USER)
    assert last(history) == {"inputs": 1}
    history.append(submitted("one"), RUNTIME)
    assert last(history) is None


def test_a_turn_counts_at_its_end_with_its_time() -> None:
    history = History().ended_turn()
    said = last(history)
    started = next(record for record in history.records if record.kind == "turn.started")
    assert said == {"turn": 1, "outcome": "completed", "turn_ms": history.records[-1].time_ms - started.time_ms}


def test_time_spent_waiting_for_people_is_a_part_of_the_turns() -> None:
    history = History().with_calls(proposed(0))
    history.apply(approval_requested(history.only_call), RUNTIME)
    assert last(history) == {"call": "1.1.0", "tool": "shell", "waiting": 1}
    asked_ms = history.records[-1].time_ms
    history.now_ms += 60_000
    history.apply(denied(history.only_call), USER)
    assert last(history) == {"call": "1.1.0", "tool": "shell", "outcome": "denied", "decision": "denied", "waiting": -1}
    denied_ms = history.records[-1].time_ms
    history.apply(cancel_requested(history.state), USER)
    history.apply(turn_ended(history.state, "aborted").model_copy(update={"reason": "cancelled: user"}))
    said = last(history)
    assert said is not None
    assert (said["outcome"], said["reason"]) == ("aborted", "cancelled: user")
    assert said["waited_ms"] == denied_ms - asked_ms
    assert int(said["turn_ms"]) > int(said["waited_ms"])


def test_a_cancel_takes_what_waits_with_it() -> None:
    history = History().with_calls(proposed(0), proposed(1))
    for call in list(history.state.calls.values()):
        history.apply(approval_requested(call), RUNTIME)
    history.apply(cancel_requested(history.state), USER)
    assert last(history) == {"turn": 1, "waiting": -2}


def test_the_end_of_an_import_ends_its_turn_and_leaves_its_calls_unknown() -> None:
    history = History()
    history.apply(created(importing=True), IMPORTER)
    history.apply(submitted("i1"), IMPORTER)
    history.apply(turn_started(history.state), IMPORTER)
    started_ms = history.records[-1].time_ms
    history.apply(step_started(history.state), IMPORTER)
    history.apply(step_finished(history.state, calls=[proposed(0), proposed(1)]), IMPORTER)
    history.apply(ThreadImportEnded(source="s"), IMPORTER)
    turn_ms = history.records[-1].time_ms - started_ms
    assert last(history) == {"turn": 1, "outcome": "interrupted", "turn_ms": turn_ms, "unknown": 2}


def test_a_turn_that_ends_while_a_person_is_asked_has_waited_until_then() -> None:
    history = History()
    history.apply(created(importing=True), IMPORTER)
    history.apply(submitted("i1"), IMPORTER)
    history.apply(turn_started(history.state), IMPORTER)
    history.apply(step_started(history.state), IMPORTER)
    history.apply(step_finished(history.state, calls=[proposed(0)]), IMPORTER)
    history.apply(approval_requested(history.only_call), IMPORTER)
    asked_ms = history.records[-1].time_ms
    history.now_ms += 60_000
    history.apply(ThreadImportEnded(source="s"), IMPORTER)
    said = last(history)
    assert said is not None
    assert said["waited_ms"] == history.records[-1].time_ms - asked_ms


def test_a_call_that_ran_has_its_tool_and_time() -> None:
    history = History().with_running_call()
    history.apply(finished(history.only_call))
    assert last(history) == {"call": "1.1.0", "tool": "shell", "outcome": "succeeded", "tool_ms": 12}


def test_a_call_that_never_ran_has_no_time() -> None:
    history = History().with_running_call(last=True)
    history.apply(finished(history.only_call, "not_started"))
    assert last(history) == {"call": "1.1.0", "tool": "shell", "outcome": "not_started"}


def test_a_bare_row_does_without_facts_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, *_) = applied(History().in_turn())
    assert bare_event_row(one, 0)[-1] == event_row(one, 0, b"{}")[-1]
    monkeypatch.setattr(events, "facts", lambda _: 1 / 0)
    assert bare_event_row(one, 0)[-1] is None


def test_an_unknown_call_counts_until_somebody_says_what_became_of_it() -> None:
    history = History().with_unknown_call()
    said = last(history)
    assert said is not None
    assert (said["unknown"], said.get("outcome"), "tool_ms" in said) == (1, None, False)
    history.apply(resolved(history.only_call, "abandoned"), USER)
    assert last(history) == {
        "call": "1.1.0",
        "tool": "shell",
        "outcome": "abandoned",
        "decision": "abandoned",
        "unknown": -1,
    }


def test_an_edited_approval_says_so() -> None:
    history = History().with_calls(proposed(0))
    call = history.only_call
    history.apply(approved(call, edited={"args": {}, "call_hash": "e" * 64}), USER)
    assert last(history) == {"call": "1.1.0", "tool": "shell", "decision": "edited"}


def test_an_answer_has_its_model_time_and_tokens() -> None:
    history = History().in_step()
    started_ms = history.records[-1].time_ms
    history.apply(step_finished(history.state))
    said = last(history)
    assert said is not None
    assert said["step_ms"] == history.records[-1].time_ms - started_ms
    assert {"turn", "step", "model", "input_tokens", "output_tokens"} <= said.keys()
    assert said["model"] == CONFIG.model


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (Usage(input_tokens=5, output_tokens=3), {}),
        (Usage(input_tokens=5, output_tokens=3, cached_tokens=4), {"cached_tokens": 4}),
        (Usage(input_tokens=5, output_tokens=3, reasoning_tokens=2), {"reasoning_tokens": 2}),
        (
            Usage(input_tokens=5, output_tokens=3, cached_tokens=4, reasoning_tokens=2),
            {"cached_tokens": 4, "reasoning_tokens": 2},
        ),
    ],
)
def test_an_answer_has_its_cached_and_reasoning_tokens_only_where_there_are_some(
    usage: Usage, counted: dict[str, int]
) -> None:
    history = History().in_step()
    history.apply(step_finished(history.state).model_copy(update={"usage": usage}))
    said = last(history)
    assert said is not None
    tokens = {name: value for name, value in said.items() if name.endswith("_tokens")}
    assert tokens == {"input_tokens": 5, "output_tokens": 3} | counted


def test_an_answer_that_lost_its_race_was_paid_for() -> None:
    history = History().in_step()
    lost = step_finished(history.state, text="too late")
    history.apply(step_finished(history.state))
    assert history.append(lost).effect == "superseded"
    said = last(history)
    assert said is not None
    assert {"turn", "step", "model", "input_tokens", "output_tokens"} == said.keys()


def test_a_failed_model_call_says_why() -> None:
    history = History().in_step()
    history.apply(step_failed(history.state).model_copy(update={"error": Failure(kind="x" * 300, message="m")}))
    assert last(history) == {"turn": 1, "step": 1, "error_kind": "x" * 200}
