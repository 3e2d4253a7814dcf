"""Plans: how a version is approved, how its tasks run as child threads, and what the result of its call is. Pure.

A version that a call proposed lives with its call: no task of it runs once the call, or the call's turn, is over. One
that a person or a backend proposed goes on without a turn.

A task begins in four steps, each after the log has the one before: the child is created, empty; `task.updated` says
that the task runs, and names the child; that is read back; the child is given its task. So the child is there when it
is named, and works only for a task that really runs: where another record came first, the child stays empty. After a
takeover all of it is sent again, and counts once.

The end of a task arrives like that of any child: the child's owner reports it, and this one looks it up as well. A plan
is decided about in every round, in a turn and between turns, so nothing here depends on which of them comes first.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue, ValidationError

from schemas import plan as graph
from schemas.canonical import canonical_json
from schemas.config import Config
from schemas.events import (
    CallOutcome,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    Task,
    TaskUpdated,
    ToolCallFinished,
)
from schemas.ids import ThreadKey
from schemas.plan import PlanState, TaskState, is_busy, ready_tasks
from schemas.state import Call, ThreadState, Turn
from schemas.tools import ToolSpec
from services.runtime.deciding import children
from services.runtime.deciding.children import Origin
from services.runtime.deciding.decisions import NOTHING_TO_DO, Append, AppendTo, Decision, Decisions, LookAgain, World
from services.runtime.deciding.limits import Limits, narrowed

TASK_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of a task's id. Models write it by hand and people read it, so it is short and has no spaces."""
TASKS_MAX: Final = 1_000
"""Tasks that the tool's schema allows. The limit of the service is lower, and rejects with a better reason."""
TITLE_CHARACTERS_MAX: Final = 500
INSTRUCTIONS_CHARACTERS_MAX: Final = 20_000
TOLD_BYTES_MAX: Final = 64 * 1024
"""Bytes of the results that a task is shown, of all tasks that it depends on together."""

UPDATE_PLAN: Final = ToolSpec(
    name="update_plan",
    description=(
        "Propose a plan, or another version of it: tasks that depend on each other. Where a person has to approve it,"
        " this waits for the answer. Each task then runs as a thread of its own, once those that it depends on have"
        " succeeded; it sees its title, its instructions and their results, and nothing of this conversation or"
        " its workspace. The result says what became of every task. Tasks that a new version names again by their id go"
        " on, or begin anew where they had failed; those that it leaves out are stopped."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "tasks": {
                "type": "array",
                "minItems": 1,
                "maxItems": TASKS_MAX,
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "pattern": TASK_ID_PATTERN, "description": "Short, such as `build`."},
                        "title": {"type": "string", "minLength": 1, "maxLength": TITLE_CHARACTERS_MAX},
                        "depends_on": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "Ids of tasks that have to succeed before.",
                        },
                        "instructions": {
                            "type": "string",
                            "maxLength": INSTRUCTIONS_CHARACTERS_MAX,
                            "description": "What to do, and what to answer.",
                        },
                    },
                    "required": ["id", "title"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["tasks"],
        "additionalProperties": False,
    },
    effect="idempotent",
    max_attempts=1,
)
"""The tool has one attempt, because a call proposes one version. It is not parallel, so the second plan of a step is
judged when the first one is over.
"""


def advance(key: ThreadKey, state: ThreadState, now_ms: int, limits: Limits, world: World) -> Decisions:
    """Return what to do about the plan, in a turn or between turns. `limits` are the service's.

    A version that waits is answered first. Then tasks move (`_moves`), and only if none does, their children are taken
    care of (`_care`): what other threads are sent follows from tasks whose events have been read back.
    """
    if is_over(state) or state.status == "closed":
        # A thread that was closed over its tasks takes no more events about them.
        return NOTHING_TO_DO
    plan = state.plan
    if plan.waiting is not None:
        config = _config(state, plan.waiting)
        answer = _answer(state, plan, plan.waiting, config, now_ms, narrowed(limits, config))
        if answer is not None:
            return [answer]
    if not is_busy(plan):
        return NOTHING_TO_DO
    config = _config(state, plan.in_force)
    limits = narrowed(limits, config)
    why = why_over(state, plan.in_force, now_ms)
    return _moves(key, plan, why, limits, world) or _care(key, state, config, why, now_ms, limits, world)


def is_over(state: ThreadState) -> bool:
    """Whether there is nothing left to do about the plan, so that a closing thread may close."""
    return state.plan.waiting is None and not is_busy(state.plan)


