"""Clients that read a thread's stream, are cut off or hang up, and come back with their cursor at another instance."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx2

from bench.plain_http import PlainTransport
from schemas.ids import ThreadKey
from services.client.sse import Cut, Fact, SseParser, StreamError

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 20.0
AGAIN_SECONDS = (0.05, 0.5)
HANG_UP_AFTER_FACTS = 25
"""On average."""
TRANSIENT = frozenset({429, 502, 503, 504})


@dataclass(slots=True, eq=False)
class Followed:
    """What one client saw of one thread, over all of its connections."""

    key: ThreadKey
    ids: list[str] = field(default_factory=list)
    """Of the record with seq 1, 2, 3 …"""
    effects: list[str] = field(default_factory=list)
    gaps: int = 0
    repeats: int = 0
    connections: int = 0
    refusals: list[str] = field(default_factory=list)
    """Answers that no client of a thread that exists should get."""
    connected_to: str | None = None
    """Name of the instance, while its stream is open."""

    def take(self, fact: Fact) -> None:
        after = len(self.ids)
        if fact.seq <= after:
            self.repeats += 1
            return
        self.gaps += fact.seq > after + 1
        body = fact.body
        missed = fact.seq - after - 1
        self.ids += [*[""] * missed, str(body["id"])]
        self.effects += [*[""] * missed, str(body["effect"])]


class Follower:
    def __init__(
        self,
        key: ThreadKey,
        urls: dict[str, str],
        rng: random.Random,
        *,
        only_at: str | None = None,
        hangs_up: bool = True,
        on_open: Callable[["Follower"], None] = lambda _: None,
    ) -> None:
        self.followed = Followed(key)
        self._urls = urls
        self._rng = rng
        self._only_at = only_at
        self._hangs_up = hangs_up
        self._on_open = on_open
        self._transport = PlainTransport()
        self._done = asyncio.Event()
        self._until = 0

    def end_at(self, seq: int) -> None:
        """It is over once this seq was seen."""
        self._until = seq
        if len(self.followed.ids) >= seq:
            self._done.set()

    async def run(self) -> None:
        """Until it has seen what it is to see, or is cancelled."""
        loop = asyncio.get_running_loop()
        streaming = loop.create_task(self._stream_for_ever())
        done = loop.create_task(self._done.wait())
        try:
            await asyncio.wait({streaming, done}, return_when=asyncio.FIRST_COMPLETED)
            if streaming.done():
                streaming.result()
        finally:
            streaming.cancel()
            done.cancel()
            await asyncio.gather(streaming, done, return_exceptions=True)
            await self._transport.aclose()

    async def _stream_for_ever(self) -> None:
        while True:
            try:
                await self._stream_once(self._only_at or self._rng.choice(list(self._urls)))
            except (httpx2.TransportError, StreamError, OSError):
                pass
            finally:
                self.followed.connected_to = None
            await asyncio.sleep(self._rng.uniform(*AGAIN_SECONDS))

    async def _stream_once(self, at: str) -> None:
        followed = self.followed
        response = await self._transport.handle_async_request(self._request(at))
        try:
            if response.status_code != 200:
                body = await response.aread()
                if response.status_code not in TRANSIENT:
                    followed.refusals.append(f"{response.status_code} {body[:200]!r} after {len(followed.ids)}")
                return
            followed.connections += 1
            followed.connected_to = at
            self._on_open(self)
            left = self._rng.expovariate(1 / HANG_UP_AFTER_FACTS) if self._hangs_up else float("inf")
            parser = SseParser()
            async for chunk in response.aiter_raw():
                for item in parser.feed(chunk):
                    if isinstance(item, Cut):
                        return
                    if isinstance(item, Fact):
                        followed.take(item)
                        left -= 1
                if self._until and len(followed.ids) >= self._until:
                    self._done.set()
                if left < 0:
                    return
        finally:
            await response.aclose()

    def _request(self, at: str) -> httpx2.Request:
        key, after = self.followed.key, len(self.followed.ids)
        url = f"{self._urls[at]}/v1/threads/{quote(key.thread, safe='')}/events"
        headers = [
            (b"accept", b"text/event-stream"),
            (b"x-threadlog-tenant", key.tenant.encode()),
            (b"x-threadlog-subject", b"follower"),
        ]
        if self._rng.random() < 0.5:
            headers.append((b"last-event-id", str(after).encode()))
        else:
            url += f"?after={after}"
        timeouts = {"connect": CONNECT_SECONDS, "read": SILENCE_SECONDS, "write": CONNECT_SECONDS}
        return httpx2.Request("GET", url, headers=headers, extensions={"timeout": timeouts})


def connected(followers: Sequence[Follower], name: str) -> list[Follower]:
    return [follower for follower in followers if follower.followed.connected_to == name]
