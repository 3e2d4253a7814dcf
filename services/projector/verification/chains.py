"""Checks of the log against itself: the hashes of its producers, and the hash chains that records name.

The record that ends a turn names the hash chain of everything that its runtime had read of the thread, and a thread
with a parent names the chain of its parent. So it shows if an earlier record was altered, removed or inserted, even if
the views were built after that.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing

import asyncpg
from pydantic import JsonValue

from schemas.codec import Record, Unreadable, decode
from schemas.events import Lineage, StepStarted
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import CHAIN_START, NOTHING, ThreadState
from schemas.thread import Verdict, fold, next_chain
from schemas.topics import THREAD_EVENTS
from schemas.transcript import Item, Transcript, context_hash, transcript_changes
from services.chassis.log.port import Incoming, Log, TopicPartition
from services.chassis.log.scan import scan
from services.chassis.threads.contexts import BrokenLineageError, ShownAt, read_inherited, scan_shown_at
from services.projector.verification.report import Finding


class Offsets:
    """Sees each record that is read, in order, and finds gaps. The producers of threadlog leave none."""

    def __init__(self, begins: Mapping[TopicPartition, int]) -> None:
        self._next = dict(begins)
        self.records = 0
        self.gaps: list[Finding] = []
        self.gap_count = 0

    def see(self, record: Incoming) -> None:
        """Take the next record of its partition."""
        tp = TopicPartition(record.topic, record.partition)
        expected = self._next.get(tp, record.offset)
        self._next[tp] = record.offset + 1
        self.records += 1
        if record.offset != expected:
            self._add(tp, expected, record.offset)

    def end(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note that everything up to these offsets was read: what was not seen below them is missing."""
        for tp, end in sorted(ends.items()):
            if self._next.get(tp, end) < end:
                self._add(tp, self._next[tp], end)

    def _add(self, tp: TopicPartition, expected: int, found: int) -> None:
        self.gap_count += 1
        if not self.gaps:
            self.gaps.append(gone(tp, expected, found))


def gone(tp: TopicPartition, begin: int, end: int) -> Finding:
    """Return the finding that the records from `begin` to before `end` are missing."""
    which = f"offset {begin} is" if end == begin + 1 else f"offsets {begin} to {end - 1} are"
    what = f"{which} not in partition {tp.partition} of {tp.topic}"
    return Finding("log", what, key={"partition": tp.partition, "offset": begin})


async def wrong_hashes(
    connection: asyncpg.Connection, query: str, timeout_seconds: float, accepted: Collection[tuple[int, int]]
) -> AsyncIterator[Finding]:
    """Yield records whose value is not the one that the producer hashed, but for those that are accepted."""
    async for row in connection.cursor(query, timeout=timeout_seconds):
        if (row["partition"], row["offset"]) not in accepted:
            what = f"the record at seq {row['seq']} is not what its producer hashed: {row['reason']}"
            yield Finding("hash", what, row["tenant"], row["thread"], key=_at(row))


async def wrong_ends(connection: asyncpg.Connection, query: str, timeout_seconds: float) -> AsyncIterator[Finding]:
    """Yield ends of turns that name another hash chain than the records before them give."""
    async for row in connection.cursor(query, timeout=timeout_seconds):
        what = (
            f"the end of a turn at seq {row['seq']} names another chain for seq {row['named_seq']} than the records "
            "come to: one of them was altered, removed or inserted"
        )
        yield Finding(
            "chain",
            what,
            row["tenant"],
            row["thread"],
            key=_at(row),
            log_says=row["folded_chain"],
            view_says=row["named_chain"],
        )


async def wrong_parents(
    connection: asyncpg.Connection, query: str, timeout_seconds: float, log: Log, topic: str, partitions: int
) -> AsyncIterator[Finding]:
    """Yield threads that name another chain of their parent than its records give.

    A parent that was not folded is read from the log.
    """
    rows = [row async for row in connection.cursor(query, timeout=timeout_seconds)]
    for row in rows:
        folded = row["folded_chain"]
        parent = ThreadKey(TenantId(row["tenant"]), ThreadId(row["parent"]))
        if folded is None:
            tp = TopicPartition(topic, log.partition_for(parent.to_bytes(), partitions))
            folded = await chain_at(log, tp, parent, row["named_seq"])
        if folded == row["named_chain"]:
            continue
        what = (
            f"the thread's creation names another chain for seq {row['named_seq']} of its parent {parent.thread} than "
            "the parent's records come to"
        )
        yield Finding(
            "lineage",
            what,
            row["tenant"],
            row["thread"],
            key=_at(row),
            log_says=folded,
            view_says=row["named_chain"],
        )


