"""Changes files and keeps their history: old and new contents are in the artifact store before a file changes.

The order is: read the files, store the contents, then change all files at once. If the store fails, no file changes,
because a change that cannot be shown or undone is worse than a failed call. If the process dies after the store, only
unnamed artifacts are left. If it dies after the change, the journal of `file_changes` remembers what the call changed.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from pydantic import JsonValue

from services.chassis.artifacts.store import UNTYPED, ArtifactError, ArtifactStore, sha256_of
from services.chassis.settings import MIB
from services.tool_executor.attachments import STORE_SECONDS
from services.tool_executor.workspace import file_changes
from services.tool_executor.workspace.file_changes import FileBusyError, Found, Said, Wanted
from services.tool_executor.workspace.sandbox import Room

FILE_BYTES_MAX: Final = 16 * MIB
"""A larger file is left to the shell: its content before and after would have to be in memory and in the store."""

log = structlog.get_logger()


class NotChangedError(Exception):
    """No file was changed. The model reads the text."""


@dataclass(slots=True)
class _Change:
    """The work of one call, as found by comparing the files with what is wanted."""

    wanted: dict[Path, Wanted] = field(default_factory=dict)
    """The files that are not yet as wanted."""
    found: dict[Path, Found | None] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    """Contents to store, old and new, by hash."""
    changes: list[dict[str, JsonValue]] = field(default_factory=list)
    before: list[dict[str, JsonValue]] = field(default_factory=list)
    """Changes of an earlier run of the same call whose end was not recorded, if nothing was changed since."""


@dataclass(frozen=True, slots=True)
class FileHistory:
    store: ArtifactStore
    bytes_max: int
    """Limit on the contents of one call, before and after together: they are in memory at once."""
    seconds: float = STORE_SECONDS
    """How long the store may take for all contents of one call."""

    async def change(
        self,
        room: Room,
        tenant: str,
        wanted: Mapping[Path, Wanted],
        expected: Mapping[Path, str | None] | None = None,
        key: str = "",
    ) -> list[dict[str, JsonValue]]:
        """Change all the files, or none, and return the changes in the form of `tool_call.finished`.

        `expected` names the sha256 that a file must have now; None means that it must not exist. `key` is the call's
        idempotency key, the same when it runs again. Raises NotChangedError and OSError.
        """
        try:
            change = await asyncio.to_thread(_look, room, wanted, expected or {}, key, self.bytes_max)
            changes = [*await self._keep(tenant, change), *change.changes]
            if change.wanted:
                said = Said(key, tuple(changes))
                await asyncio.to_thread(file_changes.apply, room.workspace, change.wanted, change.found, said)
        except FileBusyError as error:
            raise NotChangedError(f"{error} Nothing was changed; look again.") from None
        return changes

    async def _keep(self, tenant: str, change: _Change) -> list[dict[str, JsonValue]]:
        """Store the contents, and return the earlier changes whose contents are still in the store."""
        try:
            async with asyncio.timeout(self.seconds):
                for sha256, content in change.contents.items():
                    await self.store.put(tenant, sha256, content, UNTYPED)
                return [one for one in change.before if await self._are_there(tenant, one)]
        except (ArtifactError, TimeoutError) as error:
            log.warning("file_history_not_kept", tenant=tenant, error=str(error) or "the store took too long")
            raise NotChangedError(
                "Nothing was changed: what the files hold could not be kept first, because the artifact store does not "
                "answer. Try again later."
            ) from None

    async def _are_there(self, tenant: str, change: Mapping[str, JsonValue]) -> bool:
        named = [str(change[place]) for place in ("before", "after") if change[place] is not None]
        return all([await self.store.touch(tenant, sha256) is not None for sha256 in named])


def _look(
    room: Room, wanted: Mapping[Path, Wanted], expected: Mapping[Path, str | None], key: str, bytes_max: int
) -> _Change:
    """Compare the files with what is wanted. Raises NotChangedError, naming every file that is not as expected."""
    change = _Change()
    problems: list[str] = []
    size = 0
    for path, want in wanted.items():
        named = _named(room, path)
        try:
            found = _found(path, named)
        except (NotChangedError, OSError) as error:
            if path not in expected:
                raise
            problems.append(f"- {named}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        if not _differs(want, found):
            continue
        if path in expected and _hash_of(found) != expected[path]:
            problems.append(_told(named, expected[path], found))
        size += len(want.content or b"") + len(found.content if found else b"")
        if size > bytes_max:
            raise NotChangedError(
                f"The files have more than {bytes_max} bytes, before and after together: too many to be kept before "
                "the change. Nothing was changed; change fewer files at once."
            )
        change.wanted[path], change.found[path] = want, found
        contents = {sha256_of(one): one for one in (found.content if found else None, want.content) if one is not None}
        change.contents |= contents
        change.changes.append(_change(named, want, found))
    if problems:
        raise NotChangedError("Nothing was changed. These files have changed since:\n" + "\n".join(problems))
    if key:
        as_wanted = {_named(room, path) for path in wanted.keys() - change.wanted.keys()}
        change.before = [one for one in file_changes.said_before(room.workspace, key) if one["path"] in as_wanted]
    return change


def _named(room: Room, path: Path) -> str:
    """Return the name of the file in records. Raises NotChangedError if it is not UTF-8."""
    named = room.relative(path)
    try:
        named.encode()
    except UnicodeEncodeError:
        raise NotChangedError(
            f"{named!r} has a name that is not UTF-8, which cannot be recorded. Nothing was changed; use the shell."
        ) from None
    return named


def _found(path: Path, named: str) -> Found | None:
    """Read the file. Raises NotChangedError if it is too large to be kept."""
    if (size := file_changes.size_of(path)) > FILE_BYTES_MAX:
        raise NotChangedError(
            f"{named} has {size} bytes, more than {FILE_BYTES_MAX}: too many to be kept before the change. Nothing was "
            "changed; use the shell."
        )
    return file_changes.look(path)


def _told(named: str, expected: str | None, found: Found | None) -> str:
    if found is None:
        return f"- {named} is gone; it had the sha256 {expected}"
    if expected is None:
        return f"- {named} is there again, with the sha256 {_hash_of(found)}"
    return f"- {named} has the sha256 {_hash_of(found)}; it had {expected}"


def _hash_of(found: Found | None) -> str | None:
    return None if found is None else sha256_of(found.content)


def _differs(want: Wanted, found: Found | None) -> bool:
    """Return whether the file is not yet as wanted, in its content or in a mode that is asked for."""
    if want.content is None or found is None:
        return (want.content is None) != (found is None)
    return want.content != found.content or (want.mode is not None and want.mode != found.mode)


def _change(named: str, want: Wanted, found: Found | None) -> dict[str, JsonValue]:
    return {
        "path": named,
        "before": _hash_of(found),
        "after": None if want.content is None else sha256_of(want.content),
        # A deleted file keeps its mode here, so that restoring it can give it back.
        "mode": found.mode if found is not None and want.content is None else file_changes.mode_of(want, found),
    }
