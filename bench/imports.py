"""How fast session files become events, and what memory that takes: on one core, without a log.

    python -m bench.imports codex|claude-code BYTES

`make bench` measures both tools with a small file and a large one, so that their memory can be compared.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

from schemas.codec import Encoded
from schemas.config import Config
from schemas.events import Artifact
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.importer.model import Header, Tool
from services.importer.sessions import ReadLimits, reading, scan
from services.importer.source_files import find_files
from services.importer.threads.known import Known, thread_id
from services.importer.threads.thread_import import File, Target, ThreadImport
from tests.support.sessions.made import write_claude, write_codex

MIB = 1 << 20
OUTPUT_BYTES, CALLS = 4_000, 8
"""Bytes of each call's output, and calls of each turn: most of a session's file is what tools printed."""
SIZES = (8 * MIB, 64 * MIB)
RAW = Artifact(sha256="0" * 64, size=0, media_type="application/x-ndjson")


@dataclass(frozen=True)
class ImportMeasured:
    tool: Tool
    megabytes: float
    megabytes_per_second: float
    """Rate by CPU time, up to the encoded events."""
    events_per_second: float
    resident_megabytes: float
    """The most that the process had."""


def measure_imports() -> list[ImportMeasured]:
    """Each in a process of its own, whose memory is then its own, too."""
    measured: list[ImportMeasured] = []
    for tool in ("claude-code", "codex"):
        for size in SIZES:
            command = [sys.executable, "-m", "bench.imports", tool, str(size)]
            found = subprocess.run(command, check=True, capture_output=True, text=True)  # this module
            measured.append(ImportMeasured(**json.loads(found.stdout)))
    return measured


def measure(tool: Tool, size: int) -> ImportMeasured:
    with tempfile.TemporaryDirectory(prefix="threadlog-bench-") as folder:
        path = Path(folder) / "session.jsonl"
        write = write_codex if tool == "codex" else write_claude
        write(path, 16, OUTPUT_BYTES, CALLS)
        turns = 16 * size // path.stat().st_size
        write(path, turns, OUTPUT_BYTES, CALLS)
        megabytes = path.stat().st_size / 1e6
        before = process_time()
        events = _events(path, tool)
        seconds = process_time() - before
    return ImportMeasured(
        tool,
        round(megabytes, 1),
        round(megabytes / seconds, 1),
        round(events / seconds),
        round(_resident_megabytes_max(), 1),
    )


def _resident_megabytes_max() -> float:
    """Return the peak memory of this process alone: what `getrusage` tells begins with what its parent had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def _events(path: Path, tool: Tool) -> int:
    limits = ReadLimits()
    found = scan(find_files([path], tool), tool)
    read = reading(found.files[0], tool, found, limits)
    count, work = 0, None
    for piece in read.pieces():
        if isinstance(piece, Header):
            key = ThreadKey(TenantId("bench"), ThreadId(thread_id("bench", tool, piece.source_id)))
            file = File("bench", read.normaliser, RAW, {})
            work = ThreadImport(piece, Target(key, Known(), Config(model="scripted")), file)
        elif work is not None:
            count += sum(isinstance(output, Encoded) for output in work.take(piece))
    return count


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1], int(sys.argv[2])))))  # type: ignore[arg-type]  # a tool's name
