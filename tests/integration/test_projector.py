"""The projector on a real database, with the simulated log."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import orjson
import pytest
from prometheus_client import CollectorRegistry

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS, THREAD_EVENTS_DLQ, TOPICS
from services.chassis.clock import SystemClock
from services.chassis.kafka import KafkaLog
from services.chassis.kafka_topics import kafka_topics
from services.chassis.log import Incoming, Outgoing, TopicPartition
from services.chassis.topic_admin import apply, topic_specs
from services.cli.embedded import Running
from services.projector import rebuild as rebuild_module
from services.projector.database import connect
from services.projector.errors import FenceError, OtherLogError, StoreAwayError
from services.projector.generations import (
    FOLDER,
    TABLES,
    NotMigratedError,
    OtherVersionError,
    create_generation,
    drop_views,
    ensure_live,
    migrate,
    view_checksums,
)
from services.projector.loop import GROUP, Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.projections.batch import Batch
from services.projector.rebuild import Progress, RebuildError, rebuild
from services.projector.settings import ProjectorSettings
from services.projector.store import Generation, GenerationStore, Span
from tests.support.applying import DeadLetters, applier_of
from tests.support.histories import (
    USER,
    History,
    plain_turn,
    proposed,
    step_finished,
    submitted,
    turn_ended,
)
from tests.support.simulated_log import SimulatedBroker
from tests.support.view_tables import Projected, Tables
from tests.support.walks import GO_ON, as_read, walk

TOPIC = THREAD_EVENTS.name
PARTITIONS = 4
VISIBLE_SECONDS = 20.0


def settings_of(dsn: str, **changed: Any) -> ProjectorSettings:
    quick = {
        "projector_retry_seconds": 0.02,
        "projector_retry_seconds_max": 0.1,
        "projector_reclaim_seconds": 0.5,
        "projector_pause_after_seconds": 0.3,
        "projector_look_seconds": 0.3,
        "postgres_command_timeout_seconds": 10,
    }
    return ProjectorSettings(postgres_dsn=dsn, **(quick | changed))


@pytest.fixture
async def database(fresh_database: str) -> str:
    await migrate(fresh_database)
    return fresh_database


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    made = await asyncpg.connect(database)
    yield made
    await made.close()


def key_of(number: int) -> ThreadKey:
    return ThreadKey(TenantId(f"tenant-{number % 3}"), ThreadId(f"t-{number}"))


def random_records(seed: int, threads: int = 12, moves: int = 60) -> list[Incoming]:
    """Of one partition: threads in which anything happens, mixed, and records that nobody can read in between."""
    rng = random.Random(seed)
    queues: list[list[Incoming]] = []
    for number in range(threads):
        choices = [(rng.randrange(2 * GO_ON), rng.randrange(48), rng.randrange(4)) for _ in range(moves)]
        history = walk(choices, key_of(number))
        queues.append(as_read(history, 3))
    records: list[Incoming] = []
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        records.append(queue.pop(0))
        if rng.random() < 0.02:
            records.append(rng.choice([_without_key, _broken, _foreign])(records[-1]))
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


def _without_key(record: Incoming) -> Incoming:
    return record._replace(key=b"\xff\x00")


def _broken(record: Incoming) -> Incoming:
    return record._replace(value=(record.value or b"")[:-1])


def _foreign(record: Incoming) -> Incoming:
    headers = dict(record.headers) | {"ce_type": b"com.example.thing", "ce_actor": b"service:other"}
    return record._replace(headers=tuple(headers.items()), value=record.value)


async def apply_all(
    generation: Generation, settings: ProjectorSettings, records: Sequence[Incoming], size: int, **options: Any
) -> None:
    async with applier_of(generation, settings, **options) as applier:
        for start in range(0, len(records), size):
            await applier.submit(records[start : start + size])
        await applier.settle()


async def another_generation(dsn: str, settings: ProjectorSettings) -> Generation:
    connection = await connect(dsn, settings)
    try:
        async with connection.transaction():
            return await create_generation(connection, "cluster")
    finally:
        await connection.close()


async def stored(dsn: str, settings: ProjectorSettings, generation: Generation) -> Tables:
    """What the database has, as the tables in memory hold it."""
    tables = Tables()
    connection = await connect(dsn, settings, generation.schema)
    try:
        for table in TABLES:
            if table != "positions":
                rows = await connection.fetch(f"select * from {table}")
                tables.rows[table] = {number: _plain(row) for number, row in enumerate(rows)}
    finally:
        await connection.close()
    return tables


def _plain(row: Any) -> dict[str, Any]:
    plain = {}
    for name, value in row.items():
        if value is None:
            continue
        is_json = isinstance(value, bytes) and name not in {"key", "value", "state"}
        plain[name] = orjson.loads(value) if is_json else value
        if type(value).__name__ == "UUID":
            plain[name] = str(value)
    return plain


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

    memory = Projected(partition_of=lambda _: 3).project(records).tables
    real = await stored(database, settings, generation)
    for table, rows in memory.rows.items():
        expected = [{name: value for name, value in row.items() if value is not None} for row in rows.values()]
        found = list(real.rows[table].values())
        assert sorted(map(repr, map(_sorted, found))) == sorted(map(repr, map(_sorted, expected))), table


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
        for path in sorted((FOLDER / "sql").glob("*.sql")):
            if path.stem != "generation":
                await connection.prepare(path.read_text())
    finally:
        await connection.close()


async def test_every_column_is_described(database: str, connection: Any) -> None:
    generation = await ensure_live(database, settings_of(database), "cluster")
    tables = await connection.fetch(
        "select c.relname from pg_class c where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'v') "
        "and c.relname <> 'tool_calls_with_results' and obj_description(c.oid) is null",
        generation.schema,
    )
    assert [row[0] for row in tables] == []


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


class Flaky(GenerationStore):
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
    sums = await view_checksums(connection, "views")
    plain = await another_generation(database, settings)
    await apply_all(plain, settings, records, 1_000)
    expected = await view_checksums(connection, plain.schema)
    del sums["tool_calls"], expected["tool_calls"]  # the public one has a column more
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


# The loop


class World:
    """A broker and a database, and projectors on them."""

    def __init__(self, dsn: str, connection: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.connection = connection
        self.broker = SimulatedBroker({TOPIC: PARTITIONS, THREAD_EVENTS_DLQ.name: PARTITIONS}, SystemClock())
        self.client = self.broker.connect("client")
        self.appended = 0

    async def append(self, key: ThreadKey, *records: Outgoing) -> int:
        partition = self.client.partition_for(key.to_bytes(), PARTITIONS)
        await self.client.appender.append(TOPIC, partition, records)
        self.appended += len(records)
        return partition

    async def append_history(self, history: History) -> None:
        key = history.key.to_bytes()
        await self.append(
            history.key, *[Outgoing(key, made.value, made.headers, made.record.time_ms) for made in history.encoded]
        )

    @asynccontextmanager
    async def projector(self, instance: str = "0", **changed: Any) -> AsyncIterator[Projector]:
        settings = settings_of(self.dsn, instance=instance, **changed)
        log = self.broker.connect(f"projector-{instance}")
        metrics = ProjectorMetrics.register(CollectorRegistry())
        projector = await Projector.start(log, self.dsn, settings, SystemClock(), metrics, f"run-{instance}")
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(projector.run(stopping))
            try:
                yield projector
            finally:
                stopping.set()
                with_timeout = asyncio.wait([running], timeout=10)
                await with_timeout
                running.cancel()

    async def shown(self) -> int:
        try:
            return int(await self.connection.fetchval("select coalesce(sum(next_offset), 0) from views.positions"))
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            return 0

    async def all_shown(self) -> None:
        await until(self.shown, lambda shown: shown == self.appended)

    async def rebuilt_sums(self) -> dict[str, Any]:
        """What a fresh build from the log comes to."""
        settings = settings_of(self.dsn)
        generation = await another_generation(self.dsn, settings)
        records = [r for partition in range(PARTITIONS) for r in self.broker.records(TOPIC, partition)]
        log = self.client

        def home(key: ThreadKey) -> int:
            return log.partition_for(key.to_bytes(), PARTITIONS)

        await apply_all(generation, settings, records, 10_000, partition_of=home, partitions=range(PARTITIONS))
        return comparable(await view_checksums(self.connection, generation.schema))

    async def sums(self) -> dict[str, Any]:
        return comparable(await view_checksums(self.connection, "views"))


def comparable(sums: dict[str, Any]) -> dict[str, Any]:
    """Without positions, whose cluster the tests make up, and the calls, whose public view has a column more."""
    return {name: value for name, value in sums.items() if name not in {"positions", "tool_calls"}}


async def until(look: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = VISIBLE_SECONDS) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds(found := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"it did not come to hold in time; last seen: {found}"
        await asyncio.sleep(0.02)


@pytest.fixture
async def world(database: str, connection: asyncpg.Connection) -> World:
    return World(database, connection)


async def test_what_is_appended_is_shown_soon(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(0))))
        await world.all_shown()
        loop = asyncio.get_running_loop()
        delays = []
        for number in range(1, 6):
            await asyncio.sleep(0.1)
            begin = loop.time()
            await world.append_history(History(key_of(number)).idle())
            await world.all_shown()
            delays.append(loop.time() - begin)
        assert min(delays) < 0.1, delays
    committed = world.broker.committed(GROUP)
    assert sum(committed.values()) <= world.appended


async def test_projectors_share_partitions_and_take_over_from_the_dead(world: World) -> None:
    rng = random.Random(7)
    histories = [plain_turn(History(key_of(number))) for number in range(20)]
    async with world.projector("1"):
        for history in histories[:7]:
            await world.append_history(history)
        async with world.projector("2"):
            for history in histories[7:14]:
                await world.append_history(history)
                await asyncio.sleep(rng.random() / 20)
            await until(
                lambda: world.connection.fetch("select distinct owner from views.positions"),
                lambda rows: len(rows) == 2,
            )
        for history in histories[14:]:
            await world.append_history(history)
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_unreadable_records_reach_their_topic(world: World) -> None:
    async with world.projector():
        partition = await world.append(key_of(1), Outgoing(b"nobody", b"x", (("a", b"b"),), 5))
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    (letter,) = world.broker.records(THREAD_EVENTS_DLQ.name, partition)
    assert (letter.key, letter.value) == (b"nobody", b"x")
    assert dict(letter.headers)["threadlog_offset"] == b"0"
    assert await world.connection.fetchval("select count(*) from views.dead_letters") == 1


async def test_a_database_that_is_away_is_waited_for(world: World, postgres_dsn: str) -> None:
    name = urlsplit(world.dsn).path[1:]
    admin = await asyncpg.connect(postgres_dsn)
    try:
        async with world.projector():
            await world.append_history(plain_turn(History(key_of(1))))
            await world.all_shown()
            await admin.execute(f'alter database "{name}" allow_connections false')
            await world.connection.close()
            await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
            for number in range(2, 6):
                await world.append_history(plain_turn(History(key_of(number))))
                await asyncio.sleep(0.2)
            await admin.execute(f'alter database "{name}" allow_connections true')
            world.connection = await asyncpg.connect(world.dsn)
            await world.all_shown()
        assert await world.sums() == await world.rebuilt_sums()
    finally:
        await admin.execute(f'alter database "{name}" allow_connections true')
        await admin.close()
        await world.connection.close()


async def test_a_database_that_went_back_is_filled_again(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
        async with world.connection.transaction():
            await world.connection.execute(
                "update views_g1.positions set next_offset = 0; "
                + "; ".join(f"truncate views_g1.{name}" for name in TABLES if name != "positions")
            )
        await world.append_history(plain_turn(History(key_of(2))))
        await world.append_history(History(key_of(1)))
        await world.append(key_of(1), Outgoing(b"nobody", b"x", (), 5))
        await until(world.shown, lambda shown: shown >= world.appended - 12)
        for number in range(3, 9):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_views_that_were_dropped_come_back_the_same(world: World) -> None:
    async with world.projector():
        for number in range(6):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
        before = await view_checksums(world.connection, "views")
        assert await drop_views(world.dsn, settings_of(world.dsn)) == 1
        assert await world.shown() == 0
        await world.append_history(plain_turn(History(key_of(6))))
        await world.all_shown()
        assert await world.sums() == await world.rebuilt_sums()
        await drop_views(world.dsn, settings_of(world.dsn))
    async with world.projector():
        await world.all_shown()
        after = await view_checksums(world.connection, "views")
    assert before.keys() == after.keys() and before["events"][0] + 16 == after["events"][0]


async def test_dropped_views_come_back_without_a_new_record(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
        before = await view_checksums(world.connection, "views")
        await drop_views(world.dsn, settings_of(world.dsn))
        await world.all_shown()
        assert await view_checksums(world.connection, "views") == before
        await rebuild(world.broker.connect("rebuild"), world.dsn, settings_of(world.dsn), lambda _: None)
        await until(
            lambda: world.connection.fetchval("select count(*) from views.positions where owner = 'rebuild'"),
            lambda left: left == 0,
        )


async def test_a_projector_claims_again_what_an_outsider_took(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
        await world.connection.execute("update views_g1.positions set owner_epoch = owner_epoch + 1, owner = 'x'")
        await world.append_history(plain_turn(History(key_of(2))))
        await world.all_shown()
    assert await world.connection.fetchval("select count(*) from views.positions where owner = 'x'") == 0


# What a person has to decide


async def test_a_database_without_tables_is_refused(fresh_database: str) -> None:
    with pytest.raises(NotMigratedError, match="threadlog migrate"):
        await ensure_live(fresh_database, settings_of(fresh_database), "cluster")


async def test_views_of_another_cluster_are_refused(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), "another")
    with pytest.raises(OtherLogError, match="another"):
        async with world.projector():
            pass


async def test_views_that_are_beyond_the_end_of_the_log_are_refused(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    await world.connection.execute("update views_g1.positions set next_offset = 1000")
    with pytest.raises(ExceptionGroup) as raised:
        async with world.projector():
            await asyncio.sleep(2)
    assert "offset 1000" in str(raised.value.exceptions[0]) and isinstance(raised.value.exceptions[0], OtherLogError)


async def test_views_of_another_version_are_refused(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), await world.client.cluster_id())
    await world.connection.execute("update threadlog.generations set projection_version = 99")
    with pytest.raises(OtherVersionError, match="threadlog rebuild"):
        async with world.projector():
            pass


# Rebuild


async def test_a_rebuild_takes_over_under_load_and_readers_never_notice(world: World) -> None:
    progress: list[Progress] = []
    seen: list[int] = []
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            await world.append_history(plain_turn(History(key_of(number))))
            number += 1
            await asyncio.sleep(0.01)

    async def read() -> None:
        reader = await asyncpg.connect(world.dsn)
        while not done.is_set():
            row = await reader.fetchrow(
                "select (select sum(next_offset) from views.positions) as at, (select count(*) from views.events) as seen"
            )
            assert row["at"] == row["seen"]
            seen.append(row["at"])
        await reader.close()

    async with world.projector():
        await world.append(key_of(1), Outgoing(b"nobody", b"x", (("a", b"b"),), 5))
        await world.append_history(plain_turn(History(key_of(500))))
        await world.all_shown()
        await world.connection.execute("delete from views_g1.dead_letters")  # else it counts as an event below
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            await asyncio.sleep(0.3)
            log = world.broker.connect("rebuild")
            new = await rebuild(log, world.dsn, settings_of(world.dsn), progress.append)
            await asyncio.sleep(0.5)
            done.set()
        await world.all_shown()
        assert new.number == 2
        assert await world.connection.fetchval("select number from views.generation") == 2
        assert await world.connection.fetchval("select to_regnamespace('views_g1')") is None
        assert await world.sums() == await world.rebuilt_sums()
    assert progress[-1].phase == "done" and progress[-1].records_done <= progress[-1].records_total
    assert {step.phase for step in progress} == {"reading", "swapping", "done"}


async def test_reads_through_a_swap_neither_fail_nor_go_back(world: World) -> None:
    async with world.projector():
        for number in range(30):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
        done = asyncio.Event()
        seen: list[tuple[int, int]] = []

        async def read() -> None:
            reader = await asyncpg.connect(world.dsn)
            while not done.is_set():
                seen.append(
                    tuple(
                        await reader.fetchrow(
                            "select (select sum(next_offset) from views.positions), (select count(*) from views.events)"
                        )
                    )
                )
            await reader.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            tasks.create_task(read())
            for _ in range(3):
                await rebuild(world.broker.connect("rebuild"), world.dsn, settings_of(world.dsn), lambda _: None)
            done.set()
    assert len(seen) > 20
    assert set(seen) == {(world.appended, world.appended)}


async def test_one_rebuild_at_a_time_and_the_old_one_can_stay(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    holder = await asyncpg.connect(world.dsn)
    await holder.execute("select pg_advisory_lock($1)", rebuild_module.ADVISORY_LOCK)
    with pytest.raises(RebuildError, match="another rebuild"):
        await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)
    await holder.close()
    await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None, keep_old=True)
    statuses = await world.connection.fetch("select number, status from threadlog.generations order by number")
    assert [tuple(row) for row in statuses] == [(1, "old"), (2, "live")]
    assert await view_checksums(world.connection, "views_g1") == await view_checksums(world.connection, "views_g2")


async def test_a_rebuild_that_cannot_finish_leaves_the_live_views(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    reader = await asyncpg.connect(world.dsn)
    async with reader.transaction():
        await reader.fetch("select * from views.threads")
        settings = settings_of(world.dsn, projector_swap_lock_seconds=0.05, projector_swap_tries_max=2)
        with pytest.raises(RebuildError, match="long reads"):
            await rebuild(world.client, world.dsn, settings, lambda _: None)
        settings = settings_of(world.dsn, projector_rebuild_seconds_max=0.3, projector_swap_lock_seconds=5)
        with pytest.raises(RebuildError, match="not caught up"):
            await rebuild(world.client, world.dsn, settings, lambda _: None)
    await reader.close()
    rows = await world.connection.fetch("select number, status from threadlog.generations")
    assert [tuple(row) for row in rows] == [(1, "live")]
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(2))))
        await world.all_shown()


async def test_a_rebuild_builds_the_views_of_a_new_log_over_those_of_another(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), "another")
    await world.append_history(plain_turn(History(key_of(1))))
    await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(2))))
        await world.all_shown()


# On Kafka


@pytest.mark.kafka
async def test_on_kafka_what_is_appended_is_shown_and_a_rebuild_is_the_same(
    database: str, connection: Any, own_kafka: Running
) -> None:
    settings = settings_of(database, kafka_bootstrap_servers=own_kafka.address, topic_partitions=PARTITIONS)
    async with kafka_topics(settings) as topics:
        await apply(topics, topic_specs(TOPICS, PARTITIONS, 1))
    log = await KafkaLog.open(settings, "projector")
    metrics = ProjectorMetrics.register(CollectorRegistry())
    stopping = asyncio.Event()
    try:
        projector = await Projector.start(log, database, settings, SystemClock(), metrics, "one")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(projector.run(stopping))
            appended = 0
            for number in range(40):
                history = plain_turn(History(key_of(number)))
                key = history.key.to_bytes()
                records = [Outgoing(key, made.value, made.headers) for made in history.encoded]
                await log.appender.append(TOPIC, log.partition_for(key, PARTITIONS), records)
                appended += len(records)
            await log.appender.append(TOPIC, 1, [Outgoing(b"nobody", b"x", (), 5)])

            async def shown() -> Any:
                return await connection.fetchval("select sum(next_offset) from views.positions")

            await until(shown, lambda seen: seen == appended + 1)
            before = await view_checksums(connection, "views")
            new = await rebuild(log, database, settings, lambda _: None)
            assert (new.number, await view_checksums(connection, "views")) == (2, before)
            await log.appender.append(TOPIC, 1, [Outgoing(b"nobody", b"y", (), 5)])
            await until(shown, lambda seen: seen == appended + 2)
            assert await connection.fetchval("select count(*) from views.positions where owner like 'projector-%'") > 0
            stopping.set()
        reader = await log.reader({TopicPartition(THREAD_EVENTS_DLQ.name, 1): 0})
        letters: list[Incoming] = []
        while len({letter.value for letter in letters}) < 2:
            letters += [record for _, found in await reader.poll(1_000) for record in found]
        by_offset = {dict(letter.headers)["threadlog_offset"]: letter.value for letter in letters}  # at least once
        assert sorted(filter(None, by_offset.values())) == [b"x", b"y"]
        await reader.close()
    finally:
        await log.close()
