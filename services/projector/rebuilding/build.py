"""Filling a generation from the log: for a rebuild beside the live one, or for a verification that compares the two.

A build writes as the projector does, batch by batch with the positions in the same transaction. So it continues where
it was, however its process ended. It stops exactly at the offsets that it is given: at the position of another
generation the rows of both can be compared.

Commits are not flushed to disk one by one, so a crash of the database may take the last batches. `read_to` therefore
compares the stored positions with its own at the end, and reads again from what is stored if they differ.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EVENTS
from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Log, Reader, TopicPartition
from services.projector.applying.apply import Applier
from services.projector.applying.dead_letter_topic import DeadLetterTopic
from services.projector.generations.errors import UNCLAIMED, FenceError
from services.projector.generations.retries import retry_while_away
from services.projector.generations.store import Claim, GenerationStore
from services.projector.metrics import ProjectorMetrics
from services.projector.projections.dead_letters import DeadLetter
from services.projector.settings import ProjectorSettings

TOPIC: Final = THREAD_EVENTS.name
POLL_MS: Final = 100
"""How long a poll waits for the first record. A build is near the end of the log when it waits at all."""

logger = structlog.get_logger()

Positions = Mapping[TopicPartition, int]
OnPositions = Callable[[Positions], None]


def ignore_progress(positions: Positions) -> None:
    pass


class Filling(Protocol):
    """A generation that is filled: in this process (`Build`), or by several (`worker_pool.Workers`).

    All methods raise FenceError if somebody else has taken the generation over, and GenerationGoneError if it was
    dropped. While the database is away they wait.
    """

    async def open(self) -> None:
        """Claim all partitions: from now on nobody else writes the generation. Call it first."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offsets below which everything was read. After `read_to` it is committed, too."""
        ...

    def pause(self) -> None:
        """Start no further batch until `go_on`. The batch that is being written is finished."""
        ...

    def go_on(self) -> None: ...

    async def read_to(
        self, ends: Positions, on_progress: OnPositions = ignore_progress, publish_from: Mapping[int, int] | None = None
    ) -> None:
        """Read and commit all records below these offsets, and none beyond, of the partitions that are named.

        The log has to reach these offsets. `on_progress` is called after each batch. `publish_from` has the offset of
        each partition from which dead letters go to their topic (0 if it is missing), None publishes none: whoever
        wrote the live generation has published the earlier ones.
        """
        ...

    async def close(self) -> None: ...


