"""The log on Kafka: connections, and what is asked of the cluster. Appends are in `producer`, reading is in `readers`.

**Connections.** Round trips are what costs here, so there is one producer with an outbox per partition, and one produce
request in flight per broker. A broker answers the requests of one connection one after the other, and a fetch may wait
half a second for records. So each reader has a connection of its own, and offsets are looked up on another one.

**Idempotence.** The producer gets an id from the broker and numbers its batches, so a batch that aiokafka sends again
is stored once. A process that dies and starts again gets another id: what it repeats is stored twice, and the fold
recognises it by its event id. A producer that the broker fences, or whose numbers do not fit any more, can send nothing
again; `fatal` says so, and the process has to start anew.

**Closing.** Readers first, so that no new record causes an append; then the outbox is flushed; then the producer goes.
A broker that is away may hold up each step for seconds, so each has a limit. What is not acknowledged by then is lost
with the process, which callers must survive anyway.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as KafkaTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, UnknownError, UnsupportedVersionError, for_code
from aiokafka.partitioner import murmur2
from aiokafka.protocol.transaction import InitProducerIdRequest

from schemas.topics import TOPIC_RECORD_BYTES_MAX
from services.chassis.kafka.producer import KafkaSender, LateSender, log_error
from services.chassis.kafka.readers import COMMIT_INTERVAL_SECONDS, AssignedReader, GroupReader
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.metrics import LogCounts
from services.chassis.log.outbox import Outboxes, OutboxLimits
from services.chassis.log.port import NO_OFFSETS, LogError, LogUnavailableError, Reader, Rebalance, TopicPartition
from services.chassis.settings import MIB, Settings

BATCH_FRAME_BYTES: Final = 1_024
"""Kept free in the topics' record limit for the frame of a batch that holds one record of the largest size."""
POLL_RECORDS_MAX: Final = 5_000
"""Records that one poll returns at most, so that a reader with a long backlog still yields to the rest of its process
every few tens of milliseconds.
"""
FETCH_BYTES_MAX: Final = 4 * MIB
"""Size of one answer of a broker. A reader that is behind holds about ten times as much; more makes it no faster."""
START_PAUSE_SECONDS: Final = 0.25
"""Pause between tries to reach a broker at the start of a service. It is short because a broker that starts at the same
time is usually there within seconds.
"""
CLOSE_SECONDS: Final = 5.0
"""How long aiokafka may take to close. A broker that is away must not hold up the end of a process."""
PARTITION_CACHE_KEYS: Final = 65_536
"""Keys whose hash is remembered: more than the threads of a busy process."""

T = TypeVar("T")

logger = structlog.get_logger()

_murmur2 = lru_cache(maxsize=PARTITION_CACHE_KEYS)(murmur2)


