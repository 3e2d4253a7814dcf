"""Send batches of the outbox to Kafka, through aiokafka's batch interface.

aiokafka's usual interface makes a task and a future per record. The outbox has batches already, so they are handed over
whole: one future per batch. The outbox keeps at most one batch per partition in flight, and that is why a batch is
never queued behind another one inside aiokafka.

**Errors.** `log_error` decides whether a batch is worth sending again. `KafkaSender.fatal` is for errors after which
the producer can send nothing at all: trying again would loop for ever, so the process ends and starts with a new
producer.
"""

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
    """Return the port's error for an error of aiokafka, which knows whether trying again can help.

    Its own timeouts are the exception: they are not marked as retriable, but are.
    """
    if error.retriable or isinstance(error, KafkaTimeoutError):
        return LogUnavailableError(f"{doing}: {error}")
    return LogError(f"{doing}: {error}")


class KafkaSender:
    """The outbox's way to Kafka.

    With idempotence aiokafka itself retries until the broker answers, so `done` may be called much later than the
    append's deadline: the append has failed by then, and its records may still be stored. Without idempotence a batch
    fails after the request timeout, and the outbox sends it again.
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
        """Send a batch. A partition that the metadata does not have yet takes the slow way, with a task of its own."""
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
        # The metadata is known and no other batch of the partition is queued, which the outbox ensures. So this
        # coroutine never waits, and running it by hand saves a task and an iteration of the event loop per batch.
        coroutine = self._producer.send_batch(batch, topic, partition=partition)
        try:
            coroutine.send(None)
        except StopIteration as returned:
            delivery: asyncio.Future[Any] = returned.value
            delivery.add_done_callback(partial(self._delivered, f"append to {topic}/{partition}", done))
        except KafkaError as error:
            self._loop.call_soon(done, self._note(error, f"append to {topic}/{partition}"))
        else:  # it waits after all, so aiokafka is not ready for the batch; the outbox sends it again
            coroutine.close()
            unavailable = LogUnavailableError(f"append to {topic}/{partition}: the producer is not ready")
            self._loop.call_soon(done, unavailable)

    async def _send_unknown(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        """Send a batch after asking for the topic's metadata.

        A topic may be unknown for a moment after its creation, or for ever if nobody creates it. Both are retriable.
        """
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

    # aiokafka's callback, once per batch, whether it was stored or has failed.
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
        """Return the port's error, and note whether the producer is broken.

        An error that aiokafka does not know comes from its sender task, which has ended with it. A fenced producer, or
        one whose sequence numbers do not fit, is refused by the broker from now on.
        """
        broken = not isinstance(error, KafkaError) or type(error) is KafkaError
        if broken or isinstance(error, OutOfOrderSequenceNumber | ProducerFenced):
            self.fatal = LogError(f"{doing}: {error!r}; the producer cannot go on, start the process again")
            return self.fatal
        return log_error(error, doing)


class LateSender:
    """A sender that starts its producer when the first batch is to be sent, by calling `start`."""

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
