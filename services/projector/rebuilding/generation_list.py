"""The generations of a database for an operator: list them, go back to one that was kept, drop one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Log
from services.chassis.postgres.sql_files import SqlFiles
from services.projector.generations.database import connect
from services.projector.generations.errors import GenerationGoneError, OtherLogError, RebuildError
from services.projector.generations.generations import (
    OtherVersionError,
    admit_log,
    fits,
    live_generation,
    stored_positions,
)
from services.projector.generations.log_identity import is_built_from
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Positions
from services.projector.rebuilding.progress import OnProgress
from services.projector.rebuilding.rebuild import Rebuild, drop_when_unread
from services.projector.settings import ProjectorSettings

SHOW: Final = "`threadlog generations list` shows those that are there."


@dataclass(frozen=True, slots=True)
class Kept:
    generation: Generation
    status: str
    created_ms: int
    live_since_ms: int | None
    size_bytes: int | None
    """The size on disk; None if the schema was dropped by hand."""
    positions: Positions


async def list_generations(dsn: str, settings: ProjectorSettings) -> list[Kept]:
    connection = await connect(dsn, settings)
    try:
        await live_generation(connection)  # raises NotMigratedError
        return await _kept(connection)
    finally:
        await connection.close()


async def use_generation(
    log: Log, dsn: str, settings: ProjectorSettings, on_progress: OnProgress, number: int
) -> Generation:
    """Let a kept generation catch up with the log and become live. The generation that is live now is kept.

    It is a rebuild that starts from the kept rows, so it may end at any time and be run again. Raises RebuildError,
    OtherVersionError, OtherLogError, OtherPartitionsError; the live generation is then as it was.
    """
    cluster_id, partitions = await log.cluster_id(), await log.partition_count(THREAD_EVENTS.name)
    async with MaintenanceLock(dsn, settings) as lock:
        live = await lock.do(live_generation)
        await lock.do(lambda connection: admit_log(connection, cluster_id, partitions))
        wanted = _usable(await lock.do(_kept), number)
        if wanted == live:
            return wanted
        if not await is_built_from(wanted, log, cluster_id, lock):
            raise OtherLogError(
                f"generation {number} was built from another log; `threadlog generations drop {number}`."
            )
        await Rebuild(log, dsn, settings, on_progress, lock, wanted, live).run(compare=False, force=False)
    return wanted


async def remove_generation(dsn: str, settings: ProjectorSettings, number: int) -> None:
    """Drop a generation. Raises RebuildError if it is live, or if transactions still read it."""
    async with MaintenanceLock(dsn, settings) as lock:
        kept = {one.generation.number: one for one in await lock.do(_kept)}.get(number)
        if kept is None:
            raise RebuildError(f"there is no generation {number}. {SHOW}")
        if kept.status == "live" and kept.size_bytes is not None:
            raise RebuildError(f"generation {number} is the live one: use another one, or rebuild, before you drop it.")
        if not await drop_when_unread(lock, kept.generation, settings):
            raise RebuildError(f"generation {number} is still read: look for long transactions in pg_stat_activity.")


async def _kept(connection: asyncpg.Connection) -> list[Kept]:
    sql = SqlFiles(Path(__file__).with_name("sql"))
    kept = []
    for row in await connection.fetch(sql["list_generations"]):
        generation = Generation(*row[:5])
        size_bytes, positions = row["bytes"], {}
        try:
            if size_bytes is not None:
                positions = await stored_positions(connection, generation)
        except GenerationGoneError:  # it is being dropped right now, or was dropped in part by hand
            size_bytes = None
        kept.append(Kept(generation, row["status"], row["created_at"], row["live_since"], size_bytes, positions))
    return kept


def _usable(everything: list[Kept], number: int) -> Generation:
    """Return the generation if it can become live. Raises RebuildError or OtherVersionError that say why not."""
    kept = {one.generation.number: one for one in everything}.get(number)
    if kept is None:
        raise RebuildError(f"there is no generation {number}; it may have been dropped. {SHOW}")
    generation = kept.generation
    if kept.status == "building":
        raise RebuildError(f"generation {number} is not built to its end; `threadlog rebuild` goes on with it.")
    if kept.status == "scratch":
        raise RebuildError(f"generation {number} was made to compare others with, and is never live. {SHOW}")
    if kept.size_bytes is None:
        raise RebuildError(f"the schema {generation.schema} was dropped; `threadlog rebuild` builds a new generation.")
    if not fits(generation):
        raise OtherVersionError(
            f"generation {number} is of fold {generation.fold_version} and projection {generation.projection_version}, "
            "which this version of threadlog does not write. Use it with the release that does, or rebuild."
        )
    return generation
