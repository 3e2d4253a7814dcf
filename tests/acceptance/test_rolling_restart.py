"""SIGTERM for every process of every service under load, first for one instance of each, then for the other.

Nothing is lost or doubled, and clients see nothing that the same request with the same Idempotency-Key does not heal.
The clients here are plain ones, so that nothing is healed for them: each goes to the other ingest when one fails.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import httpx2
import pytest

from services.cli.local.embedded import free_port
from services.cli.local.supervisor import SERVICES
from services.client.sse import Fact, JsonObject, SseParser
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka]

SECOND = "second"
SESSIONS = 6
TRIES_MAX = 200
PAUSE_SECONDS = 0.1
ANSWERED_LATER = frozenset({429, 502, 503, 504})

SCRIPT = r"""
rules:
  - match: {last_user: "^note (?P<name>\\S+)", steps: 0}
    calls:
      - {tool: shell, args: {command: "echo {{name}} >> LEDGER; sleep 0.3"}}
  - match: always
    text: It has been noted, as it should be.
    delta_seconds: 0.05
"""
TOOLS = """
builtin: [shell]
tools:
  shell: {effect: unsafe}
"""
UNCONFINED: JsonObject = {"permission_profile": "full"}
"""The commands write to a file outside their workspace."""


class Clients:
    """Requests to either ingest."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._http = httpx2.AsyncClient(timeout=30, headers={"x-threadlog-tenant": "dev"})
        self._turn = count()
        self.retries = Counter[str]()

    async def aclose(self) -> None:
        await self._http.aclose()

    def _url(self) -> str:
        return self._urls[next(self._turn) % len(self._urls)]

    async def post(self, path: str, body: JsonObject, key: str) -> JsonObject:
        for _ in range(TRIES_MAX):
            try:
                answer = await self._http.post(f"{self._url()}{path}", json=body, headers={"idempotency-key": key})
            except httpx2.TransportError as error:
                self.retries[type(error).__name__] += 1
            else:
                if answer.status_code in {200, 202}:
                    found: JsonObject = answer.json()
                    return found
                assert answer.status_code in ANSWERED_LATER, f"{path}: {answer.status_code} {answer.text}"
                self.retries[str(answer.status_code)] += 1
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(f"{path} was not accepted in {TRIES_MAX} tries: {self.retries}")

    async def get(self, path: str) -> JsonObject:
        answer = await self._http.get(f"{self._url()}{path}")
        assert answer.status_code == 200, answer.text
        found: JsonObject = answer.json()
        return found

    async def events(self, thread: str, after: int) -> AsyncIterator[Fact]:
        """Of one connection, until it ends for whatever reason."""
        url, headers = (
            f"{self._url()}/v1/threads/{thread}/events",
            {"accept": "text/event-stream", "last-event-id": str(after)},
        )
        try:
            async with self._http.stream("GET", url, headers=headers) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    assert answer.status_code in ANSWERED_LATER, answer.text
                    return
                parser = SseParser()
                async for chunk in answer.aiter_raw():
                    for item in parser.feed(chunk):
                        if isinstance(item, Fact):
                            yield item
        except httpx2.TransportError:
            return


