"""What a batch's rows come to in a database, without one: the tables of one generation of the views.

Rows are never changed in place, so that a commit can be taken back by putting the old ones where they were. A row is
the tuple that the projection made; those whose columns change one by one are a dict without the nulls.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import ThreadState
from services.projector.columns import MERGED, THREADS
from services.projector.generations.errors import RowRefusedError, StoredPosition
from services.projector.generations.store import Claim, Span, fence_error
from services.projector.projections import artifacts, events, usage
from services.projector.projections.batch import Batch, Kept
from services.projector.projections.changes import ItemsCompacted, ItemsRewound
from services.projector.projections.rows import Rows

SHOWN_MAX: Final = 200
"""Characters of a row or a value in a message."""
COMMITS_KEPT: Final = 256
"""So many of the last ones can be lost."""

Group = tuple[Any, ...]
"""First part of a row's key: tenant and thread, or topic and partition of a dead letter."""
Place = tuple[Any, ...]
"""The rest of it."""
Row = Any
Refuses = Callable[[tuple[Any, ...]], bool]
"""Whether the database refuses this row of `events`: one with data, in the order of its columns."""

_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(table.written_once + table.changing) for name, table in MERGED.items()
}
_MOVING: Final[Mapping[str, frozenset[str]]] = {name: frozenset(table.changing) for name, table in MERGED.items()}
_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "threads": THREADS.columns,
    "events": events.COLUMNS,
    "usage": usage.COLUMNS,
    "artifacts": artifacts.COLUMNS,
}
TABLES: Final = ("thread_states", "threads", *MERGED, "events", "usage", "artifacts", "dead_letters")

EVENT_ID, EVENT_TYPE, EVENT_ACTOR, EVENT_DATA = (events.COLUMNS.index(name) for name in ("id", "type", "actor", "data"))
_OF_THREAD: Final = THREADS.columns.index("status")
"""Columns of `threads` that never change."""


class StateRow(NamedTuple):
    topic: str
    partition: int
    offset: int
    fold_version: int
    active: bool
    quarantined: str | None
    raw: bytes
    state: ThreadState
    """What `raw` says."""


class Position(NamedTuple):
    next_offset: int
    owner: str
    owner_epoch: int
    cluster_id: str
    last_record: str = ""


Undo = list[tuple[dict[Any, Any], Any, Any]]
"""Of one transaction: where a row was put, and what was there."""


class Journal:
    """What a crash may take: the last commits of a database, of whichever generation, the newest first."""

    def __init__(self) -> None:
        self._commits: deque[Undo] = deque(maxlen=COMMITS_KEPT)

    def committed(self, undo: Undo) -> None:
        self._commits.append(undo)

    def flushed(self) -> None:
        """By a commit that waited for the disk: what was committed before is as durable."""
        self._commits.clear()

    def lose_last(self, commits: int) -> int:
        """Returns how many were lost."""
        lost = min(commits, len(self._commits))
        for _ in range(lost):
            take_back(self._commits.pop())
        return lost


def take_back(undo: Undo) -> None:
    while undo:
        places, place, old = undo.pop()
        if old is None:
            del places[place]
        else:
            places[place] = old


