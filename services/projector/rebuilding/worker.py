"""A process that fills some partitions of a generation; `worker_pool` starts it and describes the protocol."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from typing import Any

import orjson
import uvloop

from schemas.errors import ThreadlogError
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import TopicPartition
from services.chassis.process.telemetry import configure_logging
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import TOPIC, Build, Positions
from services.projector.rebuilding.garbage_collection import collect_rarely
from services.projector.settings import ProjectorSettings

SAID_EVERY_SECONDS = 0.2
"""The pause between two reports of progress: a line for each batch would be more than anybody reads."""


async def work() -> None:
    """Take the order from standard input, fill the partitions, and report the positions on standard output."""
    lines = await _standard_input()
    order = orjson.loads(await lines.readline())
    settings = ProjectorSettings.model_validate(order["settings"])
    configure_logging(settings.log_format, "rebuild", order["name"], settings.log_level)
    log = await KafkaLog.open_to_read(settings, order["name"])
    try:
        build = Build(
            log,
            PostgresStore(settings.postgres_dsn, settings, Generation(**order["generation"])),
            settings,
            owner=order["name"],
            partitions=order["partitions"],
            records_per_second=order["records_per_second"],
        )
        try:
            await build.open()
            _say(build.positions(), is_done=True)
            await _follow(build, lines)
        finally:
            await build.close()
    finally:
        await log.close()


async def _follow(build: Build, lines: asyncio.StreamReader) -> None:
    """Follow the commands of the parent. The end of the input ends what is being read."""
    reading: asyncio.Task[None] | None = None
    try:
        while line := await _next_line(lines, reading):
            match orjson.loads(line):
                case {"do": "pause"}:
                    build.pause()
                case {"do": "go_on"}:
                    build.go_on()
                case {"do": "read_to", "ends": ends, "publish_from": published}:
                    reading = asyncio.create_task(_read_to(build, ends, published), name="read-to")
                case other:
                    raise AssertionError(f"what does {other} mean?")
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])


async def _next_line(lines: asyncio.StreamReader, reading: asyncio.Task[None] | None) -> bytes:
    """Return the next command. If the reading fails while it waits, raise that failure."""
    line = asyncio.create_task(lines.readline(), name="next-line")
    waiting_for: set[asyncio.Task[Any]] = {line}
    if reading is not None and not reading.done():
        waiting_for.add(reading)
    try:
        while not line.done():
            done, waiting_for = await asyncio.wait(waiting_for, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        line.cancel()
    return line.result()


async def _read_to(build: Build, ends: Mapping[str, int], publish_from: Mapping[str, int] | None) -> None:
    loop = asyncio.get_running_loop()
    said_at = loop.time()

    def say_sometimes(positions: Positions) -> None:
        nonlocal said_at
        if loop.time() - said_at >= SAID_EVERY_SECONDS:
            said_at = loop.time()
            _say(positions, is_done=False)

    published = None if publish_from is None else {int(number): at for number, at in publish_from.items()}
    targets = {TopicPartition(TOPIC, int(number)): end for number, end in ends.items()}
    await build.read_to(targets, say_sometimes, published)
    _say(build.positions(), is_done=True)


def _say(positions: Positions, *, is_done: bool) -> None:
    """Report the positions as one line of JSON. `is_done` says that the last command has been carried out."""
    said = {"positions": {str(tp.partition): at for tp, at in positions.items()}, "is_done": is_done}
    sys.stdout.buffer.write(orjson.dumps(said) + b"\n")
    sys.stdout.buffer.flush()


async def _standard_input() -> asyncio.StreamReader:
    """Return standard input as a stream of lines. A command that names every partition may be long."""
    lines = asyncio.StreamReader(limit=1_048_576)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    return lines


def main() -> int:
    """Run a worker. An error that the parent should show goes to it as a line of JSON, with exit status 1."""
    # Ctrl-C is for the parent, which then closes the input of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    try:
        uvloop.run(work())
    except ThreadlogError as error:
        sys.stdout.buffer.write(orjson.dumps({"error": str(error)}) + b"\n")
        return 1
    except BrokenPipeError:
        return 1  # the parent is gone
    return 0


if __name__ == "__main__":
    sys.exit(main())
