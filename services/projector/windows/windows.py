"""Counting effects into cells: per tenant, minute in event time, and source partition.

A cell is a pure function of its partition's effects up to an offset, which it remembers: whoever counts them, in
whatever batches, after whatever crash, comes to the same values, and what comes twice counts once. So cells are written
as absolute values, and read back before they are counted on.

Which minute an effect belongs to is decided by its own time and by those before it in its partition alone. The
watermark is the latest time so far; a clock that runs ahead moves it no further than to when the effect was published.
What comes a day behind it is late: it belongs to no minute any more. Yet the calls that began or ceased to wait by it
do so, from the first minute on that is still open: the sums over all minutes stay those of the folds.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from schemas.errors import ThreadlogError
from schemas.other_topics.effects import ThreadEffect, decode_effect
from schemas.other_topics.windows import MINUTE_MS, OTHER, Counted, counted, is_counted
from services.chassis.sketch import bin_of

LATE_MS = 86_400_000
"""How far behind the watermark an effect still belongs to its minute: a day, so that a service that was away overnight
is counted where it belongs.
"""
AHEAD_MS = 300_000
"""How far ahead of its publication an effect's time may move the watermark: a clock that is wrong by more than five
minutes must not make the effects of other services late.
"""
NAMES_MAX = 50
"""Names of one kind in a cell, such as tools; further ones count as `other`. It bounds the size of a cell."""
COUNT_MAX = 2**62
"""What a counter can hold; the database's integers end a little above."""


class CellKey(NamedTuple):
    tenant: str
    minute_ms: int
    """When it begins."""
    partition: int


@dataclass(slots=True)
class Cell:
    counted_to: int = -1
    waiting: int = 0
    unknown: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "Cell":
        return Cell(self.counted_to, self.waiting, self.unknown, dict(self.counts))


class Position(NamedTuple):
    """Of a partition of thread-effects."""

    next_offset: int = -1
    """-1: nothing was ever counted."""
    source_offset: int = 0
    """Of thread-events: everything below was counted, or is not there."""
    watermark_ms: int = 0


class Taken(NamedTuple):
    """A record of thread-effects, and where it was."""

    partition: int
    offset: int
    published_ms: int
    effect: ThreadEffect | None
    """None where it is no effect of this partition."""


class Placed(NamedTuple):
    minute_ms: int
    is_late: bool


class OvertakenError(ThreadlogError):
    """Somebody else counts this partition, or what was counted is there no more. Start again from what is stored."""


class GapError(ThreadlogError):
    """The records of a partition are not those that come next."""


