"""How fast recorded sessions become events: those of each tool and version in their own proportions, and the sum.

    python -m bench.session_mix FOLDER

The folder has `claude` and `codex`, and in them `VERSION_NAME.jsonl`. All sessions of a version make one, one after the
other and with ids of its own, and that as often as it takes: records as they are, in a file of a usual length.
"""

import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import orjson

from bench.imports import RAW
from schemas.codec import Encoded
from schemas.config import Config
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.importer.model import Header, Tool
from services.importer.sessions import Reading, ReadLimits, reading, scan
from services.importer.source_files import find_files
from services.importer.threads.events import Output
from services.importer.threads.known import Known, thread_id
from services.importer.threads.thread_import import File, Target, ThreadImport

BYTES = 3_000_000
"""Number of copies of each version."""
ROUNDS = 3
TOOLS: dict[str, Tool] = {"claude": "claude-code", "codex": "codex"}

_UUID = re.compile(rb"\b([0-9a-f]{8})((?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_ID = re.compile(rb"\b(toolu_|msg_|call_|req_|resp_|rs_|fc_)([A-Za-z0-9])")
_OF_FORKS = ("forked_from_id", "history_base", "source", "session_id")


def main(folder: Path) -> None:
    all_bytes = all_seconds = 0.0
    for name, tool in TOOLS.items():
        versions: dict[str, list[Path]] = defaultdict(list)
        for path in sorted((folder / name).glob("*.jsonl")):
            if path.stat().st_size and "--" not in path.name and "index" not in path.name:
                versions[path.name.partition("_")[0]].append(path)
        for version, paths in versions.items():
            size, events, seconds = _measure(tool, paths)
            print(
                f"{tool} {version}: {size / seconds / 1e6:.1f} MB/s, {size / events:,.0f} bytes an event, "
                f"{seconds / events * 1e6:.0f} µs an event"
            )
            share = sum(path.stat().st_size for path in paths)
            all_bytes, all_seconds = all_bytes + share, all_seconds + share * seconds / size
    print(f"all, in their proportions: {all_bytes / all_seconds / 1e6:.1f} MB/s")


def _measure(tool: Tool, paths: list[Path]) -> tuple[int, int, float]:
    """Bytes, events, and seconds of CPU time: the best of some rounds."""
    with tempfile.TemporaryDirectory(prefix="threadlog-bench-") as made:
        size = number = 0
        while size < BYTES:
            number += 1
            session = b"".join(_session(tool, [path.read_bytes() for path in paths], number))
            (Path(made) / f"{number:06}.jsonl").write_bytes(session)
            size += len(session)
        rounds = [_import(Path(made), tool) for _ in range(ROUNDS)]
    return size, rounds[0][0], min(seconds for _, seconds in rounds)


def _session(tool: Tool, sessions: list[bytes], number: int) -> Iterator[bytes]:
    name = f"{number:08x}-0000-4000-8000-000000000000"
    leaf: str | None = None
    ordinal, has_begun = 0, False
    for place, session in enumerate(sessions):
        tag = b"%04x%04x" % (number & 0xFFFF, place)
        for line in _renamed(session, tag).splitlines():
            record = orjson.loads(line)
            if tool == "claude-code":
                if "sessionId" in record:
                    record["sessionId"] = name
                if "uuid" in record and not record.get("isSidechain"):
                    record["parentUuid"] = record.get("parentUuid") or leaf
                    leaf = record["uuid"]
            elif record.get("type") == "session_meta" or ("type" not in record and "instructions" in record):
                if has_begun:
                    continue
                has_begun = True
                meta = record.get("payload", record)
                meta["id"] = name
                for field in _OF_FORKS:
                    meta.pop(field, None)
            if "ordinal" in record:
                record["ordinal"], ordinal = ordinal, ordinal + 1
            yield orjson.dumps(record) + b"\n"


def _renamed(session: bytes, tag: bytes) -> bytes:
    session = _UUID.sub(lambda found: b"%08x" % (int(found[1], 16) ^ int(tag, 16)) + found[2], session)
    return _ID.sub(lambda found: found[1] + tag + found[2], session)


def _import(folder: Path, tool: Tool) -> tuple[int, float]:
    began = process_time()
    found = scan(find_files([folder], tool), tool)
    events = 0
    for scanned in found.files:
        read = reading(scanned, tool, found, ReadLimits())
        events += sum(isinstance(output, Encoded) for output in _outputs(read, tool))
        assert read.report.problem is None, read.report.problem
    return events, process_time() - began


def _outputs(read: Reading, tool: Tool) -> Iterator[Output]:
    work: ThreadImport | None = None
    for piece in read.pieces():
        if isinstance(piece, Header):
            if work is not None:
                yield from (*work.end(), *work.ended())
            key = ThreadKey(TenantId("bench"), ThreadId(thread_id("bench", tool, piece.source_id)))
            work = ThreadImport(
                piece, Target(key, Known(), Config(model="scripted")), File("bench", read.normaliser, RAW, {})
            )
        elif work is not None:
            yield from work.take(piece)
    if work is not None:
        yield from (*work.end(), *work.ended())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
