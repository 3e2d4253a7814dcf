"""What the API answers: the models of all answers, and the one function that writes them.

Each operation names the model of its answer. Answers that are put together here are written through their model. Rows
of the views and the answers of commands are written as bytes by their rooms, since building a model of each row would
cost more than reading it; the tests hold every answer that they get to its model, those included.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.responses import Response

from schemas.config import Config
from schemas.thread import Effect

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Status = Literal["importing", "active", "closing", "closed"]

TurnStatus = Literal["open", "cancelling", "ended"]


JSON: Final = "application/json"


def json_answer(answer: BaseModel | bytes, status: int = 200) -> Response:
    """Write an answer. `bytes` are JSON that has the form of the operation's model."""
    content = answer if isinstance(answer, bytes) else answer.model_dump_json()
    return Response(content, status, media_type=JSON)


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Position(Answer):
    """A place in the log."""

    partition: int
    offset: int


class CommandEvent(Answer):
    """An event that a command recorded."""

    id: str
    type: str
    """Type of the event, such as `input.submitted`."""
    seq: int | None = None
    """The event's place among the thread's records, from 1."""
    effect: Effect | None = None
    """What the record did: `applied`, or why it changed nothing."""
    reason: str | None = None
    """Why the record did not apply; null if it did."""


class CommandAnswer(Answer):
    """The result of a command. `seq`, `effect` and `reason` are present once its effect is known."""

    thread: str
    input: str | None = None
    """Id of the input."""
    files: int | None = None
    """How many files are restored."""
    plan_version: int | None = None
    """The version that was proposed or decided on."""
    events: list[CommandEvent]
    """The events that the command recorded, in order."""
    position: Position
    """The position for `at_least`: a read with it sees this command."""
    seq: int | None = None
    effect: Effect | None = None
    reason: str | None = None
    undecided: bool | None = None
    """The effect was not known in time: ask at the path `ask`, or send the command again with the same key."""
    ask: str | None = None
    """Path that answers with the effect once it is known."""


class ForkMade(Answer):
    """Where and how a fork was made."""

    parent: str
    """The thread that was forked."""
    seq: int
    """The settled record of the parent at which the fork was made."""
    open_turn: int | None
    """The turn of the parent that was open at this record; null if none was."""
    note: str | None
    """What the fork leaves out, and why; null if it leaves out nothing."""


class ForkAnswer(CommandAnswer):
    """The answer of a fork: `thread` is the new thread."""

    fork: ForkMade


class ChangedFile(Answer):
    """A file that a turn changed."""

    path: str
    """Path of the file, relative to the workspace."""
    status: Literal["created", "deleted", "modified"]
    before: str | None
    """sha256 of the content before the turn, as an artifact; null if the file did not exist."""
    after: str | None
    """sha256 of the content after the turn; null if the file was deleted."""
    mode: int | None
    """Permissions after the turn, as a number; null if they are not recorded."""
    calls: list[str]
    """The calls that changed the file, in order."""
    binary: bool
    """Whether a content is not text; it then has no diff."""
    cut: bool
    """Whether the diff is incomplete or missing because of its size."""
    missing: bool
    """Whether the artifact store lacks one of the contents."""
    diff: str
    """The unified diff, or a line that says why there is none."""


class DiffAnswer(Answer):
    """What a turn did to files."""

    thread: str
    turn: int
    files: list[ChangedFile]


class ArtifactAnswer(Answer):
    """An artifact that is stored."""

    sha256: str
    size: int
    """Size in bytes."""
    media_type: str
    """The media type of the first upload."""


class ImportAnswer(Answer):
    """An import and its progress."""

    id: str
    tool: Literal["claude-code", "codex"]
    """The tool that recorded the sessions."""
    status: Literal["waiting", "running", "done", "failed"]
    files: int
    """Number of session files, without their companions."""
    done: int
    """Number of session files that are finished."""
    problem: str | None
    """Why the import failed, or what interrupted it last; null if nothing did."""
    created_at: Time
    finished_at: Time | None


class ImportFileAnswer(Answer):
    """A file of an import."""

    number: int
    """Number of the file, in the order of the request."""
    path: str
    """Path of the file, as the request names it."""
    waits_for: str | None
    """The session that has to be imported first; the import then continues with this file."""
    report: dict[str, JsonValue]
    """What the file contains; see docs/import.md."""
    threads: list[dict[str, JsonValue]]
    """The threads of its sessions: source_id, thread, created, appended, parent."""


class ImportFilePage(Answer):
    files: list[ImportFileAnswer]
    next: int | None
    """`after` of the next page; null after the last page."""


