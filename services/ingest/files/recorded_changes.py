"""What calls recorded about files, read from the views, and the files' contents, read from the artifact store."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import orjson

from schemas.ids import ThreadKey
from services.chassis.artifacts.store import ArtifactMissingError, ArtifactStore, collected
from services.ingest.database import Database
from services.ingest.files.turn_diff import FileDiff, NetChange, RecordedChange, diff_of, named_only

DIFF_FILE_BYTES_MAX: Final = 1_048_576
"""Bytes of a file before or after. A larger file is named in a diff, and its content is not shown."""
DIFF_BYTES_MAX: Final = 2 * 1_048_576
"""Bytes of the diff of one turn: what a person can look through, and a browser show."""
DIFFS_AT_ONCE_MAX: Final = 2
"""Turns whose diffs are made at once. Matching lines takes whole seconds of a core at worst."""
CALLS_MAX = 10_000
"""Calls of one turn that are read: more than a turn can have."""
SECONDS_MAX = 10.0
"""Seconds for the diffs of one turn. Files for which no time is left are only named."""


class FileHistories(Protocol):
    """The recorded changes of files. Both methods raise ProblemError (views-unavailable)."""

    async def of_turn(self, key: ThreadKey, turn: int) -> list[RecordedChange] | None:
        """Return the turn's changes in the order of their records; None if there is no such turn."""
        ...

    async def latest(self, key: ThreadKey, paths: Sequence[str]) -> dict[str, RecordedChange]:
        """Return the last change of each file, by path."""
        ...


class ViewedFileHistories:
    """Implements `FileHistories` on Postgres."""

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    async def of_turn(self, key: ThreadKey, turn: int) -> list[RecordedChange] | None:
        rows = await self._database.fetch(key.tenant, self._sql["turn_changes"], *key, turn, CALLS_MAX)
        if not rows:
            return None
        return [
            RecordedChange(row["call"], row["seq"], one["path"], one.get("before"), one.get("after"), one.get("mode"))
            for row in rows
            if row["changes"] is not None
            for one in orjson.loads(row["changes"])
        ]

    async def latest(self, key: ThreadKey, paths: Sequence[str]) -> dict[str, RecordedChange]:
        rows = await self._database.fetch(key.tenant, self._sql["latest_changes"], *key, list(paths))
        found: dict[str, RecordedChange] = {}
        # Each path has the rows of its newest record first; rows of an older record may follow and are skipped.
        for row in rows:
            known = found.setdefault(
                row["path"], RecordedChange(row["call"], row["seq"], row["path"], None, None, None)
            )
            if row["seq"] == known.seq:
                found[row["path"]] = known._replace(**{row["kind"]: row["sha256"]})
        return found


class Diffs:
    """Makes diffs in threads, a few turns at once, each of bounded size and time."""

    def __init__(
        self, store: ArtifactStore, file_bytes_max: int, bytes_max: int, at_once_max: int = DIFFS_AT_ONCE_MAX
    ) -> None:
        self._store = store
        self._file_bytes_max = file_bytes_max
        self._bytes_max = bytes_max
        self._places = asyncio.Semaphore(at_once_max)

    async def of(self, tenant: str, net: Sequence[NetChange]) -> list[FileDiff]:
        """Return a diff for each file, in order. Raises ArtifactsUnavailableError."""
        diffs: list[FileDiff] = []
        left = self._bytes_max
        loop = asyncio.get_running_loop()
        async with self._places:
            deadline = loop.time() + SECONDS_MAX
            for change in net:
                if loop.time() >= deadline:
                    diff = named_only(change, "… not shown: the diff takes too long", cut=True)
                else:
                    diff = await self._of_one(tenant, change, left)
                left -= len(diff.text.encode())
                diffs.append(diff)
        return diffs

    async def _of_one(self, tenant: str, change: NetChange, left: int) -> FileDiff:
        """Return one file's diff, or a line that says why it is not shown."""
        if left <= 0:
            return named_only(change, "… not shown: the diff is long enough", cut=True)
        contents: list[bytes | None] = []
        for sha256 in (change.before, change.after):
            try:
                contents.append(None if sha256 is None else await self._content(tenant, sha256))
            except ArtifactMissingError:
                return named_only(change, f"… the artifact store lacks {sha256}", missing=True)
        before, after = contents
        if any(content is not None and len(content) > self._file_bytes_max for content in contents):
            return named_only(change, f"… larger than {self._file_bytes_max} bytes", cut=True)
        return await asyncio.to_thread(diff_of, change, before, after, left)

    async def _content(self, tenant: str, sha256: str) -> bytes:
        """Return the content, cut one byte behind the limit: that byte tells that the file is too large."""
        return await collected(await self._store.get(tenant, sha256, 0, self._file_bytes_max + 1))
