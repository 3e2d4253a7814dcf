"""The second fold: what was said, as history keeps it and as the model sees it.

`transcript_changes` says what one record changes; the projector writes the changes as rows, and `Transcript` applies
them in memory. Both therefore show the same items.

A fork begins with what its parent's context was at the seq where it was forked (`inherited`), by reference: nothing is
copied, and whoever folds a fork gives its transcript what `inherited` made of the parent's. A summary of the fork's own
stands for that, too; a summary that it inherited hides nothing of its own.

An item is known by the seq of the record that brought it and a number within that record. A user's message waits
without a place until a turn or a step takes it; its `place` is then the seq of that record. Every call has exactly
one result item, synthesised where the call was denied, cancelled or ended unknown (providers refuse a call without
one); a later resolution adds an item of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias, assert_never

from pydantic import JsonValue

from schemas.codec import Record
from schemas.events import (
    AnswerReasoning,
    AnswerText,
    ContextCompacted,
    InputSubmitted,
    Lineage,
    StepFinished,
    StepStarted,
    ThreadCreated,
    ThreadRewound,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallFinished,
    ToolCallResolved,
    TurnStarted,
)
from schemas.ids import call_id
from schemas.state import Call, ThreadState, unknown_calls, unsettled_calls
from schemas.thread import Verdict

ItemKind = Literal["message", "reasoning", "tool_call", "tool_result", "resolution", "summary"]


class Item(NamedTuple):
    """An item is one piece of the conversation."""

    seq: int
    """Seq of the record that brought it."""
    part: int
    """Number within the record, from 0."""
    kind: ItemKind
    turn: int | None
    """None for a message that waits. For a summary: the last turn that it may mention."""
    step: int | None
    place: int | None
    """Where the item stands in the context: the seq of the record that put it there. None for one that waits, and for
    what came of a call after its turn was rewound.
    """
    content: dict[str, JsonValue]
    """Content in the form that the model port takes, `kind` included."""
    digest: str
    """sha256 over what the item is: the hash of its record's bytes, and its number."""
    input: str | None = None
    """Id of the input, for a user's message."""
    call: str | None = None
    """Name of the call. An inherited one begins with the id of its thread, so that it is unique in the whole
    context.
    """
    thread: str | None = None
    """The thread of an inherited item; None for an own one. Seq, turn and place are of that thread."""


class Forked(NamedTuple):
    """The parent's items at that seq stand before the thread's own."""

    lineage: Lineage


class ItemAdded(NamedTuple):
    item: Item


class InputTaken(NamedTuple):
    """The message of this input gets its place."""

    input: str
    turn: int
    step: int | None
    place: int


class InputDropped(NamedTuple):
    """The input was withdrawn or discarded: its message stays in history and never reaches a model."""

    input: str
    reason: str


class Rewound(NamedTuple):
    """Items of turns after `to_turn` leave the context, with summaries that may mention them. What such a summary stood
    for returns.
    """

    to_turn: int
    seq: int


class Compacted(NamedTuple):
    """Items with a place up to `through_seq` leave the context, and results of calls that do. The summary, added by the
    same record, leads it.
    """

    through_seq: int
    seq: int


class CallEdited(NamedTuple):
    """An approver's arguments replace the model's."""

    call: str
    args: dict[str, JsonValue]


Change: TypeAlias = Forked | ItemAdded | InputTaken | InputDropped | Rewound | Compacted | CallEdited


def transcript_changes(before: ThreadState, after: ThreadState, record: Record, verdict: Verdict) -> tuple[Change, ...]:
    """Return what the record changes in the transcript, in order. A record without effect changes nothing."""
    if verdict.effect != "applied":
        return ()
    changes = _own_changes(after, record)
    changes.extend(_calls_settled(before, after, record, len(changes)))
    changes.extend(_inputs_dropped(before, after, record))
    return tuple(changes)


