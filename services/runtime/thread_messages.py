"""What a thread's owner does to other threads: it appends to them, and looks up how its children ended.

Threads meet only in the log. The owner of a parent appends a child's first events to the child's thread, and the owner
of a child appends its end to the parent's. The fold of the other thread judges what counts.

An event for another thread stays in `Work.sent` for as long as decisions want it, so this process sends it once, and
again if the log did not acknowledge it. The next owner has no such memory and sends everything once more. That is
harmless: the ids are derived, and the fold counts an id once.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import structlog

from schemas.codec import encode
from schemas.events import ThreadCreated, service_event_id
from schemas.ids import EventId, ThreadKey, derive_service_event
from schemas.topics import topic_of
from services.chassis.clock import Clock
from services.chassis.log.port import Log, Outgoing
from services.runtime.child_store import ChildStore
from services.runtime.deciding.decisions import AppendTo, ReadChild
from services.runtime.metrics import RuntimeMetrics
from services.runtime.outcomes import Outcome, Proceed, after_failed_append
from services.runtime.thread_work import Followed, RuntimeIdentity

log = structlog.get_logger()

Name: TypeAlias = tuple[ThreadKey, EventId]
"""The name of an event: its thread and its id."""


class Sending(NamedTuple):
    """An append to one other thread, and the names of its events."""

    to: ThreadKey
    names: Sequence[Name]
    offsets: "asyncio.Future[tuple[int, ...]]"


class ThreadMessages:
    def __init__(
        self,
        *,
        log_: Log,
        clock: Clock,
        children: ChildStore,
        partitions: int,
        identity: RuntimeIdentity,
        metrics: RuntimeMetrics,
    ) -> None:
        self._log = log_
        self._clock = clock
        self._children = children
        self._partitions = partitions
        self._identity = identity
        self._metrics = metrics

    # Appending

    def send(self, followed: Followed, wanted: Sequence[AppendTo]) -> Iterator[Sending]:
        """Append the events that were not sent yet, in their order; one append for each run of events to one thread.

        Each append is yielded before the next one is made, so that the caller hears of its end even where the next one
        raises.

        What is no longer wanted is forgotten. But while the thread is ahead of what was read back, decisions do not say
        what they want of other threads, so nothing is forgotten then.
        """
        work = followed.work
        if not wanted and not work.sent:
            return
        named = [((each.key, service_event_id(each.key, each.event)), each) for each in wanted]
        if not work.ahead.events:
            kept = {name for name, _ in named}
            work.sent = {name: how for name, how in work.sent.items() if name in kept or how == "under way"}
        new = [(name, each) for name, each in named if name not in work.sent]
        for key, run in groupby(new, lambda item: item[1].key):
            yield self._append(followed, key, list(run))

    def _append(self, followed: Followed, key: ThreadKey, named: Sequence[tuple[Name, AppendTo]]) -> Sending:
        records = []
        for name, each in named:
            encoded = encode(
                key, each.event, source=self._identity.source, actor=each.actor, time_ms=self._clock.now_ms()
            )
            records.append(Outgoing(key.to_bytes(), encoded.value, encoded.headers, encoded.record.time_ms))
            followed.work.sent[name] = "under way"
            self._metrics.decisions_for_others.labels(encoded.record.kind).inc()
        number = self._log.partition_for(key.to_bytes(), self._partitions)
        offsets = self._log.appender.append(topic_of(key).name, number, records)
        return Sending(key, [name for name, _ in named], offsets)

    def appended(self, followed: Followed, sending: Sending) -> Outcome | None:
        """Note how an append went, once its offsets are there. None if nothing follows from it."""
        work = followed.work
        error = sending.offsets.exception()
        if error is None:
            work.sent |= {name: "stored" for name in sending.names if name in work.sent}
            lineage = followed.state.lineage
            if lineage is not None and lineage.parent == sending.to.thread:
                work.ended = None
            # A child may be named once the log has it. If this process dies here, the next owner creates it once more.
            is_creation = (sending.to, derive_service_event(sending.to, ThreadCreated.kind)) in sending.names
            return Proceed() if is_creation else None
        # Everything for that thread is sent again: events sent after these may have been stored before them, and the
        # order matters (a child's first events come before its cancel).
        work.sent = {name: how for name, how in work.sent.items() if name[0] != sending.to}
        self._metrics.append_failures.inc()
        log.warning("message_append_failed", thread=str(followed.key), to=str(sending.to), error=str(error))
        return after_failed_append(error)

    # Looking up

    async def look_up(self, followed: Followed, wanted: Sequence[ReadChild]) -> Outcome:
        """Read from the views which of these children have ended. A child that is not wanted any more is forgotten."""
        work = followed.work
        try:
            ends = await self._children.find_ends(followed.key.tenant, {each.key.thread: each.input for each in wanted})
        finally:
            work.reading_children = False
        # Also without a result: the next look is due a while after this one, whatever it found.
        work.children_read_ms = self._clock.now_ms()
        if ends:
            self._metrics.children_looked_up.inc(len(ends))
        names: Mapping[str, object] = {each.key.thread: None for each in wanted}
        work.children = {name: end for name, end in work.children.items() if name in names} | dict(ends)
        return Proceed()
