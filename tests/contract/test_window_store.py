"""What the worker of the operations windows asks of its database, in Postgres and in memory."""

import pytest

from services.projector.generations.errors import StoreAwayError
from services.projector.windows.windows import Cell, CellKey, OvertakenError, Position
from tests.support.stored.view_harness import CLUSTER, Views

MINUTE_MS = 60_000
NOW_MS = 1_790_000_040_000
KEY = CellKey("acme", NOW_MS, 3)
OTHER = CellKey("acme", NOW_MS + MINUTE_MS, 3)
BEGUN = Position(5, 9, NOW_MS)


def cell(counted_to: int, inputs: int = 1, waiting: int = 0) -> Cell:
    return Cell(counted_to, waiting, 0, {"inputs": inputs})


async def test_what_is_written_is_read_and_what_is_not_there_is_left_out(views: Views) -> None:
    store = views.windows
    assert await store.positions(CLUSTER, [3, 4]) == {}
    assert await store.load(CLUSTER, [KEY]) == {}
    await store.write(CLUSTER, {KEY: cell(8), OTHER: cell(7, waiting=2)}, {3: (Position(), BEGUN)})
    assert await store.positions(CLUSTER, [3, 4]) == {3: BEGUN}
    assert await store.load(CLUSTER, [KEY, OTHER, KEY._replace(tenant="beta")]) == {
        KEY: cell(8),
        OTHER: cell(7, waiting=2),
    }
    later = Position(9, 12, NOW_MS + 1)
    await store.write(CLUSTER, {KEY: cell(11, inputs=4)}, {3: (BEGUN, later)})
    assert await store.positions(CLUSTER, [3]) == {3: later}
    assert (await store.load(CLUSTER, [KEY]))[KEY] == cell(11, inputs=4)


async def test_a_batch_whose_answer_was_lost_is_written_once(views: Views) -> None:
    for _ in range(2):
        await views.windows.write(CLUSTER, {KEY: cell(8)}, {3: (Position(), BEGUN)})
    assert await views.windows.positions(CLUSTER, [3]) == {3: BEGUN}


async def test_who_was_overtaken_writes_nothing(views: Views) -> None:
    store = views.windows
    await store.write(CLUSTER, {KEY: cell(8)}, {3: (Position(), BEGUN)})
    for before in (Position(), Position(4, 8, NOW_MS)):
        with pytest.raises(OvertakenError):
            await store.write(
                CLUSTER,
                {KEY: cell(20, inputs=7), OTHER: cell(20)},
                {3: (before, Position(7, 21, NOW_MS)), 4: (Position(), Position(1, 1, NOW_MS))},
            )
    assert await store.positions(CLUSTER, [3, 4]) == {3: BEGUN}
    assert await store.load(CLUSTER, [KEY, OTHER]) == {KEY: cell(8)}


async def test_a_cell_does_not_go_back(views: Views) -> None:
    """Counted anew from the beginning, it is what it was once that has come as far."""
    store = views.windows
    await store.write(CLUSTER, {KEY: cell(8, inputs=3)}, {3: (Position(), BEGUN)})
    await store.forget_positions(CLUSTER, [3, 4])
    assert await store.positions(CLUSTER, [3]) == {}
    await store.write(CLUSTER, {KEY: cell(2)}, {3: (Position(), Position(1, 3, NOW_MS))})
    assert await store.load(CLUSTER, [KEY]) == {KEY: cell(8, inputs=3)}


async def test_old_cells_are_deleted_but_for_those_on_which_a_sum_rests(views: Views) -> None:
    store = views.windows
    old = [KEY._replace(minute_ms=NOW_MS - number * MINUTE_MS) for number in range(1, 4)]
    cells = {old[0]: cell(1), old[1]: cell(2, waiting=1), old[2]: cell(3), KEY: cell(4)}
    await store.write(CLUSTER, cells, {3: (Position(), BEGUN)})
    assert [await store.delete_before(NOW_MS, most) for most in (1, 5, 5)] == [1, 1, 0]
    assert (await store.load(CLUSTER, list(cells))).keys() == {old[1], KEY}


async def test_a_store_that_is_away_says_so_and_goes_on_afterwards(views: Views) -> None:
    store = views.windows
    await store.write(CLUSTER, {KEY: cell(8)}, {3: (Position(), BEGUN)})
    await views.go_away()
    for asked in (
        store.positions(CLUSTER, [3]),
        store.forget_positions(CLUSTER, [3]),
        store.load(CLUSTER, [KEY]),
        store.write(CLUSTER, {}, {3: (BEGUN, Position(6, 10, NOW_MS))}),
        store.delete_before(NOW_MS, 1),
    ):
        with pytest.raises(StoreAwayError):
            await asked
    await views.come_back()
    assert await store.positions(CLUSTER, [3]) == {3: BEGUN}
