"""Records to rows: fold, project, write, one transaction per batch.

While one batch is written, the next is folded on top of it, so that this process and the database work at the same
time. The result of the first decides: if it was not written as it had been folded (a row was refused), the second is
folded again.

A record is written once. Each transaction moves the positions of its partitions from where its records begin to where
they end, under the epoch of this projector's claim. If that does not fit, nothing is written and the caller gets
FenceError: another projector has the partition, or the database came back from a crash without its last commits. The
caller then starts again from the stored positions.

If the database refuses a batch, the batch is written in halves, each in a transaction of its own, until the one record
is found that it refuses. That record becomes a dead letter, and its thread is quarantined; the partition goes on.

Dead letters go to their topic before the commit: a crash in between publishes them again, and never loses them. Effects
are published after the commit: nobody is told of a row that is not there.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from schemas.codec import Record, Unreadable, decode
from schemas.events import BY_KIND
from schemas.ids import ThreadKey
from services.chassis.clock import Clock
from services.chassis.log.port import Incoming
from services.projector.generations.errors import ProjectorError, RowRefusedError
from services.projector.generations.record_digests import digest_of
from services.projector.generations.retries import retry_while_away
from services.projector.generations.store import Claim, GenerationStore, Span
from services.projector.metrics import ProjectorMetrics
from services.projector.projections.batch import Batch, Kept, Refused
from services.projector.projections.dead_letters import VALUE_BYTES_MAX, DeadLetter
from services.projector.settings import ProjectorSettings

RECORDS_PER_TURN_OF_THE_LOOP: Final = 64
"""Records that are folded in one go; then the task that writes gets its turn."""

OTHER_KIND: Final = "other"
"""The kind in the metrics for events that this release does not know: there may be any number of their names."""

logger = structlog.get_logger()

PublishDeadLetters = Callable[[Sequence[DeadLetter]], Awaitable[None]]
OnCommitted = Callable[[Sequence[Span], Sequence[Sequence[object]]], None]
"""Called after a commit, with its spans and its rows of `events`. Nothing waits for the effect of the call."""


def ignore_commits(_spans: Sequence[Span], _rows: Sequence[Sequence[object]]) -> None:
    pass


@dataclass(slots=True, eq=False)
class _Position:
    """The position of one claim. A batch keeps the positions of the claims it was read under, even if a partition is
    claimed again.
    """

    owner_epoch: int
    stored: int
    """The offset up to which rows are committed."""
    taken: int
    """The offset up to which records were submitted."""


class _Decoded(NamedTuple):
    incoming: Incoming
    record: Record | Unreadable


class _Chunk(NamedTuple):
    """Records that are written together; if the database refuses a row, they are written again in parts."""

    items: Sequence[_Decoded]
    positions: Mapping[int, _Position]


class Applier:
    """Writes one generation. Only one task may call `submit` and `settle`; they raise what made the last batch fail."""

    def __init__(
        self,
        store: GenerationStore,
        partition_of: Callable[[ThreadKey], int],
        publish: PublishDeadLetters,
        clock: Clock,
        settings: ProjectorSettings,
        metrics: ProjectorMetrics,
        on_committed: OnCommitted = ignore_commits,
    ) -> None:
        self.store = store
        self._partition_of = partition_of
        self._publish = publish
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._on_committed = on_committed
        self._positions: dict[int, _Position] = {}
        self._stored: OrderedDict[ThreadKey, Kept] = OrderedDict()
        """Threads as the database has them; the least recently used first."""
        self._in_flight: Mapping[ThreadKey, Kept] = {}
        """Threads as they are once the batch that is being written is committed."""
        self._writing: asyncio.Task[bool] | None = None

    def hold(self, claims: Mapping[int, Claim]) -> None:
        """Begin to write these partitions from where they are stored. No batch may be in flight: see `settle`.

        States of their threads are forgotten, because another projector may have written them.
        """
        self._in_flight = {}
        for key in [key for key in self._stored if self._partition_of(key) in claims]:
            del self._stored[key]
        for partition, claim in claims.items():
            self._positions[partition] = _Position(claim.owner_epoch, claim.next_offset, claim.next_offset)

    def release(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)

    def positions(self) -> dict[int, int]:
        """Return the offset of the first record that is not committed, for each partition that is held."""
        return {partition: position.stored for partition, position in self._positions.items()}

    def epochs(self) -> dict[int, int]:
        return {partition: position.owner_epoch for partition, position in self._positions.items()}

    async def submit(self, records: Sequence[Incoming]) -> None:
        """Fold the records while the previous batch is written, wait for that batch, and begin to write these.

        Records of partitions that are not held, and records that were submitted before, are left out.
        """
        named = {incoming.partition for incoming in records}
        held = {partition: self._positions[partition] for partition in named if partition in self._positions}
        fresh = _fresh(records, held)
        if not fresh:
            return
        chunk = _Chunk(await self._decode(fresh), held)
        batch = await self._fold(chunk.items)
        if not await self.settle():
            batch = await self._fold(chunk.items)
        self._in_flight = batch.kept
        self._writing = asyncio.create_task(self._write(batch, chunk), name="write-batch")

    async def settle(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the last batch is written; return False if it was not written as it had been folded.

        Raises TimeoutError after `timeout_seconds`, and what made the batch fail. After a timeout the batch is still
        being written.
        """
        writing = self._writing
        if writing is None:
            return True
        done, _ = await asyncio.wait([writing], timeout=timeout_seconds)
        if not done:
            raise TimeoutError
        self._writing = None
        try:
            return writing.result()
        except ProjectorError:
            self._forget()
            raise

    async def abandon(self) -> None:
        """Cancel the batch that is being written, and forget all states: the next batch starts from the stored rows.

        The cancelled transaction may have been committed. The caller has to look at the stored positions.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.wait([writing])
        self._forget()

    def _forget(self) -> None:
        self._in_flight = {}
        self._stored.clear()

    # Folding

    async def _decode(self, records: Sequence[Incoming]) -> list[_Decoded]:
        decoded: list[_Decoded] = []
        for number, incoming in enumerate(records, start=1):
            _, _, offset, timestamp_ms, key, value, headers = incoming
            decoded.append(_Decoded(incoming, decode(key, headers, value, offset, timestamp_ms)))
            if number % RECORDS_PER_TURN_OF_THE_LOOP == 0:
                await asyncio.sleep(0)
        return decoded

    async def _fold(self, decoded: Sequence[_Decoded], refused: Refused | None = None) -> Batch:
        known = await self._known(decoded)
        batch = Batch(
            topic=self.store.generation.topic,
            known=known,
            partition_of=self._partition_of,
            dead_letter_bytes_max=VALUE_BYTES_MAX,
            refused=refused,
        )
        for number, (incoming, record) in enumerate(decoded, start=1):
            batch.take(incoming, record)
            if number % RECORDS_PER_TURN_OF_THE_LOOP == 0:
                await asyncio.sleep(0)
        batch.finish()
        return batch

    async def _known(self, decoded: Sequence[_Decoded]) -> dict[ThreadKey, Kept]:
        """Return what is kept of the batch's threads: from the batch that is being written, from memory, or loaded."""
        keys = dict.fromkeys([record.key for _, record in decoded if isinstance(record, Record)])
        known: dict[ThreadKey, Kept] = {}
        missing: list[ThreadKey] = []
        for key in keys:
            kept = self._in_flight.get(key) or self._stored.get(key)
            if kept is None:
                missing.append(key)
            else:
                known[key] = kept
        if missing:
            known |= await retry_while_away(lambda: self._load_once(missing), self._settings, self._metrics.retries)
            self._metrics.states_loaded.inc(len(missing))
        return known

    async def _load_once(self, keys: Sequence[ThreadKey]) -> dict[ThreadKey, Kept]:
        with self._metrics.load_seconds.time():
            return await self.store.load(keys)

    # Writing

    async def _write(self, batch: Batch, chunk: _Chunk) -> bool:
        """Write the batch; return whether it was written as it was folded, with no record set aside."""
        try:
            await self._commit(batch, chunk)
        except RowRefusedError as error:
            logger.warning("batch_refused", records=len(chunk.items), reason=str(error))
            self._in_flight = {}
            await self._write_in_parts(chunk)
            return False
        return True

    async def _write_in_parts(self, chunk: _Chunk) -> None:
        parts = _halves(chunk)
        while parts:
            part = parts.pop()
            try:
                await self._commit(await self._fold(part.items), part)
            except RowRefusedError as error:
                if len(part.items) > 1:
                    parts.extend(_halves(part))
                else:
                    await self._set_aside(part, error)

    async def _set_aside(self, part: _Chunk, error: RowRefusedError) -> None:
        """Write the one record that the database refuses as a dead letter, and quarantine its thread."""
        incoming = part.items[0].incoming
        reason = f"the database refuses a row of it: {error}"
        refused = Refused(incoming.partition, incoming.offset, reason, error.fault)
        await self._commit(await self._fold(part.items, refused), part)
        self._metrics.quarantined.inc()
        logger.error("thread_quarantined", key=incoming.key, partition=incoming.partition, offset=incoming.offset)

    async def _commit(self, batch: Batch, chunk: _Chunk) -> None:
        if batch.dead:
            await self._publish(batch.dead)
        spans = _spans(chunk)
        await retry_while_away(lambda: self._write_once(batch, spans), self._settings, self._metrics.retries)
        for span in spans:
            chunk.positions[span.partition].stored = span.to_offset
        self._on_committed(spans, batch.rows.events)
        self._remember(batch.kept)
        self._count(batch, chunk.items)

    async def _write_once(self, batch: Batch, spans: Sequence[Span]) -> None:
        with self._metrics.write_seconds.time():
            await self.store.write(batch, spans)

    def _remember(self, kept: Mapping[ThreadKey, Kept]) -> None:
        stored = self._stored
        for key, value in kept.items():
            stored[key] = value
            stored.move_to_end(key)
        while len(stored) > self._settings.projector_states_max:
            stored.popitem(last=False)

    def _count(self, batch: Batch, decoded: Sequence[_Decoded]) -> None:
        metrics = self._metrics
        metrics.batch_records.observe(len(decoded))
        for (effect, kind), count in batch.effects.items():
            metrics.records.labels(effect, kind if kind in BY_KIND else OTHER_KIND).inc(count)
        for letter in batch.dead:
            metrics.dead_letters.labels(letter.fault).inc()
        now_ms = self._clock.now_ms()
        metrics.delay_seconds.observe([max(0, now_ms - incoming.timestamp_ms) / 1000 for incoming, _ in decoded])


def _fresh(records: Sequence[Incoming], held: Mapping[int, _Position]) -> list[Incoming]:
    """Return the records that were not taken before, and mark them as taken."""
    fresh = []
    for incoming in records:
        position = held.get(incoming.partition)
        if position is not None and incoming.offset >= position.taken:
            position.taken = incoming.offset + 1
            fresh.append(incoming)
    return fresh


def _spans(chunk: _Chunk) -> list[Span]:
    last = {incoming.partition: incoming for incoming, _ in chunk.items}
    spans = []
    for partition, record in sorted(last.items()):
        position = chunk.positions[partition]
        spans.append(Span(partition, position.owner_epoch, position.stored, record.offset + 1, digest_of(record)))
    return spans


def _halves(chunk: _Chunk) -> list[_Chunk]:
    """Return the two halves as a stack: the first half is on top, so that the log's order is kept."""
    middle = (len(chunk.items) + 1) // 2
    halves = (chunk.items[middle:], chunk.items[:middle])
    return [_Chunk(half, chunk.positions) for half in halves if half]
