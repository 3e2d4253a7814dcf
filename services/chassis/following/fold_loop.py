"""The frame of a service that follows threads: it reads assigned partitions in log order, folds, and lets it act.

**Where states come from.** The projector's rows (`threads.states`): those of active threads are read when a partition
is assigned, those of idle threads when a record for them arrives. Records of a thread whose row is being read wait in
`Partition.parked`; the loop itself never waits for a database. Without a store, as for ephemeral threads, the partition
is read from its beginning, and a thread stays in memory until it is closed.

**Why a row of any age is safe.** Each state has the offset of its last record, and a record at or below that offset is
skipped. So a row that is newer than this reader does no harm: its records are simply skipped. A row that is older is
dangerous, because the records in between were read here already and are not read again. `Partition.relied_on` guards
against that: a stored position below it is not trusted. The loop waits for the store to catch up, with a limit, and
then reads the thread out of its partition. The same holds for a store that cannot be read.

**What the service is told.** Each folded record at once (`on_record`), and after each batch the threads to act for
(`on_batch`), but only once their partition has been read up to the end that the log had at the assignment. Before that
the service could act on a past that a later record has already changed.

**What happens if the process dies.** Nothing here is durable, so nothing is lost: another member gets the partition and
starts from the rows again. Committed offsets are for lag tools alone; no reader starts at them. A service that died
between the effect of `on_batch` and its record sees the same state again and decides the same thing again; what it
appends carries derived ids, so the fold recognises a second copy.

**Failures of one thread.** A thread that cannot be folded, or that the service sets aside (`Partition.set_aside`), is
quarantined: no record is folded onto it until it is read anew from the store, after a pause that grows with its
failures (`quarantine`). The other threads of the partition go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeAlias

import structlog

from schemas.codec import Record, Unreadable, decode
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, is_active
from schemas.thread import Verdict, fold
from services.chassis.following.followed_threads import FollowedThread, Partition, Work
from services.chassis.following.key_filter import KeyFilter
from services.chassis.following.limits import FoldLoopLimits
from services.chassis.following.quarantine import Quarantine
from services.chassis.log.port import Incoming, Log, LogUnavailableError, Reader, TopicPartition
from services.chassis.log.scan import scan
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.pacing import Pace
from services.chassis.threads.states import KeyStore, PartitionStates, StateStore, StatesUnavailableError

log = structlog.get_logger()

QUARANTINE_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the threads that are set aside. It has to be short beside their shortest pause."""

AskOffsets: TypeAlias = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]


class Follower(Protocol[Work]):
    """The service's side of the frame.

    The loop calls these between two records, so none of them may block, and none may raise because of a single thread:
    such a thread is set aside instead.
    """

    def new_work(self) -> Work:
        """Make what the service keeps for a thread that comes into memory. The frame never looks into it."""

    def on_record(self, thread: FollowedThread[Work], before: ThreadState, record: Record, verdict: Verdict, /) -> None:
        """Take note of a record that has just been folded, from the state `before` to `thread.state`.

        The service also gets the records from before its partition was ready, and must not act on them.
        """

    def on_batch(self, partition: Partition[Work], touched: Iterable[FollowedThread[Work]], /) -> None:
        """Act for these threads, whose records of this batch are folded. Called only for partitions that are ready."""

    def on_ready(self, partition: Partition[Work], /) -> None:
        """Begin to act for the partition: it has been read up to the end that it had at the assignment."""

    def on_lost(self, partition: Partition[Work], /) -> None:
        """Drop what runs for the partition, or hand it over: another member has it now. Its threads leave memory."""

    def on_quarantined(self, partition: Partition[Work], thread: FollowedThread[Work], error: Exception, /) -> None:
        """Take note of a thread of which a record could not be folded; `thread.quarantined` says why."""

    def report_quarantined(self, partition: Partition[Work], thread: FollowedThread[Work], seconds: float, /) -> None:
        """Report a thread that has been set aside for `seconds`. Called soon after that, and again at intervals."""

    def on_refold(self, thread: FollowedThread[Work], /) -> None:
        """Let go of what is kept for this object: the thread was set aside and is read anew, as another one."""

    def may_evict(self, thread: FollowedThread[Work], /) -> bool:
        """Return whether the service needs nothing of an idle thread's memory, such as work under way."""


