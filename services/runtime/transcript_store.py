"""Transcripts of threads that are not in memory: from the `items` view, or out of the thread's partition.

The view gives only what the model still sees, in one query, so a long history costs nothing. The partition gives the
same by folding every record of the thread. It is slower and needs no database.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import asyncpg
import orjson

from schemas.events import Lineage
from schemas.ids import ThreadKey
from schemas.state import NOTHING
from schemas.thread import fold
from schemas.transcript import Change, Item, Transcript, transcript_changes
from services.chassis.log.port import Log, TopicPartition
from services.chassis.log.scan import scan
from services.chassis.postgres.connections import AWAY
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.threads.contexts import ContextRows, PostgresContexts


class ColdTranscript(NamedTuple):
    """A transcript as it was read, before it is brought up to date."""

    seq: int
    """Seq of the last record that the transcript contains."""
    transcript: Transcript

    def apply(self, buffered: Iterable[tuple[int, tuple[Change, ...]]]) -> None:
        """Apply changes that arrived since then, each with the seq of its record; older ones are in it already."""
        for seq, changes in buffered:
            if seq > self.seq:
                self.transcript.apply(changes)


class TranscriptStore(ContextRows, Protocol):
    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        """Return the thread's own items in one snapshot, without those that a fork inherits.

        None if the thread has no row, the database refused one of its records, or there is no database.
        """


class PostgresTranscripts(PostgresContexts):
    """Reads the views as the runtime's own role, which sees the threads of all tenants."""

    def __init__(self, pool: asyncpg.Pool, sql: SqlFiles) -> None:
        async def fetch(_: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
            return await pool.fetch(statement, *arguments)

        super().__init__(fetch)
        self._pool = pool
        self._own_sql = sql

    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        try:
            rows = await self._pool.fetch(self._own_sql["select_transcript"], key.tenant, key.thread)
        except AWAY:
            return None
        if not rows:
            return None
        items = [_item(row) for row in rows if row["part"] is not None]
        return ColdTranscript(rows[0]["thread_seq"], loaded_transcript(items, _lineage(rows[0]["lineage"])))


def loaded_transcript(items: list[Item], lineage: Lineage | None) -> Transcript:
    """Return a transcript of the items that the model still sees, or will see.

    `loaded_with` remembers the summary that replaces what was not loaded: if a rewind removes that summary, the
    transcript lacks items and has to be loaded again.
    """
    summary = max((item.seq for item in items if item.kind == "summary"), default=0)
    forked = lineage if lineage is not None and lineage.kind == "fork" else None
    return Transcript(items, summary_seq=summary, forked=forked, loaded_with=summary)


def _lineage(raw: str | None) -> Lineage | None:
    return None if raw is None or raw == "null" else Lineage.model_validate_json(raw)


def _item(row: asyncpg.Record) -> Item:
    content = row["content"]
    return Item(
        row["seq"],
        row["part"],
        row["kind"],
        row["turn"],
        row["step"],
        row["place"],
        orjson.loads(content) if isinstance(content, bytes | str) else {},
        row["digest"],
        row["input"],
        row["call"],
    )


async def scan_transcript(log: Log, tp: TopicPartition, key: ThreadKey, until: int) -> ColdTranscript:
    """Return the transcript as of the offset `until`, exclusive. Raises LogError."""
    state, transcript = NOTHING, Transcript()
    async for record in scan(log, tp, [key], until):
        before = state
        state, verdict = fold(before, record)
        transcript.apply(transcript_changes(before, state, record, verdict))
    return ColdTranscript(state.seq, transcript)
