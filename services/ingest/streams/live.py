"""Threads as they happen: one reader for all partitions, and a fold of those threads that somebody watches.

The reader keeps the newest records raw in a ring. The first watch of a thread takes its state from the projector's row,
which is read in one snapshot with the stored position, and folds on from there: out of the ring or, if the ring begins
later, with a short catch-up reader of its own. From then on each record of the thread is folded once, becomes one
frame, and joins the thread's tail, where all its watches find it.

A watch is a cursor. It reads what lies before the tail from the `events` view, and the rest from the tail. The fold
counts seq, so both are one sequence without gaps. A client that falls behind the tail's beginning is cut. It comes back
with its cursor, and what it missed is history by then.

Without a database, watches of threads that are folded already continue; new ones are refused.

Ephemeral threads have a topic of their own and no rows. Their watches begin with the oldest record of their partition.

Nothing here is stored: if the process dies, clients come back with their cursors to another one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import structlog

from schemas.errors import ThreadlogError
from schemas.ids import ThreadKey
from schemas.other_topics.progress import progress_kind
from schemas.state import NOTHING, ThreadState
from schemas.thread import Verdict
from schemas.topics import EPHEMERAL_EVENTS, THREAD_EVENTS, THREAD_PROGRESS, topic_of
from services.chassis.log.port import Incoming, Log, LogError, Reader, TopicPartition
from services.chassis.process.pacing import Pace
from services.chassis.threads.states import StatesUnavailableError, ThreadStates
from services.ingest.lru_cache import LruCache
from services.ingest.streams.frames import FoldedRecord, progress_frame
from services.ingest.streams.history import History
from services.ingest.streams.ring import Ring
from services.ingest.streams.watch import Watch
from services.ingest.streams.watched_thread import FoldEndedError, TailLimits, WatchedThread

EVENTS = THREAD_EVENTS.name
"""Topic of the threads that have views."""
EPHEMERAL = EPHEMERAL_EVENTS.name
PROGRESS = THREAD_PROGRESS.name

QUARANTINE = "quarantine"
SHOWN_PROGRESS = frozenset({"delta", "tool_output"})
"""Kinds of progress that clients see. The others are for services."""
START_TRIES = 3
"""How often a watch repeats a start that another watch began and gave up."""

log = structlog.get_logger()


class BehindError(ThreadlogError):
    """What a watch starts from is not far enough in time: the views, or a catch-up reader."""

    retriable: ClassVar[bool] = True


class TooManyWatchesError(ThreadlogError):
    """This process has as many streams as it may have; another one may have room."""

    retriable: ClassVar[bool] = True


class CursorError(ThreadlogError):
    """The cursor lies beyond the thread's last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """Limits of all watches of this process. Those without a default are set by deployments."""

    watches_max: int
    """Watches that may be open at once."""
    tail: TailLimits
    ring_bytes_max: int = 64 * 1_048_576
    """Bytes of the newest records of all partitions, kept raw. A busy service writes some MiB a second, so this holds
    the last ten seconds or more: longer than the projector is usually behind.
    """
    warm_records: int = 500
    """Records per partition that a starting process reads from before the log's end, so that its first watches need no
    catch-up reader.
    """
    poll_ms: int = 500
    """How long the broker may hold a poll that finds nothing."""
    retry_seconds: float = 0.05
    """The pause between looks at something that is behind, and after an error of the log."""
    behind_seconds: float = 10.0
    """How long a watch waits for the views, or for the reader, to come as far as it needs."""
    ephemeral_tail: TailLimits = field(default_factory=lambda: TailLimits(20_000, 16 * 1_048_576))
    """How much of an ephemeral thread is kept. It has no other history, so an older cursor is refused."""
    grace_seconds: float = 2.0
    """How long a thread is folded on after its last watch has gone: a client that reconnects finds it ready."""
    catch_ups_max: int = 8
    """Catch-up readers at once. Each has a connection to the broker and reads a partition at full speed."""
    catch_up_records_max: int = 200_000
    """Records of any thread that one catch-up reader reads, before the watch is refused because the views are behind.
    """
    catch_up_seconds: float = 15.0
    """How long one catch-up may take, waiting for its turn included."""
    history_page_records: int = 200
    """Records that one query of the `events` view returns to a watch."""
    created_max: int = 20_000
    """Threads remembered as created by this process, whose first watch needs no database."""


