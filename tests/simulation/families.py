"""What must hold between threads: of children that work for calls, and for tasks of plans.

What a child did is read from its own log, what its parent was told from the parent's, and which came first from the
order in which the broker stored both.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from schemas.codec import Record
from schemas.events import (
    AnswerText,
    CallOutcome,
    InputSubmitted,
    InputWithdrawn,
    Lineage,
    PlanApproved,
    StepFinished,
    StepStarted,
    TaskUpdated,
    ThreadCloseRequested,
    ThreadCreated,
    ToolCallDispatched,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import ThreadId, ThreadKey, derive_child, derive_child_input
from schemas.plan import is_busy
from schemas.state import NOTHING, ThreadState
from services.runtime.models.port import text_of_content
from tests.simulation.invariants import Broken, Run, invariant
from tests.simulation.world import LIMITS
from tests.support.worlds.services import Judged

SPAWN = "spawn_thread"
GIVEN_UP = "it may still be ending"
"""What is said of a child that its parent does not wait for any longer."""
NOTICED_SECONDS = 20
"""However late, its end is looked up by then."""
USER = "user:"
OUTCOMES: dict[str | None, CallOutcome] = {"completed": "succeeded", "failed": "failed", "interrupted": "failed"}
"""By the outcome of the turn that did the task; any other, and none, is a cancel."""


class Deed(NamedTuple):
    """What became of a child's task."""

    began: int | None
    """When a turn took it; None where none did."""
    over: int | None
    """When that turn ended, or the task left the queue otherwise."""
    over_ms: int
    outcome: CallOutcome
    answer: str


class Told(NamedTuple):
    """What the parent's thread says of it."""

    at: int
    at_ms: int
    outcome: str
    text: str


def _applied(key: ThreadKey, thread: Judged, run: Run) -> Iterator[tuple[ThreadState, Record, ThreadState, int]]:
    """With the states before and after, and when it was stored."""
    before = NOTHING
    for record, verdict, after in thread.records:
        if verdict.effect == "applied":
            yield before, record, after, run.world.stored[key, after.seq]
        before = after


def _children(run: Run) -> Iterator[tuple[ThreadKey, Judged, ThreadKey, Lineage]]:
    for key, thread in run.threads.items():
        lineage = thread.state.lineage
        if lineage is not None and lineage.kind == "child":
            yield key, thread, ThreadKey(key.tenant, ThreadId(lineage.parent)), lineage


def _deed(key: ThreadKey, thread: Judged, run: Run) -> Deed:
    task = derive_child_input(key)
    began: int | None = None
    turn = 0
    answer = ""
    for before, record, after, at in _applied(key, thread, run):
        data = record.data
        if isinstance(data, TurnStarted | StepStarted):
            if task in data.inputs:
                began, turn = at, data.turn
            if data.turn == turn:
                answer = ""  # it is the last step's that counts
        elif isinstance(data, StepFinished) and data.turn == turn:
            answer = "\n".join([item.text for item in data.items if isinstance(item, AnswerText)])
        elif isinstance(data, TurnEnded) and data.turn == turn:
            return Deed(began, at, record.time_ms, OUTCOMES.get(data.outcome, "cancelled"), answer)
        is_closed_before = isinstance(data, ThreadCloseRequested) and task not in before.inputs
        if began is None and ((_queues(before, task) and not _queues(after, task)) or is_closed_before):
            return Deed(None, at, record.time_ms, "cancelled", "")
    return Deed(began, None, 0, "cancelled", answer)


def _queues(state: ThreadState, task: str) -> bool:
    return any(item.input == task for item in state.queue)


def _asked(key: ThreadKey, parent: ThreadKey, lineage: Lineage, run: Run) -> list[int]:
    """When the parent recorded that it works for it."""
    return [
        at
        for _, record, _, at in _applied(parent, run.threads[parent], run)
        if (isinstance(record.data, ToolCallDispatched) and record.data.call == lineage.call)
        or (isinstance(record.data, TaskUpdated) and record.data.child == key.thread)
    ]


