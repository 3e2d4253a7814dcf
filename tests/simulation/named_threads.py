"""Clients use every id the moment they see it: a thread that an answer or an event names is followed and read at once.

Whoever is told an id may use it. An ingest may ask to come back later, as often as it has to, but it may never say that
there is no such thread.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from schemas.ids import TenantId, ThreadId, ThreadKey
from tests.simulation.clients import ANSWER_SECONDS, PAUSE_SECONDS, TRY_AGAIN, Clients
from tests.simulation.invariants import Broken, Run, invariant
from tests.simulation.processes import Answer
from tests.simulation.world import SimulationWorld

EVENT_STREAM = {"accept": "text/event-stream"}
DOORS: tuple[tuple[str, Mapping[str, str]], ...] = (("/events", EVENT_STREAM), ("/events", {}), ("", {}))
"""The path below the thread, and the headers: its stream, a page of its events, and the thread itself."""


class NamedThreads:
    def __init__(self, world: SimulationWorld, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._seen: set[ThreadKey] = set()

    def see(self, who: str, tenant: str, data: Mapping[str, Any]) -> None:
        """Use what a client is told: the body of an answer, or an event."""
        for name in named_in(data):
            key = ThreadKey(TenantId(tenant), ThreadId(name))
            if key not in self._seen:
                self._seen.add(key)
                self._world.story.tell(who, f"is told of {name[:8]}")
                for path, headers in DOORS:
                    self._world.background(self._use(who, key, path, headers))

    async def _use(self, who: str, key: ThreadKey, path: str, headers: Mapping[str, str]) -> None:
        """Ask until there is an answer. Processes die, stand still, and ask to come back: that is no answer."""
        wanted = f"GET /v1/threads/{key.thread}{path} for {who}"
        self._clients.waiting[wanted] = self._clients.waiting.get(wanted, 0) + 1
        try:
            answer = await self._ask(who, key, path, headers)
            while answer is None or answer.status in TRY_AGAIN:
                await asyncio.sleep(PAUSE_SECONDS)
                answer = await self._ask(who, key, path, headers)
        finally:
            self._clients.waiting[wanted] -= 1
            if not self._clients.waiting[wanted]:
                del self._clients.waiting[wanted]
        if answer.status != 200:
            self._clients.unknown.append((key, f"{who} was told of it, and {wanted} is answered by {answer.status}"))

    async def _ask(self, who: str, key: ThreadKey, path: str, headers: Mapping[str, str]) -> Answer | None:
        ingest = self._clients.choose()
        if ingest is None:
            return None
        asked = f"/v1/threads/{key.thread}{path}"
        stream = ingest.request("GET", asked, f"{key.tenant}/{who}", dict(headers), None)
        is_stream = headers == EVENT_STREAM
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await stream.opened
                body = await (stream.read() if is_stream and status == 200 else stream.read_all())
        except TimeoutError:
            return None
        finally:
            stream.close()
        if status == 0 or not body:
            return None
        if is_stream and status == 200:
            for event in events_in(body):
                self.see(who, key.tenant, event)
            return Answer(status, b"")
        return Answer(status, body)


def events_in(chunk: bytes) -> Iterator[Mapping[str, Any]]:
    for frame in chunk.split(b"\n\n"):
        lines = frame.split(b"\n")
        if lines[0].startswith(b"id: "):
            yield orjson.loads(lines[2].removeprefix(b"data: "))


def named_in(told: Mapping[str, Any]) -> Iterator[str]:
    """The threads that an answer of a command, or an event, names."""
    if isinstance(told.get("thread"), str):
        yield told["thread"]
    data = told.get("data")
    if not isinstance(data, Mapping):
        return
    if isinstance(data.get("child"), str):
        yield data["child"]
    for inner, name in (("result", "thread"), ("lineage", "parent")):
        value = data.get(inner)
        if isinstance(value, Mapping) and isinstance(value.get(name), str):
            yield value[name]


@invariant
def named_threads_are_there(run: Run) -> Iterator[Broken]:
    for key, problem in run.clients.unknown:
        yield Broken(problem, key)
