"""A new generation from the beginning of the log, beside the live one, which it then takes the place of.

It reads until it is close to the end. Then, in one transaction, the live generation's positions are locked and their
epochs raised, so that its projector can write no more; the new generation goes on to where the old one was and to the
end of the log as of now; the views are re-pointed. Readers see the old generation up to that commit and the new one
from there on, never a position that is behind.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import asyncpg
import structlog
from prometheus_client import CollectorRegistry

from schemas.errors import ThreadlogError
from schemas.topics import THREAD_EVENTS
from services.chassis.clock import SystemClock
from services.chassis.log import Incoming, Log, Reader, TopicPartition
from services.projector.apply import Applier
from services.projector.database import connect
from services.projector.dead_letter_topic import DeadLetterTopic
from services.projector.garbage import collecting_seldom
from services.projector.generations import (
    ADVISORY_LOCK,
    create_generation,
    drop_generation,
    live_generation,
    make_live,
    unfinished_generations,
)
from services.projector.metrics import ProjectorMetrics
from services.projector.postgres_store import PostgresStore
from services.projector.projections.dead_letters import DeadLetter
from services.projector.settings import ProjectorSettings
from services.projector.store import Generation

TOPIC: Final = THREAD_EVENTS.name
POLL_MS: Final = 100
SWAP_AGAIN_SECONDS: Final = 0.2

logger = structlog.get_logger()


class RebuildError(ThreadlogError):
    """The live views are as they were."""


@dataclass(frozen=True, slots=True)
class Progress:
    phase: Literal["reading", "swapping", "done"]
    generation: int
    records_done: int
    records_total: int
    """What there is to read, as of now: offsets, so that gaps count."""
    seconds: float

    @property
    def records_per_second(self) -> float:
        return self.records_done / self.seconds if self.seconds else 0.0


OnProgress = Callable[[Progress], None]


async def rebuild(
    log: Log, dsn: str, settings: ProjectorSettings, on_progress: OnProgress, *, keep_old: bool = False
) -> Generation:
    """The generation that is live now. Raises RebuildError, leaving the live one as it was.

    One at a time; what an earlier one left unfinished is dropped.
    """
    cluster_id = await log.cluster_id()
    connection = await connect(dsn, settings)
    try:
        if not await connection.fetchval("select pg_try_advisory_lock($1)", ADVISORY_LOCK):
            raise RebuildError("another rebuild, or a drop of the views, is running on this database")
        old = await live_generation(connection)
        for unfinished in await unfinished_generations(connection):
            await drop_generation(connection, unfinished)
        async with connection.transaction():
            generation = await create_generation(connection, cluster_id)
        try:
            async with asyncio.timeout(settings.projector_rebuild_seconds_max):
                with collecting_seldom():
                    await _Rebuild(log, dsn, settings, on_progress, connection, generation, old).run()
        except TimeoutError:
            seconds = settings.projector_rebuild_seconds_max
            raise RebuildError(f"not caught up within {seconds:.0f} s; the live views are as they were") from None
        finally:
            if not connection.is_closed():
                for unfinished in await unfinished_generations(connection):
                    await drop_generation(connection, unfinished)
        if old is not None and not keep_old:
            await drop_generation(connection, old)
    finally:
        await connection.close(timeout=settings.postgres_connect_timeout_seconds)
    return generation


class _Rebuild:
    def __init__(
        self,
        log: Log,
        dsn: str,
        settings: ProjectorSettings,
        on_progress: OnProgress,
        connection: asyncpg.Connection,
        generation: Generation,
        old: Generation | None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._on_progress = on_progress
        self._connection = connection
        self._old = old
        self._store = PostgresStore(dsn, settings, generation)
        self._generation = generation
        self._metrics = ProjectorMetrics.register(CollectorRegistry())
        self._published_below: Mapping[int, int] = {}
        """The live projector has published the dead letters below these offsets."""
        self._begins: Mapping[TopicPartition, int] = {}
        self._taken: dict[TopicPartition, int] = {}
        """Offset of the first record that was not read."""
        self._started = asyncio.get_running_loop().time()

    async def run(self) -> None:
        log, generation = self._log, self._generation
        partitions = await log.partition_count(TOPIC)
        tps = [TopicPartition(TOPIC, partition) for partition in range(partitions)]
        self._published_below = await self._old_positions("select")
        topic = DeadLetterTopic(log.appender, self._settings, self._metrics)

        async def publish(dead: Sequence[DeadLetter]) -> None:
            below = self._published_below
            await topic.publish([one for one in dead if one.incoming.offset >= below.get(one.incoming.partition, 0)])

        applier = Applier(
            self._store,
            lambda key: log.partition_for(key.to_bytes(), partitions),
            publish,
            SystemClock(),
            self._settings,
            self._metrics,
        )
        claims = await self._store.claim(range(partitions), "rebuild", generation.cluster_id)
        applier.hold(claims)
        self._begins = await log.begin_offsets(tps)
        self._taken = dict(self._begins)
        reader = await log.reader(self._begins)
        try:
            await self._read_until_close(reader, applier)
            await self._swap(reader, applier)
        finally:
            await applier.abandon()
            await self._store.close()
            await reader.close()
        self._report("done", self._taken)

    async def _read_until_close(self, reader: Reader, applier: Applier) -> None:
        """To within one batch of the end."""
        while True:
            ends = await self._log.end_offsets(self._taken)
            await self._read(reader, applier, ends)
            ends = await self._log.end_offsets(self._taken)
            if (
                sum(ends[tp] - offset for tp, offset in self._taken.items())
                <= self._settings.projector_batch_records_max
            ):
                return

    async def _read(self, reader: Reader, applier: Applier, ends: Mapping[TopicPartition, int]) -> None:
        """Up to these ends at least, and committed."""
        while any(self._taken[tp] < end for tp, end in ends.items()):
            records: list[Incoming] = []
            while len(records) < self._settings.projector_batch_records_max:
                polled = await reader.poll(POLL_MS)
                if not polled:
                    break
                for tp, more in polled:
                    records += more
                    self._taken[tp] = more[-1].offset + 1
                if all(self._taken[tp] >= end for tp, end in ends.items()):
                    break
            await applier.submit(records)
            self._report("reading", ends)
        await applier.settle()

    async def _swap(self, reader: Reader, applier: Applier) -> None:
        connection = self._connection
        lock_ms = int(1000 * self._settings.projector_swap_lock_seconds)
        for _ in range(self._settings.projector_swap_tries_max):
            try:
                async with connection.transaction():
                    await connection.execute(f"set local lock_timeout = {lock_ms}")
                    targets = await self._targets(await self._old_positions("raise_epochs"))
                    self._report("swapping", targets)
                    await self._read(reader, applier, targets)
                    await make_live(connection, self._generation, self._old)
                return
            except asyncpg.LockNotAvailableError:
                logger.info("swap_waits_for_readers")
            await asyncio.sleep(SWAP_AGAIN_SECONDS)
            # The old generation's projector goes on meanwhile, and so do we, to be close again.
            await self._read_until_close(reader, applier)
        raise RebuildError(
            "long reads of the views, or another writer, kept the swap waiting; the live views are as they were. "
            "Find those reads in pg_stat_activity, or raise THREADLOG_PROJECTOR_SWAP_LOCK_SECONDS."
        )

    async def _targets(self, old: Mapping[int, int]) -> dict[TopicPartition, int]:
        ends = await self._log.end_offsets(self._taken)
        return {tp: max(end, old.get(tp.partition, 0)) for tp, end in ends.items()}

    async def _old_positions(self, statement: Literal["select", "raise_epochs"]) -> dict[int, int]:
        """Where the live generation is. Of another log there is nothing to compare."""
        old = self._old
        if old is None or old.cluster_id != self._generation.cluster_id:
            return {}
        query = f'select "partition", next_offset from {old.schema}.positions'  # noqa: S608
        if statement == "raise_epochs":
            query = (
                f"update {old.schema}.positions set owner = 'swapped', owner_epoch = owner_epoch + 1 "  # noqa: S608
                'returning "partition", next_offset'
            )
        return {row[0]: row[1] for row in await self._connection.fetch(query)}

    def _report(self, phase: Literal["reading", "swapping", "done"], ends: Mapping[TopicPartition, int]) -> None:
        begins = self._begins
        self._on_progress(
            Progress(
                phase,
                self._generation.number,
                sum(offset - begins[tp] for tp, offset in self._taken.items()),
                sum(max(end, self._taken[tp]) - begins[tp] for tp, end in ends.items()),
                asyncio.get_running_loop().time() - self._started,
            )
        )