class Tables:
    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal if journal is not None else Journal()
        self.positions: dict[Any, Position] = {}
        self._groups: dict[str, dict[Group, dict[Place, Row]]] = {name: {} for name in (*TABLES, "commands")}
        self._undo: Undo = []
        """Of the commit under way."""

    # Reading

    def of(self, table: str, whose: Group) -> Mapping[Place, Row]:
        return self._groups[table].get(whose, {})

    def groups(self, table: str) -> Mapping[Group, Mapping[Place, Row]]:
        return self._groups[table]

    def state(self, key: ThreadKey) -> StateRow | None:
        return self._groups["thread_states"].get(key, {}).get(())

    def states(self) -> Iterable[tuple[ThreadKey, StateRow]]:
        for whose, rows in self._groups["thread_states"].items():
            for row in rows.values():
                yield ThreadKey(TenantId(whose[0]), ThreadId(whose[1])), row

    def stored_positions(self) -> dict[int, StoredPosition]:
        return {partition: StoredPosition(*at[:3]) for partition, at in sorted(self.positions.items())}

    # Writing

    def claim(self, partitions: Iterable[int], owner: str, cluster_id: str) -> dict[int, Claim]:
        """Durable, and with it all that was committed before."""
        claims = {}
        for partition in sorted(partitions):
            at = self.positions.get(partition) or Position(0, owner, 0, cluster_id)
            self.positions[partition] = at = at._replace(owner=owner, owner_epoch=at.owner_epoch + 1)
            claims[partition] = Claim(at.next_offset, at.owner_epoch, at.cluster_id, at.last_record)
        self.journal.flushed()
        return claims

    def take_from_owners(self) -> None:
        """Who has claimed partitions can write them no more."""
        for partition, at in self.positions.items():
            self.positions[partition] = at._replace(owner="swapped", owner_epoch=at.owner_epoch + 1)

    def commit(self, batch: Batch, spans: Sequence[Span], refuses: Refuses | None = None) -> None:
        """Raises FenceError, RowRefusedError; then nothing is written."""
        positions = self.positions
        moved = {span.partition for span in spans if _fits(positions.get(span.partition), span)}
        if len(moved) < len(spans):
            error = fence_error(spans, moved, self.stored_positions())
            if error is not None:
                raise error
            return
        try:
            for span in spans:
                at = positions[span.partition]._replace(next_offset=span.to_offset, last_record=span.last_record)
                self._set(positions, span.partition, at)
            self._write(batch.rows, batch.kept, refuses)
        except BaseException:
            take_back(self._undo)
            raise
        finally:
            if self._undo:
                self.journal.committed(self._undo)
            self._undo = []

    def _write(self, rows: Rows, kept: Mapping[ThreadKey, Kept], refuses: Refuses | None) -> None:
        for state in rows.new_states:
            whose = state[:2]
            self._insert("thread_states", whose, (), StateRow(*state[2:], kept[ThreadKey(*whose)].state))  # type: ignore[arg-type,call-arg]  # in this order
        for thread in rows.new_threads:
            self._insert("threads", thread[:2], (), thread)
        for event in rows.events:
            if refuses is not None and event[EVENT_DATA] is not None and refuses(event):
                raise RowRefusedError("DataError")
            self._insert("events", event[:2], event[2:3], event)
            self._note_command(event)
        for used in rows.usage:
            self._insert("usage", used[:2], used[2:3], used)
        for named in rows.artifacts:
            self._insert("artifacts", named[:2], named[2:4], named)
        for dead in rows.dead_letters:
            self._insert("dead_letters", dead[:2], dead[2:3], dead)
        for table in MERGED:
            known = _KNOWN[table]
            for key, columns in rows.new[table].items():
                row = {name: value for name, value in columns.items() if value is not None and name in known}
                self._insert(table, key[:2], key[2:], row)
        self._change(rows, kept)
        if rows.edits or rows.rewinds or rows.compactions:
            self._reach_items(rows)

    def _change(self, rows: Rows, kept: Mapping[ThreadKey, Kept]) -> None:
        for state in rows.changed_states:
            whose = state[:2]
            places = self._groups["thread_states"].get(whose, {})
            if (old := places.get(())) is not None:
                new = StateRow(old.topic, old.partition, *state[2:], kept[ThreadKey(*whose)].state)  # type: ignore[arg-type,call-arg]  # in this order
                self._set(places, (), new)
        for thread in rows.changed_threads:
            places = self._groups["threads"].get(thread[:2], {})
            if (old := places.get(())) is not None:
                labels, config = thread[-2] or old[-2], thread[-1] or old[-1]
                self._set(places, (), (*old[:_OF_THREAD], *thread[2:-2], labels, config))
        for table in MERGED:
            moving = _MOVING[table]
            for key, columns in rows.changed[table].items():
                places, place = self._groups[table].get(key[:2], {}), key[2:]
                if (old := places.get(place)) is not None:
                    changed = {name: value for name, value in columns.items() if value is not None and name in moving}
                    self._set(places, place, old | changed)

    def _reach_items(self, rows: Rows) -> None:
        """In the order of the projector's statements."""
        for (tenant, thread, seq, call), args in rows.edits.items():
            places = self._groups["items"].get((tenant, thread), {})
            for place, row in list(places.items()):
                if place[0] == seq and row["kind"] == "tool_call" and row.get("call") == call:
                    content = orjson.dumps({**orjson.loads(row["content"]), "args": orjson.loads(args)})
                    self._set(places, place, row | {"content": content})
        for rewinds, compactions in rows.rounds():
            for rewind in rewinds:
                self._rewind(rewind)
            for compaction in compactions:
                self._compact(compaction)

    def _rewind(self, change: ItemsRewound) -> None:
        """What a summary stood for that is hidden comes back."""
        places = self._groups["items"].get((change.tenant, change.thread), {})
        summaries = set()
        for place, row in list(places.items()):
            stands = row.get("place", change.seq + 1) <= change.seq and row.get("turn", 0) > change.to_turn
            if stands and "rewound_at" not in row:
                self._set(places, place, row | {"rewound_at": change.seq})
                if row["kind"] == "summary":
                    summaries.add(place[0])
        for place, row in list(places.items()):
            if row.get("compacted_at") in summaries:
                self._set(places, place, {name: value for name, value in row.items() if name != "compacted_at"})

    def _compact(self, change: ItemsCompacted) -> None:
        """Results go with their calls."""
        places = self._groups["items"].get((change.tenant, change.thread), {})
        gone = set()
        for place, row in sorted(places.items()):
            is_result_of_gone = row["kind"] == "tool_result" and row["call"] in gone and "place" in row
            if row.get("place", change.through_seq + 1) <= change.through_seq or is_result_of_gone:
                if row["kind"] == "tool_call":
                    gone.add(row["call"])
                if "compacted_at" not in row:
                    self._set(places, place, row | {"compacted_at": change.seq})

    def _note_command(self, event: tuple[Any, ...]) -> None:
        """The index of clients' commands: the first record with each id."""
        if event[EVENT_ACTOR].startswith("user:"):
            whose, place = event[:2], (event[EVENT_ID],)
            if place not in self._groups["commands"].get(whose, {}):
                self._insert("commands", whose, place, event)

    def _insert(self, table: str, whose: Group, place: Place, row: Row) -> None:
        groups = self._groups[table]
        places = groups.get(whose)
        if places is None:
            places = groups[whose] = {}
        elif place in places:
            raise RowRefusedError("UniqueViolationError")
        self._set(places, place, row)

    def _set(self, places: dict[Any, Any], place: Any, row: Row) -> None:
        self._undo.append((places, place, places.get(place)))
        places[place] = row


