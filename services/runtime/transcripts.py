"""Cold transcripts: from the `items` view where it is there, else out of the partition."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import asyncpg
import orjson

from schemas.ids import ThreadKey
from schemas.state import NOTHING
from schemas.thread import fold
from schemas.transcript import Change, Item, Transcript, transcript_changes
from services.chassis.log import Log, TopicPartition
from services.chassis.postgres import AWAY
from services.chassis.scan import scan
from services.chassis.sql_files import SqlFiles


class ColdTranscript(NamedTuple):
    seq: int
    """Of the last record that is in it."""
    transcript: Transcript

    def apply(self, buffered: Iterable[tuple[int, tuple[Change, ...]]]) -> None:
        """What has come meanwhile, with its seq."""
        for seq, changes in buffered:
            if seq > self.seq:
                self.transcript.apply(changes)


class TranscriptStore(Protocol):
    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        """In one snapshot. None where there is no row of the thread, its items are not kept up, or there is no
        database.
        """


class PostgresTranscripts:
    def __init__(self, pool: asyncpg.Pool, sql: SqlFiles) -> None:
        self._pool = pool
        self._sql = sql

    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        try:
            rows = await self._pool.fetch(self._sql["select_transcript"], key.tenant, key.thread)
        except AWAY:
            return None
        if not rows:
            return None
        items = [_item(row) for row in rows if row["part"] is not None]
        return ColdTranscript(rows[0]["thread_seq"], loaded_transcript(items))


def loaded_transcript(items: list[Item]) -> Transcript:
    """Of the items that the model still sees, or will see."""
    summary = max((item.seq for item in items if item.kind == "summary"), default=0)
    return Transcript(items, summary_seq=summary, loaded_with=summary)


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
    """The transcript as of the offset `until`, which is left out."""
    state, transcript = NOTHING, Transcript()
    async for record in scan(log, tp, [key], until):
        before = state
        state, verdict = fold(before, record)
        transcript.apply(transcript_changes(before, state, record, verdict))
    return ColdTranscript(state.seq, transcript)
