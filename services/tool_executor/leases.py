"""Watching the claims of others: a running call whose executor shows no heartbeat for its lease is lost.

Time is counted from what this process has seen, never from a foreign clock: from when it first saw the claim, or from
the last heartbeat. A lease is judged only on a progress topic that has been read to its end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from schemas.ids import ThreadKey
from schemas.progress import Heartbeat, decode_progress, progress_kind
from schemas.topics import THREAD_PROGRESS
from services.chassis.clock import Clock
from services.chassis.log import Incoming, Log, Reader, TopicPartition
from services.chassis.timers import Timers

log = structlog.get_logger()

POLL_MS = 500
RETRY_MS = 1_000


@dataclass(slots=True, eq=False)
class Watch:
    partition: int
    lease_ms: int
    seen_ms: int
    """When the claim, or its last heartbeat, was seen here."""
    on_lost: Callable[[], None]


class Leases:
    def __init__(self, log_: Log, clock: Clock, timers: Timers) -> None:
        self._log = log_
        self._clock = clock
        self._timers = timers
        self._watches: dict[tuple[bytes, str], Watch] = {}
        self._changed = asyncio.Event()
        self._read_to: dict[int, int] = {}
        """By partition: the offset up to which heartbeats have been read."""
        self._ends: dict[int, int] = {}
        """By partition: the topic's end when it was last asked for, for a lease that seems over."""
        self._ask_ends: set[int] = set()

    def watch(self, key: ThreadKey, claim: str, partition: int, lease_ms: int, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called once the lease is over, again and again until the watch is taken away."""
        name = (key.to_bytes(), claim)
        if name in self._watches:
            return
        self._watches[name] = Watch(partition, lease_ms, self._clock.now_ms(), on_lost)
        self._look_at(name, self._clock.now_ms() + lease_ms)
        self._changed.set()

    def unwatch(self, key: ThreadKey, claim: str) -> None:
        if self._watches.pop((key.to_bytes(), claim), None) is not None and not self._watches:
            self._changed.set()

    def _look_at(self, name: tuple[bytes, str], at_ms: int) -> None:
        self._timers.at(at_ms, partial(self._look, name))

    def _look(self, name: tuple[bytes, str]) -> None:
        watch = self._watches.get(name)
        if watch is None:
            return
        now = self._clock.now_ms()
        over_at = watch.seen_ms + watch.lease_ms
        if now < over_at:
            self._look_at(name, over_at)
        elif self._read_to.get(watch.partition, -1) >= self._ends.get(watch.partition, 1 << 62):
            del self._ends[watch.partition]
            watch.on_lost()
            self._look_at(name, now + watch.lease_ms)
        else:
            self._ask_ends.add(watch.partition)
            self._changed.set()
            self._look_at(name, now + RETRY_MS)

    async def run(self) -> None:
        """Reads the progress of the partitions in which something is watched. Until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._watches:
                reader = await self._log.reader()
                try:
                    await self._follow(reader)
                finally:
                    await reader.close()

    async def _follow(self, reader: Reader) -> None:
        self._read_to, self._ends = {}, {}
        while self._watches:
            await self._assign(reader)
            if self._ask_ends:
                asked = [TopicPartition(THREAD_PROGRESS.name, number) for number in self._ask_ends]
                self._ask_ends = set()
                ends = await reader.end_offsets(asked)
                self._ends.update({tp.partition: end for tp, end in ends.items()})
            for tp, records in await reader.poll(POLL_MS):
                for record in records:
                    self._heard(record)
                self._read_to[tp.partition] = records[-1].offset + 1
            for tp in reader.assignment():
                self._read_to[tp.partition] = max(self._read_to.get(tp.partition, 0), reader.position(tp))

    async def _assign(self, reader: Reader) -> None:
        """From the end: what was heard before a watch began says nothing about whether its executor lives now."""
        wanted = {TopicPartition(THREAD_PROGRESS.name, watch.partition) for watch in self._watches.values()}
        have = reader.assignment()
        if wanted != have:
            ends = await reader.end_offsets(wanted - have) if wanted - have else {}
            reader.assign({tp: ends.get(tp, 0) for tp in wanted})

    def _heard(self, record: Incoming) -> None:
        if progress_kind(record.headers) != "heartbeat":
            return
        heartbeat = decode_progress(record.value)
        if isinstance(heartbeat, Heartbeat):
            watch = self._watches.get((record.key or b"", heartbeat.claim))
            if watch is not None:
                watch.seen_ms = self._clock.now_ms()
