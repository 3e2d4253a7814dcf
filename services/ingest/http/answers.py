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
    partition: int
    offset: int


class CommandEvent(Answer):
    id: str
    type: str
    seq: int | None = None
    effect: Effect | None = None
    reason: str | None = None


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
    position: Position
    """The position for `at_least`: a read with it sees this command."""
    seq: int | None = None
    effect: Effect | None = None
    reason: str | None = None
    undecided: bool | None = None
    """The effect was not known in time: ask at the path `ask`, or send the command again with the same key."""
    ask: str | None = None


class ForkMade(Answer):
    parent: str
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
    path: str
    """Path of the file, relative to the workspace."""
    status: Literal["created", "deleted", "modified"]
    before: str | None
    """sha256 of the content before the turn, as an artifact; null if the file did not exist."""
    after: str | None
    mode: int | None
    calls: list[str]
    """The calls that changed the file, in order."""
    binary: bool
    cut: bool
    """Whether the diff is incomplete or missing because of its size."""
    missing: bool
    """Whether the artifact store lacks one of the contents."""
    diff: str


class DiffAnswer(Answer):
    thread: str
    turn: int
    files: list[ChangedFile]


class ArtifactAnswer(Answer):
    sha256: str
    size: int
    media_type: str
    """The media type of the first upload."""


class ImportAnswer(Answer):
    id: str
    tool: Literal["claude-code", "codex"]
    status: Literal["waiting", "running", "done", "failed"]
    files: int
    """Number of session files, without their companions."""
    done: int
    problem: str | None
    """Why the import failed, or what interrupted it last; null if nothing did."""
    created_at: Time
    finished_at: Time | None


class ImportFileAnswer(Answer):
    number: int
    path: str
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
    thread: str
    id: str
    type: str
    seq: int
    effect: Effect
    reason: str | None
    position: Position


class ThreadSummary(Answer):
    thread: str
    status: Status
    title: str | None
    labels: dict[str, str]
    archived: bool
    created_at: Time
    updated_at: Time
    seq: int
    turn: int | None
    """The open turn; null if no turn is open."""
    last_turn: int
    last_outcome: Literal["completed", "aborted", "failed", "interrupted"] | None
    queued: int
    waiting_calls: int
    unknown_calls: int


class ChildThread(ThreadSummary):
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
    config: Config
    config_seq: int
    lineage_kind: Literal["fork", "child"] | None
    parent: str | None
    parent_seq: int | None
    parent_call: str | None
    parent_plan_version: int | None
    parent_task: str | None
    depth: int
    plan_version: int | None


class Item(Answer):
    seq: int
    part: int
    kind: Literal["message", "reasoning", "tool_call", "tool_result", "resolution", "summary"]
    turn: int | None
    step: int | None
    place: int | None
    content: JsonValue
    digest: str
    input: str | None
    call: str | None
    dropped: str | None
    rewound_at: int | None
    compacted_at: int | None


class ContextItem(Answer):
    seq: int
    part: int
    kind: Literal["message", "reasoning", "tool_call", "tool_result", "resolution", "summary"]
    turn: int | None
    step: int | None
    place: int
    content: JsonValue
    digest: str
    input: str | None
    call: str | None
    thread: str | None
    """The thread that an inherited item belongs to, and that its seq, turn and place refer to; null for an own item."""


class Context(Answer):
    """The items that a model is shown, in order."""

    hash: str
    """sha256 of the items' digests, as `step.started` records it."""
    count: int
    items: list[ContextItem]


class StateAnswer(Answer):
    thread: str
    seq: int
    chain: str
    """Hash chain of the thread up to this record."""
    position: Position
    """The position of the record; its offset is -1 before the first record."""
    fold_version: int
    state: dict[str, JsonValue]
    """The folded control state, as `schemas/state.py` describes it. Its shape depends on `fold_version`."""
    context: Context


class Input(Answer):
    seq: int
    input: str
    mode: Literal["queue", "steer", "interrupt", "reject"]
    expected_turn: int | None
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
    turn: int
    status: TurnStatus
    outcome: Literal["completed", "aborted", "failed", "interrupted"] | None
    reason: str | None
    inputs: list[str]
    model: str
    agent_version: str
    config_seq: int
    base: int
    started_seq: int
    started_at: Time
    cancel_cause: str | None
    cancelled_at: Time | None
    recovered_at: Time | None
    recovered_by: str | None
    steps: int
    input_tokens: int
    output_tokens: int
    waited_ms: int
    ended_seq: int | None
    ended_at: Time | None
    unknown_calls: list[str] | None


class Step(Answer):
    turn: int
    step: int
    status: Literal["open", "failed", "finished", "dropped"]
    attempts: int
    failures: int
    inputs: list[str]
    model: str
    context_seq: int
    context_items: int
    context_hash: str
    tools_hash: str
    started_seq: int
    started_at: Time
    attempt_at: Time
    error_kind: str | None
    error: str | None
    retriable: bool | None
    retry_at: Time | None
    finished_seq: int | None
    finished_at: Time | None
    finished_attempt: int | None
    stop_reason: str | None
    response_id: str | None
    calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None


class ToolCall(Answer):
    call: str
    turn: int
    step: int
    index: int
    tool: str
    args: dict[str, JsonValue]
    malformed: str | None
    call_hash: str
    status: Literal["proposed", "waiting", "approved", "dispatched", "running", "repeatable", "unknown", "settled"]
    outcome: str | None
    effect: str | None
    pool: str | None
    proposed_seq: int
    proposed_at: Time
    approval_reason: str | None
    approval_requested_at: Time | None
    approval_expires_at: Time | None
    decision: str | None
    decided_by: str | None
    decided_at: Time | None
    decision_reason: str | None
    attempts: int
    lost_attempts: int
    dispatched_at: Time | None
    deadline_at: Time | None
    timeout_ms: int | None
    claim: str | None
    started_at: Time | None
    evidence: str | None
    resolution: str | None
    resolved_by: str | None
    note: str | None
    milliseconds: int | None
    changes: JsonValue
    artifacts: JsonValue
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
    tool: str
    args: dict[str, JsonValue]
    malformed: str | None
    call_hash: str
    """The decision has to contain this hash, which binds it to these arguments."""
    effect: str | None
    """The effect class of the tool by the operator's policy now; null if the catalog lacks the tool."""
    reason: str | None
    requested_at: Time
    expires_at: Time | None
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
    executor: str | None
    claimed_at: Time | None
    evidence: str | None
    """The reason why the attempt counts as lost."""
    lost_attempts: int
    idempotency_key: str | None
    """The key that the tool was given; every attempt has the same."""
    turn_status: TurnStatus


class PlanTask(Answer):
    task: str
    title: str
    instructions: str | None
    depends_on: list[str]
    left_out: bool
    """Whether the version lacks the task: it ran when the version came in force, and is being stopped."""
    status: Literal["proposed", "pending", "running", "succeeded", "failed", "cancelled", "continued"]
    """`proposed` in a version that is not in force yet; `continued` if the task went on in the next version."""
    child: str | None
    """The thread that works on the task."""
    result: JsonValue
    changed_seq: int
    started_at: Time | None
    ended_at: Time | None


class PlanVersion(Answer):
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
    day: str
    """The day in UTC, such as `2026-11-29`."""
    model: str
    responses: int
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
    status: int
    title: str
    detail: str
