"""Runtimes and executors as they are wired in their `__main__`, on a simulated log, store, clock, model and tools.

A process here is a set of tasks and one connection to the log. `crash` is SIGKILL: everything ends where it stands, and
nothing is flushed, handed over or cleaned up. `pause` is SIGSTOP, `resume` SIGCONT. A task that fails ends its process,
as the lifecycle does; `World.problems` keeps what no process may fail with.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from schemas.codec import Record, decode, encode
from schemas.config import Config
from schemas.events import Event, InputMode, InputSubmitted, TextItem, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.state import NOTHING, ThreadState
from schemas.thread import Verdict, fold
from schemas.tools import CatalogSource, ToolSpec
from schemas.topics import EPHEMERAL_EVENTS, THREAD_EVENTS, THREAD_PROGRESS, TOOL_CATALOG
from services.chassis.catalog.reader import CatalogReader
from services.chassis.following.fold_loop import FoldLoop
from services.chassis.following.limits import FoldLoopLimits
from services.chassis.log.port import Incoming, LogError, LogUnavailableError, Outgoing, Reader
from services.chassis.process.timers import Timers
from services.runtime.deciding.limits import Limits
from services.runtime.loop import Runtime
from services.runtime.metrics import RuntimeMetrics
from services.runtime.models.port import Model
from services.runtime.models.scheduling import ModelSlots
from services.runtime.settings import RuntimeSettings
from services.runtime.thread_work import RuntimeIdentity, RuntimeOptions
from services.tool_executor.claiming.reconcile import ReconcileLimits
from services.tool_executor.executing.leases import Leases
from services.tool_executor.executing.loop import Executor
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.hooks import ReconcileHook
from services.tool_executor.tools import ToolRunner
from tests.support.processes.ledger import POOL, TOOLS, Ledger, LedgerTools
from tests.support.simulated.log import Faults, SimulatedBroker
from tests.support.simulated.virtual_time import Host, VirtualClock
from tests.support.stored.followed_views import FollowedViews

TOPIC = THREAD_EVENTS.name
USER = "user:ann"
T = TypeVar("T")
M = TypeVar("M")

LIMITS = replace(
    RuntimeSettings.model_construct().limits(),
    turn_seconds=600,
    retry_first_seconds=0.5,
    retry_most_seconds=5,
    approval_seconds=120,
    dispatch_wait_seconds=120,
    deadline_grace_seconds=20,
)
FOLD_LOOP = FoldLoopLimits(
    load_retry_seconds=0.2, assign_wait_seconds=2, stale_wait_seconds=5, evict_every_seconds=1, keys_retry_seconds=2
)


@dataclass(frozen=True, slots=True)
class WorldOptions:
    partitions: int = 1
    limits: Limits = LIMITS
    fold_loop: FoldLoopLimits = FOLD_LOOP
    lease_seconds: int = 6
    calls_max: int = 16
    calls_per_tenant_max: int = 16
    calls_per_tool_max: int = 16
    drain_seconds: float = 3.0
    kill_seconds: float = 2.0
    reconcile: ReconcileLimits = field(default_factory=lambda: ReconcileLimits(grace_seconds=15, lease_seconds=30))


@dataclass
class Judged:
    """One thread's log, folded."""

    state: ThreadState = field(default_factory=lambda: NOTHING)
    records: list[tuple[Record, Verdict, ThreadState]] = field(default_factory=list)
    """Each with its verdict and the state after it."""

    def applied(self, event: type[Event]) -> list[Any]:
        return [r.data for r, verdict, _ in self.records if isinstance(r.data, event) and verdict.effect == "applied"]

    def kinds(self) -> list[str]:
        return [record.kind for record, verdict, _ in self.records if verdict.effect == "applied"]