@invariant
def each_child_is_begun_once(run: Run) -> Iterator[Broken]:
    """By the id that follows from what its parent recorded of it, and with one task, which it gets after that. The child
    of a task is created before, and stays empty where its parent never recorded that the task runs.
    """
    for key, thread, parent, lineage in _children(run):
        origin = lineage.call if lineage.call is not None else f"task {lineage.plan_version} {lineage.task}"
        if key.thread != derive_child(parent, origin):
            yield Broken(f"the child for {origin} of {parent} has another id", key)
        task = derive_child_input(key)
        submitted = [event for event in thread.applied(InputSubmitted) if event.input == task]
        taken = [event for event in thread.applied(TurnStarted) if task in event.inputs]
        taken += [event for event in thread.applied(StepStarted) if task in event.inputs]
        if len(submitted) > 1 or len({event.turn for event in taken}) > 1:
            yield Broken(f"its task was submitted {len(submitted)} times, and taken by {len(taken)} turns", key)
        records = [(record.data, at) for _, record, _, at in _applied(key, thread, run)]
        created = next(at for data, at in records if isinstance(data, ThreadCreated))
        given = next((at for data, at in records if isinstance(data, InputSubmitted) and data.input == task), None)
        asked = _asked(key, parent, lineage, run)
        began = given if lineage.task is not None else created
        if began is not None and (not asked or asked[0] > began):
            yield Broken(f"it was there before {parent} asked for it", key)


@invariant
def the_end_of_a_child_is_told_once(run: Run) -> Iterator[Broken]:
    """As it was, and not before it: a parent that has its result, or is over, has no child that goes on; unless it has
    waited in vain for one that it has stopped.
    """
    for key, thread, parent, lineage in _children(run):
        deed = _deed(key, thread, run)
        told = list(_told(key, parent, lineage, run))
        if not told and run.is_set_aside(key):
            continue  # the word was lost with its owner, and the views, where it is looked up, stand still
        if not told and not _asked(key, parent, lineage, run):
            continue  # it was created for a task that never ran, and has stayed empty
        if len(told) != 1:
            yield Broken(f"{parent} was told {len(told)} times of it: {told}", key)
            continue
        [end] = told
        if end.text.endswith(GIVEN_UP):
            yield from _given_up_in_vain(key, thread, parent, deed, end, run)
        elif deed.over is None or deed.over > end.at:
            yield Broken(f"{parent} was told that it {end.outcome} before it was over", key)
        elif end.outcome != deed.outcome:
            yield Broken(f"it {deed.outcome}, and {parent} was told that it {end.outcome}: {end.text}", key)
        elif end.outcome == "succeeded" and end.text != deed.answer:
            yield Broken(f"it answered {deed.answer}, and {parent} was told {end.text}", key)


def _given_up_in_vain(
    key: ThreadKey, thread: Judged, parent: ThreadKey, deed: Deed, end: Told, run: Run
) -> Iterator[Broken]:
    if deed.began is not None and deed.began > end.at:
        yield Broken(f"it began after {parent} had given it up", key)
    was_over = deed.over is not None and end.at_ms - deed.over_ms > 1000 * NOTICED_SECONDS
    if was_over and not run.is_set_aside(key):
        yield Broken(f"{parent} gave it up long after it was over", key)
    stops = [
        run.world.stored[key, after.seq]
        for record, _, after in thread.records
        if isinstance(record.data, InputWithdrawn | TurnCancelRequested) and not record.actor.startswith(USER)
    ]
    if not stops or stops[0] > end.at:
        yield Broken(f"{parent} gave it up, and had never told it to stop", key)


def _told(key: ThreadKey, parent: ThreadKey, lineage: Lineage, run: Run) -> Iterator[Told]:
    for before, record, _, at in _applied(parent, run.threads[parent], run):
        data = record.data
        if isinstance(data, ToolCallFinished) and data.call == lineage.call:
            yield Told(at, record.time_ms, data.outcome, text_of_content(data.result))
        elif isinstance(data, TaskUpdated) and lineage.task == data.task and data.status != "running":
            standing = before.plan.tasks.get(data.task)
            if standing is not None and standing.child == key.thread:
                yield Told(at, record.time_ms, data.status, str(data.result))


