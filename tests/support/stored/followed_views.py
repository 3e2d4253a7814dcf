"""Views that the test moves along a simulated log by itself, without a projector."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.topics import THREAD_EVENTS
from services.chassis.threads.states import PartitionStates
from services.ingest.streams.frames import FoldedRecord
from services.runtime.transcript_store import ColdTranscript
from tests.support.memory.database import AwayError
from tests.support.memory.tables import Tables
from tests.support.memory.views import MemoryViews, folded
from tests.support.simulated.log import SimulatedBroker
from tests.support.stored.views_equal import Fold, decode_incoming

TOPIC = THREAD_EVENTS.name
T = TypeVar("T")


class FollowedViews(MemoryViews):
    """`advance` and `go_back` move them; `pause` is awaited once, before each answer."""

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__()
        self._broker = broker
        self._made = self.make("simulated", "live")
        self._begin()
        self.loads = 0
        self.transcripts_loaded = 0
        self.fallen_back_to: int | None = None
        """A position that is told instead of the real one, with no rows."""

    def advance(self, partition: int = 0, count: int | None = None) -> None:
        """By so many records, or to the end. The test says what is in which partition, whatever the key."""
        self._move_to(partition, None if count is None else self.next_offset(partition) + count)

    def go_back(self, partition: int, offset: int) -> None:
        """As a database that lost its last transactions in a crash."""
        ends = {number: at.next_offset for number, at in self._rows.positions.items()} | {partition: offset}
        self._begin()
        for number, end in ends.items():
            self._move_to(number, end)

    async def follow(self, partitions: int, seconds: float) -> None:
        """As a projector that is so much behind. Until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            for partition in range(partitions):
                self.advance(partition)

    def state(self, key: ThreadKey) -> ThreadState:
        row = self._rows.state(key)
        return NOTHING if row is None else row.state

    def events(self, key: ThreadKey) -> list[FoldedRecord]:
        rows = self._rows.of("events", key)
        return [folded(rows[seq,]) for seq in range(1, len(rows) + 1)]

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        self.loads += 1
        found = await super().load_threads(topic, partition, keys)
        return found if self.fallen_back_to is None else PartitionStates(self.fallen_back_to, {})

    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        found = await super().load(key)
        self.transcripts_loaded += found is not None
        return found

    async def ask(self, read: Callable[[Tables | None], T]) -> T:
        if self.pause is not None:
            await self.pause()
        if self.is_away:
            raise AwayError("the test turned it off")
        return read(self.tables)

    def _begin(self) -> None:
        self._made.tables = self._rows = Tables()
        self._fold = Fold(self._rows, lambda _: self._moving)

    def _move_to(self, partition: int, end: int | None) -> None:
        self._moving = partition
        if partition not in self._rows.positions:
            self._rows.claim([partition], "test", "simulated")
        new = self._broker.records(TOPIC, partition)[self.next_offset(partition) : end]
        self._fold.take([(incoming, decode_incoming(incoming)) for incoming in new])
        self.committed()
