"""Child threads: how one begins, what a parent does while it waits, and how the parent learns of its end. Pure.

A child's id is derived from what it works for, a call or a task of the parent, and its first input's id from its own.
Nothing names a child before its `thread.created` is in the log: whoever reads an id may use it at once. A task's record
names its child, so the child is created first, empty, and the record follows the acknowledgement. A call's dispatch
names nobody. The child gets its task once the parent's owner has read back the parent's own record that asks for it.
After each takeover the next owner appends all of this again: it counts once. A process that dies after the creation
leaves at most an empty thread, which does nothing by itself.

The child's owner appends the child's end to the parent's thread, as the call's result. It may die before it does, so
the parent's owner looks the end up in the views as well. Whichever comes first counts.

Cancelling sends the child's first events once more before its input is withdrawn and its turn cancelled. So the first
events of a dead owner that come late find that the child exists and its input was submitted, and begin nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from pydantic import JsonValue

from schemas.codec import Record
from schemas.config import Config
from schemas.config import Limits as OwnLimits
from schemas.events import (
    CallOutcome,
    Event,
    InputSubmitted,
    InputWithdrawn,
    Lineage,
    TaskUpdated,
    TextItem,
    ThreadCreated,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
    TurnOutcome,
)
from schemas.ids import TenantId, ThreadId, ThreadKey, derive_child, derive_child_input, derive_service_event
from schemas.state import Call, ThreadState, Turn
from schemas.tools import SPAWN_THREAD_TOOL, ToolSpec
from services.runtime.deciding.decisions import (
    NOTHING_TO_DO,
    Append,
    AppendTo,
    ChildEnd,
    Decision,
    Decisions,
    LookAgain,
    ReadChild,
    World,
)
from services.runtime.deciding.limits import Limits

RESULT_BYTES_MAX: Final = 32 * 1024
"""Bytes of a child's answer that its parent's model is shown; the child's thread keeps the whole answer."""
TASK_RESULT_BYTES_MAX: Final = 4 * 1024
"""Bytes of a task's result. Less than of a call's, because a plan keeps the results of all its tasks in the state."""
TITLE_CHARACTERS_MAX: Final = 200
MODEL_CHARACTERS_MAX: Final = 200
"""Characters of a model's name, as in every thread's configuration: indexes of the views contain it."""

SPAWN_THREAD: Final = ToolSpec(
    name=SPAWN_THREAD_TOOL,
    description=(
        "Give a task to a child thread: another agent that works on it by itself, with the same tools, in a"
        " workspace of its own, and gives back its final answer. It sees nothing of this conversation but the task, so"
        " name all that it needs to know. Several calls in one step work beside each other."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "task": {"type": "string", "minLength": 1, "description": "What to do, and what to answer."},
            "title": {"type": "string", "maxLength": TITLE_CHARACTERS_MAX, "description": "A few words for people."},
            "instructions": {"type": "string", "description": "In place of this thread's own instructions."},
            "tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Names of the tools that the child may use, of those that you have. Default: all.",
            },
            "model": {
                "type": "string",
                "minLength": 1,
                "maxLength": MODEL_CHARACTERS_MAX,
                "description": "Default: the model of this thread.",
            },
        },
        "required": ["task"],
        "additionalProperties": False,
    },
    effect="idempotent",
    parallel=True,
    max_attempts=1,
)
"""The tool has one attempt, because the child's owner has to know, without asking, which claim it answers."""

WITHDRAWN: Final = "its task was withdrawn before it began"

Answer: TypeAlias = Callable[[int, int], str | None]
"""Returns the texts that the model answered in a turn and step; None if the transcript is not in memory."""


class Origin(NamedTuple):
    """What a child works for: a call of its parent, or a task of a version of its parent's plan."""

    call: str | None = None
    plan_version: int | None = None
    task: str | None = None

    @property
    def name(self) -> str:
        """The name that the child's id is derived from. It never changes, or a takeover would begin another child."""
        return self.call if self.call is not None else f"task {self.plan_version} {self.task}"


# The parent's side


def child_of(key: ThreadKey, origin: Origin) -> ThreadKey:
    """Return the key of the child that works for this call or task of the thread."""
    return ThreadKey(key.tenant, derive_child(key, origin.name))


