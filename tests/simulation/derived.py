"""What must hold of all that the projector makes of the log: the views, dead letters, effects."""

from collections.abc import Iterator

from schemas.other_topics.effects import decode_effect, encode_effect
from schemas.other_topics.windows import MINUTE_MS, is_counted
from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS_DLQ
from services.chassis.log.port import Incoming
from services.projector.applying.effects import effect_row
from services.projector.projections import events
from services.projector.windows.windows import NAMES_MAX, Cell, CellKey, count_effect
from tests.simulation.invariants import Broken, Run, invariant
from tests.simulation.memo import decode_incoming
from tests.simulation.world import SimulationWorld
from tests.support.stored.views_equal import assert_views_equal
from tests.support.worlds.services import TOPIC

PARTITION, OFFSET = (events.COLUMNS.index(name) for name in ("partition", "offset"))


@invariant
def views_equal_a_fold_from_zero(run: Run) -> Iterator[Broken]:
    world = run.world
    partitions = range(world.options.partitions)
    try:
        assert_views_equal(
            world.store,
            {partition: world.broker.records(TOPIC, partition) for partition in partitions},
            world.partition_of,
            decode_incoming,
        )
    except AssertionError as error:
        yield Broken(str(error))


@invariant
def views_stand_still_where_the_database_refuses_a_record(run: Run) -> Iterator[Broken]:
    """Of its thread, and of no other; with a dead letter, which is on its topic as well."""
    tables = run.world.store.tables
    assert tables is not None
    for key in run.threads:
        row = tables.state(key)
        if row is not None and (row.quarantined is not None) != run.is_set_aside(key):
            yield Broken(f"its views say {row.quarantined}", key)
    told = {at for partition in range(run.world.options.partitions) for at in _dead_letters_told(run.world, partition)}
    kept = {(whose[1], *place) for whose, rows in tables.groups("dead_letters").items() for place in rows}
    if told != kept:
        yield Broken(f"dead letters in the views: {sorted(kept)}, on their topic: {sorted(told)}")


def _dead_letters_told(world: SimulationWorld, partition: int) -> Iterator[tuple[int, int]]:
    """Partition and offset of each; some come twice."""
    for letter in world.broker.records(THREAD_EVENTS_DLQ.name, partition):
        headers = dict(letter.headers)
        yield int(headers["threadlog_partition"]), int(headers["threadlog_offset"])


@invariant
def effects_are_the_events_in_order(run: Run) -> Iterator[Broken]:
    """Of each position the first copy: all of them, without a gap, as the views have them."""
    world = run.world
    for partition in range(world.options.partitions):
        expected = _events(world, partition)
        told = first_copies(world, partition)
        offsets = list(told)
        if offsets != list(expected):
            wrong = next((n for n, (a, b) in enumerate(zip(offsets, expected, strict=False)) if a != b), len(offsets))
            yield Broken(f"effects of partition {partition} go {offsets[max(0, wrong - 3) : wrong + 3]} at {wrong}")
            return
        for offset, effect in told.items():
            encoded = encode_effect(effect_row(expected[offset]))
            if (effect.key, effect.value, effect.headers) != encoded:
                yield Broken(f"the effect of {partition}/{offset} is {effect.value!r}, not {encoded.value!r}")


@invariant
def windows_are_what_the_effects_come_to(run: Run) -> Iterator[Broken]:
    """Counted once, in one go: however often workers died, were moved or read copies."""
    world = run.world
    if not world.store.window_positions:
        return
    cells: dict[CellKey, Cell] = {}
    for partition in range(world.options.partitions):
        for record in first_copies(world, partition).values():
            effect = decode_effect(record.value)
            assert effect is not None
            if is_counted(effect):
                key = CellKey(effect.tenant, effect.time_ms // MINUTE_MS * MINUTE_MS, partition)
                count_effect(cells.setdefault(key, Cell()), effect, NAMES_MAX, is_late=False)
    found = world.store.window_cells
    for key in sorted(cells.keys() | found.keys()):
        if cells.get(key) != found.get(key):
            yield Broken(f"the cell {key} is {found.get(key)}, not {cells.get(key)}")


def first_copies(world: SimulationWorld, partition: int) -> dict[int, Incoming]:
    """By the offset of their source, in the order in which they came."""
    told, looked_at = world.first_copies.get(partition, ({}, 0))
    for effect in world.broker.records(THREAD_EFFECTS.name, partition)[looked_at:]:
        told.setdefault(int(dict(effect.headers)["ce_id"].rpartition(b"-")[2]), effect)
    world.first_copies[partition] = told, world.broker.end(THREAD_EFFECTS.name, partition)
    return told


def _events(world: SimulationWorld, partition: int) -> dict[int, tuple[object, ...]]:
    tables = world.store.tables
    assert tables is not None
    rows = [row for of_thread in tables.groups("events").values() for row in of_thread.values()]
    return {row[OFFSET]: row for row in sorted(rows, key=lambda row: row[OFFSET]) if row[PARTITION] == partition}
