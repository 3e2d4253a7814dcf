"""What the projector writes into a real database: rows, the fence, records that cannot be stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any

import asyncpg
import orjson
import pytest

from services.chassis.log.port import Incoming
from services.projector.columns import MERGED, THREAD_STATES, THREADS
from services.projector.generations.change_statements import CHANGE
from services.projector.generations.database import connect
from services.projector.generations.errors import FenceError, StoreAwayError
from services.projector.generations.generations import (
    FOLDER,
    TABLES,
    ensure_live,
    migrate,
    view_checksums,
)
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Span
from services.projector.projections.batch import Batch
from tests.support.recorded.histories import (
    USER,
    History,
    plain_turn,
    proposed,
    step_finished,
    submitted,
    turn_ended,
)
from tests.support.recorded.walks import as_read
from tests.support.stored.applying import DeadLetters, applier_of
from tests.support.stored.view_tables import Projected
from tests.support.worlds.projector import another_generation, apply_all, key_of, random_records, settings_of, stored


@pytest.fixture
async def database(fresh_database: str) -> str:
    await migrate(fresh_database)
    return fresh_database


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    made = await asyncpg.connect(database)
    yield made
    await made.close()


# Rows


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_same_rows_whatever_the_batching_and_as_in_memory(database: str, seed: int, connection: Any) -> None:
    records = random_records(seed)
    settings = settings_of(database)
    sums = []
    for size, states_max in ((len(records), 1_000), (7, 1_000), (50, 2), (1, 0)):
        generation = await another_generation(database, settings)
        await apply_all(generation, settings_of(database, projector_states_max=states_max), records, size)
        sums.append(await view_checksums(connection, generation.schema))
    assert sums[0]["events"][0] > 200 and sums[0]["items"][0] > 20 and sums[0]["dead_letters"][0] > 0
    assert sums == [sums[0]] * len(sums)

    memory = Projected(partition_of=lambda _: 3).project(records)
    real = await stored(database, settings, generation)
    for table, rows in memory.everything().items():
        expected = [{name: value for name, value in row.items() if value is not None} for row in rows]
        assert sorted(map(repr, map(_sorted, real[table]))) == sorted(map(repr, map(_sorted, expected))), table


def _sorted(row: dict[str, Any]) -> Any:
    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return [(name, ordered(inner)) for name, inner in sorted(value.items())]
        if isinstance(value, list):
            return [ordered(inner) for inner in value]
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    return ordered(row)


async def test_every_statement_is_one_that_the_database_knows(database: str) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    connection = await connect(database, settings, generation.schema)
    try:
        for path in sorted(FOLDER.glob("*/sql/*.sql")):
            if path.stem not in {"generation", "policies", "grants_of_views"}:
                await connection.prepare(path.read_text())
        for table in (THREAD_STATES, THREADS, *MERGED.values()):
            statement = await connection.prepare(CHANGE[table.name])
            assert len(statement.get_parameters()) == len(table.changed_columns)
    finally:
        await connection.close()


async def test_results_and_open_questions_are_views(database: str, connection: Any) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    answered, unknown = plain_turn(History(key_of(1)), 2), History(key_of(2)).with_unknown_call()
    records = [*as_read(answered, 3), *as_read(unknown, 3)]
    records = [record._replace(offset=offset) for offset, record in enumerate(records)]
    await apply_all(generation, settings, records, 100)
    results = await connection.fetch(
        "select call, result #>> '{}' as result from views.tool_calls order by thread, call"
    )
    assert [tuple(row) for row in results] == [("1.1.0", "x" * 800), ("1.1.1", "x" * 800), ("1.1.0", None)]
    assert await connection.fetchval("select call from views.unknown_calls") == "1.1.0"
    assert await connection.fetchval("select count(*) from views.approvals") == 0


# The fence


async def test_a_zombie_writes_nothing(database: str, connection: Any) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    records = as_read(plain_turn(History(key_of(1))), 3)
    async with applier_of(generation, settings, owner="zombie") as zombie:
        await zombie.submit(records[:4])
        await zombie.settle()
        async with applier_of(generation, settings, owner="heir") as heir:
            await heir.submit(records[4:8])
            await heir.settle()
            await zombie.submit(records[4:10])
            with pytest.raises(FenceError) as raised:
                await zombie.settle()
            assert raised.value.taken_over == {3}
            await heir.submit(records[8:])
            await heir.settle()
    assert await connection.fetchval("select count(*) from views.events") == len(records)
    assert await connection.fetchval('select next_offset from views.positions where "partition" = 3') == (
        records[-1].offset + 1
    )


async def test_a_database_that_went_back_is_noticed(database: str, connection: Any) -> None:
    """As after its crash: commits are lost that the projector believes in."""
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    records = as_read(plain_turn(History(key_of(1))), 3)
    async with applier_of(generation, settings) as applier:
        await applier.submit(records[:4])
        await applier.settle()
        await connection.execute(
            f"update {generation.schema}.positions set next_offset = 0; "
            + "; ".join(f"truncate {generation.schema}.{name}" for name in TABLES if name != "positions")
        )
        await applier.submit(records[4:])
        with pytest.raises(FenceError) as raised:
            await applier.settle()
        assert raised.value.taken_over == set() and raised.value.stored[3].next_offset == 0


class Frozen(PostgresStore):
    """Stands still in the midst of a transaction, until it is told to go on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stands, self.goes_on = asyncio.Event(), asyncio.Event()

    async def _write_rows(self, connection: Any, rows: Any) -> None:
        self.stands.set()
        await self.goes_on.wait()
        await super()._write_rows(connection, rows)