class CommandRecord(Answer):
    """The effect of a command, as the views have it."""

    thread: str
    id: str
    """Id of the command's event."""
    type: str
    seq: int
    effect: Effect
    reason: str | None
    """Why the command did not apply; null if it did."""
    position: Position


class ThreadSummary(Answer):
    """A thread in a list."""

    thread: str
    status: Status
    title: str | None
    labels: dict[str, str]
    """Labels of the client, by name."""
    archived: bool
    created_at: Time
    updated_at: Time
    """Time of the last record that took effect."""
    seq: int
    """Seq of the thread's last record, whatever its effect."""
    turn: int | None
    """The open turn; null if no turn is open."""
    last_turn: int
    """Number of the last turn that started; 0 if none has."""
    last_outcome: Literal["completed", "aborted", "failed", "interrupted"] | None
    """How the last turn ended; null if none has."""
    queued: int
    """Number of inputs that no turn or step has taken yet."""
    waiting_calls: int
    """Number of tool calls that wait for an approval."""
    unknown_calls: int
    """Number of calls whose outcome is unknown: they may or may not have run."""


class ChildThread(ThreadSummary):
    """A child thread in its parent's list."""

    parent_seq: int
    """The parent's seq when the child was created."""
    parent_call: str | None
    """The parent's tool call that gets the child's end as its result."""
    parent_plan_version: int | None
    parent_task: str | None
    """The task of the parent's plan that the child works on."""
    depth: int
    """Number of threads above the child."""


class ThreadAnswer(ThreadSummary):
    """A thread with its configuration and its origin."""

    config: Config
    """The configuration in force for the next turn."""
    config_seq: int
    """The record that set the configuration."""
    lineage_kind: Literal["fork", "child"] | None
    """Whether the thread is a fork or a child of `parent`; null if it is neither."""
    parent: str | None
    parent_seq: int | None
    """Seq in the parent: for a fork, the last record that both share; for a child, the record that asked for it."""
    parent_call: str | None
    """The parent's tool call that gets this thread's end as its result."""
    parent_plan_version: int | None
    parent_task: str | None
    """The task of the parent's plan that this thread works on."""
    depth: int
    """Number of parents above a child thread. A fork has the depth of the thread it was forked from."""
    plan_version: int | None
    """Version of the plan in force; null if there is none."""


class Item(Answer):
    """Something that was said: a message, reasoning, a tool call or its result, or a summary."""

    seq: int
    """Seq of the record that brought the item."""
    part: int
    """Number of the item within its record, from 0."""
    kind: Literal["message", "reasoning", "tool_call", "tool_result", "resolution", "summary"]
    turn: int | None
    step: int | None
    place: int | None
    """Seq of the record that put the item into the context; null for a message that waits."""
    content: JsonValue
    digest: str
    """sha256 that identifies the item's content."""
    input: str | None
    """The input that the item comes from."""
    call: str | None
    """The tool call that the item belongs to."""
    dropped: str | None
    """Type of the event that withdrew or discarded a waiting message."""
    rewound_at: int | None
    """Seq of the rewind that removed the item from the context."""
    compacted_at: int | None
    """Seq of the summary that replaces the item."""


class ContextItem(Answer):
    """An item that a model is shown."""

    seq: int
    part: int
    kind: Literal["message", "reasoning", "tool_call", "tool_result", "resolution", "summary"]
    turn: int | None
    step: int | None
    place: int
    """Seq of the record that put the item into the context."""
    content: JsonValue
    digest: str
    """sha256 that identifies the item's content."""
    input: str | None
    call: str | None
    thread: str | None
    """The thread that an inherited item belongs to, and that its seq, turn and place refer to; null for an own item."""


class Context(Answer):
    """The items that a model is shown, in order."""

    hash: str
    """sha256 of the items' digests, as `step.started` records it."""
    count: int
    """Number of items."""
    items: list[ContextItem]


class StateAnswer(Answer):
    """A thread's state at one of its records."""

    thread: str
    seq: int
    """The record after which the state was read."""
    chain: str
    """Hash chain of the thread up to this record."""
    position: Position
    """The position of the record; its offset is -1 before the first record."""
    fold_version: int
    """Version of the fold that made the state."""
    state: dict[str, JsonValue]
    """The folded control state, as `schemas/state.py` describes it. Its shape depends on `fold_version`."""
    context: Context


