"""One thread of a session into one thread of the log: what is there already is passed over, what is new is added.

The turns of the file are compared with those that the thread has, in order, until one is new. From there events are
made. A last turn that the file tells otherwise than before (an earlier snapshot ended within it) is taken out of the
context by a rewind and told again, as the next turn; so is everything after the last common turn where a person went
back in the session and on from there. A file that ends before the thread does is an older snapshot and adds nothing.

A fork whose first turns are those of its parent shares them by reference. A thread that has gone on live is not
imported into: it is the parent of a fork.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256

from pydantic import JsonValue

from schemas.config import Config
from schemas.events import Artifact, ArtifactRecorded, Lineage, ThreadImportEnded, ToolCallFinished
from schemas.ids import ThreadKey, call_id
from schemas.state import Call as KnownCall
from schemas.state import ThreadState, unknown_calls
from services.chassis.sanitize import sanitize_json
from services.importer.model import (
    Call,
    Compaction,
    Discarded,
    Header,
    Origin,
    Piece,
    Plan,
    Rollback,
    Step,
    Title,
    Tool,
    Turn,
)
from services.importer.threads.cutting import Cutter
from services.importer.threads.events import Ahead, EventLimits, Output
from services.importer.threads.known import Base, Known, KnownTurn, Told, input_ids, is_same
from services.importer.threads.turn_events import FINISHED, lose_calls, tell_turn

LAST_TURN = "last_turn"
"""Key in the report of an import's end: how the file told the session's last turn."""
ORDINALS_END = "ordinals_end"
"""Key in the same report: how far the file numbers its records."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a session's thread goes."""

    key: ThreadKey
    own: Known
    config: Config
    base: Base | None = None
    """The thread whose turns it may share: its parent, or the thread that continued live."""
    shared: int | None = None
    """How many of the base's turns a fork shares whose file does not hold them; None where it holds them."""
    lineage: Lineage | None = None
    """Lineage of a child."""


@dataclass(frozen=True, slots=True)
class File:
    """The events of an import say this of the file."""

    source: str
    """Source of `thread.import_started`: the session, and the hash of the file."""
    normaliser: str
    raw: Artifact
    report: dict[str, JsonValue]


def can_take(state: ThreadState) -> bool:
    """Return whether an import may add to the thread."""
    if state.status in {"none", "importing"}:
        return True
    return state.status == "active" and not state.live and state.turn is None and not state.queue


