"""A generation that takes the place of the live one.

In one transaction the live generation's positions are locked, also against a claim of a partition that nobody has
claimed so far, and their epochs raised, so that its projector can write no more; the other one is read to where that
was, and to the end of the log as of now; then the stable views are re-pointed. Readers see the old generation up to the
commit and the new one from there on, never a position that is behind. A swap that stands still in the midst of it is
ended by the database.

A read that has begun holds its views until its transaction ends, so a swap waits for it, and no transaction reads two
generations. Two that wait for each other (a read that has one view and wants another, the swap that has the other)
would be a deadlock, for which Postgres ends either of them: the swap gives up earlier, lets reads through and tries
again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
import structlog

from services.chassis.log.port import Log
from services.projector.generations.errors import RebuildError
from services.projector.generations.generations import live_generation, make_live
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Filling, OnPositions, Positions
from services.projector.settings import ProjectorSettings

AGAIN_SECONDS: Final = 0.2

logger = structlog.get_logger()


async def swap(
    lock: MaintenanceLock,
    log: Log,
    filling: Filling,
    generation: Generation,
    old: Generation | None,
    settings: ProjectorSettings,
    *,
    is_same_log: bool,
    catch_up: Callable[[], Awaitable[None]],
    on_progress: Callable[[Positions], OnPositions],
) -> None:
    """`generation`, which is filled nearly to the end, is live when this returns.

    `catch_up` is called after a try that failed: both generations have gone on meanwhile. `on_progress` is given where
    this try reads to. Raises RebuildError, leaving the live one as it was.
    """

    async def once(connection: asyncpg.Connection) -> bool:
        live = await live_generation(connection)
        if live == generation:
            return True  # the commit of a try before was not heard of
        if live != old:
            now = "the live generation was dropped" if live is None else f"generation {live.number} became live"
            raise RebuildError(f"{now} meanwhile, and nothing was swapped; run it again")
        try:
            async with connection.transaction():
                await _end_if_idle(connection, settings.limits.transaction_idle_seconds)
                await wait_for_locks(connection, settings.limits.swap_lock_seconds)
                stored = await _take_positions(connection, old) if old is not None and is_same_log else {}
                ends = await log.end_offsets(filling.positions())
                targets = {tp: max(end, stored.get(tp.partition, 0)) for tp, end in ends.items()}
                await filling.read_to(targets, on_progress(targets), publish_from=stored)
                await wait_for_locks(connection, await _shorter_than_deadlocks(connection, settings))
                await make_live(connection, generation, old)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            return False
        except asyncpg.DependentObjectsStillExistError as error:
            raise RebuildError(
                f"the new generation's views have other columns, and something else uses the old ones: {error.detail}. "
                "Drop that, and run it again."
            ) from error
        return True

    for _ in range(settings.limits.swap_tries_max):
        if await lock.do(once):
            logger.info("generation_live", generation=generation.number)
            return
        logger.info("swap_waits_for_readers")
        await asyncio.sleep(AGAIN_SECONDS)
        await catch_up()
    raise RebuildError(
        "long reads of the views, or another writer, kept the swap waiting; the live views are as they were. Find those"
        " reads in pg_stat_activity, and run it again, which goes on with what was built."
    )


async def _take_positions(connection: asyncpg.Connection, old: Generation) -> dict[int, int]:
    # The whole table: a partition without a row could be claimed, and written, beside an update of the rows.
    await connection.execute(f"lock table {old.schema}.positions in exclusive mode")
    rows = await connection.fetch(
        f"update {old.schema}.positions set owner = 'swapped', owner_epoch = owner_epoch + 1 "  # noqa: S608
        'returning "partition", next_offset'
    )
    return {row[0]: row[1] for row in rows}


async def _end_if_idle(connection: asyncpg.Connection, seconds: float) -> None:
    """A swap that stands still would keep the live generation's projector waiting."""
    await connection.execute(f"set local idle_in_transaction_session_timeout = {max(1, int(1000 * seconds))}")


async def wait_for_locks(connection: asyncpg.Connection, seconds: float) -> None:
    await connection.execute(f"set local lock_timeout = {max(1, int(1000 * seconds))}")


async def _shorter_than_deadlocks(connection: asyncpg.Connection, settings: ProjectorSettings) -> float:
    """So that the swap, not a reader, is what ends when both wait for each other."""
    deadlock_ms: int = await connection.fetchval("select setting::int from pg_settings where name = 'deadlock_timeout'")
    return min(settings.limits.swap_lock_seconds, deadlock_ms / 2000)
