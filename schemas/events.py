"""Every event is defined here, with its type and version. A released version never changes: another
rule is another version.

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
"""What running a call twice may do; `schemas.tools.ToolSpec.effect` explains the classes."""
InputMode = Literal["queue", "steer", "interrupt", "reject"]
"""How an input meets an open turn: it waits for the next turn, is taken by the next step, cancels the turn, or is
refused.
"""
TurnOutcome = Literal["completed", "aborted", "failed", "interrupted"]
"""How a turn ended. `aborted` was cancelled, `interrupted` was closed by a recovery or by the end of an import."""
CallOutcome = Literal["succeeded", "failed", "timed_out", "cancelled"]
CancelReason = Literal["user", "limit", "recovery", "parent"]
"""Why a turn is cancelled: by a person, a limit, a recovery, or the parent thread."""
TaskStatus = Literal["pending", "running", "succeeded", "failed", "cancelled"]

CONTEXT_TOO_LONG = "context_too_long"
"""Kind of a failure: the model was asked with more than it takes."""

POOLS_WITHOUT_EXECUTOR = frozenset({"client", "thread", "import"})
"""Pools in which the dispatch is the claim: tools of the customer's backend, tools of the runtime itself (child
threads, plans), and what an imported session ran.
"""


# Parts of events


class TextItem(Frozen):
    type: Literal["text"] = "text"
    text: str


class ArtifactItem(Frozen):
    type: Literal["artifact"] = "artifact"
    sha256: Hash
    size: Count
    """In bytes."""
    media_type: str
    name: str | None = None
    summary: str | None = None
    """What a model is told where it cannot read the artifact itself."""


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
    """What the provider wants back unchanged with this item, such as its signature."""


AnswerItem = Annotated[AnswerText | AnswerReasoning, Field(discriminator="type")]


class ProposedCall(Frozen):
    index: Count
    """Place among the answer's calls, from 0."""
    tool: str
    args: dict[str, JsonValue]
    """Arguments as the model gave them."""
    call_hash: Hash
    """sha256 over tool and arguments: what an approval is bound to."""
    provider_id: str | None = None
    """The provider's own id of the call."""
    malformed: str | None = None
    """The arguments as the model wrote them, where they are not a JSON object; `args` is then empty."""


class Usage(Frozen):
    """The tokens of one response are counted by its provider."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    """Part of the input tokens that came from the provider's cache."""
    reasoning_tokens: Count = 0
    """Part of the output tokens that nobody sees."""


class Failure(Frozen):
    kind: str
    """Class of the failure, such as `provider` or `context_too_long`."""
    message: str
    """What happened, in words."""


class Context(Frozen):
    """What the model was shown, so that it can be found again."""

    confirmed_seq: Count
    """Seq of the last record that the owner had read back when it asked."""
    items: Count
    """Number of items that the model was shown."""
    hash: Hash
    """sha256 over the items' digests, in order."""


class Confirmed(Frozen):
    """Seq and chain of the last record that the writer had read back."""

    seq: Count
    chain: Hash
    """Hash chain up to that record."""


class Lineage(Frozen):
    kind: Literal["fork", "child"]
    parent: Id
    seq: Count
    """Seq of the parent's record at which the thread begins."""
    chain: Hash
    """The parent's hash chain there: proof of which history was meant."""
    call: Call | None = None
    """The parent's call whose result a child thread is."""
    plan_version: Positive | None = None
    """The version of the parent's plan that began the child; given with `task`."""
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
    """Who asks for the call, which approves it."""


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
    """Path below the workspace."""
    before: Hash | None = None
    """sha256 of the content before, as an artifact; null where the file was not there."""
    after: Hash | None = None
    """sha256 of the content after, as an artifact; null where the file is gone."""
    mode: Count | None = None
    """Permission bits of the file after the change."""


class Task(Frozen):
    id: Id
    """Name of the task, the same in every version that keeps it."""
    title: str
    depends_on: tuple[Id, ...] = ()
    """Tasks that have to succeed first."""
    instructions: str | None = None
    """What the task's thread is told."""


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
    """Where a fork or a child thread comes from."""
    importing: bool = False
    """Whether an import fills the thread first."""


class ThreadImportStarted(Event):
    kind = "thread.import_started"
    identity = ("source",)
    source: str
    """Name of the session that is imported."""
    report: dict[str, JsonValue] = {}


class ThreadImportEnded(Event):
    kind = "thread.import_ended"
    identity = ("source",)
    source: str
    report: dict[str, JsonValue] = {}
    """What was read, counted, and left out."""


class ThreadConfigured(Event):
    kind = "thread.configured"
    patch: dict[str, JsonValue]
    """Merge patch (RFC 7396) of the configuration."""


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
    """The turn that has to be open, with mode `steer`."""
    call: RequestedCall | None = None
    """The turn that takes this input runs this call and asks no model. It takes no other input."""


class InputWithdrawn(Event):
    kind = "input.withdrawn"
    identity = ("input",)
    input: Id


class TurnStarted(Event):
    kind = "turn.started"
    identity = ("turn",)
    turn: Positive
    inputs: tuple[Id, ...]
    """The waiting inputs that the turn takes, in order."""
    config: Count
    """Seq of the record that set the configuration in force."""
    base: Count
    """Seq of the last compaction, rewind or import; 0 without one."""
    agent_version: str
    """The operator's version of prompts and tools."""


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
    """The runtime that took the thread over."""
    found: str
    """What was under way."""


