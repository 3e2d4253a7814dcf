"""A fold loop with a follower that notes what it is told, on a simulated log whose rows stand where the test says."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from schemas.codec import Record
from schemas.events import Event, ThreadDescribed
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import ThreadState
from schemas.thread import Verdict
from schemas.topics import THREAD_EVENTS
from services.chassis.following.fold_loop import FoldLoop
from services.chassis.following.followed_threads import FollowedThread, Partition
from services.chassis.following.limits import FoldLoopLimits
from services.chassis.log.port import Outgoing
from tests.support.recorded.histories import RUNTIME, USER, History, created, submitted
from tests.support.simulated.log import SimulatedBroker
from tests.support.simulated.virtual_time import VirtualClock
from tests.support.stored.followed_views import FollowedViews

TOPIC = THREAD_EVENTS.name
SETTINGS = FoldLoopLimits(assign_wait_seconds=5, stale_wait_seconds=30, evict_every_seconds=1e9)
EVICTING = replace(SETTINGS, evict_every_seconds=1)


@dataclass(eq=False)
class Recorder:
    """A follower that notes what it is told. Its work is the offsets that it saw of a thread."""

    batches: list[tuple[int, list[str]]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    reports: list[tuple[str, int]] = field(default_factory=list)
    """Thread, and for how many seconds it has been set aside."""
    refolded: list[str] = field(default_factory=list)
    fails_on: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)

    def new_work(self) -> list[int]:
        return []

    def on_record(self, held: FollowedThread[list[int]], before: ThreadState, record: Record, verdict: Verdict) -> None:
        if held.key.thread in self.fails_on:
            raise RuntimeError("a bug")
        assert record.offset > before.offset
        held.work.append(record.offset)

    def on_batch(self, partition: Partition[list[int]], touched: Iterable[FollowedThread[list[int]]]) -> None:
        assert partition.ready
        self.batches.append((partition.number, [held.key.thread for held in touched]))

    def on_ready(self, partition: Partition[list[int]]) -> None:
        self.ready.append(partition.number)

    def on_lost(self, partition: Partition[list[int]]) -> None:
        self.lost.append(partition.number)

    def on_quarantined(
        self, partition: Partition[list[int]], held: FollowedThread[list[int]], error: Exception
    ) -> None:
        self.quarantined.append(held.key.thread)

    def report_quarantined(
        self, partition: Partition[list[int]], held: FollowedThread[list[int]], seconds: float
    ) -> None:
        self.reports.append((held.key.thread, round(seconds)))

    def on_refold(self, held: FollowedThread[list[int]]) -> None:
        assert held.quarantined is not None
        self.refolded.append(held.key.thread)

    def may_evict(self, held: FollowedThread[list[int]]) -> bool:
        return held.key.thread not in self.kept


class FoldWorld:
    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.broker = SimulatedBroker({TOPIC: partitions}, VirtualClock())
        self.store = FollowedViews(self.broker)
        self.log = self.broker.connect()
        self.histories: dict[str, History] = {}
        self.follower = Recorder()

    def history(self, thread: str) -> History:
        key = ThreadKey(TenantId("acme"), ThreadId(thread))
        return self.histories.setdefault(thread, History(key=key))

    def thread_of(self, partition: int) -> str:
        """One whose records belong there."""
        names = (f"t{number}" for number in range(100))
        return next(name for name in names if self.home(name) == partition)

    def home(self, thread: str) -> int:
        return self.log.partition_for(f"acme/{thread}".encode(), self.partitions)

    async def append(self, thread: str, *events: Event, partition: int = 0) -> None:
        """To the partition that the test says, whatever the key."""
        history = self.history(thread)
        for event in events:
            actor = RUNTIME if event.kind.startswith("turn.") else USER
            made = history.apply(event, actor)
            record = Outgoing(history.key.to_bytes(), made.value, made.headers, made.record.time_ms)
            await self.log.appender.append(TOPIC, partition, [record])

    async def idle(self, thread: str, partition: int = 0) -> None:
        await self.append(thread, created(), partition=partition)

    async def say(self, thread: str, text: str = "x", partition: int = 0) -> None:
        """A record that leaves the thread idle."""
        await self.append(thread, ThreadDescribed(title=text), partition=partition)

    async def activate(self, thread: str, partition: int = 0) -> None:
        name = f"i{self.history(thread).state.seq}"
        await self.append(thread, submitted(name), partition=partition)

    @asynccontextmanager
    async def following(
        self, settings: FoldLoopLimits = SETTINGS, *, keys: bool = False, is_stored: bool = True
    ) -> AsyncIterator[FoldLoop[list[int]]]:
        store = self.store if is_stored else None
        loop: FoldLoop[list[int]] = FoldLoop(self.log, store, self.follower, TOPIC, settings, store if keys else None)
        self.reader = await self.log.group_reader([TOPIC], "group", loop)
        self.stopping = asyncio.Event()
        tasks = [
            asyncio.create_task(loop.run(self.reader, self.stopping)),
            asyncio.create_task(loop.run_loader()),
            asyncio.create_task(loop.run_evictions()),
            asyncio.create_task(loop.run_quarantine()),
        ]
        if keys:
            tasks.append(asyncio.create_task(loop.run_keys()))
        await asyncio.sleep(0.1)
        try:
            yield loop
            for task in tasks:
                assert not task.done() or task.exception() is None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def held(self, loop: FoldLoop[list[int]], thread: str, partition: int = 0) -> FollowedThread[list[int]] | None:
        return loop.partitions[partition].threads.get(self.history(thread).key)

    def agrees(self, loop: FoldLoop[list[int]], thread: str, partition: int = 0) -> bool:
        """Whether the loop has folded all that the thread's log has."""
        held, truth = self.held(loop, thread, partition), self.history(thread).state
        if held is None:
            return False
        return (held.state.seq, held.state.chain, held.state.title) == (truth.seq, truth.chain, truth.title)
