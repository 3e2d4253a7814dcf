"""Sessions of Claude Code (1.0 to 2.1) as threads.

The file is gone through twice: `claude_code_index` finds out which record belongs to which thread, `claude_code_turns`
makes turns of a thread's records, one turn in memory at a time. Threads beside the main one (inline sub-agents, or
branches that a person went back from) take further readings, as many as there are such threads at one place of the
file. What the first reading came upon at the file's beginning is held, so that most files are parsed once.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePath
from typing import ClassVar

import orjson

from services.importer.claude_code.index import MAIN, NOWHERE, Index, ThreadPlan, read_index
from services.importer.claude_code.queue import Queue
from services.importer.claude_code.records import Kind, milliseconds, text_of
from services.importer.claude_code.turns import Scene, ThreadReader
from services.importer.companions import Companions
from services.importer.lines import Line, Record, Source
from services.importer.model import Counts, Header, Origin, Parent, Piece, Title

NORMALISER_VERSION = 1
"""Goes up with every change of what the same file becomes. It is part of the source of every event."""
ROUNDS_MAX = 24
"""Readings for threads beside the main one. Those that are left are read together and held in memory."""
INTERNAL_AGENTS = ("acompact", "aprompt_suggestion")
"""Agents that the tool runs for itself. Their transcripts repeat the session's."""


def normalise(source: Source, counts: Counts, *, companions: Companions) -> Iterator[Piece]:
    """Yield the pieces of a session, one thread after another. Warm-ups and the tool's own agents are counted and left
    out.
    """
    index = read_index(source, counts, companions.name)
    if index.is_warm_up or (index.agent or "").startswith(INTERNAL_AGENTS):
        counts.pass_over("warm-up agent" if index.is_warm_up else "internal agent")
        return
    _find_resumed(index, companions)
    found = _Found({})
    scene = Scene(index, counts, companions)
    yield from _read_main(source, scene, found)
    for plans in _rounds(index.plans):
        yield from _read_beside(source, scene, plans, found)


@dataclass(slots=True)
class _Found:
    """What the reading of a thread tells those that hang on it."""

    turns: dict[int, tuple[int, str | None]]
    """Node → how many turns its thread had by then, with those that it shares, and its uuid."""


def _find_resumed(index: Index, companions: Companions) -> None:
    """Find out whether the session continues another one: old versions resumed into a new file, with a copy of the
    history and a summary that names its last record.
    """
    if index.copied != NOWHERE:
        return
    for leaf, node in sorted(index.leaves.items(), key=lambda item: item[1]):
        parent = companions.session_with_leaf(leaf)
        if parent is not None and parent != index.session and index.threads[node] == MAIN:
            index.copied, index.copied_uuid, index.copied_session = node, leaf, parent


def _nodes(source: Source, index: Index) -> Iterator[tuple[int, Line]]:
    """Yield each line that may mean something, with its node or NOWHERE. Lines that came since the first reading have
    no node.
    """
    lines = index.lines
    node, nodes = 0, len(lines)
    for line in index.wanted.lines(source):
        number = line.number
        while node < nodes and lines[node] < number:
            node += 1
        yield (node if node < nodes and lines[node] == number else NOWHERE), line


# The main thread


def _read_main(source: Source, scene: Scene, found: _Found) -> Iterator[Piece]:
    """Yield the main thread's pieces. Its header waits until the thread says something more than a title."""
    index = scene.index
    reader = ThreadReader(scene)
    queue = Queue(index.session or PurePath(scene.companions.name).stem, scene.counts)
    titles = _Titles(index)
    attached = {plan.attach for plan in index.plans if plan.parent == MAIN}
    header: list[Piece] = [_main_header(source, scene)]
    early: list[Piece] = []
    for node, line in _nodes(source, index):
        record = line.record
        if record is None:
            continue
        pieces: list[Piece] = []
        if node == NOWHERE:
            if record.get("type") == "queue-operation":
                queue.operate(line.number, record, index.session)
            else:
                pieces = titles.take(line.number, record)
        else:
            kind = index.kinds[node]
            if kind != Kind.LINK:
                pieces = queue.take(kind, record)
                if index.threads[node] == MAIN:
                    pieces += reader.feed(kind, line.number, record)
            if node in attached:
                found.turns[node] = (reader.turns, text_of(record, "uuid"))
        if not pieces:
            continue
        if header and all(isinstance(piece, Title) for piece in pieces):
            early += pieces
            continue
        yield from header + early
        header, early = [], []
        yield from pieces
    last = [*queue.finish(), *reader.finish()]
    if last:
        yield from header + early + last


