"""A broker, a database, and projectors on them: for the tests of the projector."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import orjson
from prometheus_client import CollectorRegistry

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS, THREAD_EVENTS_DLQ
from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Outgoing
from services.projector.generations.database import connect
from services.projector.generations.generations import (
    TABLES,
    create_generation,
    live_generation,
    view_checksums,
)
from services.projector.generations.postgres_store import PostgresStores
from services.projector.generations.store import Generation
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings
from tests.support.limits import split, with_limits
from tests.support.recorded.histories import History, plain_turn
from tests.support.recorded.walks import GO_ON, as_read, walk
from tests.support.simulated.log import SimulatedBroker
from tests.support.stored.applying import applier_of

TOPIC = THREAD_EVENTS.name
PARTITIONS = 4
VISIBLE_SECONDS = 180.0


def settings_of(dsn: str, **changed: Any) -> ProjectorSettings:
    quick = {
        "retry_seconds": 0.02,
        "retry_seconds_max": 0.1,
        "reclaim_seconds": 0.5,
        "pause_after_seconds": 0.3,
        "look_seconds": 0.3,
        "postgres_command_timeout_seconds": 10,
        "projector_rebuild_workers": 1,  # this process, so that a test can reach into it
    }
    limits, settings = split(quick | changed)
    return with_limits(ProjectorSettings, **limits)(postgres_dsn=dsn, **settings)


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


async def stored(dsn: str, settings: ProjectorSettings, generation: Generation) -> dict[str, list[dict[str, Any]]]:
    """What the database has, as the tables in memory hold it, but without nulls."""
    tables = {}
    connection = await connect(dsn, settings, generation.schema)
    try:
        for table in TABLES:
            if table != "positions":
                tables[table] = [_plain(row) for row in await connection.fetch(f"select * from {table}")]
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
        projector = await Projector.start(
            log, PostgresStores(self.dsn, settings), settings, SystemClock(), metrics, f"run-{instance}"
        )
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

    @asynccontextmanager
    async def writing(self, first: int = 0) -> AsyncIterator[None]:
        """A turn of a thread every few milliseconds."""
        stopping = asyncio.Event()

        async def write() -> None:
            number = first
            while not stopping.is_set():
                await self.append_history(plain_turn(History(key_of(number))))
                number += 1
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        try:
            yield
        finally:
            stopping.set()
            await writing

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
        live = await live_generation(self.connection)
        assert live is not None
        return comparable(await view_checksums(self.connection, live.schema))


def comparable(sums: dict[str, Any]) -> dict[str, Any]:
    """Without positions, whose cluster the tests make up."""
    return {name: value for name, value in sums.items() if name != "positions"}


async def until(look: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = VISIBLE_SECONDS) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds(found := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"it did not come to hold in time; last seen: {found}"
        await asyncio.sleep(0.02)
