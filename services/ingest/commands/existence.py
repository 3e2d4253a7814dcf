"""Whether a thread exists for this tenant, and how full its queue is, without a query if this process knows it.

A thread that this process does not know is looked up in the view. The view may lag behind, so a thread counts as
missing only once the view has passed the end that the log had when the request came.

What is remembered may be old, and always in the harmless direction. A thread that exists stays for ever, and one that
is closing never opens again. The count of waiting inputs only errs upwards: inputs leave the queue unseen, so a queue
that looks full is looked up before an input is refused.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from schemas.events import InputSubmitted, ThreadCloseRequested
from schemas.ids import ThreadKey, is_name
from schemas.state import ThreadState
from schemas.topics import topic_of
from services.chassis.log.port import Log, LogError, TopicPartition
from services.ingest.http.problems import NOT_FOUND, VIEWS_BEHIND, Problem, ProblemError, no_such_thread
from services.ingest.lru_cache import LruCache

VIEWS_WAIT_SECONDS: Final = 3.0
"""How long a command waits for the views to pass the end that the log had when it came. The projector needs less than
0.2 s; if it is down, clients should learn it soon and try again.
"""
KNOWN_THREADS_MAX: Final = 20_000
"""Threads whose existence this process remembers, so that writes to them need no database. Each takes about 1 KB.
"""
_APPENDS_REMEMBERED = 1_024
"""Offsets of appended inputs that one thread remembers. A queue limit above it would be enforced by the view alone."""


class ThreadRow(NamedTuple):
    """What the view knows of a thread, and how far the view has come in the thread's partition."""

    next_offset: int
    """The view holds every record of the partition below this offset."""
    offset: int
    """Offset of the thread's last record in the view; -1 if the view has none."""
    exists: bool
    queued: int
    """Inputs that wait in the thread."""
    seq: int
    """Number of the thread's last record in the view."""
    is_closing: bool = False
    """Whether it is closing, or closed."""


class ThreadRows(Protocol):
    """The view of threads, as this module needs it."""

    async def thread_row(self, key: ThreadKey, partition: int) -> ThreadRow:
        """Return what the view knows of the thread. Raises ProblemError (views-unavailable)."""
        ...

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        """Return whether the view holds all records of the partition below the offset, after waiting as long as
        allowed.
        """
        ...


@dataclass(slots=True)
class _Known:
    """What this process remembers of a thread that exists."""

    queued: int = 0
    """Inputs that waited when the view or the fold was last asked."""
    offset: int = -1
    """Offset of the last record that `queued` counts."""
    submitted: deque[int] = field(default_factory=lambda: deque(maxlen=_APPENDS_REMEMBERED))
    """Offsets of inputs that this process has appended since."""
    under_way: int = 0
    """Inputs that this process has sent to the log and that the log has not acknowledged."""
    is_closing: bool = False
    """Whether somebody has asked to close the thread, as far as this process knows. Such a request always takes effect.
    """

    def estimate(self) -> int:
        """Return how many inputs wait at most, as far as this process knows."""
        return self.queued + len(self.submitted) + self.under_way

    def see(self, queued: int, offset: int) -> None:
        """Take over a newer count of waiting inputs; an older one changes nothing."""
        if offset < self.offset:
            return
        self.queued, self.offset = queued, offset
        while self.submitted and self.submitted[0] <= offset:
            self.submitted.popleft()


