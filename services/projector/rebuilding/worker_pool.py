"""Several processes that fill one generation, each with partitions of its own: this process and workers beside it.

A worker (`worker`) gets commands as lines of JSON on its standard input, and reports on its standard output how far it
is. It ends when its input ends: the parent closes it, or has died. A signal that a terminal sends to the parent does
not reach the worker.

Partitions are dealt out in turn, so that each process has as many as the others. Each claims its own
partitions, and its transactions move the positions of these alone.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog

from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Log, TopicPartition
from services.projector.generations.errors import RebuildError
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Build, OnPositions, Positions, ignore_progress
from services.projector.settings import ProjectorSettings

TOPIC: Final = THREAD_EVENTS.name
LINE_BYTES_MAX: Final = 1_048_576
"""Bytes of one line: a report names each partition of the worker."""
END_SECONDS: Final = 10.0
"""How long a worker may take to end before it is killed. What it has committed stays."""

logger = structlog.get_logger()


class Workers:
    """Implements `build.Filling`."""

    def __init__(self, log: Log, settings: ProjectorSettings, generation: Generation, dsn: str) -> None:
        self._log = log
        self._settings = settings
        self._generation = generation
        self._dsn = dsn
        self._own: Build | None = None
        self._workers: list[_Worker] = []

    async def open(self) -> None:
        """Start the workers, claim the share of this process, and wait until all have claimed theirs."""
        settings = self._settings
        numbers = range(await self._log.partition_count(TOPIC))
        count = min(settings.projector_rebuild_workers, len(numbers))
        rate = settings.projector_rebuild_records_per_second_max
        each = max(1, rate // count) if rate else None
        for index in range(1, count):
            order = {
                "settings": settings.model_dump(mode="json") | {"postgres_dsn": self._dsn},
                "generation": self._generation,
                "name": f"rebuild-{index}",
                "partitions": list(numbers[index::count]),
                "records_per_second": each,
            }
            self._workers.append(await _Worker.start(order))
        # Starting a worker costs as much as several thousand records, so this process fills one share itself.
        self._own = Build(
            self._log,
            PostgresStore(self._dsn, settings, self._generation),
            settings,
            owner="rebuild-0",
            partitions=numbers[::count],
            records_per_second=each,
        )
        await self._all([self._own.open(), *[worker.answered() for worker in self._workers]])

    def positions(self) -> dict[TopicPartition, int]:
        ours = self._build.positions()
        return ours | {tp: at for worker in self._workers for tp, at in worker.positions.items()}

    def pause(self) -> None:
        self._build.pause()
        self._tell({"do": "pause"})

    def go_on(self) -> None:
        self._build.go_on()
        self._tell({"do": "go_on"})

    async def read_to(
        self, ends: Positions, on_progress: OnPositions = ignore_progress, publish_from: Mapping[int, int] | None = None
    ) -> None:
        def progress(_: Positions = ends) -> None:
            on_progress(self.positions())

        for worker in self._workers:
            worker.on_progress = progress
            own = {tp.partition: end for tp, end in ends.items() if tp in worker.positions}
            worker.tell({"do": "read_to", "ends": own, "publish_from": publish_from})
        ours = self._build.positions()
        reading = self._build.read_to({tp: end for tp, end in ends.items() if tp in ours}, progress, publish_from)
        await self._all([reading, *[worker.answered() for worker in self._workers]])

    async def close(self) -> None:
        closing = [worker.end() for worker in self._workers]
        if self._own is not None:
            closing.append(self._own.close())
        await asyncio.gather(*closing)

    @property
    def _build(self) -> Build:
        assert self._own is not None, "open comes first"
        return self._own

    def _tell(self, command: Mapping[str, Any]) -> None:
        for worker in self._workers:
            worker.tell(command)

    async def _all(self, answers: Sequence[Any]) -> None:
        """Wait for all. The first failure ends the wait for the others, which work on until they are closed."""
        tasks = [asyncio.ensure_future(answer) for answer in answers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _ignore_progress() -> None:
    pass


class _Worker:
    """A worker as its parent sees it: its process, and the positions that it reported last."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name
        self.positions: dict[TopicPartition, int] = {}
        self.on_progress: Callable[[], None] = _ignore_progress

    @classmethod
    async def start(cls, order: Mapping[str, Any]) -> "_Worker":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.projector.rebuilding.worker"),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # so that a signal of the terminal reaches the parent alone
        )
        worker = cls(process, order["name"])
        worker.tell(order)
        return worker

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send a command. A worker that has ended is not told; `answered` then raises."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(orjson.dumps(command, option=orjson.OPT_NON_STR_KEYS) + b"\n")

    async def answered(self) -> None:
        """Wait until the worker has carried out its last command. Raises RebuildError if it fails or ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = orjson.loads(line)
            if "error" in said:
                raise RebuildError(f"{self._name}: {said['error']}")
            self.positions = {TopicPartition(TOPIC, int(number)): at for number, at in said["positions"].items()}
            self.on_progress()
            if said["is_done"]:
                return
        status = await self._process.wait()
        raise RebuildError(
            f"{self._name} ended with status {status} before its work was done. The next rebuild goes on with it."
        )

    async def end(self) -> None:
        """Close the input of the worker, which ends it; kill it if it takes too long."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.communicate()  # read what it still reports: a full pipe would keep it from ending
        except TimeoutError:
            logger.warning("worker_killed", worker=self._name)
            process.kill()
            await process.wait()
