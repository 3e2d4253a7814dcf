"""A watched thread: its state, and the tail of frames that all its watches share."""

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Final

from schemas.codec import Unreadable, decode
from schemas.errors import ThreadlogError
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.thread import fold
from services.chassis.log.port import Incoming, TopicPartition
from services.ingest.streams.frames import FoldedRecord, Frame, fact_frame, folded_record

TAIL_BYTES_MAX: Final = 2 * 1_048_576
"""Bytes of a thread's tail, however few records they are: some large outputs must not fill the memory."""


class FoldEndedError(ThreadlogError):
    """The thread is no longer folded in this process."""

    retriable: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TailLimits:
    """How much of a thread its tail keeps. A client that is further behind is cut. What one poll brings may exceed the
    limits until the next poll.
    """

    records_max: int
    bytes_max: int = TAIL_BYTES_MAX


class WatchedThread:
    """The fold of one thread. Everything here runs in the event loop between two awaits, so it needs no lock."""

    def __init__(self, key: ThreadKey, tp: TopicPartition, loop: asyncio.AbstractEventLoop, limits: TailLimits) -> None:
        self.key = key
        self.tp = tp
        self.partition = tp.partition
        self.state: ThreadState = NOTHING
        self.next_offset = 0
        """Every record of the thread below this offset is folded."""
        self.starting: asyncio.Future[bool] | None = None
        self.is_ready = False
        self.ended: str | None = None
        self.holders = 0
        self.first_index = 0
        """Index of the tail's first frame, counted since the start."""
        self.first_seq = 1
        """The tail holds every record from this seq on."""
        self._loop = loop
        self._limits = limits
        self._tail: list[Frame] = []
        self._tail_bytes = 0
        self._sleepers: dict[asyncio.Future[None], None] = {}
        """Watches that wait, in the order in which they began to; they are woken in the same order."""
        self._verdicts: dict[int, list[asyncio.Future[FoldedRecord]]] = {}

    @property
    def place(self) -> str:
        """The partition, as messages name it."""
        return f"{self.tp.topic}/{self.tp.partition}"

    @property
    def end_index(self) -> int:
        """Index of the next frame to come."""
        return self.first_index + len(self._tail)

    def start_from(self, state: ThreadState, next_offset: int) -> None:
        """Start the fold with a state that holds every record below the offset."""
        self.state, self.next_offset, self.first_seq = state, next_offset, state.seq + 1

    def fold(self, incoming: Incoming) -> None:
        """Fold a record, show its frame, and tell whoever waits for its effect. A record below the position was folded
        before.
        """
        offset = incoming.offset
        if offset < self.next_offset:
            return
        self.next_offset = offset + 1
        record = decode(incoming.key, incoming.headers, incoming.value, offset, incoming.timestamp_ms)
        if isinstance(record, Unreadable):
            return
        self.state, verdict = fold(self.state, record)
        folded = folded_record(record, incoming.value, self.state.seq, verdict, self.partition)
        self.show(fact_frame(folded))
        for future in self._verdicts.pop(offset, ()):
            if not future.done():
                future.set_result(folded)

    def show(self, frame: Frame) -> None:
        """Add a frame to the tail."""
        self._tail.append(frame)
        self._tail_bytes += len(frame.sse)

    def wake(self) -> None:
        """Wake all watches that wait, in the order in which they began to."""
        for future in self._sleepers:
            if not future.done():
                future.set_result(None)

    async def sleep(self) -> None:
        """Wait until there is a new frame, or the fold ends."""
        future = self._loop.create_future()
        self._sleepers[future] = None
        try:
            await future
        finally:
            self._sleepers.pop(future, None)

    def end(self, reason: str) -> None:
        """End the fold: watches see the rest of the tail, and whoever waits for an effect gets FoldEndedError."""
        self.ended = reason
        self.wake()
        for futures in self._verdicts.values():
            for future in futures:
                if not future.done():
                    future.set_exception(FoldEndedError(reason))
        self._verdicts.clear()

    def trim(self) -> None:
        """Shorten the tail to its limits. Called before the first record of a poll, never within one: a client that had
        everything before the poll keeps up.
        """
        surplus_records = len(self._tail) - self._limits.records_max
        if surplus_records <= 0 and self._tail_bytes <= self._limits.bytes_max:
            return
        count = 0
        for frame in self._tail:
            if count >= surplus_records and self._tail_bytes <= self._limits.bytes_max:
                break
            count += 1
            self._tail_bytes -= len(frame.sse)
            if frame.seq:
                self.first_seq = frame.seq + 1
        del self._tail[:count]
        self.first_index += count

    def index_after(self, seq: int) -> int:
        """Return the index of the first frame with a later record, or of the next frame to come."""
        for number, frame in enumerate(self._tail):
            if frame.seq > seq:
                return self.first_index + number
        return self.end_index

    def frames_from(self, index: int) -> list[Frame]:
        """Return the frames from the index on."""
        return self._tail[index - self.first_index :]

    def folded_at(self, offset: int) -> FoldedRecord | None:
        """Return the record at the offset; None if the tail does not hold it."""
        for frame in reversed(self._tail):
            if frame.record is not None and frame.record.offset <= offset:
                return frame.record if frame.record.offset == offset else None
        return None

    async def when_folded(self, offset: int) -> FoldedRecord:
        """Wait until the record at the offset is folded. Raises FoldEndedError."""
        future: asyncio.Future[FoldedRecord] = self._loop.create_future()
        futures = self._verdicts.setdefault(offset, [])
        futures.append(future)
        try:
            return await future
        finally:
            if future in futures:
                futures.remove(future)
            if not futures and self._verdicts.get(offset) is futures:
                del self._verdicts[offset]