def _own_changes(after: ThreadState, record: Record) -> list[Change]:
    if type(record.data) not in _WITH_CHANGES:
        return []
    match record.data:
        case InputSubmitted() as data:
            content: dict[str, JsonValue] = {
                "kind": "message",
                "role": "user",
                "content": [item.model_dump(mode="json", exclude_none=True) for item in data.items],
            }
            item = Item(after.seq, 0, "message", None, None, None, content, _digest(record, 0), data.input)
            return [ItemAdded(item)]
        case TurnStarted() as data:
            return [InputTaken(name, data.turn, None, after.seq) for name in data.inputs]
        case StepStarted() as data if data.attempt == 1:
            return [InputTaken(name, data.turn, data.step, after.seq) for name in data.inputs]
        case StepFinished() as data:
            return _answer_items(after, record, data)
        case ToolCallApproved(edited=edited) as data if edited is not None:
            return [CallEdited(data.call, edited.args)]
        case ThreadRewound() as data:
            return [Rewound(data.to_turn, after.seq)]
        case ThreadCreated(lineage=Lineage(kind="fork") as lineage):
            return [Forked(lineage)]
        case ContextCompacted() as data:
            summary: dict[str, JsonValue] = {"kind": "summary", "text": data.summary, "through_seq": data.through_seq}
            carried = _carried(after)
            if carried:
                summary["state"] = carried
            turn = after.last_turn or None
            item = Item(after.seq, 0, "summary", turn, None, after.seq, summary, _digest(record, 0))
            return [Compacted(data.through_seq, after.seq), ItemAdded(item)]
        case _:
            return []


_WITH_CHANGES = frozenset(
    {
        *(InputSubmitted, TurnStarted, StepStarted, StepFinished, ToolCallApproved, ThreadRewound, ThreadCreated),
        ContextCompacted,
    }
)
"""Events that may change something by themselves. Most do not, and are not compared with each of these in turn."""


def _carried(state: ThreadState) -> dict[str, JsonValue]:
    """Return what continues beside a summary and is not left to its words: the plan in force, calls that may have run,
    and the loaded skills.
    """
    carried: dict[str, JsonValue] = {}
    plan = state.plan
    if plan.in_force is not None:
        tasks: list[JsonValue] = [
            {"id": name, "title": standing.task.title, "status": standing.status}
            for name, standing in plan.tasks.items()
        ]
        carried["plan"] = {"version": plan.in_force, "tasks": tasks}
    unknown: list[JsonValue] = [
        {"call": call.call, "tool": call.tool} for call in sorted(unknown_calls(state), key=_order) if not call.rewound
    ]
    if unknown:
        carried["unknown_calls"] = unknown
    if state.skills:
        carried["skills"] = [{"name": name, "version": skill.version} for name, skill in state.skills.items()]
    return carried


def _answer_items(after: ThreadState, record: Record, data: StepFinished) -> list[Change]:
    changes: list[Change] = []
    for answer in data.items:
        content: dict[str, JsonValue]
        kind: ItemKind
        match answer:
            case AnswerText():
                kind = "message"
                text: JsonValue = [{"type": "text", "text": answer.text}]
                content = {"kind": "message", "role": "assistant", "content": text}
            case AnswerReasoning():
                kind = "reasoning"
                content = {"kind": "reasoning", "text": answer.text}
            case _:
                assert_never(answer)
        if answer.provider is not None:
            content["provider"] = answer.provider
        index = len(changes)
        item = Item(after.seq, index, kind, data.turn, data.step, after.seq, content, _digest(record, index))
        changes.append(ItemAdded(item))
    for call in data.calls:
        index = len(changes)
        name = call_id(data.turn, data.step, call.index)
        content = {"kind": "tool_call", "call": name, "tool": call.tool, "args": call.args}
        if call.provider_id is not None:
            content["provider_id"] = call.provider_id
        if call.malformed is not None:
            content["malformed"] = call.malformed
        digest = _digest(record, index)
        item = Item(after.seq, index, "tool_call", data.turn, data.step, after.seq, content, digest, None, name)
        changes.append(ItemAdded(item))
    return changes


_TOLD = frozenset({"settled", "unknown"})
"""Statuses of calls that may have a result item."""


def _calls_settled(before: ThreadState, after: ThreadState, record: Record, index: int) -> list[Change]:
    """Return a result item for each call that this record settled, or that the end of its turn leaves unknown."""
    turn_over = before.turn is not None and after.turn is None
    if after.calls is before.calls and not turn_over:
        return []
    settled = [
        call
        for name, call in after.calls.items()
        if call.status in _TOLD and (turn_over or before.calls.get(name) is not call)
    ]
    changes: list[Change] = []
    for call in sorted(settled, key=_order):
        old = before.calls.get(call.call)
        if old is not None and (old.settled or (not call.settled and _was_told(before, old))):
            continue
        item = _result_item(before, call, record, turn_over=turn_over, place=after.seq, index=index + len(changes))
        if item is not None:
            changes.append(ItemAdded(item))
    return changes


