"""What the projector's store promises, in Postgres and in memory: claims, the fence, all or nothing."""

import asyncio
from hashlib import sha256

import pytest

from schemas.events import FileChange
from schemas.ids import ThreadId, ThreadKey
from schemas.state import FOLD_VERSION
from schemas.topics import THREAD_EVENTS
from services.chassis.log_partitions import OtherPartitionsError
from services.projector.generations.errors import (
    UNCLAIMED,
    FenceError,
    GenerationGoneError,
    OtherLogError,
    RowRefusedError,
    StoreAwayError,
    StoredPosition,
)
from services.projector.generations.store import Claim, Generation, GenerationStore, Span
from services.projector.projections.batch import PROJECTION_VERSION, Kept
from tests.support.memory.views import MemoryViews
from tests.support.recorded import histories
from tests.support.recorded.histories import KEY
from tests.support.simulated.waiting import eventually
from tests.support.stored.view_harness import (
    CLUSTER,
    HOME,
    Views,
    a_turn,
    batch_of,
    folded,
    open_store,
    read_of,
    told,
)

TOPIC = THREAD_EVENTS.name
UNKNOWN = ThreadKey(KEY.tenant, ThreadId("unknown"))


# Generations


async def test_the_first_who_asks_makes_the_live_generation(views: Views) -> None:
    first = await views.stores.live(CLUSTER)
    assert first == Generation(1, FOLD_VERSION, PROJECTION_VERSION, CLUSTER, TOPIC)
    assert await views.stores.live(CLUSTER) == first
    assert await views.stores.open(first).positions() == {}


async def test_views_of_another_cluster_are_not_ours(views: Views) -> None:
    await views.stores.live("another")
    with pytest.raises(OtherLogError, match="another"):
        await views.stores.live(CLUSTER)


async def test_after_a_drop_there_is_another_generation_and_the_one_before_is_gone(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    claims = await store.claim([HOME], "A", CLUSTER)
    await views.drop()
    assert (await views.stores.live(CLUSTER)).number == 2
    for asked in (
        store.positions(),
        store.claim([HOME], "A", CLUSTER),
        store.load([KEY]),
        store.write(batch_of(records), [Span(HOME, claims[HOME].owner_epoch, 0, len(records))]),
    ):
        with pytest.raises(GenerationGoneError):
            await asked
    assert await (await open_store(views)).positions() == {}


async def test_a_log_keeps_its_number_of_partitions_also_where_the_views_are_dropped(views: Views) -> None:
    await views.stores.admit(CLUSTER, 12)
    await views.stores.admit("another", 64)
    await views.stores.live(CLUSTER)
    await views.drop()
    await views.stores.admit(CLUSTER, 12)
    with pytest.raises(OtherPartitionsError, match="64 partitions, and had 12"):
        await views.stores.admit(CLUSTER, 64)
    await views.stores.admit("another", 64)


# Claims and the fence


async def test_a_claim_takes_partitions_from_whoever_had_them(views: Views) -> None:
    store = await open_store(views)
    assert await store.claim([4, HOME], "A", CLUSTER) == {HOME: Claim(0, 1, CLUSTER), 4: Claim(0, 1, CLUSTER)}
    assert await store.claim([HOME], "B", "elsewhere") == {HOME: Claim(0, 2, CLUSTER)}
    assert await store.positions() == {HOME: StoredPosition(0, "B", 2), 4: StoredPosition(0, "A", 1)}


async def test_a_batch_moves_its_position_with_its_rows(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME], "A", CLUSTER)
    first, second = records[:5], records[5:]
    batch = batch_of(first)
    await store.write(batch, [Span(HOME, 1, 0, 5)])
    assert await store.load([KEY, UNKNOWN]) == batch.kept
    await store.write(batch_of(second, batch.kept), [Span(HOME, 1, 5, len(records))])
    assert await store.positions() == {HOME: StoredPosition(len(records), "A", 1)}
    assert await told(views.history()) == folded(records)


