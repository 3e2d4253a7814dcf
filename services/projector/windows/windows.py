"""Counting effects into cells: per tenant, minute in event time, and source partition.

A cell is a pure function of its partition's effects up to an offset, which the cell stores. Whoever counts them, in
whatever batches, after whatever crash, gets the same values; an effect that comes twice counts once. So cells are
written as absolute values, and are read back before more is counted into them.

The minute of an effect depends only on its own time and on the times before it in its partition. The watermark is the
latest time so far; a clock that runs ahead moves it to a little after the effect was published, and no further. An
effect that is a day behind the watermark is late, and belongs to no minute any more. Only its changes of the number of
waiting and unknown calls count, in the first minute that is still open: the sums over all minutes then equal those of
the folds.
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
"""The largest value of a counter, a little below that of the database's integers."""


class CellKey(NamedTuple):
    tenant: str
    minute_ms: int
    """The time at which the minute begins."""
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
    """How far a partition of thread-effects is counted."""

    next_offset: int = -1
    """The next offset of thread-effects to count; -1 if nothing was ever counted."""
    source_offset: int = 0
    """The offset of thread-events below which everything was counted. An effect below it was published twice."""
    watermark_ms: int = 0


class Taken(NamedTuple):
    """A record of thread-effects, and its position."""

    partition: int
    offset: int
    published_ms: int
    effect: ThreadEffect | None
    """The effect; None if the record is not an effect of this partition."""


class Placed(NamedTuple):
    minute_ms: int
    is_late: bool


class OvertakenError(ThreadlogError):
    """Another worker counts this partition, or its position was reset. Start again from what is stored."""


class GapError(ThreadlogError):
    """A record of the partition is missing between the last one and this one. Start again from what is stored."""


class WindowStore(Protocol):
    """The port to cells and positions. All methods raise StoreAwayError while the database is away."""

    async def positions(self, cluster_id: str, partitions: Iterable[int]) -> dict[int, Position]: ...

    async def forget_positions(self, cluster_id: str, partitions: Iterable[int]) -> None: ...

    async def load(self, cluster_id: str, keys: Sequence[CellKey]) -> dict[CellKey, Cell]: ...

    async def write(
        self,
        cluster_id: str,
        cells: Mapping[CellKey, Cell],
        moved: Mapping[int, tuple[Position, Position]],
    ) -> None:
        """Write cells and positions in one transaction; `moved` has the old and the new position of each partition.

        Raises OvertakenError if a stored position is not the old one.
        """
        ...

    async def delete_before(self, minute_ms: int, cells_max: int) -> int:
        """Delete at most `cells_max` old cells; return how many were deleted.

        Cells that change the number of waiting or unknown calls are kept: the present numbers are sums over them.
        """
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
    """How many effects of each kind a batch has, for metrics."""

    effects: int = 0
    repeated: int = 0
    late: int = 0
    unreadable: int = 0


class _Due(NamedTuple):
    """An effect to count, and the cell it counts in."""

    key: CellKey
    effect: ThreadEffect
    is_late: bool


class Plan(NamedTuple):
    """What to count of a batch, and how the positions move."""

    due: Sequence[_Due]
    moved: Mapping[int, tuple[Position, Position]]
    """The old and the new position of each partition."""
    counts: Counts


class Windows:
    """The positions and cells of the partitions that this worker has, as they are stored.

    Counting has three steps: `plan` decides, `count` computes the new cells, `written` takes them over once they are
    stored. If the process dies, or the write fails, nothing has changed here.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._positions: dict[int, Position] = {}
        self._begins: Mapping[int, int] = {}
        self._cells: OrderedDict[CellKey, Cell] = OrderedDict()

    def hold(
        self, stored: Mapping[int, Position], partitions: Iterable[int], begins: Mapping[int, int] | None = None
    ) -> None:
        """Take these partitions, and forget all others.

        Cells in memory are dropped, because another worker may have counted since. Records before `begins` are no
        longer on the topic, so nobody can count them: starting after them is no gap.
        """
        self._positions = {partition: stored.get(partition, Position()) for partition in partitions}
        self._begins = begins or {}
        self._cells.clear()

    def positions(self) -> dict[int, int]:
        return {partition: max(0, position.next_offset) for partition, position in self._positions.items()}

    def stored(self) -> dict[int, Position]:
        """Return the positions that the store has if nobody else wrote it."""
        return {partition: at for partition, at in self._positions.items() if at != Position()}

    def watermark_ms(self) -> int:
        """Return the latest watermark of all partitions."""
        return max([position.watermark_ms for position in self._positions.values()], default=0)

    def plan(self, taken: Sequence[Taken]) -> Plan:
        """Decide what to count, without changing anything. Raises GapError."""
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
        """Return the cells that have to be read before the plan can be counted."""
        return list(dict.fromkeys(due.key for due in plan.due if due.key not in self._cells))

    def count(self, plan: Plan, loaded: Mapping[CellKey, Cell]) -> dict[CellKey, Cell]:
        """Return the cells as they are afterwards. `loaded` has the missing cells that were found in the store."""
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
    """Count an effect into a cell. It is idempotent by the offset of the effect."""
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