def depth_of(state: ThreadState) -> int:
    """Return how many generations the thread is below the topmost one."""
    return 0 if state.lineage is None else state.lineage.depth


def tokens_left(turn: Turn, limits: Limits) -> int | None:
    """Return the tokens that the turn may still use; None if they are unlimited."""
    return max(0, limits.turn_tokens - turn.input_tokens - turn.output_tokens) if limits.turn_tokens else None


def begin(
    key: ThreadKey, state: ThreadState, config: Config, origin: Origin, text: str, title: str | None
) -> tuple[AppendTo, ...]:
    """Return the child's creation and its task, for a state of which everything was read back."""
    child = child_of(key, origin)
    submitted = InputSubmitted(input=derive_child_input(child), items=(TextItem(text=text),))
    return create(key, state, config, origin, title), AppendTo(child, submitted)


def create(key: ThreadKey, state: ThreadState, config: Config, origin: Origin, title: str | None) -> AppendTo:
    """Return the child's creation alone: an empty thread, which waits for its task."""
    lineage = Lineage(
        kind="child",
        parent=key.thread,
        seq=state.seq,
        chain=state.chain,
        call=origin.call,
        plan_version=origin.plan_version,
        task=origin.task,
        depth=depth_of(state) + 1,
    )
    created = ThreadCreated(config=config, title=title, labels=state.labels, lineage=lineage)
    return AppendTo(child_of(key, origin), created)


def is_created(child: ThreadKey, world: World) -> bool:
    """Whether the log has acknowledged the child's creation to this process, so that the child may be named."""
    return (child, derive_service_event(child, ThreadCreated.kind)) in world.stored


def stop(child: ThreadKey) -> tuple[AppendTo, ...]:
    """Stop a child that has begun: withdraw its input, and cancel its first turn.

    Only one of the two takes effect, and only the child's thread knows which: the input may just have been taken.
    """
    withdrawn = InputWithdrawn(input=derive_child_input(child))
    return AppendTo(child, withdrawn), AppendTo(child, TurnCancelRequested(turn=1, reason="parent"))


def read(child: ThreadKey) -> ReadChild:
    """Look up whether the child has ended what it was begun for."""
    return ReadChild(child, derive_child_input(child))


def read_at_ms(since_ms: int, limits: Limits, world: World) -> int:
    """Return when a child that was begun at `since_ms` has to be looked up next."""
    return max(since_ms, world.children_read_ms) + 1000 * limits.child_look_seconds


def grace_ms(state: ThreadState, limits: Limits) -> int:
    """Return how long a parent waits for a child that it has stopped.

    A child that is cancelled waits for its own children first, and so on down. So the grace time counts once for each
    generation that may be below, and once for the parent.
    """
    levels = max(1, limits.child_depth - depth_of(state))
    return 1000 * limits.deadline_grace_seconds * (1 + levels)


def advance(
    key: ThreadKey, state: ThreadState, turn: Turn, call: Call, now_ms: int, limits: Limits, world: World
) -> Decisions:
    """Move a running call of `spawn_thread` on: begin the child, wait for its end, stop it when the call is over.

    The child's first events are decided each time, also before it is stopped. The loop sends them once per owner, and
    the fold counts them once; nothing here has to remember whether the child has begun.
    """
    origin = Origin(call.call)
    child = child_of(key, origin)
    end = world.children.get(child.thread)
    if end is not None:
        return [Append(_finished(call, child, end))]
    stopped_ms: int | None = None
    if turn.cancelling is not None:
        stopped_ms = turn.cancelled_ms
    elif now_ms >= call.deadline_ms:
        stopped_ms = call.deadline_ms
    look_ms = read_at_ms(call.claimed_ms, limits, world)
    waiting: list[Decision] = []
    if not world.is_ahead:
        waiting.extend(begin(key, state, child_config(turn, call, limits), origin, *_task(call)))
    if now_ms >= look_ms:
        waiting.append(read(child))
        look_ms = now_ms + 1000 * limits.child_look_seconds
    if stopped_ms is None:
        return [*waiting, LookAgain(min(look_ms, call.deadline_ms))]
    gone_ms = stopped_ms + grace_ms(state, limits)
    is_gone = now_ms >= gone_ms
    # The result names the child. Where the log has not taken its creation yet, the call waits for that, too.
    if is_gone and is_created(child, world):
        why = "it did not end within the grace time after it was told to; it may still be ending"
        return [Append(_finished(call, child, ChildEnd("cancelled" if turn.cancelling else "timed_out", why)))]
    if not world.is_ahead:
        waiting.extend(stop(child))
    return [*waiting, LookAgain(look_ms if is_gone else min(look_ms, gone_ms))]


