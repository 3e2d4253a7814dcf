"""Rows of particular histories; tests/property/test_projections.py has those of any."""

import pytest

from schemas.codec import Problem
from schemas.events import Edited, InputWithdrawn, Lineage, ThreadRewound
from schemas.thread import Verdict
from services.projector.projections.changes import Applied
from services.projector.projections.events import COLUMNS as EVENT_COLUMNS
from services.projector.projections.events import bare_event_row, event_row
from services.projector.projections.usage import usage_row
from tests.support.recorded.histories import (
    EXECUTOR,
    NO_HASH,
    RUNTIME,
    USER,
    History,
    approval_expired,
    approval_requested,
    approved,
    cancel_requested,
    claimed,
    compacted,
    created,
    denied,
    dispatched,
    finished,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
)
from tests.support.recorded.walks import as_read
from tests.support.stored.view_tables import Projected, Row

DATA = EVENT_COLUMNS.index("data")


def rows(history: History, table: str) -> list[Row]:
    """After batches of one record each, so that every change goes the long way."""
    return Projected().project(as_read(history), 1).all(table)


def test_a_call_from_proposal_to_result() -> None:
    history = History().with_calls()
    history.apply(approval_requested(history.only_call, expires_at_ms=5), RUNTIME)
    edited = Edited(args={"command": "ls"}, call_hash=NO_HASH)
    history.apply(approved(history.only_call, edited=edited), USER)
    history.apply(dispatched(history.only_call), RUNTIME)
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(finished(history.only_call), EXECUTOR)
    (call,) = rows(history, "tool_calls")
    assert call["status"] == "settled" and call["outcome"] == "succeeded"
    assert call["args"] == {"command": "ls"} and call["call_hash"] == NO_HASH
    assert (call["decision"], call["decided_by"], call["approval_expires_at"]) == ("edited", USER, 5)
    assert (call["executor"], call["attempts"], call["milliseconds"]) == ("E1", 1, 12)
    assert call["settled_seq"] == history.state.seq
    assert [row["kind"] for row in rows(history, "items")][-2:] == ["tool_call", "tool_result"]
    assert [row["content"]["args"] for row in rows(history, "items") if row["kind"] == "tool_call"] == [edited.args]


@pytest.mark.parametrize("expires", [True, False])
def test_a_call_that_is_not_approved(expires: bool) -> None:
    history = History().with_calls()
    history.apply(approval_requested(history.only_call), RUNTIME)
    history.apply(approval_expired(history.only_call) if expires else denied(history.only_call), RUNTIME)
    (call,) = rows(history, "tool_calls")
    assert call["outcome"] == call["decision"] == ("expired" if expires else "denied")
    assert (call["decision_reason"] is None) == expires


def test_an_unknown_call_that_a_person_resolves() -> None:
    history = History().with_unknown_call()
    (call,) = rows(history, "tool_calls")
    assert (call["status"], call["lost_attempts"], call["evidence"]) == ("unknown", 1, "no heartbeat for its lease")
    history.apply(turn_ended(history.state, "failed"))
    assert rows(history, "turns")[0]["unknown_calls"] == ["1.1.0"]
    history.apply(resolved(history.only_call, "succeeded"), USER)
    (call,) = rows(history, "tool_calls")
    assert (call["outcome"], call["resolution"], call["resolved_by"]) == ("succeeded", "succeeded", USER)
    assert call["note"] == "looked at the ledger"


def test_a_call_that_changed_files() -> None:
    history = History().with_running_call()
    done = finished(history.only_call)
    changes = {"changes": ({"path": "a"},), "artifacts": ({"sha256": NO_HASH, "size": 1, "media_type": "text/plain"},)}
    history.apply(type(done).model_validate({**done.model_dump(), **changes}), EXECUTOR)
    (call,) = rows(history, "tool_calls")
    assert call["changes"] == [{"path": "a"}]
    assert call["artifacts"] == [{"sha256": NO_HASH, "size": 1, "media_type": "text/plain"}]


def test_steps_show_their_failures_and_who_answered() -> None:
    history = History().in_step()
    history.apply(step_failed(history.state))
    history.apply(step_started(history.state, owner="B"))
    history.apply(step_finished(history.state, "fine"))
    (step,) = rows(history, "steps")
    assert (step["status"], step["attempts"], step["failures"], step["owner"]) == ("finished", 2, 1, "B")
    assert (step["error_kind"], step["retriable"], step["finished_attempt"]) == ("overloaded", True, 2)