class Input(Answer):
    """An input, and which turn took it."""

    seq: int
    input: str
    mode: Literal["queue", "steer", "interrupt", "reject"]
    """How the input was submitted."""
    expected_turn: int | None
    """The turn that had to be open; null if any would do."""
    submitted_by: str
    submitted_at: Time
    status: Literal["queued", "taken", "withdrawn", "discarded"]
    dropped: str | None
    """Type of the event that withdrew or discarded the input."""
    turn: int | None
    """The turn that took the input."""
    step: int | None
    """The step that took the input; null if the turn took it at its start."""
    items: list[JsonValue]


class Turn(Answer):
    """A turn: the work on one or several inputs."""

    turn: int
    status: TurnStatus
    outcome: Literal["completed", "aborted", "failed", "interrupted"] | None
    """How the turn ended; null while it is open."""
    reason: str | None
    inputs: list[str]
    """The inputs that the turn took at its start."""
    model: str
    agent_version: str
    config_seq: int
    """The record that set the configuration of the turn."""
    base: int
    """Seq of the last compaction, rewind or import before the turn; 0 if there was none."""
    started_seq: int
    started_at: Time
    cancel_cause: str | None
    """Why the turn was cancelled: user, limit, recovery, parent, interrupt or close. Null if it was not."""
    cancelled_at: Time | None
    recovered_at: Time | None
    recovered_by: str | None
    """Runtime that last took the turn over; null if none did."""
    steps: int
    """Number of finished model calls."""
    input_tokens: int
    output_tokens: int
    waited_ms: int
    """Milliseconds in which the turn waited for a person, or in which only its child threads worked."""
    ended_seq: int | None
    ended_at: Time | None
    unknown_calls: list[str] | None
    """Calls that the turn's end names as unknown. Some may have been resolved since."""


class Step(Answer):
    """A step of a turn: one call of the model, with its attempts."""

    turn: int
    step: int
    status: Literal["open", "failed", "finished", "dropped"]
    attempts: int
    """Number of attempts that were started."""
    failures: int
    """Number of attempts that failed. Attempts that were handed over to another runtime do not count."""
    inputs: list[str]
    """The steering inputs that the step took."""
    model: str
    context_seq: int
    """Seq up to which the latest attempt had read the thread."""
    context_items: int
    """Number of items that the model was shown."""
    context_hash: str
    """sha256 of the items' digests."""
    tools_hash: str
    """sha256 of the tools that the model was offered."""
    started_seq: int
    started_at: Time
    attempt_at: Time
    error_kind: str | None
    error: str | None
    retriable: bool | None
    """Whether another attempt may succeed, after the last failure."""
    retry_at: Time | None
    """Earliest time of the next attempt, after the last failure."""
    finished_seq: int | None
    finished_at: Time | None
    finished_attempt: int | None
    """Number of the attempt whose answer took effect. It is not always the latest."""
    stop_reason: str | None
    response_id: str | None
    """The provider's id of the response."""
    calls: int | None
    """Number of tool calls that the answer proposes."""
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    """The input tokens that the provider read from its cache."""
    reasoning_tokens: int | None
    """The output tokens that were reasoning."""


class ToolCall(Answer):
    """A tool call with its approval, its attempts and its result."""

    call: str
    turn: int
    step: int
    index: int
    """Number of the call within the step, from 0."""
    tool: str
    args: dict[str, JsonValue]
    """Arguments in force. An approver may have edited them."""
    malformed: str | None
    """Arguments as the model wrote them, if they are not a JSON object; null otherwise."""
    call_hash: str
    """sha256 of tool and arguments, which a decision has to contain."""
    status: Literal["proposed", "waiting", "approved", "dispatched", "running", "repeatable", "unknown", "settled"]
    outcome: str | None
    effect: str | None
    """pure, idempotent, reconcilable or unsafe, as the last dispatch declares the tool."""
    pool: str | None
    """Pool of executors that may claim the call."""
    proposed_seq: int
    proposed_at: Time
    approval_reason: str | None
    """Why a person is asked for an approval."""
    approval_requested_at: Time | None
    approval_expires_at: Time | None
    decision: str | None
    decided_by: str | None
    decided_at: Time | None
    decision_reason: str | None
    attempts: int
    """Number of times that the call was dispatched."""
    lost_attempts: int
    """Number of claimed attempts whose end nobody saw."""
    dispatched_at: Time | None
    deadline_at: Time | None
    """When the latest attempt is given up, if no executor claims it or, without executors, nobody answers it."""
    timeout_ms: int | None
    claim: str | None
    """Event id of the last claim that won."""
    started_at: Time | None
    evidence: str | None
    """Why the last lost attempt counts as lost."""
    resolution: str | None
    resolved_by: str | None
    note: str | None
    """The note of the resolution."""
    milliseconds: int | None
    """Milliseconds that the tool ran, as its executor measured them."""
    changes: JsonValue
    """The files that the tool changed."""
    artifacts: JsonValue
    """The artifacts that the tool recorded."""
    settled_seq: int | None
    settled_at: Time | None
    result: JsonValue


