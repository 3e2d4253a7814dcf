import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from schemas.tools import CatalogSource, ToolSpec
from schemas.topics import TOOL_CATALOG
from services.chassis.catalog.reader import CatalogReader
from services.chassis.log.port import Incoming, Log, LogError, LogUnavailableError, Outgoing, Reader, TopicPartition
from tests.support.simulated.log import SimulatedBroker, SimulatedLog
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock


class StumblingReader:
    def __init__(self, reader: Reader, error: LogError) -> None:
        self._reader = reader
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        if self._errors:
            raise self._errors.pop()
        return await self._reader.poll(timeout_ms)


class StumblingLog:
    def __init__(self, log: SimulatedLog, error: LogError) -> None:
        self._log = log
        self._error = error
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self._errors:
            raise self._errors.pop()
        return await self._log.end_offsets(tps)

    async def reader(self, offsets: Mapping[TopicPartition, int]) -> StumblingReader:
        return StumblingReader(await self._log.reader(offsets), self._error)


def entry(source: str, *tools: str) -> Outgoing:
    specs = tuple(ToolSpec(name=name) for name in tools)
    value = CatalogSource(source=source, pool="builtin", tools=specs).model_dump_json().encode()
    return Outgoing(source.encode(), value)


async def catalog_of(*records: Outgoing) -> tuple[SimulatedBroker, SimulatedLog, CatalogReader, "asyncio.Task[None]"]:
    broker = SimulatedBroker({TOOL_CATALOG.name: 1}, VirtualClock())
    log = broker.connect()
    if records:
        await log.appender.append(TOOL_CATALOG.name, 0, records)
    reader = CatalogReader(log)
    running = asyncio.create_task(reader.run())
    async with asyncio.timeout(10):
        await reader.ready.wait()
    return broker, log, reader, running


@in_virtual_time
async def test_an_empty_catalog_is_ready_at_once() -> None:
    _, _, reader, running = await catalog_of()
    assert reader.catalog.tools == {}
    running.cancel()


@in_virtual_time
async def test_it_is_ready_with_all_that_was_there() -> None:
    _, _, reader, running = await catalog_of(entry("a", "one"), entry("b", "two"), entry("a", "three"))
    assert sorted(reader.catalog.tools) == ["three", "two"]
    running.cancel()


@in_virtual_time
async def test_it_follows_what_comes_and_goes() -> None:
    broker, log, reader, running = await catalog_of(entry("a", "one"))
    await log.appender.append(TOOL_CATALOG.name, 0, [entry("b", "two")])
    await asyncio.sleep(0.1)
    assert sorted(reader.catalog.tools) == ["one", "two"]
    await log.appender.append(TOOL_CATALOG.name, 0, [Outgoing(b"a", None)])
    await asyncio.sleep(0.1)
    assert sorted(reader.catalog.tools) == ["two"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert broker._readers == []


@in_virtual_time
@pytest.mark.parametrize(
    ("error", "goes_on"), [(LogUnavailableError("no broker answers"), True), (LogError("it is closed"), False)]
)
async def test_it_goes_on_after_what_passes(error: LogError, goes_on: bool) -> None:
    broker = SimulatedBroker({TOOL_CATALOG.name: 1}, VirtualClock())
    log = broker.connect()
    await log.appender.append(TOOL_CATALOG.name, 0, [entry("a", "one")])
    reader = CatalogReader(cast("Log", StumblingLog(log, error)))
    running = asyncio.create_task(reader.run())
    if goes_on:
        async with asyncio.timeout(10):
            await reader.ready.wait()
        assert sorted(reader.catalog.tools) == ["one"]
        running.cancel()
    else:
        with pytest.raises(LogError, match="it is closed"):
            await running


@in_virtual_time
async def test_what_is_no_entry_leaves_what_was_there() -> None:
    nonsense = [Outgoing(b"a", b"{"), Outgoing(b"a", b'{"source": ""}'), Outgoing(b"\xff", b"[]")]
    _, log, reader, running = await catalog_of(entry("a", "one"), *nonsense)
    assert sorted(reader.catalog.tools) == ["one"]
    await log.appender.append(TOOL_CATALOG.name, 0, [entry("a", "two")])
    await asyncio.sleep(0.1)
    assert sorted(reader.catalog.tools) == ["two"]
    running.cancel()
