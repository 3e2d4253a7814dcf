"""The fold is total: any records, with any fields, in any order, on any state."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import Record
from schemas.events import EVENTS
from schemas.state import NOTHING, ThreadState, dump_state, is_active, load_state, waits_for_others
from schemas.thread import TRANSITIONS, fold
from schemas.transcript import Transcript, transcript_changes
from tests.support.recorded.histories import IMPORTER, History, created, fold_all, plain_turn, submitted, turn_started
from tests.support.recorded.strategies import any_records


def some_states() -> list[ThreadState]:
    """Where records may land: each state of a plain turn, and of threads in trouble."""
    importing = History()
    importing.apply(created(importing=True), IMPORTER)
    importing.apply(submitted("i1"), IMPORTER)
    importing.apply(turn_started(importing.state), IMPORTER)
    histories = [plain_turn(History()), History().with_unknown_call(), History().with_running_call("pure"), importing]
    return [state for history in histories for state in history.states]


STATES = some_states()


@given(st.sampled_from(STATES), st.lists(any_records(), min_size=1, max_size=12))
def test_any_records_in_any_order_never_raise(state: ThreadState, records: list[Record]):
    transcript = Transcript()
    start, start_dumped = state, dump_state(state)
    for record in records:
        before, dumped = state, dump_state(state)
        state, verdict = fold(state, record)
        assert dump_state(before) == dumped
        assert state.seq == before.seq + 1
        assert (verdict.reason is None) == (verdict.effect == "applied")
        transcript.apply(transcript_changes(before, state, record, verdict))
        assert load_state(dump_state(state)) == state
        is_active(state)
        waits_for_others(state)
        if transcript.lacks_inherited:
            transcript.inherited = ()
        transcript.context()
    assert dump_state(start) == start_dumped
    again, verdicts = fold_all(load_state(start_dumped), records)
    assert again == state
    assert len(verdicts) == len(records)


@given(any_records())
def test_no_record_but_its_creation_makes_a_thread(record: Record):
    state, verdict = fold(NOTHING, record)
    assert (
        state.exists == (verdict.effect == "applied") == (record.kind == "thread.created" and record.data is not None)
    )


def test_every_event_has_a_row_in_the_table():
    assert set(TRANSITIONS) == set(EVENTS)