class Approval(Answer):
    """A call that waits for approval, with all that is needed to decide."""

    thread: str
    call: str
    turn: int
    step: int
    index: int
    attempt: int
    """Number of times that the call was dispatched."""
    tool: str
    args: dict[str, JsonValue]
    malformed: str | None
    """Arguments as the model wrote them, if they are not a JSON object; null otherwise."""
    call_hash: str
    """The decision has to contain this hash, which binds it to these arguments."""
    effect: str | None
    """The effect class of the tool by the operator's policy now; null if the catalog lacks the tool."""
    reason: str | None
    """Why a person is asked for an approval."""
    requested_at: Time
    expires_at: Time | None
    """When the request for approval expires; null if it does not."""
    turn_status: TurnStatus


class UnknownCall(Answer):
    """A call that may or may not have run, with all that is needed to find out and to settle it."""

    thread: str
    call: str
    turn: int
    step: int
    index: int
    attempt: int
    """The resolution has to contain this attempt. It is 0 for a call that was imported unfinished."""
    tool: str
    args: dict[str, JsonValue]
    call_hash: str
    effect: str | None
    pool: str | None
    """Pool of executors that may claim the call."""
    executor: str | None
    """The executor that had claimed the attempt."""
    claimed_at: Time | None
    evidence: str | None
    """The reason why the attempt counts as lost."""
    lost_attempts: int
    """Number of claimed attempts whose end nobody saw."""
    idempotency_key: str | None
    """The key that the tool was given; every attempt has the same."""
    turn_status: TurnStatus


class PlanTask(Answer):
    """A task of a version of the plan."""

    task: str
    title: str
    instructions: str | None
    depends_on: list[str]
    """The tasks that have to succeed first."""
    left_out: bool
    """Whether the version lacks the task: it ran when the version came in force, and is being stopped."""
    status: Literal["proposed", "pending", "running", "succeeded", "failed", "cancelled", "continued"]
    """`proposed` in a version that is not in force yet; `continued` if the task went on in the next version."""
    child: str | None
    """The thread that works on the task."""
    result: JsonValue
    changed_seq: int
    """Seq of the last record that changed the task."""
    started_at: Time | None
    ended_at: Time | None


class PlanVersion(Answer):
    """A version of the thread's plan."""

    version: int
    status: Literal["waiting", "in_force", "rejected", "superseded"]
    call: str | None
    """The tool call that proposed the version; null if a person or a backend did."""
    proposed_seq: int
    proposed_at: Time
    proposed_by: str
    decided_seq: int | None
    decided_at: Time | None
    decided_by: str | None
    """The person or the policy that decided."""
    decision_reason: str | None
    superseded_seq: int | None
    superseded_at: Time | None
    tasks: list[PlanTask]


class ThreadPage(Answer):
    data: list[ThreadSummary]
    next_cursor: str | None


class ItemPage(Answer):
    data: list[Item]
    next_cursor: str | None


class InputPage(Answer):
    data: list[Input]
    next_cursor: str | None


class ChildPage(Answer):
    data: list[ChildThread]
    next_cursor: str | None


class TurnPage(Answer):
    data: list[Turn]
    next_cursor: str | None


class StepPage(Answer):
    data: list[Step]
    next_cursor: str | None


class ToolCallPage(Answer):
    data: list[ToolCall]
    next_cursor: str | None


class PlanPage(Answer):
    data: list[PlanVersion]
    next_cursor: str | None


class ApprovalPage(Answer):
    data: list[Approval]
    next_cursor: str | None


class UnknownCallPage(Answer):
    data: list[UnknownCall]
    next_cursor: str | None


class UsageEntry(Answer):
    """The tokens of one day and model."""

    day: str
    """The day in UTC, such as `2026-11-29`."""
    model: str
    responses: int
    """Number of responses of the model."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """The input tokens that the provider read from its cache."""
    reasoning_tokens: int
    """The output tokens that were reasoning."""


class UsagePage(Answer):
    data: list[UsageEntry]
    next_cursor: str | None


class ProblemAnswer(BaseModel):
    """A problem (RFC 9457). Some problems have further members, such as `errors` or `effect`."""

    model_config = ConfigDict(extra="allow")

    type: str
    """A URL that ends with the slug of the problem. Decide by it, not by the texts."""
    status: int
    title: str
    detail: str
    """What happened to this request, and what to do."""
