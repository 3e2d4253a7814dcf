"""What a recorded session says, in the words of no tool: normalisers make it, `events` makes a thread's events of it.

A normaliser gives a stream of pieces for each thread of a session, in the order in which they happened: first its
`Header`, then turns and what lies between them. It holds one turn in memory at a time, whatever the size of the file.
Nothing here is invented: what the file does not say is None, and what had to be concluded from it says so (`inferred`).
Times are milliseconds since 1970, UTC.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar, dataclass_transform

from pydantic import JsonValue

from schemas.events import AnswerItem, ContentItem, Failure, TurnOutcome, Usage

Tool = Literal["claude-code", "codex"]
CallEnd = Literal["succeeded", "failed", "timed_out", "cancelled", "denied", "unknown"]
"""`unknown`: the file cannot tell whether the call ran. Such a call counts as unfinished where the file has no result
of it at all (`Call.end_origin`): one that was written when the session was taken up again says that it was interrupted.
"""
Evidence = Literal["recorded", "inferred"]
"""Whether the file says so, or it had to be concluded."""

KINDS_MAX = 200
"""Kinds of records that are counted one by one: a file may name as many as it has lines."""
KIND_CHARACTERS_MAX = 100
"""A kind's name is cut after so many: it comes from the file."""
OTHER_KINDS = "other kinds"
"""Stands for all kinds beyond the limit."""


C = TypeVar("C")


@dataclass_transform(frozen_default=True)
def _frozen(kind: type[C]) -> type[C]:
    """A frozen class to the type checker alone: one that is frozen at run time takes three times as long to make, and
    a session has many of them.
    """
    return dataclass(slots=True)(kind)


@_frozen
class Origin:
    """An origin says where in the session's file something stands."""

    line: int
    """The first line that it was made of, counted from 1."""
    inferred: str | None = None
    """What had to be concluded, in a few words, such as `end by the next prompt`."""


@_frozen
class Blob:
    """A blob is content that belongs into the artifact store: what a call printed, an image, a file before it was
    changed.
    """

    content: bytes
    media_type: str
    name: str | None = None


@_frozen
class Change:
    """A call changed this file."""

    path: str
    before: Blob | None = None
    after: Blob | None = None


@_frozen
class Input:
    """A person, or the tool in their name, told the model this."""

    source_id: str
    """Stays the same in every snapshot and copy of the session: the record's uuid, or what it is derived from."""
    items: tuple[ContentItem, ...]
    origin: Origin
    at_ms: int | None = None
    steers: bool = False
    """Came while the turn was open, and was taken by the step after it."""
    blobs: tuple[Blob, ...] = ()
    """Images and documents of it, beside `items`."""


@_frozen
class Call:
    """A call is what the model wanted a tool to do, and what became of it."""

    source_id: str
    tool: str
    args: dict[str, JsonValue]
    end: CallEnd
    origin: Origin
    end_origin: Origin | None = None
    """Where the result stands; None for a call without one."""
    malformed: str | None = None
    """The arguments as the model wrote them, where they are not a JSON object."""
    result: JsonValue = None
    """Text or content blocks, as the model was shown them."""
    blobs: tuple[Blob, ...] = ()
    """Images and documents of the result; in `result` their places are blocks without the bytes."""
    whole: Blob | None = None
    """The whole output, where the session keeps more of it than the model was shown."""
    exit_code: int | None = None
    """Exit status of a command, where the file has it."""
    approval: Literal["unrecorded", "approved", "denied"] = "unrecorded"
    decided_by: str | None = None
    """`user:…` or `policy:…`, where the file tells."""
    reason: str | None = None
    """Why it was denied, cancelled or left unknown, in the file's words where it has some."""
    started_ms: int | None = None
    ended_ms: int | None = None
    changes: tuple[Change, ...] = ()
    child: str | None = None
    """`source_id` of the thread that worked for it."""


@_frozen
class Step:
    """A step is one response of the model, or a request that failed (`error`)."""

    source_id: str
    origin: Origin
    items: tuple[AnswerItem, ...] = ()
    calls: tuple[Call, ...] = ()
    usage: Usage | None = None
    """Only at the response that it was counted for."""
    response_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    at_ms: int | None = None
    error: Failure | None = None