def first_difference(expected: Tables, found: Tables) -> str | None:
    """Of all rows, and of the positions without their owners; None where they are the same."""
    ends, stored = ({p: at.next_offset for p, at in tables.positions.items()} for tables in (expected, found))
    for partition in sorted(ends.keys() | stored.keys()):
        if ends.get(partition, 0) != stored.get(partition, 0):
            return f"positions/{partition}: next_offset is {stored.get(partition)}, not {ends.get(partition)}"
    for table in TABLES:
        groups, others = expected.groups(table), found.groups(table)
        for whose in sorted(groups.keys() | others.keys()):
            rows, other_rows = groups.get(whose, {}), others.get(whose, {})
            if rows == other_rows:
                continue
            for place in sorted(rows.keys() | other_rows.keys()):
                if rows.get(place) != other_rows.get(place):
                    where = "/".join(map(str, (table, *whose, *place)))
                    return f"{where}: {_row_difference(table, rows.get(place), other_rows.get(place))}"
    return None


def _row_difference(table: str, expected: Row | None, found: Row | None) -> str:
    if expected is None or found is None:
        return f"{_short(found)} should not be there" if expected is None else f"it is missing: {_short(expected)}"
    named, others = _named(table, expected), _named(table, found)
    name = next(name for name in [*named, *others] if named.get(name) != others.get(name))
    return f"{name} is {_short(others.get(name))}, not {_short(named.get(name))}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _named(table: str, row: Row) -> Mapping[str, Any]:
    if isinstance(row, StateRow):
        # Its fields tell more than its bytes, which come last.
        named = row._asdict()
        raw, state = named.pop("raw"), named.pop("state")
        return named | {f"state.{name}": value for name, value in vars(state).items()} | {"raw": raw}
    if isinstance(row, dict):
        return row
    columns = _COLUMNS.get(table, [f"column {number}" for number in range(len(row))])
    return dict(zip(columns, row, strict=True))


def _fits(at: Position | None, span: Span) -> bool:
    return at is not None and (at.owner_epoch, at.next_offset) == (span.owner_epoch, span.from_offset)