async def chain_at(log: Log, tp: TopicPartition, key: ThreadKey, seq: int) -> str | None:
    """Return the hash chain of a thread at a seq; None if the log has no such record."""
    chain, counted = CHAIN_START, 0
    if seq == 0:
        return chain
    end = (await log.end_offsets([tp]))[tp]
    async for record in scan(log, tp, [key], end):
        chain, counted = next_chain(chain, record), counted + 1
        if counted == seq:
            return chain
    return None


class Contexts:
    """Checks for one thread that each model call got the context that the thread's records give at that point.

    The context of a step contains what its runtime had read, and the runtime's own events after that. A step is checked
    only if no other producer's record lies in between: otherwise nobody knows what the runtime had read.
    """

    def __init__(self, key: ThreadKey) -> None:
        self._key = key
        self._state = NOTHING
        self._transcript = Transcript()
        self.inherited: tuple[Item, ...] | None = None
        self._sources: list[str] = []
        """The producer of each record, by seq from 1."""
        self.findings: list[Finding] = []

    async def open(self, log: Log) -> None:
        """Read what the thread inherits if it is a fork: from the log, as everything here. Raises LogError."""
        lineage = await _lineage(log, self._key)
        if lineage is None or lineage.kind != "fork":
            return

        async def read(parent: ThreadKey, seq: int) -> ShownAt:
            return await scan_shown_at(log, parent, seq)

        try:
            self.inherited = await read_inherited(self._key.tenant, lineage, read)
        except BrokenLineageError as error:
            self.findings.append(Finding("lineage", f"what the thread inherits cannot be told: {error}", *self._key))

    def see(self, incoming: Incoming) -> None:
        record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
        if isinstance(record, Unreadable) or record.key != self._key:
            return
        before = self._state
        self._state, verdict = fold(before, record)
        self.take(record, verdict, before, self._state, incoming.partition)

    def take(
        self, record: Record, verdict: Verdict, before: ThreadState, after: ThreadState, partition: int = 0
    ) -> None:
        self._sources.append(record.source)
        if isinstance(record.data, StepStarted) and verdict.effect == "applied":
            self._check(record, record.data, after.seq, partition)
        self._transcript.apply(transcript_changes(before, after, record, verdict))
        if self._transcript.forked is not None:
            self._transcript.inherited = self.inherited

    def _check(self, record: Record, started: StepStarted, seq: int, partition: int) -> None:
        """Compare the context that a step names with the thread's records, if that can be known."""
        named = started.context
        if self._transcript.lacks_inherited:
            return
        # What others appended in between may or may not have been read by the runtime.
        since = self._sources[named.confirmed_seq : seq - 1]
        if named.confirmed_seq >= seq or any(source != record.source for source in since):
            return
        items = self._transcript.context()
        found = context_hash(items)
        if (named.hash, named.items) != (found, len(items)):
            what = (
                f"step {started.turn}.{started.step} at seq {seq} was asked with {named.items} items, the thread's "
                f"records come to {len(items)} others"
            )
            key = {"partition": partition, "offset": record.offset}
            self.findings.append(Finding("context", what, *self._key, key=key, log_says=found, view_says=named.hash))


async def _lineage(log: Log, key: ThreadKey) -> Lineage | None:
    """Return the thread's lineage, from its creation, which is among its first records; None if there is none."""
    partitions = await log.partition_count(THREAD_EVENTS.name)
    tp = TopicPartition(THREAD_EVENTS.name, log.partition_for(key.to_bytes(), partitions))
    state = NOTHING
    async with aclosing(scan(log, tp, [key], (await log.end_offsets([tp]))[tp])) as records:
        async for record in records:
            state = fold(state, record).state
            if state.exists:
                return state.lineage
    return None


def _at(row: asyncpg.Record) -> dict[str, JsonValue]:
    return {"partition": row["partition"], "offset": row["offset"]}
