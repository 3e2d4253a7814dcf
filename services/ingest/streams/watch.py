"""A watch: one client's cursor in a thread. First history from the `events` view, then the tail that it shares."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from schemas.errors import ThreadlogError
from services.ingest.streams.frames import Frame, fact_frame
from services.ingest.streams.watched_thread import WatchedThread

if TYPE_CHECKING:
    from services.ingest.streams.live import Watches


class WatchCutError(ThreadlogError):
    """The watch ends here. Its `seq` is where the client goes on."""

    retriable: ClassVar[bool] = True


class Watch:
    """One client's view of a thread, from its cursor on."""

    def __init__(self, thread: WatchedThread, after: int, watches: "Watches") -> None:
        self.seq = after
        """Of the last fact that `next` gave: the client's cursor."""
        self._thread = thread
        self._watches = watches
        self._index = thread.index_after(after) if after + 1 >= thread.first_seq else None
        """Of the next frame in the tail; None as long as the client reads history."""
        self._live_from = thread.end_index
        """What is live only and came before the client did is not shown to it."""
        self._closed = False

    async def next(self, wait_seconds: float) -> Sequence[Frame]:
        """What comes next; nothing when that takes longer than `wait_seconds`.

        Raises WatchCutError when the client must come back with its cursor, StatesUnavailableError while it reads
        history and the database is away.
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
        if not self._closed:
            self._closed = True
            self._watches.closed(self._thread)

    def _present(self) -> list[Frame]:
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
        """The next page of history; nothing once the tail goes on from the cursor. A page without its first record is
        looked at again: the views have not come so far.
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
