"""File history: what a file held, and what it is to hold, is in the artifact store before the file changes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import JsonValue

from services.chassis.artifacts import UNTYPED, ArtifactError, ArtifactStore, sha256_of
from services.tool_executor import file_changes
from services.tool_executor.file_changes import FileBusyError, Found, Wanted
from services.tool_executor.sandbox import Room

FILE_BYTES_MAX = 16 * 1_048_576

log = structlog.get_logger()


class NotChangedError(Exception):
    """Nothing was changed. The text is for the model."""


@dataclass(frozen=True, slots=True)
class FileHistory:
    store: ArtifactStore
    seconds: float = 30.0
    """What the store may take for all contents of one call."""

    async def change(
        self,
        room: Room,
        tenant: str,
        wanted: Mapping[Path, Wanted],
        expected: Mapping[Path, str | None] | None = None,
    ) -> list[dict[str, JsonValue]]:
        """All or nothing. `expected`: the sha256 that files have to have now. Returns what changed, as
        `tool_call.finished` names it. Raises NotChangedError, OSError.
        """
        found = await asyncio.to_thread(_look, room, wanted, expected or {})
        differing = {path: want for path, want in wanted.items() if _differs(want, found[path])}
        changes = [_change(room, path, want, found[path]) for path, want in differing.items()]
        await self._keep(tenant, [found[path] for path in differing], list(differing.values()))
        try:
            await asyncio.to_thread(
                file_changes.apply, room.workspace, differing, {path: found[path] for path in differing}
            )
        except FileBusyError as error:
            raise NotChangedError(f"{error} Nothing was changed; look again.") from None
        return changes

    async def _keep(self, tenant: str, before: list[Found | None], after: list[Wanted]) -> None:
        contents = {
            sha256_of(content): content
            for content in (*(one.content for one in before if one), *(one.content for one in after))
            if content is not None
        }
        try:
            async with asyncio.timeout(self.seconds):
                for sha256, content in contents.items():
                    await self.store.put(tenant, sha256, content, UNTYPED)
        except (ArtifactError, TimeoutError) as error:
            log.warning("file_history_not_kept", tenant=tenant, error=str(error) or "the store took too long")
            raise NotChangedError(
                "Nothing was changed: what the files hold could not be kept first, because the artifact store does not "
                "answer. Try again later."
            ) from None


def _look(room: Room, wanted: Mapping[Path, Wanted], expected: Mapping[Path, str | None]) -> dict[Path, Found | None]:
    """Raises NotChangedError with all files that are not as expected."""
    found: dict[Path, Found | None] = {}
    for path in wanted:
        if (size := file_changes.size_of(path)) > FILE_BYTES_MAX:
            raise NotChangedError(
                f"{room.relative(path)} has {size} bytes, more than {FILE_BYTES_MAX}: too many to be kept before the "
                "change. Nothing was changed; use the shell."
            )
        found[path] = file_changes.look(path)
    problems = [
        _told(room, path, sha256, found[path])
        for path, sha256 in expected.items()
        if _hash_of(found[path]) != sha256 and _differs(wanted[path], found[path])
    ]
    if problems:
        raise NotChangedError("Nothing was changed. These files have changed since:\n" + "\n".join(problems))
    return found


def _told(room: Room, path: Path, expected: str | None, found: Found | None) -> str:
    named = room.relative(path)
    if found is None:
        return f"- {named} is gone; it had the sha256 {expected}"
    if expected is None:
        return f"- {named} is there again, with the sha256 {_hash_of(found)}"
    return f"- {named} has the sha256 {_hash_of(found)}; it had {expected}"


def _hash_of(found: Found | None) -> str | None:
    return None if found is None else sha256_of(found.content)


def _differs(want: Wanted, found: Found | None) -> bool:
    if want.content is None or found is None:
        return (want.content is None) != (found is None)
    return want.content != found.content or (want.mode is not None and want.mode != found.mode)


def _change(room: Room, path: Path, want: Wanted, found: Found | None) -> dict[str, JsonValue]:
    mode = want.mode if want.mode is not None else file_changes.MODE_DEFAULT if found is None else found.mode
    return {
        "path": room.relative(path),
        "before": _hash_of(found),
        "after": None if want.content is None else sha256_of(want.content),
        # Of a deleted file the one that it had, to give it back.
        "mode": found.mode if found is not None and want.content is None else mode,
    }
