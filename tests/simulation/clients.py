"""Clients of the API: they ask any ingest, again with the same key until they are answered, and follow threads by streams
that they leave and come back to.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.ids import ThreadKey
from tests.simulation.processes import Answer, IngestProcess
from tests.simulation.world import SimulationWorld

ANSWER_SECONDS = 6.0
"""A client waits no longer for one answer: longer than for a verdict, shorter than processes stand still."""
SILENCE_SECONDS = 8.0
"""A stream without even a comment for so long is taken for dead."""
PAUSE_SECONDS = 0.4
TRY_AGAIN = frozenset({429, 503})
UNDECIDED_MOST = 5
"""So often a client asks for a verdict, then leaves it."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a client wants, told apart by its key."""

    who: str
    """Tenant and subject."""
    method: str
    path: str
    body: dict[str, Any]
    idempotency_key: str
    thread: ThreadKey | None = None
    answers: list[Answer] = field(default_factory=list)
    """All of them, refusals that ask to come back left out."""

    @property
    def answer(self) -> Answer:
        return self.answers[-1]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body} key={self.idempotency_key}"


class Clients:
    def __init__(self, world: SimulationWorld, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.commands: list[Command] = []
        self.waiting: dict[str, int] = {}
        """Commands under way, by what they are."""
        self.problems: list[tuple[Command, str]] = []
        self.unknown: list[tuple[ThreadKey, str]] = []
        """Threads that were named to a client, and could not be used; and how that was answered."""
        self.told: Callable[[str, str, Mapping[str, Any]], None] = lambda _who, _tenant, _data: None
        """Called with whatever a client is told: who it is, its tenant, and the body or the event."""

    async def send(self, command: Command) -> Answer:
        """Until there is an answer, and sometimes a second time."""
        name = str(command)
        self.waiting[name] = self.waiting.get(name, 0) + 1
        self.commands.append(command)
        self._world.story.tell(command.who, str(command), command.thread)
        try:
            answer = await self._answered(command)
            if self._rng.random() < 0.12:
                await asyncio.sleep(self._rng.choice([0, 0.3, 3]))
                self._world.story.tell(command.who, f"again: {command}", command.thread)
                await self._answered(command)
            return answer
        finally:
            self.waiting[name] -= 1
            if not self.waiting[name]:
                del self.waiting[name]

    async def _answered(self, command: Command) -> Answer:
        undecided = 0
        while True:
            answer = await self._ask(command)
            if answer is None or answer.status in TRY_AGAIN:
                await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE_SECONDS))
                continue
            command.answers.append(answer)
            if answer.status < 300:
                tenant, _, subject = command.who.partition("/")
                self.told(subject, tenant, answer.body)
            self._world.story.tell(command.who, f"{answer.status} {_brief(answer)}", command.thread)
            if not answer.body.get("undecided") or undecided >= UNDECIDED_MOST:
                return answer
            undecided += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, command: Command) -> Answer | None:
        """None where the connection broke, or no answer came."""
        ingest = self.choose()
        if ingest is None:
            return None
        headers = {"idempotency-key": command.idempotency_key}
        stream = ingest.request(command.method, command.path, command.who, headers, command.body)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await stream.opened
                body = await stream.read_all()
        except TimeoutError:
            return None
        finally:
            stream.close()
        if status == 0 or not body:
            return None
        return Answer(status, body)

    def choose(self) -> IngestProcess | None:
        ingests = [process for process in self._world.alive(IngestProcess) if process.is_up]
        return self._rng.choice(ingests) if ingests else None


def _brief(answer: Answer) -> str:
    body = answer.body
    if answer.status >= 400:
        return f"{answer.problem}: {str(body.get('detail'))[:100]}"
    effect = "" if body.get("effect") is None else f" {body['effect']} #{body.get('seq')}"
    return f"{'undecided ' if body.get('undecided') else ''}at {body.get('position', {}).get('offset')}{effect}"


class Watcher:
    """Follows one thread for as long as the run lasts, now here, now there."""

    def __init__(self, world: SimulationWorld, clients: Clients, key: ThreadKey, name: str, rng: random.Random) -> None:
        self.key = key
        self.name = name
        self.seq = 0
        """Its cursor."""
        self.seen: list[tuple[int, str, str, str | None]] = []
        """Seq, event id, effect, reason."""
        self.problems: list[str] = []
        self.is_mended = False
        self._world = world
        self._clients = clients
        self._rng = rng

    async def run(self) -> None:
        while True:
            ingest = self._clients.choose()
            if ingest is not None:
                await self._follow(ingest, self._rng.choice([0, 0.2, 1, 5, 20]))
            await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE_SECONDS))

    async def _follow(self, ingest: IngestProcess, seconds: float) -> None:
        headers = {"accept": "text/event-stream", "last-event-id": str(self.seq)}
        path = f"/v1/threads/{self.key.thread}/events"
        self._world.story.tell(self.name, f"follows from #{self.seq} at {ingest.owner}", self.key)
        stream = ingest.request("GET", path, f"{self.key.tenant}/{self.name}", headers, None)
        loop = asyncio.get_running_loop()
        leaves_at = None if self.is_mended else loop.time() + seconds
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                status = await stream.opened
            if status not in {0, 200}:
                self._refused(Answer(status, await stream.read_all()))
                return
            while not stream.is_over and (leaves_at is None or loop.time() < leaves_at or self.is_mended):
                async with asyncio.timeout(SILENCE_SECONDS):
                    self._take(await stream.read())
            self._take(await stream.read() if stream.is_over else b"")
        except TimeoutError:
            self._world.story.tell(self.name, f"hears nothing from {ingest.owner}", self.key)
        finally:
            stream.close()

    def _refused(self, answer: Answer) -> None:
        if answer.status not in TRY_AGAIN:
            self.problems.append(f"its cursor {self.seq} is answered by {answer.status} {answer.body}")

    def _take(self, chunk: bytes) -> None:
        for frame in chunk.split(b"\n\n"):
            lines = frame.split(b"\n")
            if lines[0].startswith(b"id: "):
                data = orjson.loads(lines[2].removeprefix(b"data: "))
                self._see(int(lines[0][4:]), data)
            elif lines[0] == b"event: cut":
                after = orjson.loads(lines[1].removeprefix(b"data: "))["after"]
                if after != self.seq:
                    self.problems.append(f"it is cut at {after}, and has seen {self.seq}")

    def _see(self, seq: int, data: dict[str, Any]) -> None:
        if seq != self.seq + 1 or data["seq"] != seq:
            self.problems.append(f"after #{self.seq} comes #{seq}")
        self.seq = seq
        self.seen.append((seq, data["id"], data["effect"], data["reason"]))
        self._clients.told(self.name, self.key.tenant, data)
