"""What the API answers about threads: their lists, their state, their items and inputs, and their plans."""

from typing import Literal

from pydantic import JsonValue

from schemas.config import Config
from services.ingest.http.answers import Answer, Position, Time

Status = Literal["importing", "active", "closing", "closed"]


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
    """This is a thread with its configuration and its origin."""

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


class PlanTask(Answer):
    """A version of the plan has such tasks."""

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
    """This is a version of the thread's plan."""

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


class PlanPage(Answer):
    data: list[PlanVersion]
    next_cursor: str | None
