"""The relay at work, over a database in memory and a simulated log, in virtual time."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS
from services.projector.applying.effects import EffectsRelay
from services.projector.generations.store import Claim
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings
from tests.support.memory.relay import MemoryRelayStore
from tests.support.memory.views import MemoryViews
from tests.support.simulated.log import SimulatedBroker
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock
from tests.support.stored.view_harness import CLUSTER, HOME, InMemory, a_turn, advance


class CountedStore(MemoryRelayStore):
    def __init__(self, views: MemoryViews) -> None:
        super().__init__(views)
        self.views = views
        self.moves = 0

    async def move(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        self.moves += 1
        self.views.is_away = True
        await super().move(topic, cluster_id, positions)


@in_virtual_time
async def test_who_finishes_while_the_database_is_away_asks_it_now_and_then() -> None:
    records, database = a_turn(), InMemory()
    await advance(database, records)
    views = database.stores
    assert isinstance(views, MemoryViews)
    broker = SimulatedBroker({THREAD_EVENTS.name: HOME + 1, THREAD_EFFECTS.name: HOME + 1}, VirtualClock())
    settings, store = ProjectorSettings(), CountedStore(views)
    metrics = ProjectorMetrics.register(CollectorRegistry())
    relay = EffectsRelay(store, broker.connect(), CLUSTER, settings, metrics)
    end = len(records)
    relay.hold(await views.live(CLUSTER), {HOME: Claim(end, 1, CLUSTER)}, {HOME: end})
    running = asyncio.create_task(relay.run())
    await relay.finish(1.0)
    running.cancel()
    await asyncio.wait([running])
    assert len(broker.records(THREAD_EFFECTS.name, HOME)) == end
    assert 2 <= store.moves <= 1 + 1.0 / settings.limits.retry_seconds
