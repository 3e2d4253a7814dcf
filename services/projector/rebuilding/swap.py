"""The swap: a generation takes the place of the live one, in one transaction.

1. The positions of the live generation are locked, also against a claim of a partition that nobody has claimed so far.
   Their epochs are raised, so its projector can write no more.
2. The new generation is read to the position where the live one was, and to the end of the log as of now.
3. The stable views are re-pointed, and the transaction commits.

Readers see the old generation up to the commit and the new one from there on, and never a position that goes back. If
the process dies before the commit, nothing has changed for anybody: the lock and the raised epochs are rolled back. If
it stands still, the database ends the transaction after a while. If only the answer to the commit is lost, the next try
finds the new generation live.

A read that has begun keeps its views until its transaction ends. So a swap waits for it, and no transaction reads two
generations. A read that has one view and wants another, and a swap that has the other, would wait for each other: a
deadlock, for which Postgres ends either of them. So the swap gives up before that, lets reads through and tries again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
import structlog

from services.chassis.log.port import Log
from services.projector.generations import schema_sql
from services.projector.generations.errors import RebuildError
from services.projector.generations.generations import live_generation, make_live
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Filling, OnPositions, Positions
from services.projector.settings import ProjectorSettings

AGAIN_SECONDS: Final = 0.2
"""The pause between two tries, in which reads that waited behind the swap get their turn."""

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
    """Make `generation` live; it has to be filled nearly to the end of the log.

    `catch_up` is called after a try that failed, because the log has grown meanwhile. `on_progress` gets the offsets to
    which this try reads. Raises RebuildError; the live generation is then as it was.
    """

    async def once(connection: asyncpg.Connection) -> bool:
        live = await live_generation(connection)
        if live == generation:
            return True  # an earlier try has committed, and its answer was lost
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
                # From here on reads wait behind the swap, so its own waits get shorter.
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

    # Each failed try lets the reads through that waited behind it, and reads on, so that the next one is short again.
    for _ in range(settings.limits.swap_tries_max):
        if await lock.do(once):
            logger.info("generation_live", generation=generation.number)
            return
        logger.info("swap_delayed")
        await asyncio.sleep(AGAIN_SECONDS)
        await catch_up()
    raise RebuildError(
        "long reads of the views, or another writer, kept the swap waiting; the live views are as they were. Find those"
        " reads in pg_stat_activity, and run it again, which goes on with what was built."
    )


async def _take_positions(connection: asyncpg.Connection, old: Generation) -> dict[int, int]:
    await connection.execute(schema_sql.lock_positions(old.schema))
    rows = await connection.fetch(schema_sql.take_positions(old.schema))
    return {row[0]: row[1] for row in rows}


async def _end_if_idle(connection: asyncpg.Connection, seconds: float) -> None:
    """Let the database end the swap if it stands still: it would keep the live generation's projector waiting."""
    await connection.execute(schema_sql.set_idle_timeout(seconds))


async def wait_for_locks(connection: asyncpg.Connection, seconds: float) -> None:
    """Limit how long each statement of this transaction waits for a lock."""
    await connection.execute(schema_sql.set_lock_timeout(seconds))


async def _shorter_than_deadlocks(connection: asyncpg.Connection, settings: ProjectorSettings) -> float:
    """Return a wait that is shorter than Postgres' own: the swap, not a reader, then ends if both wait for each
    other.
    """
    deadlock_ms: int = await connection.fetchval("select setting::int from pg_settings where name = 'deadlock_timeout'")
    return min(settings.limits.swap_lock_seconds, deadlock_ms / 2000)
