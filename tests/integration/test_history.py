"""History as the database gives it is what the live side shows."""

from collections.abc import AsyncIterator

import asyncpg
import orjson
import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from services.chassis.postgres import open_pool
from services.chassis.states import StatesUnavailableError
from services.ingest.frames import FoldedRecord, fact_json, folded_record
from services.ingest.history import PostgresHistory
from services.projector.generations import ensure_live, migrate
from services.projector.settings import ProjectorSettings
from tests.support.histories import KEY, History, plain_turn, submitted

PARTITION = 3
OTHER = ThreadKey(TenantId("other"), ThreadId(KEY.thread))
INSERT = """
    insert into views.events (tenant, thread, seq, "partition", "offset", id, type, time, actor, source, cause,
        data_hash, chain, effect, reason, data)
    values ($1, $2, $3, $4, $5, $6, $7, timestamptz 'epoch' + $8 * interval '1 millisecond', $9, 'test', $10,
        '', '', $11, $12, $13)
"""


@pytest.fixture
async def pool(fresh_database: str) -> AsyncIterator[asyncpg.Pool]:
    await migrate(fresh_database)
    found = await pool_of(fresh_database)
    yield found
    await found.close()


async def pool_of(dsn: str) -> asyncpg.Pool:
    return await open_pool(
        dsn,
        application_name="test",
        size_min=0,
        size_max=2,
        command_timeout_seconds=5,
        connect_timeout_seconds=5,
    )


@pytest.fixture
async def stored(pool: asyncpg.Pool, fresh_database: str) -> list[FoldedRecord]:
    """A turn, a duplicate, and a record whose data could not be read."""
    await ensure_live(fresh_database, ProjectorSettings(), "a cluster")
    history = plain_turn(History())
    history.append(submitted("i1"), "user:alice")
    records = [
        folded_record(record, made.value, seq, verdict, PARTITION)
        for seq, (record, made, verdict) in enumerate(
            zip(history.records, history.encoded, history.verdicts, strict=True), 1
        )
    ]
    last = records[-1]
    broken = last._replace(seq=last.seq + 1, offset=last.offset + 1, data=None, cause=last.id, time_ms=1)
    records.append(broken)
    for record in records:
        await insert(pool, KEY, record)
    await insert(pool, OTHER, records[0])
    return records


async def insert(pool: asyncpg.Pool, key: ThreadKey, record: FoldedRecord) -> None:
    seq, event_id, kind, time_ms, actor, cause, effect, reason, partition, offset, data = record
    await pool.execute(
        INSERT, *key, seq, partition, offset, event_id, kind, time_ms, actor, cause, effect, reason, data
    )


def told(records: list[FoldedRecord]) -> list[object]:
    """As a client reads them: the order of keys, and spaces, are Postgres'."""
    return [orjson.loads(fact_json(record)) for record in records]


async def test_pages_are_the_records_between_two_cursors(pool: asyncpg.Pool, stored: list[FoldedRecord]) -> None:
    history = PostgresHistory(pool)
    assert told(await history.page(KEY, 0, 1_000, 1_000)) == told(stored)
    assert [record.seq for record in await history.page(KEY, 2, 6, 1_000)] == [3, 4, 5, 6]
    assert [record.seq for record in await history.page(KEY, 2, 6, 3)] == [3, 4, 5]
    assert await history.page(KEY, 1_000, 2_000, 10) == []


async def test_a_page_says_whether_it_is_the_last(pool: asyncpg.Pool, stored: list[FoldedRecord]) -> None:
    history = PostgresHistory(pool)
    count = len(stored)
    page = await history.page_of(KEY, 0, count, applied_only=False)
    assert (len(page.records), page.next_after, page.is_end) == (count, count, True)
    page = await history.page_of(KEY, 0, count - 1, applied_only=False)
    assert (len(page.records), page.next_after, page.is_end) == (count - 1, count - 1, False)
    applied = [record.seq for record in stored if record.effect == "applied"]
    page = await history.page_of(KEY, 0, 1_000, applied_only=True)
    assert [record.seq for record in page.records] == applied
    assert page.is_end
    assert await history.page_of(KEY, count, 10, applied_only=False) == ([], count, True)


async def test_a_page_ends_where_it_becomes_large(pool: asyncpg.Pool, stored: list[FoldedRecord]) -> None:
    history = PostgresHistory(pool, page_bytes_max=1)
    assert [record.seq for record in await history.page(KEY, 4, 1_000, 100)] == [5]
    page = await history.page_of(KEY, 4, 100, applied_only=False)
    assert ([record.seq for record in page.records], page.next_after, page.is_end) == ([5], 5, False)
    seen = 0
    for _ in stored:
        seen = (await history.page_of(KEY, seen, 100, applied_only=False)).next_after
    assert seen == len(stored)


async def test_a_record_is_found_by_its_position(pool: asyncpg.Pool, stored: list[FoldedRecord]) -> None:
    history = PostgresHistory(pool)
    found = await history.at(KEY, PARTITION, stored[4].offset)
    assert found is not None
    assert told([found]) == told([stored[4]])
    assert await history.at(KEY, PARTITION + 1, stored[4].offset) is None


async def test_without_views_there_is_no_history(pool: asyncpg.Pool) -> None:
    assert await PostgresHistory(pool).page(KEY, 0, 10, 10) == []


async def test_without_a_database_it_says_so() -> None:
    pool = await pool_of("postgresql://threadlog@127.0.0.1:1/threadlog")
    with pytest.raises(StatesUnavailableError):
        await PostgresHistory(pool).page(KEY, 0, 10, 10)
    pool.terminate()
