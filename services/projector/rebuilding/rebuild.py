"""A rebuild: a new generation from the beginning of the log, which takes the place of the live one.

It reads until it is close to the live generation, is compared with it if that is asked for, reads until it is close to
the end of the log, and is swapped in (see `swap`). While the live generation falls behind, the rebuild pauses: it must
not take from the live views what they need.

It can end at any moment, by any means. What was built stays, and the next rebuild continues it if it is of the same
versions and log. Nothing becomes live without the one transaction of the swap, so there is nothing to undo.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Literal

import asyncpg
import structlog

from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Log, TopicPartition
from services.projector.generations.analysis import analyze
from services.projector.generations.database import DATABASE_AWAY, SCHEMA_GONE, connect
from services.projector.generations.errors import FenceError, GenerationGoneError, RebuildError
from services.projector.generations.generations import (
    admit_log,
    create_generation,
    drop_generation,
    fits,
    is_there,
    live_generation,
    stored_positions,
    unfinished_generations,
)
from services.projector.generations.log_identity import is_built_from
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Build, Filling, OnPositions, Positions
from services.projector.rebuilding.compare import Difference, differences_between
from services.projector.rebuilding.garbage_collection import collecting_rarely
from services.projector.rebuilding.live_priority import LivePriority
from services.projector.rebuilding.progress import OnProgress, Progress
from services.projector.rebuilding.swap import swap, wait_for_locks
from services.projector.rebuilding.worker_pool import Workers
from services.projector.settings import ProjectorSettings

DIFFERENCES_SHOWN_MAX: Final = 20
"""Differences that an error names. There may be one for each view and tenant."""

logger = structlog.get_logger()


async def rebuild(
    log: Log,
    dsn: str,
    settings: ProjectorSettings,
    on_progress: OnProgress,
    *,
    keep_old: bool = False,
    compare: bool = False,
    restart: bool = False,
    force: bool = False,
    new_log: bool = False,
) -> Generation:
    """Build a generation, make it live, and return it.

    It continues what an earlier rebuild left unfinished, if that is of the same versions and log; `restart` begins from
    nothing. `compare` compares it with the live generation first, and `force` swaps in spite of differences. `new_log`
    says that the topic was created again, and may have another number of partitions. `keep_old` keeps the generation
    that was live before. Raises RebuildError, BusyError and OtherPartitionsError; the live generation is then as it
    was.
    """
    cluster_id, partitions = await log.cluster_id(), await log.partition_count(THREAD_EVENTS.name)
    async with MaintenanceLock(dsn, settings) as lock:
        old = await lock.do(live_generation)
        if new_log:
            await _require_new(lock, log, cluster_id, old)
        await lock.do(lambda connection: admit_log(connection, cluster_id, partitions, is_new=new_log))
        generation = await _begun(lock, log, cluster_id, restart=restart)
        work = Rebuild(log, dsn, settings, on_progress, lock, generation, old)
        try:
            async with asyncio.timeout(settings.limits.rebuild_seconds_max) as limit:
                with collecting_rarely():
                    await work.run(compare=compare, force=force)
        except TimeoutError as error:
            if not limit.expired():
                raise RebuildError(
                    f"the log or the database did not answer in time ({error!r}); the live views "
                    "are as they were. Run it again to go on with what was built."
                ) from error
            seconds = settings.limits.rebuild_seconds_max
            raise RebuildError(
                f"not caught up within {seconds:.0f} s; the live views are as they were. Run it again to go on with "
                "what was built."
            ) from None
        if old is not None and not keep_old:
            await drop_when_unread(lock, old, settings)
    return generation


async def drop_when_unread(lock: MaintenanceLock, generation: Generation, settings: ProjectorSettings) -> bool:
    """Drop the generation once nobody reads it; return False if reads from before the swap take too long.

    Raises RebuildError if the generation is live.
    """

    async def once(connection: asyncpg.Connection) -> bool:
        await _require_not_live(connection, generation)
        try:
            async with connection.transaction():
                await wait_for_locks(connection, settings.limits.swap_lock_seconds)
                await drop_generation(connection, generation)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            return False
        return True

    for _ in range(settings.limits.swap_tries_max):
        if await lock.do(once):
            return True
        await asyncio.sleep(settings.limits.retry_seconds)
    logger.warning("generation_kept_by_readers", generation=generation.number)
    return False


async def _require_new(lock: MaintenanceLock, log: Log, cluster_id: str, old: Generation | None) -> None:
    """Raise RebuildError if the log is the one of the live views. Without views, nobody can know."""
    if old is None or not await is_built_from(old, log, cluster_id, lock):
        return
    stored = await lock.do(lambda connection: stored_positions(connection, old))
    if any(stored.values()):
        raise RebuildError(
            "this is the log that the live views were built from: its records are where they were. Run it without "
            "--new-log."
        )


async def _begun(lock: MaintenanceLock, log: Log, cluster_id: str, *, restart: bool) -> Generation:
    """Return the generation to fill: the last unfinished one that can be continued, or a new one. Drop the others."""
    kept: Generation | None = None
    gone = await lock.do(lambda connection: unfinished_generations(connection, "scratch"))
    for unfinished in reversed(await lock.do(unfinished_generations)):
        can_go_on = not restart and kept is None and await _can_go_on(lock, log, unfinished, cluster_id)
        if can_go_on:
            kept = unfinished
        else:
            gone.append(unfinished)
    await lock.do(lambda connection: _drop_all(connection, gone))
    logger.info("rebuild_started", goes_on_with=None if kept is None else kept.number)
    return kept if kept is not None else await lock.do(lambda connection: _created(connection, cluster_id))


async def _drop_all(connection: asyncpg.Connection, generations: Sequence[Generation]) -> None:
    """Drop unfinished generations, each after a look whether it is live."""
    for generation in generations:
        await _require_not_live(connection, generation)
        await drop_generation(connection, generation)


async def _require_not_live(connection: asyncpg.Connection, generation: Generation) -> None:
    """Raise RebuildError if the generation is live: while the connection was lost, somebody else could swap."""
    if await live_generation(connection) == generation:
        raise RebuildError(f"generation {generation.number} became the live one meanwhile, and is not dropped.")


async def _created(connection: asyncpg.Connection, cluster_id: str) -> Generation:
    """Create the generation in a transaction of its own: its number and its schema exist together or not at all."""
    async with connection.transaction():
        return await create_generation(connection, cluster_id)


async def _can_go_on(lock: MaintenanceLock, log: Log, generation: Generation, cluster_id: str) -> bool:
    if not fits(generation) or not await lock.do(lambda connection: is_there(connection, generation)):
        return False
    return await is_built_from(generation, log, cluster_id, lock)


class Rebuild:
    """The work of one rebuild: fill a generation from where it is, compare it, and swap it in."""

    def __init__(
        self,
        log: Log,
        dsn: str,
        settings: ProjectorSettings,
        on_progress: OnProgress,
        lock: MaintenanceLock,
        generation: Generation,
        old: Generation | None,
    ) -> None:
        self._log = log
        self._dsn = dsn
        self._settings = settings
        self._on_progress = on_progress
        self._lock = lock
        self._generation = generation
        self._old = old
        self._filling = _filling(log, dsn, settings, generation)
        self._priority = LivePriority(log, dsn, settings, self._filling)
        self._begins: Positions = {}
        self._done_before = 0
        self._is_same_log = False
        self._started = asyncio.get_running_loop().time()

    async def run(self, *, compare: bool, force: bool) -> None:
        """Do the work. Raises RebuildError; what was built then stays, and can be continued."""
        try:
            await self._run(compare=compare, force=force)
        except (GenerationGoneError, *SCHEMA_GONE) as error:
            raise RebuildError(
                f"the schema of a generation was dropped meanwhile ({error}); nothing was swapped. Run it again."
            ) from error
        except FenceError as error:
            raise RebuildError(
                f"another process has taken generation {self._generation.number} over; nothing was swapped by this one."
            ) from error

    async def _run(self, *, compare: bool, force: bool) -> None:
        log, old = self._log, self._old
        self._is_same_log = old is not None and await is_built_from(old, log, self._generation.cluster_id, self._lock)
        try:
            await self._filling.open()
            # What an earlier rebuild has read counts as done, and not as the speed of this one.
            self._begins = await log.begin_offsets(self._filling.positions())
            self._done_before = self._done()
            async with self._priority.of(old if self._is_same_log else None):
                if compare and old is not None and self._is_same_log:
                    await self._catch_up(lambda: self._positions_of(old))
                    self._judge(old, await self._compared(old), force=force)
                await self._catch_up(self._ends)
                # Statistics take a while, so catch up once more: the swap should have little left to read.
                await self._lock.do(lambda connection: analyze(connection, self._generation))
                await self._catch_up(self._ends)
            await swap(
                self._lock,
                log,
                self._filling,
                self._generation,
                old,
                self._settings,
                is_same_log=self._is_same_log,
                catch_up=lambda: self._catch_up(self._ends),
                on_progress=lambda targets: self._reporting("swapping", targets),
            )
        finally:
            await self._filling.close()
        self._report("done", self._filling.positions())

    # Reading

    async def _catch_up(self, where: Callable[[], Awaitable[Positions]]) -> None:
        """Read until the generation is at most one batch behind: `where` says anew each time how far that is."""
        while True:
            ends = await where()
            await self._filling.read_to(ends, self._reporting("reading", ends), await self._published())
            positions = self._filling.positions()
            behind = sum(max(0, end - positions[tp]) for tp, end in (await where()).items())
            if behind <= self._settings.projector_batch_records_max:
                return  # the log grows while it is read, so the rest is left to the swap

    async def _ends(self) -> dict[TopicPartition, int]:
        """Return the ends of the log as of now."""
        return await self._log.end_offsets(self._filling.positions())

    async def _published(self) -> dict[int, int]:
        """Return the offsets below which the live projector has published the dead letters."""
        if self._old is None or not self._is_same_log:
            return {}
        old = self._old
        stored = await self._lock.do(lambda connection: stored_positions(connection, old))
        return {tp.partition: at for tp, at in stored.items()}

    async def _positions_of(self, generation: Generation) -> dict[TopicPartition, int]:
        """Return how far a generation is, for the partitions of this one; 0 for a partition without a position."""
        stored = await self._lock.do(lambda connection: stored_positions(connection, generation))
        return {tp: stored.get(tp, 0) for tp in self._filling.positions()}

    # Comparing

    async def _compared(self, live: Generation) -> list[Difference]:
        """Return the differences from the live generation. Waits for it if it is behind, and for the database."""
        settings = self._settings
        deadline = asyncio.get_running_loop().time() + settings.limits.compare_wait_seconds
        while True:
            away = None
            try:
                found = await self._compare_once(live)
            except DATABASE_AWAY as error:
                away = f"{type(error).__name__}: {error}"
                logger.warning("database_away", error=away)
                found = None
            if found is not None:
                return found
            if asyncio.get_running_loop().time() > deadline:
                if away is not None:
                    raise RebuildError(
                        f"the generations cannot be compared, because the database does not answer ({away}). Run it "
                        "again to go on with what was built."
                    )
                raise RebuildError(
                    f"generation {self._generation.number} is ahead of the live one, which does not come to where both "
                    "could be compared. Start a projector, or rebuild with --no-compare."
                )
            await asyncio.sleep(settings.limits.rebuild_look_seconds)

    async def _compare_once(self, live: Generation) -> list[Difference] | None:
        """Compare at the position of the live generation, in one snapshot of it, while its projector goes on.

        Returns None if this generation is ahead: the live one then has to come closer first.
        """
        async with (
            self._connection() as of_live,
            self._connection() as of_built,
            of_live.transaction(isolation="repeatable_read", readonly=True),
        ):
            at = await stored_positions(of_live, live)
            ours = self._filling.positions()
            if any(ours[tp] > at.get(tp, 0) for tp in ours):
                return None
            await self._filling.read_to({tp: at.get(tp, 0) for tp in ours}, self._reporting("comparing", at))
            self._report("comparing", at)
            return await differences_between(of_live, live.schema, of_built, self._generation.schema, self._settings)

    def _judge(self, live: Generation, found: Sequence[Difference], *, force: bool) -> None:
        """Raise RebuildError if the generations differ, unless another version made the live one, or `force` is set."""
        number = self._generation.number
        self._report("comparing", self._filling.positions(), found)
        if not found:
            logger.info("generations_equal", live=live.number, built=number)
            return
        if not fits(live):  # another version made the live rows: that they differ is the reason for the rebuild
            logger.info("generations_differ_as_expected", live=live.number, built=number, differences=len(found))
            return
        if force:
            logger.warning("generations_differ", live=live.number, built=number, differences=list(map(str, found)))
            return
        shown = "; ".join(map(str, found[:DIFFERENCES_SHOWN_MAX]))
        more = f"; and {len(found) - DIFFERENCES_SHOWN_MAX} more" if len(found) > DIFFERENCES_SHOWN_MAX else ""
        raise RebuildError(
            f"generation {number} differs from the live generation {live.number} at the same position of the log: "
            f"{shown}{more}. Nothing was swapped. `threadlog verify` names the rows; `threadlog rebuild --force` swaps "
            "all the same, `--restart` builds once more from the beginning."
        )

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await connect(self._dsn, self._settings)
        try:
            yield connection
        finally:
            connection.terminate()

    # Progress

    def _done(self) -> int:
        """Return how many records of the log are in the generation, counted by offsets."""
        return sum(at - self._begins[tp] for tp, at in self._filling.positions().items())

    def _reporting(self, phase: Literal["reading", "comparing", "swapping"], ends: Positions) -> OnPositions:
        return lambda _: self._report(phase, ends)

    def _report(
        self,
        phase: Literal["reading", "comparing", "swapping", "done"],
        ends: Positions,
        found: Sequence[Difference] = (),
    ) -> None:
        positions, done = self._filling.positions(), self._done()
        self._on_progress(
            Progress(
                phase,
                self._generation.number,
                done,
                done + sum(max(0, end - positions.get(tp, end)) for tp, end in ends.items()),
                asyncio.get_running_loop().time() - self._started,
                done - self._done_before,
                self._priority.is_paused,
                found,
            )
        )


def _filling(log: Log, dsn: str, settings: ProjectorSettings, generation: Generation) -> Filling:
    """Return what fills the generation: worker processes, or this process alone if the settings say 1."""
    if settings.projector_rebuild_workers > 1:
        return Workers(log, settings, generation, dsn)
    rate = settings.projector_rebuild_records_per_second_max or None
    store = PostgresStore(dsn, settings, generation)
    return Build(log, store, settings, owner="rebuild", records_per_second=rate)
