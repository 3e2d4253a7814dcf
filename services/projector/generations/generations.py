"""Generations of the views: how one is created, becomes live, and is removed.

A generation is a schema `views_g<number>` with everything that is derived from the log: views, states and positions.
The schema `views` holds what readers use: views of the same names that point at the live generation. They are
re-pointed in one transaction, which also raises the owner epochs of the previous generation. Its projector can then no
longer write it, notices that, and continues with the new one.
"""

import contextlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Final, Literal

import asyncpg
import structlog

from schemas.state import FOLD_VERSION
from schemas.topics import THREAD_EVENTS
from services.chassis.errors import SetupError
from services.chassis.log.port import TopicPartition
from services.chassis.log_partitions import require_same
from services.chassis.postgres.migrations import migrate as run_migrations
from services.chassis.postgres.sql_files import SqlFiles
from services.projector.generations import schema_sql
from services.projector.generations.database import SCHEMA_GONE, connect
from services.projector.generations.errors import GenerationGoneError, OtherLogError
from services.projector.generations.rights import bind_generations
from services.projector.generations.store import Generation
from services.projector.projections.batch import PROJECTION_VERSION
from services.projector.settings import ProjectorSettings

OWNER: Final = "projector"
ADVISORY_LOCK: Final = 0x7669_6577_73  # "views"
"""The key of the advisory lock that whoever makes or removes generations takes."""
FOLDER: Final = Path(__file__).parents[1]

TABLES: Final = (
    *("thread_states", "positions", "threads", "turns", "steps", "tool_calls", "items", "plans", "tasks"),
    *("artifacts", "usage", "events", "dead_letters"),
)
VIEWS: Final = (*TABLES, "approvals", "unknown_calls")
"""All views, in the order in which a swap re-points them."""
SOURCES: Final = {"tool_calls": "tool_calls_with_results", "usage": "usage_counted"}
"""What a stable view shows of a generation, if that is not the table of the same name."""

NewStatus = Literal["building", "scratch"]
"""A scratch generation never becomes live: whoever made it compares others with it and drops it."""

NOT_MIGRATED: Final = "the database has no threadlog tables; run `threadlog migrate` first"

logger = structlog.get_logger()


class NotMigratedError(SetupError):
    pass


class OtherVersionError(SetupError):
    """The live views were made by another version of the fold or the projection than this software has."""

    def __init__(self, message: str, *, is_older_than_software: bool = False) -> None:
        super().__init__(message)
        self.is_older_than_software = is_older_than_software


async def migrate(dsn: str) -> tuple[str, ...]:
    """Apply the migrations of everything that is not a view. Return the names of those applied now."""
    connection = await asyncpg.connect(dsn)
    try:
        applied = await run_migrations(connection, OWNER, FOLDER / "migrations")
        await bind_generations(connection)
        return applied
    finally:
        await connection.close()


async def live_generation(connection: asyncpg.Connection) -> Generation | None:
    """Return the live generation; None if there is none, or if its schema was dropped by hand."""
    try:
        row = await connection.fetchrow(_sql()["live_generation"])
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        raise NotMigratedError(NOT_MIGRATED) from None
    if row is None:
        return None
    generation = Generation(*row)
    return generation if await is_there(connection, generation) else None


async def is_there(connection: asyncpg.Connection, generation: Generation) -> bool:
    """Tell whether the schema of the generation still exists: somebody may have dropped it by hand."""
    found: bool = await connection.fetchval("select to_regclass($1) is not null", f"{generation.schema}.positions")
    return found


async def ensure_live(dsn: str, settings: ProjectorSettings, cluster_id: str) -> Generation:
    """Return the live generation; create an empty one if there is none.

    Raises OtherLogError and OtherVersionError if it was made from another log, or by another version.
    """
    connection = await connect(dsn, settings)
    try:
        live = await live_generation(connection)
        if live is None:
            async with _lock(connection):
                live = await live_generation(connection) or await _first(connection, cluster_id)
    finally:
        await connection.close()
    check_generation(live, cluster_id)
    return live