@dataclass(slots=True)
class ThreadImport:
    """One thread of a file on its way into the log. Feed it pieces with `take`, then `end`, then, once everything is
    appended and checked, `ended`.
    """

    header: Header
    target: Target
    file: File
    limits: EventLimits = field(default_factory=EventLimits)
    ahead: Ahead = field(init=False)
    _there: list[tuple[KnownTurn, bool]] = field(init=False)
    """Turns to compare with, and whether they are the thread's own."""
    _place: int = 0
    """How many of them the file has confirmed."""
    _turns: int = 0
    """Number of the session's turns so far."""
    _stack: list[int] = field(default_factory=list)
    """Numbers of the session's turns that are in the context; 0 for one that is shared."""
    _waiting: list[Compaction | Plan | Rollback | Discarded] = field(default_factory=list)
    """Pieces since the last turn that exists. They are told only if something new follows."""
    _last: Turn | None = None
    _last_number: int = 0
    """Number of that turn in the session."""
    _title: Title | None = None
    _matching: bool = True
    """Whether every turn so far exists."""
    _is_older: bool = False
    """Whether the file is an older snapshot: it adds nothing."""
    _prelude: int = -1
    """Number of outputs that only begin the import; below 0 where it has not begun."""
    _yielded: bool = False
    """Whether anything was given out."""

    def __post_init__(self) -> None:
        target = self.target
        self.ahead = Ahead(
            target.key, self.header, self.file.normaliser, target.own.state, target.own.recent.ids, self.limits
        )
        self.ahead.last_ms = target.own.state.updated_ms
        shared = self._shared_turns()
        self._there = [*[(turn, False) for turn in shared], *[(turn, True) for turn in target.own.turns]]
        if target.shared is not None:
            self._stack = [0] * target.shared

    def _shared_turns(self) -> tuple[KnownTurn, ...]:
        """Return the base's turns that the file contains, too."""
        base, own = self.target.base, self.target.own
        if base is None or self.target.shared is not None:
            return ()
        lineage = own.state.lineage
        if not own.state.exists:
            return tuple([turn for _, turn in base.turns])
        return tuple([turn for _, turn in base.through(lineage)]) if lineage is not None else ()

    def take(self, piece: Piece) -> Iterator[Output]:
        """Yield what the piece becomes."""
        if not self._is_older:
            self._take(piece)
        yield from self._made()

    def end(self) -> Iterator[Output]:
        """Yield everything but the end of the import, after the last piece."""
        if self._matching and not self._is_older:
            self._leave(None)
        yield from self._made()

    def ended(self) -> Iterator[Output]:
        """Yield the end of the import, where it had begun. It is apart, so that whoever appends can check the thread
        first.
        """
        ahead = self.ahead
        if not self._yielded and not self.has_begun:
            return
        if self._title is not None and self.target.own.state.title is None:
            ahead.describe(self._title.title, self._title.origin)
        report = dict(self.file.report)
        if self._last is not None:
            last = told(self.header.tool, self._last)
            report[LAST_TURN] = {
                "input": last.first_input,
                "digest": last.digest,
                "extent": list(last.extent),
                "tokens": list(last.tokens),
            }
        source = ahead.state.import_source or self.file.source
        ahead.end(source, report, self.header.origin)
        yield from ahead.take()

    @property
    def has_begun(self) -> bool:
        return self.target.own.state.status == "importing"

    def _made(self) -> Iterator[Output]:
        """Yield what was made; nothing while all there is to say is that an import begins."""
        if self._yielded or len(self.ahead.out) > max(0, self._prelude):
            self._yielded = self._yielded or bool(self.ahead.out)
            yield from self.ahead.take()

    def _take(self, piece: Piece) -> None:
        match piece:
            case Title():
                self._title = piece
            case Turn():
                self._turns += 1
                self._turn(piece)
            case Header():
                raise TypeError("a header begins another thread")
            case _:
                self._between(piece)

    def _between(self, piece: Compaction | Plan | Rollback | Discarded) -> None:
        if self._matching:
            self._waiting.append(piece)
        elif isinstance(piece, Rollback):
            self._roll_back(piece)
        else:
            self.ahead.between(piece)

    def _roll_back(self, piece: Rollback) -> None:
        self._pop(piece)
        self.ahead.rewind(self._top, piece.origin, piece.at_ms)

    def _pop(self, piece: Rollback) -> None:
        del self._stack[max(0, len(self._stack) - piece.turns) :]

    @property
    def _top(self) -> int:
        """Return the number of the newest turn that is in the context."""
        return self._stack[-1] if self._stack else 0

    def _turn(self, turn: Turn) -> None:
        """Compare the turn with the next known one, or make its events. A turn without inputs and answers is only what
        lies between turns.
        """
        if not turn.inputs and not any(isinstance(piece, Step) for piece in turn.pieces):
            for inner in turn.pieces:
                if isinstance(inner, Compaction | Plan):
                    self._between(inner)
            return
        ids = input_ids(self.header.tool, turn)
        if self._matching and self._matches(ids):
            known, mine = self._there[self._place]
            for waiting in self._waiting:
                if isinstance(waiting, Rollback):
                    self._pop(waiting)
            self._waiting.clear()
            self._place += 1
            self._stack.append(known.turn if mine else 0)
            self._last, self._last_number = turn, self._turns
            if mine:
                self.ahead.enter(known.turn)
            return
        if self._matching:
            self._leave(turn)
        if not self._is_older:
            self._last, self._last_number = turn, self._turns
            self._add(turn, ids)

    def _matches(self, ids: tuple[str, ...]) -> bool:
        return self._place < len(self._there) and is_same(self._there[self._place][0], ids)

    def _add(self, turn: Turn, ids: tuple[str, ...]) -> None:
        """Make the turn's events, without the tokens that were copied from the parent."""
        tell_turn(self.ahead, self._as_counted(turn), tuple([self.ahead.name_for(name) for name in ids]))
        self._stack.append(self.ahead.state.last_turn)

    def _as_counted(self, last: Turn) -> Turn:
        return without_copied(last) if self._last_number <= self.header.shared_turns else last

    # Where the new begins

    def _leave(self, turn: Turn | None) -> None:
        """Stop comparing. `turn` is the first one that does not exist, None at the end of the file: either the file is
        an older snapshot, or something new begins here.
        """
        own = self.target.own.state
        if not own.exists:
            if turn is None and not (self.target.base is None and self._waiting):
                self._is_older = True
                return
            self._matching = False
            self._create()
        else:
            if self._place < len(self._there) and (turn is None or self._is_replaced(turn)):
                self._is_older = True
                return
            self._matching = False
            self._go_on(turn)
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            self._between(piece)

    def _is_replaced(self, turn: Turn) -> bool:
        """Return whether the turn was imported and others replace it: then this is an older snapshot."""
        inputs = self.target.own.state.inputs
        return all(name in inputs for name in input_ids(self.header.tool, turn))

    def _create(self) -> None:
        self.ahead.create(self.target.config, self._lineage(), self.header.title)
        self._begin()

    def _lineage(self) -> Lineage | None:
        """Return where a new thread comes from: a fork begins where the last shared turn ended."""
        base = self.target.base
        shared = self.target.shared if self.target.shared is not None else self._place
        if self.target.lineage is not None or base is None or shared == 0:
            return self.target.lineage
        parent, turn = base.turns[shared - 1]
        end = turn.end
        return Lineage(kind="fork", parent=parent.thread, seq=end.seq, chain=end.chain, depth=base.depth)

    def _begin(self) -> None:
        """Begin the import, unless it is under way since before a crash, and record the file itself as an artifact."""
        ahead, origin = self.ahead, self.header.origin
        if ahead.state.status != "importing" or ahead.state.import_source is None:
            ahead.begin(self.file.source, self.file.report)
        raw = self.file.raw
        ahead.add(
            ArtifactRecorded(sha256=raw.sha256, size=raw.size, media_type=raw.media_type, name=raw.name), origin, None
        )
        if self._prelude < 0:
            self._prelude = len(ahead.out)

    def _go_on(self, turn: Turn | None) -> None:
        """Continue a thread that exists. Another snapshot's import that died here is ended first, and the turn that it
        left open is told again.
        """
        ahead, own = self.ahead, self.target.own
        foreign = own.state.status == "importing" and own.state.import_source not in {None, self.file.source}
        if foreign:
            # Another snapshot's import died here: it ends as it is, and the turn that it left open is told again.
            lose_calls(ahead, self.header.origin)
            ahead.end(own.state.import_source or "", {}, self.header.origin)
            ahead.recent = own.recent.lasting
        self._begin()
        is_last = self._place == len(self._there) and self._place > 0 and self._there[-1][1]
        if not is_last or self._last is None:
            if self._place < len(self._there) and turn is not None:
                self._put_aside(self._there[self._place][0].turn, None, turn.origin)
            return
        if own.state.turn is not None and not foreign:
            tell_turn(ahead, self._as_counted(self._last), ())
        elif self._is_cut_off() if foreign else self._is_told_otherwise(self._last):
            last = self._last
            self._put_aside(self._stack.pop(), last, last.origin)
            self._add(without_counted(last, self._counted(foreign=foreign)), input_ids(self.header.tool, last))

    def _is_cut_off(self) -> bool:
        """Return whether the last turn may have been told in part by an import that died. Such an import also ends a
        turn that its file had no end of, and dies before it could say so.
        """
        state = self.target.own.state
        return state.turn is not None or state.last_outcome == "interrupted"

    def _is_told_otherwise(self, last: Turn) -> bool:
        """Return whether the file tells more of the last turn than the import before it did."""
        seen = self.target.own.last_turn
        if seen is None or self.target.own.state.status != "active":
            return False
        now = told(self.header.tool, last)
        return seen.first_input == now.first_input and seen.digest != now.digest and seen.extent < now.extent

    def _counted(self, *, foreign: bool) -> tuple[int, int]:
        """Return the tokens of the turn that is told again, as far as they were counted before."""
        own = self.target.own
        if foreign:
            return own.turns[-1].tokens
        return own.last_turn.tokens if own.last_turn is not None else (0, 0)

    def _put_aside(self, first: int, newer: Turn | None, origin: Origin) -> None:
        """Take everything after the top of the stack out of the context. Its calls without a known end are settled
        first: nobody should be asked about what is told again.
        """
        for call in unknown_calls(self.ahead.state):
            if call.turn >= first and call.claim is not None:
                self._settle(call, newer, origin)
        self.ahead.recent = frozenset()
        self.ahead.enter(self._top)
        self.ahead.rewind(self._top, origin, None, in_place=first)

    def _settle(self, call: KnownCall, newer: Turn | None, origin: Origin) -> None:
        """Settle a call of a turn that is told again: as it ended, or with a hint to where it is told now."""
        found = _same_call(newer, call)
        outcome = FINISHED.get(found.end) if found is not None else None
        number = self.ahead.state.last_turn + 1
        if found is not None and outcome is not None:
            result = Cutter(self.limits.result_bytes_max // 2).cut_json(sanitize_json(found.result))
        else:
            again = f" as {call_id(number, call.step, call.index)}" if found is not None else ""
            outcome = "cancelled"
            result = f"A longer snapshot of the session tells this turn again{again}."
        event = ToolCallFinished(
            call=call.call, attempt=call.attempt, claim=call.claim or "", outcome=outcome, result=result
        )
        self.ahead.add(event, origin, None)


def _same_call(newer: Turn | None, call: KnownCall) -> Call | None:
    """Return the call at the same place of the turn as it is told now."""
    if newer is None:
        return None
    steps = [piece for piece in newer.pieces if isinstance(piece, Step) and piece.error is None]
    if call.step > len(steps) or call.index >= len(steps[call.step - 1].calls):
        return None
    found = steps[call.step - 1].calls[call.index]
    return found if found.tool == call.tool else None


def without_copied(turn: Turn) -> Turn:
    """Return the turn without the tokens that count in the thread it was copied from, where no response id shows that
    they are the same.
    """
    pieces = [
        replace(piece, usage=None)
        if isinstance(piece, Compaction) or (isinstance(piece, Step) and piece.response_id is None)
        else piece
        for piece in turn.pieces
    ]
    return replace(turn, pieces=tuple(pieces))


def without_counted(turn: Turn, counted: tuple[int, int]) -> Turn:
    """Return the turn without the tokens that were counted when it was told before. They belong to the first of its
    responses.
    """
    pieces = list(turn.pieces)
    tokens_in, tokens_out = counted
    for place, piece in enumerate(pieces):
        if not isinstance(piece, Step | Compaction) or piece.usage is None:
            continue
        tokens_in, tokens_out = tokens_in - piece.usage.input_tokens, tokens_out - piece.usage.output_tokens
        if tokens_in < 0 or tokens_out < 0:
            break
        pieces[place] = replace(piece, usage=None)
    return replace(turn, pieces=tuple(pieces))


def told(tool: Tool, turn: Turn) -> Told:
    """Return how the file tells the turn."""
    parts: list[object] = [turn.outcome]
    calls: list[Call] = []
    characters = tokens_in = tokens_out = 0
    for piece in turn.pieces:
        if isinstance(piece, Step | Compaction) and piece.usage is not None:
            tokens_in, tokens_out = tokens_in + piece.usage.input_tokens, tokens_out + piece.usage.output_tokens
        match piece:
            case Step():
                calls.extend(piece.calls)
                characters += sum(len(item.text) for item in piece.items)
                ends = [(call.source_id, call.tool, call.args, call.end, call.result) for call in piece.calls]
                parts.append((piece.items, ends, piece.usage, piece.response_id, piece.error))
            case Compaction():
                parts.append(piece.summary)
            case Plan():
                parts.append([(task.id, task.status) for task in piece.tasks])
            case _:
                parts.append(piece.source_id)
    known_ends = sum(call.end != "unknown" for call in calls)
    has_end = int(turn.outcome != "interrupted")
    extent = (
        len(turn.pieces),
        len(calls),
        known_ends,
        characters,
        tokens_in + tokens_out,
        has_end,
        int(not turn.is_open),
    )
    digest = sha256(repr(parts).encode(errors="replace")).hexdigest()
    return Told(input_ids(tool, turn)[0], digest, extent, (tokens_in, tokens_out))


def ordinals_end_of(ended: ThreadImportEnded) -> int:
    """Return how far the file numbered its records; 0 where it does not."""
    found = ended.report.get(ORDINALS_END)
    return found if isinstance(found, int) else 0


def last_turn_of(ended: ThreadImportEnded) -> Told | None:
    """Return what the end of an import says of the session's last turn."""
    match ended.report.get(LAST_TURN):
        case {
            "input": str(name),
            "digest": str(digest),
            "extent": list(extent),
            "tokens": [int(tokens_in), int(tokens_out)],
        }:
            known = tuple([part for part in extent if isinstance(part, int)])
            return Told(name, digest, known, (tokens_in, tokens_out))
        case _:
            return None