def _turn(state: ThreadState, version: int | None) -> Turn | None:
    """Return the turn that a version lives in, that of its call; None for a version of a person or a backend."""
    return None if graph.proposer(state.plan, version) is None else state.turn


def _config(state: ThreadState, version: int | None) -> Config:
    """Return the configuration that a version is under: what its turn pinned, or else the thread's newest."""
    turn = _turn(state, version)
    config = state.config if turn is None else turn.config
    assert config is not None  # a thread that has a plan was created
    return config


# Answers


def _answer(
    state: ThreadState, plan: PlanState, version: int, config: Config, now_ms: int, limits: Limits
) -> Append | None:
    """Return the answer to a version that waits; None if a person has to give it.

    A version that can no longer run, or is beyond a limit, is rejected before anybody is asked.
    """
    why = why_over(state, version, now_ms)
    if why is not None:
        return _rejected(version, "policy:over", why)
    why = why_beyond(state, plan.proposed, limits)
    if why is not None:
        return _rejected(version, "policy:limits", why)
    if config.plan_approval == "always":
        return None
    by = f"policy:{config.plan_approval}"
    return Append(PlanApproved(plan_version=version, by=by), by)


def _rejected(version: int, by: str, reason: str) -> Append:
    return Append(PlanRejected(plan_version=version, by=by, reason=reason), by)


def why_beyond(state: ThreadState, tasks: Sequence[Task], limits: Limits) -> str | None:
    """Return why these tasks cannot run below this thread; None if they can."""
    if len(tasks) > limits.plan_tasks:
        return f"the plan has {len(tasks)} tasks; {limits.plan_tasks} are allowed"
    depth = children.depth_of(state) + 1
    if depth > limits.child_depth:
        return (
            f"tasks run as child threads: they would be {depth} generations below the topmost thread, "
            f"and {limits.child_depth} are allowed"
        )
    return None


def why_over(state: ThreadState, version: int | None, now_ms: int) -> str | None:
    """Return why this version may start nothing any more; None if it may."""
    if state.status == "closing":
        return "the thread is being closed"
    name = graph.proposer(state.plan, version)
    if name is None:
        return None
    call, turn = state.calls.get(name), state.turn
    if call is None or call.status != "running" or turn is None:
        return "the call that proposed it is over"
    if turn.cancelling is not None:
        return f"turn {turn.turn} is being cancelled"
    if now_ms >= call.deadline_ms:
        return "the time of the call that proposed it is over"
    return None


# Tasks


def _moves(key: ThreadKey, plan: PlanState, why_stopped: str | None, limits: Limits, world: World) -> list[Append]:
    """Return the events of tasks that have ended, begin now, or can never begin."""
    version = plan.in_force or 0
    moves: list[Append] = []
    hopeless = _hopeless(plan)
    startable = {task.id for task in _startable(plan, limits)}
    for name, standing in plan.tasks.items():
        if standing.status == "running":
            end = world.children.get(standing.child or "")
            if end is not None:
                moves.append(Append(children.task_ended(version, name, standing.child or "", end)))
        elif standing.status == "pending":
            why = why_stopped or hopeless.get(name)
            if why is not None:
                moves.append(Append(TaskUpdated(plan_version=version, task=name, status="cancelled", result=why)))
            elif name in startable and children.is_created(children.child_of(key, _origin(version, name)), world):
                child = children.child_of(key, _origin(version, name)).thread
                moves.append(Append(TaskUpdated(plan_version=version, task=name, status="running", child=child)))
    return moves


def _startable(plan: PlanState, limits: Limits) -> Sequence[Task]:
    """Return the tasks that may begin now: all that they depend on is done, and not too many run at once."""
    running = sum(standing.status == "running" for standing in plan.tasks.values())
    return ready_tasks(plan)[: max(0, limits.parallel_tasks - running)]


def _hopeless(plan: PlanState) -> dict[str, str]:
    """Return the tasks that wait for a failed or cancelled one, directly or through others, with the reason of each."""
    why = {
        name: f"the task {name!r} {'has failed' if standing.status == 'failed' else 'was cancelled'}"
        for name, standing in plan.tasks.items()
        if standing.status in {"failed", "cancelled"}
    }
    if not why:
        return {}
    waiting: dict[str, list[str]] = {}
    for name, standing in plan.tasks.items():
        if standing.status == "pending":
            for needed in standing.task.depends_on:
                waiting.setdefault(needed, []).append(name)
    found: dict[str, str] = {}
    spreading = list(why)
    for needed in spreading:  # grows by each task that is found, once
        for name in waiting.get(needed, ()):
            if name not in found:
                found[name] = why[name] = why[needed]
                spreading.append(name)
    return found


