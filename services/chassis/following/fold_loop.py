"""The frame of a service that follows threads: assigned partitions, records in log order, fold, act.

States start from the projector's rows (`threads.states`): active threads when a partition is assigned, idle ones when
a record for them arrives. Records of a thread whose row is being read wait beside the loop; the loop itself never
waits for a database. A record at or below a state's own offset is skipped, so a row newer than this reader does no
harm. A position that went backwards is never trusted below what this reader has relied on: it is waited for, with a
limit, then the thread is read out of its partition. The same holds for a store that cannot be read. Where there is no
store, as for ephemeral threads, the partition is read from its beginning, and a thread stays until it is closed.

The service is told of each folded record at once (`on_record`), and after each batch which threads to act for
(`on_batch`), once their partition has been read up to the end as of its assignment. It owns `Held.work`. A thread that
cannot be folded, or of which the service says so (`Partition.set_aside`), is quarantined: nothing is folded onto it any
more until it is read anew from the store, after a pause that grows with its failures (`quarantine`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias

import structlog

from schemas.codec import Record, Unreadable, decode
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, is_active
from schemas.thread import Verdict, fold
from services.chassis.following.followed_threads import Held as Held  # noqa: PLC0414  # together with the loop for whoever follows it
from services.chassis.following.followed_threads import Partition as Partition  # noqa: PLC0414
from services.chassis.following.followed_threads import Work
from services.chassis.following.key_filter import KeyFilter
from services.chassis.following.quarantine import Pauses, Quarantine
from services.chassis.log.port import Incoming, Log, LogUnavailableError, Reader, TopicPartition
from services.chassis.log.scan import scan
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.pacing import Pace
from services.chassis.threads.states import KeyStore, PartitionStates, StateStore, StatesUnavailableError

log = structlog.get_logger()

QUARANTINE_LOOK_SECONDS = 1.0

AskOffsets: TypeAlias = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]


@dataclass(frozen=True, slots=True)
class FoldLoopLimits:
    poll_ms: int = 500
    keys_per_load: int = 500
    load_retry_seconds: float = 0.5
    assign_wait_seconds: float = 20.0
    """How long an assignment waits for the database before it reads the partition from its beginning."""
    stale_wait_seconds: float = 30.0
    """How long threads wait for a store that is away, or fell back behind what this reader relied on, before the
    partition is scanned for them.
    """
    evict_every_seconds: float = 5.0
    keys_known_max: int = 2_000_000
    """Of one partition, for telling new threads without asking the database; 4 bytes of memory for each. A partition
    with more asks for every one.
    """
    keys_retry_seconds: float = 30.0
    parked_records_max: int = 20_000
    """Of one partition; beyond it the partition is paused until their threads are loaded."""
    quarantine: Pauses = field(default_factory=Pauses)


class Follower(Protocol[Work]):
    """The service's side of the frame. None of these may block or raise for a single thread's sake."""

    def new_work(self) -> Work: ...

    def on_record(self, held: Held[Work], before: ThreadState, record: Record, verdict: Verdict) -> None: ...

    def on_batch(self, partition: Partition[Work], touched: Iterable[Held[Work]]) -> None:
        """Act for these threads: their records of this batch are folded. Only for partitions that are ready."""

    def on_ready(self, partition: Partition[Work]) -> None:
        """The partition has been read up to its end as of the assignment."""

    def on_lost(self, partition: Partition[Work]) -> None:
        """Another member has the partition now: drop, or hand over, what runs for it. Its threads leave memory."""

    def on_quarantined(self, partition: Partition[Work], held: Held[Work], error: Exception) -> None:
        """A record of the thread could not be folded; `held.quarantined` says why."""

    def report_quarantined(self, partition: Partition[Work], held: Held[Work], seconds: float) -> None:
        """Tell people of a thread that has been set aside for so long: soon after that, and again and again."""

    def on_refold(self, held: Held[Work]) -> None:
        """The thread was set aside and is read anew, as another `Held`: let go of what is kept for this one."""

    def may_evict(self, held: Held[Work]) -> bool: ...


class FoldLoop(Generic[Work]):
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
        """Why the service should not be counted on yet; None once what it has been assigned is read up to its end."""
        if not self.partitions:
            return "no partitions"
        behind = sorted(partition.number for partition in self.partitions.values() if not partition.ready)
        return f"reading up to the end of partitions {behind}" if behind else None

    def positions(self) -> dict[TopicPartition, int]:
        """Of the first record that was not read, by partition."""
        return {TopicPartition(self._topic, number): at.next_offset for number, at in self.partitions.items()}

    def waits_for_states(self) -> bool:
        return any(partition.paused for partition in self.partitions.values())

    def begin(self, spawn: Spawn) -> None:
        """What runs beside `run`, each until it is cancelled."""
        spawn(self.run_loader(), "loader")
        spawn(self.run_keys(), "keys")
        spawn(self.run_evictions(), "evictions")
        spawn(self.run_quarantine(), "quarantine")

    # Assignment (chassis.log.port.Rebalance)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._partition_count = await self._log.partition_count(self._topic)
        ends = await self._patiently(self._log.end_offsets, partitions)
        begins = await self._patiently(self._log.begin_offsets, partitions)
        starts = dict(await asyncio.gather(*[self._start(tp, begins[tp], ends[tp]) for tp in sorted(partitions)]))
        for tp in sorted(starts):
            self._make_ready_at(self.partitions[tp.partition], starts[tp])
        return starts

    async def _patiently(self, ask: AskOffsets, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """A log that is away for a while is no reason to end what runs for partitions that this process has."""
        while True:
            try:
                return await ask(tps)
            except LogUnavailableError as error:
                log.warning("assignment_waits_for_the_log", error=str(error))
                await asyncio.sleep(self._settings.load_retry_seconds)

    async def _start(self, tp: TopicPartition, begin: int, end: int) -> tuple[TopicPartition, int]:
        next_offset, states = await self._load_active(tp)
        if next_offset > end:  # The log may have grown since its end was asked for.
            end = (await self._patiently(self._log.end_offsets, [tp]))[tp]
        foreign_store = next_offset > end
        if foreign_store:
            log.error("stored_position_beyond_end", partition=tp.partition, stored=next_offset, end=end)
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
            self._hold(partition, self._taken_in(partition, key, state, from_start=False))
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
                log.warning("states_unavailable", partition=tp.partition, error=str(error))
                await asyncio.sleep(self._settings.load_retry_seconds)
            else:
                return stored.next_offset, stored.states
        log.warning("partition_replayed_from_start", partition=tp.partition, reason="no database")
        return 0, {}

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
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
        """Until `stopping` is set. Raises LogError when the log cannot be read any more."""
        while not stopping.is_set():
            batches = await reader.poll(self.poll_ms)
            self.take(reader, batches)
            if batches:
                reader.commit_soon({tp: records[-1].offset + 1 for tp, records in batches})
                if self._pace is not None:
                    await self._pace.pause_after([record.key for _, records in batches for record in records])

    def take(self, reader: Reader, batches: Sequence[tuple[TopicPartition, Sequence[Incoming]]]) -> None:
        """What one poll of the reader brought of this loop's topic."""
        for tp, records in batches:
            partition = self.partitions.get(tp.partition)
            if partition is not None:
                self._feed(partition, records)
        self._mark_ready(reader)
        self._apply_pauses(reader)

    def _feed(self, partition: Partition[Work], records: Sequence[Incoming]) -> None:
        touched: dict[ThreadKey, Held[Work]] = {}
        for raw in records:
            partition.next_offset = raw.offset + 1
            record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
            if isinstance(record, Unreadable):
                continue
            held = partition.threads.get(record.key)
            if held is None:
                held = self._hold_or_park(partition, record)
                if held is None:
                    continue
            if self._fold(partition, held, record):
                touched[record.key] = held
        if touched and partition.ready:
            self._follower.on_batch(partition, touched.values())

    def _fold(self, partition: Partition[Work], held: Held[Work], record: Record) -> bool:
        before = held.state
        if record.offset <= before.offset:
            return False
        if held.quarantined is not None:
            held.keep(record)
            return False
        try:
            held.state, verdict = fold(before, record)
            self._follower.on_record(held, before, record, verdict)
        except Exception as error:  # noqa: BLE001  # one thread's failure must not stop its partition
            held.skipped = record.offset
            partition.set_aside(held, error)
            self._follower.on_quarantined(partition, held, error)
            return False
        self.records_folded += 1
        return True

    def _mark_ready(self, reader: Reader) -> None:
        """The reader's position counts too: offsets have gaps."""
        for partition in self.partitions.values():
            if not partition.ready:
                position = reader.position(TopicPartition(self._topic, partition.number))
                self._make_ready_at(partition, max(partition.next_offset, position))

    def _make_ready_at(self, partition: Partition[Work], position: int) -> None:
        if position >= partition.catch_up_to:
            partition.ready = True
            self._follower.on_ready(partition)

    def _apply_pauses(self, reader: Reader) -> None:
        for partition in self.partitions.values():
            full = partition.parked_records > self._settings.parked_records_max
            if full != partition.paused:
                tps = [TopicPartition(self._topic, partition.number)]
                (reader.pause if full else reader.resume)(tps)
                partition.paused = full

    # Threads that are not in memory

    def _taken_in(
        self, partition: Partition[Work], key: ThreadKey, state: ThreadState, *, from_start: bool
    ) -> Held[Work]:
        return Held(key, partition.number, state, self._follower.new_work(), from_start, state.seq)

    def _hold(self, partition: Partition[Work], held: Held[Work]) -> None:
        partition.threads[held.key] = held
        if partition.known is not None:
            partition.known.add(held.key)
        elif self._keys is not None:
            partition.unlisted.add(held.key)

    def _hold_or_park(self, partition: Partition[Work], record: Record) -> Held[Work] | None:
        if self._log.partition_for(record.key.to_bytes(), self._partition_count) != partition.number:
            return None  # its producer does not partition as we do: the record is a dead letter, and no thread's
        waiting = partition.parked.get(record.key)
        if waiting is None and self._is_new(partition, record.key):
            held = self._taken_in(partition, record.key, NOTHING, from_start=True)
            self._hold(partition, held)
            return held
        if waiting is None:
            partition.parked[record.key] = [record]
            self._to_load.set()
        else:
            waiting.append(record)
        partition.parked_records += 1
        return None

    def _is_new(self, partition: Partition[Work], key: ThreadKey) -> bool:
        """Whether the thread certainly has no earlier record."""
        if partition.whole and not partition.evicted:
            return True
        return partition.known is not None and key not in partition.known

    async def run_keys(self) -> None:
        """Reads which threads each partition has. Runs beside `run` until it is cancelled."""
        while True:
            self._to_list.clear()
            for partition in list(self.partitions.values()):
                if partition.known is None or partition.known.is_full:
                    await self._load_keys(partition)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.keys_retry_seconds):
                    await self._to_list.wait()

    async def _load_keys(self, partition: Partition[Work]) -> None:
        """Threads that come into memory while the query runs are in no snapshot of it, and are added."""
        if self._keys is None or partition.foreign_store:
            return
        partition.known = None
        partition.unlisted.update(partition.threads)
        try:
            stored = await self._keys.load_keys(self._topic, partition.number, self._settings.keys_known_max)
        except StatesUnavailableError as error:
            log.warning("keys_unavailable", partition=partition.number, error=str(error))
            return
        if stored is None or stored.next_offset < partition.relied_on:
            log.warning("keys_not_used", partition=partition.number, reason="too many" if stored is None else "behind")
            return
        known = KeyFilter(len(stored.keys) + len(partition.unlisted))
        for key in (*stored.keys, *partition.unlisted, *partition.parked):
            known.add(key)
        partition.known = known
        partition.unlisted.clear()

    async def run_loader(self) -> None:
        """Reads the states of threads whose records wait, for each partition on its own. Runs beside `run` until it is
        cancelled. Raises LogError when the log cannot be read any more.
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
        """Until no record of the partition waits. A lost partition has none."""
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
        """None where there is no store, it cannot be read, or it fell back behind what this reader relied on."""
        if self._store is None:
            return None
        try:
            stored = await self._store.load_threads(self._topic, partition.number, keys)
        except StatesUnavailableError as error:
            log.warning("states_unavailable", partition=partition.number, waiting=len(keys), error=str(error))
        else:
            if stored.next_offset >= partition.relied_on:
                partition.distrusted_since = None
                return stored
            log.warning(
                "stored_position_went_back",
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

    def _from_row(self, partition: Partition[Work], key: ThreadKey, state: ThreadState | None) -> Held[Work]:
        return self._taken_in(partition, key, NOTHING if state is None else state, from_start=state is None)

    async def _load_by_scan(self, partition: Partition[Work], keys: Sequence[ThreadKey]) -> None:
        """The threads' records before those that wait, out of the partition itself. On a log that does not answer the
        store is asked again first.
        """
        until = max(partition.parked[key][0].offset for key in keys)
        log.warning("partition_scanned", partition=partition.number, threads=len(keys), until=until)
        scanned = {key: self._taken_in(partition, key, NOTHING, from_start=True) for key in keys}
        try:
            async for record in scan(self._log, TopicPartition(self._topic, partition.number), keys, until):
                self._fold(partition, scanned[record.key], record)
        except LogUnavailableError as error:
            log.warning("scan_failed", partition=partition.number, error=str(error))
            await asyncio.sleep(self._settings.load_retry_seconds)
        else:
            if not partition.lost:
                self._unpark(partition, list(scanned.values()))

    def _unpark(self, partition: Partition[Work], taken_in: Sequence[Held[Work]]) -> None:
        for held in taken_in:
            records = partition.parked.pop(held.key)
            partition.parked_records -= len(records)
            self._hold(partition, held)
            for record in records:
                self._fold(partition, held, record)
        if partition.ready:
            self._follower.on_batch(partition, taken_in)

    # Threads that are set aside

    async def run_quarantine(self) -> None:
        """Reports threads that are set aside, and reads them anew when it is time. Until it is cancelled."""
        while True:
            await asyncio.sleep(QUARANTINE_LOOK_SECONDS)
            for partition in list(self.partitions.values()):
                if partition.quarantine:
                    await self._tend_quarantine(partition)

    async def _tend_quarantine(self, partition: Partition[Work]) -> None:
        now = asyncio.get_running_loop().time()
        for key, seconds in partition.quarantine.reports(now):
            held = partition.threads.get(key)
            if held is not None:
                self._follower.report_quarantined(partition, held, seconds)
        due = partition.quarantine.due(now)[: self._settings.keys_per_load]
        if due:
            # A store of another log is never read.
            stored = None if partition.foreign_store else await self._load_trusted(partition, due)
            if not partition.lost:
                self._refold(partition, due, stored)

    def _refold(self, partition: Partition[Work], keys: Sequence[ThreadKey], stored: PartitionStates | None) -> None:
        """Those of which the store has every record that was read here; the others wait for it."""
        now = asyncio.get_running_loop().time()
        refolded = []
        for key in keys:
            held = partition.threads.get(key)
            if held is None and key in partition.parked:
                partition.quarantine.postpone(key, now)  # it is being scanned for
                continue
            if held is None or held.quarantined is None:
                partition.quarantine.forget(key)  # of a scan that was given up
                continue
            if stored is None or stored.next_offset <= max(held.state.offset, held.skipped):
                held.kept = held.kept or []
                partition.quarantine.postpone(key, now)
                continue
            partition.quarantine.refolded(key, now)
            self._follower.on_refold(held)
            fresh = self._from_row(partition, key, stored.states.get(key))
            self._hold(partition, fresh)
            for record in held.kept or ():
                self._fold(partition, fresh, record)
            refolded.append(fresh)
            log.info("thread_refolded", thread=str(key), seq=fresh.state.seq, reason=held.quarantined)
        if refolded and partition.ready:
            self._follower.on_batch(partition, refolded)

    # Memory

    async def run_evictions(self) -> None:
        """Idle states leave memory once the stored position has passed them; active ones never do."""
        while True:
            await asyncio.sleep(self._settings.evict_every_seconds)
            for partition in list(self.partitions.values()):
                await self._evict(partition)

    async def _evict(self, partition: Partition[Work]) -> None:
        idle = [held for held in partition.threads.values() if held.quarantined is None and not is_active(held.state)]
        if self._store is None:
            for held in idle:
                if held.state.status in {"closed", "none"} and self._follower.may_evict(held):
                    partition.threads.pop(held.key, None)
            return
        if not idle or partition.foreign_store:
            return
        stored = await self._load_trusted(partition, ())
        if stored is None:
            return
        for held in idle:
            stored_whole = held.state.offset < stored.next_offset
            if stored_whole and not is_active(held.state) and self._follower.may_evict(held):
                partition.threads.pop(held.key, None)
                partition.evicted = True
                partition.relied_on = max(partition.relied_on, held.state.offset + 1)
