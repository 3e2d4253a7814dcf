"""Batches of an outbox to Kafka, by aiokafka's batch interface."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)

from services.chassis.log.outbox import BatchResult
from services.chassis.log.port import LogError, LogUnavailableError, Outgoing


def log_error(error: KafkaError, doing: str) -> LogError:
    """The port's error for aiokafka's, which knows whether trying again can help (except of its own timeouts)."""
    if error.retriable or isinstance(error, KafkaTimeoutError):
        return LogUnavailableError(f"{doing}: {error}")
    return LogError(f"{doing}: {error}")


class KafkaSender:
    """The outbox's way to Kafka.

    With idempotence aiokafka itself retries until the broker answers, so `done` may come much later than the append's
    deadline. Without it a batch fails after the request timeout, and the outbox sends it again.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._slow: set[asyncio.Task[None]] = set()
        self.fatal: LogError | None = None
        """Set when the producer can send nothing any more; the process has to start again."""

    def send(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        known = self._producer.client.cluster.partitions_for_topic(topic)
        if known is not None and partition in known:
            self._send_known(topic, partition, records, done)
        else:
            task = self._loop.create_task(self._send_unknown(topic, partition, records, done))
            self._slow.add(task)
            task.add_done_callback(self._slow.discard)

    async def close(self) -> None:
        for task in self._slow:
            task.cancel()
        await asyncio.gather(*self._slow, return_exceptions=True)

    def _send_known(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        batch = self._producer.create_batch()
        for record in records:
            appended = batch.append(
                key=record.key, value=record.value, timestamp=record.timestamp_ms, headers=list(record.headers)
            )
            if appended is None:
                raise AssertionError("the outbox made a batch larger than the producer's max_batch_size")
        # With known metadata and no other batch queued for the partition, which an outbox sees to, this coroutine never
        # waits: stepping it here saves a task and a loop iteration per batch.
        coroutine = self._producer.send_batch(batch, topic, partition=partition)
        try:
            coroutine.send(None)
        except StopIteration as returned:
            delivery: asyncio.Future[Any] = returned.value
            delivery.add_done_callback(partial(self._delivered, f"append to {topic}/{partition}", done))
        except KafkaError as error:
            self._loop.call_soon(done, self._note(error, f"append to {topic}/{partition}"))
        else:
            coroutine.close()
            unavailable = LogUnavailableError(f"append to {topic}/{partition}: the producer is not ready")
            self._loop.call_soon(done, unavailable)

    async def _send_unknown(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        """Just after its creation a topic may be unknown for a moment, or for ever if nobody creates it."""
        try:
            known = await self._producer.partitions_for(topic)
            if partition not in known:
                await self._producer.client.force_metadata_update()
                known = await self._producer.partitions_for(topic)
        except KafkaError as error:
            done(self._note(error, f"look up topic {topic}"))
            return
        if partition in known:
            self._send_known(topic, partition, records, done)
        else:
            done(LogUnavailableError(f"topic {topic} has {len(known)} partitions, none is {partition}"))

    def _delivered(self, doing: str, done: Callable[[BatchResult], None], delivery: asyncio.Future[Any]) -> None:
        if delivery.cancelled():
            done(LogUnavailableError(f"{doing}: the producer was closed"))
            return
        error = delivery.exception()
        if error is None:
            done(delivery.result().offset)
        else:
            done(self._note(error, doing))

    def _note(self, error: BaseException, doing: str) -> LogError:
        """What is neither known nor retriable comes from aiokafka's sender task breaking down."""
        broken = not isinstance(error, KafkaError) or type(error) is KafkaError
        if broken or isinstance(error, OutOfOrderSequenceNumber | ProducerFenced):
            self.fatal = LogError(f"{doing}: {error!r}; the producer cannot go on, start the process again")
            return self.fatal
        return log_error(error, doing)


class LateSender:
    """Makes its producer, by `start`, when the first batch is to be sent."""

    def __init__(self, start: Callable[[], Awaitable[AIOKafkaProducer]]) -> None:
        self._start = start
        self._starting = asyncio.Lock()
        self._sender: KafkaSender | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def fatal(self) -> LogError | None:
        return None if self._sender is None else self._sender.fatal

    def send(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        if self._sender is not None:
            self._sender.send(topic, partition, records, done)
            return
        task = asyncio.get_running_loop().create_task(self._send_when_started(topic, partition, records, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sender is not None:
            await self._sender.close()

    async def _send_when_started(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        try:
            async with self._starting:
                if self._sender is None:
                    self._sender = KafkaSender(await self._start())
        except LogError as error:
            done(error)
        else:
            self._sender.send(topic, partition, records, done)
