"""What can be said of the Kafka log without a broker; `tests/contract/test_log.py` says the rest."""

import asyncio
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError

from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import LogUnavailableError
from services.chassis.settings import Settings


class Consumer:
    def __init__(self, error: Exception | None = None) -> None:
        self.is_stopped = False
        self._error = error

    async def start(self) -> None:
        if self._error is not None:
            raise self._error
        await asyncio.sleep(3600)

    async def stop(self) -> None:
        self.is_stopped = True


def log_with(consumer: Consumer) -> KafkaLog:
    log = KafkaLog.__new__(KafkaLog)
    log._settings = Settings.model_construct()
    log._readers = []
    cast("Any", log)._consumer = lambda: consumer
    return log


async def test_a_reader_whose_opening_is_given_up_leaves_nothing_behind() -> None:
    consumer = Consumer()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await log_with(consumer).reader()
    assert consumer.is_stopped


async def test_a_reader_that_cannot_be_opened_leaves_nothing_behind() -> None:
    consumer = Consumer(KafkaConnectionError("no broker"))
    with pytest.raises(LogUnavailableError, match="open a reader"):
        await log_with(consumer).reader()
    assert consumer.is_stopped


async def test_a_look_up_that_is_given_up_leaves_nothing_behind() -> None:
    consumer = Consumer()
    log = log_with(consumer)
    log._lookup, log._lookup_lock = None, asyncio.Lock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await log.end_offsets([])
    assert consumer.is_stopped
