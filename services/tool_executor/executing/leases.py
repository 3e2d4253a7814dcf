"""Watches the leases of claims: a claim without a heartbeat for its lease counts as lost.

Two rules keep a living executor from being declared lost. Time is counted by this process's clock alone, from when it
first saw the claim or last heard a heartbeat; clocks of other machines play no part. And a lease is judged only after
the progress topic has been read to its end as of a time after the lease was over: if this process is slow, heartbeats
that it has not read yet still count.

Watches are shared by the executors of all topics in the process. One reader follows the progress of exactly those
partitions in which something is watched.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from schemas.ids import ThreadKey
from schemas.other_topics.progress import Heartbeat, decode_progress, progress_kind
from schemas.topics import THREAD_PROGRESS
from services.chassis.clock import Clock
from services.chassis.log.port import Incoming, Log, LogUnavailableError, Reader, TopicPartition
from services.chassis.process.timers import Timer, Timers

log = structlog.get_logger()

POLL_MS: Final = 500
"""How long one read waits, and so how late a new watch is noticed."""
RETRY_MS: Final = 1_000
"""The pause before an overdue lease is judged again, or the topic is read again after an error."""


@dataclass(slots=True, eq=False)
class Watch:
    """One claim whose lease is watched."""

    partition: int
    lease_ms: int
    seen_ms: int
    """When this process saw the claim or its latest heartbeat."""
    on_lost: Callable[[], None]
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """The end of a partition, and when it was asked for."""

    asked_ms: int
    offset: int


class Leases:
    """Watches claims for all executors of this process."""

    def __init__(self, log_: Log, clock: Clock, timers: Timers) -> None:
        self._log = log_
        self._clock = clock
        self._timers = timers
        self._watches: dict[tuple[bytes, str], Watch] = {}
        self._changed = asyncio.Event()
        self._read_to: dict[int, int] = {}
        """The offset up to which heartbeats have been read, by partition."""
        self._ends: dict[int, TopicEnd] = {}
        """The end of each partition as it was when an overdue lease last asked for it."""
        self._ask_ends: set[int] = set()
        self._overdue: dict[tuple[bytes, str], Watch] = {}
        """Watches whose lease seems to be over, until the heartbeats are read to the end."""

    def watch(self, key: ThreadKey, claim: str, partition: int, lease_ms: int, on_lost: Callable[[], None]) -> None:
        """Watch a claim. `on_lost` is called when its lease is over, and after each further lease until `unwatch`."""
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
        """Return whether every heartbeat that was in the log at that time has been read."""
        end = self._ends.get(partition)
        return end is not None and end.asked_ms >= time_ms and self._read_to.get(partition, -1) >= end.offset

    async def run(self) -> None:
        """Read the progress of the partitions in which something is watched, until cancelled."""
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
        """Read heartbeats while anything is watched. Positions of an earlier reader say nothing about this one."""
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
        """Follow the partitions of all watches, new ones from their end.

        Heartbeats from before a watch began do not say whether its executor is alive now. The leases in a new partition
        start anew, because before this moment their heartbeats could not be heard.
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
        """Renew the lease of a claim. Heartbeats of claims that nobody watches here are ignored."""
        if progress_kind(record.headers) != "heartbeat":
            return
        heartbeat = decode_progress(record.value)
        if isinstance(heartbeat, Heartbeat):
            watch = self._watches.get((record.key or b"", heartbeat.claim))
            if watch is not None:
                watch.seen_ms = self._clock.now_ms()