class KnownThreads:
    """Threads of all tenants that exist for sure, least recently used ones forgotten first."""

    def __init__(
        self,
        *,
        log: Log,
        rows: ThreadRows,
        partitions: int,
        queue_max: int,
        wait_seconds: float,
        threads_max: int = KNOWN_THREADS_MAX,
    ) -> None:
        self._log = log
        self._rows = rows
        self.partitions = partitions
        self._queue_max = queue_max
        self._wait_seconds = wait_seconds
        self._known: LruCache[ThreadKey, _Known] = LruCache(threads_max)

    def partition(self, key: ThreadKey) -> int:
        """Return the partition that holds the thread's records."""
        return self._log.partition_for(key.to_bytes(), self.partitions)

    async def require(self, key: ThreadKey) -> None:
        """Return if the thread exists. Raises ProblemError if it does not, or if that cannot be known now."""
        if self._known.get(key) is None:
            await self._look_up(key)

    async def require_viewed(self, key: ThreadKey) -> None:
        """Like `require`, and refuse ephemeral threads: no view holds them."""
        await self.require(key)
        if key.ephemeral:
            detail = "An ephemeral thread has no views: read the thread itself, or follow its events."
            raise ProblemError(Problem(NOT_FOUND, detail))

    async def queued(self, key: ThreadKey) -> int:
        """Return how many inputs wait in a thread at most. The view is asked only if the queue could be full."""
        known = self._known.get(key)
        if known is None or known.estimate() >= self._queue_max:
            known = await self._look_up(key)
        return known.estimate()

    def is_closing(self, key: ThreadKey) -> bool:
        """Return whether this process knows that the thread is closing or closed."""
        known = self._known.get(key)
        return known is not None and known.is_closing

    def note_created(self, key: ThreadKey) -> None:
        """Remember a thread that this process has just created."""
        if self._known.get(key) is None:
            self._known.put(key, _Known())

    def note_append(self, key: ThreadKey, kind: str, offset: int) -> None:
        """Remember what an appended record says about queue and closing."""
        known = self._known.get(key)
        if known is None:
            return
        if kind == InputSubmitted.kind:
            known.submitted.append(offset)
        elif kind == ThreadCloseRequested.kind:
            known.is_closing = True

    @contextlib.contextmanager
    def submitting(self, key: ThreadKey) -> Iterator[None]:
        """Count an input as waiting while it is on its way to the log. However many inputs come at once, no more pass
        than there is room for.
        """
        known = self._known.get(key) or _Known()
        known.under_way += 1
        try:
            yield
        finally:
            known.under_way -= 1

    def note_state(self, key: ThreadKey, state: ThreadState) -> None:
        """Take over the folded state, which is newer than any view."""
        known = self._known.get(key)
        if known is not None:
            known.see(len(state.queue), state.offset)
            known.is_closing = known.is_closing or state.status in {"closing", "closed"}

    async def look_up(self, key: ThreadKey) -> None:
        """Like `require`, and guarantee that the view holds the thread afterwards."""
        await self._look_up(key)

    async def catch_up(self, key: ThreadKey) -> None:
        """Wait until the view holds everything that the log holds of the thread's partition now. Raises ProblemError.

        An ephemeral thread has no views. Questions about it are always answered as of the log's end, so there is
        nothing to wait for.
        """
        if key.ephemeral:
            return
        partition = self.partition(key)
        tp = TopicPartition(topic_of(key).name, partition)
        try:
            end = (await self._log.end_offsets([tp]))[tp]
        except LogError as error:
            raise ProblemError(Problem(VIEWS_BEHIND, f"The end of the log is not known: {error}.")) from error
        if not await self._rows.wait_for(partition, end, self._wait_seconds):
            raise ProblemError(
                Problem(VIEWS_BEHIND, "The views do not hold the thread's newest records yet. Try again.")
            )

    async def _look_up(self, key: ThreadKey) -> _Known:
        if not is_name(key.thread):
            raise ProblemError(no_such_thread())
        partition = self.partition(key)
        row = await self._rows.thread_row(key, partition)
        if not row.exists:
            # The row may be missing only because the projector is behind: ask again once it has caught up.
            await self.catch_up(key)
            row = await self._rows.thread_row(key, partition)
        if not row.exists:
            raise ProblemError(no_such_thread())
        known = self._known.get(key)
        if known is None:
            known = _Known()
            self._known.put(key, known)
        known.see(row.queued, row.offset)
        known.is_closing = known.is_closing or row.is_closing
        return known
