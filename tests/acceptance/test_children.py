"""A parent and its child on different partitions under two runtimes, of which one is killed at each step between them:
the child runs once, its answer is the parent's result, and cancelling the parent ends both.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import PARTITIONS_DEFAULT
from services.chassis.kafka.kafka_log import partition_for
from services.client.client import RefusedError, ThreadlogClient
from services.client.sse import Fact, JsonObject
from services.runtime.deciding.children import Origin, child_of
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

SECOND = "second"
SCRIPT = r"""
rules:
  - match: {last_user: "^delegate", steps: 0}
    delay_seconds: 0.2
    calls:
      - {tool: spawn_thread, args: {task: "count the words", title: "Count"}}
  - match: {last_user: "^split", steps: 0}
    calls:
      - {tool: spawn_thread, args: {task: "wait for long"}}
  - match: {last_user: "^count", steps: 0}
    text: forty two words in all
    delta_seconds: 0.2
  - match: {last_user: "^wait", steps: 0}
    delay_seconds: 300
    text: too late
  - match: {last_tool: spawn_thread}
    text: "It said: {{result}}"
    delay_seconds: 0.2
"""
STEPS = (
    ("parent", "tool_call.dispatched", "parent"),
    ("child", "thread.created", "parent"),
    ("child", "step.started", "child"),
    ("child", "turn.ended", "child"),
    ("child", "turn.ended", "parent"),
    ("parent", "tool_call.finished", "parent"),
)
"""At this event of this thread the runtime is killed that worked on that one."""


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("children")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools="builtin: []") as found,
    ):
        await found.supervisor.wait_ready(found.supervisor.start("runtime", instance=SECOND))
        yield found


class Family:
    """A parent, and what clients see of it and of the child of its first call."""

    def __init__(self, client: ThreadlogClient, key: ThreadKey) -> None:
        self._client = client
        self.key = key
        self.child = child_of(key, Origin("1.1.0"))
        self.facts: dict[str, list[Fact]] = {"parent": [], "child": []}

    async def until(self, who: str, kind: str) -> None:
        """Until this thread has had an event of this kind that took effect."""
        facts = self.facts[who]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(fact.kind == kind and fact.body["effect"] == "applied" for fact in facts):
                await self._read(who, kind)

    async def _read(self, who: str, kind: str) -> None:
        facts = self.facts[who]
        thread = (self.key if who == "parent" else self.child).thread
        try:
            async with aclosing(self._client.follow(thread, after=len(facts))) as events:
                async for event in events:
                    if isinstance(event, Fact):
                        facts.append(event)
                        if event.kind == kind and event.body["effect"] == "applied":
                            return
        except RefusedError as refused:
            assert refused.status == 404, refused  # a child that has not begun
            await asyncio.sleep(0.1)

    def applied(self, who: str, kind: str) -> list[JsonObject]:
        facts = self.facts[who]
        return [fact.body["data"] for fact in facts if fact.kind == kind and fact.body["effect"] == "applied"]  # type: ignore[misc]

    def owner(self, who: str) -> str:
        """The runtime's name that the supervisor knows, of the last step; of the parent, where there was none."""
        steps = self.applied(who, "step.started") or self.applied("parent", "step.started")
        instance = str(steps[-1]["owner"]).partition("/")[0]
        return f"runtime-{SECOND}" if instance == SECOND else "runtime"


async def begun(client: ThreadlogClient, words: str, *, ephemeral: bool = False) -> Family:
    """Whose parent and child are on different partitions."""
    while True:
        thread = (await client.create_thread(ephemeral=ephemeral)).thread
        family = Family(client, ThreadKey(TenantId("dev"), ThreadId(thread)))
        parent, child = (partition_for(key.to_bytes(), PARTITIONS_DEFAULT) for key in (family.key, family.child))
        if parent != child:
            await client.submit(thread, words)
            return family


@pytest.mark.parametrize(("who", "kind", "whose"), STEPS)
async def test_one_of_two_runtimes_is_killed(running: System, who: str, kind: str, whose: str) -> None:
    async with running.client() as client:
        family = await begun(client, "delegate")
        await family.until("parent", "step.started")
        await family.until(who, kind)
        running.supervisor.kill(family.owner(whose))
        await family.until("parent", "turn.ended")
        await family.until("child", "turn.ended")
        assert [data["outcome"] for data in family.applied("parent", "turn.ended")] == ["completed"]
        [finished] = family.applied("parent", "tool_call.finished")
        assert finished["outcome"] == "succeeded"
        text = "forty two words in all"
        assert finished["result"] == {"thread": family.child.thread, "content": [{"type": "text", "text": text}]}
        answers = family.applied("parent", "step.finished")[-1]["items"]
        assert answers == [{"type": "text", "text": f"It said: {text}"}]
        assert len(family.applied("child", "turn.started")) == len(family.applied("child", "thread.created")) == 1
        assert len(family.applied("child", "step.finished")) == 1
        [created] = family.applied("child", "thread.created")
        assert created["title"] == "Count"
        for name in ("runtime", f"runtime-{SECOND}"):
            await running.supervisor.wait_ready(name)


async def test_the_end_of_an_ephemeral_child_is_told_again_by_its_next_owner(running: System) -> None:
    """No view holds it."""
    async with running.client() as client:
        family = await begun(client, "delegate", ephemeral=True)
        assert family.key.ephemeral and family.child.ephemeral
        await family.until("parent", "step.started")
        await family.until("child", "turn.ended")
        running.supervisor.kill(family.owner("child"))
        await family.until("parent", "turn.ended")
        [finished] = family.applied("parent", "tool_call.finished")
        assert finished["outcome"] == "succeeded"
        assert len(family.applied("child", "turn.started")) == 1
        for name in ("runtime", f"runtime-{SECOND}"):
            await running.supervisor.wait_ready(name)


@pytest.mark.parametrize("whose", ["parent", "child"])
async def test_a_cancelled_parent_ends_its_child_whoever_is_killed(running: System, whose: str) -> None:
    async with running.client() as client:
        family = await begun(client, "split")
        await family.until("parent", "step.started")
        await family.until("child", "step.started")
        running.supervisor.kill(family.owner(whose))
        await client.cancel(family.key.thread, 1)
        await family.until("parent", "turn.ended")
        await family.until("child", "turn.ended")
        assert [data["outcome"] for data in family.applied("parent", "turn.ended")] == ["aborted"]
        assert [data["outcome"] for data in family.applied("child", "turn.ended")] == ["aborted"]
        [finished] = family.applied("parent", "tool_call.finished")
        assert finished["outcome"] == "cancelled"
        for name in ("runtime", f"runtime-{SECOND}"):
            await running.supervisor.wait_ready(name)
