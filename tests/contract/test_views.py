"""What the views promise to those who read them, in Postgres and in memory.

`test_both_answer_alike` asks both the same; the other tests say what the answers have to be.
"""

import asyncio
import time

import pytest

from schemas.envelope import format_time
from schemas.events import InputWithdrawn, PlanProposed, ThreadDescribed
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Incoming
from services.chassis.threads.states import StatesUnavailableError
from services.ingest.commands.accepting.accept import CallFacts
from services.ingest.commands.accepting.plans import PlanFacts
from services.ingest.commands.existence import ThreadRow
from services.ingest.commands.refusals import Decided, InputStanding
from services.ingest.http.problems import VIEWS_UNAVAILABLE, ProblemError
from services.projector.projections import batch
from services.projector.projections.changes import Applied, Change
from tests.support.recorded import histories
from tests.support.recorded.histories import KEY, USER, plain_turn, submitted
from tests.support.recorded.plans import LOOK, planned
from tests.support.recorded.walks import as_read
from tests.support.stored.view_harness import (
    HOME,
    InMemory,
    InPostgres,
    Views,
    a_turn,
    advance,
    as_told,
    folded,
    read_of,
    told,
)
from tests.support.worlds.projector import key_of, random_records

TOPIC = THREAD_EVENTS.name
OTHER = ThreadKey(TenantId("other"), KEY.thread)
UNKNOWN = ThreadKey(KEY.tenant, ThreadId("unknown"))
NO_SUCH_ID = EventId("00000000-0000-4000-8000-000000000000")


# Transcripts


async def test_a_transcript_is_what_the_model_still_sees(views: Views) -> None:
    history = plain_turn(histories.History())
    history.apply(submitted("i2", text="and then?"), USER)
    await advance(views, read_of(history))
    cold = await views.transcripts.load(KEY)
    assert cold is not None
    assert cold.seq == history.state.seq
    assert [(item.kind, item.place is None) for item in cold.transcript.items] == [
        ("message", False),
        ("message", False),
        *[("tool_call", False)] * 2,
        *[("tool_result", False)] * 2,
        ("message", False),
        ("message", True),
    ]
    assert cold.transcript.items[0].content["content"] == [{"type": "text", "text": "Make the tests pass."}]


async def test_of_what_was_summed_up_the_summary_is_left(views: Views) -> None:
    history = plain_turn(histories.History())
    history.apply(histories.compacted(history.state))
    await advance(views, read_of(history))
    cold = await views.transcripts.load(KEY)
    assert cold is not None
    assert [(item.kind, item.seq) for item in cold.transcript.items] == [("summary", history.state.seq)]
    assert cold.transcript.summary_seq == history.state.seq


async def test_a_thread_without_a_row_has_no_transcript(views: Views) -> None:
    assert await views.transcripts.load(KEY) is None
    await advance(views, a_turn())
    assert await views.transcripts.load(UNKNOWN) is None
    assert await views.transcripts.load(OTHER) is None
    await views.go_away()
    assert await views.transcripts.load(KEY) is None


