"""The rows of any history: the same whatever the batching, and what the folds say."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import Record
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.transcript import Transcript
from services.chassis.log.port import Incoming
from services.projector.projections.batch import Batch, Kept
from tests.support.memory.tables import Tables, first_difference
from tests.support.memory.views import cold_transcript
from tests.support.recorded.contexts import CONTEXT_CHOICES, ContextChoice, apply_to, context_history, transcript_of
from tests.support.recorded.histories import KEY, History
from tests.support.recorded.strategies import any_records
from tests.support.recorded.walks import CHOICES, Choice, as_read, walk
from tests.support.stored.view_tables import Projected, Row

WALKS = st.lists(CHOICES, min_size=1, max_size=60)
OTHER = ThreadKey(TenantId("acme"), ThreadId("t-2"))


@given(WALKS, WALKS, st.lists(st.integers(1, 9), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_rows_do_not_depend_on_where_batches_begin(
    one: list[Choice], two: list[Choice], sizes: list[int], random: Any
) -> None:
    records = _merged([walk(one), walk(two, OTHER)], random)
    at_once = Projected().project(records)
    in_parts = Projected()
    rest = records
    while rest:
        for size in sizes:
            in_parts.project(rest[:size])
            rest = rest[size:]
        in_parts.start_again()
    assert first_difference(at_once.tables, in_parts.tables) is None


@given(WALKS)
def test_items_are_the_transcript(choices: list[Choice]) -> None:
    history = walk(choices)
    tables = Projected().project(as_read(history), 5)
    transcript = transcript_of(history)
    assert [_item(row) for row in tables.all("items")] == [
        (item.seq, item.part, item.kind, item.turn, item.step, item.place, item.content, item.digest, item.input)
        for item in sorted(transcript.items, key=lambda item: (item.seq, item.part))
    ]
    assert {row["input"] for row in tables.all("items") if row.get("dropped")} == transcript.dropped
    shown = [
        row
        for row in tables.all("items")
        if row["place"] is not None and row.get("rewound_at") is None and row.get("compacted_at") is None
    ]
    shown.sort(key=lambda row: (row["kind"] != "summary", row["place"], row["seq"], row["part"]))
    assert [_item(row)[:2] for row in shown] == [(item.seq, item.part) for item in transcript.context()]


@given(WALKS)
def test_rows_show_what_the_state_says(choices: list[Choice]) -> None:
    history = walk(choices)
    tables, state = Projected().project(as_read(history), 4), history.state
    assert [row["seq"] for row in tables.all("events")] == list(range(1, state.seq + 1))
    assert [(row["effect"], row["reason"]) for row in tables.all("events")] == history.verdicts
    assert [row["chain"] for row in tables.all("events")] == [after.chain for after in history.states[1:]]
    if not state.exists:
        assert tables.all("threads") == []
        return
    (thread,) = tables.all("threads")
    assert thread["status"] == state.status
    assert thread["seq"] == state.seq
    assert thread["turn"] == (state.turn.turn if state.turn else None)
    assert thread["title"] == state.title
    assert thread["labels"] == state.labels
    assert thread["config"] == state.config.model_dump(mode="json")
    assert thread["queued"] == len(state.queue)
    turns = tables.all("turns")
    assert [row["turn"] for row in turns] == list(range(1, state.last_turn + 1))
    for row in turns:
        is_open = state.turn is not None and state.turn.turn == row["turn"]
        assert (row["status"] == "ended") == (not is_open)
        assert (row["outcome"] is None) == is_open
    if state.turn is not None:
        assert turns[-1]["steps"] == state.turn.steps
        assert turns[-1]["input_tokens"] == state.turn.input_tokens
        assert turns[-1]["waited_ms"] == state.turn.waited_ms
    elif turns:
        assert turns[-1]["outcome"] == state.last_outcome
    calls = {row["call"]: row for row in tables.all("tool_calls")}
    for name, call in state.calls.items():
        assert calls[name]["status"] == call.status
        assert calls[name]["outcome"] == call.outcome
        assert calls[name]["attempts"] == call.attempt
        assert calls[name]["call_hash"] == call.call_hash
        assert call.settled or calls[name]["args"] == call.args
    for name, row in calls.items():
        assert (row["outcome"] is not None) == (row["settled_seq"] is not None) == (row["status"] == "settled")
        assert name in state.calls or row["status"] == "settled", row
    applied = [row for row in tables.all("usage") if row["effect"] == "applied" and row["kind"] == "step"]
    assert sum(row["input_tokens"] for row in applied) == sum(row["input_tokens"] for row in turns)
    steps = tables.all("steps")
    assert [row["finished_seq"] for row in steps if row["finished_seq"]] == [row["seq"] for row in applied]
    open_turn = state.turn.turn if state.turn is not None else None
    assert all(row["turn"] == open_turn for row in steps if row["status"] == "open")
    plan, versions = state.plan, {row["version"]: row["status"] for row in tables.all("plans")}
    assert sorted(versions) == list(range(1, plan.last_version + 1))
    assert [version for version in versions if versions[version] == "waiting"] == list(filter(None, [plan.waiting]))
    assert [version for version in versions if versions[version] == "in_force"] == list(filter(None, [plan.in_force]))
    tasks = [row for row in tables.all("tasks") if row["version"] == plan.in_force]
    assert {row["task"]: (row["status"], row["child"], row["left_out"], row["result"]) for row in tasks}.items() <= {
        name: (standing.status, standing.child, standing.left_out, standing.result)
        for name, standing in plan.tasks.items()
    }.items()
    left = [row["status"] for row in tables.all("tasks") if row["version"] != plan.in_force]
    assert not {"pending", "running"} & set(left)


@given(st.lists(any_records(), max_size=30))
@settings(max_examples=100)
def test_any_record_is_projected_without_a_failure(records: list[Record]) -> None:
    batch = Batch("thread-events", {}, lambda _: 0, dead_letter_bytes_max=10)
    for offset, record in enumerate(records):
        raw = Incoming("thread-events", 0, offset, record.time_ms, KEY.to_bytes(), b"{}", ())
        batch.take(raw, record._replace(offset=offset))
    batch.finish()
    assert [letter.reason for letter in batch.dead if "cannot be made" in letter.reason] == []
    assert all(kept == Kept(kept.state, None, is_stored=True) for kept in batch.kept.values())
    assert len(batch.rows.events) == len(records)


def _merged(histories: Sequence[History], random: Any) -> list[Incoming]:
    """Records of several threads in one partition: each thread's in their order."""
    queues = [as_read(history) for history in histories]
    merged: list[Incoming] = []
    while any(queues):
        queue = random.choice([queue for queue in queues if queue])
        merged.append(queue.pop(0)._replace(offset=len(merged)))
    return merged