async def test_a_path_may_be_longer_than_an_entry_of_an_index(views: Views) -> None:
    """And as hard to compress as names are that somebody made up for that."""
    store = await open_store(views)
    history = histories.History().with_running_call()
    path = "/".join(sha256(f"{number}".encode()).hexdigest() for number in range(63))
    change = FileChange(path=path, after="a" * 64)
    history.apply(histories.finished(history.only_call).model_copy(update={"changes": (change,)}))
    records = read_of(history)
    await store.claim([HOME], "A", CLUSTER)
    await store.write(batch_of(records), [Span(HOME, 1, 0, len(records))])
    assert len(await told(views.history())) == len(records)


async def test_a_claim_tells_the_last_record_that_is_in_the_views(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME, 4], "A", CLUSTER)
    batch = batch_of(records[:5])
    await store.write(batch, [Span(HOME, 1, 0, 5, "the fifth")])
    claims = await store.claim([HOME, 4], "B", CLUSTER)
    assert claims == {HOME: Claim(5, 2, CLUSTER, "the fifth"), 4: Claim(0, 2, CLUSTER, "")}
    with pytest.raises(FenceError):
        await store.write(batch_of(records[5:], batch.kept), [Span(HOME, 1, 5, len(records), "of a zombie")])
    assert (await store.claim([HOME], "C", CLUSTER))[HOME].last_record == "the fifth"


async def test_a_batch_whose_answer_was_lost_is_written_once(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME], "A", CLUSTER)
    for _ in range(2):
        await store.write(batch_of(records), [Span(HOME, 1, 0, len(records))])
    assert len(await told(views.history())) == len(records)


async def test_who_was_taken_over_writes_nothing(views: Views) -> None:
    zombie, heir = await open_store(views), await open_store(views)
    records = a_turn()
    await zombie.claim([HOME, 4], "zombie", CLUSTER)
    await heir.claim([HOME], "heir", CLUSTER)
    with pytest.raises(FenceError) as raised:
        await zombie.write(batch_of(records), [Span(4, 1, 0, 7), Span(HOME, 1, 0, len(records))])
    assert raised.value.stored == {HOME: StoredPosition(0, "heir", 2)}
    assert raised.value.taken_over == {HOME}
    await nothing_is_written(views, heir)
    # Nor where the heir has written the very same.
    await heir.write(batch_of(records), [Span(HOME, 2, 0, len(records))])
    with pytest.raises(FenceError):
        await zombie.write(batch_of(records), [Span(HOME, 1, 0, len(records))])


async def test_what_does_not_begin_where_its_partition_is_is_not_written(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME, 4], "A", CLUSTER)
    with pytest.raises(FenceError) as raised:
        await store.write(batch_of(records), [Span(HOME, 1, 3, len(records))])
    assert (raised.value.stored, raised.value.taken_over) == ({HOME: StoredPosition(0, "A", 1)}, frozenset())
    with pytest.raises(FenceError) as raised:
        await store.write(batch_of(records), [Span(HOME, 1, 0, len(records)), Span(4, 1, 2, 3)])
    assert raised.value.stored == {4: StoredPosition(0, "A", 1)}
    with pytest.raises(FenceError) as raised:
        await store.write(batch_of(records), [Span(HOME, 1, 0, len(records)), Span(9, 1, 0, 3)])
    assert (raised.value.stored, raised.value.taken_over) == ({9: UNCLAIMED}, frozenset({9}))
    await nothing_is_written(views, store)


async def test_a_batch_of_which_a_part_is_stored_is_not_taken_for_written(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME, 4], "A", CLUSTER)
    await store.write(batch_of([]), [Span(4, 1, 0, 3)])
    with pytest.raises(FenceError) as raised:
        await store.write(batch_of(records), [Span(HOME, 1, 0, len(records)), Span(4, 1, 0, 3)])
    assert raised.value.stored == {4: StoredPosition(3, "A", 1)}
    assert await told(views.history()) == []


