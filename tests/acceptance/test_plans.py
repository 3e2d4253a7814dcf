"""Plans on real processes: proposed by a model or a person, answered, run as child threads, replanned, and killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from services.client.client import JsonObject, RefusedError, ThreadlogClient
from services.client.sse import Fact
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

SCRIPT = r"""
rules:
  - match: {last_user: "^plan", steps: 0}
    calls:
      - tool: update_plan
        args:
          tasks:
            - {id: look, title: "look around"}
            - {id: mend, title: "mend it", depends_on: [look]}
            - {id: clean, title: "clean up"}
  - match: {last_user: "^circle", steps: 0}
    calls:
      - tool: update_plan
        args: {tasks: [{id: a, title: A, depends_on: [b]}, {id: b, title: B, depends_on: [a]}]}
  - match: {last_user: "^break", steps: 0}
    calls:
      - tool: update_plan
        args: {tasks: [{id: bad, title: "fail now"}, {id: after, title: "look around", depends_on: [bad]}]}
  - match: {last_user: "^fail now"}
    error: {message: "it cannot be done"}
  - match: {last_user: "^look around"}
    text: "I found 42."
  - match: {last_user: "^(mend it|clean up).*found (?P<what>\\d+)"}
    text: "Mended {{what}}."
  - match: {last_user: "^wait"}
    delay_seconds: 60
    text: "Late."
  - match: {last_tool: update_plan}
    text: "The plan came to: {{result}}"
  - match: always
    text: Done.
