"""The control state of a thread: what the log's records have come to. Only `schemas.thread` makes new ones.

Values are shared between states and never changed in place. What grows with a thread's length is not here: settled
calls leave with their turn's next step, ended turns are a number, content lives in the transcript.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from pydantic import JsonValue, TypeAdapter

from schemas.config import Config
from schemas.events import CancelReason, EffectClass, InputMode, Lineage, RequestedCall, TurnOutcome
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
"""Goes up with every change of meaning: states of another version are not trusted but folded again."""

REMEMBERED_COMMANDS = 256
REMEMBERED_INPUTS = 256
REMEMBERED_STARTS = 16
"""Attempts of one step whose late answer may still win."""
GRANTS_MAX = 256
SKILLS_MAX = 64
"""Loaded skills that a thread remembers."""

CHAIN_START = "0" * 64

Status = Literal["none", "importing", "active", "closing", "closed"]
CancelCause = CancelReason | Literal["interrupt", "close"]
CallStatus = Literal["proposed", "waiting", "approved", "dispatched", "running", "repeatable", "unknown", "settled"]
Settled = Literal["succeeded", "failed", "timed_out", "cancelled", "denied", "expired", "not_started", "abandoned"]
"""How a call ended. `expired` is a denial by time, `not_started` a last attempt that never ran, `abandoned` an unknown
that a person gave up on."""


@dataclass(frozen=True)
class QueuedInput:
    input: str
    mode: InputMode
    seq: int
    expected_turn: int | None = None
    held: bool = False
    """Queued before its turn was closed by a recovery: no turn takes it until another input comes."""
    call: RequestedCall | None = None
    """What the turn that takes it runs instead of asking a model."""


@dataclass(frozen=True)
class Call:
    call: str
    turn: int
    step: int
    index: int
    tool: str
    args: dict[str, JsonValue]
    """Empty once settled."""
    call_hash: str
    """In force: an edited approval changes it, and the arguments with it."""
    status: CallStatus
    seq: int
    """Of the proposal."""
    malformed: str | None = None
    approved_by: str | None = None
    expires_at_ms: int | None = None
    attempt: int = 0
    """The last that was dispatched."""
    dispatch_hash: str | None = None
    effect: EffectClass = "unsafe"
    pool: str = ""
    last: bool = False
    deadline_ms: int = 0
    timeout_ms: int = 0
    claim: str | None = None
    """Event id of the last claim that won; in pools without executors, of the dispatch."""
    claim_attempt: int = 0
    claimed_ms: int = 0
    lease_seconds: int | None = None
    executor: str | None = None
    lost_claims: int = 0
    """Claimed attempts that were lost, were not pure when they were dispatched, and are not known to have done nothing.
    """
    rewound: bool = False
    """Left the model's context with its turn; what still comes of it is history."""
    outcome: Settled | None = None
    settled_by: str | None = None
    """Event id of what settled it."""

    @property
    def settled(self) -> bool:
        return self.status == "settled"

    @property
    def may_have_run(self) -> bool:
        return self.lost_claims > 0


@dataclass(frozen=True)
class Step:
    step: int
    attempt: int
    status: Literal["open", "failed"]
    inputs: tuple[str, ...]
    starts: tuple[str, ...]
    """Data hashes of the starts that took effect, the latest last."""
    owner: str
    started_ms: int
    failures: int = 0
    """Tries that count: not those that were handed over, or whose context was too long for the model."""
    retriable: bool = True
    retry_at_ms: int | None = None
    error: str | None = None
    handed_over: bool = False
    seq: int = 0
    """Of its first attempt's start, where its inputs have their place."""
    too_long_base: int | None = None
    """Where the last try failed because the context was too long for the model: the base of that context."""


@dataclass(frozen=True)
class LoadedSkill:
    version: str
    sha256: str


@dataclass(frozen=True)
class Grant:
    """Later calls that a person approved in advance: with this hash, or of this tool."""

    call_hash: str | None
    tool: str | None
    by: str


