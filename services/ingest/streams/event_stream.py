"""A watch as a stream of server-sent events.

This is a bare ASGI response. Starlette's StreamingResponse and sse-starlette put a task group, an iterator and a
formatter between each chunk and its socket, which costs several times as much as the chunk itself. All frames that a
poll brought go out in one send.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.chassis.threads.states import StatesUnavailableError
from services.ingest.streams.frames import HEARTBEAT, Frame, cut_frame
from services.ingest.streams.watch import Watch, WatchCutError

HEARTBEAT_SECONDS: Final = 15.0
"""A stream without events sends a comment this often, so that both sides notice a dead connection. Proxies close a
silent connection after 30 to 60 s.
"""
SEND_SECONDS_MAX: Final = 30.0
"""How long a client may leave its connection unread before the service gives it up."""
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How often an idle stream gives a sign of life, and how long a client may leave its connection unread."""

    heartbeat_seconds: float = HEARTBEAT_SECONDS
    send_seconds_max: float = SEND_SECONDS_MAX


class EventStream(Response):
    """The response of a stream; it owns the watch and closes it."""

    def __init__(
        self,
        watch: Watch,
        first: Sequence[Frame],
        options: StreamOptions,
        *,
        applied_only: bool = False,
        until_turn_end: bool = False,
    ) -> None:
        """`first` are the frames that the watch has given already. `applied_only` leaves out records without effect.
        `until_turn_end` closes the stream after the next `turn.ended` that took effect.
        """
        self.status_code = 200
        self.background = None
        self.raw_headers = HEADERS
        self._watch = watch
        self._options = options
        self._applied_only = applied_only
        self._until_turn_end = until_turn_end
        self._is_last = False
        self._first = self._body(first)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        with closing(self._watch):
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            try:
                async with asyncio.TaskGroup() as tasks:
                    gone = tasks.create_task(_gone(receive))
                    await self._stream(send)
                    gone.cancel()
            except* _ClientGoneError:
                pass

    async def _stream(self, send: Send) -> None:
        watch, options = self._watch, self._options
        try:
            body = self._first or HEARTBEAT
            while True:
                async with asyncio.timeout(options.send_seconds_max):
                    await send({"type": "http.response.body", "body": body, "more_body": not self._is_last})
                if self._is_last:
                    return
                try:
                    body = self._body(await watch.next(options.heartbeat_seconds)) or HEARTBEAT
                except (WatchCutError, StatesUnavailableError) as error:
                    body = cut_frame(watch.seq, str(error))
                    self._is_last = True
        except TimeoutError:
            # The client does not read. Without a last chunk the server closes the connection, and the client comes
            # back.
            return

    def _body(self, frames: Sequence[Frame]) -> bytes:
        """Return the frames' bytes as one piece."""
        if self._applied_only or self._until_turn_end:
            frames = self._chosen(frames)
        if len(frames) == 1:
            return frames[0].sse
        return b"".join([frame.sse for frame in frames])

    def _chosen(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return the frames that the client wants, up to the one that ends the stream."""
        chosen: list[Frame] = []
        for frame in frames:
            record = frame.record
            if record is None or record.effect == "applied" or not self._applied_only:
                chosen.append(frame)
            if self._until_turn_end and record and record.kind == "turn.ended" and record.effect == "applied":
                self._is_last = True
                break
        return chosen


class _ClientGoneError(Exception):
    """Ends the stream's task group when the connection ends."""


async def _gone(receive: Receive) -> None:
    """Wait until the client disconnects, then raise _ClientGoneError."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _ClientGoneError
