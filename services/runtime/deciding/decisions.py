"""What a decision may know beside the state, and what it may come to: values only."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pydantic import JsonValue

from schemas.events import CallOutcome, Confirmed, Context, Event
from schemas.ids import EventId, ThreadKey
from schemas.tools import Catalog, ToolSpec
from services.runtime.deciding.limits import Limits

RUNTIME = "service:runtime"


class Calling(NamedTuple):
    """The model call that this process has under way for a thread."""

    turn: int
    step: int
    attempt: int
    started: str
    """Data hash of the start that it answers."""


class Summarising(NamedTuple):
    """The model call that this process has under way for a summary of a thread."""

    requested: int
    """Seq of the request that it answers."""
    base: int
    through_seq: int
    attempt: int
    halvings: int = 0
    """By which the conversation is shortened for it."""


class SummaryTries(NamedTuple):
    """What became of this process' tries at a summary."""

    requested: int = 0
    failures: int = 0
    retriable: bool = True
    retry_at_ms: int = 0
    error: str = ""
    halvings: int = 0
    """Tries that the model could not take because they were too long: they are no failures."""


NO_TRIES = SummaryTries()


class ChildEnd(NamedTuple):
    """What came of what a child thread was asked for."""

    outcome: CallOutcome
    text: str
    """Its answer, or why there is none."""


@dataclass(frozen=True, slots=True)
class World:
    """What a decision may know beside the state. Everything here is a value, or a pure function of values."""

    owner: str
    """This process: instance and incarnation."""
    agent_version: str
    catalog: Catalog
    limits: Limits
    confirmed: Confirmed
    """Seq and chain of the last record that was read back."""
    context: Callable[[], Context | None]
    """The context that the next step would be asked with; None while the transcript is not loaded."""
    arguments_problem: Callable[[ToolSpec, dict[str, JsonValue], str | None], str | None]
    """Why the arguments, or what the model wrote in their place, do not fit the tool's schema, in a paragraph for the
    model; None where they do."""
    is_ahead: bool = False
    """Whether the state holds own events that were not read back yet. Nothing is done to other threads meanwhile: what
    causes it may come to nothing.
    """
    calling: Calling | Summarising | None = None
    tries: SummaryTries = NO_TRIES
    summed_up: Callable[[int], int | None] = lambda _: None
    """How many items a summary through this seq would stand for; None while the transcript is not loaded."""
    taken_over: str | None = None
    """Data hash of the start that this process found open when it took the thread over, until it has said so."""
    ended: ChildEnd | None = None
    """This thread's own end as a child, until its parent's thread has it."""
    children: Mapping[str, ChildEnd] = field(default_factory=dict)
    """Ends of children of this thread, by their ids, as far as they were looked up."""
    children_read_ms: int = 0
    """When they were looked up last; 0 where this process never has."""
    stored: Container[tuple[ThreadKey, EventId]] = frozenset()
    """Events of other threads that this process sent, still wants, and that the log has acknowledged. Only what is in
    the log may be named to others, so a child is named once its `thread.created` is in here.
    """


class Append(NamedTuple):
    event: Event
    actor: str = RUNTIME


class AppendTo(NamedTuple):
    """An event of another thread. It is sent until it is acknowledged, once by each owner of this thread: whoever
    decides it makes sure that it is harmless when it comes twice.
    """

    key: ThreadKey
    event: Event
    actor: str = RUNTIME


class ReadChild(NamedTuple):
    """Look up whether the child has come to an end with this input."""

    key: ThreadKey
    input: str


class CallModel(NamedTuple):
    calling: Calling | Summarising


class DropModelCall(NamedTuple):
    """The answer is not wanted any more."""


class LoadTranscript(NamedTuple):
    """The context is needed and not in memory."""


class LookAgain(NamedTuple):
    at_ms: int


Decision: TypeAlias = Append | AppendTo | ReadChild | CallModel | DropModelCall | LoadTranscript | LookAgain
Decisions: TypeAlias = Sequence[Decision]

NOTHING_TO_DO: Decisions = ()


def joined(*parts: Decisions) -> Decisions:
    """One list of decisions that were made of different things, on the same state. Events of the first part that has
    any come before all else: the others are decided again on what they come to. Of several times the first counts.
    """
    given = [part for part in parts if part]
    if len(given) == 1 and len(given[0]) == 1:
        return given[0]
    kept: list[Decision] = []
    look: LookAgain | None = None
    for part in given:
        if any(isinstance(decision, Append) for decision in part):
            return [decision for decision in part if not isinstance(decision, LookAgain)]
        for decision in part:
            if not isinstance(decision, LookAgain):
                kept.append(decision)
            elif look is None or decision.at_ms < look.at_ms:
                look = decision
    return kept if look is None else [*kept, look]
