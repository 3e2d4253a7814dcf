import asyncio

import pytest
from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EFFECTS
from services.chassis.clock import SystemClock
from services.chassis.log.port import Outgoing, TopicPartition
from services.projector.metrics import RollupsMetrics
from services.projector.settings import RollupsSettings
from services.projector.windows.windows import OvertakenError, Position
from services.projector.windows.worker import WindowWorker
from tests.support.limits import with_limits
from tests.support.memory.database import MemoryDatabase
from tests.support.memory.windows import MemoryWindowStore
from tests.support.simulated.log import SimulatedBroker

TOPIC = THREAD_EFFECTS.name


def _worker(database: MemoryDatabase, broker: SimulatedBroker) -> WindowWorker:
    settings = with_limits(RollupsSettings, flush_seconds=0.01, look_seconds=0.05)()
    metrics = RollupsMetrics.register(CollectorRegistry())
    return WindowWorker(MemoryWindowStore(database), broker.connect("rollups"), "cluster", settings, metrics)


async def _broker(records: int) -> SimulatedBroker:
    broker = SimulatedBroker({TOPIC: 1}, SystemClock())
    unreadable = [Outgoing(b"a/b", b"?", (), 0) for _ in range(records)]
    await broker.connect("projector").appender.append(TOPIC, 0, unreadable)
    return broker


async def test_effects_that_are_gone_from_their_topic_do_not_stop_the_counting() -> None:
    database, broker = MemoryDatabase(), await _broker(9)
    database.window_positions[0] = Position(2, 2, 0)
    broker.delete_before(TopicPartition(TOPIC, 0), 5)
    worker = _worker(database, broker)
    assert await worker.hold([0]) == {0: 5}
    await worker.feed(0, 5, b"?", 0)
    await worker.count()
    assert database.window_positions[0].next_offset == 6


async def test_a_worker_without_effects_notices_that_its_tables_were_reset() -> None:
    database, broker = MemoryDatabase(), await _broker(3)
    database.window_positions[0] = Position(2, 2, 0)
    worker = _worker(database, broker)
    await worker.hold([0])
    counting = asyncio.create_task(worker.run())
    await asyncio.wait([counting], timeout=0.2)
    assert not counting.done(), "nothing has changed"
    database.window_positions.clear()
    with pytest.raises(OvertakenError, match="reset"):
        await asyncio.wait_for(counting, timeout=5)