@dataclass(frozen=True)
class Turn:
    turn: int
    inputs: tuple[str, ...]
    config: Config
    follows: str
    """Data hash of the last step.finished, before that of the turn.started."""
    started_ms: int
    started_hash: str
    started_seq: int
    cancelling: CancelCause | None = None
    cancelled_ms: int = 0
    steps: int = 0
    """Finished steps."""
    step: Step | None = None
    """The step that is open or failed."""
    grants: tuple[Grant, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    requested: RequestedCall | None = None
    """What this turn runs instead of asking a model."""
    children: int = 0
    """Calls that began a child thread."""
    waiting_since_ms: int | None = None
    """Since when nothing can go on without a person, or only child threads work."""
    waited_ms: int = 0


@dataclass
class ThreadState:
    """Treated as immutable by everybody; the fold changes the copy that it has just made."""

    seq: int = 0
    chain: str = CHAIN_START
    offset: int = -1
    """Of the last record that was folded."""
    status: Status = "none"
    created_ms: int = 0
    updated_ms: int = 0
    config: Config | None = None
    config_seq: int = 0
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    archived: bool = False
    lineage: Lineage | None = None
    live: bool = False
    """Whether the conversation has gone on since the last import: with an input, a turn, a rewind, a compaction or
    a plan.
    """
    import_source: str | None = None
    base: int = 0
    compaction_requested: bool = False
    compaction_seq: int = 0
    """Of the last request that took effect."""
    compaction_failed_turn: int | None = None
    """The last turn as of the last failed compaction since the base: it is not asked for by itself again in that turn.
    """
    context_tokens: int = 0
    """Of the last step since the base: what it was shown and what it answered, as the provider counted."""
    last_turn: int = 0
    last_outcome: TurnOutcome | None = None
    last_turn_hash: str = ""
    """Data hash of the last turn.ended that took effect."""
    turn: Turn | None = None
    queue: tuple[QueuedInput, ...] = ()
    calls: dict[str, Call] = field(default_factory=dict)
    """Of the last step, and unknown ones of any turn; in the order of their turns."""
    grants: tuple[Grant, ...] = ()
    plan: PlanState = field(default_factory=PlanState)
    skills: dict[str, LoadedSkill] = field(default_factory=dict)
    """By name, the version that was loaded last."""
    commands: dict[str, str] = field(default_factory=dict)
    """The last client commands: event id to the first 16 characters of the data hash."""
    inputs: dict[str, int] = field(default_factory=dict)
    """The last input ids, with the seq of their submission."""
    ignored_types: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return self.status != "none"


NOTHING = ThreadState()
"""The state of a thread of which no record has been read."""


def unsettled_calls(state: ThreadState, turn: int) -> list[Call]:
    """Calls of the open turn without an outcome, unknown ones among them, in order of their index. They are the last of
    all: it takes no longer where a thread has many unknown calls of turns before.
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
    return [call for call in state.calls.values() if call.status == "unknown" and (turn is None or call.turn == turn)]


def is_active(state: ThreadState) -> bool:
    """Whether decide or claim would act without a new record: such a state never leaves memory."""
    return (
        state.turn is not None
        or state.status == "closing"
        or (state.status == "active" and (state.compaction_requested or any(not item.held for item in state.queue)))
        or any(call.effect == "reconcilable" for call in unknown_calls(state))
        or (state.status != "closed" and (is_busy(state.plan) or _is_answered_by_runtime(state)))
    )


def _is_answered_by_runtime(state: ThreadState) -> bool:
    """Whether a plan waits that no person has to approve, or whose call may be over."""
    approval = state.config.plan_approval if state.config is not None else "always"
    return state.plan.waiting is not None and (approval == "never" or state.plan.call is not None)


def waits_for_others(state: ThreadState) -> bool:
    """Whether the open turn can go on only when a person answers an approval or a plan, or settles an unknown call, or
    when threads that work for it come to their ends: their turns have limits of their own.
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
    """JSON, for the projector's row."""
    return _adapter().dump_json(state)


def load_state(raw: bytes) -> ThreadState:
    """Raises pydantic.ValidationError for what `dump_state` of this fold version did not write."""
    return _adapter().validate_json(raw)