def _item(row: Row) -> tuple[Any, ...]:
    names = ("seq", "part", "kind", "turn", "step", "place", "content", "digest", "input")
    return tuple([row[name] for name in names])


@given(CONTEXT_CHOICES, st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_the_items_that_are_shown_are_the_context_whatever_is_compacted_and_rewound(
    choices: list[ContextChoice], sizes: list[int]
) -> None:
    history = context_history(choices)
    projected, records, start = Projected(), as_read(history), 0
    for size in cycle(sizes):
        projected.project(records[start : start + size])
        start += size
        assert _shown(projected.tables) == _context(transcript_of(history, min(start, len(records))))
        if start >= len(records):
            break


@given(CONTEXT_CHOICES, st.integers(0, 200))
def test_a_transcript_loaded_midway_goes_on_as_a_whole_one(choices: list[ContextChoice], midway: int) -> None:
    history = context_history(choices)
    midway = 1 + midway % len(history.records)
    views = Projected().project(as_read(history)[:midway])
    cold = cold_transcript(views.tables, KEY)
    assert cold is not None and cold.seq == midway
    assert _context(cold.transcript) == _context(transcript_of(history, midway))
    apply_to(cold.transcript, history, midway)
    if not cold.transcript.lacks_items:
        assert _context(cold.transcript) == _context(transcript_of(history))


def _shown(tables: Tables) -> list[tuple[int, int]]:
    rows = [
        (row["kind"] != "summary", row["place"], place)
        for place, row in tables.of("items", KEY).items()
        if not {"rewound_at", "compacted_at", "dropped"} & row.keys() and "place" in row
    ]
    return [place for _, _, place in sorted(rows)]


def _context(transcript: Transcript) -> list[tuple[int, int]]:
    return [item[:2] for item in transcript.context()]