@invariant
def what_a_call_was_told_came_of_a_child(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        for before, record, after, _ in _applied(key, thread, run):
            data = record.data
            if not isinstance(data, ToolCallFinished) or before.calls[data.call].tool != SPAWN:
                continue
            child = ThreadKey(key.tenant, derive_child(key, data.call))
            if data.outcome == "succeeded" and child not in run.threads:
                yield Broken(f"#{after.seq} is the answer of a child that there is not", key)


@invariant
def turns_end_after_their_children(run: Run) -> Iterator[Broken]:
    """However they end."""
    for key, thread in run.threads.items():
        for before, record, after, _ in _applied(key, thread, run):
            if not isinstance(record.data, TurnEnded):
                continue
            running = [call.call for call in before.calls.values() if call.tool == SPAWN and call.status == "running"]
            if running:
                yield Broken(f"turn {record.data.turn} is ended by #{after.seq} while children run for {running}", key)


# Plans


@invariant
def tasks_run_once_and_in_their_order(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        begun: Counter[str] = Counter()
        for before, record, after, _ in _applied(key, thread, run):
            data = record.data
            if not isinstance(data, TaskUpdated) or data.status != "running":
                continue
            begun[data.child or ""] += 1
            if begun[data.child or ""] > 1:
                yield Broken(f"#{after.seq} begins task {data.task} of version {data.plan_version} once more", key)
            tasks = before.plan.tasks
            waits = [
                needed
                for needed in tasks[data.task].task.depends_on
                if needed not in tasks or tasks[needed].status != "succeeded"
            ]
            if waits:
                yield Broken(f"#{after.seq} begins task {data.task} before {waits} have succeeded", key)
            running = [name for name, standing in after.plan.tasks.items() if standing.status == "running"]
            if len(running) > LIMITS.parallel_tasks:
                yield Broken(f"at #{after.seq} so many tasks run at once: {running}", key)


def plans_under_way(run: Run) -> Iterator[tuple[ThreadKey, str]]:
    """But for those with a child whose end cannot be looked up."""
    for key, thread in run.threads.items():
        plan = thread.state.plan
        is_under_way = thread.state.status != "closed" and (plan.waiting is not None or is_busy(plan))
        if is_under_way and not _has_lost_child(key, thread.state, run):
            yield key, f"version {plan.waiting} waits, {_statuses(thread.state)}"


def _has_lost_child(key: ThreadKey, state: ThreadState, run: Run) -> bool:
    running = [standing.child for standing in state.plan.tasks.values() if standing.status == "running"]
    known = [child for name in running if (child := ThreadKey(key.tenant, ThreadId(str(name)))) in run.threads]
    return any(run.is_set_aside(child) for child in known)


@invariant
def plans_come_to_their_end(run: Run) -> Iterator[Broken]:
    """And their calls only then."""
    for key, left in plans_under_way(run):
        yield Broken(f"its plan is not over: {left}", key)
    for key, thread in run.threads.items():
        if _has_lost_child(key, thread.state, run):
            continue
        for before, record, after, _ in _applied(key, thread, run):
            data = record.data
            if not isinstance(data, ToolCallFinished) or before.calls[data.call].tool != "update_plan":
                continue
            version = before.plan.proposals.get(data.call)
            tasks = [each for each in before.plan.tasks.values() if not each.left_out]
            if version is not None and version == before.plan.in_force:
                # A zombie may cancel the call along with tasks that somebody else begins before them in the log.
                if is_busy(before.plan) and data.outcome != "cancelled":
                    yield Broken(f"#{after.seq} says {data.outcome} while tasks are {_statuses(before)}", key)
                succeeded = all(standing.status == "succeeded" for standing in tasks)
                if (data.outcome == "succeeded") != succeeded:
                    yield Broken(f"#{after.seq} says {data.outcome} of tasks that are {_statuses(before)}", key)
            elif data.outcome == "succeeded":
                yield Broken(f"#{after.seq} says succeeded of a version that is not in force", key)


@invariant
def plans_are_approved_by_whom_it_takes(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        for before, record, after, _ in _applied(key, thread, run):
            config = before.config if before.turn is None else before.turn.config
            takes_person = config is not None and config.plan_approval == "always"
            if isinstance(record.data, PlanApproved) and takes_person and not record.actor.startswith(USER):
                yield Broken(f"#{after.seq} is approved by {record.actor}, and takes a person", key)


def _statuses(state: ThreadState) -> dict[str, str]:
    return {name: standing.status for name, standing in state.plan.tasks.items()}
