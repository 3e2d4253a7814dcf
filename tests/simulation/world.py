"""The world of one run: what `tests.support.worlds.services` has, the projector's database, ingests, and the story."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from schemas.codec import Record
from schemas.events import ThreadCreated
from schemas.ids import ThreadId, ThreadKey
from schemas.state import ThreadState
from schemas.thread import Verdict
from schemas.tools import CLIENT_POOL, CLIENT_SOURCE, CatalogSource, ToolSpec
from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS_DLQ
from services.chassis.artifacts.store import Stored
from services.chassis.following.limits import FoldLoopLimits
from services.chassis.log.port import Incoming, TopicPartition
from services.runtime.deciding.own_tools import ENTRY
from services.runtime.models.port import Model
from services.runtime.settings import RuntimeSettings
from services.tool_executor.claiming.reconcile import ReconcileLimits
from services.tool_executor.executing.output_store import OutputStore, OutputStoreLimits
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.hooks import HookFailedError, Question, ReconcileHook
from services.tool_executor.tools import ToolRunner
from tests.simulation.model import CLIENT_TOOL as CLIENT_TOOL_NAME
from tests.simulation.plan import Plan
from tests.simulation.processes import IngestProcess, ProjectorProcess
from tests.simulation.rollups import RollupsProcess
from tests.simulation.story import Story
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.memory.tables import EVENT_ID
from tests.support.memory.views import MemoryViews
from tests.support.processes.ledger import EFFECTS, Ledger
from tests.support.simulated.virtual_time import VirtualClock
from tests.support.worlds.services import TOPIC, ExecutorProcess, Process, RuntimeProcess, World, WorldOptions

P = TypeVar("P", bound=Process)
T = TypeVar("T")
M = TypeVar("M")
Onlooker = Callable[[Record, Verdict, ThreadState], None]

LIMITS = replace(
    RuntimeSettings.model_construct().limits(),
    turn_seconds=200,
    retry_first_seconds=0.3,
    retry_most_seconds=2,
    approval_seconds=40,
    dispatch_wait_seconds=30,
    deadline_grace_seconds=8,
    parallel_calls=2,
    client_tool_seconds=20,
    child_depth=2,
    children_per_turn=2,
    parallel_tasks=2,
    plan_tasks=3,
    child_look_seconds=3,
)
FOLD_LOOP = FoldLoopLimits(
    poll_ms=3_000,
    load_retry_seconds=0.2,
    assign_wait_seconds=2,
    stale_wait_seconds=4,
    evict_every_seconds=1,
    keys_retry_seconds=4,
)
KEEP = OutputStoreLimits(seconds=3, cancelled_seconds=1)
ID_DIGITS = 8
"""The first ones of an event id, which are as good as drawn."""
IDS = 1 << 4 * ID_DIGITS
TOOL_SECONDS = 8
TOOLS = tuple(
    ToolSpec(name=effect, effect=effect, timeout_seconds=TOOL_SECONDS, input_schema={"type": "object"})
    for effect in EFFECTS
)
CLIENT_TOOL = ToolSpec(
    name=CLIENT_TOOL_NAME, effect="pure", timeout_seconds=TOOL_SECONDS, input_schema={"type": "object"}
)
KINDS: dict[str, type[Process]] = {
    "runtime": RuntimeProcess,
    "executor": ExecutorProcess,
    "ingest": IngestProcess,
    "projector": ProjectorProcess,
    "rollups": RollupsProcess,
}


@cache
def _registered_once(register: Callable[[CollectorRegistry], M]) -> M:
    return register(CollectorRegistry())


class SimulationWorld(World):
    store: MemoryViews  # type: ignore[assignment]  # in place of a store without a projector

    def __init__(self, seed: int, plan: Plan, model: Model, story: Story) -> None:
        options = WorldOptions(
            partitions=plan.partitions,
            limits=replace(
                LIMITS, dispatch_wait_seconds=plan.dispatch_wait_seconds, context_tokens=plan.context_tokens
            ),
            fold_loop=FOLD_LOOP,
            lease_seconds=plan.lease_seconds,
            calls_max=plan.calls_max,
            drain_seconds=2.0,
            kill_seconds=1.0,
            reconcile=ReconcileLimits(
                first_seconds=0.5, most_seconds=3, tries=4, grace_seconds=4, lease_seconds=plan.lease_seconds
            ),
        )
        super().__init__(model, options=options, faults=plan.faults(seed), idempotent=plan.idempotent, tools=TOOLS)
        self.broker.add_topic(THREAD_EVENTS_DLQ.name, plan.partitions)
        self.broker.add_topic(THREAD_EFFECTS.name, plan.partitions)
        self.story = story
        self.broker.on_agreed = self._agreed
        self.artifacts = SeededArtifacts(
            self.clock, random.Random(f"{seed} artifacts"), random.Random(f"{seed} collector")
        )
        self.at_record: Callable[[Record], None] = lambda _record: None
        self.onlookers: list[Onlooker] = []
        self.stored: dict[tuple[ThreadKey, int], int] = {}
        """Thread and seq of each record: when it was stored, counted over all threads."""
        self.stored_ms: dict[tuple[ThreadKey, int], int] = {}
        self.first_copies: dict[int, tuple[dict[int, Incoming], int]] = {}
        """For each partition the effects found so far, by `derived.first_copies`, and how many it has looked at."""
        self._family = plan.spawns > 0 or plan.plans > 0
        self._rng = random.Random(f"{seed} database")
        self._hook_rng = random.Random(f"{seed} downstream")
        self._database_seconds_max = plan.database_seconds_max
        self._refused = plan.refused
        self.store = MemoryViews(
            self._database_pause if plan.database_seconds_max else None,
            refuses=(lambda row: self.is_refused(row[EVENT_ID])) if plan.refused else None,
        )

    async def open(self, store_seconds: float = 0.0) -> None:
        await self.publish_catalog()
        await self.publish_tools(CatalogSource(source=CLIENT_SOURCE, pool=CLIENT_POOL, tools=(CLIENT_TOOL,)))
        if self._family:
            await self.publish_tools(ENTRY)

    def metrics(self, register: Callable[[CollectorRegistry], M]) -> M:
        """Nobody reads them here, and to register them takes longer than most processes live."""
        return _registered_once(register)

    def hooks(self) -> dict[str, ReconcileHook]:
        return {"reconcilable": LedgerHook(self.ledger, self._hook_rng)}

    def tools_of(self, owner: str, metrics: ExecutorMetrics) -> ToolRunner:
        return OutputStore(super().tools_of(owner, metrics), self.artifacts, metrics, KEEP)

    def is_refused(self, event_id: str) -> bool:
        """Whether the database refuses the row of this record; also the next time."""
        return int(event_id[:ID_DIGITS], 16) / IDS < self._refused

    async def _database_pause(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, self._database_seconds_max))

    def background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = super().background(work)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.problems.append(task.exception())  # type: ignore[arg-type]  # not None

    def _agreed(self, group: str, assigned: Mapping[str, frozenset[TopicPartition]]) -> None:
        shown = [f"{member}: {sorted(tp.partition for tp in tps)}" for member, tps in sorted(assigned.items())]
        self.story.tell(f"group {group.removeprefix('threadlog-')}", f"agrees on {', '.join(shown) or 'nobody'}")

    def on_judged(self, record: Record, verdict: Verdict, state: ThreadState) -> None:
        self.stored[record.key, state.seq] = len(self.stored)
        self.stored_ms[record.key, state.seq] = self.clock.now_ms()
        if isinstance(record.data, ThreadCreated) and record.data.lineage is not None and verdict.effect == "applied":
            self.story.relate(record.key, ThreadKey(record.key.tenant, ThreadId(record.data.lineage.parent)))
        self.story.tell_record(record, verdict, state.seq)
        self.at_record(record)
        for look in self.onlookers:
            look(record, verdict, state)

    def alive(self, kind: type[P]) -> list[P]:
        return [process for process in self.processes if isinstance(process, kind) and process.is_alive]

    def end(self, partition: int) -> int:
        return self.broker.end(TOPIC, partition)

    def stored_state(self, key: ThreadKey) -> Any:
        """As the views have it, for who reads them; None where they do not."""
        if self.store.is_away or self.store.tables is None:
            return None
        row = self.store.tables.state(key)
        return None if row is None else row.state


class SeededArtifacts(MemoryArtifacts):
    """Takes its time, now and then more than anybody waits."""

    def __init__(self, clock: VirtualClock, rng: random.Random, collector: random.Random) -> None:
        super().__init__(clock)
        self._rng = rng
        self._collector = collector
        self.at_put: Callable[[], Awaitable[None]] = _nothing
        self.put_ms: dict[tuple[str, str], list[int]] = {}
        """When each object was put, or found to be there."""
        self.deleted_ms: dict[tuple[str, str], list[int]] = {}

    async def put(self, tenant: str, sha256: str, chunks: bytes | AsyncIterator[bytes], media_type: str) -> Stored:
        await asyncio.sleep(self._rng.choice([0, 0, 0.1, 1, 4]))
        stored = await super().put(tenant, sha256, chunks, media_type)
        self.put_ms.setdefault((tenant, sha256), []).append(self.clock.now_ms())
        await self.at_put()
        return stored

    async def set_aside(self, tenant: str, sha256: str) -> None:
        await self._take_time()
        await super().set_aside(tenant, sha256)
        await self._take_time()

    async def delete_aside(self, tenant: str, sha256: str) -> None:
        await self._take_time()
        if (tenant, sha256) in self.aside:
            self.deleted_ms.setdefault((tenant, sha256), []).append(self.clock.now_ms())
        await super().delete_aside(tenant, sha256)
        await self._take_time()

    async def _take_time(self) -> None:
        await asyncio.sleep(self._collector.choice([0, 0, 0.1, 1]))


async def _nothing() -> None:
    pass


class LedgerHook:
    """The downstream, asked by key: slow at times, and not always able to say."""

    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self._ledger = ledger
        self._rng = rng

    async def ask(self, question: Question, /) -> object:
        await asyncio.sleep(self._rng.choice([0, 0.1, 2]))
        drawn = self._rng.random()
        if drawn < 0.1:
            raise HookFailedError("no answer")
        if drawn < 0.25:
            return {"status": "unknown"}
        is_done = self._ledger.knows(question.idempotency_key)
        return {"status": "done", "result": "it is there"} if is_done else {"status": "not_done"}
