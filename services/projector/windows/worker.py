"""The worker that counts windows, batch by batch: it reads the cells of a batch, counts, and writes cells and
positions.

If the process dies before the write, nothing was counted; after it, the positions say so. There is no state in between.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import structlog

from schemas.topics import THREAD_EFFECTS
from services.chassis.log.port import Log, TopicPartition
from services.projector.generations.errors import StoreAwayError
from services.projector.generations.retries import retry_while_away
from services.projector.metrics import RollupsMetrics
from services.projector.settings import RollupsSettings
from services.projector.windows.windows import OvertakenError, Rules, Taken, Windows, WindowStore, take

TOPIC: Final = THREAD_EFFECTS.name
PRUNE_SECONDS: Final = 600.0
"""From one deletion of old cells to the next."""
PRUNE_CELLS_MAX: Final = 10_000
"""Cells that are deleted at once: the transaction stays short beside the counting."""

logger = structlog.get_logger()

T = TypeVar("T")


class WindowWorker:
    """`hold` returns where to read from, `feed` takes the records from there on in order, and `run` counts them."""

    def __init__(
        self, store: WindowStore, log: Log, cluster_id: str, settings: RollupsSettings, metrics: RollupsMetrics
    ) -> None:
        self._store = store
        self._log = log
        self._cluster_id = cluster_id
        self._settings = settings
        self._metrics = metrics
        self._windows = Windows(Rules(cells_max=settings.window_limits.cells_max))
        self._fed: list[Taken] = []
        self._came = asyncio.Event()
        self._counted = asyncio.Event()
        self._counting = asyncio.Lock()
        self._changed: frozenset[int] = frozenset()
        """Partitions whose stored position differed from ours at the last look."""
        self.is_ready = False

    def positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(TOPIC, partition): at for partition, at in self._windows.positions().items()}

    async def hold(self, partitions: Iterable[int]) -> dict[int, int]:
        """Take these partitions and no others, forget what was fed before, and return the offsets to read from."""
        async with self._counting:
            self._fed.clear()
            self._counted.set()
            self._changed = frozenset()
            numbers = sorted(partitions)
            tps = [TopicPartition(TOPIC, partition) for partition in numbers]
            stored = await self._while_away(lambda: self._store.positions(self._cluster_id, numbers))
            begins, ends = await self._log.begin_offsets(tps), await self._log.end_offsets(tps)
            beyond = [p for p, at in stored.items() if at.next_offset > ends[TopicPartition(TOPIC, p)]]
            if beyond:
                logger.warning("window_positions_reset", partitions=beyond)
                await self._while_away(lambda: self._store.forget_positions(self._cluster_id, beyond))
                stored = {p: at for p, at in stored.items() if p not in beyond}
            gone = {p: at.next_offset for p, at in stored.items() if at.next_offset < begins[TopicPartition(TOPIC, p)]}
            if gone:
                logger.warning("uncounted_effects_deleted", from_offsets=gone)
            self._windows.hold(stored, numbers, {tp.partition: begin for tp, begin in begins.items()})
            self.is_ready = True
        return {tp.partition: max(begins[tp], self._windows.positions()[tp.partition]) for tp in tps}

    async def feed(self, partition: int, offset: int, value: bytes | None, published_ms: int) -> None:
        """Take one record. Waits while `batch_max` records are not counted yet, so that Faust reads no further
        ahead.
        """
        while len(self._fed) >= self._settings.window_limits.batch_max:
            self._counted.clear()
            await self._counted.wait()
        self._fed.append(take(partition, offset, value, published_ms))
        self._came.set()

    async def run(self) -> None:
        """Count until it is cancelled. Raises OvertakenError, GapError: start again from what is stored."""
        loop = asyncio.get_running_loop()
        prune_at = 0.0
        while True:
            try:
                async with asyncio.timeout(self._settings.limits.look_seconds):
                    await self._came.wait()
            except TimeoutError:
                await self._look()
                continue
            await asyncio.sleep(self._settings.window_limits.flush_seconds)
            self._came.clear()
            await self.count()
            if loop.time() >= prune_at:
                prune_at = loop.time() + PRUNE_SECONDS
                await self._prune()

    async def count(self) -> None:
        """Count everything that was fed so far."""
        async with self._counting:
            taken, self._fed = self._fed, []
            self._counted.set()
            if not taken:
                return
            plan = self._windows.plan(taken)
            missing = self._windows.missing(plan)
            loaded = await self._while_away(lambda: self._store.load(self._cluster_id, missing))
            cells = self._windows.count(plan, loaded)
            with self._metrics.write_seconds.time():
                await self._while_away(lambda: self._store.write(self._cluster_id, cells, plan.moved))
            self._windows.written(plan, cells)
        metrics = self._metrics
        metrics.effects.inc(plan.counts.effects)
        metrics.repeated.inc(plan.counts.repeated)
        metrics.late.inc(plan.counts.late)
        metrics.unreadable.inc(plan.counts.unreadable)
        metrics.cells_written.inc(len(cells))

    async def _look(self) -> None:
        """Compare the stored positions with ours.

        Without effects to count, nothing else would show that the positions were reset or that another worker counts. A
        difference has to be seen twice, because partitions may just be changing hands.
        """
        async with self._counting:
            ours = {partition: at.next_offset for partition, at in self._windows.stored().items()}
            try:
                stored = await self._store.positions(self._cluster_id, list(self._windows.positions()))
            except StoreAwayError as error:
                logger.info("window_look_skipped", error=str(error))
                return
            found = {partition: at.next_offset for partition, at in stored.items()}
            changed = frozenset(p for p in found.keys() | ours.keys() if found.get(p) != ours.get(p))
            if lasting := changed & self._changed:
                raise OvertakenError(f"partitions {sorted(lasting)} are counted by another worker, or were reset")
            self._changed = changed

    async def _prune(self) -> None:
        settings = self._settings
        if not settings.rollups_keep_days:
            return
        newest = self._windows.watermark_ms()
        before_ms = newest - settings.rollups_keep_days * 86_400_000
        if before_ms <= 0:
            return
        try:
            deleted = await self._store.delete_before(before_ms, PRUNE_CELLS_MAX)
        except StoreAwayError as error:
            logger.info("window_cells_kept", error=str(error))
        else:
            self._metrics.cells_deleted.inc(deleted)

    async def _while_away(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_away(work, self._settings, self._metrics.retries)
