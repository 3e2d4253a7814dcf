"""The relay: it publishes on `thread-effects` what took effect, after the commit, at least once, in order per
partition.

The relay follows the rows. For each partition it knows the offset up to which the topic has acknowledged the effects,
and the offset up to which rows are committed. What lies between is to be published. Rows that were just committed are
in memory; if they are not (after a restart, or if the relay is far behind), they are read from `events` by position. So
nothing waits for the relay: while the log takes no effects, the relay falls behind with bounded memory, and the
projector goes on.

What is published is always a beginning of the partition: no effect is sent before all earlier ones are acknowledged.
The stored position is behind that, and never ahead. Whoever continues from there, after a crash or beside a projector
that has lost the partition, repeats some effects and skips none. The first copies of all effects are in order.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

import structlog

from schemas.other_topics.effects import EffectRow, decode_effect, encode_effect
from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS
from services.chassis.backoff import backoff_seconds
from services.chassis.log.port import Log, LogError, Outgoing, TopicPartition
from services.projector.generations.errors import ProjectorError
from services.projector.generations.store import Claim, Generation, Span
from services.projector.metrics import ProjectorMetrics
from services.projector.projections import events
from services.projector.settings import ProjectorSettings

SOURCE: Final = THREAD_EVENTS.name
TOPIC: Final = THREAD_EFFECTS.name
BATCH_RECORDS_MAX: Final = 1_000
"""Effects of a partition in one append, or in one read of those that are no longer in memory."""
HELD_MAX: Final = 2_000
"""Effects of a partition in memory that wait for their topic. What comes beyond is read from `events` later, so that a
topic that does not answer costs no more memory than this.
"""
POSITION_SECONDS: Final = 1.0
"""From one storing of what is published to the next. After a crash so much is published again."""
LAST_EFFECT_POLLS: Final = 20
LAST_EFFECT_POLL_MS: Final = 500
ENCODED_PER_TURN_OF_THE_LOOP: Final = 64

logger = structlog.get_logger()

_columns = itemgetter(*[events.COLUMNS.index(name if name != "time_ms" else "time") for name in EffectRow._fields])


def effect_row(event: Sequence[object]) -> EffectRow:
    """Return the effect of a row of `events`; the row is in the order of `events.COLUMNS`."""
    return EffectRow(*_columns(event))


class Rows(NamedTuple):
    rows: Sequence[EffectRow]
    to_offset: int
    """The rows are complete up to this offset."""


class RelayStore(Protocol):
    """The port to the relay's positions, which lie outside of the generations, and to the rows of a generation.

    All methods raise StoreAwayError while the database is away.
    """

    async def positions(self, topic: str, cluster_id: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the positions of this cluster; partitions without one are left out."""
        ...

    async def begin(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        """Store the positions, whatever was stored before: they may go back."""
        ...

    async def move(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        """Move the positions forward only: another owner may have stored more."""
        ...

    async def read(self, generation: Generation, partition: int, from_offset: int, to_offset: int) -> Rows:
        """Read rows in one snapshot with the generation's position, which bounds `to_offset`.

        A database that lost its last commits in a crash has fewer rows than before. Raises GenerationGoneError.
        """
        ...

    async def close(self) -> None: ...


# Deciding


class FromMemory(NamedTuple):
    rows: Sequence[EffectRow]
    to_offset: int


class FromStore(NamedTuple):
    from_offset: int
    to_offset: int


@dataclass(slots=True)
class PartitionRelay:
    """Decides what to publish next of one partition. It is pure: `EffectsRelay` does the work."""

    published: int
    """The topic has acknowledged every effect below this offset."""
    committed: int
    """Every record below this offset has its rows."""
    held_records_max: int
    held: deque[EffectRow] = field(default_factory=deque)
    held_from: int = 0
    """`held` has all rows from here to `held_to`."""
    held_to: int = 0
    sending_to: int = 0
    """The end of the chunk that is on its way."""

    @property
    def behind(self) -> int:
        return max(0, self.committed - self.published)

    def commit(self, from_offset: int, to_offset: int, rows: Iterable[EffectRow]) -> None:
        """Note that the rows between these offsets are committed.

        Rows that do not fit into memory, or leave a gap to those in memory, are read from the database later.
        """
        self.committed = max(self.committed, to_offset)
        end = self.held_to if self._is_holding() else max(self.published, self.sending_to)
        if to_offset <= end or from_offset > end:
            return
        if not self._is_holding():
            self.held_from = self.held_to = end
        for row in rows:
            if row.offset < end:
                continue
            if len(self.held) >= self.held_records_max:
                return
            self.held.append(row)
            self.held_to = row.offset + 1
        self.held_to = to_offset

    def next(self, records_max: int) -> FromMemory | FromStore | None:
        """Return the chunk after what is published: the same chunk again until `sent` is called."""
        if self._is_holding() and self.held_from <= self.published:
            rows = [self.held[place] for place in range(min(records_max, len(self.held)))]
            to_offset = self.held_to if len(rows) == len(self.held) else rows[-1].offset + 1
            self.sending_to = to_offset
            return FromMemory(rows, to_offset)
        most = min(self.published + records_max, self.held_from if self._is_holding() else self.committed)
        if self.published >= most:
            return None
        self.sending_to = most
        return FromStore(self.published, most)

    def sent(self, to_offset: int) -> None:
        self.published = max(self.published, to_offset)
        while self.held and self.held[0].offset < self.published:
            self.held.popleft()
        self.held_from = max(self.held_from, self.published)

    def _is_holding(self) -> bool:
        return self.held_to > max(self.held_from, self.published)


# Acting


@dataclass(slots=True, eq=False)
class _Held:
    """A partition under one claim. A later claim of the same partition makes another object."""

    partition: int
    generation: Generation
    claimed_to: int
    """The offset up to which rows were committed at the claim."""
    log_end: int | None
    """The end of thread-events at the claim; None if nobody asked for it."""
    relay: PartitionRelay | None = None
    """None until it is known where to continue."""
    stored: int = -1
    failures: int = 0
    again_at: float = 0.0


class EffectsRelay:
    """`hold`, `release` and `committed` return at once; `run` does the work until it is cancelled."""

    def __init__(
        self, store: RelayStore, log: Log, cluster_id: str, settings: ProjectorSettings, metrics: ProjectorMetrics
    ) -> None:
        self._store = store
        self._log = log
        self._cluster_id = cluster_id
        self._settings = settings
        self._metrics = metrics
        self._held: dict[int, _Held] = {}
        self._busy: dict[asyncio.Task[None], _Held | None] = {}
        """The tasks at work, with their partition; None is the task that stores positions."""
        self._changed = asyncio.Event()
        self._finished = asyncio.Event()
        self._is_finishing = False
        self._store_at = 0.0
        self._store_again_at = 0.0
        """When to store positions again after a failure. It holds while the relay finishes, too."""

    def hold(self, generation: Generation, claims: Mapping[int, Claim], ends: Mapping[int, int] | None = None) -> None:
        """Take these partitions, with rows up to their claims. `ends` are the ends of thread-events."""
        for partition, claim in claims.items():
            before = self._held.get(partition)
            held = _Held(partition, generation, claim.next_offset, None if ends is None else ends[partition])
            if before is not None and before.relay is not None:  # what is acknowledged stays so
                held.relay = self._relay(before.relay.published, claim.next_offset)
                held.stored = before.stored
            self._held[partition] = held
        self._changed.set()

    def release(self, partitions: Iterable[int]) -> None:
        """Drop these partitions. An append in flight may still arrive; the new owner only repeats effects."""
        for partition in partitions:
            self._held.pop(partition, None)

    def committed(self, spans: Sequence[Span], rows: Sequence[Sequence[object]]) -> None:
        """Take the rows of `events` of one committed transaction, in order per partition."""
        by_partition: dict[int, list[EffectRow]] = {}
        for event in rows:
            row = effect_row(event)
            by_partition.setdefault(row.partition, []).append(row)
        for span in spans:
            held = self._held.get(span.partition)
            if held is not None:
                _commit(held, span, by_partition.get(span.partition, []))
        self._measure()
        self._changed.set()

    def behind(self) -> int:
        """Return the number of committed records whose effects are not published, as far as it is known."""
        return sum(held.relay.behind for held in self._held.values() if held.relay is not None)

    async def run(self) -> None:
        try:
            while True:
                self._changed.clear()
                wait = self._begin_what_is_due()
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([changed, *self._busy], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                for task in [task for task in self._busy if task.done()]:
                    del self._busy[task]
                self._measure()
                if self._is_finishing and all(map(_is_done, self._held.values())):
                    self._finished.set()
        finally:
            for task in self._busy:
                task.cancel()
            if self._busy:
                await asyncio.wait(self._busy)
            self._busy.clear()

    async def finish(self, timeout_seconds: float) -> None:
        """Wait until everything is published and its position stored, or the time is over. `run` has to be running."""
        self._is_finishing = True
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finished.wait(), timeout_seconds)

    async def close(self) -> None:
        await self._store.close()

    # What is due

    def _begin_what_is_due(self) -> float | None:
        """Start the tasks that are due; return the seconds until the next is, or None if none waits for its time."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        waits: list[float] = []
        busy = set(self._busy.values())
        for held in self._held.values():
            if held in busy or not _has_work(held):
                continue
            if held.again_at > now:
                waits.append(held.again_at - now)
            else:
                self._busy[asyncio.create_task(self._work(held), name=f"effects-{held.partition}")] = held
        to_store = {p: held.relay.published for p, held in self._held.items() if _is_to_store(held) and held.relay}
        if to_store and None not in busy:
            store_at = self._store_again_at if self._is_finishing else max(self._store_at, self._store_again_at)
            if store_at > now:
                waits.append(store_at - now)
            else:
                self._store_at = now + POSITION_SECONDS
                self._busy[asyncio.create_task(self._store_positions(to_store), name="effects-positions")] = None
        return min(waits, default=None)

    async def _work(self, held: _Held) -> None:
        """One step for a partition: find out where it goes on, or publish what is next. Never raises."""
        try:
            if held.relay is None:
                await self._start(held)
            else:
                await self._publish_next(held, held.relay)
            held.failures = 0
        except (LogError, ProjectorError) as error:
            self._put_off(held, error)
        except Exception as error:  # the edge of the loop: views go on, whatever is wrong with their effects
            logger.exception("effects_failed", partition=held.partition)
            self._put_off(held, error)

    def _put_off(self, held: _Held, error: Exception) -> None:
        limits = self._settings.limits
        held.failures += 1
        pause = backoff_seconds(held.failures, limits.retry_seconds, limits.retry_seconds_max)
        held.again_at = asyncio.get_running_loop().time() + pause
        self._metrics.effects_retries.inc()
        logger.warning("effects_put_off", partition=held.partition, error=repr(error), again_in_seconds=pause)

    # Where to go on

    async def _start(self, held: _Held) -> None:
        partition = held.partition
        stored = (await self._store.positions(SOURCE, self._cluster_id, [partition])).get(partition)
        position = stored
        if position is None:
            position = await self._after_the_last_effect(partition)
            logger.info("effects_position_unknown", partition=partition, from_offset=position)
        if held.log_end is not None and position > held.log_end:
            logger.warning("effects_position_beyond_log", partition=partition, position=position, end=held.log_end)
            position = 0  # the source topic was created again
        if position != stored:
            await self._store.begin(SOURCE, self._cluster_id, {partition: position})
        held.relay = self._relay(position, held.claimed_to)
        held.stored = position

    def _relay(self, published: int, committed: int) -> PartitionRelay:
        return PartitionRelay(published, committed, HELD_MAX)

    async def _after_the_last_effect(self, partition: int) -> int:
        """Return the position after the last effect on the topic; 0 if the topic does not tell."""
        tp = TopicPartition(TOPIC, partition)
        begin, end = (await self._log.begin_offsets([tp]))[tp], (await self._log.end_offsets([tp]))[tp]
        if begin >= end:
            return 0
        reader = await self._log.reader({tp: end - 1})
        try:
            for _ in range(LAST_EFFECT_POLLS):
                for _, records in await reader.poll(LAST_EFFECT_POLL_MS):
                    last = decode_effect(records[-1].value)
                    return 0 if last is None or last.partition != partition else last.offset + 1
        finally:
            await reader.close()
        return 0

    # Publishing

    async def _publish_next(self, held: _Held, relay: PartitionRelay) -> None:
        chunk = relay.next(BATCH_RECORDS_MAX)
        if chunk is None:
            return
        if isinstance(chunk, FromStore):
            rows, to_offset = await self._store.read(held.generation, held.partition, *chunk)
            self._metrics.effects_read_again.inc(len(rows))
            if to_offset <= relay.published:
                raise _NotThereError(f"rows of partition {held.partition} are not there up to {chunk.to_offset}")
        else:
            rows, to_offset = chunk
        if rows:
            await self._log.appender.append(TOPIC, held.partition, await _encoded(rows))
            self._metrics.effects_published.inc(len(rows))
        relay.sent(to_offset)

    async def _store_positions(self, positions: Mapping[int, int]) -> None:
        try:
            await self._store.move(SOURCE, self._cluster_id, positions)
        except Exception as error:  # noqa: BLE001  # it is tried again; until then a crash repeats more
            self._metrics.effects_retries.inc()
            logger.warning("effects_positions_delayed", error=repr(error))
            self._store_again_at = asyncio.get_running_loop().time() + self._settings.limits.retry_seconds
            return
        for partition, position in positions.items():
            held = self._held.get(partition)
            if held is not None:
                held.stored = max(held.stored, position)

    def _measure(self) -> None:
        self._metrics.effects_behind.set(self.behind())


class _NotThereError(ProjectorError):
    """A crash of the database took its last commits; the projector writes them again."""


def _commit(held: _Held, span: Span, rows: list[EffectRow]) -> None:
    if held.relay is not None:
        held.relay.commit(span.from_offset, span.to_offset, rows)
    else:  # they are read from the database once it is known where to continue
        held.claimed_to = max(held.claimed_to, span.to_offset)


def _has_work(held: _Held) -> bool:
    return held.relay is None or held.relay.behind > 0


def _is_to_store(held: _Held) -> bool:
    return held.relay is not None and held.relay.published > held.stored


def _is_done(held: _Held) -> bool:
    return held.relay is not None and held.relay.behind == 0 and held.stored >= held.relay.published


async def _encoded(rows: Sequence[EffectRow]) -> list[Outgoing]:
    encoded: list[Outgoing] = []
    for part in _parts(rows):
        encoded += [Outgoing(*encode_effect(row)) for row in part]
        await asyncio.sleep(0)
    return encoded


def _parts(rows: Sequence[EffectRow]) -> Iterator[Sequence[EffectRow]]:
    for start in range(0, len(rows), ENCODED_PER_TURN_OF_THE_LOOP):
        yield rows[start : start + ENCODED_PER_TURN_OF_THE_LOOP]
