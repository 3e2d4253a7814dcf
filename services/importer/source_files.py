"""Which files an import is made of: a file, a session's folder, or a tool's whole data folder."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.importer.model import Tool

FILES_MAX = 100_000
"""The default limit on the files of one import."""
SESSION_SUFFIX = ".jsonl"
DATA_FOLDERS: dict[Tool, tuple[str, ...]] = {"claude-code": ("projects",), "codex": ("sessions", "archived_sessions")}
"""Tool → folders of its data folder that contain sessions. Nothing else in it is looked at."""
CODEX_INDEX_NAME = "session_index.jsonl"
"""Codex keeps the names of sessions in this file."""


class PathError(Exception):
    """Nothing can be imported from what was named. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A file that may be a session."""

    path: Path
    name: str
    """The path as the report shows it: as it was given, with what lies below it."""
    size: int
    """In bytes; 0 where the file cannot be looked at."""


def find_files(paths: list[Path], tool: Tool, files_max: int = FILES_MAX) -> list[SessionFile]:
    """Return every file once, in order of their names. Files that cannot be looked into are included, so that the
    report can say so. Raises PathError for a path that does not exist or has no files, and for too many files.
    """
    found: dict[Path, SessionFile] = {}
    for path in paths:
        is_empty = True
        for file in _at(path, tool):
            is_empty = False
            found.setdefault(file.resolve(), SessionFile(file, str(file), _size(file)))
            if len(found) > files_max:
                raise PathError(f"There are more than {files_max} files below {path}. Import folders one by one.")
        if is_empty:
            raise PathError(f"There is no session's file (*{SESSION_SUFFIX}) in {path}.")
    return sorted(found.values(), key=lambda file: file.name)


def _at(path: Path, tool: Tool) -> Iterator[Path]:
    """Yield the files that a path stands for."""
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise PathError(f"{path} cannot be looked at: {error.strerror}.") from error
    except OSError as error:
        wanted = "Name a session's file, its folder, or the tool's data folder."
        raise PathError(f"There is no {path}. {wanted}") from error
    if stat.S_ISDIR(mode):
        yield from _below(path, tool)
    elif stat.S_ISREG(mode):
        yield path
    else:
        raise PathError(f"{path} is no file and no folder.")


def _size(file: Path) -> int:
    """Return the size, or 0 for what is gone or cannot be looked at: whoever reads it will say so."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _below(folder: Path, tool: Tool) -> Iterator[Path]:
    """Yield the sessions below a folder. Links and devices that lead elsewhere are skipped; folders that may not be
    read are yielded as themselves, to be reported.
    """
    inside = [folder / name for name in DATA_FOLDERS[tool] if _is_dir(folder / name)]
    for root in inside or [folder]:
        unreadable: list[OSError] = []
        for parent, folders, names in os.walk(root, onerror=unreadable.append):
            folders.sort()
            for name in sorted(names):
                path = Path(parent) / name
                if name.endswith(SESSION_SUFFIX) and may_be_read(path):
                    yield path
        yield from [Path(os.fsdecode(error.filename)) for error in unreadable]
    if inside and may_be_read(folder / CODEX_INDEX_NAME):
        yield folder / CODEX_INDEX_NAME


def may_be_read(path: Path, *, as_link: bool = True) -> bool:
    """Return whether it is a file as far as anybody may know, and not a pipe, a device or a link that leads nowhere.
    Without `as_link` no link counts at all.
    """
    try:
        return stat.S_ISREG(path.stat(follow_symlinks=as_link).st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
