"""Follows the whole log while chaos goes on, as one more reader: what each thread has come to, and when."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from schemas.codec import Record, Unreadable, decode
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, is_active, unknown_calls, waits_for_others
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Incoming, LogError, TopicPartition

POLL_MS = 100
AGAIN_SECONDS = 0.5

OnRecord = Callable[["Seen", Record], None]


@dataclass(slots=True, eq=False)
class Seen:
    """A thread, as far as it was read."""

    key: ThreadKey
    partition: int
    state: ThreadState = field(default_factory=lambda: NOTHING)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    unknown_since: dict[str, float] = field(default_factory=dict)
    """By call."""

    @property
    def is_idle(self) -> bool:
        """Nothing goes on here, and nothing waits."""
        return not is_active(self.state) and not unknown_calls(self.state)

    @property
    def waits_for_others(self) -> bool:
        return waits_for_others(self.state)


class Observer:
    def __init__(self, log: KafkaLog, partitions: int) -> None:
        self._log = log
        self.partitions = partitions
        self.threads: dict[ThreadKey, Seen] = {}
        self.next_offsets: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.owners: dict[tuple[str, int], str] = {}
        """By service and partition: the name of the instance that wrote there last, such as `runtime-1`."""
        self.listeners: list[OnRecord] = []

    def of(self, key: ThreadKey) -> Seen:
        found = self.threads.get(key)
        if found is None:
            found = Seen(key, self._log.partition_for(key.to_bytes(), self.partitions))
            self.threads[key] = found
        return found

    async def run(self) -> None:
        """Until cancelled; also while the broker is away."""
        while True:
            try:
                offsets = {TopicPartition(THREAD_EVENTS.name, at): offset for at, offset in self.next_offsets.items()}
                reader = await self._log.reader(offsets)
                try:
                    while True:
                        for tp, records in await reader.poll(POLL_MS):
                            for raw in records:
                                self._take(tp.partition, raw)
                finally:
                    await reader.close()
            except LogError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def until(self, seen: Seen, holds: Callable[[ThreadState], bool], seconds: float) -> bool:
        """Whether it came to hold in time."""
        try:
            async with asyncio.timeout(seconds):
                while not holds(seen.state):
                    seen.changed.clear()
                    await seen.changed.wait()
        except TimeoutError:
            return False
        return True

    def unsettled(self) -> list[Seen]:
        return [seen for seen in self.threads.values() if not seen.is_idle]

    def _take(self, partition: int, raw: Incoming) -> None:
        self.next_offsets[partition] = raw.offset + 1
        record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
        if isinstance(record, Unreadable):
            return
        seen = self.of(record.key)
        if record.offset <= seen.state.offset:
            return
        seen.state = fold(seen.state, record).state
        service, _, instance = record.source.partition("/")
        self.owners[service, partition] = f"{service}-{instance}"
        self._note_unknown(seen)
        seen.changed.set()
        for listener in self.listeners:
            listener(seen, record)

    def _note_unknown(self, seen: Seen) -> None:
        unknown = {call.call for call in unknown_calls(seen.state)}
        if not unknown and not seen.unknown_since:
            return
        now = asyncio.get_running_loop().time()
        kept: Mapping[str, float] = seen.unknown_since
        seen.unknown_since = {call: kept.get(call, now) for call in unknown}
