"""Sessions' files to the service: uploaded, named in imports, and followed until they are done.

What the service would refuse by a file's beginning or size is told here, as `--dry-run` tells it, and is not uploaded.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from pydantic import JsonValue

from services.cli.imports.uploading import Upload, transport_to, upload_all, upload_of
from services.client.client import ThreadlogClient, UnreachableError
from services.importer.companions import COMPANION_BYTES_MAX
from services.importer.detect import wrong_tool
from services.importer.model import Tool
from services.importer.report import FileReport
from services.importer.sessions import FILE_BYTES_MAX, ReadLimits, Scanned, dry_run, scan_file
from services.importer.source_files import CODEX_INDEX_NAME, SESSION_SUFFIX, SessionFile, may_be_read

FILES_AT_ONCE: Final = 200
"""Limit on the files of one import, companions of its sessions included."""
POLL_SECONDS: Final = 0.3

Report: TypeAlias = dict[str, JsonValue]


class Progress(Protocol):
    def uploaded(self, done: int, total: int) -> None: ...

    def imported(self, done: int) -> None:
        """Show how many files of the running import are done."""

    def file(self, report: Report, threads: list[JsonValue]) -> None: ...


class Found(NamedTuple):
    """A session's file and its companions: the folder that is named like it, and copies of what was in it."""

    scanned: Scanned
    beside: list[Path]


@dataclass(slots=True)
class Prepared:
    file: SessionFile
    session: Upload | None = None
    beside: list[Upload] = field(default_factory=list)
    report: Report | None = None
    """Return the report of a file that needs no import, because there is nothing to import."""
    notes: list[str] = field(default_factory=list)

    def uploads(self) -> list[Upload]:
        return [self.session, *self.beside] if self.session is not None else []

    def refused(self, reasons: Mapping[str, str], tool: Tool) -> None:
        """Drop the uploads that the service refused. `reasons` maps sha256 to the reason."""
        for upload in [upload for upload in self.beside if upload.sha256 in reasons]:
            self.beside.remove(upload)
            self.notes.append(f"{upload.path.name}, which belongs to it: {reasons[upload.sha256]}")
        if self.session is not None and self.session.sha256 in reasons:
            is_told = self.file.size > FILE_BYTES_MAX
            self.report = looked_at(self.file, tool) if is_told else problem(self.file, reasons[self.session.sha256])
            self.session = None


async def import_files(
    files: Sequence[SessionFile], tool: Tool, service: tuple[str, str | None, str], progress: Progress
) -> None:
    """Upload and import the files, and show how it goes. Raises RefusedError, UnreachableError."""
    url, token, tenant = service
    root = _common(files)
    async with ThreadlogClient(url, token=token, tenant=tenant) as client, transport_to(url, token, tenant) as uploads:
        sessions, indexes = await asyncio.to_thread(in_order, files)
        names = [await asyncio.to_thread(prepare, found, tool, root) for found in indexes]
        for number, part in enumerate(parts(sessions)):
            prepared = [await asyncio.to_thread(prepare, found, tool, root) for found in part]
            wanted = [upload for each in (*names, *prepared) for upload in each.uploads()]
            reasons = await upload_all(uploads, wanted, progress.uploaded)
            for each in (*names, *prepared):
                each.refused(reasons, tool)
            done = await _import(client, tool, [*names, *prepared], progress)
            _tell([*names, *prepared] if number == 0 else prepared, done, progress)


def _common(files: Sequence[SessionFile]) -> Path:
    folders = [str(file.path.resolve().parent) for file in files]
    return Path(os.path.commonpath(folders)) if folders else Path()


def in_order(files: Iterable[SessionFile]) -> tuple[list[Found], list[Found]]:
    """Return the sessions from the oldest on, so that parents come before their forks, and indexes of their names."""
    found = [Found(scan_file(file), _beside(file.path.resolve())) for file in files]
    found.sort(key=lambda each: (each.scanned.begins, each.scanned.file.name))
    sessions: list[Found] = []
    indexes: list[Found] = []
    for each in found:
        (indexes if each.scanned.file.path.name == CODEX_INDEX_NAME else sessions).append(each)
    return sessions, indexes


