"""What a decision may know besides the state, and what can be decided. Values only.

A decision is a value and not an action, so it can be tested, compared and replayed without a log, a model or a clock.
The loop (`services.runtime.loop`) is the only one that acts on decisions.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pydantic import JsonValue

from schemas.events import CallOutcome, Confirmed, Context, Event
from schemas.ids import EventId, ThreadKey
from schemas.tools import Catalog, ToolSpec
from services.runtime.deciding.limits import Limits

RUNTIME = "service:runtime"
"""Actor of the events that the runtime decides on its own; those of a policy name the policy."""


class Calling(NamedTuple):
    """A model call for a step that this process has under way."""

    turn: int
    step: int
    attempt: int
    started: str
    """Data hash of the `step.started` that it answers."""


class Summarising(NamedTuple):
    """A model call for a summary that this process has under way."""

    requested: int
    """Seq of the request for the summary."""
    base: int
    through_seq: int
    attempt: int
    halvings: int = 0
    """How often the length of the conversation is halved for this try."""


class SummaryTries(NamedTuple):
    """How this process' tries at a summary went. They are in memory only: a new owner starts from `NO_TRIES`."""

    requested: int = 0
    failures: int = 0
    retriable: bool = True
    retry_at_ms: int = 0
    error: str = ""
    halvings: int = 0
    """Tries that were too long for the model. They do not count as failures."""


NO_TRIES = SummaryTries()


class ChildEnd(NamedTuple):
    """How the work ended that a child thread was begun for."""

    outcome: CallOutcome
    text: str
    """Its answer, or the reason why there is no answer."""


@dataclass(frozen=True, slots=True)
class World:
    """What a decision may know besides the state. Every field is a value, or a pure function of values."""

    owner: str
    """Name of this process: instance and incarnation."""
    agent_version: str
    catalog: Catalog
    limits: Limits
    confirmed: Confirmed
    """Seq and chain of the last record that was read back."""
    context: Callable[[], Context | None]
    """Returns the context that the next step would be asked with; None while the transcript is not loaded."""
    arguments_problem: Callable[[ToolSpec, dict[str, JsonValue], str | None], str | None]
    """Returns, for a tool, its arguments and what the model wrote if that is no object, why they do not fit the schema:
    a paragraph for the model, None if they fit.
    """
    is_ahead: bool = False
    """Whether the state contains own events that are not read back yet. Nothing is sent to other threads meanwhile,
    because the event that causes it may turn out to have no effect.
    """
    calling: Calling | Summarising | None = None
    tries: SummaryTries = NO_TRIES
    summed_up: Callable[[int], int | None] = lambda _: None
    """Returns how many items a summary through this seq would replace; None while the transcript is not loaded."""
    taken_over: str | None = None
    """Data hash of the `step.started` that was open when this process took the thread over, until that is recorded."""
    ended: ChildEnd | None = None
    """This thread's own end as a child, until its parent's thread has it."""
    children: Mapping[str, ChildEnd] = field(default_factory=dict)
    """Ends of this thread's children that were found in the views, by the child's id."""
    children_read_ms: int = 0
    """When the views were asked for them last; 0: never by this process."""
    stored: Container[tuple[ThreadKey, EventId]] = frozenset()
    """Events of other threads that this process sent, still wants, and that the log has acknowledged. Only what is in
    the log may be named to others, so a child is named once its `thread.created` is in here.
    """


class Append(NamedTuple):
    """Append an event to the thread itself."""

    event: Event
    actor: str = RUNTIME


class AppendTo(NamedTuple):
    """Append an event to another thread.

    It is decided again and again until it is no longer needed; each owner of this thread sends it once, and again if
    the log does not acknowledge it. So it must be harmless when it arrives twice, or late.
    """

    key: ThreadKey
    event: Event
    actor: str = RUNTIME


class ReadChild(NamedTuple):
    """Look up in the views whether the child has ended with this input."""

    key: ThreadKey
    input: str


class CallModel(NamedTuple):
    """Ask the model; the answer arrives as an event that the loop appends."""

    calling: Calling | Summarising


class DropModelCall(NamedTuple):
    """Cancel the model call under way, because its answer is no longer wanted."""


class LoadTranscript(NamedTuple):
    """Load the transcript, because the context is needed and not in memory."""


class LookAgain(NamedTuple):
    """Decide again at this time, even if no record arrives until then."""

    at_ms: int


Decision: TypeAlias = Append | AppendTo | ReadChild | CallModel | DropModelCall | LoadTranscript | LookAgain
Decisions: TypeAlias = Sequence[Decision]

NOTHING_TO_DO: Decisions = ()
"""Nothing to append and nothing to wait for but records."""


def joined(*parts: Decisions) -> Decisions:
    """Join decisions about different things that were made on the same state.

    If a part has events, the events of the first such part are all that is decided: the rest is decided again on the
    state that they lead to. Otherwise everything is waited for, and the earliest time to look again counts.
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
