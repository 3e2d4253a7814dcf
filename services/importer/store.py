"""What an import reads and appends: the state and history of a thread as the views have them, once they have caught up
with the log; and the log itself.

An importer waits for the views before it looks, so that it judges by what is there: after a crash by what its former
self has appended, and after its own records by what they came to.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from schemas.codec import Encoded
from schemas.errors import ThreadlogError
from schemas.events import ThreadImportEnded
from schemas.ids import ThreadKey
from schemas.state import ThreadState
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Log, Outgoing, TopicPartition
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.postgres.tenancy import OfTenant, TenantPool
from services.chassis.threads.states import StatesUnavailableError, ThreadStates
from services.importer.threads.known import Known, Place, RecentRow, RewindRow, TurnRow, known_turns, recent_ids
from services.importer.threads.thread_import import last_turn_of, ordinals_end_of

FAMILY_DEPTH_MAX = 16
"""Generations of children that are searched for a call."""


class ViewsBehindError(ThreadlogError):
    """The views did not reach the end of the log in time. The import is retried later."""

    retriable: ClassVar[bool] = True


class FoundCall(NamedTuple):
    """A call of an imported thread that a child worked for."""

    thread: str
    depth: int
    """How many parents the thread has above it."""
    call: str
    place: Place
    """The record that proposed the call."""


class ImportStore(Protocol):
    """The port through which an import reads threads and appends to them."""

    async def state(self, key: ThreadKey) -> ThreadState:
        """Return the state at the end of the log when it was asked. Raises ViewsBehindError, StatesUnavailableError."""
        ...

    async def known(self, key: ThreadKey) -> Known:
        """Return what the thread already has of a session."""
        ...

    async def call(self, threads: Sequence[ThreadKey], source_id: str | None, mark: str) -> FoundCall | None:
        """Return the call that a session names so, or that has the mark of its child: in one of the threads, or in one
        that works for them. All threads belong to one tenant.
        """
        ...

    async def append(self, key: ThreadKey, records: Sequence[Encoded]) -> None:
        """Append durably, in one batch. Raises LogError."""
        ...


class PostgresImportStore:
    """Implements `ImportStore` with the views and the log. Every read waits until the views have passed the end of the
    log at the time of the call, so an import that continues after a crash sees all that it appended before.
    """

    def __init__(
        self,
        log: Log,
        pool: TenantPool,
        states: ThreadStates,
        *,
        partitions: int,
        wait_seconds: float,
        poll_seconds: float,
        query_seconds: float,
    ) -> None:
        self._log = log
        self._pool = pool
        self._states = states
        self._partitions = partitions
        self._wait_seconds = wait_seconds
        self._poll_seconds = poll_seconds
        self._query_seconds = query_seconds
        self._sql = SqlFiles(Path(__file__).with_name("sql"))

    async def state(self, key: ThreadKey) -> ThreadState:
        topic, partition = THREAD_EVENTS.name, self._partition(key)
        tp = TopicPartition(topic, partition)
        end = (await self._log.end_offsets([tp]))[tp]
        try:
            async with asyncio.timeout(self._wait_seconds) as limit:
                while True:
                    found = await self._states.load_threads(topic, partition, [key])
                    if found.next_offset >= end:
                        return found.states.get(key, ThreadState())
                    await asyncio.sleep(self._poll_seconds)
        except TimeoutError:
            if not limit.expired():
                raise StatesUnavailableError("the stored states did not come in time") from None
            raise ViewsBehindError(
                f"the views are behind the log for longer than {self._wait_seconds:g} s; is the projector running?"
            ) from None

    async def known(self, key: ThreadKey) -> Known:
        state = await self.state(key)
        if not state.exists:
            return Known(state)
        rows = OfTenant(self._pool, key.tenant, self._query_seconds)
        newest = Place(state.seq, state.chain)
        turns = [
            TurnRow(
                row["turn"],
                tuple(row["inputs"]),
                row["started_seq"],
                Place(row["ended_seq"], row["chain"]) if row["ended_seq"] else newest,
                row["source"],
                (row["input_tokens"], row["output_tokens"]),
            )
            for row in await rows.fetch(self._sql["import_turns"], *key)
        ]
        rewinds = [
            RewindRow(row["seq"], row["to_turn"], row["source"])
            for row in await rows.fetch(self._sql["import_rewinds"], *key)
        ]
        kept = known_turns(turns, rewinds)
        since = next((row.started_seq for row in turns if kept and row.turn == kept[-1].turn), 0)
        recent = [
            RecentRow(row["seq"], row["id"], row["type"])
            for row in await rows.fetch(self._sql["import_recent"], *key, since)
        ]
        found = await rows.fetch(self._sql["import_ended"], *key, state.base)
        ended = ThreadImportEnded.model_validate_json(found[0]["data"]) if found else None
        return Known(
            state,
            kept,
            recent_ids(turns, rewinds, recent),
            last_turn_of(ended) if ended is not None else None,
            ordinals_end_of(ended) if ended is not None else 0,
        )

    async def call(self, threads: Sequence[ThreadKey], source_id: str | None, mark: str) -> FoundCall | None:
        tenant = threads[0].tenant
        rows = OfTenant(self._pool, tenant, self._query_seconds)
        names = [key.thread for key in threads]
        found = await rows.fetch(self._sql["import_call"], tenant, names, source_id, mark, FAMILY_DEPTH_MAX)
        if not found:
            return None
        row = found[0]
        return FoundCall(row["thread"], row["depth"], row["call"], Place(row["seq"], row["chain"]))

    async def append(self, key: ThreadKey, records: Sequence[Encoded]) -> None:
        raw_key = key.to_bytes()
        outgoing = [Outgoing(raw_key, record.value, record.headers) for record in records]
        await self._log.appender.append(THREAD_EVENTS.name, self._partition(key), outgoing)

    def _partition(self, key: ThreadKey) -> int:
        return self._log.partition_for(key.to_bytes(), self._partitions)