def _was_told(before: ThreadState, call: Call | None) -> bool:
    """Return whether the unknown call already has its result item: an imported turn may continue without knowing."""
    return call is not None and call.status == "unknown" and before.status == "importing"


def _order(call: Call) -> tuple[int, int, int]:
    return call.turn, call.step, call.index


def _result_item(
    before: ThreadState, call: Call, record: Record, *, turn_over: bool, place: int, index: int
) -> Item | None:
    open_turn = before.turn.turn if before.turn is not None else 0
    in_open_turn = call.turn == open_turn
    kind: ItemKind = "tool_result"
    if call.settled:
        told = _was_told(before, before.calls.get(call.call))
        kind = "tool_result" if in_open_turn and not told else "resolution"
    elif not (in_open_turn and call.status == "unknown" and (turn_over or before.status == "importing")):
        return None
    content: dict[str, JsonValue] = {
        "kind": kind,
        "call": call.call,
        "tool": call.tool,
        "outcome": call.outcome or "unknown",
        "content": _result_content(call, record),
    }
    digest = _digest(record, index)
    seen_at = None if call.rewound else place
    return Item(place, index, kind, call.turn, call.step, seen_at, content, digest, None, call.call)


def _result_content(call: Call, record: Record) -> JsonValue:
    """Return the tool's own result where there is one, otherwise a sentence for the model."""
    match record.data:
        case ToolCallFinished(call=name, result=result) if name == call.call and call.settled and result is not None:
            return result
        case ToolCallResolved(call=name, result=result, note=note) if name == call.call and call.settled:
            return result if result is not None else note or _SENTENCES[call.outcome or "unknown"]
        case ToolCallDenied(call=name, reason=reason) if name == call.call:
            return f"{_SENTENCES['denied']} {reason}"
        case _:
            return _SENTENCES[call.outcome or "unknown"]


_SENTENCES: dict[str, str] = {
    "succeeded": "The tool succeeded; its result was not recorded.",
    "failed": "The tool failed.",
    "timed_out": "The tool ran out of time and was stopped.",
    "cancelled": "The call was cancelled.",
    "denied": "The call was denied.",
    "expired": "Nobody approved the call in time; it did not run.",
    "not_started": "The tool could not be started; it did not run.",
    "abandoned": "Whether the tool ran is not known, and it was given up.",
    "unknown": "Whether the tool ran is not known: its executor was lost while it ran.",
}


def _inputs_dropped(before: ThreadState, after: ThreadState, record: Record) -> list[Change]:
    """Return the inputs that left the queue without being taken: withdrawn, or gone with their turn or thread."""
    if after.queue is before.queue or isinstance(record.data, InputSubmitted | StepStarted):
        return []
    left = {item.input for item in after.queue}
    taken = set(record.data.inputs) if isinstance(record.data, TurnStarted) else set()
    reason = record.kind
    return [InputDropped(item.input, reason) for item in before.queue if item.input not in left | taken]


def _digest(record: Record, index: int) -> str:
    """Return a short name of the item's content that needs no hashing of the content itself."""
    return sha256(f"{record.data_hash}:{index}".encode()).hexdigest()


