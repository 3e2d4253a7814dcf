"""The worker of the operations windows, fed by a member of its group as Faust feeds it."""

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from services.chassis.log.consumer_groups import ROLLUPS_GROUP
from services.chassis.log.port import Incoming, Reader, TopicPartition
from services.projector.metrics import RollupsMetrics
from services.projector.settings import RollupsSettings
from services.projector.windows.windows import GapError, OvertakenError
from services.projector.windows.worker import TOPIC, WindowWorker
from tests.simulation.processes import settings_of
from tests.support.limits import with_limits
from tests.support.memory.windows import MemoryWindowStore
from tests.support.worlds.services import Process

if TYPE_CHECKING:
    from tests.simulation.world import SimulationWorld

POLL_MS = 300
BUFFERED = 7


@cache
def _settings() -> RollupsSettings:
    settings: RollupsSettings = settings_of(
        with_limits(RollupsSettings, flush_seconds=0.3, batch_max=7, cells_max=1), {}
    )
    return settings


class RollupsProcess(Process):
    """As `services.projector.windows.rollups`, without Faust."""

    world: "SimulationWorld"
    _reader: Reader | None = None
    _held: frozenset[TopicPartition] = frozenset()

    async def start(self, instance_id: str | None = None, group: str = "") -> "RollupsProcess":
        await self._inside(self._start(instance_id))
        return self

    async def _start(self, instance_id: str | None) -> None:
        cluster_id = await self.log.cluster_id()
        metrics = self.world.metrics(RollupsMetrics.register)
        self.worker = WindowWorker(MemoryWindowStore(self.world.store), self.log, cluster_id, _settings(), metrics)
        self._buffer = asyncio.Queue[tuple[int, Incoming]](BUFFERED)
        self.spawn(self._count(), "count")
        self.spawn(self._hand_on(), "agent")
        self._reader = reader = await self.log.group_reader([TOPIC], ROLLUPS_GROUP, self, instance_id)
        self.reading = self.spawn(self._read(reader), "read")
        self.is_up = True

    async def _count(self) -> None:
        """Where it is overtaken the process ends, and its supervisor starts it again."""
        try:
            await self.worker.run()
        except (OvertakenError, GapError) as error:
            self.world.story.tell(self.owner, f"ends: {error}")
            self.crash()

    async def _read(self, reader: Reader) -> None:
        while True:
            for tp, records in await reader.poll(POLL_MS):
                for record in records:
                    await self._buffer.put((tp.partition, record))

    async def _hand_on(self) -> None:
        """What it is at while partitions change hands it hands on all the same."""
        while True:
            partition, record = await self._buffer.get()
            await self.worker.feed(partition, record.offset, record.value, record.timestamp_ms)

    # The group's side: all that it has is told at once, and read from where the windows say

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._held -= partitions
        self._seek(await self._hold())

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        before, self._held = self._held, self._held | partitions
        starts = await self._hold()
        self._seek({tp: offset for tp, offset in starts.items() if tp in before})
        return starts

    async def _hold(self) -> dict[TopicPartition, int]:
        while not self._buffer.empty():
            self._buffer.get_nowait()
        starts = await self.worker.hold([tp.partition for tp in self._held])
        return {TopicPartition(TOPIC, partition): offset for partition, offset in starts.items()}

    def _seek(self, starts: Mapping[TopicPartition, int]) -> None:
        if self._reader is not None:
            for tp, offset in starts.items():
                self._reader.seek(tp, offset)

    async def _stop(self) -> None:
        self.reading.cancel()
        await asyncio.wait([self.reading])
        await self.worker.count()
