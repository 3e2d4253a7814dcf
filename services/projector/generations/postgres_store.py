"""One generation in Postgres: positions, states and rows, written in one transaction per batch.

The first statement of the transaction is the fence: it moves the positions of the batch's partitions from where its
records begin to where they end, under the epoch of the claim. If it moves fewer than it should, nothing else is
written.

- Another owner, or another position: FenceError, and the caller starts from what is stored.
- Exactly where the batch would have left them: the batch was written by a try whose answer was lost. Nothing is done,
  and
  the write has succeeded. This makes `write` idempotent.

New rows go in by COPY, which is the fastest way and needs no check for conflicts: the fence lets only one projector
write a partition, each record once, and a batch knows which of its rows are new. Changes of rows that exist go in as
one UPDATE per table, from arrays.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

import asyncpg

from schemas.errors import Fault
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import FOLD_VERSION, load_state
from services.chassis.postgres.sql_files import SqlFiles
from services.projector.columns import MERGED, THREAD_STATES, THREADS
from services.projector.generations.change_statements import CHANGE, parameters_of
from services.projector.generations.database import DATABASE_AWAY, SCHEMA_GONE, Link, columns_of, connect
from services.projector.generations.errors import GenerationGoneError, RowRefusedError, StoreAwayError, StoredPosition
from services.projector.generations.generations import admit_log, ensure_live
from services.projector.generations.store import Claim, Generation, Span, fence_error
from services.projector.projections import artifacts, dead_letters, events, usage
from services.projector.projections.batch import Batch, Kept
from services.projector.projections.changes import ItemsCompacted, ItemsRewound
from services.projector.projections.rows import Rows
from services.projector.settings import ProjectorSettings

_REFUSED: Final = (
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.IntegrityConstraintViolationError,
    ValueError,
    TypeError,
    OverflowError,
)


class _IsWrittenError(Exception):
    """The batch is in the database already: this rolls back a transaction that has nothing to do."""


class PostgresStores:
    """Implements `Stores`."""

    def __init__(self, dsn: str, settings: ProjectorSettings) -> None:
        self._dsn = dsn
        self._settings = settings

    async def admit(self, cluster_id: str, partitions: int) -> None:
        try:
            connection = await connect(self._dsn, self._settings)
            try:
                await admit_log(connection, cluster_id, partitions)
            finally:
                connection.terminate()
        except DATABASE_AWAY as error:
            raise StoreAwayError(f"{type(error).__name__}: {error}") from error

    async def live(self, cluster_id: str) -> Generation:
        try:
            return await ensure_live(self._dsn, self._settings, cluster_id)
        except DATABASE_AWAY as error:
            raise StoreAwayError(f"{type(error).__name__}: {error}") from error

    def open(self, generation: Generation) -> "PostgresStore":
        return PostgresStore(self._dsn, self._settings, generation)


class PostgresStore:
    """Implements `GenerationStore`.

    It has one connection for writes and another for loads, so that the next batch is folded while one is written.
    """

    def __init__(self, dsn: str, settings: ProjectorSettings, generation: Generation) -> None:
        self.generation = generation
        self._writer = Link(dsn, settings, generation.schema)
        self._loader = Link(dsn, settings, generation.schema)
        self._sql = SqlFiles(Path(__file__).with_name("sql"))

    async def close(self) -> None:
        await self._writer.close()
        await self._loader.close()

    async def claim(self, partitions: Iterable[int], owner: str, cluster_id: str) -> dict[int, Claim]:
        async with self._connected(self._loader) as connection, connection.transaction():
            # Epochs must not go back with a crash of the database: two projectors could hold the same one.
            await connection.execute("set local synchronous_commit = on")
            rows = await connection.fetch(
                self._sql["claim_positions"], self.generation.topic, sorted(partitions), owner, cluster_id
            )
        return {row[0]: Claim(row[1], row[2], row[3], row[4] or "") for row in rows}

    async def positions(self) -> dict[int, StoredPosition]:
        async with self._connected(self._loader) as connection:
            rows = await connection.fetch(self._sql["select_positions"], self.generation.topic)
        return {row["partition"]: StoredPosition(row["next_offset"], row["owner"], row["owner_epoch"]) for row in rows}

    async def load(self, keys: Sequence[ThreadKey]) -> dict[ThreadKey, Kept]:
        async with self._connected(self._loader) as connection:
            rows = await connection.fetch(
                self._sql["select_states"], [key.tenant for key in keys], [key.thread for key in keys]
            )
        return dict([_kept(*row) for row in rows])

    async def write(self, batch: Batch, spans: Sequence[Span]) -> None:
        async with self._connected(self._writer) as connection:
            with contextlib.suppress(_IsWrittenError):
                async with connection.transaction():
                    await self._move(connection, spans)
                    await self._write_rows(connection, batch.rows)

    async def _move(self, connection: asyncpg.Connection, spans: Sequence[Span]) -> None:
        topic = self.generation.topic
        moved = await connection.fetch(self._sql["move_positions"], topic, *columns_of(spans))
        if len(moved) == len(spans):
            return
        rows = await connection.fetch(self._sql["select_positions"], topic)
        everything = {row["partition"]: StoredPosition(*row[1:4]) for row in rows}
        raise fence_error(spans, {row["partition"] for row in moved}, everything) or _IsWrittenError

    async def _write_rows(self, connection: asyncpg.Connection, rows: Rows) -> None:
        for table, records, columns in (
            ("thread_states", rows.new_states, THREAD_STATES.columns),
            ("threads", rows.new_threads, THREADS.columns),
            ("events", rows.events, events.COLUMNS),
            ("usage", rows.usage, usage.COLUMNS),
            ("artifacts", rows.artifacts, artifacts.COLUMNS),
            ("dead_letters", rows.dead_letters, dead_letters.COLUMNS),
            *[(name, rows.new_rows(name), table.columns) for name, table in MERGED.items() if rows.new[name]],
        ):
            if records:
                await connection.copy_records_to_table(table, records=records, columns=columns)
        changes: tuple[tuple[str, Sequence[Sequence[object]]], ...] = (
            (CHANGE["thread_states"], rows.changed_states),
            (CHANGE["threads"], rows.changed_threads),
            *[
                (CHANGE[name], parameters_of(table, rows.changed_rows(name)))
                for name, table in MERGED.items()
                if rows.changed[name]
            ],
            # In this order: each reaches rows that the statements before it wrote.
            (self._sql["edit_call_items"], [(*key, args) for key, args in rows.edits.items()]),
            *[change for rewinds, compactions in rows.rounds() for change in self._reaching(rewinds, compactions)],
        )
        for statement, changed in changes:
            if changed:
                await connection.execute(statement, *columns_of(changed))

    def _reaching(
        self, rewinds: Sequence[ItemsRewound], compactions: Sequence[ItemsCompacted]
    ) -> Iterable[tuple[str, Sequence[Sequence[object]]]]:
        yield self._sql["rewind_items"], rewinds
        yield self._sql["restore_items"], [(change.tenant, change.thread, change.seq) for change in rewinds]
        yield self._sql["compact_items"], compactions

    @contextlib.asynccontextmanager
    async def _connected(self, link: Link) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection; its errors become those of the port."""
        async with link.connected() as connection:
            try:
                yield connection
            except SCHEMA_GONE as error:
                raise GenerationGoneError(f"{self.generation.schema} is not there as it was: {error}") from error
            except _REFUSED as error:
                raise RowRefusedError(type(error).__name__, _fault(error)) from error


def _fault(error: Exception) -> Fault:
    """Return the class of a refusal. Postgres' program limits are limits of size: of a row, or of an index entry."""
    return "row_too_large" if isinstance(error, asyncpg.ProgramLimitExceededError) else "row_refused"


def _kept(tenant: str, thread: str, fold_version: int, quarantined: str | None, state: str) -> tuple[ThreadKey, Kept]:
    key = ThreadKey(TenantId(tenant), ThreadId(thread))
    if fold_version != FOLD_VERSION:
        raise GenerationGoneError(f"the state of {key} is of fold version {fold_version}, not {FOLD_VERSION}")
    return key, Kept(load_state(state.encode()), quarantined, is_stored=True)