async def test_a_thread_whose_items_are_not_kept_up_has_no_transcript(
    views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state goes on: what is stored of what was said ends before it, and would be taken for all of it."""
    history = plain_turn(histories.History())
    records = read_of(history)
    await advance(views, records)
    assert await views.transcripts.load(KEY) is not None

    def no_rows_afterwards(_: Applied) -> list[Change]:
        raise ValueError

    monkeypatch.setattr(batch, "item_changes", no_rows_afterwards)
    history.apply(submitted("i2", text="and then?"), USER)
    await advance(views, read_of(history))
    assert await views.transcripts.load(KEY) is None


# What commands ask


async def test_a_thread_row_comes_with_the_position(views: Views) -> None:
    history = plain_turn(histories.History())
    history.apply(submitted("i2"), USER)
    records = read_of(history)
    await advance(views, records)
    end = len(records)
    assert await views.commands.thread_row(KEY, HOME) == ThreadRow(end, end - 1, exists=True, queued=1, seq=end)
    assert await views.commands.thread_row(UNKNOWN, HOME) == ThreadRow(end, -1, exists=False, queued=0, seq=0)
    assert await views.commands.thread_row(UNKNOWN, 7) == ThreadRow(0, -1, exists=False, queued=0, seq=0)


async def test_a_thread_of_which_nothing_took_effect_does_not_exist(views: Views) -> None:
    history = histories.History()
    history.append(submitted("i1"), USER)
    await advance(views, read_of(history))
    row = await views.commands.thread_row(KEY, HOME)
    assert (row.exists, row.seq, row.offset) == (False, 1, 0)


async def test_waiting_ends_with_the_position_or_with_its_time(views: Views) -> None:
    records = a_turn()
    await advance(views, records[:5])
    assert await views.commands.wait_for(HOME, 5, 5)
    started = time.monotonic()
    assert not await views.commands.wait_for(HOME, 6, 0.1)
    assert time.monotonic() - started >= 0.1
    waiting = asyncio.create_task(views.commands.wait_for(HOME, len(records), 5))
    await asyncio.sleep(0)
    await advance(views, records)
    assert await waiting


async def test_the_first_record_with_an_id_counts(views: Views) -> None:
    history = histories.History().idle()
    event_id = EventId("b31d7c7e-3d1c-4a52-8b5a-6a5ab4a64a3d")
    history.append(submitted("i1"), "service:other", event_id)
    history.append(submitted("i1"), USER, event_id)
    history.append(submitted("i1", text="another"), USER, event_id)
    records = read_of(history)
    await advance(views, records)
    found = await views.commands.find(KEY, HOME, [event_id, NO_SUCH_ID])
    assert list(found.first) == [event_id]
    stored, record = found.first[event_id], history.records[2]
    assert (stored.id, stored.kind, stored.data_hash) == (event_id, "input.submitted", record.data_hash)
    assert (stored.partition, stored.offset, stored.seq) == (HOME, 2, 3)
    assert (stored.effect, stored.reason) == history.verdicts[2]
    assert found.begins_at is None
    assert await views.commands.find_after(KEY, event_id, HOME, 3, 5) == stored
    assert await views.commands.find_after(KEY, event_id, HOME, 4, 0.05) is None


async def test_a_thread_without_records_begins_at_the_position(views: Views) -> None:
    records = a_turn()
    await advance(views, records)
    assert await views.commands.find(UNKNOWN, HOME, [NO_SUCH_ID]) == ({}, len(records))
    assert await views.commands.find(UNKNOWN, 7, []) == ({}, 0)


async def test_a_call_s_facts_are_its_row(views: Views) -> None:
    history = histories.History().with_calls()
    await advance(views, read_of(history))
    assert await views.commands.call_facts(KEY, "1.1.0") == CallFacts("shell", 0, None, None)
    history = histories.History(OTHER).with_running_call()
    records = read_of(histories.History().with_calls(), history)
    await advance(views, records)
    call = history.only_call
    assert await views.commands.call_facts(OTHER, "1.1.0") == CallFacts("shell", 1, "builtin", call.claim)
    assert await views.commands.call_facts(OTHER, "1.1.1") is None


async def test_a_call_s_facts_go_on_where_its_row_stands_still(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    history = histories.History().with_calls()
    known = len(history.records)

    def no_rows_afterwards(applied: Applied) -> list[Change]:
        assert applied.after.seq <= known
        return []

    monkeypatch.setattr(batch, "item_changes", no_rows_afterwards)
    history.apply(histories.approved(history.only_call), USER)
    history.apply(histories.dispatched(history.only_call, pool="client"))
    await advance(views, read_of(history))
    call = history.only_call
    assert await views.commands.call_facts(KEY, call.call) == CallFacts("shell", 1, "client", call.claim)
    standing = await views.commands.call_standing(KEY, call.call)
    assert standing is not None and standing.status == "proposed"


async def test_a_call_that_left_the_state_is_known_from_its_row(views: Views) -> None:
    history = plain_turn(histories.History(), calls=1).in_turn("i2")
    assert "1.1.0" not in history.state.calls
    claim = next(record.id for record in history.records if record.kind == "tool_call.started")
    await advance(views, read_of(history))
    assert await views.commands.call_facts(KEY, "1.1.0") == CallFacts("shell", 1, "builtin", claim)


async def test_a_call_s_standing_says_what_was_decided_and_what_came_of_it(views: Views) -> None:
    history = histories.History().with_calls()
    call = history.only_call
    history.apply(histories.approved(call, by=USER), USER)
    approved_at = format_time(history.now_ms)
    history.apply(histories.dispatched(history.only_call))
    history.apply(histories.claimed(history.only_call), histories.EXECUTOR)
    history.apply(histories.lost(history.only_call))
    history.apply(histories.resolved(history.only_call, "again"), USER)
    resolved_at = format_time(history.now_ms)
    records = read_of(history)
    await advance(views, records)
    standing = await views.commands.call_standing(KEY, call.call)
    assert standing is not None
    assert (standing.tool, standing.status, standing.attempt) == ("shell", "repeatable", 1)
    assert standing.approval == Decided(USER, "approved", approved_at, None)
    assert standing.resolution == Decided(USER, "again", resolved_at, "looked at the ledger")
    assert (standing.outcome, standing.settled_at, standing.settled_by) == (None, None, None)
    assert await views.commands.call_standing(KEY, "1.1.9") is None

    turn = plain_turn(histories.History(OTHER), calls=1, result={"b": 1, "aa": [2]})
    records += [record._replace(offset=len(records) + n) for n, record in enumerate(as_read(turn, HOME))]
    await advance(views, records)
    standing = await views.commands.call_standing(OTHER, call.call)
    assert standing is not None and standing.settled_by is not None
    settled = next(r for r in turn.records if r.kind == "tool_call.finished")
    assert (standing.status, standing.outcome, standing.result) == ("settled", "succeeded", {"aa": [2], "b": 1})
    assert (standing.settled_by.id, standing.settled_at) == (settled.id, format_time(settled.time_ms))


async def test_an_input_s_standing_says_what_took_it(views: Views) -> None:
    history = histories.History().in_turn("i1")
    history.apply(submitted("i2"), USER)
    history.apply(submitted("i3"), USER)
    history.apply(InputWithdrawn(input="i3"), USER)
    await advance(views, read_of(history))
    for name, status, turn in (("i1", "taken", 1), ("i2", "queued", None), ("i3", "withdrawn", None)):
        assert await views.commands.input_standing(KEY, name) == InputStanding(name, status, turn, None)
    assert await views.commands.input_standing(KEY, "i9") is None


async def test_a_plan_s_standing_says_who_answered(views: Views) -> None:
    history = planned(histories.History())
    await advance(views, read_of(history))
    shown = [await views.commands.plan_standing(KEY, version) for version in range(1, 6)]
    told = [None if each is None else (each.status, each.decided and each.decided[:2]) for each in shown]
    assert told == [
        ("superseded", (USER, "approved")),
        ("rejected", (USER, "rejected")),
        ("superseded", None),
        ("in_force", (USER, "approved")),
        None,
    ]
    rejected = shown[1]
    assert rejected is not None and rejected.decided is not None and rejected.decided.reason == "not yet"
    assert await views.commands.plan_facts(KEY, NO_SUCH_ID) == PlanFacts(4, None)


async def test_a_proposal_that_came_before_is_known_by_its_command(views: Views) -> None:
    history = histories.History().idle()
    for version in (1, 2):
        history.apply(PlanProposed(plan_version=version, tasks=(LOOK,)), USER)
    ids = [record.id for record in history.records if record.kind == "plan.proposed"]
    await advance(views, read_of(history))
    assert [await views.commands.plan_facts(KEY, each) for each in ids] == [PlanFacts(2, 1), PlanFacts(2, 2)]
    assert await views.commands.plan_facts(OTHER, ids[0]) == PlanFacts(0, None)


@pytest.mark.parametrize("is_away", [False, True])
async def test_commands_are_told_that_there_are_no_views(views: Views, is_away: bool) -> None:
    if is_away:
        await advance(views, a_turn())
        await views.go_away()
    commands = views.commands
    for asked in (
        commands.thread_row(KEY, HOME),
        commands.wait_for(HOME, 1, 5),
        commands.find(KEY, HOME, [NO_SUCH_ID]),
        commands.find_after(KEY, NO_SUCH_ID, HOME, 1, 5),
        commands.call_facts(KEY, "1.1.0"),
        commands.call_standing(KEY, "1.1.0"),
        commands.input_standing(KEY, "i1"),
        commands.plan_facts(KEY, NO_SUCH_ID),
        commands.plan_standing(KEY, 1),
    ):
        with pytest.raises(ProblemError) as raised:
            await asked
        assert raised.value.problem.type is VIEWS_UNAVAILABLE


# History


def a_history() -> list[Incoming]:
    """A turn, a duplicate, a record that cannot be read, one of an unknown type, another thread's."""
    history = plain_turn(histories.History())
    history.append(submitted("i1"), USER)
    history.append(ThreadDescribed(title="t"), USER)
    history.append(ThreadDescribed(title="u"), USER)
    records = read_of(history, histories.History(OTHER).idle())
    broken, unknown = len(history.records) - 2, len(history.records) - 1
    headers = dict(records[unknown].headers) | {"ce_type": b"org.example.other.v1", "ce_actor": b"service:other"}
    records[broken] = records[broken]._replace(value=b'{"title":')
    records[unknown] = records[unknown]._replace(headers=tuple(headers.items()))
    return records


async def test_pages_are_the_records_between_two_cursors(views: Views) -> None:
    records = a_history()
    await advance(views, records)
    history = views.history()
    assert await told(history) == folded(records[:-1])
    assert await told(history, OTHER) == folded(records[-1:])
    assert [record.seq for record in await history.page(KEY, 2, 6, 1_000)] == [3, 4, 5, 6]
    assert [record.seq for record in await history.page(KEY, 2, 6, 3)] == [3, 4, 5]
    assert await history.page(KEY, 1_000, 2_000, 10) == []


async def test_a_page_says_whether_it_is_the_last(views: Views) -> None:
    records = a_history()
    await advance(views, records)
    history, count = views.history(), len(records) - 1
    page = await history.page_of(KEY, 0, count, applied_only=False)
    assert (len(page.records), page.next_after, page.is_end) == (count, count, True)
    page = await history.page_of(KEY, 0, count - 1, applied_only=False)
    assert (len(page.records), page.next_after, page.is_end) == (count - 1, count - 1, False)
    applied = [record.seq for record in await history.page(KEY, 0, 1_000, 1_000) if record.effect == "applied"]
    assert len(applied) == count - 3
    page = await history.page_of(KEY, 0, len(applied), applied_only=True)
    assert ([record.seq for record in page.records], page.is_end) == (applied, True)
    assert await history.page_of(KEY, count, 10, applied_only=False) == ([], count, True)


async def test_a_page_ends_where_it_becomes_large(views: Views) -> None:
    await advance(views, a_turn())
    history = views.history(page_bytes_max=1)
    assert [record.seq for record in await history.page(KEY, 4, 1_000, 100)] == [5]
    page = await history.page_of(KEY, 4, 100, applied_only=False)
    assert ([record.seq for record in page.records], page.next_after, page.is_end) == ([5], 5, False)


async def test_a_record_is_found_by_its_position(views: Views) -> None:
    records = a_turn()
    await advance(views, records)
    history = views.history()
    found = await history.at(KEY, HOME, 4)
    assert found is not None
    assert as_told([found]) == folded(records)[4:5]
    assert await history.at(KEY, HOME + 1, 4) is None
    assert await history.at(OTHER, HOME, 4) is None


async def test_history_is_empty_without_views_and_says_when_they_are_away(views: Views) -> None:
    history = views.history()
    assert await history.page(KEY, 0, 10, 10) == []
    assert await history.page_of(KEY, 3, 10, applied_only=True) == ([], 3, True)
    assert await history.at(KEY, HOME, 0) is None
    await advance(views, a_turn())
    await views.go_away()
    for asked in (history.page(KEY, 0, 9, 9), history.page_of(KEY, 0, 9, applied_only=True), history.at(KEY, HOME, 0)):
        with pytest.raises(StatesUnavailableError):
            await asked


# Both together


@pytest.mark.parametrize("seed", [1, 2])
async def test_both_answer_alike(postgres: InPostgres, seed: int) -> None:
    """Over threads in which anything happens, in batches of many sizes."""
    records, memory = random_records(seed), InMemory()
    start, sizes = 0, iter([1, 7, 120, 3, 50] * 100)
    while start < len(records):
        end = start + next(sizes)
        for views in (postgres, memory):
            await advance(views, records[start:end])
        start = end
    keys = [key_of(number) for number in range(12)]
    stored, held = postgres.states, memory.states
    assert await stored.load_threads(TOPIC, HOME, keys) == await held.load_threads(TOPIC, HOME, keys)
    assert await stored.load_active(TOPIC, HOME) == await held.load_active(TOPIC, HOME)
    for keys_max in (1, 1_000):
        found, expected = [await states.load_keys(TOPIC, HOME, keys_max) for states in (held, stored)]
        assert (found is None) == (expected is None) == (keys_max == 1)
        assert found is None or expected is None or sorted(found.keys) == sorted(expected.keys)
    for key in keys:
        assert await memory.transcripts.load(key) == await postgres.transcripts.load(key)
        events = await postgres.history().page(key, 0, 10_000, 10_000)
        assert as_told(await memory.history().page(key, 0, 10_000, 10_000)) == as_told(events)
        ids = [EventId(event.id) for event in events]
        assert await memory.commands.find(key, HOME, ids) == await postgres.commands.find(key, HOME, ids)
        assert await memory.commands.thread_row(key, HOME) == await postgres.commands.thread_row(key, HOME)
        for call in ("1.1.0", "1.1.1", "1.2.0", "2.1.0", "2.1.1"):
            assert await memory.commands.call_facts(key, call) == await postgres.commands.call_facts(key, call)
            standings = [await views.commands.call_standing(key, call) for views in (memory, postgres)]
            assert standings[0] == standings[1]
        assert await memory.commands.plan_facts(key, ids[0]) == await postgres.commands.plan_facts(key, ids[0])
        for version in range(1, 5):
            of_plan = [await views.commands.plan_standing(key, version) for views in (memory, postgres)]
            assert of_plan[0] == of_plan[1]
        for number in range(20):
            of_input = [await views.commands.input_standing(key, f"i{number}") for views in (memory, postgres)]
            assert of_input[0] == of_input[1]