class FoldLoop(Generic[Work]):
    """Follows one topic. `assigned` and `revoked` come from the reader, `take` from whoever polls it."""

    def __init__(
        self,
        log_: Log,
        store: StateStore | None,
        follower: Follower[Work],
        topic: str,
        settings: FoldLoopLimits,
        keys: KeyStore | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._log = log_
        self._store = store
        self._keys = keys
        self._pace = pace
        self._follower = follower
        self._topic = topic
        self._settings = settings
        self.poll_ms = settings.poll_ms
        self._to_load = asyncio.Event()
        self._to_list = asyncio.Event()
        self.partitions: dict[int, Partition[Work]] = {}
        self._partition_count = 0
        self.records_folded = 0

    def not_ready(self) -> str | None:
        """Return why the service is not ready, or None once all its partitions have been read up to their ends."""
        if not self.partitions:
            return "no partitions"
        behind = sorted(partition.number for partition in self.partitions.values() if not partition.ready)
        return f"reading up to the end of partitions {behind}" if behind else None

    def positions(self) -> dict[TopicPartition, int]:
        """Return by partition the offset of the first record that was not read."""
        return {TopicPartition(self._topic, number): at.next_offset for number, at in self.partitions.items()}

    def waits_for_states(self) -> bool:
        """Return whether a partition is paused because too many records wait for rows: then the database is slow, and
        the process does not stand still.
        """
        return any(partition.paused for partition in self.partitions.values())

    def begin(self, spawn: Spawn) -> None:
        """Spawn what works beside the reading. Each task runs until it is cancelled."""
        spawn(self.run_loader(), "loader")
        spawn(self.run_keys(), "keys")
        spawn(self.run_evictions(), "evictions")
        spawn(self.run_quarantine(), "quarantine")

    # Assignment (chassis.log.port.Rebalance)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Load what is stored of new partitions; return the offset from which each is read.

        The ends are asked for before the rows are read. So every record that existed at the assignment lies below
        `catch_up_to`, and the service acts only once it knows what its predecessor did last.
        """
        self._partition_count = await self._log.partition_count(self._topic)
        ends = await self._patiently(self._log.end_offsets, partitions)
        begins = await self._patiently(self._log.begin_offsets, partitions)
        starts = dict(await asyncio.gather(*[self._start(tp, begins[tp], ends[tp]) for tp in sorted(partitions)]))
        for tp in sorted(starts):
            self._make_ready_at(self.partitions[tp.partition], starts[tp])
        return starts

    async def _patiently(self, ask: AskOffsets, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Ask the log until it answers. What runs for other partitions goes on while the log is away."""
        while True:
            try:
                return await ask(tps)
            except LogUnavailableError as error:
                log.warning("assignment_delayed", error=str(error))
                await asyncio.sleep(self._settings.load_retry_seconds)

    async def _start(self, tp: TopicPartition, begin: int, end: int) -> tuple[TopicPartition, int]:
        next_offset, states = await self._load_active(tp)
        if next_offset > end:  # The log may have grown since its end was asked for.
            end = (await self._patiently(self._log.end_offsets, [tp]))[tp]
        # A position beyond the log's end was stored for another log, such as one made anew under the same name.
        foreign_store = next_offset > end
        if foreign_store:
            log.error("stored_position_refused", partition=tp.partition, stored=next_offset, end=end)
            next_offset, states = 0, {}
        start = max(next_offset, begin)
        partition: Partition[Work] = Partition(
            tp.partition,
            start,
            end,
            Quarantine(self._settings.quarantine),
            whole=next_offset == 0,
            foreign_store=foreign_store,
            next_offset=start,
        )
        for key, state in states.items():
            self._follow(partition, self._make_thread(partition, key, state, from_start=False))
        self.partitions[tp.partition] = partition
        self._to_list.set()
        log.info("partition_assigned", partition=tp.partition, start=start, end=end, active=len(states))
        return tp, start

    async def _load_active(self, tp: TopicPartition) -> tuple[int, Mapping[ThreadKey, ThreadState]]:
        if self._store is None:
            return 0, {}
        tries = max(1, int(self._settings.assign_wait_seconds / self._settings.load_retry_seconds))
        for _ in range(tries):
            try:
                stored = await self._store.load_active(tp.topic, tp.partition)
            except StatesUnavailableError as error:
                log.warning("states_load_failed", partition=tp.partition, error=str(error))
                await asyncio.sleep(self._settings.load_retry_seconds)
            else:
                return stored.next_offset, stored.states
        log.warning("partition_replayed_from_start", partition=tp.partition, reason="no database")
        return 0, {}

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget partitions that another member has now. Tasks that still load for one see `lost` and stop."""
        for tp in sorted(partitions):
            partition = self.partitions.pop(tp.partition, None)
            if partition is not None:
                partition.lost = True
                self._follower.on_lost(partition)
                partition.threads.clear()
                partition.parked.clear()
                log.info("partition_lost", partition=tp.partition)

    # Reading

    async def run(self, reader: Reader, stopping: asyncio.Event) -> None:
        """Read and fold until `stopping` is set. Raise LogError when the log cannot be read any more."""
        while not stopping.is_set():
            batches = await reader.poll(self.poll_ms)
            self.take(reader, batches)
            if batches:
                reader.commit_soon({tp: records[-1].offset + 1 for tp, records in batches})
                if self._pace is not None:
                    await self._pace.pause_after([record.key for _, records in batches for record in records])

    def take(self, reader: Reader, batches: Sequence[tuple[TopicPartition, Sequence[Incoming]]]) -> None:
        """Fold what one poll of the reader brought of this loop's topic."""
        for tp, records in batches:
            partition = self.partitions.get(tp.partition)
            if partition is not None:
                self._feed(partition, records)
        self._mark_ready(reader)
        self._apply_pauses(reader)

    def _feed(self, partition: Partition[Work], records: Sequence[Incoming]) -> None:
        """Fold a partition's records in their order, and let the service act once for each thread that changed.

        One call per batch instead of one per record: a service that is behind decides on the newest state alone.
        """
        touched: dict[ThreadKey, FollowedThread[Work]] = {}
        for raw in records:
            partition.next_offset = raw.offset + 1
            record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
            if isinstance(record, Unreadable):
                continue  # a dead letter: the projector reports it, and it changes no thread
            thread = partition.threads.get(record.key)
            if thread is None:
                thread = self._follow_or_park(partition, record)
                if thread is None:
                    continue
            if self._fold(partition, thread, record):
                touched[record.key] = thread
        if touched and partition.ready:
            self._follower.on_batch(partition, touched.values())

    def _fold(self, partition: Partition[Work], thread: FollowedThread[Work], record: Record) -> bool:
        """Fold one record; return whether the state has moved. Idempotent by offset: a record is folded once."""
        before = thread.state
        if record.offset <= before.offset:
            return False
        if thread.quarantined is not None:
            thread.keep(record)
            return False
        try:
            thread.state, verdict = fold(before, record)
            self._follower.on_record(thread, before, record, verdict)
        except Exception as error:  # noqa: BLE001  # one thread's failure must not stop its partition
            thread.skipped = record.offset
            partition.set_aside(thread, error)
            self._follower.on_quarantined(partition, thread, error)
            return False
        self.records_folded += 1
        return True

    def _mark_ready(self, reader: Reader) -> None:
        """Mark partitions as ready that have been read up to `catch_up_to`.

        The reader's position counts too: the last offsets may be gaps, such as control records, that no poll returns.
        """
        for partition in self.partitions.values():
            if not partition.ready:
                position = reader.position(TopicPartition(self._topic, partition.number))
                self._make_ready_at(partition, max(partition.next_offset, position))

    def _make_ready_at(self, partition: Partition[Work], position: int) -> None:
        if position >= partition.catch_up_to:
            partition.ready = True
            self._follower.on_ready(partition)

    def _apply_pauses(self, reader: Reader) -> None:
        """Pause partitions with too many parked records, and resume them once their rows are loaded."""
        for partition in self.partitions.values():
            full = partition.parked_records > self._settings.parked_records_max
            if full != partition.paused:
                tps = [TopicPartition(self._topic, partition.number)]
                (reader.pause if full else reader.resume)(tps)
                partition.paused = full

    # Threads that are not in memory

    def _make_thread(
        self, partition: Partition[Work], key: ThreadKey, state: ThreadState, *, from_start: bool
    ) -> FollowedThread[Work]:
        return FollowedThread(key, partition.number, state, self._follower.new_work(), from_start, state.seq)

    def _follow(self, partition: Partition[Work], thread: FollowedThread[Work]) -> None:
        """Take a thread into memory, and note its key: it has a record now, so it is not new any more."""
        partition.threads[thread.key] = thread
        if partition.known is not None:
            partition.known.add(thread.key)
        elif self._keys is not None:
            partition.unlisted.add(thread.key)

    def _follow_or_park(self, partition: Partition[Work], record: Record) -> FollowedThread[Work] | None:
        """Return a thread that is certainly new; let the record of any other thread wait until its row is read.

        Once one record of a thread waits, all later ones wait behind it: their order must not change.
        """
        if self._log.partition_for(record.key.to_bytes(), self._partition_count) != partition.number:
            return None  # its producer does not partition as we do: the record is a dead letter, and no thread's
        waiting = partition.parked.get(record.key)
        if waiting is None and self._is_new(partition, record.key):
            thread = self._make_thread(partition, record.key, NOTHING, from_start=True)
            self._follow(partition, thread)
            return thread
        if waiting is None:
            partition.parked[record.key] = [record]
            self._to_load.set()
        else:
            waiting.append(record)
        partition.parked_records += 1
        return None

    def _is_new(self, partition: Partition[Work], key: ThreadKey) -> bool:
        """Return whether the thread certainly has no earlier record. False costs a query, and nothing else."""
        if partition.whole and not partition.evicted:
            return True
        return partition.known is not None and key not in partition.known

    async def run_keys(self) -> None:
        """Load which threads each partition has, and again when its filter is full. Run until cancelled."""
        while True:
            self._to_list.clear()
            for partition in list(self.partitions.values()):
                if partition.known is None or partition.known.is_full:
                    await self._load_keys(partition)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.keys_retry_seconds):
                    await self._to_list.wait()

    async def _load_keys(self, partition: Partition[Work]) -> None:
        """Load the keys of a partition's stored threads into a filter.

        Threads that come into memory while the query runs are missing in its snapshot. They are collected in `unlisted`
        and added before the filter is used: a filter that lacks a key would take an old thread for a new one.
        """
        if self._keys is None or partition.foreign_store:
            return
        partition.known = None
        partition.unlisted.update(partition.threads)
        try:
            stored = await self._keys.load_keys(self._topic, partition.number, self._settings.keys_known_max)
        except StatesUnavailableError as error:
            log.warning("keys_load_failed", partition=partition.number, error=str(error))
            return
        if stored is None or stored.next_offset < partition.relied_on:
            log.warning("keys_discarded", partition=partition.number, reason="too many" if stored is None else "behind")
            return
        known = KeyFilter(len(stored.keys) + len(partition.unlisted))
        for key in (*stored.keys, *partition.unlisted, *partition.parked):
            known.add(key)
        partition.known = known
        partition.unlisted.clear()

    async def run_loader(self) -> None:
        """Read the rows of threads whose records wait, in one task per partition, so that a slow one holds up no other.

        Run until cancelled. Raise LogError when the log cannot be read any more.
        """
        async with asyncio.TaskGroup() as loads:
            while True:
                await self._to_load.wait()
                self._to_load.clear()
                for partition in list(self.partitions.values()):
                    if partition.parked and not partition.loading:
                        partition.loading = True
                        loads.create_task(self._load_parked(partition), name=f"states of partition {partition.number}")

    async def _load_parked(self, partition: Partition[Work]) -> None:
        """Load threads until no record of the partition waits. A partition that was lost has none waiting."""
        while partition.parked:
            keys = list(partition.parked)[: self._settings.keys_per_load]
            stored = await self._load_trusted(partition, keys)
            if partition.lost:
                break
            if stored is not None:
                self._unpark(partition, [self._from_row(partition, key, stored.states.get(key)) for key in keys])
            elif self._is_patience_over(partition):
                await self._load_by_scan(partition, keys)
            else:
                await asyncio.sleep(self._settings.load_retry_seconds)
        partition.loading = False

    async def _load_trusted(self, partition: Partition[Work], keys: Sequence[ThreadKey]) -> PartitionStates | None:
        """Return the stored states of these threads.

        Return None if there is no store, if it cannot be read, or if its position fell back below what this reader
        relied on, as after a restore from a backup. The time since then is counted for `_is_patience_over`.
        """
        if self._store is None:
            return None
        try:
            stored = await self._store.load_threads(self._topic, partition.number, keys)
        except StatesUnavailableError as error:
            log.warning("states_load_failed", partition=partition.number, waiting=len(keys), error=str(error))
        else:
            if stored.next_offset >= partition.relied_on:
                partition.distrusted_since = None
                return stored
            log.warning(
                "stored_position_distrusted",
                partition=partition.number,
                stored=stored.next_offset,
                relied_on=partition.relied_on,
            )
        if partition.distrusted_since is None:
            partition.distrusted_since = asyncio.get_running_loop().time()
        return None

    def _is_patience_over(self, partition: Partition[Work]) -> bool:
        since = partition.distrusted_since
        return since is not None and asyncio.get_running_loop().time() - since >= self._settings.stale_wait_seconds

    def _from_row(self, partition: Partition[Work], key: ThreadKey, state: ThreadState | None) -> FollowedThread[Work]:
        return self._make_thread(partition, key, NOTHING if state is None else state, from_start=state is None)

    async def _load_by_scan(self, partition: Partition[Work], keys: Sequence[ThreadKey]) -> None:
        """Fold the threads' earlier records out of the partition itself, up to those that wait.

        If the log does not answer, the next round asks the store again first.
        """
        until = max(partition.parked[key][0].offset for key in keys)
        log.warning("partition_scanned", partition=partition.number, threads=len(keys), until=until)
        scanned = {key: self._make_thread(partition, key, NOTHING, from_start=True) for key in keys}
        try:
            async for record in scan(self._log, TopicPartition(self._topic, partition.number), keys, until):
                self._fold(partition, scanned[record.key], record)
        except LogUnavailableError as error:
            log.warning("scan_failed", partition=partition.number, error=str(error))
            await asyncio.sleep(self._settings.load_retry_seconds)
        else:
            if not partition.lost:
                self._unpark(partition, list(scanned.values()))

    def _unpark(self, partition: Partition[Work], loaded: Sequence[FollowedThread[Work]]) -> None:
        """Take loaded threads into memory and fold the records that waited for them.

        No record can arrive in between, since nothing here awaits. A record that the row already contains is skipped.
        """
        for thread in loaded:
            records = partition.parked.pop(thread.key)
            partition.parked_records -= len(records)
            self._follow(partition, thread)
            for record in records:
                self._fold(partition, thread, record)
        if partition.ready:
            self._follower.on_batch(partition, loaded)

    # Threads that are set aside

    async def run_quarantine(self) -> None:
        """Report threads that are set aside, and read them anew when their pause is over. Run until cancelled."""
        while True:
            await asyncio.sleep(QUARANTINE_LOOK_SECONDS)
            for partition in list(self.partitions.values()):
                if partition.quarantine:
                    await self._tend_quarantine(partition)

    async def _tend_quarantine(self, partition: Partition[Work]) -> None:
        now = asyncio.get_running_loop().time()
        for key, seconds in partition.quarantine.reports(now):
            thread = partition.threads.get(key)
            if thread is not None:
                self._follower.report_quarantined(partition, thread, seconds)
        due = partition.quarantine.due(now)[: self._settings.keys_per_load]
        if due:
            # The rows of another log are never read, so a thread of this one waits until the views are built anew.
            stored = None if partition.foreign_store else await self._load_trusted(partition, due)
            if not partition.lost:
                self._refold(partition, due, stored)

    def _refold(self, partition: Partition[Work], keys: Sequence[ThreadKey], stored: PartitionStates | None) -> None:
        """Replace threads by what the store has of them, if it has every record that was read here.

        A row without the record that failed would lose it: records of a quarantined thread are not kept. So the thread
        waits until the store has passed that record. Records that arrive from then on are kept and folded onto it.
        """
        now = asyncio.get_running_loop().time()
        refolded = []
        for key in keys:
            thread = partition.threads.get(key)
            if thread is None and key in partition.parked:
                partition.quarantine.postpone(key, now)  # it is being loaded by a scan
                continue
            if thread is None or thread.quarantined is None:
                partition.quarantine.forget(key)  # it failed in a scan that was given up, and is not in memory
                continue
            if stored is None or stored.next_offset <= max(thread.state.offset, thread.skipped):
                thread.kept = thread.kept or []
                partition.quarantine.postpone(key, now)
                continue
            partition.quarantine.refolded(key, now)
            self._follower.on_refold(thread)
            fresh = self._from_row(partition, key, stored.states.get(key))
            self._follow(partition, fresh)
            for record in thread.kept or ():
                self._fold(partition, fresh, record)
            refolded.append(fresh)
            log.info("thread_refolded", thread=str(key), seq=fresh.state.seq, reason=thread.quarantined)
        if refolded and partition.ready:
            self._follower.on_batch(partition, refolded)

    # Memory

    async def run_evictions(self) -> None:
        """Let idle threads leave memory once the stored position has passed them. Active threads always stay."""
        while True:
            await asyncio.sleep(self._settings.evict_every_seconds)
            for partition in list(self.partitions.values()):
                await self._evict(partition)

    async def _evict(self, partition: Partition[Work]) -> None:
        """Evict idle threads of a partition, and raise `relied_on` above their last records.

        From then on only rows that contain these records are trusted: nobody else remembers them. Without a store only
        closed threads may leave, since no row could bring another one back.
        """
        idle = [
            thread
            for thread in partition.threads.values()
            if thread.quarantined is None and not is_active(thread.state)
        ]
        if self._store is None:
            for thread in idle:
                if thread.state.status in {"closed", "none"} and self._follower.may_evict(thread):
                    partition.threads.pop(thread.key, None)
            return
        if not idle or partition.foreign_store:
            return
        stored = await self._load_trusted(partition, ())
        if stored is None:
            return
        for thread in idle:  # what was idle before the query may have changed while it ran
            stored_whole = thread.state.offset < stored.next_offset
            if stored_whole and not is_active(thread.state) and self._follower.may_evict(thread):
                partition.threads.pop(thread.key, None)
                partition.evicted = True
                partition.relied_on = max(partition.relied_on, thread.state.offset + 1)