def why_refused(state: ThreadState, turn: Turn, call: Call, limits: Limits, world: World) -> tuple[str, str] | None:
    """Return why this turn may not begin that child; None if it may.

    Children of the same step are counted by their index: they are judged before any of them has begun.
    """
    depth = depth_of(state) + 1
    if depth > limits.child_depth:
        return "policy:limits", (
            f"A child of this thread would be {depth} generations below the topmost thread; {limits.child_depth} are"
            " allowed. Do the task yourself."
        )
    before = sum(
        each.tool == call.tool and each.turn == call.turn and each.attempt == 0 and each.index < call.index
        for each in state.calls.values()
        if not each.settled
    )
    if turn.children + before >= limits.children_per_turn:
        return "policy:limits", (
            f"A turn may begin {limits.children_per_turn} child threads. Do the rest yourself, or with fewer."
        )
    if tokens_left(turn, limits) == 0:
        return "policy:limits", "This turn has no tokens left that a child thread could use."
    tools = call.args.get("tools")
    offered = {tool.name for tool in world.catalog.specs(turn.config.tools)}
    unknown = [str(name) for name in tools if name not in offered] if isinstance(tools, list) else []
    if unknown:
        return "policy:arguments", (
            f"A child can only use tools that you have; you do not have: {', '.join(unknown)[:300]}."
        )
    return None


def child_config(turn: Turn, call: Call, limits: Limits) -> Config:
    """Return the child's configuration: the parent's, as its turn pinned it, with what the call asks for."""
    args = call.args
    own = turn.config
    instructions, model, tools = args.get("instructions"), args.get("model"), args.get("tools")
    changed: dict[str, object] = {"limits": child_limits(turn, limits)}
    if isinstance(instructions, str):
        changed["instructions"] = instructions
    if isinstance(model, str):
        changed["model"] = model
    if isinstance(tools, list):
        # They were checked when the call was proposed; whoever approved it may have edited them since.
        changed["tools"] = tuple([str(name) for name in tools if own.tools is None or name in own.tools])
    return own.model_copy(update=changed)


def child_limits(turn: Turn, limits: Limits) -> OwnLimits:
    """Return the limits of the turn's configuration, with at most the tokens that the turn has left."""
    left = tokens_left(turn, limits)
    own = turn.config.limits
    return own if left is None else own.model_copy(update={"turn_tokens": max(1, left)})


def _task(call: Call) -> tuple[str, str | None]:
    task, title = call.args.get("task"), call.args.get("title")
    return str(task), str(title)[:TITLE_CHARACTERS_MAX] if title else None


def _finished(call: Call, child: ThreadKey, end: ChildEnd) -> ToolCallFinished:
    return ToolCallFinished(
        call=call.call,
        attempt=call.attempt,
        claim=call.claim or "",
        outcome=end.outcome,
        result=result(child.thread, end),
    )


# The child's side


def own_end(key: ThreadKey, before: ThreadState, after: ThreadState, record: Record, answer: Answer) -> ChildEnd | None:
    """Return the end of what the thread was begun for, if this record is that end; None if it is not.

    That is the end of the turn that took the first input, a record that takes the input out of the queue, or the input
    itself if the thread is closing by then. None, too, if the answer is not in memory: the parent then finds the end in
    the views.
    """
    if not is_told(after):
        return None
    first = derive_child_input(key)
    if _is_refused(after, record, first):
        return child_end(None, WITHDRAWN, "")
    if before.turn is after.turn and before.queue is after.queue:
        return None
    if not _has(before, first) or _has(after, first):
        return None
    if before.turn is None or first not in before.turn.inputs:
        return child_end(None, WITHDRAWN, "")
    reason = record.data.reason if isinstance(record.data, TurnEnded) else None
    text = answer(before.turn.turn, before.turn.steps)
    return None if text is None else child_end(after.last_outcome, reason, text)