def _care(
    key: ThreadKey, state: ThreadState, config: Config, why: str | None, now_ms: int, limits: Limits, world: World
) -> Decisions:
    """Create the children of tasks that may begin; give their tasks to those that run, look them up, and stop them."""
    decisions: list[Decision] = []
    if why is None and not world.is_ahead:
        decisions.extend(_create(key, state, config, task, limits) for task in _startable(state.plan, limits))
    looks: list[int] = []
    gone: list[Append] = []
    for standing in state.plan.tasks.values():
        if standing.status != "running":
            continue
        child = children.child_of(key, _origin_of(standing))
        look_ms = children.read_at_ms(standing.moved_ms, limits, world)
        if now_ms >= look_ms:
            decisions.append(children.read(child))
            look_ms = now_ms + 1000 * limits.child_look_seconds
        looks.append(look_ms)
        if not world.is_ahead:
            decisions.extend(_begin(key, state, config, standing, limits))
        if why is None and not standing.left_out:
            continue
        gone_ms = _stopped_ms(state, standing, now_ms) + children.grace_ms(state, limits)
        if now_ms >= gone_ms:
            gone.append(_given_up(state.plan, standing))
        elif not world.is_ahead:
            decisions.extend(children.stop(child))
        looks.append(gone_ms)
    if gone:
        return gone
    deadline_ms = _deadline_ms(state)
    if why is None and deadline_ms is not None:
        looks.append(deadline_ms)
    return [*decisions, LookAgain(min(looks))] if looks else decisions


def _begin(
    key: ThreadKey, state: ThreadState, config: Config, standing: TaskState, limits: Limits
) -> tuple[AppendTo, ...]:
    config = _child_config(state, config, limits)
    text = task_text(state.plan, standing.task)
    return children.begin(key, state, config, _origin_of(standing), text, _child_title(standing.task))


def _create(key: ThreadKey, state: ThreadState, config: Config, task: Task, limits: Limits) -> AppendTo:
    origin = _origin(state.plan.in_force or 0, task.id)
    return children.create(key, state, _child_config(state, config, limits), origin, _child_title(task))


def _child_config(state: ThreadState, config: Config, limits: Limits) -> Config:
    """Return the configuration of a task's child. In a turn it may use at most the tokens that the turn has left."""
    turn = _turn(state, state.plan.in_force)
    return config if turn is None else config.model_copy(update={"limits": children.child_limits(turn, limits)})


def _child_title(task: Task) -> str:
    return task.title[: children.TITLE_CHARACTERS_MAX]


def _stopped_ms(state: ThreadState, standing: TaskState, now_ms: int) -> int:
    """Return since when the task has to stop; its grace time counts from then.

    The time has to come from the state, so that a new owner computes the same and does not begin to wait anew.
    """
    if standing.left_out:
        return standing.moved_ms
    if state.turn is not None and state.turn.cancelling is not None:
        return state.turn.cancelled_ms
    deadline_ms = _deadline_ms(state)
    over_ms = deadline_ms if deadline_ms is not None and now_ms >= deadline_ms else 0
    # No record says when a plan was given up for another reason (its call or its thread is over). The thread's last
    # record stands in for it; each further record gives the tasks that are left some more time.
    return max(state.updated_ms, over_ms)


def _given_up(plan: PlanState, standing: TaskState) -> Append:
    why = "it did not end within the grace time after it was told to; it may still be ending"
    return Append(
        TaskUpdated(
            plan_version=plan.in_force or 0,
            task=standing.task.id,
            status="cancelled",
            child=standing.child,
            result=why,
        )
    )


def _origin(version: int, task: str) -> Origin:
    return Origin(plan_version=version, task=task)


def _origin_of(standing: TaskState) -> Origin:
    return _origin(standing.begun_in or 0, standing.task.id)


