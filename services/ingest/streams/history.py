"""What watches and readers see of a thread's past: the `events` view, passed through."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import asyncpg

from schemas.ids import ThreadKey
from services.chassis.postgres.connections import AWAY, NO_VIEWS
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.threads.states import StatesUnavailableError
from services.ingest.streams.frames import FoldedRecord

SEQ_MAX: Final = 2**53 - 1
"""The largest number that every JSON reader can hold exactly."""
PAGE_BYTES_MAX: Final = 4 * 1_048_576
"""Bytes of a page's data, as Postgres stores them. A page ends with the record that exceeds the limit."""


class EventPage(NamedTuple):
    """A page contains some of a thread's events, in order."""

    records: list[FoldedRecord]
    next_after: int
    """Cursor of the next page."""
    is_end: bool
    """Whether the view held nothing later."""


class History(Protocol):
    """The past of threads. All methods raise StatesUnavailableError while the database is away."""

    async def page(self, key: ThreadKey, after: int, through: int, limit: int) -> list[FoldedRecord]:
        """Return the records with after < seq <= through, in order; fewer than `limit` if they are large."""
        ...

    async def page_of(self, key: ThreadKey, after: int, limit: int, *, applied_only: bool) -> EventPage:
        """Return the page after a cursor, with or without records that took no effect."""
        ...

    async def at(self, key: ThreadKey, partition: int, offset: int) -> FoldedRecord | None:
        """Return the thread's record at a position of the log; None if the view does not hold it."""
        ...


class PostgresHistory:
    """Implements `History`."""

    def __init__(self, pool: TenantPool, timeout_seconds: float, page_bytes_max: int = PAGE_BYTES_MAX) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self._bytes_max = page_bytes_max
        sql = Path(__file__).with_name("sql")
        self._page = (sql / "events_page.sql").read_text()
        self._at = (sql / "event_at.sql").read_text()

    async def page(self, key: ThreadKey, after: int, through: int, limit: int) -> list[FoldedRecord]:
        rows = await self._fetch(key, self._page, after, through, False, limit, self._bytes_max)
        return [_record(row) for row in rows]

    async def page_of(self, key: ThreadKey, after: int, limit: int, *, applied_only: bool) -> EventPage:
        rows = await self._fetch(key, self._page, after, SEQ_MAX, applied_only, limit + 1, self._bytes_max)
        records = [_record(row) for row in rows[:limit]]
        is_end = not rows or len(records) == rows[0]["found"]
        return EventPage(records, records[-1].seq if records else after, is_end)

    async def at(self, key: ThreadKey, partition: int, offset: int) -> FoldedRecord | None:
        rows = await self._fetch(key, self._at, partition, offset)
        return _record(rows[0]) if rows else None

    async def _fetch(self, key: ThreadKey, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """Return the rows; none before the first projector has made the views."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch(key.tenant, query, *key, *arguments)
        except NO_VIEWS:
            return []
        except AWAY as error:
            raise StatesUnavailableError(f"the events cannot be read: {error!r}") from error


def _record(row: asyncpg.Record) -> FoldedRecord:
    seq, event_id, kind, time_ms, actor, cause, effect, reason, partition, offset, data = tuple(row)[:11]
    value = None if data is None else data.encode()
    return FoldedRecord(seq, event_id, kind, time_ms, actor, cause, effect, reason, partition, offset, value)