def fits(generation: Generation) -> bool:
    """Tell whether this software writes the rows that the generation has."""
    return (generation.fold_version, generation.projection_version) == (FOLD_VERSION, PROJECTION_VERSION)


def check_generation(generation: Generation, cluster_id: str) -> None:
    if (generation.cluster_id, generation.topic) != (cluster_id, THREAD_EVENTS.name):
        raise OtherLogError(
            f"the views were built from the topic {generation.topic} of the cluster {generation.cluster_id}, this is "
            f"{THREAD_EVENTS.name} of {cluster_id}. Connect to that cluster, or use another database, or run "
            "`threadlog rebuild` to build the views from this log."
        )
    if not fits(generation):
        views = f"fold {generation.fold_version} and projection {generation.projection_version}"
        software = f"fold {FOLD_VERSION} and projection {PROJECTION_VERSION}"
        if generation.fold_version <= FOLD_VERSION and generation.projection_version <= PROJECTION_VERSION:
            raise OtherVersionError(
                f"the live views are of {views}, this version of threadlog is newer: {software}. Run `threadlog "
                "rebuild` with it, beside the running services, then start its own; or let the projector do it: "
                "THREADLOG_PROJECTOR_OTHER_VERSION=build.",
                is_older_than_software=True,
            )
        raise OtherVersionError(
            f"the live views are of {views}, this version of threadlog is older: {software}. Start the newer version; "
            "or, to go back to this one, `threadlog generations use N` with a generation that it made, or `threadlog "
            "rebuild`."
        )


async def admit_log(connection: asyncpg.Connection, cluster_id: str, partitions: int, *, is_new: bool = False) -> None:
    """Check the number of partitions of a log before views are built from it or compared with it.

    The first number is stored, and so is that of a log that `is_new`. With another number the threads would lie in
    other partitions. Raises OtherPartitionsError, NotMigratedError.
    """
    topic = THREAD_EVENTS.name
    try:
        known = await connection.fetchval(_sql()["admit_log"], cluster_id, topic, partitions, is_new)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        raise NotMigratedError(NOT_MIGRATED) from None
    require_same(topic, known, partitions)


async def create_generation(
    connection: asyncpg.Connection, cluster_id: str, status: NewStatus = "building"
) -> Generation:
    """Create an empty generation beside the live one, in the caller's transaction."""
    number = await connection.fetchval(
        _sql()["insert_generation"], FOLD_VERSION, PROJECTION_VERSION, cluster_id, THREAD_EVENTS.name, status
    )
    generation = Generation(number, FOLD_VERSION, PROJECTION_VERSION, cluster_id, THREAD_EVENTS.name)
    # A schema of this number can only be there if somebody dropped the list of generations by hand.
    await connection.execute(schema_sql.drop_schema(generation.schema))
    await connection.execute(schema_sql.create_schema(generation.schema))
    await connection.execute(schema_sql.set_schema(generation.schema))
    await connection.execute(_sql()["generation"])
    await connection.execute(_sql()["policies"])
    await connection.execute(schema_sql.set_schema("default"))
    return generation


async def make_live(connection: asyncpg.Connection, generation: Generation, old: Generation | None) -> None:
    """Re-point the stable views to the generation, in the caller's transaction. `old` is the result of
    `live_generation`.

    If the new views have other columns, `create or replace` is refused; then the views are replaced one by one.
    """
    definitions = {name: _definition(name, generation) for name in VIEWS}
    try:
        async with connection.transaction():  # in one round trip: reads wait meanwhile
            await connection.execute("; ".join([f"create or replace {each}" for each in definitions.values()]))
    except asyncpg.InvalidTableDefinitionError:
        for name, definition in definitions.items():
            await _replace(connection, name, definition)
    await connection.execute(_sql()["grants_of_views"])
    await connection.execute(_sql()["describe_views"])
    was_live = await connection.fetchrow(_sql()["live_generation"])
    if old is not None:
        await connection.execute(_sql()["set_generation_status"], old.number, "old")
    elif was_live is not None:  # its schema was dropped by hand
        await connection.execute(_sql()["delete_generation"], was_live["number"])
    await connection.execute(_sql()["set_generation_status"], generation.number, "live")