def partition_for(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's own client would choose. The hash takes 5 µs in Python, so it is cached."""
    partition: int = (_murmur2(key) & 0x7FFF_FFFF) % partition_count
    return partition


class KafkaLog:
    """One process's connection to Kafka. `KafkaLog.open` and `KafkaLog.open_to_read` make it; metrics read `counts`."""

    def __init__(self, settings: Settings, service: str, producer: AIOKafkaProducer | None, counts: LogCounts) -> None:
        self._settings = settings
        self._client_id = _client_id(settings, service)
        self._producer = producer
        self._sender: KafkaSender | LateSender = (
            LateSender(self._late_producer) if producer is None else KafkaSender(producer)
        )
        self._partition_counts: dict[str, int] = {}
        self._readers: list[AssignedReader | GroupReader] = []
        self._lookup: AIOKafkaConsumer | None = None
        self._lookup_lock = asyncio.Lock()
        self._ends_reader: Reader | None = None
        self._ends_lock = asyncio.Lock()
        self.counts = counts
        limits = OutboxLimits(
            record_bytes_max=TOPIC_RECORD_BYTES_MAX - BATCH_FRAME_BYTES,
            delivery_timeout_seconds=settings.kafka_delivery_timeout_seconds,
        )
        self.appender = Outboxes(self._sender, limits, counts.outbox)

    @classmethod
    async def open(cls, settings: Settings, service: str, counts: LogCounts | None = None) -> Self:
        """Connect, and wait for the broker up to `kafka_start_timeout_seconds`. Then raise LogUnavailableError."""

        async def once() -> AIOKafkaProducer:
            return await _started_producer(settings, _client_id(settings, service))

        producer = await _when_there(once, settings, f"connect to {settings.kafka_bootstrap_servers}{_hint(settings)}")
        return cls(settings, service, producer, counts if counts is not None else LogCounts())

    @classmethod
    async def open_to_read(cls, settings: Settings, service: str) -> Self:
        """Connect without a producer: it is made by the first append, which a command that only reads never does.

        So a login without the right to write suffices. Raise LogError if the broker lacks idempotence although the
        settings ask for it: such a broker reports inexact ends, which would be taken for exact.
        """
        log = cls(settings, service, None, LogCounts())
        try:
            log._lookup = await _when_there(
                log._started_lookup, settings, f"connect to {settings.kafka_bootstrap_servers}"
            )
            if settings.kafka_idempotence:
                await _require_producer_ids(settings, log._client_id)
        except BaseException:
            await log.close()
            raise
        return log

    @property
    def fatal(self) -> LogError | None:
        """Why this process can append nothing any more, or None. Readers raise it, so that the process ends."""
        return self._sender.fatal

    async def group_reader(
        self, topics: Sequence[str], group: str, rebalance: Rebalance, instance_id: str | None = None
    ) -> Reader:
        consumer = self._consumer(
            group_id=group,
            group_instance_id=instance_id if self._settings.kafka_static_membership else None,
            # With the same topics for every member, range gives a member the same partition numbers of each.
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=self._settings.kafka_session_timeout_ms,
            heartbeat_interval_ms=self._settings.kafka_heartbeat_interval_ms,
        )
        reader = GroupReader(
            consumer,
            self,
            POLL_RECORDS_MAX,
            rebalance,
            COMMIT_INTERVAL_SECONDS,
            self.counts.count_failed_commit,
        )
        try:
            async with asyncio.timeout(self._settings.kafka_start_timeout_seconds):
                await reader.join(topics)
        except (KafkaError, TimeoutError) as error:
            await reader.close()
            doing = f"join group {group} for {', '.join(topics)}"
            if isinstance(error, KafkaError):
                raise log_error(error, doing) from error
            raise LogUnavailableError(f"{doing}: no assignment in time") from error
        self._keep(reader)
        return reader

    async def reader(self, offsets: Mapping[TopicPartition, int] = NO_OFFSETS) -> Reader:
        consumer = self._consumer()
        reader = AssignedReader(consumer, self, POLL_RECORDS_MAX)
        try:
            await consumer.start()
        except BaseException as error:  # a cancelled start counts, too: half a consumer has tasks already
            await reader.close()
            if isinstance(error, KafkaError):
                raise log_error(error, "open a reader") from error
            raise
        reader.assign(offsets)
        self._keep(reader)
        return reader

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions at the first call. Threads are placed by it, so later changes must not
        count.
        """
        if topic not in self._partition_counts:
            self._partition_counts[topic] = await self._found_partitions(topic)
        return self._partition_counts[topic]

    def partition_count_now(self, topic: str) -> int | None:
        """Return the number in the producer's metadata, at most a few minutes old; None if there is no metadata."""
        known = None if self._producer is None else self._producer.client.cluster.partitions_for_topic(topic)
        return None if known is None else len(known)

    def partition_for(self, key: bytes, partition_count: int) -> int:
        return partition_for(key, partition_count)

    async def begin_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        lookup = await self._lookup_consumer()
        return await self._offsets(lookup.beginning_offsets, tps)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        lookup = await self._lookup_consumer()
        offsets = await self._offsets(lookup.end_offsets, tps)
        return offsets if self._settings.kafka_idempotence else await self._correct_ends(offsets)

    async def cluster_id(self) -> str:
        admin = AIOKafkaAdminClient(
            bootstrap_servers=self._settings.kafka_bootstrap_servers,
            client_id=self._client_id,
            request_timeout_ms=self._settings.kafka_request_timeout_ms,
        )
        try:
            await admin.start()
            described = await admin.describe_cluster()
        except KafkaError as error:
            raise log_error(error, "ask for the cluster's id") from error
        finally:
            await admin.close()
        return str(described.get("cluster_id") or "")

    async def close(self) -> None:
        """Close readers, then flush appends, then close the producer. Errors are logged: the process ends anyway."""
        for reader in self._readers:
            await reader.close()
        await self.appender.flush()
        self.appender.close(LogError("the log is closed"))
        await self._sender.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._producer is not None:
                    await self._producer.stop()
                if self._lookup is not None:
                    await self._lookup.stop()
        except (TimeoutError, KafkaError) as error:
            logger.warning("log_close_failed", error=repr(error))

    async def _late_producer(self) -> AIOKafkaProducer:
        """Start the producer at the first append of a log that was opened to read."""
        try:
            self._producer = await _started_producer(self._settings, self._client_id)
        except KafkaError as error:
            raise log_error(error, f"open a producer{_hint(self._settings)}") from error
        return self._producer

    async def _found_partitions(self, topic: str) -> int:
        doing = f"look up topic {topic}, which `threadlog topics apply` creates"
        if self._producer is None:
            async with kafka_topics(self._settings) as topics:
                counts = await topics.partition_counts([topic])
            if topic not in counts:
                raise LogError(f"{doing}: it is not there")
            return counts[topic]
        try:
            return len(await self._producer.partitions_for(topic))
        except KafkaError as error:
            raise log_error(error, doing) from error

    def _keep(self, reader: AssignedReader | GroupReader) -> None:
        """Remember a reader, to close it with the log. Those that are closed already, which may be many, are
        dropped.
        """
        self._readers = [kept for kept in self._readers if not kept.is_closed]
        self._readers.append(reader)

    def _consumer(self, **group: Any) -> AIOKafkaConsumer:
        settings = self._settings
        return AIOKafkaConsumer(
            bootstrap_servers=settings.kafka_bootstrap_servers,
            client_id=self._client_id,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=settings.kafka_fetch_max_wait_ms,
            fetch_max_bytes=FETCH_BYTES_MAX,
            max_partition_fetch_bytes=TOPIC_RECORD_BYTES_MAX,
            request_timeout_ms=settings.kafka_request_timeout_ms,
            **group,
        )

    async def _lookup_consumer(self) -> AIOKafkaConsumer:
        async with self._lookup_lock:
            if self._lookup is None:
                try:
                    self._lookup = await self._started_lookup()
                except KafkaError as error:
                    raise log_error(error, "look up offsets") from error
            return self._lookup

    async def _started_lookup(self) -> AIOKafkaConsumer:
        consumer = self._consumer()
        try:
            await consumer.start()
            await asyncio.sleep(0)  # let its tasks begin: a task that is stopped before raises its cancellation
        except BaseException:  # a cancelled start counts, too: half a consumer has tasks already
            await consumer.stop()
            raise
        return consumer

    async def _correct_ends(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return exact ends on the embedded broker, which is the one without idempotence.

        It reports as the end the offset behind the *first* record of the last batch. So the last batch is read.
        """
        last = {tp: offset - 1 for tp, offset in offsets.items() if offset > 0}
        if not last:
            return offsets
        async with self._ends_lock:
            if self._ends_reader is None:
                self._ends_reader = await self.reader()
            reader = self._ends_reader
            reader.assign({})
            reader.assign(last)
            try:
                async with asyncio.timeout(self._settings.kafka_request_timeout_ms / 1000):
                    while any(reader.position(tp) <= offset for tp, offset in last.items()):
                        await reader.poll(self._settings.kafka_fetch_max_wait_ms)
            except TimeoutError:
                raise LogUnavailableError("look up offsets: the last records cannot be read") from None
            return {tp: reader.position(tp) if tp in last else offset for tp, offset in offsets.items()}

    async def _offsets(self, ask: Any, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            offsets = await ask([KafkaTopicPartition(*tp) for tp in tps])
        except KafkaError as error:
            raise log_error(error, "look up offsets") from error
        return {TopicPartition(*tp): offset for tp, offset in offsets.items()}


async def _started_producer(settings: Settings, client_id: str) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.kafka_bootstrap_servers,
        client_id=client_id,
        acks="all",
        enable_idempotence=settings.kafka_idempotence,
        linger_ms=0,
        # The outbox sees to the size of batches; this only has to be above it, and above one largest record.
        max_batch_size=2 * TOPIC_RECORD_BYTES_MAX,
        request_timeout_ms=settings.kafka_request_timeout_ms,
    )
    try:
        await producer.start()
    except BaseException:
        await producer.stop()
        raise
    return producer


async def _require_producer_ids(settings: Settings, client_id: str) -> None:
    """Raise LogError unless the broker knows InitProducerId.

    The list of requests that a broker offers proves nothing, so the request is made. A refusal for lack of rights is
    an answer of a broker that knows it.
    """
    doing = f"connect to {settings.kafka_bootstrap_servers}{_hint(settings)}"
    client = AIOKafkaClient(
        bootstrap_servers=settings.kafka_bootstrap_servers,
        client_id=client_id,
        request_timeout_ms=settings.kafka_request_timeout_ms,
    )
    try:
        await client.bootstrap()
        answer = await client.send(client.get_random_node(), InitProducerIdRequest(None, 0))
    except KafkaError as error:
        raise log_error(error, doing) from error
    finally:
        await client.close()
    refusal = for_code(answer.error_code)
    if refusal in {UnknownError, UnsupportedVersionError}:
        raise LogError(f"{doing}: {refusal.__name__}")


# aiokafka raises at once if no broker answers. Services and brokers are often started together, so a start tries again.
async def _when_there(start: Callable[[], Awaitable[T]], settings: Settings, doing: str) -> T:
    deadline = asyncio.get_running_loop().time() + settings.kafka_start_timeout_seconds
    while True:
        try:
            return await start()
        except KafkaError as error:
            if not error.retriable or asyncio.get_running_loop().time() >= deadline:
                raise log_error(error, doing) from error
            logger.warning("broker_awaited", servers=settings.kafka_bootstrap_servers, error=str(error))
        await asyncio.sleep(START_PAUSE_SECONDS)


def _hint(settings: Settings) -> str:
    return " (a broker without InitProducerId needs THREADLOG_KAFKA_IDEMPOTENCE=false)" * settings.kafka_idempotence


def _client_id(settings: Settings, service: str) -> str:
    return f"threadlog-{service}-{settings.instance}"
