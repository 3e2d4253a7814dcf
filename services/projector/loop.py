"""The projector's loop: from its partitions of thread-events to the live generation.

The positions of the generation say where it starts; the offsets that it commits to the group are for lag tools only. It
claims a partition when the group assigns it, and from then on the previous owner cannot write it. So a process may die,
or freeze and wake up, at any moment: rows and position are in one transaction, and a claim that is lost writes nothing.

If a batch cannot be written because the claim is gone, the loop starts again from what is stored. If another generation
is live, it continues with that one. A partition that another projector claimed is left alone for a while: the group may
be about to move it.

The loop reads one batch ahead of the database and no further. While the database is away it pauses its partitions and
keeps polling, so that it stays a member of the group.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import structlog

from schemas.ids import ThreadKey
from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS
from services.chassis.clock import Clock
from services.chassis.errors import SetupError
from services.chassis.log.consumer_groups import PROJECTOR_GROUP
from services.chassis.log.port import Incoming, Log, Reader, TopicPartition
from services.projector.applying.apply import Applier, ignore_commits
from services.projector.applying.dead_letter_topic import DeadLetterTopic
from services.projector.applying.effects import EffectsRelay, RelayStore
from services.projector.applying.pacing import Pacing
from services.projector.generations.errors import (
    UNCLAIMED,
    FenceError,
    GenerationGoneError,
    OtherLogError,
    ProjectorError,
    StoreAwayError,
)
from services.projector.generations.record_digests import replaced_records
from services.projector.generations.retries import retry_while_away
from services.projector.generations.store import Claim, Generation, Stores
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings

TOPIC: Final = THREAD_EVENTS.name
POLL_MS: Final = 500
"""How long a poll waits for the first record; between polls the loop looks at its claims."""
DRAIN_MS: Final = 2
DRAINS_MAX: Final = 16
"""Polls at most that read what came during a wait."""
PAUSED_POLL_MS: Final = 100

logger = structlog.get_logger()


class Projector:
    """A member of the projectors' group. `Projector.start` makes it; `run` works until `stopping` is set."""

    def __init__(
        self,
        log: Log,
        stores: Stores,
        settings: ProjectorSettings,
        clock: Clock,
        metrics: ProjectorMetrics,
        incarnation: str,
        cluster_id: str,
        partitions: int,
        relay_store: RelayStore | None = None,
    ) -> None:
        self._log = log
        self._stores = stores
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._owner = f"projector-{settings.instance}/{incarnation}"
        self._cluster_id = cluster_id
        self._partitions = partitions
        self._dead_letters = DeadLetterTopic(log.appender, settings, metrics)
        self._relay: EffectsRelay | None = None
        if relay_store is not None:
            self._relay = EffectsRelay(relay_store, log, cluster_id, settings, metrics)
        self._applier: Applier | None = None
        self._to_reclaim: dict[int, float] = {}
        """Partitions that another projector owns although they are assigned to us, and when to claim them again."""
        self._broken: FenceError | GenerationGoneError | None = None
        """Why the next turn has to begin from what is stored; None while the claims hold."""
        self._read: dict[int, list[Incoming]] = {}
        """Records by partition that were read and not submitted yet."""
        self._reported: dict[TopicPartition, int] = {}
        self._look_at = 0.0
        self._checked: set[int] = set()
        """Partitions whose last record in the views was compared with the log."""
        self.is_ready = False

    @classmethod
    async def start(
        cls,
        log: Log,
        stores: Stores,
        settings: ProjectorSettings,
        clock: Clock,
        metrics: ProjectorMetrics,
        incarnation: str,
        relay_store: RelayStore | None = None,
    ) -> "Projector":
        """Make a projector for the live generation. Waits while the database is away.

        `incarnation` tells this process from an earlier one of the same name. Without a `relay_store` no effects are
        published. Raises OtherLogError, OtherPartitionsError, OtherVersionError, NotMigratedError and SetupError, which
        need a person.
        """
        cluster_id, partitions = await log.cluster_id(), await log.partition_count(TOPIC)
        if relay_store is not None:
            await _require_effects_topic(log, partitions)
        await retry_while_away(lambda: stores.admit(cluster_id, partitions), settings, metrics.retries)
        projector = cls(log, stores, settings, clock, metrics, incarnation, cluster_id, partitions, relay_store)
        projector._use(await projector._live_generation())
        return projector

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set. Raises OtherLogError for a partition of another log than that of the views."""
        reader = await self._log.group_reader([TOPIC], PROJECTOR_GROUP, self, f"projector-{self._settings.instance}")
        settings = self._settings
        pacing = Pacing(interval_idle_seconds=settings.limits.batch_interval_idle_seconds)
        relaying = None if self._relay is None else asyncio.create_task(self._relay.run(), name="effects")
        try:
            while not stopping.is_set():
                try:
                    if self._broken is None:
                        await self._turn(reader, pacing, stopping)
                    else:
                        await self._recover(reader, self._broken)
                except (FenceError, GenerationGoneError) as error:
                    self._broken = error
                    await asyncio.sleep(settings.limits.retry_seconds)
            await self._finish(reader)
        finally:
            await self._held.abandon()
            await self._held.store.close()
            if self._relay is not None and relaying is not None:
                relaying.cancel()
                await asyncio.wait([relaying])
                await self._relay.close()
            await reader.close()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the first record that is not in the views, for each partition that is held."""
        return {TopicPartition(TOPIC, partition): offset for partition, offset in self._held.positions().items()}

    # The group's side (chassis.log.port.Rebalance)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        gone = [tp.partition for tp in partitions]
        self._held.release(gone)
        if self._relay is not None:
            self._relay.release(gone)
        for partition in gone:
            self._to_reclaim.pop(partition, None)
            self._read.pop(partition, None)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Claim the partitions, and return where to read from.

        Partitions that were added to the topic since the start are left out: no thread lies in them.
        """
        numbers = [tp.partition for tp in partitions if tp.partition < self._partitions]
        try:
            starts = await self._claim(numbers)
        except GenerationGoneError as error:
            self._broken = error  # nothing is claimed, so what is read until the recovery is dropped
            starts = dict.fromkeys(numbers, 0)
        self.is_ready = True
        return {TopicPartition(TOPIC, number): starts[number] for number in numbers}

    # One turn of the loop

    async def _turn(self, reader: Reader, pacing: Pacing, stopping: asyncio.Event) -> None:
        if self._to_reclaim:
            await self._reclaim(reader)
        if not self._read:
            await self._read_more(reader, pacing)
        if self._broken is not None:
            return
        records = self._next_batch()
        if records:
            pacing.took(len(records), asyncio.get_running_loop().time())
            await self._patiently(reader, self._held.submit(records), stopping)
        else:
            await self._patiently(reader, self._held.settle(), stopping)
        await self._report(reader)

    async def _read_more(self, reader: Reader, pacing: Pacing) -> None:
        """Read the next records, and those that come until it is time to commit."""
        loop = asyncio.get_running_loop()
        self._keep(await reader.poll(POLL_MS))
        wait = pacing.wait_seconds(loop.time())
        if not self._read or wait <= 0 or self._is_full():
            return
        # No poll during the wait: all that comes is fetched together afterwards, which saves fetches.
        await asyncio.sleep(wait)
        for _ in range(DRAINS_MAX):
            if not self._keep(await reader.poll(DRAIN_MS)) or self._is_full():
                return

    def _keep(self, polled: Sequence[tuple[TopicPartition, list[Incoming]]]) -> bool:
        for tp, records in polled:
            if tp.partition < self._partitions:
                self._read.setdefault(tp.partition, []).extend(records)
        return bool(polled)

    def _is_full(self) -> bool:
        settings = self._settings
        if sum(map(len, self._read.values())) >= settings.projector_batch_records_max:
            return True
        held = sum(len(incoming.value or b"") for records in self._read.values() for incoming in records)
        return held >= settings.limits.batch_bytes_max

    def _next_batch(self) -> list[Incoming]:
        """Take one batch out of what was read. The rest is the next batch, before more is read."""
        settings = self._settings
        bytes_left = settings.limits.batch_bytes_max
        batch: list[Incoming] = []
        for partition, records in list(self._read.items()):
            taken = 0
            for incoming in records[: settings.projector_batch_records_max - len(batch)]:
                if bytes_left <= 0:
                    break
                bytes_left -= len(incoming.value or b"")
                taken += 1
            batch += records[:taken]
            del self._read[partition]
            if taken < len(records):
                self._read[partition] = records[taken:]
        return batch

    async def _patiently(self, reader: Reader, work: Coroutine[Any, Any, object], stopping: asyncio.Event) -> None:
        """Wait for the work. If it takes long, pause reading, and keep polling only to stay a member of the group."""
        task = asyncio.create_task(work, name="database-work")
        try:
            done, _ = await asyncio.wait([task], timeout=self._settings.limits.pause_after_seconds)
            if not done:
                logger.warning("partitions_paused", partitions=len(reader.assignment()))
            while not task.done() and not stopping.is_set():
                reader.pause(reader.assignment())
                self._keep(await reader.poll(PAUSED_POLL_MS))
            if not done:
                reader.resume(reader.assignment())
            if task.done():
                task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _report(self, reader: Reader) -> None:
        """Report the positions to tools that watch, and look at the claims from time to time."""
        stored = self.positions()
        if stored != self._reported:
            reader.commit_soon(stored)
            self._reported = stored
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + self._settings.limits.look_seconds
            with contextlib.suppress(StoreAwayError):
                await self._look_around(stored)

    async def _look_around(self, shown: Mapping[TopicPartition, int]) -> None:
        """Compare the claims with the database.

        Without records to write nothing else would show that the views were dropped, that another generation is live,
        or that a crash of the database took the last batches. Raises FenceError, GenerationGoneError.
        """
        self._require_live(await self._stores.live(self._cluster_id))
        stored = await self._held.store.positions()
        epochs = self._held.epochs()
        taken_over = {p for p in epochs if stored.get(p, UNCLAIMED).owner_epoch != epochs[p]}
        gone_back = {tp.partition for tp, offset in shown.items() if stored.get(tp.partition, UNCLAIMED)[0] < offset}
        if moved := taken_over | (gone_back & epochs.keys()):
            raise FenceError({p: stored.get(p, UNCLAIMED) for p in moved}, frozenset(taken_over))

    async def _finish(self, reader: Reader) -> None:
        """Let the batch that is being written be committed. If that fails, the next owner reads its records again."""
        try:
            await self._held.settle(self._settings.drain_seconds / 2)
            await self._report(reader)
        except (ProjectorError, TimeoutError) as error:
            logger.info("last_batch_abandoned", error=repr(error))
        if self._relay is not None:
            await self._relay.finish(self._settings.drain_seconds / 4)

    # Claims

    @property
    def _held(self) -> Applier:
        assert self._applier is not None
        return self._applier

    async def _claim(self, partitions: Sequence[int]) -> dict[int, int]:
        """Take the partitions over in the live generation, and return the offsets at which to read."""
        if not partitions:
            return {}
        store = self._held.store
        claims = await retry_while_away(
            lambda: store.claim(partitions, self._owner, self._cluster_id), self._settings, self._metrics.retries
        )
        # A generation that was swapped out and kept can be claimed, too, so look after the claim: a swap that comes
        # later takes the claim away.
        self._require_live(await self._live_generation())
        # Ask for the ends after the claim: until then the previous owner may have written records that just came.
        tps = [TopicPartition(TOPIC, partition) for partition in claims]
        begins, ends = await self._log.begin_offsets(tps), await self._log.end_offsets(tps)
        for partition, claim in claims.items():
            self._check(partition, claim, ends[TopicPartition(TOPIC, partition)])
        await self._check_last_records(claims)
        self._held.hold(claims)
        if self._relay is not None:
            self._relay.hold(store.generation, claims, {tp.partition: end for tp, end in ends.items()})
        for partition in claims:
            self._read.pop(partition, None)  # read before the claim, and perhaps from elsewhere
        return {tp.partition: max(claims[tp.partition].next_offset, begins[tp]) for tp in tps}

    def _check(self, partition: int, claim: Claim, end: int) -> None:
        where = f"the views are at offset {claim.next_offset} of {TOPIC}/{partition}"
        if claim.cluster_id != self._cluster_id:
            raise OtherLogError(f"{where} of the cluster {claim.cluster_id}, and this is {self._cluster_id}")
        if claim.next_offset > end:
            raise OtherLogError(
                f"{where}, which ends at {end}: the topic was made anew, or lost records. Use another database, or run "
                "`threadlog rebuild` to build the views from the log as it is now."
            )

    async def _check_last_records(self, claims: Mapping[int, Claim]) -> None:
        """Check each partition once. A topic that is created again while it is read ends its readers, so once
        is enough.
        """
        digests = {
            TopicPartition(TOPIC, partition): (claim.next_offset - 1, claim.last_record)
            for partition, claim in claims.items()
            if claim.last_record and partition not in self._checked
        }
        replaced = await replaced_records(self._log, digests) if digests else []
        if replaced:
            tp = replaced[0]
            raise OtherLogError(
                f"the record at offset {digests[tp][0]} of {TOPIC}/{tp.partition} is not the one that the views were "
                "built from: the topic was made anew, or restored differently. Use another database, or run `threadlog "
                "rebuild` to build the views from the log as it is now."
            )
        self._checked |= claims.keys()

    async def _reclaim(self, reader: Reader) -> None:
        now = asyncio.get_running_loop().time()
        due = [partition for partition, at in self._to_reclaim.items() if at <= now]
        assigned = {tp.partition for tp in reader.assignment()}
        starts = await self._claim([partition for partition in due if partition in assigned])
        for partition in due:
            del self._to_reclaim[partition]
        _seek(reader, starts)

    async def _recover(self, reader: Reader, error: FenceError | GenerationGoneError) -> None:
        """Start again from what is stored, in the generation that is live now."""
        logger.info("claims_lost", error=str(error))
        self._metrics.fenced.inc()
        await self._held.abandon()
        self._read.clear()
        live = await self._live_generation()
        assigned = sorted(tp.partition for tp in reader.assignment() if tp.partition < self._partitions)
        if live != self._held.store.generation:
            await self._held.store.close()
            self._use(live)
            self._to_reclaim.clear()
            starts = await self._claim(assigned)
        else:
            starts = await self._stored_starts(assigned)
        _seek(reader, starts)
        self._broken = None

    async def _stored_starts(self, assigned: Sequence[int]) -> dict[int, int]:
        """Return where to continue with the partitions that are still ours.

        The others wait until the group takes them away, or until `reclaim_seconds` have passed.
        """
        held = self._held
        stored = await retry_while_away(held.store.positions, self._settings, self._metrics.retries)
        epochs = held.epochs()
        ours = {p: stored[p] for p in epochs if p in stored and stored[p].owner_epoch == epochs[p]}
        held.release(list(epochs))
        claims = {p: Claim(at.next_offset, at.owner_epoch, self._cluster_id) for p, at in ours.items()}
        held.hold(claims)
        if self._relay is not None:
            self._relay.release([partition for partition in epochs if partition not in ours])
            self._relay.hold(held.store.generation, claims)
        again_at = asyncio.get_running_loop().time() + self._settings.limits.reclaim_seconds
        for partition in assigned:
            if partition not in ours:
                self._to_reclaim.setdefault(partition, again_at)
        return {partition: at.next_offset for partition, at in ours.items() if partition in assigned}

    # Generations

    async def _live_generation(self) -> Generation:
        return await retry_while_away(
            lambda: self._stores.live(self._cluster_id), self._settings, self._metrics.retries
        )

    def _require_live(self, live: Generation) -> None:
        held = self._held.store.generation
        if held != live:
            raise GenerationGoneError(f"{live.schema} is live, and {held.schema} is not any more")

    def _use(self, generation: Generation) -> None:
        store = self._stores.open(generation)
        publish = self._dead_letters.publish
        on_committed = ignore_commits if self._relay is None else self._relay.committed
        self._applier = Applier(
            store, self._partition_of(), publish, self._clock, self._settings, self._metrics, on_committed
        )
        self._metrics.generation.set(generation.number)
        logger.info("generation_used", generation=generation.number)

    def _partition_of(self) -> Callable[[ThreadKey], int]:
        log, partitions = self._log, self._partitions
        return lambda key: log.partition_for(key.to_bytes(), partitions)


def _seek(reader: Reader, starts: Mapping[int, int]) -> None:
    for partition, offset in starts.items():
        reader.seek(TopicPartition(TOPIC, partition), offset)


async def _require_effects_topic(log: Log, partitions: int) -> None:
    """Raise SetupError if thread-effects has too few partitions: only a person can give it more."""
    found = await log.partition_count(THREAD_EFFECTS.name)
    if found < partitions:
        raise SetupError(
            f"{THREAD_EFFECTS.name} has {found} partitions, {TOPIC} has {partitions}, and the effects of one go to the "
            f"other with its number. Give {THREAD_EFFECTS.name} {partitions}, or tell nobody of effects "
            "(THREADLOG_PROJECTOR_EFFECTS=false)."
        )
