"""Plans under runtimes that are killed between any two records: each task is begun once, and its end counts once."""

from typing import Any

from schemas.config import Config
from schemas.events import (
    PlanApproved,
    PlanProposed,
    Task,
    TaskUpdated,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadCreated,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import ThreadId, ThreadKey
from services.runtime.models.port import ModelAnswer, ModelCall, ModelFailure
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.children import SaidModel, family, parent
from tests.support.worlds.services import RuntimeProcess, World
from tests.unit.runtime.test_children_loop import Killing, start

TASKS = (Task(id="a", title="a"), Task(id="b", title="b", depends_on=("a",)), Task(id="c", title="c"))
PROPOSED = {"tasks": [task.model_dump(mode="json", exclude_none=True) for task in TASKS]}
SAYS: dict[str, ModelAnswer | ModelFailure] = {"plan": ModelAnswer([], [ModelCall("update_plan", PROPOSED)])}
SLOW = 30.0


def model_of(**slow: float) -> SaidModel:
    model = SaidModel(SAYS)
    model.slow = slow
    return model


def statuses(world: World, key: ThreadKey) -> dict[str, str]:
    return {name: standing.status for name, standing in world.of(key).state.plan.tasks.items()}


def children_of(world: World, key: ThreadKey) -> dict[str, ThreadKey]:
    """By task: every thread that the log holds beside the parent, each for one task."""
    found: dict[str, ThreadKey] = {}
    for other in set(world.judged()) - {key}:
        lineage = world.of(other).state.lineage
        assert lineage is not None and lineage.task is not None and lineage.task not in found
        found[lineage.task] = ThreadKey(other.tenant, ThreadId(other.thread))
    return found


def check_ran_once(world: World, key: ThreadKey, *names: str) -> None:
    children = children_of(world, key)
    assert set(children) == set(names)
    for name in names:
        born = world.of(children[name])
        assert len(born.applied(ThreadCreated)) == 1
        begun = len(born.applied(TurnStarted))
        # One that was stopped in time never began.
        assert begun == 1 or (begun == 0 and statuses(world, key)[name] == "cancelled")
    moves = [(event.task, event.status) for event in world.of(key).applied(TaskUpdated)]
    assert len(moves) == len(set(moves)), moves


async def planned_and_killed_at(number: int, end: str = "") -> int:
    """A version that a call proposed. How many records there were before the end."""
    async with family(model_of(c=SLOW) if end else model_of()) as world:
        await start(world)
        killing = Killing(world, number)
        key = await parent(world, "plan")
        if end:
            await world.until(lambda: statuses_if(world, key).get("b") == "succeeded")
            ending: Any = TurnCancelRequested(turn=1, reason="user") if end == "cancel" else ThreadCloseRequested()
            await world.command(key, ending, end)
        judged = await world.until_rest(key)
        await world.until(lambda: all(world.of(each).state.turn is None for each in world.judged()))
        check_ran_once(world, key, "a", "b", "c")
        [ended] = judged.applied(TurnEnded)
        [finished] = judged.applied(ToolCallFinished)
        assert ended.outcome == ("aborted" if end else "completed")
        assert finished.outcome == ("cancelled" if end else "succeeded")
        assert statuses(world, key) == {"a": "succeeded", "b": "succeeded", "c": "cancelled" if end else "succeeded"}
        assert len(judged.applied(ThreadClosed)) == (end == "close")
        return killing.seen


def statuses_if(world: World, key: ThreadKey) -> dict[str, str]:
    return statuses(world, key) if key in world.judged() else {}


async def replanned_and_killed_at(number: int) -> int:
    """A person's version, without a turn, and another that keeps a task that runs and leaves one out."""
    async with family(model_of(a=5.0, c=SLOW)) as world:
        await start(world)
        killing = Killing(world, number)
        key = await world.create("parent", Config(model="said"))
        await world.command(key, PlanProposed(plan_version=1, tasks=TASKS), "first")
        await world.until(lambda: len(children_of(world, key)) == 2)
        kept = (Task(id="a", title="a"), Task(id="d", title="d", depends_on=("a",)))
        await world.command(key, PlanProposed(plan_version=2, tasks=kept), "second")
        end = {"a": "succeeded", "b": "cancelled", "c": "cancelled", "d": "succeeded"}
        await world.until(lambda: statuses(world, key) == end)
        await world.until(lambda: all(world.of(each).state.turn is None for each in world.judged()))
        check_ran_once(world, key, "a", "c", "d")
        assert [event.plan_version for event in world.of(key).applied(PlanApproved)] == [1, 2]
        assert world.of(children_of(world, key)["c"]).state.last_outcome in {"aborted", None}
        return killing.seen


@in_virtual_time
async def test_a_plan_runs_to_its_end() -> None:
    async with family(model_of()) as world:
        await RuntimeProcess(world, "r").start()
        key = await parent(world, "plan")
        judged = await world.until_rest(key)
        [finished] = judged.applied(ToolCallFinished)
        result = finished.result
        assert isinstance(result, dict)
        assert result["tasks"] == [
            {"id": "a", "status": "succeeded", "result": "heard: a"},
            {
                "id": "b",
                "status": "succeeded",
                "result": "heard: b\n\nWhat the tasks before it came to:\n\na (a): heard: a",
            },
            {"id": "c", "status": "succeeded", "result": "heard: c"},
        ]


@in_virtual_time
async def test_a_crash_between_any_two_records_heals() -> None:
    records = await planned_and_killed_at(1_000)
    assert records > 30
    for number in range(2, records):
        await planned_and_killed_at(number)


@in_virtual_time
async def test_a_crash_between_any_two_records_of_a_cancelled_plan_heals() -> None:
    records = await planned_and_killed_at(1_000, "cancel")
    for number in range(2, records):
        await planned_and_killed_at(number, "cancel")


@in_virtual_time
async def test_a_crash_between_any_two_records_of_a_thread_that_closes_heals() -> None:
    records = await planned_and_killed_at(1_000, "close")
    for number in range(2, records):
        await planned_and_killed_at(number, "close")


@in_virtual_time
async def test_a_crash_between_any_two_records_of_replanning_heals() -> None:
    records = await replanned_and_killed_at(1_000)
    for number in range(2, records):
        await replanned_and_killed_at(number)