@dataclass(slots=True)
class LiveCounts:
    """What the streams count. Plain integers, because they are counted for each record."""

    records_read: int = 0
    records_folded: int = 0
    progress_forwarded: int = 0
    watches: int = 0
    """Watches that are open now."""
    threads: int = 0
    """Threads that are folded now."""
    ring_bytes: int = 0
    starts_without_database: int = 0
    catch_ups: int = 0
    cuts: int = 0
    folds_failed: int = 0


class Judged(NamedTuple):
    """What the fold decided about a record."""

    seq: int
    verdict: Verdict
    state: ThreadState
    """The thread's state after the record, or after a later one."""


class Watches:
    """Every watched thread of this process, and the reader that feeds them."""

    def __init__(
        self,
        log_: Log,
        states: ThreadStates,
        history: History,
        limits: LiveLimits,
        counts: LiveCounts | None = None,
        pace: Pace | None = None,
        on_quarantine: Callable[[Incoming], None] | None = None,
    ) -> None:
        """`on_quarantine` gets each report that a service has set a thread aside, whether somebody watches the thread
        or not.
        """
        self.limits = limits
        self.counts = counts or LiveCounts()
        self.history = history
        self._pace = pace
        self._on_quarantine = on_quarantine
        self._log = log_
        self._states = states
        self._loop = asyncio.get_running_loop()
        self._threads: dict[bytes, WatchedThread] = {}
        self._created: LruCache[bytes, int] = LruCache(self.limits.created_max)
        self._relied_on: dict[int, int] = {}
        self._catch_ups = asyncio.Semaphore(self.limits.catch_ups_max)
        self._partitions = 0
        self._reader: Reader | None = None
        self._rings = {topic: Ring((), self.limits.ring_bytes_max) for topic in (EVENTS, EPHEMERAL)}
        self._stopping = False

    # For the service

    async def open(self) -> None:
        """Start the reader, a little before the log's end if possible. Must be called before anything else."""
        self._partitions = await self._log.partition_count(EVENTS)
        starts: dict[TopicPartition, int] = {}
        for topic in self._rings:
            events = [TopicPartition(topic, partition) for partition in range(self._partitions)]
            begins, ends = await self._log.begin_offsets(events), await self._log.end_offsets(events)
            of_topic = {tp: max(begins[tp], ends[tp] - self.limits.warm_records) for tp in events}
            self._rings[topic] = Ring([of_topic[tp] for tp in events], self.limits.ring_bytes_max)
            starts |= of_topic
        progress = [TopicPartition(PROGRESS, p) for p in range(await self._log.partition_count(PROGRESS))]
        # One reader for all topics: a fetch costs the same whether it asks for one or for more.
        self._reader = await self._log.reader({**starts, **await self._log.end_offsets(progress)})

    async def run(self) -> None:
        """Read and fold until cancelled. Raises LogError if the log cannot be read any more."""
        reader = self._opened()
        while True:
            try:
                polled = await reader.poll(self.limits.poll_ms)
            except LogError as error:
                if not error.retriable:
                    raise
                log.warning("live_reader_failed", error=str(error))
                await asyncio.sleep(self.limits.retry_seconds)
                continue
            if polled:
                self._take(polled)
                if self._pace is not None:
                    await self._pace.pause_after([record.key for _, records in polled for record in records])
                # Whoever waits for these records runs now, even if the next ones are here already.
                await asyncio.sleep(0)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the first event not yet read, by partition."""
        reader = self._opened()
        return {tp: reader.position(tp) for tp in reader.assignment() if tp.topic in self._rings}

    def stop(self) -> None:
        """End every watch with its cursor, so that clients go to another process; refuse new watches."""
        self._stopping = True
        for thread in list(self._threads.values()):
            thread.end("the service is stopping")

    async def close(self) -> None:
        """Stop, and close the reader."""
        self.stop()
        if self._reader is not None:
            await self._reader.close()

    # For commands

    def note_created(self, key: ThreadKey, offset: int) -> None:
        """Remember that the thread has no record below the offset, so that its watches need no database.

        Either the thread was just created there under a drawn id, or its row was missing at a stored position not below
        the offset.
        """
        self._created.put(key.to_bytes(), offset)

    async def verdict(self, key: ThreadKey, offset: int, timeout_seconds: float) -> Judged | None:
        """Return what the fold decided about the thread's record at this offset; None if that is not known in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                thread = await self._hold(key)
                try:
                    folded = await self._folded(thread, offset)
                    return Judged(folded.seq, Verdict(folded.effect, folded.reason), thread.state)
                finally:
                    self._release(thread)
        except (TimeoutError, StatesUnavailableError, BehindError, FoldEndedError):
            return None

    async def _folded(self, thread: WatchedThread, offset: int) -> FoldedRecord:
        """Return the record at the offset once it is folded."""
        if offset >= thread.next_offset:
            return await thread.when_folded(offset)
        found = thread.folded_at(offset)
        while found is None:
            # The row from which this fold began is newer than the record, or the tail has dropped the record since.
            found = await self.history.at(thread.key, thread.partition, offset)
            if found is None:
                await asyncio.sleep(self.limits.retry_seconds)
        return found

    async def newest(self, key: ThreadKey) -> ThreadState:
        """Return the thread's state as of the log's end now; NOTHING if there is no such thread.

        Raises StatesUnavailableError, BehindError, FoldEndedError.
        """
        thread = await self._hold(key)
        try:
            end = await self._end(thread)
            deadline = self._loop.time() + self.limits.behind_seconds
            while self._opened().position(thread.tp) < end:
                if self._loop.time() > deadline:
                    raise BehindError(f"the live reader is behind the log in {thread.place}")
                await asyncio.sleep(self.limits.retry_seconds)
            if thread.ended is not None:
                raise FoldEndedError(thread.ended)
            return thread.state
        finally:
            self._release(thread)

    # For streams

    async def watch(self, key: ThreadKey, after: int) -> "Watch":
        """Return a watch that gives the records with seq > after, then what comes. The caller closes it.

        Raises CursorError, StatesUnavailableError, BehindError, TooManyWatchesError.
        """
        if self.counts.watches >= self.limits.watches_max:
            raise TooManyWatchesError(f"{self.limits.watches_max} streams are open here")
        thread = await self._hold(key)
        try:
            await self._await_cursor(thread, after)
            watch = Watch(thread, after, self)
        except BaseException:
            self._release(thread)
            raise
        self.counts.watches += 1
        return watch

    def closed(self, thread: WatchedThread) -> None:
        """Give up a watch; `Watch.close` calls this once."""
        self.counts.watches -= 1
        self._release(thread)

    async def _await_cursor(self, thread: WatchedThread, after: int) -> None:
        """Wait until the fold reaches the cursor. A client that comes from another process may be ahead of this one's
        reader, but not of the log.
        """
        if thread.key.ephemeral and after + 1 < thread.first_seq:
            raise CursorError(f"what came before {thread.first_seq} is gone: an ephemeral thread keeps no history")
        if after <= thread.state.seq:
            return
        end = await self._end(thread)
        deadline = self._loop.time() + self.limits.behind_seconds
        while after > thread.state.seq:
            if self._opened().position(thread.tp) >= end:
                raise CursorError(f"the thread's last record has seq {thread.state.seq}, the cursor is {after}")
            if self._loop.time() > deadline:
                raise BehindError(f"the live reader is behind the log in {thread.place}")
            await asyncio.sleep(self.limits.retry_seconds)

    async def _end(self, thread: WatchedThread) -> int:
        """Return the end of the thread's partition. Raises BehindError if the broker does not answer."""
        try:
            return (await self._log.end_offsets([thread.tp]))[thread.tp]
        except LogError as error:
            raise BehindError(f"the end of {thread.place} is not known: {error}") from error

    # Threads
    #
    # A thread is folded as long as somebody holds it: a watch, or a command that waits for its effect.

    async def _hold(self, key: ThreadKey) -> WatchedThread:
        """Return the thread, started and folded, and count its caller as a holder. `_release` gives it up."""
        raw_key = key.to_bytes()
        for _ in range(START_TRIES):
            if self._stopping:
                raise BehindError("the service is stopping")
            thread = self._threads.get(raw_key)
            if thread is None:
                tp = TopicPartition(topic_of(key).name, self._log.partition_for(raw_key, self._partitions))
                thread = self._threads[raw_key] = WatchedThread(key, tp, self._loop, self._tail_of(key))
                self.counts.threads = len(self._threads)
            thread.holders += 1
            if thread.is_ready:
                return thread
            try:
                if await self._started(thread):
                    return thread
            except BaseException:
                thread.holders -= 1
                raise
            thread.holders -= 1
        raise BehindError("other clients began to follow this thread and left before it was ready")

    def _tail_of(self, key: ThreadKey) -> TailLimits:
        return self.limits.ephemeral_tail if key.ephemeral else self.limits.tail

    def _release(self, thread: WatchedThread) -> None:
        """Give up the thread. It is folded on for a while, because clients reconnect."""
        thread.holders -= 1
        if thread.holders == 0:
            self._loop.call_later(self.limits.grace_seconds, self._drop, thread)

    def _drop(self, thread: WatchedThread) -> None:
        if thread.holders == 0:
            self._forget(thread)

    def _forget(self, thread: WatchedThread) -> None:
        raw_key = thread.key.to_bytes()
        if self._threads.get(raw_key) is thread:
            del self._threads[raw_key]
            self.counts.threads = len(self._threads)

    async def _started(self, thread: WatchedThread) -> bool:
        """Start the thread, or wait for the watch that starts it. False if that watch was cancelled midway."""
        if thread.starting is not None:
            return await asyncio.shield(thread.starting)
        thread.starting = self._loop.create_future()
        thread.starting.add_done_callback(_looked_at)
        try:
            await self._start(thread)
        except BaseException as error:
            self._forget(thread)
            if isinstance(error, ThreadlogError):
                thread.starting.set_exception(error)
            else:
                thread.starting.set_result(False)
            raise
        thread.starting.set_result(True)
        return True

    async def _start(self, thread: WatchedThread) -> None:
        """Fold the thread up to the reader's position, from the cheapest source that reaches back far enough."""
        created = self._created.get(thread.key.to_bytes())
        ring = self._rings[thread.tp.topic]
        if created is not None and created >= ring.begin(thread.partition):
            self.counts.starts_without_database += 1
            thread.start_from(NOTHING, created)
        elif thread.key.ephemeral:
            await self._start_from_begin(thread)
        else:
            await self._start_from_row(thread)
        if thread.next_offset < ring.begin(thread.partition):
            await self._catch_up(thread)
        # Nothing is awaited from here on, so no poll can come between the ring's records and `is_ready`.
        for record in ring.of(thread.partition, thread.key.to_bytes(), thread.next_offset):
            self._fold(thread, record)
        thread.is_ready = True

    async def _start_from_begin(self, thread: WatchedThread) -> None:
        """Start at the beginning of the partition. What has left the topic belonged to threads that are over."""
        try:
            begins = await self._log.begin_offsets([thread.tp])
        except LogError as error:
            raise BehindError(f"the begin of {thread.place} is not known: {error}") from error
        thread.start_from(NOTHING, begins[thread.tp])

    async def _start_from_row(self, thread: WatchedThread) -> None:
        """Start from the projector's row. Row and position come from one snapshot: below the position, every record of
        the thread is in its row.

        A position below one that was read before belongs to a database that was set back, by a failover for instance.
        The start waits for it; else the records in between would be read from the log once for each watch.
        """
        deadline = self._loop.time() + self.limits.behind_seconds
        while True:
            stored = await self._states.load_threads(EVENTS, thread.partition, [thread.key])
            if stored.next_offset >= self._relied_on.get(thread.partition, 0):
                break
            if self._loop.time() > deadline:
                raise BehindError(f"the views of {thread.place} fell back and have not caught up yet")
            await asyncio.sleep(self.limits.retry_seconds)
        self._relied_on[thread.partition] = stored.next_offset
        state = stored.states.get(thread.key, NOTHING)
        thread.start_from(state, max(stored.next_offset, state.offset + 1))

    async def _catch_up(self, thread: WatchedThread) -> None:
        """Fold the thread's records from its start up to where the ring begins by then. Raises BehindError beyond the
        limits.
        """
        tp, ring = thread.tp, self._rings[thread.tp.topic]
        raw_key = thread.key.to_bytes()
        scanned = 0
        try:
            async with asyncio.timeout(self.limits.catch_up_seconds), self._catch_ups:
                self.counts.catch_ups += 1
                reader = await self._log.reader({tp: thread.next_offset})
                try:
                    while thread.next_offset < ring.begin(thread.partition):
                        for _, records in await reader.poll(self.limits.poll_ms):
                            scanned += len(records)
                            for record in records:
                                if record.key == raw_key:
                                    self._fold(thread, record)
                        thread.next_offset = reader.position(tp)
                        thread.trim()
                        if scanned > self.limits.catch_up_records_max:
                            raise BehindError(
                                f"{thread.place} is more than {self.limits.catch_up_records_max} records ahead of what "
                                "this thread can be folded from"
                            )
                finally:
                    await reader.close()
        except TimeoutError:
            raise BehindError(f"catching up in {thread.place} took too long") from None
        except LogError as error:
            raise BehindError(f"cannot catch up in {thread.place}: {error}") from error

    # Records

    def _take(self, polled: Sequence[tuple[TopicPartition, Sequence[Incoming]]]) -> None:
        """Take the records of one poll, then wake the watches of all threads that got something."""
        touched: dict[WatchedThread, None] = {}
        # Progress first: a delta belongs before the fact that ends its step.
        for tp, records in polled:
            if tp.topic == PROGRESS:
                self._take_progress(records, touched)
        for tp, records in polled:
            if tp.topic in self._rings:
                self._take_events(tp, records, touched)
        self.counts.ring_bytes = sum([ring.payload_bytes for ring in self._rings.values()])
        for thread in touched:
            thread.wake()

    def _take_events(self, tp: TopicPartition, records: Sequence[Incoming], touched: dict[WatchedThread, None]) -> None:
        """Keep events in the ring, and fold those of watched threads."""
        self._rings[tp.topic].append(tp.partition, records)
        self.counts.records_read += len(records)
        threads = self._threads
        for record in records:
            thread = threads.get(record.key) if record.key is not None else None
            # A record outside its key's topic and partition is not part of the thread, whoever put it there.
            if thread is not None and thread.is_ready and thread.tp == tp:
                if thread not in touched:
                    touched[thread] = None
                    thread.trim()
                self._fold(thread, record)

    def _take_progress(self, records: Sequence[Incoming], touched: dict[WatchedThread, None]) -> None:
        """Pass progress on to watched threads, and reports about threads that were set aside to whoever collects
        them.
        """
        threads = self._threads
        for record in records:
            kind = progress_kind(record.headers)
            if kind == QUARANTINE and self._on_quarantine is not None:
                self._on_quarantine(record)
            thread = threads.get(record.key) if record.key is not None else None
            if thread is None or not thread.is_ready or record.value is None:
                continue
            if kind in SHOWN_PROGRESS:
                if thread not in touched:
                    touched[thread] = None
                    thread.trim()
                thread.show(progress_frame(kind, record.value))
                self.counts.progress_forwarded += 1

    def _fold(self, thread: WatchedThread, record: Incoming) -> None:
        """Fold one record. If the fold raises, only this thread's watches end."""
        try:
            thread.fold(record)
        except Exception:
            # The fold is total, so this is a bug. It must not end the streams of all other threads.
            log.exception("live_fold_failed", thread=str(thread.key), partition=record.partition, offset=record.offset)
            self.counts.folds_failed += 1
            self._forget(thread)
            thread.end("the thread could not be folded")
        self.counts.records_folded += 1

    def _opened(self) -> Reader:
        assert self._reader is not None, "open() comes first"
        return self._reader


def _looked_at(future: asyncio.Future[bool]) -> None:
    """Mark a failed start as seen, so that asyncio logs nothing if nobody else waited for it."""
    if not future.cancelled():
        future.exception()
