"""`threadlog import claude-code|codex PATH…` turns recorded sessions into threads that can be continued.

The files are uploaded as artifacts and imported by the service, in as many imports as it takes; `--dry-run` reads them
here and keeps nothing. On a terminal a bar shows how far it is; otherwise each file and the end are a line of JSON.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer
from pydantic import JsonValue

from services.cli.connection import TENANT, URL, Tenant, Token, Url
from services.importer.model import Tool
from services.importer.sessions import ReadLimits, dry_run
from services.importer.source_files import FILES_MAX, PathError, SessionFile, find_files

FAILED: Final = 1
"""Exit status if some of the files could not be imported. The others were."""
USAGE: Final = 2
BAR_CHARACTERS: Final = 30

app = typer.Typer(no_args_is_help=True, help="Import sessions of Claude Code or Codex.")
Paths = Annotated[list[Path], typer.Argument(help="File of a session, its folder, or the data folder of the tool.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and report only. No service needs to run.")]
ReportFile = Annotated[Path | None, typer.Option("--report", help="File for a JSON report on each imported file.")]
FilesMax = Annotated[int, typer.Option(help="Refuse to import more files than this at once.", min=1)]


@app.command("claude-code")
def claude_code(
    paths: Paths,
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
    *,
    dry_run: DryRun = False,
    report: ReportFile = None,
    files_max: FilesMax = FILES_MAX,
) -> None:
    """Import sessions of Claude Code. Its data folder is ~/.claude."""
    _run("claude-code", paths, (url, token, tenant), report, files_max, is_dry=dry_run)


@app.command("codex")
def codex(
    paths: Paths,
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
    *,
    dry_run: DryRun = False,
    report: ReportFile = None,
    files_max: FilesMax = FILES_MAX,
) -> None:
    """Import sessions of Codex. Its data folder is ~/.codex."""
    _run("codex", paths, (url, token, tenant), report, files_max, is_dry=dry_run)


def _run(
    tool: Tool,
    paths: list[Path],
    service: tuple[str, str | None, str],
    report: Path | None,
    files_max: int,
    *,
    is_dry: bool,
) -> None:
    """Import the files, or read them with `--dry-run`. Exits with 1 if a file failed, with 2 if nothing could
    be begun.
    """
    try:
        files = find_files(paths, tool, files_max)
    except PathError as error:
        sys.stderr.write(f"threadlog: {error}\n")
        sys.exit(USAGE)
    if report is not None and not report.parent.is_dir():
        sys.stderr.write(f"threadlog: There is no folder {report.parent} for the report.\n")
        sys.exit(USAGE)
    shown = Shown(len(files), is_terminal=sys.stdout.isatty())
    try:
        if is_dry:
            for found in dry_run(files, tool, ReadLimits(), shown.looked_at):
                shown.file(found.to_json(), [])
        else:
            asyncio.run(_import(files, tool, service, shown))
        shown.end()
        shown.reports.sort(key=lambda each: str(each["file"]))
        if report is not None:
            report.write_bytes(orjson.dumps(shown.reports, option=orjson.OPT_INDENT_2) + b"\n")
    except KeyboardInterrupt:
        sys.stderr.write(
            "threadlog: the import of uploaded files continues; run the command again to see its progress\n"
        )
        sys.exit(130)
    except OSError as error:
        sys.exit(f"threadlog: {error}")
    if shown.failed:
        sys.exit(FAILED)


async def _import(
    files: Sequence[SessionFile], tool: Tool, service: tuple[str, str | None, str], shown: "Shown"
) -> None:
    """Import the files through the service."""
    from services.cli.imports.importing import import_files
    from services.client.client import RefusedError, UnreachableError

    try:
        await import_files(files, tool, service, shown)
    except (RefusedError, UnreachableError) as error:
        shown.clear()
        sys.exit(f"threadlog: {error}")


class Shown:
    """Shows the import to a person or a program. `reports` are in the order of the files."""

    def __init__(self, files: int, *, is_terminal: bool) -> None:
        self.reports: list[dict[str, JsonValue]] = []
        self.failed = 0
        self._threads: list[JsonValue] = []
        self._files = files
        self._is_terminal = is_terminal

    def uploaded(self, done: int, total: int) -> None:
        """Show how many bytes are uploaded."""
        if self._is_terminal:
            self._bar("uploading", done, total)

    def looked_at(self, done: int) -> None:
        """Show how many files were read."""
        if self._is_terminal:
            self._bar("reading", done, self._files)

    def imported(self, done: int) -> None:
        """Show how many files of the running import are done."""
        if self._is_terminal:
            self._bar("importing", min(len(self.reports) + done, self._files), self._files)

    def file(self, report: dict[str, JsonValue], threads: list[JsonValue]) -> None:
        """Show the report of one file, with its problem and notes."""
        self.reports.append(report)
        self._threads.extend(threads)
        problem = report.get("problem")
        self.failed += problem is not None
        if self._is_terminal:
            for text in [problem, *_texts(report.get("notes"))]:
                if text is not None:
                    self.clear()
                    sys.stdout.write(f"{report['file']}: {text}\n")
            self._bar("importing", len(self.reports), self._files)
        else:
            self._line({"kind": "file", **report, "imported": threads})

    def end(self) -> None:
        """Show the sums, and where new threads are."""
        summary = self._summary()
        if self._is_terminal:
            self.clear()
            sys.stdout.write(", ".join([f"{count} {name}" for name, count in summary.items()]) + "\n")
            for thread in self._threads:
                if isinstance(thread, dict) and thread.get("created"):
                    sys.stdout.write(f"  {thread['source_id']} → {thread['thread']}\n")
        else:
            self._line({"kind": "report", **summary, "imported": self._threads})

    def _summary(self) -> dict[str, JsonValue]:
        """Return the sums over all files."""
        threads: list[dict[str, JsonValue]] = []
        for report in self.reports:
            found = report["threads"]
            threads += [thread for thread in found if isinstance(thread, dict)] if isinstance(found, list) else []
        counts: dict[str, JsonValue] = {"files": len(self.reports), "threads": len(threads)}
        for name in ("turns", "calls"):
            counts[name] = sum(len(found) for thread in threads if isinstance(found := thread[name], list))
        for name in ("unfinished", "inputs", "artifacts"):
            counts[name] = sum(found for thread in threads if isinstance(found := thread[name], int))
        counts["bad_lines"] = sum(found for report in self.reports if isinstance(found := report["bad_lines"], int))
        counts["problems"] = self.failed
        return counts

    def clear(self) -> None:
        """Clear the bar, so that a line can be printed."""
        if self._is_terminal:
            sys.stdout.write("\r\x1b[K")

    def _bar(self, what: str, done: int, total: int) -> None:
        filled = BAR_CHARACTERS * done // total if total else BAR_CHARACTERS
        sys.stdout.write(f"\r{what} [{'#' * filled}{' ' * (BAR_CHARACTERS - filled)}] {done}/{total}\x1b[K")
        sys.stdout.flush()

    def _line(self, value: dict[str, JsonValue]) -> None:
        sys.stdout.write(orjson.dumps(value).decode() + "\n")
        sys.stdout.flush()


def _texts(value: JsonValue) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