def is_told(state: ThreadState) -> bool:
    """Whether a parent waits for this thread's end. Nobody waits for a child that a person began."""
    lineage = state.lineage
    return lineage is not None and lineage.kind == "child" and (lineage.call is not None or lineage.task is not None)


def awaits_task(key: ThreadKey, state: ThreadState) -> bool:
    """Whether this is the child of a task that has not arrived: it follows the parent's record that the task runs."""
    is_of_task = state.lineage is not None and state.lineage.kind == "child" and state.lineage.task is not None
    return is_of_task and state.last_turn == 0 and derive_child_input(key) not in state.inputs


def _is_refused(after: ThreadState, record: Record, first: str) -> bool:
    """Whether the first input came too late: the thread was closed between its creation and its task."""
    is_first = isinstance(record.data, InputSubmitted) and record.data.input == first
    is_closed = after.status in {"closing", "closed"}
    return is_first and is_closed and after.last_turn == 0 and first not in after.inputs


def tell_parent(key: ThreadKey, state: ThreadState, world: World) -> Decisions:
    """Append this thread's end to its parent's thread, until that has it.

    Whether it counts is the parent's affair. By then the parent may know the end from the views, or no longer wait.
    """
    lineage = state.lineage
    if world.ended is None or lineage is None:
        return NOTHING_TO_DO
    parent = ThreadKey(TenantId(key.tenant), ThreadId(lineage.parent))
    event: Event
    if lineage.call is not None:
        claim = derive_service_event(parent, "tool_call.dispatched", lineage.call, 1)
        told = result(key.thread, world.ended)
        event = ToolCallFinished(call=lineage.call, attempt=1, claim=claim, outcome=world.ended.outcome, result=told)
    elif lineage.task is not None and lineage.plan_version is not None:
        event = task_ended(lineage.plan_version, lineage.task, key.thread, world.ended)
    else:
        return NOTHING_TO_DO
    return [AppendTo(parent, event)]


def _has(state: ThreadState, name: str) -> bool:
    """Whether the input waits in the queue or is part of the open turn."""
    in_turn = state.turn is not None and name in state.turn.inputs
    return in_turn or any(item.input == name for item in state.queue)


# What an end means for the parent


def child_end(outcome: TurnOutcome | None, reason: str | None, text: str) -> ChildEnd:
    """Return the child's end, from the turn that took its first input; `outcome` is None if no turn took it.

    An interrupted turn counts as failed: the parent's model can react to that, and its work is not done.
    """
    outcomes: Mapping[TurnOutcome | None, CallOutcome] = {
        "completed": "succeeded",
        "failed": "failed",
        "interrupted": "failed",
    }
    ended = outcomes.get(outcome, "cancelled")
    if ended == "succeeded":
        return ChildEnd(ended, text)
    why = f"The child thread {_ENDINGS[ended]}: {reason or outcome or 'no reason is given'}."
    return ChildEnd(ended, f"{why} Its last answer was: {text}" if text else why)


_ENDINGS: Final[Mapping[CallOutcome, str]] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "timed_out": "ran out of time",
    "cancelled": "was cancelled",
}


def result(child: str, end: ChildEnd) -> dict[str, JsonValue]:
    """Return the result of the call in the form of every tool's results, so the model reads the text."""
    return {"thread": child, "content": [{"type": "text", "text": cut(end.text, RESULT_BYTES_MAX, child)}]}


def task_ended(plan_version: int, task: str, child: str, end: ChildEnd) -> TaskUpdated:
    return TaskUpdated(
        plan_version=plan_version,
        task=task,
        status=end.outcome if end.outcome in {"succeeded", "cancelled"} else "failed",
        child=child,
        result=cut(end.text, TASK_RESULT_BYTES_MAX, child),
    )


def cut(text: str, bytes_max: int, child: str) -> str:
    """Return at most so many bytes of the text, with a note of where the whole is; the note alone may be longer."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text
    note = f"\n[cut: {len(raw)} bytes; the whole answer is in thread {child}]"
    return raw[: max(0, bytes_max - len(note.encode()))].decode(errors="ignore") + note


def answer_text(contents: Iterable[Mapping[str, JsonValue]]) -> str:
    """Return the text of the messages of one answer, from their contents in the transcript."""
    parts = [part for content in contents for part in _list(content.get("content"))]
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
