"""What the API answers about the work in a thread: its turns, their steps and their tool calls."""

from typing import Literal

from pydantic import JsonValue

from services.ingest.http.answers import Answer, Time

TurnStatus = Literal["open", "cancelling", "ended"]


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


class TurnPage(Answer):
    data: list[Turn]
    next_cursor: str | None


class StepPage(Answer):
    data: list[Step]
    next_cursor: str | None


class ToolCallPage(Answer):
    data: list[ToolCall]
    next_cursor: str | None


class ApprovalPage(Answer):
    data: list[Approval]
    next_cursor: str | None


class UnknownCallPage(Answer):
    data: list[UnknownCall]
    next_cursor: str | None
