"""One run: faults under load, then quiet, then the reckoning."""

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import TopicPartition
from tests.chaos.calm import Calm
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.observer import Observer
from tests.chaos.people import People
from tests.chaos.progress import Progress
from tests.chaos.report import percentiles_ms
from tests.chaos.service_logs import Failure, failures
from tests.chaos.system import ChaosSystem, chaos_system
from tests.chaos.verdict import Judgement, ThreadStory, judge, read_log, story_of
from tests.chaos.views import view_differences, wait_for_views

SETTLE_SECONDS = 60.0
"""All must have come to rest so long after the last fault."""
VIEWS_SECONDS = 30.0
POSITIONS_POLL_SECONDS = 0.1
CALM_POSITIONS_POLL_SECONDS = 0.02
LOOK_SECONDS = 0.1
STORIES_MAX = 4
CONTRADICTIONS_SHOWN_MAX = 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    result: dict[str, Any]
    """What chaos.json holds."""
    stories: list[str]
    """Of the threads with which something is wrong."""


async def chaos(seconds: float, seed: int, *, calm_kills: int, keep: bool = False, say: Say = print) -> Found:
    folder = Path(tempfile.mkdtemp(prefix="tlc-", dir="/tmp"))
    folder.chmod(0o755)  # noqa: ASYNC240  # once; Postgres runs as another user where we are root
    loop = asyncio.get_running_loop()
    begun = loop.time()

    def tell(what: str) -> None:
        say(f"{loop.time() - begun:4.0f} s  {what}")

    tell(f"seed {seed}, logs in {folder}")
    try:
        async with chaos_system(folder) as system:
            tell(f"on {system.kafka.running.version} and {system.postgres.running.version}")
            found = await _Run(system, seconds, seed, calm_kills, tell).run()
            tell("stopping")
        tell("stopped")
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return found