class Session:
    """One client with one thread: it says something, follows until the turn has ended, and says the next thing."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self._name = name
        self.thread = ""
        self.said: list[str] = []
        self.facts: list[Fact] = []
        self.connections = 0
        self._ended = asyncio.Condition()

    def applied(self, kind: str) -> list[JsonObject]:
        return [fact.data for fact in self.facts if fact.kind == kind and fact.applied]

    async def run(self, stopping: asyncio.Event) -> None:
        created = await self._clients.post("/v1/threads", {"config": UNCONFINED}, self._name)
        self.thread = str(created["thread"])
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow())
            while not stopping.is_set():
                await self._say()
            following.cancel()

    async def _say(self) -> None:
        name = f"{self._name}-{len(self.said)}"
        wait = "?wait=applied" if len(self.said) % 2 else ""
        path = f"/v1/threads/{self.thread}/inputs{wait}"
        await self._clients.post(path, {"text": f"note {name}"}, name)
        self.said.append(name)
        async with asyncio.timeout(PATIENCE_SECONDS), self._ended:
            await self._ended.wait_for(lambda: len(self.applied("turn.ended")) >= len(self.said))

    async def _follow(self) -> None:
        while True:
            self.connections += 1
            async for fact in self._clients.events(self.thread, len(self.facts)):
                assert fact.seq == len(self.facts) + 1, f"seq {fact.seq} came after {len(self.facts)}"
                async with self._ended:
                    self.facts.append(fact)
                    self._ended.notify_all()
            await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def twice(folder: Path, kafka: str, postgres: str) -> AsyncIterator[tuple[System, list[str], Path]]:
    """Two instances of each service, the URLs of both ingests, and the ledger that the tool writes."""
    ledger = folder / "ledger"
    ledger.touch()
    port = free_port()
    async with (
        database(postgres) as dsn,
        system(folder, kafka=kafka, postgres=dsn, script=SCRIPT.replace("LEDGER", str(ledger)), tools=TOOLS) as running,
    ):
        for service in SERVICES:
            running.supervisor.start(service, {"THREADLOG_INGEST_PORT": str(port)}, instance=SECOND)
        for service in SERVICES:
            await running.supervisor.wait_ready(f"{service}-{SECOND}")
        yield running, [running.url, f"http://127.0.0.1:{port}"], ledger


async def restart(running: System, name: str) -> None:
    running.supervisor.kill(name, signal.SIGTERM)
    await running.supervisor.wait_ready(name)


async def everybody_has_said(sessions: list[Session], count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for session in sessions:
            while len(session.applied("turn.ended")) < count:  # noqa: ASYNC110  # the session's own task goes on
                await asyncio.sleep(PAUSE_SECONDS)


def events_of(log: Path, event: str) -> list[JsonObject]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


async def test_a_rolling_restart_of_everything_under_load(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path: Path
) -> None:
    async with twice(tmp_path, kafka_bootstrap, postgres_dsn) as (running, urls, ledger):
        clients = Clients(urls)
        sessions = [Session(clients, f"s{number}") for number in range(SESSIONS)]
        rolled = asyncio.Event()
        waves = [list(SERVICES), [f"{service}-{SECOND}" for service in SERVICES]]
        try:
            async with asyncio.TaskGroup() as tasks:
                for session in sessions:
                    tasks.create_task(session.run(rolled))
                await everybody_has_said(sessions, 1)
                for wave in waves:
                    await asyncio.gather(*[restart(running, name) for name in wave])
                rolled.set()
            stuck = await clients.get("/v1/ops/stuck")
        finally:
            await clients.aclose()
        logs = {name: running.supervisor.log(name) for wave in waves for name in wave}

    said = [name for session in sessions for name in session.said]
    assert Counter(ledger.read_text().split()) == Counter(said), "each tool call had its effect once"
    for session in sessions:
        texts = [item["text"] for data in session.applied("input.submitted") for item in data["items"]]  # type: ignore[index,union-attr,call-overload]
        assert texts == [f"note {name}" for name in session.said], "each acknowledged input counts once, in order"
        ends = session.applied("turn.ended")
        assert [(end["turn"], end["outcome"]) for end in ends] == [
            (n + 1, "completed") for n in range(len(session.said))
        ]
        assert session.applied("tool_call.lost") == []
        assert session.applied("turn.recovered") == [], "who stops hands its model calls over"
        assert session.connections > 1
    for name, log in logs.items():
        cut_short = [end["cut_short"] for end in events_of(log, "service_ended")]
        assert cut_short == [False, False], f"{name} did not end in order: by the restart, and at the end of the test"
    assert (stuck["threads"], stuck["partitions"], stuck["incomplete"]) == ([], [], [])