async def _replace(connection: asyncpg.Connection, view: str, definition: str) -> None:
    try:
        async with connection.transaction():
            await connection.execute(f"create or replace {definition}")
    except asyncpg.InvalidTableDefinitionError:  # other columns: what depends on the old ones has to know
        await connection.execute(schema_sql.drop_stable_view(view))
        await connection.execute(f"create {definition}")


def _definition(view: str, generation: Generation) -> str:
    return schema_sql.stable_view(view, generation.schema, SOURCES.get(view, view))


async def unfinished_generations(connection: asyncpg.Connection, status: NewStatus = "building") -> list[Generation]:
    return [Generation(*row) for row in await connection.fetch(_sql()["unfinished_generations"], status)]


async def drop_generation(connection: asyncpg.Connection, generation: Generation) -> None:
    async with connection.transaction():
        await connection.execute(schema_sql.drop_schema(generation.schema))
        await connection.execute(_sql()["delete_generation"], generation.number)


async def drop_views(dsn: str, settings: ProjectorSettings) -> int:
    """Drop every generation; return how many there were. A running projector builds the next one from the log."""
    connection = await connect(dsn, settings)
    try:
        async with _lock(connection):
            generations = await connection.fetch(_sql()["all_generations"])
            for row in generations:
                await drop_generation(connection, Generation(*row))
    finally:
        await connection.close()
    return len(generations)


async def view_checksums(connection: asyncpg.Connection | asyncpg.Pool, schema: str) -> dict[str, tuple[int, str]]:
    """Return the number of rows of each view and a checksum over them that does not depend on their order.

    Two generations that are built from the same records have the same checksums. `schema` is `views`, or that of a
    generation.
    """
    checksums = {}
    for name in TABLES:
        columns = schema_sql.columns_or_all(checksum_columns(name))
        row = await connection.fetchrow(schema_sql.checksum(schema, name, columns))
        assert row is not None
        checksums[name] = (row["rows"], row["checksum"])
    return checksums


def checksum_columns(view: str) -> tuple[str, ...]:
    """Return the columns that the log determines; empty for all columns.

    Owner, epoch and time of writing of a position differ between two builds from the same log.
    """
    return ("topic", "partition", "next_offset", "cluster_id", "last_record") if view == "positions" else ()


async def _first(connection: asyncpg.Connection, cluster_id: str) -> Generation:
    async with connection.transaction():
        generation = await create_generation(connection, cluster_id)
        await make_live(connection, generation, None)
    logger.info("generation_created", generation=generation.number)
    return generation


async def stored_positions(connection: asyncpg.Connection, generation: Generation) -> dict[TopicPartition, int]:
    """Return how far the generation is, by partition. Raises GenerationGoneError."""
    try:
        rows = await connection.fetch(schema_sql.select_positions(generation.schema))
    except SCHEMA_GONE as error:
        raise GenerationGoneError(f"{generation.schema} is not there as it was: {error}") from error
    return {TopicPartition(row[0], row[1]): row[2] for row in rows}


@contextlib.asynccontextmanager
async def _lock(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Take the lock of `ADVISORY_LOCK`; wait while somebody else has it."""
    await connection.execute("select pg_advisory_lock($1)", ADVISORY_LOCK)
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", ADVISORY_LOCK)


@cache
def _sql() -> SqlFiles:
    return SqlFiles(Path(__file__).with_name("sql"))
