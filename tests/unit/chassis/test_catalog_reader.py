import asyncio

from schemas.tools import CatalogSource, ToolSpec
from schemas.topics import TOOL_CATALOG
from services.chassis.catalog_reader import CatalogReader
from services.chassis.log import Outgoing
from tests.support.simulated_log import SimulatedBroker, SimulatedLog
from tests.support.virtual_tests import in_virtual_time
from tests.support.virtual_time import VirtualClock


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
async def test_what_is_no_entry_leaves_what_was_there() -> None:
    nonsense = [Outgoing(b"a", b"{"), Outgoing(b"a", b'{"source": ""}'), Outgoing(b"\xff", b"[]")]
    _, log, reader, running = await catalog_of(entry("a", "one"), *nonsense)
    assert sorted(reader.catalog.tools) == ["one"]
    await log.appender.append(TOOL_CATALOG.name, 0, [entry("a", "two")])
    await asyncio.sleep(0.1)
    assert sorted(reader.catalog.tools) == ["two"]
    running.cancel()
