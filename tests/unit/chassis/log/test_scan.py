import pytest

from schemas.codec import Encoded, Record
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Outgoing, TopicPartition
from services.chassis.log.scan import scan
from tests.support.recorded.histories import History, plain_turn
from tests.support.simulated.log import Faults, SimulatedBroker, SimulatedLog
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock

TP = TopicPartition(THREAD_EVENTS.name, 0)
A, B = (ThreadKey(TenantId("acme"), ThreadId(name)) for name in ("a", "b"))


async def log_with(*records: Outgoing) -> tuple[SimulatedBroker, SimulatedLog]:
    broker = SimulatedBroker({THREAD_EVENTS.name: 1}, VirtualClock(), faults=Faults(1, poll_records_max=3))
    log = broker.connect()
    if records:
        await log.appender.append(THREAD_EVENTS.name, 0, records)
    return broker, log


def outgoing(key: ThreadKey, encoded: Encoded) -> Outgoing:
    return Outgoing(key.to_bytes(), encoded.value, encoded.headers)


def interleaved() -> list[Outgoing]:
    a, b = plain_turn(History(key=A)), plain_turn(History(key=B))
    pairs = zip(a.encoded, b.encoded, strict=True)
    return [record for one, other in pairs for record in (outgoing(A, one), outgoing(B, other))]


async def scanned(log: SimulatedLog, keys: list[ThreadKey], until: int) -> list[Record]:
    return [record async for record in scan(log, TP, keys, until)]


@in_virtual_time
async def test_it_gives_the_threads_records_before_the_offset() -> None:
    _, log = await log_with(*interleaved())
    records = await scanned(log, [B], 10)
    assert [record.offset for record in records] == [1, 3, 5, 7, 9]
    assert {record.key for record in records} == {B}
    assert len(await scanned(log, [A, B], 10)) == 10


@pytest.mark.parametrize("until", [0, -1])
@in_virtual_time
async def test_nothing_is_before_the_beginning(until: int) -> None:
    _, log = await log_with(*interleaved())
    assert await scanned(log, [A], until) == []


@in_virtual_time
async def test_it_ends_where_the_log_ends() -> None:
    _, log = await log_with(*interleaved())
    assert len(await scanned(log, [A], 1_000_000)) == len(interleaved()) / 2
    _, empty = await log_with()
    assert await scanned(empty, [A], 5) == []


@in_virtual_time
async def test_it_begins_where_retention_left_off() -> None:
    broker, log = await log_with(*interleaved())
    broker.delete_before(TP, 4)
    assert [record.offset for record in await scanned(log, [A], 9)] == [4, 6, 8]


@in_virtual_time
async def test_what_has_no_readable_id_is_left_out_and_what_is_broken_is_given() -> None:
    unreadable = Outgoing(A.to_bytes(), b"{}", ())
    first = interleaved()[0]
    broken = first._replace(value=b"{}")
    foreign = first._replace(key=None)  # type: ignore[arg-type]  # what no producer of ours writes
    _, log = await log_with(unreadable, broken, first)
    records = await scanned(log, [A], 10)
    assert [(record.offset, record.problem is None) for record in records] == [(1, False), (2, True)]
    assert foreign.key is None


@in_virtual_time
async def test_its_reader_is_closed_whoever_stops_reading() -> None:
    broker, log = await log_with(*interleaved())
    records = scan(log, TP, [A], 10)
    async for _ in records:
        break
    await records.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert broker._readers == []
