"""The outbox: how appends become batches, the same for every implementation of the log.

**Batching.** A turn's price is its round trips, so each partition has one queue and at most one batch in flight:
whatever is queued while a batch travels goes as the next one. The first append of an idle partition is sent by
`call_soon`, so that all appends of one loop iteration are one batch. There is no task per append and none per batch,
only callbacks.

**Order.** A batch that failed with a retriable error is sent again, after a pause, before anything that was queued
later. So records of a partition are stored in the order in which they were appended, whatever fails.

**Deadlines.** Each append has one. When it passes, the append's future fails. What was still queued is dropped; what
was already sent may have been stored. A failed append therefore means "unknown", and callers must be able to repeat it.

**What happens if the process dies.** A batch in flight is stored as a whole or not at all, because Kafka writes a batch
atomically; a call that is larger than a batch may be stored in part. The outbox itself is lost. Callers depend on
nothing in it: they act on the resolved future, or on the record when they read it back.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from services.chassis.backoff import backoff_seconds
from services.chassis.log.port import LogError, LogUnavailableError, Outgoing
from services.chassis.settings import MIB

RECORD_OVERHEAD_BYTES: Final = 40
"""Upper bound of a record's own framing: lengths, offsets, timestamp, attributes."""
HEADER_OVERHEAD_BYTES: Final = 10
"""Upper bound of a header's own framing: the lengths of its name and value."""
BATCH_BYTES_MAX: Final = MIB
"""Payload of one batch. Topics accept batches of a little more; larger ones would save no round trip that matters."""
QUEUE_BYTES_MAX: Final = 64 * MIB
"""Payload that may wait in one partition's queue. Beyond it an append fails at once instead of filling the memory."""
LOSSY_BYTES_MAX: Final = MIB
"""Payload behind which progress is dropped instead of queued: progress that arrives late is worth nothing."""
RETRY_SECONDS_FIRST: Final = 0.05
"""Pause before the first retry: a new leader of a partition is usually known within some tens of milliseconds."""
RETRY_SECONDS_MOST: Final = 1.0
"""Longest pause between retries: the first append after an outage waits no longer than this."""

BatchResult = int | LogError
"""The offset of a batch's first record, or why it is not known to be stored."""


