"""What a thread has of a session already, by its log: the turns that earlier imports brought, in the session's order.

A turn of a file is told from another by the inputs that began it, whose ids come from the session's own: the same in
every snapshot and copy. A turn that was imported again, as another number, stands in place of the one before it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.events import Lineage
from schemas.ids import ThreadKey, derive
from schemas.state import CHAIN_START, ThreadState
from services.importer.model import Input, Tool, Turn

IN_PLACE = ";in-place="
"""Part of a rewind's source: the first of the turns that the following ones replace."""
ORDINAL = ";ordinal="
"""Part of a turn's source: number of its first record."""
CHILD = ";child="
"""Last part of a dispatch's source: the session that works for the call."""
NAME_CHARACTERS_MAX = 128
"""Names that come from files are cut to fit headers and indexes."""
BETWEEN = frozenset({"context.compacted", "plan.proposed", "plan.approved", "task.updated", "thread.rewound"})
"""Kinds of events that lie between turns. They are not told again with a turn that is."""
RECORDED = frozenset({"artifact.recorded"})
"""Kinds of events that are never told again."""


class Place(NamedTuple):
    """A record of a thread, as lineage names it."""

    seq: int = 0
    chain: str = CHAIN_START


class KnownTurn(NamedTuple):
    """A turn that an import brought."""

    turn: int
    inputs: tuple[str, ...]
    end: Place
    """Its last record; the thread's newest record where the turn is open."""
    first_ordinal: int | None = None
    tokens: tuple[int, int] = (0, 0)
    """Input and output tokens, as far as they were told."""


class TurnRow(NamedTuple):
    """A turn as the views have it."""

    turn: int
    inputs: tuple[str, ...]
    started_seq: int
    end: Place
    source: str
    """Source of its `turn.started`."""
    tokens: tuple[int, int] = (0, 0)


class RewindRow(NamedTuple):
    """A rewind as the views have it."""

    seq: int
    to_turn: int
    source: str


class RecentRow(NamedTuple):
    """An event has an effect if it is among these."""

    seq: int
    id: str
    kind: str


class Recent(NamedTuple):
    """The ids of events that an import may have added after the last known turn began, and of earlier ones that are not
    told again either.
    """

    ids: frozenset[str] = frozenset()
    lasting: frozenset[str] = frozenset()
    """The ids that hold although the import ended before it was done."""


NOTHING_RECENT = Recent()


class Told(NamedTuple):
    """A file tells a turn so."""

    first_input: str
    digest: str
    """Hash of what the file tells of the turn, wherever it stands in the file."""
    extent: tuple[int, ...]
    """How much the file tells: of two tellings of a turn the greater one is the later one."""
    tokens: tuple[int, int] = (0, 0)
    """Input and output tokens of its responses, summaries included."""


@dataclass(frozen=True, slots=True)
class Known:
    """A thread has this of a session. For a thread that does not exist everything is empty."""

    state: ThreadState = field(default_factory=ThreadState)
    turns: tuple[KnownTurn, ...] = ()
    """Turns that imports brought, in the session's order, without those that others replace."""
    recent: Recent = NOTHING_RECENT
    last_turn: "Told | None" = None
    """The session's last turn, as the last import saw it."""
    ordinals_end: int = 0
    """Where the session's ordinals end, as far as the last import that added something knew."""


@dataclass(frozen=True, slots=True)
class Base:
    """Another thread may share the turns of this one by reference."""

    key: ThreadKey
    turns: tuple[tuple[ThreadKey, KnownTurn], ...]
    """Each turn with its thread. Those that the thread shares itself come first."""
    depth: int = 0
    is_live: bool = False
    """Whether the thread continued live."""
    ordinals_end: int = 0

    def through(self, lineage: Lineage) -> tuple[tuple[ThreadKey, KnownTurn], ...]:
        """Return the turns that a fork with this lineage shares."""
        for place, (key, turn) in enumerate(self.turns):
            if key.thread == lineage.parent and turn.end.seq == lineage.seq:
                return self.turns[: place + 1]
        return tuple([(key, turn) for key, turn in self.turns if key != self.key or turn.end.seq <= lineage.seq])


