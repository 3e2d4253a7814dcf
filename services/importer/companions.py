"""What lies beside a session's file and belongs to it: transcripts of sub-agents, their metadata, whole outputs.

A companion is asked for by its name relative to the session: `tool-results/x.txt`, `subagents/agent-1.meta.json`. It is
looked for in the folder that is named like the session, then beside the file, then as a flattened copy
(`<session>--tool-results-x.txt`, `<session>--agent-1.meta.json`); for a sub-agent's transcript in its session's folder,
too.
"""

from pathlib import Path, PurePosixPath
from typing import Protocol

from services.importer.model import Blob

COMPANION_BYTES_MAX = 64 << 20
"""The default for the largest companion that is read."""
MEDIA_TYPES = {".txt": "text/plain", ".json": "application/json", ".jsonl": "application/x-ndjson"}


class Beside(Protocol):
    @property
    def name(self) -> str:
        """File name of the session itself, such as `7150e27b-….jsonl`; it may carry the session's id."""

    def get(self, relative: str) -> Blob | None:
        """None where there is no such companion, where it is too large, or where the name leads elsewhere."""

    def session_with_leaf(self, uuid: str) -> str | None:
        """`source_id` of the session beside this one that ends with the record of this uuid; Claude Code alone."""


class NothingBeside:
    def __init__(self, name: str = "session.jsonl") -> None:
        self.name = name

    def get(self, relative: str) -> Blob | None:  # noqa: ARG002  # a port
        return None

    def session_with_leaf(self, uuid: str) -> str | None:  # noqa: ARG002  # a port
        return None


class FolderBeside:
    def __init__(self, path: Path, leaves: dict[str, str], bytes_max: int = COMPANION_BYTES_MAX) -> None:
        self.name = path.name
        self._path = path
        self._leaves = leaves
        self._bytes_max = bytes_max

    def get(self, relative: str) -> Blob | None:
        path = self.find(relative)
        if path is None or path.stat().st_size > self._bytes_max:
            return None
        return Blob(path.read_bytes(), MEDIA_TYPES.get(path.suffix, "application/octet-stream"), path.name)

    def session_with_leaf(self, uuid: str) -> str | None:
        return self._leaves.get(uuid)

    def find(self, relative: str) -> Path | None:
        return next((path for path in candidates(self._path, relative) if path.is_file()), None)


def candidates(session: Path, relative: str) -> list[Path]:
    """Where a companion of the session may lie; nowhere for a name that leads out of its folder."""
    name = PurePosixPath(relative)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        return []
    folder, stem = session.parent, session.stem
    flat = "-".join(part for part in name.parts if part != "subagents")
    places = [folder / stem / name, folder / name, folder / f"{stem}--{flat}"]
    if folder.name == "subagents":
        places.append(folder.parent / name)
    return [*places, folder / f"{stem.partition('--')[0]}--{flat}"]
