"""The control state of a thread: what the log's records have come to. Only `schemas.thread` makes new ones.

Values are shared between states and never changed in place. What grows with a thread's length is not here: settled
calls leave with their turn's next step, ended turns are a number, content lives in the transcript.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeAlias, TypeVar

from pydantic import JsonValue, TypeAdapter

from schemas.config import Config
from schemas.events import (
    CancelReason,
    EffectClass,
    Event,
    InputMode,
    InputSubmitted,
    Lineage,
    RequestedCall,
    StepFinished,
    ThreadCloseRequested,
    ThreadImportEnded,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
)
from schemas.plan import PlanState, is_busy
from schemas.tools import THREAD_POOL

P = ParamSpec("P")
V = TypeVar("V")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414  # mypy checks the names of the fields, and exports it

    def make(kind: Callable[P, V], /, *_: P.args, **fields: P.kwargs) -> V: ...
else:

    def make(kind: type, /, **fields: object) -> object:
        """`kind(**fields)` for the frozen values below, none of whose defaults is made, in a third of its time."""
        known = _unset(kind).copy()
        known.update(fields)
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", known)
        return made

    @cache
    def _unset(kind: type) -> dict[str, object]:
        """A value's fields in their order, as far as they have defaults with those."""
        return {each.name: each.default for each in fields(kind)}

    def replace(value: object, **changes: object) -> object:
        """`dataclasses.replace` for the frozen values below, in a fifth of its time: it was a third of the fold's."""
        fields = value.__dict__.copy()
        fields.update(changes)
        changed = object.__new__(type(value))
        object.__setattr__(changed, "__dict__", fields)
        return changed


FOLD_VERSION = 2
"""Goes up with every change of meaning. States of another version are not trusted: they are folded again."""

REMEMBERED_COMMANDS = 256
"""Client commands whose ids a thread remembers, to recognise a repeated one."""
REMEMBERED_INPUTS = 256
"""Input ids that a thread remembers, to recognise a repeated one."""
REMEMBERED_STARTS = 16
"""Attempts of one step whose late answer may still win."""
GRANTS_MAX = 256
"""Grants that a thread or a turn remembers; the oldest goes first."""
SKILLS_MAX = 64
"""Loaded skills that a thread remembers."""

CHAIN_START = "0" * 64
"""The chain before the first record."""

Status = Literal["none", "importing", "active", "closing", "closed"]
CancelCause = CancelReason | Literal["interrupt", "close"]
CallStatus = Literal["proposed", "waiting", "approved", "dispatched", "running", "repeatable", "unknown", "settled"]
Settled = Literal["succeeded", "failed", "timed_out", "cancelled", "denied", "expired", "not_started", "abandoned"]
"""How a call ended. `expired` is a denial by time, `not_started` a last attempt that never ran, `abandoned` an unknown
call that a person gave up on.
"""


@dataclass(frozen=True)
class QueuedInput:
    """An input that no turn has taken yet."""

    input: str
    mode: InputMode
    seq: int
    """Seq of the submission."""
    expected_turn: int | None = None
    """The only turn that may take it; None for any."""
    held: bool = False
    """It waited when its turn was closed by a recovery: no turn takes it until another input comes."""
    call: RequestedCall | None = None
    """The call that its turn runs instead of asking a model."""


@dataclass(frozen=True)
class Call:
    """A tool call from its proposal until the step after it settled, or for as long as it is unknown."""

    call: str
    turn: int
    step: int
    index: int
    tool: str
    args: dict[str, JsonValue]
    """Arguments as they will run; empty once settled."""
    call_hash: str
    """Hash of tool and arguments in force. An edited approval changes it together with the arguments."""
    status: CallStatus
    seq: int
    """Seq of the record that proposed it."""
    malformed: str | None = None
    """What the model wrote as arguments, where that is not a JSON object."""
    approved_by: str | None = None
    expires_at_ms: int | None = None
    attempt: int = 0
    """The last attempt that was dispatched; 0 before the first."""
    dispatch_hash: str | None = None
    """Data hash of that dispatch, to recognise a duplicate."""
    effect: EffectClass = "unsafe"
    pool: str = ""
    last: bool = False
    """Whether policy allows no further attempt."""
    deadline_ms: int = 0
    """When the runtime gives up on a call that nobody claimed, in milliseconds since 1970."""
    timeout_ms: int = 0
    """How long the tool may run, in milliseconds."""
    claim: str | None = None
    """Event id of the last claim that won. In pools without executors it is the id of the dispatch."""
    claim_attempt: int = 0
    """The attempt that was claimed."""
    claimed_ms: int = 0
    """When it was claimed; its lease counts from there."""
    lease_seconds: int | None = None
    executor: str | None = None
    """Instance and incarnation that claimed it."""
    lost_claims: int = 0
    """Claimed attempts that were lost, were not pure when they were dispatched, and are not known to have done
    nothing.
    """
    rewound: bool = False
    """It left the model's context with its turn. What still comes of it is history only."""
    outcome: Settled | None = None
    settled_by: str | None = None
    """Event id of what settled it, to recognise a duplicate."""

    @property
    def settled(self) -> bool:
        return self.status == "settled"

    @property
    def may_have_run(self) -> bool:
        """Return whether a lost claim may have had the call's effect."""
        return self.lost_claims > 0