class BatchSender(Protocol):
    """The way to a broker, of which each implementation of the log has its own."""

    def send(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        """Send one batch; call `done` exactly once, from a later loop iteration.

        A retriable error means that the outbox sends the batch again. Not before a later iteration: the outbox is still
        taking notes of the batch while this runs.
        """
        ...


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Sizes are payload bytes of one partition, by `record_bytes_bound`."""

    record_bytes_max: int
    delivery_timeout_seconds: float
    batch_bytes_max: int = BATCH_BYTES_MAX
    queue_bytes_max: int = QUEUE_BYTES_MAX
    lossy_bytes_max: int = LOSSY_BYTES_MAX
    retry_seconds_first: float = RETRY_SECONDS_FIRST
    retry_seconds_most: float = RETRY_SECONDS_MOST


@dataclass(slots=True)
class OutboxCounts:
    """Plain integers, because they are counted on the hot path; `log.metrics` shows them to Prometheus."""

    records: int = 0
    """Records that the broker acknowledged."""
    batches: int = 0
    """Batches sent, retries included."""
    retries: int = 0
    appends_failed: int = 0
    lossy_records_dropped: int = 0


class Outboxes:
    """The appender keeps an outbox for each topic and partition, made when it is first used."""

    def __init__(self, sender: BatchSender, limits: OutboxLimits, counts: OutboxCounts) -> None:
        self.sender = sender
        self.limits = limits
        self.counts = counts
        self.loop = asyncio.get_running_loop()
        self._outboxes: dict[tuple[str, int], _Outbox] = {}
        self._busy: dict[_Outbox, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed: LogError | None = None

    def append(self, topic: str, partition: int, records: Sequence[Outgoing]) -> asyncio.Future[tuple[int, ...]]:
        """Queue the records; see `Appender.append`. A refusal fails the future at once, and stores nothing."""
        future: asyncio.Future[tuple[int, ...]] = self.loop.create_future()
        outbox = self._outbox(topic, partition)
        payload_bytes, largest_bytes = _measure(records)
        refusal = self._refusal(outbox, payload_bytes, largest_bytes)
        if refusal is not None:
            self._fail(future, refusal)
        elif not records:
            future.set_result(())
        else:
            self._enqueue(outbox, _Entry(records, payload_bytes, self._deadline(), future))
        return future

    def append_lossy(self, topic: str, partition: int, records: Sequence[Outgoing]) -> None:
        """Queue progress, or drop and count it when too much is queued already."""
        if not records:
            return
        outbox = self._outbox(topic, partition)
        payload_bytes, largest_bytes = _measure(records)
        if (
            outbox.queued_bytes + payload_bytes > self.limits.lossy_bytes_max
            or self._refusal(outbox, payload_bytes, largest_bytes) is not None
        ):
            self.counts.lossy_records_dropped += len(records)
        else:
            self._enqueue(outbox, _Entry(records, payload_bytes, self._deadline(), None))

    async def flush(self) -> None:
        """Return once all that is queued now was acknowledged or failed. Failures are reported by the callers' futures.

        An empty entry at the end of each queue is the barrier: it is resolved when all entries before it are done.
        """
        barriers: list[asyncio.Future[tuple[int, ...]]] = []
        for outbox in self._busy:
            future: asyncio.Future[tuple[int, ...]] = self.loop.create_future()
            barriers.append(future)
            outbox.queue.append(_Entry((), 0, self._deadline(), future))
        if barriers:
            await asyncio.wait(barriers)

    def close(self, reason: LogError) -> None:
        """Refuse further appends and fail what is still outstanding."""
        self._closed = reason
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for outbox in self._busy:
            outbox.abandon(reason)
        self._busy.clear()

    def _outbox(self, topic: str, partition: int) -> "_Outbox":
        key = (topic, partition)
        outbox = self._outboxes.get(key)
        if outbox is None:
            outbox = self._outboxes[key] = _Outbox(self, topic, partition)
        return outbox

    def _refusal(self, outbox: "_Outbox", payload_bytes: int, largest_bytes: int) -> LogError | None:
        """Return why the records are not queued, or None.

        A record that is too large fails for good. A full queue is retriable: it empties once the broker answers.
        """
        if self._closed is not None:
            return self._closed
        if largest_bytes > self.limits.record_bytes_max:
            return LogError(
                f"a record of about {largest_bytes} bytes for {outbox.name} is larger than the "
                f"{self.limits.record_bytes_max} that the log takes; nothing of this append was stored"
            )
        if outbox.queued_bytes + payload_bytes > self.limits.queue_bytes_max:
            return LogUnavailableError(
                f"the outbox of {outbox.name} already holds {outbox.queued_bytes} bytes that the log has not "
                "acknowledged; nothing of this append was stored"
            )
        return None

    def _deadline(self) -> float:
        return self.loop.time() + self.limits.delivery_timeout_seconds

    def _enqueue(self, outbox: "_Outbox", entry: "_Entry") -> None:
        outbox.queue.append(entry)
        outbox.queued_bytes += entry.payload_bytes
        if outbox not in self._busy:
            self._busy[outbox] = None
            self.loop.call_soon(outbox.send_next)
            if self._sweep is None:
                self._sweep = self.loop.call_later(self._sweep_seconds, self._expire)

    @property
    def _sweep_seconds(self) -> float:
        return self.limits.delivery_timeout_seconds / 20

    def _expire(self) -> None:
        """Fail appends whose deadline has passed. One timer serves all, so they fail up to a twentieth of it late."""
        self._sweep = self.loop.call_later(self._sweep_seconds, self._expire) if self._busy else None
        now = self.loop.time()
        for outbox in self._busy:
            outbox.expire(now)

    def idle(self, outbox: "_Outbox") -> None:
        self._busy.pop(outbox, None)

    def resolve(self, entry: "_Entry", offsets: tuple[int, ...]) -> None:
        if entry.future is not None and not entry.future.done():
            entry.future.set_result(offsets)

    def fail(self, entry: "_Entry", error: LogError) -> None:
        if entry.failed:
            return
        entry.failed = True
        if entry.future is None:
            self.counts.lossy_records_dropped += len(entry.records)
        elif not entry.records:
            self.resolve(entry, ())
        elif not entry.future.done():
            self._fail(entry.future, error)

    def _fail(self, future: asyncio.Future[tuple[int, ...]], error: LogError) -> None:
        self.counts.appends_failed += 1
        future.set_exception(error)
        future.exception()  # counts as looked at: no log line for who appends without awaiting


class _Entry:
    """The records of one call. An entry without records is the barrier of a flush."""

    __slots__ = ("deadline", "failed", "future", "offsets", "payload_bytes", "records")

    def __init__(
        self,
        records: Sequence[Outgoing],
        payload_bytes: int,
        deadline: float,
        future: asyncio.Future[tuple[int, ...]] | None,
    ) -> None:
        self.records = records
        self.payload_bytes = payload_bytes
        self.deadline = deadline
        self.future = future
        """What the caller waits for; None for a lossy append."""
        self.failed = False
        """Whether the future has failed. The records may still be in flight, and are not sent again."""
        self.offsets: tuple[int, ...] = ()
        """Offsets of the parts that are stored already, if the call is larger than a batch."""


class _Batch:
    """What is in flight: whole entries, or a part of one that is larger than a batch."""

    __slots__ = ("entries", "failures", "is_part", "records")

    def __init__(self, entries: list[_Entry], records: Sequence[Outgoing], *, is_part: bool) -> None:
        self.entries = entries
        self.records = records
        self.is_part = is_part
        """Whether it is a part of a larger entry, which stays at the head of the queue until its last part is stored.
        """
        self.failures = 0
        """Times that sending this batch has failed."""


class _Outbox:
    """The queue of one partition, and its batch in flight."""

    __slots__ = ("_batch", "_owner", "_partition", "_retry", "_topic", "queue", "queued_bytes")

    def __init__(self, owner: Outboxes, topic: str, partition: int) -> None:
        self._owner = owner
        self._topic = topic
        self._partition = partition
        self._batch: _Batch | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.queue: deque[_Entry] = deque()
        self.queued_bytes = 0

    @property
    def name(self) -> str:
        return f"{self._topic}/{self._partition}"

    def send_next(self) -> None:
        """Send the next batch unless one is in flight. Called by `call_soon`, so all that was queued since is in it."""
        if self._batch is not None:
            return
        self._batch = batch = self._take()
        if batch is None:
            self._owner.idle(self)
        else:
            self._send(batch)

    def _send(self, batch: _Batch) -> None:
        counts = self._owner.counts
        counts.batches += 1
        self._owner.sender.send(self._topic, self._partition, batch.records, partial(self._done, batch))

    def _done(self, batch: _Batch, result: BatchResult) -> None:
        if self._batch is not batch:
            return  # it was abandoned when the log closed, and the answer concerns nobody any more
        if isinstance(result, int):
            self._stored(batch, result)
        elif result.retriable and not all(entry.failed for entry in batch.entries):
            self._owner.counts.retries += 1
            batch.failures += 1
            limits = self._owner.limits
            pause = backoff_seconds(batch.failures, limits.retry_seconds_first, limits.retry_seconds_most)
            self._retry = self._owner.loop.call_later(pause, self._send_again, batch)
            return
        else:
            for entry in batch.entries:
                self._owner.fail(entry, result)
        self._batch = None
        self.send_next()

    def _send_again(self, batch: _Batch) -> None:
        self._retry = None
        if all(entry.failed for entry in batch.entries):
            self._batch = None
            self.send_next()
        else:
            self._send(batch)

    def _stored(self, batch: _Batch, offset: int) -> None:
        owner = self._owner
        owner.counts.records += len(batch.records)
        if batch.is_part:
            entry = batch.entries[0]
            entry.offsets += tuple(range(offset, offset + len(batch.records)))
            if len(entry.offsets) == len(entry.records):
                owner.resolve(entry, entry.offsets)
                if self.queue and self.queue[0] is entry:
                    self._pop()
            return
        for entry in batch.entries:
            end = offset + len(entry.records)
            owner.resolve(entry, tuple(range(offset, end)))
            offset = end

    def _take(self) -> _Batch | None:
        """Return the next batch, or None: whole entries as long as they fit, or a part of one too large for any
        batch.
        """
        entries: list[_Entry] = []
        batch_bytes = 0
        bytes_max = self._owner.limits.batch_bytes_max
        while self.queue:
            entry = self.queue[0]
            if entry.failed:
                self._pop()
            elif entry.payload_bytes > bytes_max:
                return _cut(entry, bytes_max) if not entries else _join(entries)
            elif batch_bytes + entry.payload_bytes > bytes_max:
                return _join(entries)
            else:
                batch_bytes += entry.payload_bytes
                self._pop()
                if entry.records or entries:
                    entries.append(entry)
                else:
                    self._owner.resolve(entry, ())
        return _join(entries) if entries else None

    def _pop(self) -> None:
        self.queued_bytes -= self.queue.popleft().payload_bytes

    def expire(self, now: float) -> None:
        """Fail what is past its deadline. Deadlines ascend along the queue, and the batch in flight is older still.

        The batch in flight stays: only its answer tells when the next one may be sent without changing the order.
        """
        error = LogUnavailableError(
            f"{self.name} did not acknowledge within {self._owner.limits.delivery_timeout_seconds} s"
        )
        for entry in self._batch.entries if self._batch is not None else ():
            if entry.deadline <= now:
                self._owner.fail(entry, error)
        while self.queue and self.queue[0].deadline <= now:
            self._owner.fail(self.queue[0], error)
            self._pop()

    def abandon(self, reason: LogError) -> None:
        """Fail everything, because the log is closed."""
        if self._retry is not None:
            self._retry.cancel()
        for entry in [*(self._batch.entries if self._batch is not None else ()), *self.queue]:
            self._owner.fail(entry, reason)
        self._batch = None
        self.queue.clear()
        self.queued_bytes = 0


def _join(entries: list[_Entry]) -> _Batch:
    if len(entries) == 1:
        return _Batch(entries, entries[0].records, is_part=False)
    return _Batch(entries, [record for entry in entries for record in entry.records], is_part=False)


def _cut(entry: _Entry, bytes_max: int) -> _Batch:
    """Return the next part of an entry: at least one record, and as many as fit."""
    part: list[Outgoing] = []
    part_bytes = 0
    for record in entry.records[len(entry.offsets) :]:
        part_bytes += record_bytes_bound(record)
        if part and part_bytes > bytes_max:
            break
        part.append(record)
    return _Batch([entry], part, is_part=True)


def _measure(records: Sequence[Outgoing]) -> tuple[int, int]:
    """Return the bytes of all records together, and of the largest one."""
    total = largest = 0
    for record in records:
        size = record_bytes_bound(record)
        total += size
        largest = max(largest, size)
    return total, largest


def record_bytes_bound(record: Outgoing) -> int:
    """Return at least the bytes that the record takes in a batch. Header names are ASCII."""
    size = RECORD_OVERHEAD_BYTES + len(record.key) + (0 if record.value is None else len(record.value))
    for name, value in record.headers:
        size += HEADER_OVERHEAD_BYTES + len(name) + len(value)
    return size
