"""A simulated broker with live watches on it, for tests of ingest's live side. Runs on virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from schemas.codec import encode
from schemas.config import Config
from schemas.events import Event, ThreadCreated, ThreadDescribed
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.other_topics.progress import Progress, encode_progress
from schemas.topics import EPHEMERAL_EVENTS, THREAD_EVENTS, THREAD_PROGRESS
from services.chassis.log.port import Outgoing
from services.ingest.streams.frames import Frame
from services.ingest.streams.live import LiveLimits, Watches
from services.ingest.streams.watched_thread import TailLimits
from tests.support.simulated.log import Faults, SimulatedBroker
from tests.support.simulated.virtual_time import EPOCH_MS, VirtualClock
from tests.support.stored.followed_views import FollowedViews

KEY = ThreadKey(TenantId("acme"), ThreadId("t1"))
OTHER = ThreadKey(TenantId("acme"), ThreadId("t2"))
CREATED = ThreadCreated(config=Config(model="scripted"))
DESCRIBED = ThreadDescribed(title="a title")


def live_limits(*, watches_max: int = 20_000, tail: TailLimits | None = None, **others: Any) -> LiveLimits:
    """Limits as the service has them by default, but for those that are named."""
    return LiveLimits(watches_max=watches_max, tail=tail or TailLimits(1_000), **others)


class LiveWorld:
    def __init__(self, limits: LiveLimits, partitions: int, faults: Faults | None) -> None:
        topics = {topic.name: partitions for topic in (THREAD_EVENTS, EPHEMERAL_EVENTS, THREAD_PROGRESS)}
        self.broker = SimulatedBroker(topics, VirtualClock(), faults=faults)
        self.views = FollowedViews(self.broker)
        self.limits = limits
        self.partitions = partitions
        self._producer = self.broker.connect()
        self._drawn = 0

    async def start(self) -> None:
        self.watches = Watches(self.broker.connect(), self.views, self.views, self.limits)
        await self.watches.open()
        self._running = asyncio.create_task(self.watches.run())

    async def stop(self) -> None:
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        await self.watches.close()

    def partition(self, key: ThreadKey) -> int:
        return self._producer.partition_for(key.to_bytes(), self.partitions)

    async def append(self, *events: Event, key: ThreadKey = KEY, actor: str = "service:test") -> list[int]:
        records = []
        for event in events:
            self._drawn += 1
            event_id = derive("test", self._drawn)
            made = encode(key, event, source="test", actor=actor, time_ms=EPOCH_MS, event_id=event_id)
            records.append(Outgoing(key.to_bytes(), made.value, made.headers))
        return await self.append_raw(*records, partition=self.partition(key))

    async def append_raw(self, *records: Outgoing, partition: int = 0, topic: str = THREAD_EVENTS.name) -> list[int]:
        return list(await self._producer.appender.append(topic, partition, records))

    async def append_progress(self, *progress: Progress, key: ThreadKey = KEY) -> None:
        records = [Outgoing(key.to_bytes(), *encode_progress(item)) for item in progress]
        await self.append_raw(*records, partition=self.partition(key), topic=THREAD_PROGRESS.name)

    def project(self, key: ThreadKey = KEY) -> None:
        self.views.advance(self.partition(key))


@contextlib.asynccontextmanager
async def live_world(
    limits: LiveLimits | None = None, *, partitions: int = 1, faults: Faults | None = None
) -> AsyncIterator[LiveWorld]:
    world = LiveWorld(limits or live_limits(warm_records=0), partitions, faults)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


def seqs(frames: list[Frame] | tuple[Frame, ...]) -> list[int]:
    return [frame.seq for frame in frames]