@dataclass
class Transcript:
    """A transcript keeps the items of one thread in memory. `items` are in order of seq and part, waiting ones
    included.
    """

    items: list[Item] = field(default_factory=list)
    summary_seq: int = 0
    """Seq of the summary in force; 0 without one."""
    hidden: list[tuple[int, int]] = field(default_factory=list)
    """Rewinds: (to_turn, seq). Items of later turns that were placed before that seq are out of the context."""
    dropped: set[str] = field(default_factory=set)
    forked: Lineage | None = None
    inherited: tuple[Item, ...] | None = None
    """What a fork shows before its own items; None until somebody has said."""
    loaded_with: int = 0
    """Seq of the summary in force when it was loaded, without what that stands for; 0 where it is whole."""
    lacks_items: bool = False
    """Whether a rewind has brought back what it was loaded without: it has to be loaded again."""

    def copy(self) -> "Transcript":
        return replace(self, items=list(self.items), hidden=list(self.hidden), dropped=set(self.dropped))

    def apply(self, changes: tuple[Change, ...]) -> None:
        """Apply what `transcript_changes` returned for one record."""
        for change in changes:
            match change:
                case Forked(lineage):
                    self.forked = lineage
                case ItemAdded(item):
                    self.items.append(item)
                case InputTaken():
                    self._take(change)
                case InputDropped(name):
                    self.dropped.add(name)
                case Rewound(to_turn, seq):
                    self.hidden.append((to_turn, seq))
                    self.summary_seq = max([item.seq for item in self._summaries()], default=0)
                    self.lacks_items = self.lacks_items or self.summary_seq < self.loaded_with
                case Compacted(seq=seq):
                    self.summary_seq = seq
                case CallEdited(call, args):
                    self._edit(call, args)
                case _:
                    assert_never(change)

    def _take(self, taken: InputTaken) -> None:
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if item.input == taken.input:
                self.items[place] = item._replace(turn=taken.turn, step=taken.step, place=taken.place)
                return

    def _edit(self, call: str, args: dict[str, JsonValue]) -> None:
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if item.call == call and item.kind == "tool_call":
                self.items[place] = item._replace(content={**item.content, "args": args})
                return

    def _summaries(self) -> list[Item]:
        return [item for item in self.items if item.kind == "summary" and not self._is_rewound(item)]

    @property
    def lacks_inherited(self) -> bool:
        """Return whether a fork cannot show its context before it is given what it inherits."""
        return self.forked is not None and self.inherited is None and self._summary() is None

    def _summary(self) -> Item | None:
        """Return the summary in force."""
        return next((item for item in self._summaries() if item.seq == self.summary_seq), None)

    def context(self) -> list[Item]:
        """Return what a model sees, in order: first what a fork inherits, unless a summary of its own replaces it; then
        the summary in force; then what came after it and was not rewound. Raises ValueError where the inherited part is
        not known.
        """
        summary = self._summary()
        through_seq = 0 if summary is None else _through_seq(summary)
        inherited: Sequence[Item] = ()
        if self.forked is not None and summary is None:
            if self.inherited is None:
                raise ValueError(f"what is inherited from {self.forked.parent} is not known")
            inherited = self.inherited
        gone = {item.call for item in self.items if item.kind == "tool_call" and (item.place or 0) <= through_seq}
        shown = [
            item
            for item in self.items
            if (item.place or 0) > through_seq
            and (item.kind != "tool_result" or item.call not in gone)
            and (item.kind != "summary" or item.seq == self.summary_seq)
            and not self._is_rewound(item)
        ]
        shown.sort(key=_context_order)
        return [*inherited, *shown] if inherited else shown

    def _is_rewound(self, item: Item) -> bool:
        """Return whether a rewind that came after the item's place took its turn out of the context."""
        turn, place = item.turn or 0, item.place or 0
        return any(turn > to_turn and place <= seq for to_turn, seq in self.hidden)


def _through_seq(summary: Item) -> int:
    through_seq = summary.content["through_seq"]
    assert isinstance(through_seq, int)
    return through_seq


def _context_order(item: Item) -> tuple[bool, int, int, int]:
    """Summaries come first, then items by where they were placed, then by the record that brought them."""
    return item.kind != "summary", item.place or 0, item.seq, item.part


def is_settled(state: ThreadState) -> bool:
    """Return whether the thread can be forked here: no step is under way, and every call of an open turn has ended."""
    turn = state.turn
    return turn is None or (turn.step is None and not unsettled_calls(state, turn.turn))


def inherited(parent: str, context: Sequence[Item]) -> tuple[Item, ...]:
    """Return what a fork of the thread shows of the context that it had then. Calls keep their results, and their names
    begin with the thread's, so that no two in a context are alike. A fork inherits neither plan nor loaded skills, so
    summaries lose those parts.
    """
    return tuple([item if item.thread is not None else _inherited_item(parent, item) for item in context])


_NOT_INHERITED = frozenset({"plan", "skills"})


def _inherited_item(parent: str, item: Item) -> Item:
    content, call = item.content, item.call
    if call is not None:
        call = f"{parent}/{call}"
        content = {**content, "call": call}
    state = content.get("state") if item.kind == "summary" else None
    if isinstance(state, dict) and not _NOT_INHERITED.isdisjoint(state):
        content = {**content, "state": {name: value for name, value in state.items() if name not in _NOT_INHERITED}}
    return item._replace(content=content, call=call, thread=parent)


def context_hash(items: list[Item]) -> str:
    """Return what `step.started` records of the context: sha256 over the items' digests, in order."""
    return sha256("".join([item.digest for item in items]).encode()).hexdigest()