def parts(sessions: Iterable[Found]) -> Iterator[list[Found]]:
    """Yield the sessions as imports take them. Sessions that begin at the same time are copies of each other, and stay
    together, as does a session with what lies beside it; those may be more files.
    """
    part: list[Found] = []
    count = 0
    for found in sessions:
        many = 1 + len(found.beside)
        is_copy = bool(part) and found.scanned.begins != b"" and found.scanned.begins == part[-1].scanned.begins
        if part and count + many > FILES_AT_ONCE and not is_copy:
            yield part
            part, count = [], 0
        part.append(found)
        count += many
    yield part


def _beside(session: Path) -> list[Path]:
    return [path for path in _companions(session) if path.suffix != SESSION_SUFFIX]


def _companions(session: Path) -> Iterator[Path]:
    folder = session.with_suffix("")
    if folder.is_dir():
        yield from sorted(path for path in folder.rglob("*") if may_be_read(path, as_link=False))
    if session.suffix == SESSION_SUFFIX:
        beside = sorted(session.parent.glob(f"{_literally(session.stem)}*"))
        yield from (path for path in beside if path != session and may_be_read(path))


def _literally(name: str) -> str:
    return "".join([f"[{letter}]" if letter in "*?[" else letter for letter in name])


def prepare(found: Found, tool: Tool, root: Path) -> Prepared:
    file, detected = found.scanned.file, found.scanned.detected
    if detected.kind in {"empty", "no session"} or wrong_tool(detected, tool) is not None:
        return Prepared(file, report=looked_at(file, tool))
    try:
        session = upload_of(file.path.resolve(), file.name, root, companion=False)
    except OSError as error:
        return Prepared(file, report=problem(file, f"it cannot be read: {error.strerror or error}"))
    prepared = Prepared(file, session)
    for path in found.beside:
        try:
            if path.stat().st_size <= COMPANION_BYTES_MAX:
                prepared.beside.append(upload_of(path, str(path), root, companion=True))
        except OSError as error:
            prepared.notes.append(f"{path.name}, which belongs to it, cannot be read: {error.strerror or error}")
    return prepared


def looked_at(file: SessionFile, tool: Tool) -> Report:
    """Return the report of a file that is not uploaded, as `--dry-run` reports it."""
    [report] = dry_run([file], tool, ReadLimits())
    return report.to_json()


def problem(file: SessionFile, why: str) -> Report:
    return FileReport(file.name, problem=why).to_json()


async def _import(client: ThreadlogClient, tool: Tool, prepared: Sequence[Prepared], progress: Progress) -> "Done":
    uploads = {upload.name: upload for each in prepared for upload in each.uploads()}
    if not uploads:
        return Done({})
    files: list[JsonValue] = [upload.to_json() for upload in uploads.values()]
    accepted = await client.command("/v1/imports", {"tool": tool, "files": files})
    path = f"/v1/imports/{accepted.body['id']}"
    while (standing := await client.get(path))["status"] not in {"done", "failed"}:
        progress.imported(count if isinstance(count := standing["done"], int) else 0)
        await asyncio.sleep(POLL_SECONDS)
    failed = standing["status"] == "failed"
    return Done(
        await _reports(client, path),
        f"the import {accepted.body['id']} was given up: {standing['problem']}" if failed else None,
    )


class Done(NamedTuple):
    """An import's result."""

    files: dict[str, tuple[Report, list[JsonValue]]]
    """Name under which a file was imported → its report and its threads."""
    gave_up: str | None = None


async def _reports(client: ThreadlogClient, path: str) -> dict[str, tuple[Report, list[JsonValue]]]:
    done: dict[str, tuple[Report, list[JsonValue]]] = {}
    after: JsonValue = -1
    while after is not None:
        page = await client.get(f"{path}/files", {"after": int(str(after))})
        found, after = page["files"], page["next"]
        for file in found if isinstance(found, list) else ():
            if isinstance(file, dict) and isinstance(report := file["report"], dict):
                threads = file["threads"]
                done[str(file["path"])] = (report, threads if isinstance(threads, list) else [])
    return done


def _tell(prepared: Iterable[Prepared], done: Done, progress: Progress) -> None:
    """Raises UnreachableError."""
    for each in sorted(prepared, key=lambda each: each.file.name):
        if each.session is not None and each.session.name in done.files:
            report, threads = done.files[each.session.name]
            told = report.get("notes")
            if notes := [*(told if isinstance(told, list) else []), *each.notes]:
                report["notes"] = notes
            progress.file({**report, "file": each.file.name}, threads)
        elif each.report is not None:
            progress.file(each.report, [])
    if done.gave_up is not None:
        raise UnreachableError(done.gave_up)