def task_text(plan: PlanState, task: Task) -> str:
    """Return what the child is asked: the task, and the results of the tasks that it depends on."""
    parts = [task.title]
    if task.instructions:
        parts.append(task.instructions)
    before = [plan.tasks[needed] for needed in task.depends_on if needed in plan.tasks]
    bytes_max = min(children.TASK_RESULT_BYTES_MAX, TOLD_BYTES_MAX // max(1, len(before)))
    told = [f"{standing.task.id} ({standing.task.title}): {_result(standing, bytes_max)}" for standing in before]
    if told:
        parts.append("\n\n".join(["Results of the tasks before it:", *told]))
    return "\n\n".join(parts)


# The call that proposes a version


def why_refused(state: ThreadState, _turn: Turn, call: Call, limits: Limits, _world: World) -> tuple[str, str] | None:
    """Return why the arguments are not a plan, or not one that may run here; they fit the tool's schema."""
    tasks = _tasks(call.args)
    problem = tasks if isinstance(tasks, str) else graph.graph_problem(tasks)
    if isinstance(tasks, str) or problem is not None:
        return "policy:arguments", f"This is not a plan: {problem}."
    beyond = why_beyond(state, tasks, limits)
    return None if beyond is None else ("policy:limits", f"{beyond[0].upper()}{beyond[1:]}. Work on it yourself.")


def advance_call(
    _key: ThreadKey, state: ThreadState, turn: Turn, call: Call, now_ms: int, _limits: Limits, _world: World
) -> Decisions:
    """Move a running call of `update_plan` on: propose its version, and end the call when the version has ended.

    The version has ended when its tasks have, when it was rejected, or when a newer version took its place.
    """
    plan = state.plan
    version = plan.proposals.get(call.call)
    if version is None:
        return [_propose(plan, turn, call)]
    if version == plan.waiting or (version == plan.in_force and is_busy(plan)):
        return [LookAgain(call.deadline_ms)] if now_ms < call.deadline_ms else NOTHING_TO_DO
    cancelled: CallOutcome | None = "cancelled" if turn.cancelling is not None else None
    if version == plan.in_force:
        tasks = [standing for standing in plan.tasks.values() if not standing.left_out]
        succeeded = all(standing.status == "succeeded" for standing in tasks)
        result: dict[str, JsonValue] = {"version": version, "status": "ended", "tasks": _told(tasks)}
        return [_finished(call, cancelled or ("succeeded" if succeeded else "failed"), result)]
    if version == plan.last_version and plan.last_answer == "rejected":
        rejected: dict[str, JsonValue] = {"version": version, "status": "rejected", "reason": plan.rejection}
        return [_finished(call, cancelled or "failed", rejected)]
    superseded: dict[str, JsonValue] = {
        "version": version,
        "status": "superseded",
        "reason": f"version {plan.last_version} of the plan was proposed in its place",
    }
    return [_finished(call, cancelled or "failed", superseded)]


def _propose(plan: PlanState, turn: Turn, call: Call) -> Append:
    if turn.cancelling is not None:
        return _finished(call, "cancelled", "The turn was cancelled before the plan was proposed.")
    tasks = _tasks(call.args)
    problem = tasks if isinstance(tasks, str) else graph.graph_problem(tasks)
    if isinstance(tasks, str) or problem is not None:
        return _finished(call, "failed", f"This is not a plan: {problem}. Nothing was proposed.")
    return Append(PlanProposed(plan_version=plan.last_version + 1, tasks=tasks, call=call.call))


def _tasks(args: dict[str, JsonValue]) -> tuple[Task, ...] | str:
    """Return the tasks of a call, or what is wrong with them.

    A model's arguments were checked when the call was proposed. A person may have edited them since, and they were then
    checked by an ingest whose schema may be newer than this runtime's.
    """
    given = args.get("tasks")
    try:
        return tuple(Task.model_validate(task, strict=False) for task in (given if isinstance(given, list) else ()))
    except ValidationError:
        return "its tasks are not what the tool's schema asks for"


def _finished(call: Call, outcome: CallOutcome, result: JsonValue) -> Append:
    return Append(
        ToolCallFinished(call=call.call, attempt=call.attempt, claim=call.claim or "", outcome=outcome, result=result)
    )


def _told(tasks: Sequence[TaskState]) -> list[JsonValue]:
    """Return the tasks for the result of the call. They share the bytes that a result may have."""
    bytes_max = min(children.TASK_RESULT_BYTES_MAX, children.RESULT_BYTES_MAX // max(1, len(tasks)))
    told: list[JsonValue] = []
    for standing in tasks:
        shown: dict[str, JsonValue] = {"id": standing.task.id, "status": standing.status}
        if standing.result is not None:
            shown["result"] = _result(standing, bytes_max)
        told.append(shown)
    return told


def _result(standing: TaskState, bytes_max: int) -> str:
    return children.cut(_text(standing.result), bytes_max, standing.child or "of the task")


def _text(result: JsonValue) -> str:
    if result is None:
        return "no result was reported"
    return result if isinstance(result, str) else canonical_json(result).decode()


def _deadline_ms(state: ThreadState) -> int | None:
    """Return the deadline of the call that proposed the plan in force; None for a plan of a person or a backend."""
    name = graph.proposer(state.plan, state.plan.in_force)
    call = None if name is None else state.calls.get(name)
    return None if call is None else call.deadline_ms