async def test_a_projector_that_stands_still_in_its_transaction_does_not_keep_the_partition(
    database: str, connection: Any
) -> None:
    settings = settings_of(database, transaction_idle_seconds=0.3)
    generation = await ensure_live(database, settings, "cluster")
    records = as_read(plain_turn(History(key_of(1))), 3)
    frozen = Frozen(database, settings, generation)
    async with applier_of(generation, settings, owner="zombie", store=frozen) as zombie:
        await zombie.submit(records[:4])
        await frozen.stands.wait()
        async with asyncio.timeout(5), applier_of(generation, settings, owner="heir") as heir:
            await heir.submit(records)
            await heir.settle()
        frozen.goes_on.set()
        with pytest.raises(FenceError) as raised:
            await zombie.settle()
        assert raised.value.taken_over == {3}
    assert await connection.fetchval("select count(*) from views.events") == len(records)


class Flaky(PostgresStore):
    """The answer of a commit gets lost, or the database was away before it."""

    def __init__(self, *arguments: Any, before: int = 0, after: int = 0) -> None:
        super().__init__(*arguments)
        self.before, self.after = before, after

    async def write(self, batch: Batch, spans: Sequence[Span]) -> None:
        if self.before > 0:
            self.before -= 1
            raise StoreAwayError("away")
        await super().write(batch, spans)
        if self.after > 0:
            self.after -= 1
            raise StoreAwayError("the answer was lost")

    async def load(self, keys: Any) -> Any:
        if self.before > 0:
            self.before -= 1
            raise StoreAwayError("away")
        return await super().load(keys)


@pytest.mark.parametrize("fault", [{"before": 5}, {"after": 3}])
async def test_a_batch_is_written_once_whatever_the_connection_does(
    database: str, connection: Any, fault: dict[str, int]
) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    records = random_records(4, threads=3)
    store = Flaky(database, settings, generation, **fault)
    await apply_all(generation, settings, records, 40, store=store)
    sums = await view_checksums(connection, generation.schema)
    plain = await another_generation(database, settings)
    await apply_all(plain, settings, records, 1_000)
    expected = await view_checksums(connection, plain.schema)
    assert sums == expected


async def test_broken_connections_are_made_anew(database: str, connection: Any) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    records = as_read(plain_turn(History(key_of(1))), 3)
    async with applier_of(generation, settings) as applier:
        for start in range(0, len(records), 4):
            await applier.submit(records[start : start + 4])
            await applier.settle()
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
    assert await connection.fetchval("select count(*) from views.events") == len(records)


# Records that cannot be read or stored


def refused_records() -> list[Incoming]:
    """One thread proposes a call whose argument is a number that no JSON of Postgres can hold; another goes on."""
    bad, good = History(key_of(1)).in_step(), plain_turn(History(key_of(2)))
    made = bad.make(step_finished(bad.state, calls=[proposed(0, args={"number": 8.5e307})]))
    bad.add(made)
    records = [*as_read(bad, 3), *as_read(good, 3)]
    value = (made.value or b"").replace(b"8.5e+307", b"8.5e+900")
    headers = dict(made.headers) | {"ce_datahash": sha256(value).hexdigest().encode()}
    at = len(bad.records) - 1
    records[at] = records[at]._replace(value=value, headers=tuple(headers.items()))
    for event in (turn_ended(bad.state, "failed"), submitted("i2")):
        later = bad.make(event, USER)
        bad.add(later)
        records.append(as_read(bad, 3)[-1])
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


@pytest.mark.parametrize("size", [100, 7, 1])
async def test_a_record_that_the_database_refuses_is_set_aside(database: str, connection: Any, size: int) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    records, letters = refused_records(), DeadLetters()
    await apply_all(generation, settings, records, size, publish=letters)
    state = await connection.fetchrow("select * from views.thread_states where thread = 't-1'")
    assert "the database refuses a row of it" in state["quarantined"] and state["quarantined"].startswith("seq 5: ")
    shown = await connection.fetch("select seq, effect, data from views.events where thread = 't-1' order by seq")
    assert [row["seq"] for row in shown] == list(range(1, orjson.loads(state["state"])["seq"] + 1))
    assert [row["data"] is None for row in shown] == [False] * 4 + [True] * (len(shown) - 4)
    assert await connection.fetchval("select count(*) from views.tool_calls where thread = 't-1'") == 0
    assert await connection.fetchval("select status from views.turns where thread = 't-2'") == "ended"
    (letter,) = await connection.fetch("select * from views.dead_letters")
    assert (letter["thread"], letter["seq"]) == ("t-1", 5)
    assert {dead.incoming.offset for dead in letters.published} == {letter["offset"]}
    assert await connection.fetchval('select next_offset from views.positions where "partition" = 3') == len(records)


async def test_what_cannot_be_decoded_is_published_before_it_is_committed(database: str, connection: Any) -> None:
    settings = settings_of(database)
    generation = await ensure_live(database, settings, "cluster")
    good = as_read(History(key_of(1)).idle(), 3)[0]._replace(offset=0)
    bad = good._replace(key=b"nobody", offset=1)
    seen: list[int] = []

    async def publish(dead: Any) -> None:
        seen.append(await connection.fetchval("select count(*) from views.dead_letters"))

    await apply_all(generation, settings, [good, bad], 10, publish=publish)
    assert seen == [0]
    row = await connection.fetchrow("select * from views.dead_letters")
    assert (row["offset"], row["key"], row["tenant"], row["value"]) == (1, b"nobody", None, good.value)
    assert ["ce_id", dict(good.headers)["ce_id"].decode()] in orjson.loads(row["headers"])
