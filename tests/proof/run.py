"""One proof: the same views three times, each time made in another way.

1. The history is written while several projectors project it, which are killed, joined and left by others, and whose
   database is killed too; with small batches and few states in memory.
2. All schemas are dropped. One projector starts from nothing.
3. `threadlog rebuild` builds a generation beside the live one, with other batches and workers again.
"""

import asyncio
import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import asyncpg

from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing, TopicPartition
from services.chassis.settings import Settings
from services.cli.database import migrate_all
from services.cli.local.embedded import embedded_postgres
from services.cli.local.supervised import log_tail
from services.cli.local.supervisor import Restarts, ServiceError, Supervisor
from services.cli.topics import apply_topics
from services.projector.generations.database import DATABASE_AWAY
from services.projector.generations.generations import live_generation, view_checksums
from tests.chaos.stores import Store
from tests.proof.bad_records import Appended
from tests.proof.history import Expected, history
from tests.support.processes.services import apache_kafka

TOPIC: Final = THREAD_EVENTS.name
WRITE_RECORDS: Final = 2_000
"""Appended together; what is before them is acknowledged first."""
RESTARTS: Final = Restarts(tries_max=1_000, most_seconds=0.5)
LOOK_SECONDS: Final = 0.05
SHOWN_SECONDS_MAX: Final = 120.0
"""The views must go on so long after a fault, and hold everything so long after the last record was written."""

CRASHING: Final = {"THREADLOG_PROJECTOR_BATCH_RECORDS_MAX": "700", "THREADLOG_PROJECTOR_STATES_MAX": "100"}
ALONE: Final[Mapping[str, str]] = {}
REBUILDING: Final = {"THREADLOG_PROJECTOR_BATCH_RECORDS_MAX": "2000", "THREADLOG_PROJECTOR_STATES_MAX": "1000"}
REBUILD_OPTIONS: Final = ("--workers", "2", "--no-compare")

Fault = Literal["kill a projector", "one projector more", "one projector less", "kill Postgres"]
FAULTS: Final[tuple[Fault, ...]] = (
    "kill a projector",
    "one projector more",
    "kill Postgres",
    "kill a projector",
    "one projector less",
    "kill a projector",
    "kill Postgres",
    "kill a projector",
)