class TurnEnded(Event):
    kind = "turn.ended"
    identity = ("turn",)
    turn: Positive
    follows: Hash
    """Data hash of the last answer of the turn, or of its start."""
    outcome: TurnOutcome
    reason: str | None = None
    """Why the turn ended so, where the outcome leaves a question."""
    unknown_calls: tuple[Call, ...] = ()
    """Calls of the turn whose outcome is unknown at its end."""
    confirmed: Confirmed


class StepStarted(Event):
    kind = "step.started"
    identity = ("turn", "step", "attempt")
    turn: Positive
    step: Positive
    attempt: Positive
    """Number of the model call for this step, from 1."""
    follows: Hash
    """Data hash of the answer before, or of the turn's start."""
    inputs: tuple[Id, ...] = ()
    """Steering inputs that the step takes."""
    context: Context
    model: str
    tools_hash: Hash
    """Hash over the tools that the model was offered."""
    owner: str
    """The runtime that asks."""


class StepFinished(Event):
    kind = "step.finished"
    identity = ("turn", "step", "attempt")
    turn: Positive
    step: Positive
    attempt: Positive
    started: Hash
    """Data hash of the start that it answers."""
    items: tuple[AnswerItem, ...]
    calls: tuple[ProposedCall, ...] = ()
    stop_reason: str
    """Why the model stopped: `stop`, `tool_call`, `length`, `content_filter`, or the provider's own word."""
    usage: Usage = Usage()
    response_id: str | None = None
    """The provider's id of the response."""


class StepFailed(Event):
    kind = "step.failed"
    identity = ("turn", "step", "attempt")
    turn: Positive
    step: Positive
    attempt: Positive
    started: Hash
    """Data hash of the start that failed."""
    error: Failure
    retriable: bool
    """Whether asking again can help."""
    retry_at_ms: Milliseconds | None = None
    """Earliest time of the next attempt."""
    handed_over: bool = False
    """Whether the owner gave the step up on purpose."""


class ToolCallApprovalRequested(Event):
    kind = "tool_call.approval_requested"
    identity = ("call", "call_hash")
    call: Call
    call_hash: Hash
    reason: str
    """Why a person has to approve."""
    options: tuple[str, ...] = ("approve", "deny")
    expires_at_ms: Milliseconds | None = None
    """When the question expires; null: never."""


class ToolCallApproved(Event):
    kind = "tool_call.approved"
    identity = ("call", "call_hash")
    call: Call
    call_hash: Hash
    by: str
    scope: Literal["call", "turn", "thread"] = "call"
    """Whether the approval also holds for later calls of the turn or thread."""
    tool: str | None = None
    """With scope `turn` or `thread`: approve every later call of this tool, not only those with the same hash."""
    edited: Edited | None = None
    """Arguments that the approver put in the place of the model's."""


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
    """Executors that may claim the call."""
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
    """Without a sign of life for so long, the claim may be judged lost."""


class ToolCallFinished(Event):
    kind = "tool_call.finished"
    identity = ("call", "attempt", "claim")
    call: Call
    attempt: Positive
    claim: Id
    """Event id of the claim that it ends."""
    outcome: Literal["succeeded", "failed", "timed_out", "cancelled", "not_started"]
    result: JsonValue = None
    changes: tuple[FileChange, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    milliseconds: Count = 0
    """How long the tool ran."""


class ToolCallLost(Event):
    kind = "tool_call.lost"
    identity = ("call", "attempt", "claim")
    call: Call
    attempt: Positive
    claim: Id | None = None
    """Event id of the claim that is lost; null where nobody claimed the call."""
    evidence: str
    """What the judgement rests on, in words."""


class ToolCallResolved(Event):
    kind = "tool_call.resolved"
    identity = ("call", "attempt")
    call: Call
    attempt: Count
    """The last attempt; 0 for a call that was imported unfinished."""
    decision: Literal["succeeded", "failed", "again", "abandoned"]
    result: JsonValue = None
    note: str | None = None
    """How it is known."""


class ContextCompactionRequested(Event):
    kind = "context.compaction_requested"
    identity = ("base", "turn")
    base: Count = 0
    """Base of the context that was measured."""
    turn: Count = 0
    """The last turn at that time, where a runtime asks; 0 where a person does."""


class ContextCompacted(Event):
    kind = "context.compacted"
    identity = ("base",)
    base: Count
    through_seq: Count
    """The summary replaces the items up to here."""
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
    """The call that proposed it and whose result reports what became of it."""


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
    """Why, in words for the model."""


class TaskUpdated(Event):
    kind = "task.updated"
    identity = ("plan_version", "task", "status")
    plan_version: Positive
    task: Id
    status: TaskStatus
    child: Id | None = None
    """The thread that works on the task."""
    result: JsonValue = None


class ArtifactRecorded(Event):
    kind = "artifact.recorded"
    identity = ("sha256",)
    sha256: Hash
    size: Count
    media_type: str
    name: str | None = None
    """File name that a person sees."""


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
"""Every event, in the order of a thread's life."""

BY_KIND: dict[str, type[Event]] = {event.kind: event for event in EVENTS}


@cache
def cloudevents_type(event: type[Event]) -> str:
    """Return the CloudEvents type of the newest version, such as `dev.threadlog.turn.ended.v1`."""
    return f"{TYPE_PREFIX}{event.kind}.v{event.version}"


def service_event_id(key: ThreadKey, event: Event) -> EventId:
    """Return the id of an event that a service appends: whoever means the same event gets the same id."""
    return derive_service_event(key, event.kind, *[getattr(event, name) for name in event.identity])
