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
from schemas.other_topics.progress import Heartbeat, decode_progress, progress_kind
from schemas.topics import THREAD_PROGRESS
from services.chassis.clock import Clock
from services.chassis.log.port import Incoming, Log, LogUnavailableError, Reader, TopicPartition
from services.chassis.process.timers import Timer, Timers

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
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class TopicEnd:
    asked_ms: int
    offset: int


class Leases:
    def __init__(self, log_: Log, clock: Clock, timers: Timers) -> None:
        self._log = log_
        self._clock = clock
        self._timers = timers
        self._watches: dict[tuple[bytes, str], Watch] = {}
        self._changed = asyncio.Event()
        self._read_to: dict[int, int] = {}
        """By partition: the offset up to which heartbeats have been read."""
        self._ends: dict[int, TopicEnd] = {}
        """By partition, as it was when a lease that seemed over last asked for it."""
        self._ask_ends: set[int] = set()
        self._overdue: dict[tuple[bytes, str], Watch] = {}
        """Whose lease seems to be over, until their heartbeats are read to the end."""

    def watch(self, key: ThreadKey, claim: str, partition: int, lease_ms: int, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called once the lease is over, again and again until the watch is taken away."""
        name = (key.to_bytes(), claim)
        if name in self._watches:
            return
        self._watches[name] = Watch(partition, lease_ms, self._clock.now_ms(), on_lost)
        self._look_at(name, self._watches[name], self._clock.now_ms() + lease_ms)
        self._changed.set()

    def unwatch(self, key: ThreadKey, claim: str) -> None:
        self._watches.pop((key.to_bytes(), claim), None)

    def _look_at(self, name: tuple[bytes, str], watch: Watch, at_ms: int) -> None:
        if watch.timer is not None:
            watch.timer.cancel()
        watch.timer = self._timers.at(at_ms, partial(self._look, name, watch))

    def _look(self, name: tuple[bytes, str], watch: Watch) -> None:
        if self._watches.get(name) is not watch:
            return
        now = self._clock.now_ms()
        over_at = watch.seen_ms + watch.lease_ms
        if now < over_at:
            self._look_at(name, watch, over_at)
        elif self._is_read_since(watch.partition, over_at):
            watch.on_lost()
            self._look_at(name, watch, now + watch.lease_ms)
        else:
            self._ask_ends.add(watch.partition)
            self._overdue[name] = watch
            self._look_at(name, watch, now + RETRY_MS)

    def _is_read_since(self, partition: int, time_ms: int) -> bool:
        """Whether every heartbeat that was in the log at that time has been heard."""
        end = self._ends.get(partition)
        return end is not None and end.asked_ms >= time_ms and self._read_to.get(partition, -1) >= end.offset

    async def run(self) -> None:
        """Reads the progress of the partitions in which something is watched. Until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._watches:
                try:
                    reader = await self._log.reader()
                    try:
                        await self._follow(reader)
                    finally:
                        await reader.close()
                except LogUnavailableError as error:
                    log.warning("heartbeats_not_read", error=str(error))
                    self._changed.set()
                    await asyncio.sleep(RETRY_MS / 1000)

    async def _follow(self, reader: Reader) -> None:
        self._read_to, self._ends = {}, {}
        while self._watches:
            await self._assign(reader)
            if self._ask_ends:
                asked = [TopicPartition(THREAD_PROGRESS.name, number) for number in sorted(self._ask_ends)]
                asked_ms = self._clock.now_ms()
                self._ask_ends = set()
                ends = await reader.end_offsets(asked)
                self._ends.update({tp.partition: TopicEnd(asked_ms, end) for tp, end in ends.items()})
                self._look_at_overdue(reader)
            for _, records in await reader.poll(POLL_MS):
                for record in records:
                    self._heard(record)
            self._look_at_overdue(reader)

    def _look_at_overdue(self, reader: Reader) -> None:
        for tp in reader.assignment():
            self._read_to[tp.partition] = reader.position(tp)
        overdue, self._overdue = self._overdue, {}
        for name, watch in overdue.items():
            self._look(name, watch)

    async def _assign(self, reader: Reader) -> None:
        """From the end: what was heard before a watch began says nothing about whether its executor lives now. Leases
        count from when their heartbeats could be heard.
        """
        wanted = {TopicPartition(THREAD_PROGRESS.name, watch.partition) for watch in self._watches.values()}
        have = reader.assignment()
        if wanted == have:
            return
        new = sorted(wanted - have)
        ends = await reader.end_offsets(new) if new else {}
        reader.assign({tp: ends.get(tp, 0) for tp in sorted(wanted)})
        for watch in self._watches.values():
            if TopicPartition(THREAD_PROGRESS.name, watch.partition) in ends:
                watch.seen_ms = self._clock.now_ms()

    def _heard(self, record: Incoming) -> None:
        if progress_kind(record.headers) != "heartbeat":
            return
        heartbeat = decode_progress(record.value)
        if isinstance(heartbeat, Heartbeat):
            watch = self._watches.get((record.key or b"", heartbeat.claim))
            if watch is not None:
                watch.seen_ms = self._clock.now_ms()
