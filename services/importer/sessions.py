"""Files to pieces: which normaliser reads a file, in which order files are read, and what reading one comes to.

A file that cannot be read stops nothing: it has a problem in the report.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from services.importer.claude_code import session as claude_code
from services.importer.codex import session as codex
from services.importer.companions import COMPANION_BYTES_MAX, Companions, FolderCompanions
from services.importer.detect import HEAD_BYTES, Detected, detect, wrong_tool
from services.importer.lines import LINE_BYTES_MAX, FileSource
from services.importer.model import Counts, Header, Piece, Tool
from services.importer.report import FileReport, note_parents
from services.importer.source_files import SessionFile

FILE_BYTES_MAX = 1 << 30
"""The default limit on a file. Each of its records costs an index of some bytes."""
TAIL_BYTES = 1 << 16
"""How much of a file's end is looked at for its last record."""
_FIRST_TIME = re.compile(rb'"timestamp":"([0-9T:.Z+-]{1,40})"')


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much of a file is read. All are bytes."""

    file_bytes_max: int = FILE_BYTES_MAX
    line_bytes_max: int = LINE_BYTES_MAX
    companion_bytes_max: int = COMPANION_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a first look at one file found."""

    file: SessionFile
    detected: Detected
    begins: bytes
    """The file's first time, as it is written. Parents sort before their forks and children by it."""
    leaf: tuple[str, str] | None = None
    """Uuid of its last record, and the session that it belongs to."""


@dataclass(slots=True)
class Scan:
    """What a first look at all files of an import found."""

    files: list[Scanned]
    leaves: dict[str, str] = field(default_factory=dict)
    """Uuid of a session's last record → the session."""
    titles: dict[str, str] = field(default_factory=dict)
    """Session → name, from an index of names."""


def normaliser_of(tool: Tool) -> tuple[Callable[..., Iterator[Piece]], str]:
    """Return the normaliser of a tool, and its name with its version."""
    if tool == "codex":
        return codex.normalise, f"codex.{codex.NORMALISER_VERSION}"
    return claude_code.normalise, f"claude-code.{claude_code.NORMALISER_VERSION}"


def scan(files: Sequence[SessionFile], tool: Tool) -> Scan:
    """Look at all files, and return them in the order in which they have to be read."""
    found = Scan([])
    for file in files:
        scanned = scan_file(file)
        found.files.append(scanned)
        if scanned.leaf is not None:
            found.leaves[scanned.leaf[0]] = scanned.leaf[1]
        if scanned.detected.kind == "index" and tool == "codex":
            found.titles.update(read_titles(file.path))
    found.files.sort(key=lambda each: (each.begins, each.file.name))
    return found


def scan_file(file: SessionFile) -> Scanned:
    """Look at one file. A file that cannot be read is returned with the reason."""
    try:
        with file.path.open("rb") as opened:
            head = opened.read(HEAD_BYTES)
            opened.seek(max(0, file.size - TAIL_BYTES))
            tail = opened.read(TAIL_BYTES)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror or error}"
        return Scanned(file, Detected("no session", None, reason), b"")
    detected = detect(head)
    first = _FIRST_TIME.search(head)
    leaf = _leaf(tail) if detected.tool == "claude-code" else None
    return Scanned(file, detected, first[1] if first else b"", leaf)


def _leaf(tail: bytes) -> tuple[str, str] | None:
    """Return the uuid and session of the file's last record. Records of sub-agents do not count."""
    for raw in reversed(tail.split(b"\n")):
        try:
            record = orjson.loads(raw)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict) and not record.get("isSidechain"):
            uuid, session = record.get("uuid"), record.get("sessionId")
            if isinstance(uuid, str) and isinstance(session, str):
                return uuid, session
    return None


def read_titles(path: Path) -> dict[str, str]:
    """Return the names that sessions were given. The last one counts."""
    titles: dict[str, str] = {}
    for line in FileSource(path):
        record = line.record or {}
        session, title = record.get("id"), record.get("thread_name")
        if isinstance(session, str) and isinstance(title, str) and title:
            titles[session] = title
    return titles


@dataclass(slots=True)
class Reading:
    """A reading yields one file's pieces, and counts each in the file's report as it goes."""

    scanned: Scanned
    tool: Tool
    report: FileReport
    normaliser: str = ""
    """Name and version of the normaliser, once it is known."""
    companions: Companions | None = None
    limits: ReadLimits = field(default_factory=ReadLimits)
    titles: dict[str, str] = field(default_factory=dict)

    def pieces(self) -> Iterator[Piece]:
        """Yield the file's pieces; none for a file that is not a session of the tool, whose report then has the reason.
        An error in the middle ends the file, and stays in its report: one hostile file must not stop the others.
        """
        self.report.problem = self._problem()
        if self.report.problem is not None or self.scanned.detected.kind == "empty":
            return
        if self.scanned.detected.kind == "index":
            self._count_lines()
            return
        normalise, self.normaliser = normaliser_of(self.tool)
        source = FileSource(self.scanned.file.path, self.limits.line_bytes_max)
        found = normalise(source, self.report.counts, companions=self.companions)
        while True:
            try:
                piece = next(found, None)
            except Exception as error:  # noqa: BLE001  # hostile files: one of them must not stop the others
                self.report.problem = f"the rest of it could not be read: {type(error).__name__}: {error}"[:500]
                return
            if piece is None:
                return
            if isinstance(piece, Header) and piece.title is None and piece.source_id in self.titles:
                piece = replace(piece, title=self.titles[piece.source_id])
            self.report.take(piece)
            yield piece

    def _problem(self) -> str | None:
        """Return why the file is not read, or None."""
        detected, size = self.scanned.detected, self.scanned.file.size
        wrong = wrong_tool(detected, self.tool)
        if detected.kind == "no session":
            return detected.reason
        if wrong is not None:
            return wrong
        if size > self.limits.file_bytes_max:
            return f"it has {size} bytes, more than {self.limits.file_bytes_max} (THREADLOG_IMPORT_FILE_BYTES_MAX)"
        return None

    def _count_lines(self) -> None:
        """Count the lines of an index, so that the report shows that it was read."""
        counts = self.report.counts
        for line in FileSource(self.scanned.file.path, self.limits.line_bytes_max):
            counts.records += line.record is not None
            counts.bad_lines += line.record is None


def reading(scanned: Scanned, tool: Tool, found: Scan, limits: ReadLimits) -> Reading:
    """Return the reading of one file of a scan."""
    companions = FolderCompanions(scanned.file.path, found.leaves, limits.companion_bytes_max)
    report = FileReport(scanned.file.name, Counts())
    return Reading(scanned, tool, report, "", companions, limits, found.titles)


def dry_run(
    files: Sequence[SessionFile], tool: Tool, limits: ReadLimits, looked_at: Callable[[int], None] | None = None
) -> list[FileReport]:
    """Read everything, keep nothing, and return the reports in the order of the files' names. `looked_at` is called
    with the number of files after each.
    """
    found = scan(files, tool)
    reports: list[FileReport] = []
    for scanned in sorted(found.files, key=lambda each: each.file.name):
        read = reading(scanned, tool, found, limits)
        _drain(read.pieces())
        reports.append(read.report)
        if looked_at is not None:
            looked_at(len(reports))
    note_parents(reports)
    return reports


def _drain(pieces: Iterable[Piece]) -> None:
    for _ in pieces:
        pass
