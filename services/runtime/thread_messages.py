"""What a thread's owner does to other threads: it appends to them, and looks up what came of its children.

An event for another thread is kept in `Work.sent` for as long as decisions want it, so that it is sent once by this
process and again where the log did not acknowledge it. The next owner knows nothing of that and sends it again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

import structlog

from schemas.codec import encode
from schemas.events import service_event_id
from schemas.ids import EventId, ThreadKey
from schemas.topics import topic_of
from services.chassis.clock import Clock
from services.chassis.log.port import Log, LogError, Outgoing
from services.chassis.process.lifecycle import Spawn
from services.runtime.child_store import ChildStore
from services.runtime.deciding.decisions import AppendTo, ReadChild
from services.runtime.metrics import RuntimeMetrics
from services.runtime.thread_work import Advancing, Held, Partition, RuntimeIdentity, RuntimeOptions

log = structlog.get_logger()

Sent = tuple[ThreadKey, EventId]


class ThreadMessages:
    def __init__(
        self,
        *,
        loop: Advancing,
        log_: Log,
        clock: Clock,
        children: ChildStore,
        partitions: int,
        spawn: Spawn,
        identity: RuntimeIdentity,
        options: RuntimeOptions,
        metrics: RuntimeMetrics,
    ) -> None:
        self._loop = loop
        self._log = log_
        self._clock = clock
        self._children = children
        self._partitions = partitions
        self._spawn = spawn
        self._identity = identity
        self._options = options
        self._metrics = metrics

    # Appending

    def send(self, partition: Partition, held: Held, wanted: Sequence[AppendTo], *, is_ahead: bool) -> None:
        """Those that were not sent yet, in their order. While the thread is ahead of what was read back, decisions do
        not say what they want of others, so what was sent is remembered as it is.
        """
        work = held.work
        if not wanted and not work.sent:
            return
        named = [((each.key, service_event_id(each.key, each.event)), each) for each in wanted]
        if not is_ahead:
            kept = {name for name, _ in named}
            work.sent = {name: how for name, how in work.sent.items() if name in kept or how == "under way"}
        new = [(name, each) for name, each in named if name not in work.sent]
        for key, of_key in groupby(new, lambda item: item[1].key):
            self._append(partition, held, key, list(of_key))

    def _append(self, partition: Partition, held: Held, key: ThreadKey, named: list[tuple[Sent, AppendTo]]) -> None:
        records = []
        for name, each in named:
            encoded = encode(
                key, each.event, source=self._identity.source, actor=each.actor, time_ms=self._clock.now_ms()
            )
            records.append(Outgoing(key.to_bytes(), encoded.value, encoded.headers, encoded.record.time_ms))
            held.work.sent[name] = "under way"
            self._metrics.decisions_for_others.labels(encoded.record.kind).inc()
        number = self._log.partition_for(key.to_bytes(), self._partitions)
        offsets = self._log.appender.append(topic_of(key).name, number, records)
        offsets.add_done_callback(partial(self._appended, partition, held, [name for name, _ in named]))

    def _appended(
        self, partition: Partition, held: Held, sent: Sequence[Sent], offsets: "asyncio.Future[tuple[int, ...]]"
    ) -> None:
        work, key = held.work, sent[0][0]
        error = offsets.exception()
        if error is None:
            work.sent |= {name: "stored" for name in sent if name in work.sent}
            lineage = held.state.lineage
            if lineage is not None and lineage.parent == key.thread:
                work.ended = None
            return
        # All that was wanted of that thread: what was sent after these may have been stored before them.
        work.sent = {name: how for name, how in work.sent.items() if name[0] != key}
        self._metrics.append_failures.inc()
        log.warning("append_to_another_failed", thread=str(held.key), to=str(key), error=str(error))
        if self._loop.is_over(partition):
            return
        if isinstance(error, LogError) and not error.retriable:
            self._loop.quarantine(partition, held, error)
        else:
            self._loop.look_again(partition, held, self._clock.now_ms() + self._options.append_retry_ms)

    # Looking up

    def read(self, partition: Partition, held: Held, wanted: Sequence[ReadChild]) -> None:
        if wanted and not held.work.reading_children:
            held.work.reading_children = True
            self._spawn(self._read(partition, held, wanted), f"children {held.key}")

    async def _read(self, partition: Partition, held: Held, wanted: Sequence[ReadChild]) -> None:
        work = held.work
        try:
            ends = await self._children.ends(held.key.tenant, {each.key.thread: each.input for each in wanted})
        finally:
            work.reading_children = False
        work.children_read_ms = self._clock.now_ms()
        if not self._loop.is_over(partition):
            if ends:
                self._metrics.children_looked_up.inc(len(ends))
            names: Mapping[str, object] = {each.key.thread: None for each in wanted}
            work.children = {name: end for name, end in work.children.items() if name in names} | dict(ends)
            self._loop.advance(partition, held)
