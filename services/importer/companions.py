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
"""The default limit on a companion that is read. A larger one is treated as if it were not there."""
MEDIA_TYPES = {".txt": "text/plain", ".json": "application/json", ".jsonl": "application/x-ndjson"}
"""File suffix → media type of the artifact."""


class Companions(Protocol):
    """The port to the files that lie beside a session."""

    @property
    def name(self) -> str:
        """Return the file name of the session itself, such as `7150e27b-….jsonl`. It may contain the session's id."""

    def get(self, relative: str) -> Blob | None:
        """Return the companion, or None where there is none, where it is too large, or where the name leads
        elsewhere.
        """

    def session_with_leaf(self, uuid: str) -> str | None:
        """Return the `source_id` of the session beside this one that ends with the record of this uuid. Only Claude
        Code links sessions so.
        """


class NoCompanions:
    """This stands for a session without companions."""

    def __init__(self, name: str = "session.jsonl") -> None:
        self.name = name

    def get(self, relative: str) -> Blob | None:  # noqa: ARG002  # a port
        return None

    def session_with_leaf(self, uuid: str) -> str | None:  # noqa: ARG002  # a port
        return None


class FolderCompanions:
    """The companions are looked up in the session's folder. `leaves` maps the uuid of a session's last record to the
    session.
    """

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
        """Return the path of the companion, the first of the candidates that is a file."""
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
