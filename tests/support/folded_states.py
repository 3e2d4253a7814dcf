"""The projector's rows without a projector: a simulated log folded up to a position of the test's choosing."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from schemas.codec import Record, decode
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, is_active
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from schemas.transcript import Transcript, transcript_changes
from services.chassis.states import PartitionKeys, PartitionStates, StatesUnavailableError
from services.runtime.transcripts import ColdTranscript
from tests.support.simulated_log import SimulatedBroker

TOPIC = THREAD_EVENTS.name


@dataclass
class _Rows:
    next_offset: int = 0
    states: dict[ThreadKey, ThreadState] = field(default_factory=dict)
    transcripts: dict[ThreadKey, Transcript] = field(default_factory=dict)


async def at_once() -> None:
    """A store that does not let anybody wait."""


class FoldedStates:
    """Implements StateStore, KeyStore and TranscriptStore. `advance` and `go_back` move it; `is_away` is a database that is
    down; `pause` is awaited before each answer.
    """

    def __init__(self, broker: SimulatedBroker, pause: Callable[[], Awaitable[None]] = at_once) -> None:
        self._broker = broker
        self._pause = pause
        self._partitions: dict[int, _Rows] = defaultdict(_Rows)
        self.is_away = False
        self.loads = 0
        self.transcripts_loaded = 0

    def next_offset(self, partition: int) -> int:
        return self._partitions[partition].next_offset

    def state(self, key: ThreadKey, partition: int = 0) -> ThreadState:
        return self._partitions[partition].states.get(key, NOTHING)

    def advance(self, partition: int = 0, count: int | None = None) -> None:
        """By so many records, or to the end."""
        rows = self._partitions[partition]
        for raw in self._broker.records(TOPIC, partition)[rows.next_offset :][:count]:
            rows.next_offset = raw.offset + 1
            record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
            if isinstance(record, Record):
                before = rows.states.get(record.key, NOTHING)
                after, verdict = fold(before, record)
                rows.states[record.key] = after
                transcript = rows.transcripts.setdefault(record.key, Transcript())
                transcript.apply(transcript_changes(before, after, record, verdict))

    def go_back(self, partition: int, offset: int) -> None:
        """As a database that lost its last transactions in a crash."""
        self._partitions[partition] = _Rows()
        self.advance(partition, offset)

    async def follow(self, partitions: int, seconds: float) -> None:
        """As a projector that is so much behind. Until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            for partition in range(partitions):
                self.advance(partition)

    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        await self._answer()
        rows = self._partitions[partition]
        return PartitionStates(rows.next_offset, {key: s for key, s in rows.states.items() if is_active(s)})

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        await self._answer()
        self.loads += 1
        rows = self._partitions[partition]
        return PartitionStates(rows.next_offset, {key: rows.states[key] for key in keys if key in rows.states})

    async def load_keys(self, topic: str, partition: int, keys_max: int) -> PartitionKeys | None:
        await self._answer()
        rows = self._partitions[partition]
        return PartitionKeys(rows.next_offset, list(rows.states)) if len(rows.states) <= keys_max else None

    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        try:
            await self._answer()
        except StatesUnavailableError:
            return None
        self.transcripts_loaded += 1
        for rows in self._partitions.values():
            if key in rows.states:
                return ColdTranscript(rows.states[key].seq, rows.transcripts[key].copy())
        return None

    async def _answer(self) -> None:
        await self._pause()
        if self.is_away:
            raise StatesUnavailableError("the test turned the database off")
