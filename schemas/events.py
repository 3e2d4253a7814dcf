"""Every event, its type and version pinned. A released version never changes: a new rule is a new version.

`kind` names the event (`tool_call.finished`), `version` its data; the CloudEvents type is
`dev.threadlog.<kind>.v<version>`. `identity` names the fields that, with thread and kind, make a service's event id.
Times are milliseconds since 1970, UTC.
"""

from functools import cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from schemas.config import Config, Frozen
from schemas.ids import CALL_PATTERN, EventId, ThreadKey, derive_service_event

TYPE_PREFIX = "dev.threadlog."

Positive = Annotated[int, Field(ge=1, le=2**53 - 1)]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Milliseconds = Annotated[int, Field(ge=0, le=2**53 - 1)]
Call = Annotated[str, Field(pattern=CALL_PATTERN)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Id = Annotated[str, Field(min_length=1, max_length=200)]

EffectClass = Literal["pure", "idempotent", "reconcilable", "unsafe"]
InputMode = Literal["queue", "steer", "interrupt", "reject"]
TurnOutcome = Literal["completed", "aborted", "failed", "interrupted"]
CallOutcome = Literal["succeeded", "failed", "timed_out", "cancelled"]
CancelReason = Literal["user", "limit", "recovery", "parent"]
TaskStatus = Literal["pending", "running", "succeeded", "failed", "cancelled"]

CONTEXT_TOO_LONG = "context_too_long"
"""The kind of a failure: the model does not take as much as it was asked with."""

POOLS_WITHOUT_EXECUTOR = frozenset({"client", "thread", "import"})
"""Pools in which dispatching is the claim: the customer's backend, what the runtime does itself (child threads, plans),
and what an imported session ran.
"""


# Parts of events


class TextItem(Frozen):
    type: Literal["text"] = "text"
    text: str


class ArtifactItem(Frozen):
    type: Literal["artifact"] = "artifact"
    sha256: Hash
    size: Count
    media_type: str
    name: str | None = None
    summary: str | None = None


ContentItem = Annotated[TextItem | ArtifactItem, Field(discriminator="type")]


class AnswerText(Frozen):
    type: Literal["text"] = "text"
    text: str
    provider: dict[str, JsonValue] | None = None
    """What the provider wants back unchanged with this item, such as its id."""


class AnswerReasoning(Frozen):
    type: Literal["reasoning"] = "reasoning"
    text: str
    provider: dict[str, JsonValue] | None = None


AnswerItem = Annotated[AnswerText | AnswerReasoning, Field(discriminator="type")]


class ProposedCall(Frozen):
    index: Count
    tool: str
    args: dict[str, JsonValue]
    call_hash: Hash
    provider_id: str | None = None
    malformed: str | None = None
    """The arguments as the model wrote them, where they are no JSON object; `args` is then empty."""


class Usage(Frozen):
    """Tokens of one response, as the provider counted them."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0


class Failure(Frozen):
    kind: str
    message: str


class Context(Frozen):
    """What the model was shown, so that it can be found again."""

    confirmed_seq: Count
    items: Count
    hash: Hash


class Confirmed(Frozen):
    """Seq and chain of the last record that the writer had read back."""

    seq: Count
    chain: Hash


class Lineage(Frozen):
    kind: Literal["fork", "child"]
    parent: Id
    seq: Count
    chain: Hash
    call: Call | None = None
    """The parent's call whose result a child thread is."""
    plan_version: Positive | None = None
    """With `task`: the version of the parent's plan that began the child."""
    task: Id | None = None
    """The task of the parent's plan that a child thread works on."""
    depth: Count = 0
    """How many parents a child thread has above it. A fork is as deep as what it was forked from."""


class RequestedCall(Frozen):
    """A call that a principal asks for in the model's place, such as to put files back."""

    tool: Id
    args: dict[str, JsonValue]
    call_hash: Hash
    by: Id
    """Who asks for it, which approves it."""


class Edited(Frozen):
    args: dict[str, JsonValue]
    call_hash: Hash


class Artifact(Frozen):
    sha256: Hash
    size: Count
    media_type: str
    name: str | None = None


class FileChange(Frozen):
    path: str
    before: Hash | None = None
    after: Hash | None = None
    mode: Count | None = None


class Task(Frozen):
    id: Id
    title: str
    depends_on: tuple[Id, ...] = ()
    instructions: str | None = None


# Events


class Event(Frozen):
    kind: ClassVar[str]
    version: ClassVar[int] = 1
    identity: ClassVar[tuple[str, ...]] = ()


class ThreadCreated(Event):
    kind = "thread.created"
    config: Config
    title: str | None = None
    labels: dict[str, str] = {}
    lineage: Lineage | None = None
    importing: bool = False


class ThreadImportStarted(Event):
    kind = "thread.import_started"
    identity = ("source",)
    source: str
    report: dict[str, JsonValue] = {}


class ThreadImportEnded(Event):
    kind = "thread.import_ended"
    identity = ("source",)
    source: str
    report: dict[str, JsonValue] = {}


class ThreadConfigured(Event):
    kind = "thread.configured"
    patch: dict[str, JsonValue]


class ThreadDescribed(Event):
    """A field that is absent leaves what was there; an empty title removes it."""

    kind = "thread.described"
    title: str | None = None
    labels: dict[str, str] | None = None


class ThreadArchived(Event):
    kind = "thread.archived"


class ThreadUnarchived(Event):
    kind = "thread.unarchived"


class ThreadRewound(Event):
    kind = "thread.rewound"
    to_turn: Count
    """The last turn that stays in the context; 0 where none does."""


class ThreadCloseRequested(Event):
    kind = "thread.close_requested"
    reason: str | None = None


class ThreadClosed(Event):
    kind = "thread.closed"


class InputSubmitted(Event):
    kind = "input.submitted"
    identity = ("input",)
    input: Id
    items: tuple[ContentItem, ...]
    mode: InputMode = "queue"
    expected_turn: Positive | None = None
    call: RequestedCall | None = None
    """The turn that takes this input runs this call, and asks no model. It takes no other input."""


class InputWithdrawn(Event):
    kind = "input.withdrawn"
    identity = ("input",)
    input: Id


class TurnStarted(Event):
    kind = "turn.started"
    identity = ("turn",)
    turn: Positive
    inputs: tuple[Id, ...]
    config: Count
    """Seq of the record that set the configuration in force."""
    base: Count
    """Seq of the last compaction, rewind or import; 0 where there was none."""
    agent_version: str


class TurnCancelRequested(Event):
    kind = "turn.cancel_requested"
    identity = ("turn",)
    turn: Positive
    reason: CancelReason
    note: str | None = None
    discard: bool = False
    """Whether steering inputs that no step took are dropped with the turn."""


class TurnRecovered(Event):
    kind = "turn.recovered"
    identity = ("turn", "owner")
    turn: Positive
    owner: str
    found: str


class TurnEnded(Event):
    kind = "turn.ended"
    identity = ("turn",)
    turn: Positive
    follows: Hash
    outcome: TurnOutcome
    reason: str | None = None
    unknown_calls: tuple[Call, ...] = ()
    confirmed: Confirmed


class StepStarted(Event):
    kind = "step.started"
    identity = ("turn", "step", "attempt")
    turn: Positive
    step: Positive
    attempt: Positive
    follows: Hash
    inputs: tuple[Id, ...] = ()
    context: Context
    model: str
    tools_hash: Hash
    owner: str


class StepFinished(Event):
    kind = "step.finished"
    identity = ("turn", "step", "attempt")
    turn: Positive
    step: Positive
    attempt: Positive
    started: Hash
    items: tuple[AnswerItem, ...]
    calls: tuple[ProposedCall, ...] = ()
    stop_reason: str
    usage: Usage = Usage()
    response_id: str | None = None


class StepFailed(Event):
    kind = "step.failed"
    identity = ("turn", "step", "attempt")
    turn: Positive
    step: Positive
    attempt: Positive
    started: Hash
    error: Failure
    retriable: bool
    retry_at_ms: Milliseconds | None = None
    handed_over: bool = False


class ToolCallApprovalRequested(Event):
    kind = "tool_call.approval_requested"
    identity = ("call", "call_hash")
    call: Call
    call_hash: Hash
    reason: str
    options: tuple[str, ...] = ("approve", "deny")
    expires_at_ms: Milliseconds | None = None


class ToolCallApproved(Event):
    kind = "tool_call.approved"
    identity = ("call", "call_hash")
    call: Call
    call_hash: Hash
    by: str
    scope: Literal["call", "turn", "thread"] = "call"
    tool: str | None = None
    """With scope `turn` or `thread`: approve every later call of this tool, not only those with the same hash."""
    edited: Edited | None = None


class ToolCallDenied(Event):
    kind = "tool_call.denied"
    identity = ("call", "call_hash")
    call: Call
    call_hash: Hash
    by: str
    reason: str


class ToolCallApprovalExpired(Event):
    kind = "tool_call.approval_expired"
    identity = ("call", "call_hash")
    call: Call
    call_hash: Hash


class ToolCallDispatched(Event):
    kind = "tool_call.dispatched"
    identity = ("call", "attempt")
    call: Call
    attempt: Positive
    call_hash: Hash
    tool: str
    pool: str
    args: dict[str, JsonValue]
    effect: EffectClass
    last: bool
    """Whether this is the last attempt that policy allows."""
    deadline_ms: Milliseconds
    """When the runtime gives up on a call that nobody claimed or, in a pool without executors, answered."""
    timeout_ms: Positive
    """How long the tool may run."""
    idempotency_key: str
    environment: dict[str, JsonValue] = {}


class ToolCallStarted(Event):
    kind = "tool_call.started"
    identity = ("call", "attempt", "executor")
    call: Call
    attempt: Positive
    executor: str
    """Instance and incarnation: a restarted executor is another one."""
    lease_seconds: Positive


class ToolCallFinished(Event):
    kind = "tool_call.finished"
    identity = ("call", "attempt", "claim")
    call: Call
    attempt: Positive
    claim: Id
    outcome: Literal["succeeded", "failed", "timed_out", "cancelled", "not_started"]
    result: JsonValue = None
    changes: tuple[FileChange, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    milliseconds: Count = 0


class ToolCallLost(Event):
    kind = "tool_call.lost"
    identity = ("call", "attempt", "claim")
    call: Call
    attempt: Positive
    claim: Id | None = None
    evidence: str


class ToolCallResolved(Event):
    kind = "tool_call.resolved"
    identity = ("call", "attempt")
    call: Call
    attempt: Count
    """The last one; 0 for a call that was imported unfinished."""
    decision: Literal["succeeded", "failed", "again", "abandoned"]
    result: JsonValue = None
    note: str | None = None


class ContextCompactionRequested(Event):
    kind = "context.compaction_requested"
    identity = ("base", "turn")
    base: Count = 0
    turn: Count = 0
    """The last turn as of then, where a runtime asks."""


class ContextCompacted(Event):
    kind = "context.compacted"
    identity = ("base",)
    base: Count
    through_seq: Count
    summary: str
    usage: Usage = Usage()


class ContextCompactionFailed(Event):
    """The model gave no summary: the thread goes on with its context as it is."""

    kind = "context.compaction_failed"
    identity = ("requested",)
    base: Count
    requested: Positive
    """Seq of the request that it ends."""
    error: Failure


class PlanProposed(Event):
    kind = "plan.proposed"
    identity = ("plan_version",)
    plan_version: Positive
    tasks: tuple[Task, ...]
    call: Call | None = None
    """The call that proposed it, and whose result tells what became of it."""


class PlanApproved(Event):
    kind = "plan.approved"
    identity = ("plan_version",)
    plan_version: Positive
    by: str


class PlanRejected(Event):
    kind = "plan.rejected"
    identity = ("plan_version",)
    plan_version: Positive
    by: str
    reason: str


class TaskUpdated(Event):
    kind = "task.updated"
    identity = ("plan_version", "task", "status")
    plan_version: Positive
    task: Id
    status: TaskStatus
    child: Id | None = None
    result: JsonValue = None


class ArtifactRecorded(Event):
    kind = "artifact.recorded"
    identity = ("sha256",)
    sha256: Hash
    size: Count
    media_type: str
    name: str | None = None


class SkillLoaded(Event):
    kind = "skill.loaded"
    identity = ("name", "skill_version")
    name: str
    skill_version: str
    sha256: Hash


EVENTS: tuple[type[Event], ...] = (
    ThreadCreated,
    ThreadImportStarted,
    ThreadImportEnded,
    ThreadConfigured,
    ThreadDescribed,
    ThreadArchived,
    ThreadUnarchived,
    ThreadRewound,
    ThreadCloseRequested,
    ThreadClosed,
    InputSubmitted,
    InputWithdrawn,
    TurnStarted,
    TurnCancelRequested,
    TurnRecovered,
    TurnEnded,
    StepStarted,
    StepFinished,
    StepFailed,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallApprovalExpired,
    ToolCallDispatched,
    ToolCallStarted,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ContextCompactionRequested,
    ContextCompacted,
    ContextCompactionFailed,
    PlanProposed,
    PlanApproved,
    PlanRejected,
    TaskUpdated,
    ArtifactRecorded,
    SkillLoaded,
)

BY_KIND: dict[str, type[Event]] = {event.kind: event for event in EVENTS}


@cache
def cloudevents_type(event: type[Event]) -> str:
    return f"{TYPE_PREFIX}{event.kind}.v{event.version}"


def service_event_id(key: ThreadKey, event: Event) -> EventId:
    """The id of an event that a service appends: the same for whoever means the same."""
    return derive_service_event(key, event.kind, *[getattr(event, name) for name in event.identity])