def test_a_step_ends_with_its_turn() -> None:
    history = History().in_step()
    history.apply(cancel_requested(history.state), USER)
    assert rows(history, "turns")[0]["cancel_cause"] == "user"
    history.apply(turn_ended(history.state, "aborted"))
    assert rows(history, "steps")[0]["status"] == "dropped"
    (turn,) = rows(history, "turns")
    assert (turn["status"], turn["outcome"], turn["unknown_calls"]) == ("ended", "aborted", [])


def test_usage_counts_answers_that_lost_and_compactions() -> None:
    history = History().in_step()
    late = history.make(step_finished(history.state, "late"))
    history.apply(step_finished(history.state, "first"))
    history.add(late)
    history.apply(turn_ended(history.state))
    history.apply(compacted(history.state))
    assert [(row["kind"], row["effect"], row["turn"], row["model"]) for row in rows(history, "usage")] == [
        ("step", "applied", 1, "scripted:test"),
        ("step", "superseded", 1, "scripted:test"),
        ("compaction", "applied", None, "scripted:test"),
    ]


def test_usage_of_a_thread_that_does_not_exist_has_no_model() -> None:
    history = History().in_step()
    record = history.make(step_finished(history.state, "x")).record
    nothing = History().state
    row = usage_row(Applied(record, nothing, history.state, Verdict("superseded", "")))
    assert row is not None and row[8] == ""
    assert usage_row(Applied(record, nothing, history.state, Verdict("rejected", ""))) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(b'{"a":1}', b'{"a":1}'), (b"\xff", None), (b'"\\u0000"', None), (None, None), (b"[1,", None)],
)
def test_what_is_not_understood_is_shown_where_it_can_be(value: bytes | None, shown: bytes | None) -> None:
    history = History().idle()
    record = history.records[0]._replace(data=None, problem=Problem(False, "other"))
    row = event_row(Applied(record, history.state, history.state, Verdict("ignored")), 0, value)
    assert row[DATA] == shown
    broken = record._replace(problem=Problem(True, "broken"))
    assert event_row(Applied(broken, history.state, history.state, Verdict("rejected")), 0, value)[DATA] is None


def test_a_bare_row_has_nothing_that_a_database_refuses() -> None:
    history = History().idle()
    record = history.records[0]._replace(actor="user:\x00", cause="\x00")
    row = bare_event_row(Applied(record, history.state, history.state, Verdict("applied")), 3)
    assert "\x00" not in "".join(str(value) for value in row)
    assert row[8] == "user:\u2400" and row[3] == 3 and row[DATA] is None


def test_a_rewind_and_a_summary_hide_what_came_before_them() -> None:
    history = History().ended_turn().ended_turn()
    history.apply(ThreadRewound(to_turn=1), USER)
    rewound = history.state.seq
    assert [(row["turn"], row.get("rewound_at")) for row in rows(history, "items")] == [
        (1, None),
        (1, None),
        (2, rewound),
        (2, rewound),
    ]
    history.apply(ThreadRewound(to_turn=1), USER)
    history.apply(compacted(history.state))
    hidden = [(row["kind"], row.get("rewound_at"), row.get("compacted_at")) for row in rows(history, "items")]
    seq = history.state.seq
    assert hidden == [
        ("message", None, seq),
        ("message", None, seq),
        ("message", rewound, seq),
        ("message", rewound, seq),
        ("summary", None, None),
    ]


def test_an_input_that_is_withdrawn_stays_in_history() -> None:
    history = History().idle()
    history.apply(submitted("i1"), USER)
    history.apply(InputWithdrawn(input="i1"), USER)
    (item,) = rows(history, "items")
    assert (item["dropped"], item["place"]) == ("input.withdrawn", None)


def test_a_thread_shows_where_it_comes_from() -> None:
    history = History()
    lineage = Lineage(
        kind="child", parent="t-0", seq=7, chain=NO_HASH, call="1.1.0", plan_version=2, task="look", depth=3
    )
    history.apply(created(lineage=lineage), USER)
    (thread,) = rows(history, "threads")
    names = ("lineage_kind", "parent", "parent_seq", "parent_call", "parent_plan_version", "parent_task", "depth")
    assert [thread[name] for name in names] == ["child", "t-0", 7, "1.1.0", 2, "look", 3]
    assert rows(History().idle(), "threads")[0]["depth"] == 0


def test_a_cancel_settles_calls_that_it_does_not_name() -> None:
    history = History().with_calls()
    history.apply(cancel_requested(history.state), USER)
    (call,) = rows(history, "tool_calls")
    assert (call["outcome"], call["settled_seq"], call["decision"]) == ("cancelled", history.state.seq, None)
