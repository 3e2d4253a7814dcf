"""Plans under runtimes that are killed between any two records: each task is begun once, and its end counts once."""

import asyncio
from typing import Any

from schemas.codec import Record, encode
from schemas.config import Config
from schemas.events import (
    Event,
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
from schemas.ids import ThreadId, ThreadKey, derive_child_input, parse_key
from schemas.state import ThreadState
from schemas.thread import Verdict
from services.chassis.log.port import LogUnavailableError, Outgoing
from services.runtime.models.port import ModelAnswer, ModelCall, ModelFailure
from tests.support.recorded.histories import USER, submitted
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.children import SaidModel, family, parent
from tests.support.worlds.services import Judged, RuntimeProcess, World
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
                "result": "heard: b\n\nResults of the tasks before it:\n\na (a): heard: a",
            },
            {"id": "c", "status": "succeeded", "result": "heard: c"},
        ]


@in_virtual_time
async def test_each_child_is_in_the_log_before_its_parent_names_it() -> None:
    async with family(model_of()) as world:
        named: dict[str, bool] = {}
        there: set[str] = set()

        def note(record: Record, _verdict: Verdict, _state: ThreadState) -> None:
            there.add(record.key.thread)
            if isinstance(record.data, TaskUpdated) and record.data.child is not None:
                named.setdefault(record.data.child, record.data.child in there)

        world.on_judged = note  # type: ignore[method-assign]  # to see the order in which the broker stored them
        await RuntimeProcess(world, "r").start()
        await world.until_rest(await parent(world, "plan"))
        assert list(named.values()) == [True] * 3


@in_virtual_time
async def test_a_child_that_the_log_does_not_take_is_not_named() -> None:
    async with family(model_of()) as world:
        process = RuntimeProcess(world, "r")
        await process.start()
        key = await world.create("parent", Config(model="said"))
        append = process.log.appender.append
        kept: list[Any] = []

        def keeping(topic: str, partition: int, records: Any) -> Any:
            if records[0].key == key.to_bytes():
                return append(topic, partition, records)
            future = asyncio.get_running_loop().create_future()
            kept.append((future, topic, partition, records))
            return future

        process.log.appender.append = keeping  # type: ignore[method-assign]  # records for children are kept back
        await world.command(key, PlanProposed(plan_version=1, tasks=TASKS[:1]), "plan")
        await world.until(lambda: kept)
        await asyncio.sleep(5)
        assert statuses(world, key) == {"a": "pending"} and set(world.judged()) == {key}
        process.log.appender.append = append  # type: ignore[method-assign]  # as it was
        kept[0][0].set_exception(LogUnavailableError("the test lost it"))
        await world.until(lambda: statuses(world, key) == {"a": "succeeded"})
        check_ran_once(world, key, "a")


async def spoken_to(event: Event, end: str) -> tuple[Judged, ThreadKey]:
    """The child of a task in whose log somebody else's command came before its task did; once the task has ended so."""
    async with family(model_of()) as world:
        process = await RuntimeProcess(world, "r").start()
        append = process.log.appender.append
        spoken: list[ThreadKey] = []

        def speaking(topic: str, partition: int, records: Any) -> Any:
            if spoken or b"input.submitted" not in dict(records[0].headers)["ce_type"]:
                return append(topic, partition, records)
            spoken.append(parse_key(records[0].key))
            made = encode(spoken[0], event, source="ingest/x", actor=USER, time_ms=world.clock.now_ms())
            return append(topic, partition, [Outgoing(records[0].key, made.value, made.headers), *records])

        process.log.appender.append = speaking  # type: ignore[method-assign]  # a person is quick
        key = await world.create("parent", Config(model="said"))
        await world.command(key, PlanProposed(plan_version=1, tasks=TASKS[:1]), "plan")
        await world.until(lambda: statuses(world, key) == {"a": end})
        assert children_of(world, key) == {"a": spoken[0]}
        return world.of(spoken[0]), spoken[0]


@in_virtual_time
async def test_who_is_told_of_a_child_may_speak_to_it_before_it_has_its_task() -> None:
    born, key = await spoken_to(submitted("early"), "succeeded")
    assert born.applied(TurnStarted)[0].inputs[0] == derive_child_input(key)


@in_virtual_time
async def test_a_child_that_is_closed_before_it_has_its_task_is_told_as_cancelled() -> None:
    born, _ = await spoken_to(ThreadCloseRequested(), "cancelled")
    assert not born.applied(TurnStarted)


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
