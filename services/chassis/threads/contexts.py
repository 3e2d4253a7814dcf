"""What a thread showed as of a seq, which is what its forks begin with: read from the views, or out of the log.

A fork names its parent and a seq, and copies nothing. Its context is read at its parents: one query per parent, up to a
thread that is no fork, or to a summary, which stands for everything before it. The result never changes, because the
records up to that seq never change; so it does not matter when it is read. If the views lack a parent, its partition is
read instead.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

import asyncpg
import orjson

from schemas.events import Lineage
from schemas.ids import ThreadId, ThreadKey
from schemas.state import NOTHING
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from schemas.transcript import Item, Transcript, inherited, transcript_changes
from services.chassis.log.port import Log, TopicPartition
from services.chassis.log.scan import scan
from services.chassis.postgres.connections import AWAY
from services.chassis.postgres.sql_files import SqlFiles

PARENTS_MAX: Final = 100
"""Forks of forks that are followed. No thread with more parents can be forked, so more of them are an error."""


class BrokenLineageError(Exception):
    """What a thread says about its parent is wrong. An operator gets to see it; `threadlog verify` finds out more."""


class ShownAt(NamedTuple):
    """A thread's own part of its context as of a seq."""

    items: Sequence[Item]
    """The items, in order."""
    parent: tuple[str, int] | None
    """The thread whose context precedes the items, and as of which seq; None if there is no parent, or if a summary
    stands for it.
    """
    is_cut: bool = False
    """Whether there are more items than the bounds allowed."""


class Bounds(NamedTuple):
    """How much of a context is read; None means without a limit."""

    items_max: int | None = None
    bytes_max: int | None = None
    """Stored bytes. The item that passes the limit is the last one."""


UNBOUNDED: Final = Bounds()


class ContextRows(Protocol):
    """Reads contexts from the views."""

    async def shown_at(self, key: ThreadKey, seq: int, bounds: Bounds = UNBOUNDED) -> ShownAt | None:
        """Return what the thread showed, in one snapshot.

        Return None if the views lack the thread up to that seq, or if the database is away.
        """
        ...


Fetch: TypeAlias = Callable[..., Awaitable[Sequence[asyncpg.Record]]]
"""A function that is called with tenant, statement and arguments, and returns rows."""
Read: TypeAlias = Callable[[ThreadKey, int], Awaitable[ShownAt]]
"""A function that returns what a thread showed as of a seq, wherever it finds it."""


class PostgresContexts:
    """Implements `ContextRows` by one statement, for whichever role `fetch` reads."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._sql = SqlFiles(Path(__file__).with_name("sql"))

    async def shown_at(self, key: ThreadKey, seq: int, bounds: Bounds = UNBOUNDED) -> ShownAt | None:
        try:
            rows = await self._fetch(key.tenant, self._sql["context_at"], key.tenant, key.thread, seq, *bounds)
        except AWAY:
            return None
        if not rows:
            return None
        first = rows[0]
        items = [_item(row) for row in rows if row["part"] is not None]
        is_whole = first["parent"] is None or first["summary_seq"] is not None
        parent = None if is_whole else (first["parent"], first["parent_seq"])
        return ShownAt(with_calls(items), parent, is_cut=len(items) < first["shown"])


def with_calls(items: Sequence[Item]) -> list[Item]:
    """Return the items without results whose calls are missing: a summary stands for those calls."""
    calls = {item.call for item in items if item.kind == "tool_call"}
    return [item for item in items if item.kind != "tool_result" or item.call in calls]


async def read_inherited(tenant: str, lineage: Lineage, read: Read) -> tuple[Item, ...]:
    """Return what a fork with this lineage shows before its own items.

    Raise BrokenLineageError, and what `read` raises.
    """
    return await inherited_from(tenant, (lineage.parent, lineage.seq), read)


async def inherited_from(tenant: str, parent: tuple[str, int] | None, read: Read) -> tuple[Item, ...]:
    """Return the context of a parent as of a seq: read upwards, then put together from the topmost thread down."""
    levels: list[tuple[str, Sequence[Item]]] = []
    while parent is not None:
        if len(levels) == PARENTS_MAX:
            raise BrokenLineageError(f"{levels[0][0]} has more than {PARENTS_MAX} threads above it")
        thread, seq = parent
        items, parent, _ = await read(ThreadKey(tenant, ThreadId(thread)), seq)  # type: ignore[arg-type]  # a tenant's own
        levels.append((thread, items))
    context: tuple[Item, ...] = ()
    for thread, items in reversed(levels):
        context = inherited(thread, [*context, *items])
    return context


def reading(rows: ContextRows, log: Log) -> Read:
    """Return a function that reads from the views, or out of the thread's partition if the views lack it."""

    async def read(key: ThreadKey, seq: int) -> ShownAt:
        return await rows.shown_at(key, seq) or await scan_shown_at(log, key, seq)

    return read


async def scan_shown_at(log: Log, key: ThreadKey, seq: int) -> ShownAt:
    """Fold the thread out of its partition and return what it showed as of `seq`.

    Raise LogError, or BrokenLineageError if the log has no such record of the thread.
    """
    tp = TopicPartition(
        THREAD_EVENTS.name, log.partition_for(key.to_bytes(), await log.partition_count(THREAD_EVENTS.name))
    )
    end = (await log.end_offsets([tp]))[tp]
    state, transcript = NOTHING, Transcript()
    async with aclosing(scan(log, tp, [key], end)) as records:
        async for record in records:
            before = state
            state, verdict = fold(before, record)
            transcript.apply(transcript_changes(before, state, record, verdict))
            if state.seq == seq:
                return shown_of(transcript)
    raise BrokenLineageError(f"the log has no record {seq} of {key}, of which there is a fork")


def shown_of(transcript: Transcript) -> ShownAt:
    """Return what a whole transcript shows of the thread's own items."""
    forked = transcript.forked if transcript.lacks_inherited else None
    if forked is None:
        return ShownAt(transcript.context(), None)
    alone = transcript.copy()
    alone.inherited = ()
    return ShownAt(alone.context(), (forked.parent, forked.seq))


def _item(row: asyncpg.Record) -> Item:
    content = row["content"]
    return Item(
        row["seq"],
        row["part"],
        row["kind"],
        row["turn"],
        row["step"],
        row["place"],
        orjson.loads(content) if isinstance(content, bytes | str) else {},
        row["digest"],
        row["input"],
        row["call"],
    )
