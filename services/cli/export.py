"""`threadlog export THREAD` writes a thread's records as they are on the log, each with its verdict."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from schemas.errors import HeaderError, ThreadlogError
from schemas.ids import ThreadKey, parse_key
from schemas.topics import THREAD_EVENTS
from services.cli.connection import TENANT, Tenant

if TYPE_CHECKING:
    from services.chassis.log.port import Log, TopicPartition
    from services.cli.exported import Exported

POLL_MS: Final = 500
"""How long one poll may wait for records."""
PROGRESS_RECORDS: Final = 20_000
"""Records between two drawings of the progress."""


class ExportError(ThreadlogError):
    """The export cannot be complete, so there is none."""


def export_command(
    thread: Annotated[str, typer.Argument(help="Id of the thread.")],
    tenant: Tenant = TENANT,
    output: Annotated[Path | None, typer.Option(help="File to write [default: standard output].")] = None,
    idle_seconds: Annotated[float, typer.Option(help="Give up after so many seconds without a record.", min=0.1)] = 60,
) -> None:
    """Write a thread as JSON lines, read from the log of THREADLOG_KAFKA_BOOTSTRAP_SERVERS."""
    try:
        key = parse_key(f"{tenant}/{thread}".encode())
        if output is None:
            asyncio.run(_export(key, sys.stdout.buffer, idle_seconds))
        else:
            _to_file(key, output, idle_seconds)
    except HeaderError:
        sys.exit(f"threadlog: {tenant}/{thread} is not the name of a thread")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed into the pipe
        sys.exit(0)
    except (ThreadlogError, OSError) as error:
        sys.exit(f"threadlog: {error}")


def _to_file(key: ThreadKey, output: Path, idle_seconds: float) -> None:
    """Write the whole export, or no file."""
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with partial.open("xb") as file:
            asyncio.run(_export(key, file, idle_seconds))
        partial.replace(output)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


async def _export(key: ThreadKey, file: BinaryIO, idle_seconds: float) -> None:
    from services.chassis.kafka.kafka_log import KafkaLog
    from services.chassis.settings import Settings

    log = await KafkaLog.open_to_read(Settings(), "export")
    try:
        await export(log, key, file, idle_seconds)
    finally:
        await log.close()


async def export(log: "Log", key: ThreadKey, file: BinaryIO, idle_seconds: float) -> "Exported":
    """Export the thread up to the end that its partition has now. Raises ExportError if the log has no record of it."""
    from services.chassis.log.port import TopicPartition
    from services.cli.exported import Exported

    topic = THREAD_EVENTS.name
    tp = TopicPartition(topic, log.partition_for(key.to_bytes(), await log.partition_count(topic)))
    begin, end = (await log.begin_offsets([tp]))[tp], (await log.end_offsets([tp]))[tp]
    exported = Exported(key)
    head = exported.head(tp, end, await log.cluster_id())
    await _read(log, tp, begin, end, exported, head, file, idle_seconds)
    if not exported.lines:
        raise ExportError(f"{topic}/{tp.partition} has no record of {key} below offset {end}")
    file.write(exported.tail())
    file.flush()
    return exported


async def _read(
    log: "Log",
    tp: "TopicPartition",
    begin: int,
    end: int,
    exported: "Exported",
    head: bytes,
    file: BinaryIO,
    idle_seconds: float,
) -> None:
    """Read the partition from its beginning and write the thread's lines. The head is written with the first line: a
    thread without records leaves no file.
    """
    loop = asyncio.get_running_loop()
    reader = await log.reader({tp: begin})
    shown, deadline = begin, loop.time() + idle_seconds
    try:
        while reader.position(tp) < end:
            polled = await reader.poll(POLL_MS)
            if polled:
                deadline = loop.time() + idle_seconds
            elif loop.time() > deadline:
                raise ExportError(f"the log gave nothing for {idle_seconds:g} s, at offset {reader.position(tp)}")
            for _, records in polled:
                for incoming in records:
                    line = exported.record(incoming) if incoming.offset < end else None
                    if line is not None:
                        file.write(head + line)
                        head = b""
            if reader.position(tp) - shown >= PROGRESS_RECORDS:
                shown = reader.position(tp)
                _show(exported, shown - begin, end - begin)
    finally:
        await reader.close()
    _show(exported, end - begin, end - begin, "\n")


def _show(exported: "Exported", done: int, total: int, line_end: str = "") -> None:
    """Draw the progress on a terminal."""
    if sys.stderr.isatty():
        share = done / total if total else 1.0
        sys.stderr.write(f"\r{share:>4.0%}  {done} of {total} records read, {exported.lines} of the thread{line_end}")
        sys.stderr.flush()