def _main_header(source: Source, scene: Scene) -> Header:
    """Return the header of the main thread, with its parent where the file or its companions name one."""
    index = scene.index
    name = PurePath(scene.companions.name).stem
    source_id = index.session or name
    parent, shared, title = None, 0, None
    if index.agent is not None:
        meta = _meta(scene.companions, name)
        parent = Parent(source_id, "child", call=text_of(meta, "toolUseId"))
        title = text_of(meta, "description")
        source_id = f"{source_id}:{index.agent}"
    elif index.copied != NOWHERE and index.copied_session is not None:
        shared = _count_shared(source, scene)
        parent = Parent(index.copied_session, "fork", shared, index.copied_uuid, is_copied=True)
    elif (leaf := index.goes_on_from) is not None and (before := scene.companions.session_with_leaf(leaf)) is not None:
        parent = Parent(before, "fork", None, leaf)
    return Header(
        tool="claude-code",
        source_id=source_id,
        origin=Origin(index.first_line),
        tool_version=index.tool_version,
        parent=parent,
        title=title,
        model=index.model,
        cwd=index.cwd,
        created_ms=index.created_ms,
        shared_turns=shared,
    )


def _meta(companions: Companions, name: str) -> Record:
    """Return what the companion of a sub-agent's transcript says of it."""
    companion = companions.get(f"{name}.meta.json")
    try:
        meta = orjson.loads(companion.content) if companion is not None else {}
    except orjson.JSONDecodeError:
        return {}
    return meta if isinstance(meta, dict) else {}


def _count_shared(source: Source, scene: Scene) -> int:
    """Return the number of turns up to the last copied record, by reading them once more."""
    index = scene.index
    reader = ThreadReader(Scene(index, Counts(), scene.companions))
    for node, line in takewhile(lambda found: found[0] <= index.copied, _nodes(source, index)):
        if node != NOWHERE and line.record is not None and index.threads[node] == MAIN:
            reader.feed(index.kinds[node], line.number, line.record)
    return reader.turns


