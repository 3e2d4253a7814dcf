from collections import Counter

import pytest

from schemas.codec import decode
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.chassis.log.port import Incoming
from services.projector.columns import MERGED, THREADS
from services.projector.projections import batch as batch_module
from services.projector.projections.batch import Batch, Kept, Refused
from tests.support.recorded.bad_records import bad_records
from tests.support.recorded.histories import KEY, RUNTIME, USER, History, created, submitted, turn_recovered
from tests.support.recorded.plans import planned
from tests.support.recorded.walks import as_read
from tests.support.stored.view_tables import Projected
from tests.support.stored.views_equal import decode_incoming
from tests.support.worlds.projector import random_records


def take(records: list[Incoming], home: int = 0, known: Kept | None = None, refused: Refused | None = None) -> Batch:
    batch = Batch("thread-events", {KEY: known} if known else {}, lambda _: home, 1_000, refused)
    for incoming in records:
        batch.take(
            incoming, decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
        )
    batch.finish()
    return batch


def events_of(batch: Batch) -> list[tuple[int, str, object]]:
    return [(row[2], row[13], row[15]) for row in batch.rows.events]


def test_a_record_at_or_below_the_state_is_skipped() -> None:
    records = as_read(History().idle().ended_turn())
    half = take(records[:3])
    again = take(records, known=half.kept[KEY])
    assert [seq for seq, _, _ in events_of(again)] == list(range(4, len(records) + 1))


def test_an_unreadable_record_is_a_dead_letter_of_no_thread() -> None:
    batch = take([Incoming("thread-events", 0, 5, 1_000, b"no slash", b"{}", (("ce_id", b"x"),))])
    (letter,) = batch.rows.dead_letters
    assert letter[:6] == ("thread-events", 0, 5, None, None, None)
    assert "tenant/thread" in str(letter[6])
    assert batch.kept == {}


def test_a_broken_record_counts_in_its_thread_and_is_a_dead_letter() -> None:
    records = as_read(History().idle())
    records.append(records[0]._replace(offset=10, value=b'{"config":'))
    batch = take(records)
    assert events_of(batch)[1] == (2, "rejected", None)
    (letter,) = batch.dead
    assert (letter.key, letter.seq) == (KEY, 2)
    assert "sha256" in letter.reason


def test_a_record_of_an_unknown_type_is_shown_and_no_dead_letter() -> None:
    records = as_read(History().idle())
    headers = dict(records[0].headers) | {"ce_type": b"org.example.other.v1", "ce_actor": b"service:other"}
    batch = take([*records, records[0]._replace(offset=10, headers=tuple(headers.items()))])
    assert events_of(batch)[1] == (2, "ignored", records[0].value)
    assert batch.dead == []


def test_a_record_in_the_partition_of_others_is_a_dead_letter() -> None:
    records = as_read(History().idle())
    batch = take(records, home=7)
    assert [letter.reason for letter in batch.dead] == ["the key belongs to partition 7"]
    assert [letter.fault for letter in batch.dead] == ["wrong_partition"]
    assert batch.rows.events == [] and batch.kept == {}


def test_each_class_of_bad_records_is_told_apart() -> None:
    good = History().idle().encoded[0]
    bad = bad_records(KEY, good)
    batch = take(
        [
            Incoming("thread-events", 0, offset, 1_000, sent.key, sent.value, sent.headers)
            for offset, sent in enumerate(bad.values())
        ]
    )
    assert [letter.fault for letter in batch.dead] == list(bad)
    [keyless] = take([Incoming("thread-events", 0, 1, 1_000, None, good.value, good.headers)]).dead
    assert keyless.fault == "no_key"