@_frozen
class Compaction:
    """A summary replaces the context before it."""

    summary: str
    origin: Origin
    at_ms: int | None = None
    by_person: bool = False
    """Whether a person asked for it."""
    usage: Usage | None = None
    """Tokens of the request that wrote the summary."""
    is_turn: bool = False
    """Where it lies between turns: the session calls it a turn of its own, one without a prompt."""


@_frozen
class PlanTask:
    """A task is one entry of a to-do list or plan."""

    id: str
    title: str
    status: Literal["pending", "running", "succeeded", "failed", "cancelled"]


@_frozen
class Plan:
    """A plan is a to-do list as a whole, as it was after a call wrote it."""

    tasks: tuple[PlanTask, ...]
    """All tasks, in the order of the list."""
    origin: Origin
    at_ms: int | None = None


@_frozen
class Turn:
    """A turn is what the session did for the inputs that began it."""

    source_id: str
    """Name of the turn, the same in every snapshot of the session."""
    inputs: tuple[Input, ...]
    """Those that began it; none where the file has lost them. Steering ones are among the pieces."""
    pieces: tuple["Step | Compaction | Plan | Input", ...]
    """What happened in it, in order."""
    outcome: TurnOutcome
    end_evidence: Evidence
    """Whether the file tells the end, or it was concluded."""
    origin: Origin
    reason: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    """Time of the record that tells its end, or of the turn's last record."""
    first_ordinal: int | None = None
    """Number of its first record, where records are numbered over the thread and its forks. A fork whose
    `Parent.through` is greater shares the turn.
    """
    is_open: bool = False
    """It is the session's last turn and its file tells no end: a longer snapshot may continue it. `outcome` is what
    becomes of it if none does.
    """


@_frozen
class Discarded:
    """This input was queued, and no turn took it."""

    input: Input
    reason: str


@_frozen
class Rollback:
    """The last turns left the context; they stay in history."""

    turns: int
    """How many turns it takes back, the newest first."""
    origin: Origin
    at_ms: int | None = None


@_frozen
class Title:
    """The session was given this title."""

    title: str
    origin: Origin


@_frozen
class Parent:
    """The thread that a fork or a child comes from, as far as the file names it. It may not be among the imported
    files.
    """

    source_id: str
    """Name of the parent thread."""
    kind: Literal["fork", "child"]
    turns: int | None = None
    """How many turns the fork shares: the parent's, and those that the parent itself shares. None for a child, and
    where the file does not tell.
    """
    through: str | None = None
    """What else tells the place: the uuid of the last shared record, or the ordinal of the first that is not shared."""
    call: str | None = None
    """`source_id` of the parent's call that a child works for."""
    is_copied: bool = False
    """Whether the file holds the shared turns too. Where it does not, they can come from the parent alone."""


@_frozen
class Header:
    """A thread begins. `source_id` names it in every snapshot of the session."""

    tool: Tool
    source_id: str
    origin: Origin
    tool_version: str | None = None
    parent: Parent | None = None
    title: str | None = None
    """Title that the session was given."""
    model: str | None = None
    cwd: str | None = None
    """Folder in which the session ran."""
    created_ms: int | None = None
    shared_turns: int = 0
    """How many of the turns that follow are copies of the parent's (`Parent.is_copied`)."""


Piece: TypeAlias = Header | Turn | Compaction | Plan | Rollback | Title | Discarded


@dataclass(slots=True)
class Counts:
    """A normaliser counts what it reads in one file. `records` are lines that are JSON objects."""

    records: int = 0
    bad_lines: int = 0
    """Lines that are not JSON objects, or too long."""
    not_understood: dict[str, int] = field(default_factory=dict)
    """Kind of record → how many of them the normaliser does not know."""
    ordinals_end: int = 0
    """The ordinal after the last one of the file, once it is read; 0 where records are not numbered."""

    def pass_over(self, kind: str) -> None:
        """Count a record that is not understood. Nothing of the file is dropped without a trace."""
        kind = kind[:KIND_CHARACTERS_MAX]
        if kind not in self.not_understood and len(self.not_understood) >= KINDS_MAX:
            kind = OTHER_KINDS
        self.not_understood[kind] = self.not_understood.get(kind, 0) + 1