def known_turns(turns: Iterable[TurnRow], rewinds: Iterable[RewindRow]) -> tuple[KnownTurn, ...]:
    """Return the turns in the session's order, without those that others replace. Turns and rewinds come in the order
    of the log.
    """
    kept: list[KnownTurn] = []
    waiting = list(rewinds)
    for row in turns:
        while waiting and waiting[0].seq < row.started_seq:
            _put_aside(kept, waiting.pop(0))
        kept.append(KnownTurn(row.turn, row.inputs, row.end, _number(row.source, ORDINAL), row.tokens))
    for rewind in waiting:
        _put_aside(kept, rewind)
    return tuple(kept)


def _put_aside(kept: list[KnownTurn], rewind: RewindRow) -> None:
    """Drop the turns that the turns after this rewind replace."""
    first = _number(rewind.source, IN_PLACE)
    while first is not None and kept and kept[-1].turn >= first:
        kept.pop()


def recent_ids(turns: Sequence[TurnRow], rewinds: Sequence[RewindRow], events: Iterable[RecentRow]) -> Recent:
    """Return the ids that make an event of this import a repetition."""
    kept = known_turns(turns, rewinds)
    started = {row.turn: row.started_seq for row in turns}
    since = started[kept[-1].turn] if kept else 0
    aside = max([rewind.seq for rewind in rewinds if IN_PLACE in rewind.source], default=0)
    ids, lasting = set(), set()
    for event in events:
        if event.kind in RECORDED or (event.kind in BETWEEN and event.seq >= since):
            lasting.add(event.id)
        elif event.seq >= since and event.seq > aside:
            ids.add(event.id)
    return Recent(frozenset(ids | lasting), frozenset(lasting))


def _number(source: str, name: str) -> int | None:
    _, found, number = source.partition(name)
    number = number.partition(";")[0]
    return int(number) if found and number.isdecimal() else None


def thread_id(tenant: str, tool: Tool, source_id: str, copy: int = 0) -> str:
    """Return the id of a session's thread. `copy` numbers the session's forks beside threads that continued live."""
    parts = (tenant, tool, source_id, copy) if copy else (tenant, tool, source_id)
    return derive("imported", *parts)


def input_id(tool: Tool, source_id: str) -> str:
    """Return the id of an imported input: the same in every snapshot and copy of the session."""
    return derive("imported input", tool, source_id)


def input_ids(tool: Tool, turn: Turn) -> tuple[str, ...]:
    """Return the ids of the inputs that began the turn; one of its own where the file has lost them."""
    if not turn.inputs:
        return (input_id(tool, f"turn {turn.source_id}"),)
    return tuple([_input_id(tool, sent) for sent in turn.inputs])


def _input_id(tool: Tool, sent: Input) -> str:
    return input_id(tool, sent.source_id)


def is_same(known: KnownTurn, ids: tuple[str, ...]) -> bool:
    """Return whether the known turn was begun by these inputs. An input that was told again has the turn's number after
    its id.
    """
    return len(known.inputs) == len(ids) and all(
        mine.partition(".")[0] == theirs for mine, theirs in zip(known.inputs, ids, strict=True)
    )


def again(name: str, turn: int) -> str:
    """Return the id of an input that is submitted once more, for this turn."""
    return f"{name}.{turn}"


def plain(text: str) -> str:
    """Return the text made fit for a header."""
    return "".join([letter if letter.isascii() and (letter.isalnum() or letter in "-_./") else "_" for letter in text])[
        :NAME_CHARACTERS_MAX
    ]


def child_mark(source_id: str) -> str:
    """Return what a dispatch's source says of the session that works for the call."""
    return f"{CHILD}{plain(source_id)}"
