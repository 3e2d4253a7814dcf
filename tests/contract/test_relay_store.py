"""What the relay of effects asks of its database, in Postgres and in memory."""

import pytest

from schemas.ids import ThreadId, ThreadKey
from schemas.other_topics.effects import EffectRow, encode_effect
from schemas.topics import THREAD_EVENTS
from services.projector.applying.effects import RelayStore, Rows, effect_row
from services.projector.generations.errors import GenerationGoneError, StoreAwayError
from services.projector.generations.store import Generation
from tests.support.memory.relay import MemoryRelayStore
from tests.support.memory.views import MemoryViews
from tests.support.recorded import histories
from tests.support.recorded.histories import KEY, plain_turn
from tests.support.stored.view_harness import CLUSTER, HOME, Views, a_turn, advance, batch_of, read_of

TOPIC = THREAD_EVENTS.name
OTHER = ThreadKey(KEY.tenant, ThreadId("other"))


async def live(views: Views) -> Generation:
    return await views.stores.live(CLUSTER)


# Positions


async def test_there_is_no_position_until_it_begins_somewhere(views: Views) -> None:
    relay = views.relay
    assert await relay.positions(TOPIC, CLUSTER, [HOME, 4]) == {}
    await relay.move(TOPIC, CLUSTER, {HOME: 7})
    assert await relay.positions(TOPIC, CLUSTER, [HOME]) == {}
    await relay.begin(TOPIC, CLUSTER, {HOME: 0, 4: 12})
    assert await relay.positions(TOPIC, CLUSTER, [HOME, 4, 5]) == {HOME: 0, 4: 12}
    assert await relay.positions(TOPIC, CLUSTER, [4]) == {4: 12}
    assert await relay.positions("another", CLUSTER, [HOME, 4]) == {}


async def test_a_position_moves_forward_only_and_begins_where_it_is_told_to(views: Views) -> None:
    relay = views.relay
    await relay.begin(TOPIC, CLUSTER, {HOME: 5, 4: 5})
    await relay.move(TOPIC, CLUSTER, {HOME: 9, 4: 3})
    assert await relay.positions(TOPIC, CLUSTER, [HOME, 4]) == {HOME: 9, 4: 5}
    await relay.begin(TOPIC, CLUSTER, {HOME: 2})
    assert await relay.positions(TOPIC, CLUSTER, [HOME, 4]) == {HOME: 2, 4: 5}


async def test_a_position_of_another_cluster_says_nothing_here(views: Views) -> None:
    relay = views.relay
    await relay.begin(TOPIC, "another", {HOME: 5})
    assert await relay.positions(TOPIC, CLUSTER, [HOME]) == {}
    await relay.move(TOPIC, CLUSTER, {HOME: 9})
    assert await relay.positions(TOPIC, "another", [HOME]) == {HOME: 5}
    await relay.begin(TOPIC, CLUSTER, {HOME: 1})
    assert await relay.positions(TOPIC, CLUSTER, [HOME]) == {HOME: 1}
    assert await relay.positions(TOPIC, "another", [HOME]) == {}


async def test_positions_outlive_the_views(views: Views) -> None:
    await advance(views, a_turn())
    await views.relay.begin(TOPIC, CLUSTER, {HOME: 5})
    await views.drop()
    assert await views.relay.positions(TOPIC, CLUSTER, [HOME]) == {HOME: 5}


# Rows


async def test_rows_are_read_by_position_as_they_were_written(views: Views) -> None:
    history = plain_turn(histories.History())
    records = read_of(history, histories.History(OTHER).idle())
    await advance(views, records)
    generation, end = await live(views), len(records)
    expected = [encode_effect(effect_row(row)) for row in batch_of(records).rows.events]
    found = await views.relay.read(generation, HOME, 0, end)
    assert (encoded(found.rows), found.to_offset) == (expected, end)
    assert [row.offset for row in found.rows] == list(range(end))
    found = await views.relay.read(generation, HOME, 3, 7)
    assert (encoded(found.rows), found.to_offset) == (expected[3:7], 7)


async def test_rows_end_where_the_generation_is(views: Views) -> None:
    records = a_turn()
    await advance(views, records[:5])
    generation = await live(views)
    assert offsets(await views.relay.read(generation, HOME, 2, 100)) == ([2, 3, 4], 5)
    assert offsets(await views.relay.read(generation, HOME, 5, 100)) == ([], 5)
    assert offsets(await views.relay.read(generation, HOME, 7, 100)) == ([], 5)
    assert offsets(await views.relay.read(generation, HOME + 1, 2, 100)) == ([], 0)
    assert offsets(await views.relay.read(generation, 77, 2, 100)) == ([], 2)


async def test_a_record_without_a_seq_has_no_row(views: Views) -> None:
    records = a_turn()
    records[3] = records[3]._replace(key=b"nobody")
    await advance(views, records)
    assert offsets(await views.relay.read(await live(views), HOME, 2, 5)) == ([2, 4], 5)
    assert offsets(await views.relay.read(await live(views), HOME, 3, 4)) == ([], 4)


async def test_rows_of_a_generation_that_is_gone_cannot_be_read(views: Views) -> None:
    await advance(views, a_turn())
    gone = await live(views)
    await views.drop()
    with pytest.raises(GenerationGoneError):
        await views.relay.read(gone, HOME, 0, 5)
    await advance(views, a_turn())
    assert offsets(await views.relay.read(await live(views), HOME, 0, 2)) == ([0, 1], 2)


async def test_a_store_that_is_away_says_so_and_goes_on_afterwards(views: Views) -> None:
    await advance(views, a_turn())
    generation, relay = await live(views), views.relay
    await relay.begin(TOPIC, CLUSTER, {HOME: 1})
    await views.go_away()
    for asked in (
        relay.positions(TOPIC, CLUSTER, [HOME]),
        relay.begin(TOPIC, CLUSTER, {HOME: 2}),
        relay.move(TOPIC, CLUSTER, {HOME: 3}),
        relay.read(generation, HOME, 0, 2),
    ):
        with pytest.raises(StoreAwayError):
            await asked
    await views.come_back()
    assert await relay.positions(TOPIC, CLUSTER, [HOME]) == {HOME: 1}
    assert offsets(await relay.read(generation, HOME, 0, 2)) == ([0, 1], 2)


def encoded(rows: object) -> list[object]:
    assert isinstance(rows, list)
    return [encode_effect(row) for row in rows]


def offsets(found: Rows) -> tuple[list[int], int]:
    rows: list[EffectRow] = list(found.rows)
    return [row.offset for row in rows], found.to_offset


# What only the twin can be made to do


async def test_a_crash_takes_positions_that_were_moved_last() -> None:
    views = MemoryViews()
    relay: RelayStore = MemoryRelayStore(views)
    await relay.begin(TOPIC, CLUSTER, {HOME: 0})
    for offset in (1, 2, 3):
        await relay.move(TOPIC, CLUSTER, {HOME: offset})
    await relay.move(TOPIC, CLUSTER, {HOME: 2})
    assert views.lose_last(2) == 2
    assert await relay.positions(TOPIC, CLUSTER, [HOME]) == {HOME: 1}
    views.drop(altogether=True)
    assert await relay.positions(TOPIC, CLUSTER, [HOME]) == {}