Checksums = Mapping[str, tuple[int, str]]
"""Rows and checksum by view."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Proof:
    """What was found; see `tests.proof.report`."""

    seed: int
    kafka_version: str
    postgres_version: str
    expected: Expected = field(default_factory=Expected)
    faults: Counter[Fault] = field(default_factory=Counter)
    checksums: dict[str, Checksums] = field(default_factory=dict)
    """By the way in which the views were made."""
    effects: dict[str, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


async def prove(records: int, seed: int, say: Say = print) -> Proof:
    folder = Path(tempfile.mkdtemp(prefix="tlp-", dir="/tmp"))  # short: Postgres' socket lies in it
    folder.chmod(0o755)  # noqa: ASYNC240  # once; Postgres runs as another user where we are root
    begun = asyncio.get_running_loop().time()

    def tell(what: str) -> None:
        say(f"{asyncio.get_running_loop().time() - begun:4.0f} s  {what}")

    try:
        async with _world(folder) as world:
            proof = Proof(seed, world.kafka_version, world.postgres.running.version)
            tell(f"on {proof.kafka_version} and {proof.postgres_version}, seed {seed}")
            try:
                await _Run(world, records, proof, tell).run()
            except TimeoutError as error:
                logs = [log_tail(log) for log in sorted((folder / "logs").iterdir())]  # once, at the end
                raise RuntimeError("\n".join(["the views do not go on", *logs])) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return proof


@dataclass(frozen=True, slots=True)
class _World:
    kafka_version: str
    postgres: Store
    settings: Settings
    supervisor: Supervisor
    log: KafkaLog
    folder: Path


@contextlib.asynccontextmanager
async def _world(folder: Path) -> AsyncIterator[_World]:
    async with contextlib.AsyncExitStack() as stack:
        kafka = stack.enter_context(apache_kafka(folder / "kafka", heap="1g"))
        postgres = Store("postgres", lambda: embedded_postgres(folder / "pg"))
        await postgres.open()
        stack.push_async_callback(postgres.close)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        keeper = tasks.create_task(postgres.keep())
        stack.callback(keeper.cancel)
        settings = Settings(kafka_bootstrap_servers=kafka.address, postgres_dsn=postgres.running.address)
        await apply_topics(settings)
        environment = {
            **os.environ,
            "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
            "THREADLOG_POSTGRES_DSN": settings.postgres_dsn,
            "THREADLOG_LOG_LEVEL": "warning",
        }
        supervisor = await stack.enter_async_context(Supervisor(environment, folder / "logs"))
        log = await KafkaLog.open(settings, "proof")
        stack.push_async_callback(log.close)
        yield _World(kafka.version, postgres, settings, supervisor, log, folder)


class _Run:
    def __init__(self, world: _World, records: int, proof: Proof, say: Say) -> None:
        self._world = world
        self._records = records
        self._proof = proof
        self._say = say
        self._rng = random.Random(proof.seed)

    async def run(self) -> None:
        settings, supervisor = self._world.settings, self._world.supervisor
        await migrate_all(settings)
        with self._timed("crashes"):
            await self._write_and_crash()
        await supervisor.stop_all()
        await self._look("crashes")

        await self._drop_everything()
        await migrate_all(settings)
        with self._timed("restart"):
            supervisor.start("projector", ALONE, instance="alone")
            await self._until_shown(await self._end())
        await self._look("restart")

        with self._timed("rebuild"):
            await self._rebuild()
        await self._look("rebuild")

    # 1. With crashes

    async def _write_and_crash(self) -> None:
        for instance in ("0", "1"):
            self._start(instance)
        records = history(self._records, self._proof.seed, self._proof.expected)
        portion = self._records // (len(FAULTS) + 1)
        for fault in FAULTS:
            await self._write(islice(records, portion))
            await self._hit(fault)
        await self._write(records)
        self._say(f"{self._proof.expected.records} records written, {sum(self._proof.faults.values())} faults")
        await self._until_shown(await self._end())

    def _start(self, instance: str) -> None:
        self._world.supervisor.start("projector", CRASHING, instance=instance, restarts=RESTARTS)

    async def _hit(self, fault: Fault) -> None:
        """While records of the last portion are being projected; waits until it goes on afterwards."""
        supervisor, postgres = self._world.supervisor, self._world.postgres
        before = await self._shown()
        match fault:
            case "kill a projector":
                name = f"projector-{self._rng.choice('01')}"
                await supervisor.wait_ready(name)
                with contextlib.suppress(ServiceError):  # it was ready a moment ago
                    supervisor.kill(name)
            case "one projector more":
                self._start("2")
                await supervisor.wait_ready("projector-2")
            case "one projector less":
                await supervisor.stop("projector-2")
            case "kill Postgres":
                postgres.kill()
                await postgres.wait_ready()
        self._proof.faults[fault] += 1
        self._say(f"{before} records are in the views: {fault}")
        await self._until_shown(min(before + 1, await self._end()))

    async def _write(self, records: Iterator[Appended]) -> None:
        log = self._world.log
        partitions = await log.partition_count(TOPIC)
        waiting: list[asyncio.Future[tuple[int, ...]]] = []
        while chunk := list(islice(records, WRITE_RECORDS)):
            by_partition: dict[int, list[Outgoing]] = defaultdict(list)
            for record in chunk:
                home = log.partition_for(record.key, partitions)
                partition = (home + 1) % partitions if record.is_astray else home
                outgoing = Outgoing(record.key, record.value, record.headers, record.time_ms)
                by_partition[partition].append(outgoing)
            await asyncio.gather(*waiting)
            waiting = [log.appender.append(TOPIC, partition, each) for partition, each in by_partition.items()]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    # 2. From nothing

    async def _drop_everything(self) -> None:
        connection = await asyncpg.connect(self._world.settings.postgres_dsn)
        try:
            rows = await connection.fetch(
                "select nspname from pg_namespace where nspname !~ '^pg_' "
                "and nspname not in ('information_schema', 'public') order by nspname"
            )
            for (schema,) in rows:
                await connection.execute(f'drop schema "{schema}" cascade')
            self._say(f"dropped {', '.join(schema for (schema,) in rows)}")
        finally:
            await connection.close()

    # 3. Beside the live one

    async def _rebuild(self) -> None:
        settings = self._world.settings
        environment = {
            **os.environ,
            **REBUILDING,
            "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
            "THREADLOG_POSTGRES_DSN": settings.postgres_dsn,
        }
        command = [sys.executable, "-m", "services.cli", "rebuild", *REBUILD_OPTIONS]
        log = self._world.folder / "logs" / "rebuild.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
            status = await process.wait()
        if status != 0:
            raise RuntimeError(f"the rebuild ended with status {status}:\n{log.read_text()[-4_000:]}")

    # What is there

    async def _look(self, way: str) -> None:
        connection = await asyncpg.connect(self._world.settings.postgres_dsn)
        try:
            live = await live_generation(connection)
            assert live is not None, "there are no views"
            self._proof.checksums[way] = await view_checksums(connection, live.schema)
            rows = await connection.fetch("select type, effect, count(*) from views.events group by type, effect")
            self._proof.effects[way] = {(kind, effect): count for kind, effect, count in rows}
            self._proof.dead_letters[way] = await connection.fetchval("select count(*) from views.dead_letters")
        finally:
            await connection.close()
        self._say(f"{way}: in {self._proof.seconds[way]:.1f} s; checksums of {live.schema} taken")

    async def _until_shown(self, records: int) -> None:
        async with asyncio.timeout(SHOWN_SECONDS_MAX):
            while await self._shown() < records:  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(LOOK_SECONDS)

    async def _end(self) -> int:
        log = self._world.log
        tps = [TopicPartition(TOPIC, number) for number in range(await log.partition_count(TOPIC))]
        return sum((await log.end_offsets(tps)).values())

    async def _shown(self) -> int:
        """Records in the views; none while the database or the views are away."""
        try:
            connection = await asyncpg.connect(self._world.settings.postgres_dsn)
            try:
                return int(await connection.fetchval("select coalesce(sum(next_offset), 0) from views.positions"))
            finally:
                await connection.close()
        except (*DATABASE_AWAY, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            return 0

    @contextlib.contextmanager
    def _timed(self, way: str) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        yield
        self._proof.seconds[way] = loop.time() - begun
