"""A watch: one client's cursor in a thread. It gives history from the `events` view first, then the tail that all
watches share.
"""

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Protocol

from schemas.errors import ThreadlogError
from services.ingest.streams.frames import Frame, fact_frame
from services.ingest.streams.history import History
from services.ingest.streams.watched_thread import WatchedThread


class WatchCutError(ThreadlogError):
    """The watch ends here. Its `seq` is the cursor from which the client continues."""

    retriable: ClassVar[bool] = True


class PastLimits(Protocol):
    """Limits on how a watch reads history."""

    @property
    def behind_seconds(self) -> float: ...

    @property
    def retry_seconds(self) -> float: ...

    @property
    def history_page_records(self) -> int: ...


class Cuts(Protocol):
    """Counts watches that were cut because their client could not keep up."""

    cuts: int


class Host(Protocol):
    """A watch needs this of the reader that feeds it. `live.Watches` is that reader."""

    @property
    def history(self) -> History: ...

    @property
    def limits(self) -> PastLimits: ...

    @property
    def counts(self) -> Cuts: ...

    def closed(self, thread: WatchedThread) -> None:
        """Take note that a watch of the thread is gone."""


class Watch:
    """A watch shows one client a thread, from its cursor on."""

    def __init__(self, thread: WatchedThread, after: int, watches: Host) -> None:
        self.seq = after
        """The client's cursor: number of the last record that `next` gave."""
        self._thread = thread
        self._watches = watches
        self._index = thread.index_after(after) if after + 1 >= thread.first_seq else None
        """Index of the next frame in the tail; None while the client reads history."""
        self._live_from = thread.end_index
        """Progress before this index came before the client did. It is not shown: it would be half of a text."""
        self._closed = False

    async def next(self, wait_seconds: float) -> Sequence[Frame]:
        """Return the next frames; none if nothing comes within `wait_seconds`.

        Raises WatchCutError if the client must come back with its cursor, and StatesUnavailableError if it reads
        history while the database is away.
        """
        thread = self._thread
        if self._index is None:
            past = await self._past()
            if past:
                self.seq = past[-1].seq
                return past
        frames = self._present()
        if frames:
            return frames
        try:
            async with asyncio.timeout(wait_seconds):
                while not frames:
                    await thread.sleep()
                    frames = self._present()
        except TimeoutError:
            return ()
        return frames

    def close(self) -> None:
        """Give up the thread. A second call changes nothing."""
        if not self._closed:
            self._closed = True
            self._watches.closed(self._thread)

    def _present(self) -> list[Frame]:
        """Return the tail's frames from the cursor on. Raises WatchCutError if the tail has left the cursor behind, or
        has ended.
        """
        thread = self._thread
        if self._index is None:
            self._index = thread.index_after(self.seq)
        if self._index < thread.first_index:
            self._watches.counts.cuts += 1
            raise WatchCutError("the client is too slow")
        frames = thread.frames_from(self._index)
        if self._index < self._live_from:
            index = self._index
            frames = [frame for n, frame in enumerate(frames, index) if frame.seq or n >= self._live_from]
        self._index = thread.end_index
        for frame in reversed(frames):
            if frame.seq:
                self.seq = frame.seq
                break
        if not frames and thread.ended is not None:
            raise WatchCutError(thread.ended)
        return frames

    async def _past(self) -> list[Frame]:
        """Return the next page of history; none once the tail continues from the cursor.

        A page without its first record is read again, because the views are not that far yet.
        """
        thread, limits = self._thread, self._watches.limits
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limits.behind_seconds
        while self.seq + 1 < thread.first_seq:
            records = await self._watches.history.page(
                thread.key, self.seq, thread.first_seq - 1, limits.history_page_records
            )
            whole = 0
            for seq, record in enumerate(records, self.seq + 1):
                if record.seq != seq:
                    break
                whole += 1
            if whole:
                return [fact_frame(record) for record in records[:whole]]
            if loop.time() > deadline:
                raise WatchCutError("the views are behind")
            await asyncio.sleep(limits.retry_seconds)
        return []