class _Titles:
    """The title that a person gave counts most, then the one that the tool made for the session, then a summary's."""

    _RANKS: ClassVar[dict[object, tuple[int, str]]] = {
        "custom-title": (0, "customTitle"),
        "ai-title": (1, "aiTitle"),
        "summary": (2, "summary"),
    }
    _NONE = (3, "")
    """Rank of a record that has become another one since the first reading."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._rank, _ = self._NONE
        self._title: str | None = None

    def take(self, line: int, record: Record) -> list[Piece]:
        """Return the title in a list, if the record has a better one than before."""
        rank, name = self._RANKS.get(text_of(record, "type"), self._NONE)
        title = text_of(record, name)
        about_this = rank < 2 or text_of(record, "leafUuid") in self._index.leaves
        if title is None or not about_this or rank > self._rank or title == self._title:
            return []
        self._rank, self._title = rank, title
        return [Title(title, Origin(line))]


# Threads beside it


def _rounds(plans: list[ThreadPlan]) -> list[list[int]]:
    """Return the places of threads in rounds: one reading of the file can take the threads of a round one after
    another. A thread comes after the one it hangs on.
    """
    rounds: list[list[int]] = []
    ends: list[int] = []
    round_of: dict[int, int] = {MAIN: -1}
    depths = _depths(plans)
    places = sorted(range(1, len(plans) + 1), key=lambda place: (depths[place], plans[place - 1].first_line))
    for place in places:
        plan = plans[place - 1]
        if plan.is_warm_up:
            continue
        after = round_of.get(plan.parent, -1)
        fits = (n for n, end in enumerate(ends) if n > after and end < plan.first_line)
        number = next(fits, len(rounds))
        if number == len(rounds) and number < ROUNDS_MAX:
            rounds.append([])
            ends.append(0)
        number = min(number, ROUNDS_MAX - 1)
        rounds[number].append(place)
        ends[number] = max(ends[number], plan.last_line)
        round_of[place] = number
    return rounds


def _depths(plans: list[ThreadPlan]) -> list[int]:
    """Return, for each place, how many threads are above it."""
    depths = [0] * (len(plans) + 1)
    for place in range(1, len(plans) + 1):
        chain: list[int] = []
        above = place
        while above != MAIN and not depths[above] and len(chain) < len(plans):
            chain.append(above)
            above = plans[above - 1].parent
        for depth, member in enumerate(reversed(chain), start=depths[above] + 1):
            depths[member] = depth
    return depths


@dataclass(slots=True)
class _Open:
    """A thread that is being read."""

    reader: ThreadReader
    header: Header | None
    """The header, until a piece of the thread is given out."""
    shared: int
    """Turns before its own."""
    held: list[Piece] = field(default_factory=list)

    def hold(self, pieces: list[Piece]) -> None:
        """Keep the pieces until it is the thread's turn."""
        if pieces and self.header is not None:
            self.held.append(self.header)
            self.header = None
        self.held += pieces

    def release(self) -> list[Piece]:
        """Return what was kept."""
        held, self.held = self.held, []
        return held

    def finish(self) -> list[Piece]:
        self.hold(self.reader.finish())
        return self.release()


def _read_beside(source: Source, scene: Scene, places: list[int], found: _Found) -> Iterator[Piece]:
    """Yield the threads of one round, one after another. Pieces are held only where threads overlap in the file."""
    index = scene.index
    members = set(places)
    opened: dict[int, _Open] = {}
    attached = {plan.attach for plan in index.plans}
    waiting = deque(places)
    for node, line in _nodes(source, index):
        if node == NOWHERE or line.record is None or (place := index.threads[node]) not in members:
            continue
        while index.plans[waiting[0] - 1].last_line < line.number:
            ended = opened.pop(waiting.popleft(), None)
            yield from ended.finish() if ended is not None else ()
        thread = opened.get(place)
        if thread is None:
            header = _header(index, place, line, found)
            shared = (header.parent.turns or 0) if header.parent is not None else 0
            thread = opened[place] = _Open(ThreadReader(scene), header, shared)
        thread.hold(thread.reader.feed(index.kinds[node], line.number, line.record))
        if node in attached:
            found.turns[node] = (thread.shared + thread.reader.turns, text_of(line.record, "uuid"))
        if waiting[0] == place:
            yield from thread.release()
    for place in waiting:
        if place in opened:
            yield from opened[place].finish()


def _header(index: Index, place: int, line: Line, found: _Found) -> Header:
    """Return the header of a branch or a sub-agent."""
    plan = index.plans[place - 1]
    record = line.record or {}
    main = index.session or ""
    parent_id = main if plan.parent == MAIN else index.plans[plan.parent - 1].source_id
    turns, through = found.turns.get(plan.attach, (0, None))
    parent = (
        Parent(parent_id, "fork", turns, through) if plan.kind == "fork" else Parent(parent_id, "child", call=plan.call)
    )
    return Header(
        tool="claude-code",
        source_id=plan.source_id,
        origin=Origin(line.number, "the prompt is the call's" if plan.call is not None else None),
        tool_version=text_of(record, "version"),
        parent=parent,
        model=index.model,
        cwd=text_of(record, "cwd"),
        created_ms=milliseconds(record),
    )