class _Run:
    def __init__(self, system: ChaosSystem, seconds: float, seed: int, calm_kills: int, say: Say) -> None:
        self._system = system
        self._seconds = seconds
        self._seed = seed
        self._calm_kills = calm_kills
        self._say = say
        self._rng = random.Random(seed)

    async def run(self) -> Found:
        system = self._system
        log = await KafkaLog.open(system.settings, "chaos")
        try:
            observer = Observer(log, await log.partition_count(THREAD_EVENTS.name))
            progress = Progress(observer, system.settings.postgres_dsn, CALM_POSITIONS_POLL_SECONDS)
            load = Load(system.urls, observer, random.Random(self._rng.random()), progress.on_open)
            faults = Faults(
                system.victims(), random.Random(self._rng.random()), lambda name: progress.killed(name, load.followers)
            )
            people = People(load.door, system.ledger, random.Random(self._rng.random()))
            try:
                async with _cancelled(observer.run(), progress.watch_positions(), people.run()):
                    calm = Calm(system, load.door, observer, progress, random.Random(self._rng.random()))
                    await self._measure_calm(calm)
                    load.followers += calm.followers
                    progress.poll_seconds = POSITIONS_POLL_SECONDS
                    calm_samples, progress.samples = progress.samples, defaultdict(list)
                    settle_seconds = await self._play(observer, load, faults)
            finally:
                await load.door.close()
            return await self._reckon(
                log, observer, progress, load, faults, settle_seconds, calm_samples, calm.problems
            )
        finally:
            await log.close()

    async def _measure_calm(self, calm: Calm) -> None:
        if self._calm_kills:
            self._say(f"single kills in a calm system, {self._calm_kills} of each kind")
            await calm.run(self._calm_kills)
            self._say("faults under load from here")

    async def _play(self, observer: Observer, load: Load, faults: Faults) -> float:
        """Returns what it took to settle after the last fault, or the limit of that."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(load.run())
            telling = tasks.create_task(self._tell(observer, load, faults))
            await faults.run(self._seconds)
            load.stop()
            quiet_since = loop.time()
            self._say(f"no more faults; {len(observer.unsettled())} threads have something left to do")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._settle(observer, load, loading)
            settle_seconds = loop.time() - quiet_since
            loading.cancel()
            telling.cancel()
        return settle_seconds

    async def _settle(self, observer: Observer, load: Load, loading: "asyncio.Task[None]") -> None:
        """Until nothing is left to do and every client has seen all of it."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if observer.unsettled():
                continue
            for follower in load.followers:
                follower.end_at(observer.of(follower.followed.key).state.seq)
            if loading.done():
                return

    async def _tell(self, observer: Observer, load: Load, faults: Faults) -> None:
        while True:
            await asyncio.sleep(10)
            self._say(
                f"{sum(faults.kills.values())} kills, {sum(faults.stops.values())} stops; {len(load.notes.inputs)} "
                f"inputs acknowledged, {len(observer.threads)} threads, {len(observer.unsettled())} of them not settled"
            )

    async def _reckon(
        self,
        log: KafkaLog,
        observer: Observer,
        progress: Progress,
        load: Load,
        faults: Faults,
        settle_seconds: float,
        calm_samples: Mapping[str, list[float]],
        calm_problems: list[str],
    ) -> Found:
        self._say(f"settled after {settle_seconds:.1f} s")
        stories, ids = await read_log(log, observer.partitions)
        followed = [follower.followed for follower in load.followers]
        judgement = judge(stories, ids, self._system.ledger.by_key(), load.notes.inputs, followed)
        differences = await self._views(log, observer, stories)
        system, notes = self._system, load.notes
        failed = failures(system.folder / "logs")
        samples = progress.samples
        result: dict[str, Any] = {
            "seconds": self._seconds,
            "faults": faults.counts(),
            "inputs": judgement.inputs,
            "turns": judgement.turns,
            "calls": judgement.calls,
            "progress_ms": percentiles_ms(each for by in samples.values() for each in by),
            "clients": {
                **judgement.clients,
                "streams": len(followed),
                "connections": sum(each.connections for each in followed),
            },
            "views_equal": not differences,
            "seed": self._seed,
            "kafka_version": system.kafka.running.version,
            "postgres_version": system.postgres.running.version,
            "kills": sum(faults.kills.values()),
            "stops": sum(faults.stops.values()),
            "settle_seconds": round(settle_seconds, 1),
            "records": sum(len(each) for each in ids.values()),
            "outcomes": dict(judgement.outcomes),
            "commands": dict(sorted(notes.commands.items())),
            "refusals": dict(sorted(notes.refusals.items())),
            "unanswered": notes.unanswered,
            "contradictions": len(notes.unexpected),
            "progress_ms_by_victim": _by_kind(samples),
            "calm_progress_ms": _by_kind(calm_samples),
            "calm_problems": calm_problems,
            "failures": [str(failure) for failure in failed],
        }
        return Found(result, _stories(judgement, stories, differences, notes.unexpected, failed))

    async def _views(self, log: KafkaLog, observer: Observer, stories: Mapping[Any, ThreadStory]) -> list[str]:
        tps = [TopicPartition(THREAD_EVENTS.name, number) for number in range(observer.partitions)]
        ends = {tp.partition: end for tp, end in (await log.end_offsets(tps)).items()}
        behind = await wait_for_views(self._system.settings.postgres_dsn, ends, VIEWS_SECONDS)
        return behind or await view_differences(log, self._system.settings, stories)


def _by_kind(samples: Mapping[str, list[float]]) -> dict[str, dict[str, int | None]]:
    return {name: {**percentiles_ms(each), "samples": len(each)} for name, each in sorted(samples.items())}


def _stories(
    judgement: Judgement,
    stories: Mapping[Any, ThreadStory],
    differences: list[str],
    contradictions: list[str],
    failed: list[Failure],
) -> list[str]:
    lines = [f"failed by itself: {each}" for each in failed]
    lines += [f"contradiction: {each}" for each in contradictions[:CONTRADICTIONS_SHOWN_MAX]]
    lines += [f"views: {each}" for each in differences]
    for number, (key, problems) in enumerate(judgement.faulted.items()):
        lines += ["", f"{key}:", *[f"  ! {problem}" for problem in problems]]
        if number < STORIES_MAX and key in stories:
            lines += story_of(stories[key])
    return lines


@contextlib.asynccontextmanager
async def _cancelled(*work: Any) -> AsyncIterator[None]:
    """Runs beside the block, and is cancelled with its end."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in work]
        yield
        for task in running:
            task.cancel()