class WindowStore(Protocol):
    """All raise StoreAwayError while the database is away."""

    async def positions(self, cluster_id: str, partitions: Iterable[int]) -> dict[int, Position]: ...

    async def forget_positions(self, cluster_id: str, partitions: Iterable[int]) -> None: ...

    async def load(self, cluster_id: str, keys: Sequence[CellKey]) -> dict[CellKey, Cell]: ...

    async def write(
        self,
        cluster_id: str,
        cells: Mapping[CellKey, Cell],
        moved: Mapping[int, tuple[Position, Position]],
    ) -> None:
        """Cells and positions, from and to, in one transaction. Raises OvertakenError where a position is another."""
        ...

    async def delete_before(self, minute_ms: int, cells_max: int) -> int:
        """At most so many cells on which no sum rests; returns how many there were."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """How effects are counted."""

    cells_max: int
    """Cells in memory."""
    late_ms: int = LATE_MS
    ahead_ms: int = AHEAD_MS
    names_max: int = NAMES_MAX


class Counts(NamedTuple):
    """What a batch came to, for metrics."""

    effects: int = 0
    repeated: int = 0
    late: int = 0
    unreadable: int = 0


class _Due(NamedTuple):
    """An effect to be counted."""

    key: CellKey
    effect: ThreadEffect
    is_late: bool


class Plan(NamedTuple):
    """What is to be counted of a batch, and where."""

    due: Sequence[_Due]
    moved: Mapping[int, tuple[Position, Position]]
    """By partition: from where to where."""
    counts: Counts


class Windows:
    """Positions and cells of the partitions held, as they are stored."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._positions: dict[int, Position] = {}
        self._begins: Mapping[int, int] = {}
        self._cells: OrderedDict[CellKey, Cell] = OrderedDict()

    def hold(
        self, stored: Mapping[int, Position], partitions: Iterable[int], begins: Mapping[int, int] | None = None
    ) -> None:
        """These partitions and no others. What is known of cells may be old by now. Records before `begins` are gone
        from the topic, so that nobody can count them.
        """
        self._positions = {partition: stored.get(partition, Position()) for partition in partitions}
        self._begins = begins or {}
        self._cells.clear()

    def positions(self) -> dict[int, int]:
        return {partition: max(0, position.next_offset) for partition, position in self._positions.items()}

    def stored(self) -> dict[int, Position]:
        """As the store has to have them, if nobody else has written it."""
        return {partition: at for partition, at in self._positions.items() if at != Position()}

    def watermark_ms(self) -> int:
        """The latest of all partitions."""
        return max([position.watermark_ms for position in self._positions.values()], default=0)

    def plan(self, taken: Sequence[Taken]) -> Plan:
        """Raises GapError. Changes nothing here until `written`."""
        positions, due = dict(self._positions), list[_Due]()
        repeated = late = unreadable = 0
        for partition, offset, published_ms, effect in taken:
            position = positions.get(partition)
            if position is None or offset < position.next_offset:
                continue  # not ours any more, or fetched twice
            if offset > (due_next := max(position.next_offset, self._begins.get(partition, 0))):
                raise GapError(f"offset {offset} of partition {partition} comes where {due_next} is due")
            positions[partition] = position = position._replace(next_offset=offset + 1)
            if effect is None:
                unreadable += 1
            elif effect.offset < position.source_offset:
                repeated += 1
            else:
                watermark_ms = min(effect.time_ms, published_ms + self._rules.ahead_ms)
                watermark_ms = max(position.watermark_ms, watermark_ms)
                positions[partition] = Position(offset + 1, effect.offset + 1, watermark_ms)
                if is_counted(effect):
                    placed = place(effect.time_ms, watermark_ms, self._rules.late_ms)
                    late += placed.is_late
                    due.append(_Due(CellKey(effect.tenant, placed.minute_ms, partition), effect, placed.is_late))
        moved = {
            partition: (self._positions[partition], position)
            for partition, position in positions.items()
            if position != self._positions[partition]
        }
        return Plan(due, moved, Counts(len(taken), repeated, late, unreadable))

    def missing(self, plan: Plan) -> list[CellKey]:
        """Cells that have to be read before the plan is counted."""
        return list(dict.fromkeys(due.key for due in plan.due if due.key not in self._cells))

    def count(self, plan: Plan, loaded: Mapping[CellKey, Cell]) -> dict[CellKey, Cell]:
        """The cells as they are afterwards; `loaded` are those of the missing ones that are stored."""
        cells: dict[CellKey, Cell] = {}
        for key, effect, is_late in plan.due:
            cell = cells.get(key)
            if cell is None:
                known = self._cells.get(key) or loaded.get(key)
                cell = cells[key] = Cell() if known is None else known.copy()
            count_effect(cell, effect, self._rules.names_max, is_late=is_late)
        return cells

    def written(self, plan: Plan, cells: Mapping[CellKey, Cell]) -> None:
        for partition, (_, position) in plan.moved.items():
            self._positions[partition] = position
        for key, cell in cells.items():
            self._cells[key] = cell
            self._cells.move_to_end(key)
        while len(self._cells) > self._rules.cells_max:
            self._cells.popitem(last=False)


def take(partition: int, offset: int, value: bytes | None, published_ms: int) -> Taken:
    effect = decode_effect(value)
    return Taken(partition, offset, published_ms, None if effect is None or effect.partition != partition else effect)


def place(time_ms: int, watermark_ms: int, late_ms: int) -> Placed:
    open_from = (watermark_ms - late_ms) // MINUTE_MS * MINUTE_MS
    minute_ms = time_ms // MINUTE_MS * MINUTE_MS
    return Placed(open_from, True) if minute_ms < open_from else Placed(minute_ms, False)


def count_effect(cell: Cell, effect: ThreadEffect, names_max: int, *, is_late: bool) -> None:
    """Idempotent by the effect's offset."""
    if effect.offset <= cell.counted_to:
        return
    cell.counted_to = effect.offset
    if effect.facts is not None:
        cell.waiting += effect.facts.waiting or 0
        cell.unknown += effect.facts.unknown or 0
    if is_late:
        return
    for one in counted(effect):
        if isinstance(one, Counted):
            _add(cell.counts, _name(cell.counts, one, names_max), one.value)
        else:
            _add(cell.counts, f"{one.times}/{bin_of(one.milliseconds)}", 1)


def _name(counts: Mapping[str, int], one: Counted, names_max: int) -> str:
    if not one.name:
        return one.counter
    name = f"{one.counter}/{one.name}"
    if name in counts or sum([known.startswith(f"{one.counter}/") for known in counts]) < names_max:
        return name
    return f"{one.counter}/{OTHER}"


def _add(counts: dict[str, int], name: str, value: int) -> None:
    counts[name] = min(counts.get(name, 0) + value, COUNT_MAX)