async def test_a_refused_row_leaves_nothing_of_its_batch(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME], "A", CLUSTER)
    batch = batch_of(records[:5])
    await store.write(batch, [Span(HOME, 1, 0, 5)])
    # With a row that is there already, in the midst of others.
    again = batch_of([*records[5:8], records[4]._replace(offset=8)], batch.kept)
    again.rows.events[-1] = batch.rows.events[-1]
    with pytest.raises(RowRefusedError):
        await store.write(again, [Span(HOME, 1, 5, 9)])
    assert await store.positions() == {HOME: StoredPosition(5, "A", 1)}
    assert await store.load([KEY]) == batch.kept
    assert await told(views.history()) == folded(records[:5])


async def test_a_store_that_is_away_says_so_and_goes_on_afterwards(views: Views) -> None:
    store = await open_store(views)
    records = a_turn()
    await store.claim([HOME], "A", CLUSTER)
    await views.go_away()
    for asked in (
        views.stores.live(CLUSTER),
        store.positions(),
        store.claim([HOME], "A", CLUSTER),
        store.load([KEY]),
        store.write(batch_of(records), [Span(HOME, 1, 0, len(records))]),
    ):
        with pytest.raises(StoreAwayError):
            await asked
    await views.come_back()
    await nothing_is_written(views, store)
    await store.write(batch_of(records), [Span(HOME, 1, 0, len(records))])
    assert (await store.positions())[HOME].next_offset == len(records)


async def nothing_is_written(views: Views, store: GenerationStore) -> None:
    assert {at.next_offset for at in (await store.positions()).values()} == {0}
    assert await store.load([KEY]) == {}
    assert await told(views.history()) == []


# What only the twin can be made to do


async def test_a_crash_takes_the_last_batches_and_leaves_the_claims() -> None:
    views = MemoryViews()
    store = views.open(await views.live(CLUSTER))
    records = a_turn()
    await store.claim([HOME], "A", CLUSTER)
    known: dict[ThreadKey, Kept] = {}
    for offset in range(8):
        batch = batch_of(records[offset : offset + 1], known)
        known |= batch.kept
        await store.write(batch, [Span(HOME, 1, offset, offset + 1)])
        if offset == 1:
            assert views.lose_last(0) == 0
            await store.claim([4], "A", CLUSTER)
    assert views.lose_last(2) == 2
    assert await store.positions() == {HOME: StoredPosition(6, "A", 1), 4: StoredPosition(0, "A", 1)}
    assert await told(views) == folded(records[:6])
    assert (await store.load([KEY]))[KEY].state.seq == 6
    # What was committed before a claim is as durable as the claim.
    assert views.lose_last(100) == 4
    assert (await store.positions())[HOME].next_offset == 2


async def test_what_a_crash_meets_on_its_way_gets_no_answer() -> None:
    gates = [asyncio.Event() for _ in range(4)]
    waiting = iter(gates)

    async def pause() -> None:
        await next(waiting).wait()

    views = MemoryViews()
    store = views.open(await views.live(CLUSTER))
    await store.claim([HOME], "A", CLUSTER)
    views.pause = pause
    records = a_turn()
    written = asyncio.create_task(store.write(batch_of(records[:5]), [Span(HOME, 1, 0, 5)]))
    gates[0].set()
    await eventually(lambda: views.next_offset(HOME) == 5)
    views.lose_last(0)
    gates[1].set()
    with pytest.raises(StoreAwayError):
        await written
    assert views.next_offset(HOME) == 5
    written = asyncio.create_task(store.write(batch_of(records[5:6]), [Span(HOME, 1, 5, 6)]))
    await asyncio.sleep(0)
    views.lose_last(0)
    gates[2].set()
    with pytest.raises(StoreAwayError):
        await written
    assert views.next_offset(HOME) == 5