class World:
    def __init__(
        self,
        model: Model,
        *,
        options: WorldOptions = WorldOptions(),
        faults: Faults | None = None,
        idempotent: bool = True,
        tools: Iterable[ToolSpec] = TOOLS,
    ) -> None:
        self.options = options
        self.model = model
        self.clock = VirtualClock()
        count = options.partitions
        topics = {TOPIC: count, EPHEMERAL_EVENTS.name: count, THREAD_PROGRESS.name: count, TOOL_CATALOG.name: 1}
        self.broker = SimulatedBroker(topics, self.clock, faults=faults, idempotent=idempotent)
        self.broker.on_stored = self.on_stored
        self._judged: dict[ThreadKey, Judged] = {}
        self.store = FollowedViews(self.broker)
        self.ledger = Ledger()
        self.log = self.broker.connect("client")
        self.processes: list[Process] = []
        self.problems: list[BaseException] = []
        self._tools = tuple(tools)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._names = 0

    async def open(self, store_seconds: float = 0.3) -> None:
        """The catalog is there, and a projector follows."""
        await self.publish_catalog()
        self.background(self.store.follow(self.options.partitions, store_seconds))

    async def publish_catalog(self) -> None:
        await self.publish_tools(CatalogSource(source="builtin", pool=POOL, tools=self._tools))

    async def publish_tools(self, source: CatalogSource) -> None:
        value = source.model_dump_json().encode()
        await self._append(TOOL_CATALOG.name, 0, [Outgoing(source.source.encode(), value)])

    async def close(self) -> None:
        for process in self.processes:
            process.crash()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*[process.ended() for process in self.processes])
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def metrics(self, register: Callable[[CollectorRegistry], M]) -> M:
        """The metrics of one process."""
        return register(CollectorRegistry())

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """As the world's own: not a part of a process, even where one causes it."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks[task] = None
        return task

    def incarnation(self) -> str:
        self._names += 1
        return f"{self._names:04}"

    # Clients

    def partition_of(self, key: ThreadKey) -> int:
        return self.log.partition_for(key.to_bytes(), self.options.partitions)

    async def create(self, thread: str, config: Config | None = None, tenant: str = "acme") -> ThreadKey:
        key = ThreadKey(TenantId(tenant), ThreadId(thread))
        await self.command(key, ThreadCreated(config=config or Config(model="seeded")), f"create {thread}")
        return key

    async def submit(self, key: ThreadKey, name: str, mode: InputMode = "queue", text: str = "go") -> None:
        event = InputSubmitted(input=name, items=(TextItem(text=text),), mode=mode)
        await self.command(key, event, f"submit {key} {name}")

    async def command(self, key: ThreadKey, event: Event, name: str, actor: str = USER) -> None:
        """As ingest appends it: acknowledged, or tried again with the same id."""
        encoded = encode(
            key, event, source="ingest/i", actor=actor, time_ms=self.clock.now_ms(), event_id=derive("test", name)
        )
        outgoing = Outgoing(key.to_bytes(), encoded.value, encoded.headers, encoded.record.time_ms)
        await self._append(TOPIC, self.partition_of(key), [outgoing])

    async def _append(self, topic: str, partition: int, records: list[Outgoing]) -> None:
        while True:
            try:
                await self.log.appender.append(topic, partition, records)
            except LogUnavailableError:
                continue
            return

    # What the log says

    def on_stored(self, records: Sequence[Incoming]) -> None:
        if records[0].topic != TOPIC:
            return
        for raw in records:
            record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
            if isinstance(record, Record) and record.problem is None:
                thread = self._judged.setdefault(record.key, Judged())
                thread.state, verdict = fold(thread.state, record)
                thread.records.append((record, verdict, thread.state))
                self.on_judged(record, verdict, thread.state)
            else:
                self.problems.append(AssertionError(f"a record that cannot be read: {record}"))

    def hooks(self) -> dict[str, ReconcileHook]:
        """How executors ask about unknown calls, by tool."""
        return {}

    def tools_of(self, owner: str, _metrics: ExecutorMetrics) -> ToolRunner:
        """What this executor runs."""
        return LedgerTools(self.ledger, owner)

    def on_judged(self, record: Record, verdict: Verdict, state: ThreadState) -> None:
        """Called for each record when it is stored."""

    def judged(self) -> dict[ThreadKey, Judged]:
        """Everything that was ever stored, folded as it came."""
        return self._judged

    def of(self, key: ThreadKey) -> Judged:
        return self.judged()[key]

    async def until(self, holds: Any, seconds: float = 600, every: float = 0.05) -> None:
        """Wait, in virtual time, until it holds."""
        async with asyncio.timeout(seconds):
            while not holds():
                self.check()
                await asyncio.sleep(every)

    async def until_rest(self, key: ThreadKey, turns: int = 1, seconds: float = 600) -> Judged:
        def rests() -> bool:
            state = self.of(key).state
            return state.turn is None and state.last_turn >= turns and not state.queue

        await self.until(rests, seconds)
        return self.of(key)

    def check(self) -> None:
        if self.problems:
            raise self.problems[0]


class Process:
    """What `run_service` makes of a `__main__`: tasks, and one connection."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.incarnation = world.incarnation()
        self.host = Host()
        self._context = self.host.context()
        self.log = self._context.run(world.broker.connect, name)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it was killed, or has ended."""
        self.is_alive = True
        self.is_up = False
        """Whether it has started; before, it can only be crashed."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._left: list[asyncio.Task[Any]] = []
        world.processes.append(self)

    @property
    def owner(self) -> str:
        return f"{self.name}/{self.incarnation}"

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, name=f"{self.owner} {name}", context=self._context)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def crash(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.host.is_frozen = True
            self.log.crash()
            self.gone.set_result(None)

    def pause(self) -> None:
        self.host.is_frozen = True
        self.log.pause()

    def resume(self) -> None:
        if self.is_alive and self.host.is_frozen:
            self.host.thaw()
            self.log.resume()

    @property
    def is_paused(self) -> bool:
        return self.is_alive and self.host.is_frozen

    async def stop(self) -> None:
        """What the first signal does. A process that is killed meanwhile is gone as well."""
        with contextlib.suppress(LogError):
            await self._inside(self._stop_and_end())

    async def _stop_and_end(self) -> None:
        await self._stop()
        if self.is_alive:
            self.is_alive = False
            await self.log.close()
            for task in list(self._tasks):
                task.cancel()
            self.gone.set_result(None)

    async def _stop(self) -> None:
        """As its `__main__` does, up to the closing of the log."""
        raise NotImplementedError

    async def ended(self) -> None:
        """Takes away what is left of it."""
        self.host.thaw()
        tasks = [*self._tasks, *self._left]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run as a part of the process: it stands still and ends with it. Raises LogError where the process is gone."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, context=self._context)
        try:
            await asyncio.wait([task, self.gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                self._left.append(task)
        if not task.done():
            raise LogError(f"{self.owner} is gone")
        return await task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self.is_alive:
            if not _is_of_the_log(error):
                self.world.problems.append(error)
            self.crash()


def _is_of_the_log(error: BaseException) -> bool:
    """A process may end when the log refuses it: its supervisor starts it again."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_the_log(inner) for inner in error.exceptions)
    return isinstance(error, LogError)


class RuntimeProcess(Process):
    """As `services.runtime.__main__`."""

    runtime: Runtime
    loop: FoldLoop[Any]
    reader: Reader

    async def start(self, instance_id: str | None = None, group: str = "runtime") -> "RuntimeProcess":
        await self._inside(self._start(instance_id, group))
        return self

    async def _start(self, instance_id: str | None, group: str) -> None:
        world = self.world
        timers, catalog = Timers(world.clock), CatalogReader(self.log)
        self.timers = timers
        self.stopping = asyncio.Event()
        self.runtime = Runtime(
            log_=self.log,
            clock=world.clock,
            timers=timers,
            catalog=catalog,
            model=world.model,
            slots=ModelSlots(64, 64),
            transcripts=world.store,
            children=world.store,
            partitions=world.options.partitions,
            spawn=self.spawn,
            identity=RuntimeIdentity(self.name, self.incarnation, "1"),
            options=RuntimeOptions(
                limits=world.options.limits, answer_bytes_max=100_000, append_retry_ms=500, delta_interval_ms=20
            ),
            metrics=world.metrics(RuntimeMetrics.register),
        )
        self.loop = FoldLoop(self.log, world.store, self.runtime, TOPIC, world.options.fold_loop, world.store)
        self.spawn(timers.run(), "timers")
        self.spawn(catalog.run(), "catalog")
        await catalog.ready.wait()
        self.reader = await self.log.group_reader([TOPIC], group, self.loop, instance_id)
        self.loop.begin(self.spawn)
        self.spawn(self.loop.run(self.reader, self.stopping), "fold loop")
        self.is_up = True

    async def _stop(self) -> None:
        self.stopping.set()
        self.runtime.stop(self.loop.partitions.values())
        await self.log.appender.flush()

    def held(self, key: ThreadKey) -> Any:
        return self.loop.partitions[self.world.partition_of(key)].threads.get(key)


class ExecutorProcess(Process):
    """As `services.tool_executor.__main__`."""

    executor: Executor
    loop: FoldLoop[Any]
    reader: Reader

    async def start(self, instance_id: str | None = None, group: str = "executor") -> "ExecutorProcess":
        await self._inside(self._start(instance_id, group))
        return self

    async def _start(self, instance_id: str | None, group: str) -> None:
        world = self.world
        options = world.options
        timers = Timers(world.clock)
        self.timers = timers
        self.leases = Leases(self.log, world.clock, timers)
        metrics = world.metrics(ExecutorMetrics.register)
        self.executor = Executor(
            log_=self.log,
            clock=world.clock,
            timers=timers,
            leases=self.leases,
            tools=world.tools_of(self.owner, metrics),
            spawn=self.spawn,
            options=ExecutorOptions(
                instance=self.name,
                incarnation=self.incarnation,
                pool=POOL,
                lease_seconds=options.lease_seconds,
                calls_max=options.calls_max,
                calls_per_tenant_max=options.calls_per_tenant_max,
                calls_per_tool_max=options.calls_per_tool_max,
                append_retry_ms=500,
                output_interval_ms=20,
                reconcile=options.reconcile,
                reconcile_answer_seconds=30,
            ),
            metrics=metrics,
            hooks=world.hooks(),
        )
        self.loop = FoldLoop(self.log, world.store, self.executor, TOPIC, options.fold_loop, world.store)
        self.spawn(timers.run(), "timers")
        self.spawn(self.leases.run(), "leases")
        self.reader = await self.log.group_reader([TOPIC], group, self.loop, instance_id)
        self.loop.begin(self.spawn)
        self.following = self.spawn(self.loop.run(self.reader, asyncio.Event()), "fold loop")
        self.is_up = True

    async def _stop(self) -> None:
        await self.executor.drain(self.world.options.drain_seconds, self.world.options.kill_seconds)
        self.following.cancel()
        await self.log.appender.flush()

    def held(self, key: ThreadKey) -> Any:
        return self.loop.partitions[self.world.partition_of(key)].threads.get(key)