"""


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("plans")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools="builtin: []") as found,
    ):
        yield found


async def follow(client: ThreadlogClient, thread: str, until: str) -> list[Fact]:
    facts: list[Fact] = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread)) as events:
        async for event in events:
            if isinstance(event, Fact):
                facts.append(event)
                if event.kind == until and event.body["effect"] == "applied":
                    break
    return facts


async def newest(client: ThreadlogClient, thread: str, facts: list[Fact]) -> JsonObject:
    """The last version as of these events."""
    page = await client.plan(thread, at_least=facts[-1].seq)
    version: JsonObject = page["data"][0]
    return version


def statuses(version: JsonObject) -> dict[str, str]:
    return {task["task"]: task["status"] for task in version["tasks"]}


async def until(client: ThreadlogClient, thread: str, wanted: dict[str, str]) -> JsonObject:
    """The last version, once its tasks stand so."""
    version: JsonObject = {"tasks": []}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while statuses(version) != wanted:
            page = await client.plan(thread)
            version = page["data"][0] if page["data"] else version
            await asyncio.sleep(0.02)
    return version


async def test_a_model_plans_and_is_told_what_came_of_it(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread(text="plan it")
        facts = await follow(client, created.thread, "turn.ended")
        assert facts[-1].body["data"]["outcome"] == "completed"
        version = await newest(client, created.thread, facts)
        assert statuses(version) == {"look": "succeeded", "mend": "succeeded", "clean": "succeeded"}
        assert (version["call"], version["decided_by"]) == ("1.1.0", "policy:never")
        results = {task["task"]: task["result"] for task in version["tasks"]}
        assert results == {"look": "I found 42.", "mend": "Mended 42.", "clean": "Done."}
        told = next(fact for fact in facts if fact.kind == "tool_call.finished").body["data"]
        assert (told["outcome"], told["result"]["version"]) == ("succeeded", 1)
        child = await client.thread(version["tasks"][0]["child"])
        assert (child["parent"], child["parent_task"], child["lineage_kind"]) == (created.thread, "look", "child")
        assert child["title"] == "look around"


async def test_a_person_approves_or_rejects_with_a_reason(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread(text="plan it", config={"plan_approval": "always"})
        version = await newest(client, created.thread, await follow(client, created.thread, "plan.proposed"))
        assert version["status"] == "waiting"
        assert statuses(version) == dict.fromkeys(("look", "mend", "clean"), "proposed")
        await client.decide_plan(created.thread, 1, approve=False, reason="not on a Friday")
        with pytest.raises(RefusedError) as late:
            await client.decide_plan(created.thread, 1, approve=True)
        assert late.value.status == 409
        assert late.value.body["decided"]["reason"] == "not on a Friday"
        facts = await follow(client, created.thread, "turn.ended")
        answer = next(fact for fact in reversed(facts) if fact.kind == "step.finished").body["data"]
        assert "not on a Friday" in answer["items"][0]["text"]
        again = await client.create_thread(text="plan it", config={"plan_approval": "always"})
        await follow(client, again.thread, "plan.proposed")
        await client.decide_plan(again.thread, 1, approve=True)
        assert (await follow(client, again.thread, "turn.ended"))[-1].body["data"]["outcome"] == "completed"


async def test_what_is_no_plan_is_refused_with_the_task_named(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread(text="circle")
        facts = await follow(client, created.thread, "tool_call.denied")
        assert "tasks wait for each other: a, b, a" in facts[-1].body["data"]["reason"]
        with pytest.raises(RefusedError) as refused:
            await client.propose_plan(created.thread, [{"id": "a", "title": "A", "depends_on": ["z"]}])
        assert (refused.value.status, "'z'" in refused.value.body["detail"]) == (422, True)


async def test_a_failure_stops_what_depends_on_it(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread(text="break it")
        version = await newest(client, created.thread, await follow(client, created.thread, "turn.ended"))
        assert statuses(version) == {"bad": "failed", "after": "cancelled"}
        assert "it cannot be done" in version["tasks"][0]["result"]
        assert version["tasks"][1]["child"] is None


async def test_a_persons_plan_runs_without_a_turn_and_is_replanned(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread()
        tasks = [{"id": "slow", "title": "wait"}, {"id": "old", "title": "wait"}]
        assert (await client.propose_plan(created.thread, tasks)).body["plan_version"] == 1
        version = await until(client, created.thread, {"slow": "running", "old": "running"})
        running_child = version["tasks"][0]["child"]
        await follow(client, running_child, "step.started")
        kept = [{"id": "slow", "title": "wait"}, {"id": "new", "title": "look around"}]
        await client.propose_plan(created.thread, kept)
        version = await until(client, created.thread, {"slow": "running", "new": "succeeded", "old": "cancelled"})
        assert version["tasks"][0]["child"] == running_child
        assert version["tasks"][2]["left_out"]
        stopped = await client.thread(version["tasks"][2]["child"])
        assert stopped["last_outcome"] == "aborted"
        assert (await client.thread(created.thread))["last_turn"] == 0
        await client.cancel(running_child, 1)
        await until(client, created.thread, {"slow": "cancelled", "new": "succeeded", "old": "cancelled"})


async def test_a_cancelled_turn_stops_its_tasks(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread(text="plan it", config={"plan_approval": "always"})
        await follow(client, created.thread, "plan.proposed")
        await client.cancel(created.thread, 1)
        facts = await follow(client, created.thread, "turn.ended")
        assert facts[-1].body["data"]["outcome"] == "aborted"
        assert (await newest(client, created.thread, facts))["status"] == "rejected"


async def test_a_thread_closes_with_its_plan(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread()
        await client.propose_plan(created.thread, [{"id": "slow", "title": "wait"}])
        begun = (await follow(client, created.thread, "task.updated"))[-1].body["data"]["child"]
        await follow(client, begun, "turn.started")
        await client.close_thread(created.thread)
        version = await newest(client, created.thread, await follow(client, created.thread, "thread.closed"))
        assert statuses(version) == {"slow": "cancelled"}
        assert version["tasks"][0]["child"] == begun
        assert (await follow(client, begun, "turn.ended"))[-1].body["data"]["outcome"] == "aborted"


async def test_a_runtime_that_is_killed_loses_no_task(running: System) -> None:
    async with running.client() as client:
        threads = [(await client.create_thread(text="plan it")).thread for _ in range(6)]
        for _ in range(3):
            running.supervisor.kill("runtime")
            await running.supervisor.wait_ready("runtime")
        for thread in threads:
            facts = await follow(client, thread, "turn.ended")
            assert facts[-1].body["data"]["outcome"] == "completed"
            version = await newest(client, thread, facts)
            assert statuses(version) == {"look": "succeeded", "mend": "succeeded", "clean": "succeeded"}
            for task in version["tasks"]:
                child = await client.thread(task["child"])
                assert (child["last_turn"], child["last_outcome"]) == (1, "completed")