class Build:
    """Implements `Filling`, for one task: `open`, then `read_to` any number of times, then `close`.

    `close` closes the store, too. A record that `only` refuses counts as read, and has no rows.
    """

    def __init__(
        self,
        log: Log,
        store: GenerationStore,
        settings: ProjectorSettings,
        *,
        owner: str,
        partitions: Iterable[int] | None = None,
        only: Callable[[Incoming], bool] | None = None,
        records_per_second: float | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._settings = settings
        self._owner = owner
        self._partitions = partitions
        """The partitions to fill; None means all of them."""
        self._only = only
        self._metrics = ProjectorMetrics.register(CollectorRegistry())
        self._dead_letters = DeadLetterTopic(log.appender, settings, self._metrics)
        self._publish_from: Mapping[int, int] | None = None
        self._applier: Applier | None = None
        self._reader: Reader | None = None
        self._begins: Positions = {}
        self._read: dict[TopicPartition, int] = {}
        """The offset of each partition below which everything was read."""
        self._ahead: dict[TopicPartition, list[Incoming]] = {}
        """Records that the reader brought and no batch has taken yet."""
        self._batch_records_max = settings.projector_batch_records_max
        if records_per_second:  # a batch is at most what one second may read, so that the rate has no bursts
            self._batch_records_max = min(self._batch_records_max, max(1, round(records_per_second)))
        self._seconds_per_record = 1 / records_per_second if records_per_second else 0.0
        self._due_at = 0.0
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()

    async def open(self) -> None:
        log, store = self._log, self._store
        count = await log.partition_count(TOPIC)
        numbers = range(count) if self._partitions is None else sorted(self._partitions)
        self._applier = Applier(
            store,
            lambda key: log.partition_for(key.to_bytes(), count),
            self._publish,
            SystemClock(),
            self._settings,
            self._metrics,
        )
        claims = await retry_while_away(
            lambda: store.claim(numbers, self._owner, store.generation.cluster_id),
            self._settings,
            self._metrics.retries,
        )
        self._applier.hold(claims)
        self._begins = await log.begin_offsets([TopicPartition(TOPIC, number) for number in numbers])
        self._read = {tp: max(begin, claims[tp.partition].next_offset) for tp, begin in self._begins.items()}
        self._reader = await log.reader(self._read)

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._read)

    def pause(self) -> None:
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    async def read_to(
        self, ends: Positions, on_progress: OnPositions = ignore_progress, publish_from: Mapping[int, int] | None = None
    ) -> None:
        self._publish_from = publish_from
        # More than one round is needed only after a crash of the database, which may take the last commits.
        is_committed = False
        while not is_committed:
            try:
                await self._read_to(ends, on_progress)
                is_committed = await self._is_stored()
            except FenceError as error:
                if error.taken_over:  # without another owner it is only a position that went back
                    raise
            if not is_committed:
                await self._start_again()

    async def close(self) -> None:
        if self._applier is not None:
            await self._applier.abandon()
        await self._store.close()
        if self._reader is not None:
            await self._reader.close()

    async def _publish(self, dead: Sequence[DeadLetter]) -> None:
        """Publish only the dead letters that the live generation's projector has not published."""
        begins = self._publish_from
        if begins is not None:
            new = [one for one in dead if one.incoming.offset >= begins.get(one.incoming.partition, 0)]
            await self._dead_letters.publish(new)

    # After a crash of the database, which may have taken the last batches with it

    async def _is_stored(self) -> bool:
        """Tell whether the stored positions are those that this build has reached."""
        stored = await retry_while_away(self._store.positions, self._settings, self._metrics.retries)
        ours = self._held_applier.positions()
        return all(stored.get(partition, UNCLAIMED).next_offset == at for partition, at in ours.items())

    async def _start_again(self) -> None:
        """Start again from what is stored. Raises FenceError if somebody else has claimed the generation meanwhile."""
        applier, store, reader = self._held_applier, self._store, self._held_reader
        await applier.abandon()
        epochs = applier.epochs()
        stored = await retry_while_away(store.positions, self._settings, self._metrics.retries)
        at = {partition: stored.get(partition, UNCLAIMED) for partition in epochs}
        if taken_over := frozenset([p for p in epochs if at[p].owner_epoch != epochs[p]]):
            raise FenceError(at, taken_over)
        logger.info("build_restarted", generation=store.generation.number, positions=at)
        applier.hold({p: Claim(at[p].next_offset, epochs[p], store.generation.cluster_id) for p in epochs})
        self._ahead.clear()
        self._read = {tp: max(self._begins[tp], at[tp.partition].next_offset) for tp in self._read}
        for tp, offset in self._read.items():
            reader.seek(tp, offset)

    # Reading

    async def _read_to(self, ends: Positions, on_progress: OnPositions) -> None:
        """Read and submit batch after batch, and wait until the last one is written."""
        # Partitions without an end are not read at all: their records would only fill the memory.
        self._held_reader.pause(self._read.keys() - ends.keys())
        self._held_reader.resume([tp for tp in ends if not self._has_reached(tp, ends)])
        while not all(self._has_reached(tp, ends) for tp in ends):
            records = await self._next_records(ends)
            if records:
                await self._wait_for_turn(len(records))
                await self._held_applier.submit([r for r in records if self._only is None or self._only(r)])
            on_progress(self.positions())
        await self._held_applier.settle()

    async def _next_records(self, ends: Positions) -> list[Incoming]:
        """Return a full batch, or what one poll brought."""
        records: list[Incoming] = []
        size = 0
        while True:
            for tp, end in ends.items():
                taken = self._take(tp, end, self._batch_records_max - len(records))
                records += taken
                size += sum([len(incoming.value or b"") for incoming in taken])
            is_full = len(records) >= self._batch_records_max or size >= self._settings.limits.batch_bytes_max
            if is_full or all(self._has_reached(tp, ends) for tp in ends):
                return records
            polled = await self._held_reader.poll(POLL_MS)
            if not polled:
                return records
            for tp, more in polled:
                self._ahead.setdefault(tp, []).extend(more)

    def _take(self, tp: TopicPartition, end: int, records_max: int) -> list[Incoming]:
        """Take records below the end out of what was read. At the end, fetching from the partition is paused."""
        ahead = self._ahead.pop(tp, [])
        below = bisect_left(ahead, end, key=lambda incoming: incoming.offset)
        taken, rest = ahead[: min(below, records_max)], ahead[min(below, records_max) :]
        if taken:
            self._read[tp] = taken[-1].offset + 1
        if rest:
            self._ahead[tp] = rest
            if len(taken) == below:  # no record is between
                self._read[tp] = max(self._read[tp], end)
        if self._read[tp] >= end:
            self._held_reader.pause([tp])
        return taken

    def _has_reached(self, tp: TopicPartition, ends: Positions) -> bool:
        """Tell whether everything below the end of the partition was read."""
        return self._read[tp] >= ends[tp]

    async def _wait_for_turn(self, records: int) -> None:
        """Wait while the build is paused, and for as long as the rate of records demands."""
        await self._may_go_on.wait()
        if not self._seconds_per_record:
            return
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._due_at - now))
        self._due_at = max(self._due_at, now) + records * self._seconds_per_record

    @property
    def _held_applier(self) -> Applier:
        assert self._applier is not None, "open comes first"
        return self._applier

    @property
    def _held_reader(self) -> Reader:
        assert self._reader is not None, "open comes first"
        return self._reader
