"""A log on a real broker and its views in a real database, both of which a test may tamper with."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition as KafkaPartition
from prometheus_client import CollectorRegistry

from schemas.events import Context
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS, THREAD_EVENTS_DLQ, TOPICS
from schemas.transcript import Transcript, context_hash, transcript_changes
from services.chassis.clock import SystemClock
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import apply, topic_specs
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.port import Outgoing, TopicPartition
from services.projector.generations.generations import drop_views
from services.projector.generations.postgres_store import PostgresStores
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings
from services.projector.verification.report import Progress, Report
from services.projector.verification.verify import VerifyRequest, verify
from tests.support.recorded.histories import (
    EXECUTOR,
    USER,
    History,
    approved,
    claimed,
    created,
    dispatched,
    finished,
    proposed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)
from tests.support.worlds.projector import settings_of, until

TOPIC = THREAD_EVENTS.name
PARTITIONS = 8
TOPIC_GONE_SECONDS = 180.0

Records = Mapping[int, Sequence[Outgoing]]
"""By partition."""


class VerifyPlace:
    def __init__(self, settings: ProjectorSettings, log: KafkaLog, connection: asyncpg.Connection) -> None:
        self.settings = settings
        self.log = log
        self.connection = connection
        self.progress: list[Progress] = []

    # The log

    def key_in(self, partition: int, tenant: str = "acme") -> ThreadKey:
        """A thread that lives in this partition."""
        for number in range(1_000):
            key = ThreadKey(TenantId(tenant), ThreadId(f"t-{number}"))
            if self.log.partition_for(key.to_bytes(), PARTITIONS) == partition:
                return key
        raise AssertionError

    async def append(self, records: Records) -> None:
        for partition, those in records.items():
            for start in range(0, len(those), 500):
                await self.log.appender.append(TOPIC, partition, those[start : start + 500])

    async def append_history(self, history: History) -> None:
        partition = self.log.partition_for(history.key.to_bytes(), PARTITIONS)
        await self.append({partition: outgoing(history)})

    # The views

    @contextlib.asynccontextmanager
    async def projecting(self) -> AsyncIterator[None]:
        log = await KafkaLog.open(self.settings, "projector")
        metrics = ProjectorMetrics.register(CollectorRegistry())
        stores = PostgresStores(self.settings.postgres_dsn, self.settings)
        stopping = asyncio.Event()
        try:
            projector = await Projector.start(log, stores, self.settings, SystemClock(), metrics, "one")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(projector.run(stopping))
                try:
                    yield
                finally:
                    stopping.set()
        finally:
            await log.close()

    async def project(self) -> None:
        """All that the log holds now."""
        ends = await self.log.end_offsets(await self._partitions())
        total = sum(ends.values())

        async def shown() -> int:
            with contextlib.suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                return int(await self.connection.fetchval("select coalesce(sum(next_offset), 0) from views.positions"))
            return 0

        async with self.projecting():
            await until(shown, lambda seen: seen == total, 60)

    async def rebuild(self) -> None:
        """From nothing."""
        await drop_views(self.settings.postgres_dsn, self.settings)
        await self.project()

    async def schema(self) -> str:
        return f"views_g{await self.connection.fetchval('select number from views.generation')}"

    async def scratches(self) -> list[str]:
        rows = await self.connection.fetch(
            "select nspname from pg_namespace where nspname like 'views_g%' and nspname not in "
            "(select 'views_g' || number from threadlog.generations where status <> 'scratch')"
        )
        return [row[0] for row in rows]

    async def verify(self, thread: ThreadKey | None = None, **asked: Any) -> Report:
        self.progress.clear()
        report = await verify(
            self.log, self.settings.postgres_dsn, self.settings, self.progress.append, VerifyRequest(thread, **asked)
        )
        assert await self.scratches() == []
        return report

    async def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


@contextlib.asynccontextmanager
async def verify_place(dsn: str, broker: str, records: Records) -> AsyncIterator[VerifyPlace]:
    settings = settings_of(dsn, kafka_bootstrap_servers=broker, topic_partitions=PARTITIONS)
    await new_log(broker, settings)
    log = await KafkaLog.open(settings, "test")
    connection = await asyncpg.connect(dsn)
    place = VerifyPlace(settings, log, connection)
    try:
        await place.append(records)
        yield place
    finally:
        await connection.close()
        await log.close()


async def new_log(broker: str, settings: ProjectorSettings, partitions: int = PARTITIONS) -> None:
    """Empty topics, in the place of those that are there."""
    async with _admin(broker) as admin:
        there = set(await admin.list_topics()) & {topic.name for topic in TOPICS}
        if there:
            await admin.delete_topics(list(there))
        async with asyncio.timeout(TOPIC_GONE_SECONDS):
            while set(await admin.list_topics()) & {TOPIC, THREAD_EVENTS_DLQ.name}:  # noqa: ASYNC110  # the broker's event
                await asyncio.sleep(0.05)
    async with kafka_topics(settings) as topics:
        await apply(topics, topic_specs(TOPICS, partitions, 1))


async def delete_beginning(broker: str, partition: int, before: int) -> None:
    async with _admin(broker) as admin:
        await admin.delete_records({KafkaPartition(TOPIC, partition): RecordsToDelete(before_offset=before)})


@contextlib.asynccontextmanager
async def _admin(broker: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def outgoing(history: History) -> list[Outgoing]:
    key = history.key.to_bytes()
    return [Outgoing(key, made.value, made.headers, made.record.time_ms) for made in history.encoded]


def whole_turn(history: History) -> History:
    """One with a call, whose steps name the context that they were asked with."""
    if not history.state.exists:
        history.apply(created(), USER)
    history.apply(submitted(f"i{history.state.last_turn + 1}", text="Make the tests pass."), USER)
    history.apply(turn_started(history.state))
    _step(history)
    history.apply(step_finished(history.state, "Let me look.", [proposed(0)]))
    (call,) = history.state.calls
    history.apply(approved(history.call(call), by="policy:never"), "policy:never")
    history.apply(dispatched(history.call(call)))
    history.apply(claimed(history.call(call)), EXECUTOR)
    history.apply(finished(history.call(call)), EXECUTOR)
    _step(history)
    history.apply(step_finished(history.state, "They pass now."))
    history.apply(turn_ended(history.state))
    return history


def _step(history: History) -> None:
    transcript = Transcript()
    for before, after, record, verdict in zip(
        history.states, history.states[1:], history.records, history.verdicts, strict=False
    ):
        transcript.apply(transcript_changes(before, after, record, verdict))
    items = transcript.context()
    context = Context(confirmed_seq=history.state.seq, items=len(items), hash=context_hash(items))
    history.apply(step_started(history.state).model_copy(update={"context": context}))


def with_header(record: Outgoing, name: str, value: bytes) -> Outgoing:
    return record._replace(headers=tuple((dict(record.headers) | {name: value}).items()))


Tamper = Callable[[list[Outgoing]], list[Outgoing]]