def test_a_refused_record_quarantines_its_thread() -> None:
    history = History().idle()
    history.apply(submitted("i1"), USER)
    records = as_read(history)
    first = take(records[:1])
    refused = take(records[1:], known=first.kept[KEY], refused=Refused(0, records[1].offset, "no"))
    assert events_of(refused) == [(2, "applied", None)]
    assert refused.kept[KEY].quarantined == "seq 2: no"
    assert refused.kept[KEY].state == history.state
    assert refused.rows.new["items"] == {} and refused.rows.changed_threads == []
    assert [(letter.seq, letter.fault) for letter in refused.dead] == [(2, "row_refused")]

    history.append(created(), USER)
    after = take(as_read(history)[2:], known=refused.kept[KEY])
    assert [data for _, _, data in events_of(after)] == [None]
    assert after.rows.changed_threads == [] and after.dead == []
    assert after.kept[KEY] == Kept(history.state, "seq 2: no", is_stored=True)


def test_another_record_than_the_refused_is_shown() -> None:
    batch = take(as_read(History().idle()), refused=Refused(0, 77, "no"))
    assert len(batch.rows.new_threads) == 1 and batch.dead == []


def test_a_thread_whose_fold_fails_is_quarantined_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real, other = batch_module.fold, ThreadKey(TenantId("acme"), ThreadId("t-2"))  # type: ignore[attr-defined]  # the name that the module uses

    def fold(state, record):
        if record.key == KEY and state.seq == 1:
            raise KeyError("a bug")
        return real(state, record)

    monkeypatch.setattr(batch_module, "fold", fold)
    batch = take([*as_read(History().ended_turn()), *as_read(History(other).ended_turn())])
    kept = batch.kept[KEY]
    assert kept.quarantined == "seq 2: the fold failed: KeyError"
    assert kept.state.status == "active" and kept.state.seq > 2
    assert batch.kept[other].quarantined is None
    # What was shown before is still written: the thread as of its first record.
    assert [row[:2] for row in batch.rows.new_threads] == [KEY, other]
    assert batch.rows.new_threads[0][THREADS.columns.index("seq")] == 1
    assert batch.dead[0][1:3] == ("the fold failed: KeyError", "fold_failed")


def test_a_record_whose_rows_cannot_be_made_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "item_changes", lambda applied: [][applied.after.seq])
    batch = take(as_read(History().idle()))
    assert batch.kept[KEY].quarantined == "seq 1: its rows cannot be made: IndexError"
    assert batch.dead[0].fault == "rows_failed"
    assert batch.rows.new_threads == []
    assert len(batch.rows.new_states) == 1


def test_records_of_no_thread_leave_a_state_and_no_thread_row() -> None:
    history = History()
    history.append(submitted("i1"), USER)
    batch = take(as_read(history))
    assert events_of(batch)[0][1] == "rejected"
    assert batch.rows.new_threads == []
    assert len(batch.rows.new_states) == 1
    history.append(created(), USER)
    tables = Projected().project(as_read(history), 1)
    assert [row["seq"] for row in tables.all("threads")] == [2]


def test_a_recovery_is_seen_on_the_turn() -> None:
    history = History().in_step()
    history.apply(turn_recovered(history.state, "B"), RUNTIME)
    (turn,) = Projected().project(as_read(history)).all("turns")
    assert (turn["recovered_by"], turn["recovered_at"]) == ("B", history.now_ms)
    assert turn["status"] == "open"


def test_rows_go_out_in_the_order_of_their_columns() -> None:
    records, known = random_records(1), dict[ThreadKey, Kept]()
    records[15:15] = as_read(planned(History()), 3)
    counts: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(records), 20):
        batch = Batch("thread-events", known, lambda _: 3, 1_000)
        for incoming in records[start : start + 20]:
            batch.take(incoming, decode_incoming(incoming))
        known |= batch.kept
        rows = batch.rows
        for name, table in MERGED.items():
            for what, columns, made, written in (
                ("new", table.columns, rows.new[name], rows.new_rows(name)),
                ("changed", table.changed_columns, rows.changed[name], rows.changed_rows(name)),
            ):
                counts[name, what] += len(written)
                for row, (key, given) in zip(written, made.items(), strict=True):
                    named = dict(zip(columns, row, strict=True))
                    assert row[: len(key)] == key
                    assert {name: named[name] for name in given} == given
    assert len([count for count in counts.values() if count > 0]) == 2 * len(MERGED), counts
