"""Single kills in a calm system: how long the victim's threads stand still.

Once with a supervisor that starts the victim again at once, and once with one that never does, so that another instance
has to take its partitions over. Threads are brought to where the next step is the victim's, and the time runs from the
kill to that step (progress.py).
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from schemas.ids import TenantId, ThreadId, ThreadKey
from tests.chaos.followers import Follower
from tests.chaos.load import TENANTS, Door
from tests.chaos.observer import Observer, Seen
from tests.chaos.progress import Progress
from tests.chaos.system import ChaosSystem

THREADS = 12
"""In each round; about half of them are the victim's."""
SCENE_SECONDS = 20.0
"""Until they stand where they are wanted."""
PROGRESS_SECONDS = 45.0
"""Whatever has not made its next step by then is told as a problem."""
QUIET_SECONDS = 30.0
LOOK_SECONDS = 0.02
STREAMS_OPEN_SECONDS = 0.5

Afterwards = Literal["restarted", "gone"]


@dataclass(frozen=True, slots=True)
class Scene:
    kind: str
    service: str
    text: str
    """What the threads are told."""
    then: str | None = None
    """What they are told right after the kill."""


SCENES: Final = (
    Scene("runtime", "runtime", "slow"),
    Scene("tool-executor", "tool-executor", "one record_idempotent 0 0 no", then="one record_idempotent 0 0 no"),
    Scene("tool-executor, lease", "tool-executor", "one record_idempotent 0 3500 no"),
    Scene("ingest", "ingest", "slow"),
    Scene("projector", "projector", "slow", then="chat"),
)
"""A call that comes after the executor's death waits for its successor; one that it ran is held until its lease is
over."""


class Calm:
    def __init__(
        self, system: ChaosSystem, door: Door, observer: Observer, progress: Progress, rng: random.Random
    ) -> None:
        self._system = system
        self._door = door
        self._observer = observer
        self._progress = progress
        self._rng = rng
        self.problems: list[str] = []
        self.followers: list[Follower] = []

    async def run(self, kills: int) -> None:
        """So many of each; the samples go to `progress`, by kind and what came afterwards."""
        for afterwards in ("restarted", "gone"):
            for scene in SCENES:
                for number in range(kills):
                    await self._round(scene, f"{scene.service}-{number % 2}", afterwards)

    async def _round(self, scene: Scene, name: str, afterwards: Afterwards) -> None:
        async with asyncio.TaskGroup() as tasks:
            threads = [seen for seen in await asyncio.gather(*[self._thread(scene) for _ in range(THREADS)]) if seen]
            followers = self._follow(tasks, threads, name, afterwards) if scene.service == "ingest" else []
            if not await self._is_set(scene, threads):
                self.problems.append(f"{scene.kind}: the threads did not get ready")
            samples = self._wait_for_progress(scene, threads, followers, name, f"{scene.kind}, {afterwards}")
            self._system.supervisor.kill(name)
            if afterwards == "gone":
                await self._system.supervisor.stop(name)
            if scene.then is not None:
                await asyncio.gather(*[self._submit(seen, scene.then) for seen in threads])
            if not await self._come_to_rest(lambda: not self._progress.pending(), PROGRESS_SECONDS):
                self.problems.append(
                    f"{scene.kind}, {afterwards}: {self._progress.pending()} of {samples} made no progress within "
                    f"{PROGRESS_SECONDS:.0f} s"
                )
            self._progress.forget_pending()
            if afterwards == "gone":
                self._system.start(name)
            await asyncio.sleep(LOOK_SECONDS)
            await self._system.supervisor.wait_ready(name)
            await self._come_to_rest(lambda: all(seen.state.turn is None for seen in threads), QUIET_SECONDS)
            for follower in followers:
                follower.end_at(self._observer.of(follower.followed.key).state.seq)

    def _wait_for_progress(
        self, scene: Scene, threads: Sequence[Seen], followers: Sequence[Follower], name: str, kind: str
    ) -> int:
        if scene.kind != "tool-executor":
            return self._progress.killed(name, followers, kind)
        owners = self._observer.owners
        held = [seen for seen in threads if owners.get((scene.service, seen.partition)) == name]
        return self._progress.wait_for(held, kind, scene.service)

    async def _thread(self, scene: Scene) -> Seen | None:
        tenant = self._rng.choice(TENANTS)
        created = await self._door.ask(
            tenant, "ann", "create in calm", lambda client: client.create_thread(text=scene.text)
        )
        return None if created is None else self._observer.of(ThreadKey(TenantId(tenant), ThreadId(created.thread)))

    async def _submit(self, seen: Seen, text: str) -> None:
        tenant, thread = seen.key
        await self._door.ask(tenant, "ann", "input in calm", lambda client: client.submit(thread, text))

    def _follow(
        self, tasks: asyncio.TaskGroup, threads: Sequence[Seen], name: str, afterwards: Afterwards
    ) -> list[Follower]:
        """Where the victim comes back they wait for it; else they find the other instance, as behind a balancer."""
        urls: Mapping[str, str] = self._system.urls
        followers = [
            Follower(
                seen.key,
                dict(urls),
                self._rng,
                only_at=name if afterwards == "restarted" else None,
                hangs_up=False,
                on_open=self._progress.on_open,
            )
            for seen in threads
        ]
        for follower in followers:
            tasks.create_task(follower.run())
        self.followers += followers
        return followers

    async def _is_set(self, scene: Scene, threads: Sequence[Seen]) -> bool:
        match scene.kind:
            case "tool-executor":
                holds = lambda: all(seen.state.last_outcome is not None for seen in threads)  # noqa: E731
            case "tool-executor, lease":
                holds = lambda: all(_has_running_call(seen) for seen in threads)  # noqa: E731
            case _:
                holds = lambda: all(_has_open_step(seen) for seen in threads)  # noqa: E731
        is_set = await self._come_to_rest(holds, SCENE_SECONDS)
        if scene.service == "ingest":
            await asyncio.sleep(STREAMS_OPEN_SECONDS)
        return is_set

    async def _come_to_rest(self, holds: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not holds():  # noqa: ASYNC110  # several things come together here
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return False
        return True


def _has_open_step(seen: Seen) -> bool:
    turn = seen.state.turn
    return turn is not None and turn.step is not None and turn.step.status == "open"


def _has_running_call(seen: Seen) -> bool:
    return any(call.status == "running" for call in seen.state.calls.values())
