"""The states that the projector keeps, read from the live generation of its views.

Each load is one statement, so position and rows belong to one snapshot. Two statements could see a row that is older
than the position that is read after it, and the records in between would be lost to the reader.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import asyncpg
import pydantic

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import FOLD_VERSION, ThreadState, load_state
from services.chassis.postgres.connections import AWAY, NO_VIEWS
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.postgres.tenancy import OfTenant, Rows, TenantPool
from services.chassis.threads.states import PartitionKeys, PartitionStates, StatesUnavailableError

NOTHING_STORED: Final = PartitionStates(0, {})
"""The answer if no generation can be used: read the partition from its beginning."""


class PostgresStates:
    """Implements `StateStore` and `KeyStore` of `services.chassis.threads.states`."""

    def __init__(self, rows: asyncpg.Pool | Rows) -> None:
        self._rows = rows
        self._sql = SqlFiles(Path(__file__).with_name("sql"))

    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        return await self._load(self._sql["states_active"], topic, partition)

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        tenants, threads = [key.tenant for key in keys], [key.thread for key in keys]
        return await self._load(self._sql["states_of_threads"], topic, partition, tenants, threads)

    async def load_keys(self, topic: str, partition: int, keys_max: int) -> PartitionKeys | None:
        try:
            rows = await self._rows.fetch(self._sql["states_keys"], topic, partition, keys_max)
        except NO_VIEWS:
            return PartitionKeys(0, ())
        except AWAY as error:
            raise StatesUnavailableError(f"the stored keys cannot be read: {error!r}") from error
        if len(rows) > keys_max:
            return None
        keys = [ThreadKey(TenantId(tenant), ThreadId(thread)) for _, tenant, thread in rows if thread is not None]
        return PartitionKeys(rows[0][0] if rows else 0, keys)

    async def _load(self, query: str, *arguments: object) -> PartitionStates:
        try:
            rows = await self._rows.fetch(query, *arguments)
        except NO_VIEWS:
            return NOTHING_STORED
        except AWAY as error:
            raise StatesUnavailableError(f"the stored states cannot be read: {error!r}") from error
        return _partition_states(rows)


class TenantStates:
    """Implements `ThreadStates` as the tenant's reader. The threads of one call must belong to one tenant."""

    def __init__(self, pool: TenantPool, timeout_seconds: float) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        [tenant] = {key.tenant for key in keys}
        rows = OfTenant(self._pool, tenant, self._timeout_seconds)
        return await PostgresStates(rows).load_threads(topic, partition, keys)


def _partition_states(rows: Iterable[asyncpg.Record]) -> PartitionStates:
    """Return states and position. Rows of another fold version are unusable: this process would fold them otherwise."""
    next_offset, states = 0, {}
    for fold_version, stored, tenant, thread, state in rows:
        if fold_version != FOLD_VERSION or stored is None:
            return NOTHING_STORED
        next_offset = stored
        if state is not None:
            states[ThreadKey(TenantId(tenant), ThreadId(thread))] = _state(tenant, thread, state)
    return PartitionStates(next_offset, states)


def _state(tenant: str, thread: str, raw: str) -> ThreadState:
    try:
        return load_state(raw.encode())
    except pydantic.ValidationError as error:
        raise StatesUnavailableError(
            f"the stored state of {tenant}/{thread} cannot be read; rebuild the views"
        ) from error
