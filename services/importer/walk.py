"""Which files an import is made of: a file, a session's folder, or a tool's whole data folder."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.importer.model import Tool

FILES_MAX = 100_000
"""The default for the most files that one import takes."""
SESSION_SUFFIX = ".jsonl"
DATA_FOLDERS: dict[Tool, tuple[str, ...]] = {"claude-code": ("projects",), "codex": ("sessions", "archived_sessions")}
"""Where a tool's data folder keeps sessions; what else lies in it is not looked at."""
CODEX_INDEX_NAME = "session_index.jsonl"


class PathError(Exception):
    """What was named cannot be imported from; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    path: Path
    name: str
    """As the report shows it: the path as it was given, with what lies below it."""
    size: int


def find_files(paths: list[Path], tool: Tool, files_max: int = FILES_MAX) -> list[SessionFile]:
    """Every file once, in order of their names. Raises PathError for a path that is not there or too many files."""
    found: dict[Path, SessionFile] = {}
    for path in paths:
        if not path.exists():
            raise PathError(f"There is no {path}. Name a session's file, its folder, or the tool's data folder.")
        for file in [path] if path.is_file() else _below(path, tool):
            try:
                size = file.stat().st_size
            except OSError:
                continue
            found.setdefault(file.resolve(), SessionFile(file, str(file), size))
            if len(found) > files_max:
                raise PathError(f"There are more than {files_max} files below {path}. Import folders one by one.")
    return sorted(found.values(), key=lambda file: file.name)


def _below(folder: Path, tool: Tool) -> Iterator[Path]:
    inside = [folder / name for name in DATA_FOLDERS[tool] if (folder / name).is_dir()]
    for root in inside or [folder]:
        for parent, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(parent) / name
                if name.endswith(SESSION_SUFFIX) and path.is_file():
                    yield path
    if inside and (folder / CODEX_INDEX_NAME).is_file():
        yield folder / CODEX_INDEX_NAME