@dataclass(frozen=True)
class Step:
    """A model call of the open turn that has no answer yet."""

    step: int
    attempt: int
    status: Literal["open", "failed"]
    inputs: tuple[str, ...]
    starts: tuple[str, ...]
    """Data hashes of the starts that took effect, the latest last. An answer to any of them may win."""
    owner: str
    started_ms: int
    failures: int = 0
    """Failures that count towards the limit: not those that were handed over, or whose context was too long."""
    retriable: bool = True
    retry_at_ms: int | None = None
    """Earliest time of the next attempt, in milliseconds since 1970; None: at once."""
    error: str | None = None
    handed_over: bool = False
    """The owner gave the step up on purpose, at a drain or a rebalance."""
    seq: int = 0
    """Seq of its first attempt's start, where the inputs that it took have their place."""
    too_long_base: int | None = None
    """Base of the context that was too long for the model in the last attempt; None where it was not."""


@dataclass(frozen=True)
class LoadedSkill:
    """A version of a skill that the thread has loaded."""

    version: str
    sha256: str


@dataclass(frozen=True)
class Grant:
    """A person's approval of later calls in advance: of those with this hash, or of this tool."""

    call_hash: str | None
    tool: str | None
    by: str


@dataclass(frozen=True)
class Turn:
    """The open turn."""

    turn: int
    inputs: tuple[str, ...]
    """Inputs that the turn began with."""
    config: Config
    """Configuration that was in force when it started; it stays for the whole turn."""
    follows: str
    """Data hash of the last step.finished of the turn, or of its turn.started. What comes next has to name it."""
    started_ms: int
    started_hash: str
    started_seq: int
    cancelling: CancelCause | None = None
    cancelled_ms: int = 0
    steps: int = 0
    """Number of finished steps."""
    step: Step | None = None
    """The step that is open or failed; None between steps."""
    grants: tuple[Grant, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    requested: RequestedCall | None = None
    """The call that this turn runs instead of asking a model."""
    children: int = 0
    """Number of calls that began a child thread."""
    waiting_since_ms: int | None = None
    """Since when only a person or child threads can let the turn continue; None while it can continue by itself."""
    waited_ms: int = 0
    """Time that it has waited so before, in milliseconds."""


@dataclass
class ThreadState:
    """Everything that deciding and claiming need to know about a thread. It is treated as immutable by everybody; the
    fold changes the copy that it has just made.
    """

    seq: int = 0
    """Seq of the last record that was folded, no-ops included."""
    chain: str = CHAIN_START
    """Hash chain over all records up to here."""
    offset: int = -1
    """Offset of the last record that was folded."""
    status: Status = "none"
    created_ms: int = 0
    updated_ms: int = 0
    config: Config | None = None
    config_seq: int = 0
    """Seq of the record that set the configuration in force."""
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    archived: bool = False
    lineage: Lineage | None = None
    live: bool = False
    """Whether the conversation has continued here since the last import, with an input, a turn, a rewind, a compaction
    or a plan.
    """
    import_source: str | None = None
    """Source of the import that is under way."""
    base: int = 0
    """Seq of the last record that replaced the context: a compaction, a rewind, or the end of an import."""
    compaction_requested: bool = False
    compaction_seq: int = 0
    """Seq of the last request for a compaction that took effect."""
    compaction_failed_turn: int | None = None
    """The last turn at the time of the last failed compaction since the base. The runtime does not ask again by itself
    in that turn.
    """
    context_tokens: int = 0
    """Tokens of the last step since the base, shown and answered, as the provider counted them."""
    last_turn: int = 0
    """Number of the last turn that started; 0 before the first."""
    last_outcome: TurnOutcome | None = None
    last_turn_hash: str = ""
    """Data hash of the last turn.ended that took effect."""
    turn: Turn | None = None
    queue: tuple[QueuedInput, ...] = ()
    """Inputs that wait for a turn or step, oldest first."""
    calls: dict[str, Call] = field(default_factory=dict)
    """Calls of the last step, and unknown calls of any turn, in the order of their turns."""
    grants: tuple[Grant, ...] = ()
    """Approvals in advance for the whole thread, oldest first."""
    plan: PlanState = field(default_factory=PlanState)
    skills: dict[str, LoadedSkill] = field(default_factory=dict)
    """Name → the version that was loaded last."""
    commands: dict[str, str] = field(default_factory=dict)
    """The last client commands: event id → the first 16 characters of the data hash."""
    inputs: dict[str, int] = field(default_factory=dict)
    """The last input ids → the seq of their submission."""
    ignored_types: tuple[str, ...] = ()
    """Types of the last records that this version did not know."""

    @property
    def exists(self) -> bool:
        return self.status != "none"


NOTHING = ThreadState()
"""The state of a thread of which no record has been read."""


def unsettled_calls(state: ThreadState, turn: int) -> list[Call]:
    """Return the calls of the open turn without an outcome, unknown ones included, in order of their index. They are
    the last in the dict, so the search costs the same where a thread has many unknown calls of earlier turns.
    """
    found: list[Call] = []
    for call in reversed(state.calls.values()):
        if call.turn != turn:
            break
        if call.status != "settled":
            found.append(call)
    found.reverse()
    return found


def unknown_calls(state: ThreadState, turn: int | None = None) -> list[Call]:
    """Return the calls of one turn, or of all turns, of which nobody knows whether they ran."""
    return [call for call in state.calls.values() if call.status == "unknown" and (turn is None or call.turn == turn)]


def is_active(state: ThreadState) -> bool:
    """Return whether deciding or claiming would act without a new record. The state of an active thread never leaves
    memory, and a service that takes a partition over loads it at once.
    """
    return (
        state.turn is not None
        or state.status == "closing"
        or (state.status == "active" and (state.compaction_requested or any(not item.held for item in state.queue)))
        or any(call.effect == "reconcilable" for call in unknown_calls(state))
        or (state.status != "closed" and (is_busy(state.plan) or _is_answered_by_runtime(state)))
    )


def _is_answered_by_runtime(state: ThreadState) -> bool:
    """Return whether a plan version waits that no person has to approve, or whose call may be over."""
    approval = state.config.plan_approval if state.config is not None else "always"
    return state.plan.waiting is not None and (approval == "never" or state.plan.call is not None)


def waits_for_others(state: ThreadState) -> bool:
    """Return whether the open turn can continue only when a person answers an approval or a plan or settles an unknown
    call, or when threads that work for it end. Those threads' turns have limits of their own.
    """
    if state.turn is None or state.turn.step is not None:
        return False
    waits, turn = False, state.turn.turn
    for call in reversed(state.calls.values()):
        if call.turn != turn:
            break
        if call.status != "settled":
            at_work = call.status == "running" and call.pool == THREAD_POOL
            if call.status not in {"waiting", "unknown"} and not at_work:
                return False
            waits = True
    return waits


@cache
def _adapter() -> TypeAdapter[ThreadState]:
    return TypeAdapter(ThreadState)


def dump_state(state: ThreadState) -> bytes:
    """Return the state as JSON, for the projector's row."""
    return _adapter().dump_json(state)


def load_state(raw: bytes) -> ThreadState:
    """Return the state that `dump_state` of this fold version wrote. Raises pydantic.ValidationError for
    anything else.
    """
    return _adapter().validate_json(raw)


# Which event takes a turn or a call from one status to which others
#
# `schemas.thread` decides whether an event fits, from more than a status: hashes, attempts, claims, deadlines. These
# tables say what is possible at all, so that a reader sees a life at one look. They are data: the state diagrams of the
# documents are drawn from them, and a property test holds them against the fold in both directions: no history shows a
# change that is not here, and every change that is here has been seen. A status that stays as it is has no entry.

TurnStatus = Literal["open", "cancelling", "ended"]
Changes: TypeAlias = Mapping[tuple[str | None, type[Event]], frozenset[str]]
"""(status before, event) → statuses that may follow. None is the status of what does not exist yet."""

TURN_CHANGES: Final[Changes] = {
    (None, TurnStarted): frozenset({"open"}),
    ("open", TurnCancelRequested): frozenset({"cancelling"}),
    ("open", InputSubmitted): frozenset({"cancelling"}),  # an interrupting input
    ("open", ThreadCloseRequested): frozenset({"cancelling", "ended"}),  # ended where the thread is being imported
    ("open", TurnEnded): frozenset({"ended"}),
    ("open", ThreadImportEnded): frozenset({"ended"}),
    ("cancelling", TurnEnded): frozenset({"ended"}),
    ("cancelling", ThreadImportEnded): frozenset({"ended"}),
    ("cancelling", ThreadCloseRequested): frozenset({"ended"}),  # as above
}
"""A turn is cancelled by the first of several events, and no later one changes that."""

_CANCELS: Final = (TurnCancelRequested, InputSubmitted, ThreadCloseRequested)
_UNSTARTED: Final = ("proposed", "waiting", "approved")
_UNCLAIMED: Final = ("dispatched", "repeatable")

CALL_CHANGES: Final[Changes] = {
    # A turn that is being cancelled settles the calls of a late answer at once.
    (None, StepFinished): frozenset({"proposed", "settled"}),
    ("proposed", ToolCallApprovalRequested): frozenset({"waiting"}),
    ("proposed", ToolCallApproved): frozenset({"approved"}),
    ("waiting", ToolCallApproved): frozenset({"approved"}),
    ("proposed", ToolCallDenied): frozenset({"settled"}),
    ("waiting", ToolCallDenied): frozenset({"settled"}),
    ("waiting", ToolCallApprovalExpired): frozenset({"settled"}),
    # Calls that no executor claims, such as those of client tools, run from their dispatch on.
    ("approved", ToolCallDispatched): frozenset({"dispatched", "running"}),
    ("repeatable", ToolCallDispatched): frozenset({"dispatched", "running"}),
    ("dispatched", ToolCallStarted): frozenset({"running"}),
    # `not_started` gives the call back, or shows that it is unknown on account of an earlier claim.
    ("running", ToolCallFinished): frozenset({"settled", "repeatable", "unknown"}),
    # The late result of an earlier attempt: of a pure call, which may run more than once.
    ("dispatched", ToolCallFinished): frozenset({"settled"}),
    ("repeatable", ToolCallFinished): frozenset({"settled"}),
    ("unknown", ToolCallFinished): frozenset({"settled", "repeatable"}),
    ("dispatched", ToolCallLost): frozenset({"repeatable", "unknown", "settled"}),
    ("running", ToolCallLost): frozenset({"repeatable", "unknown", "settled"}),
    ("unknown", ToolCallResolved): frozenset({"settled", "repeatable"}),
    # A cancel settles what did not run; what may have run under an earlier claim is unknown.
    **{(status, cancel): frozenset({"settled"}) for status in _UNSTARTED for cancel in _CANCELS},
    # Closing a thread that is being imported ends its import, too.
    **{(status, ThreadCloseRequested): frozenset({"settled", "unknown"}) for status in _UNSTARTED},
    **{(status, cancel): frozenset({"settled", "unknown"}) for status in _UNCLAIMED for cancel in _CANCELS},
    # The end of an import: nobody will ever say what became of what its source left open.
    **{(status, ThreadImportEnded): frozenset({"unknown"}) for status in (*_UNSTARTED, *_UNCLAIMED, "running")},
    ("running", ThreadCloseRequested): frozenset({"unknown"}),
}
"""Settled calls change no more: the state forgets them when the next turn starts."""


def turn_status(state: ThreadState, turn: int) -> TurnStatus | None:
    """Return the status of a turn by its number, None before it started."""
    if state.turn is not None and state.turn.turn == turn:
        return "open" if state.turn.cancelling is None else "cancelling"
    return "ended" if turn <= state.last_turn else None


def call_statuses(state: ThreadState) -> dict[str, CallStatus]:
    """Return the status of each call that the state holds. Settled calls leave it when the next turn starts."""
    return {name: call.status for name, call in state.calls.items()}
