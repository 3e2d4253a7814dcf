"""One client watches the session and shows it, a director kills services at set moments."""

import asyncio
from contextlib import aclosing
from typing import Final, NamedTuple

from demo.evidence import Evidence, Kill, Seen
from demo.releases import TOOL, Releases
from demo.stage import Screen
from services.cli.local.supervisor import Supervisor
from services.client.client import ThreadlogClient
from services.client.sse import Fact, Live

AWAY_SECONDS: Final = 1.0
WORDS_BEFORE_KILL: Final = 5


class Moments(NamedTuple):
    """Steps of the turn from which on something happens."""

    runtime_dies: int
    client_leaves: int
    executor_dies: int
    second_person_steers: int


class Watcher:
    """Shows the session. Once in its midst, it drops its connection, and comes back with nothing but its cursor."""

    def __init__(self, client: ThreadlogClient, screen: Screen, evidence: Evidence, moments: Moments) -> None:
        self._client = client
        self._screen = screen
        self._evidence = evidence
        self._moments = moments
        self._cursor = 0
        self._has_ended = False

    async def watch(self, thread: str) -> None:
        """Follow the turn until it has ended."""
        await self._watch(thread, may_leave=True)
        if self._has_ended:
            return
        self._screen.tell(f"the watching client drops its connection after seq {self._cursor}")
        await asyncio.sleep(AWAY_SECONDS)
        self._screen.tell(f"the client is back, and asks for what came after seq {self._cursor}")
        await self._watch(thread, may_leave=False)

    async def _watch(self, thread: str, *, may_leave: bool) -> None:
        self._evidence.connections += 1
        async with aclosing(self._client.follow(thread, self._cursor, until_turn_end=True)) as events:
            async for event in events:
                if isinstance(event, Live):
                    self._screen.write(self._screen.session.live(event))
                    continue
                self._screen.write(self._screen.session.fact(event))
                self._cursor = event.seq
                self._evidence.seen.append(Seen(event.seq, str(event.body["id"]), event.effect))
                self._has_ended = event.applied and event.kind == "turn.ended"
                if may_leave and self._leaves(event):
                    return

    def _leaves(self, fact: Fact) -> bool:
        if not fact.applied or fact.kind != "tool_call.finished":
            return False
        return int(str(fact.data["call"]).split(".")[1]) >= self._moments.client_leaves


class Director:
    """Follows the session on a connection of its own, and kills by what it sees."""

    def __init__(
        self,
        client: ThreadlogClient,
        supervisor: Supervisor,
        releases: Releases,
        screen: Screen,
        evidence: Evidence,
        moments: Moments,
    ) -> None:
        self._client = client
        self._supervisor = supervisor
        self._releases = releases
        self._evidence = evidence
        self._moments = moments
        self._screen = screen
        self._words = 0
        """Pieces of text of the step in which the runtime is to die."""

    async def direct(self, thread: str) -> None:
        """Follow the turn until it has ended and whatever was killed is back."""
        async with asyncio.TaskGroup() as returns, aclosing(self._client.follow(thread, until_turn_end=True)) as events:
            interrupting = returns.create_task(self._interrupt_the_release())
            async for event in events:
                service = self._victim(event)
                if service is not None:
                    step = int(str(event.data["step"]))
                    self._evidence.kills.append(Kill(service, step))
                    self._kill(service, f"while the model answers in step {step}")
                    returns.create_task(self._wait_back(service))
            if not self._releases.published.is_set():
                interrupting.cancel()

    async def _interrupt_the_release(self) -> None:
        await self._releases.published.wait()
        self._evidence.interrupted = self._releases.read()[0].key
        self._kill("tool-executor", f"in the middle of {TOOL}, which took effect and has not answered")
        await self._wait_back("tool-executor")

    def _kill(self, service: str, moment: str) -> None:
        process = self._supervisor.kill(service)
        self._screen.tell(f"kill -9 {process}: the {service} is gone, {moment}")

    def _victim(self, event: Fact | Live) -> str | None:
        killed = {kill.service for kill in self._evidence.kills}
        if "runtime" not in killed:
            # In the middle of what the model says; a model that says nothing is not waited for.
            first = self._moments.runtime_dies
            self._words += isinstance(event, Live) and event.kind == "delta" and _step(event) == first
            speaks = self._words == WORDS_BEFORE_KILL
            starts = isinstance(event, Fact) and event.kind == "step.started" and _step(event) > first
            return "runtime" if speaks or starts else None
        has_died = "tool-executor" in killed or self._releases.published.is_set()
        if not has_died and isinstance(event, Fact) and event.applied:
            # A step starts when every call is settled, and the next call comes out of this step.
            is_between = event.kind == "step.started" and _step(event) >= self._moments.executor_dies
            is_new = is_between and all(_step(event) > kill.step for kill in self._evidence.kills)
            return "tool-executor" if is_new else None
        return None

    async def _wait_back(self, service: str) -> None:
        loop = asyncio.get_running_loop()
        killed_at = loop.time()
        await self._supervisor.wait_ready(service)
        process = self._supervisor.pid(service)
        self._screen.tell(f"the {service} is back after {loop.time() - killed_at:.1f} s, as process {process}")


def _step(event: Fact | Live) -> int:
    step = event.data.get("step")
    return step if isinstance(step, int) else 0
