"""The tool that applies a patch to files of the workspace.

All of it is computed in memory first, hunk by hunk, so that a patch that does not fit changes nothing.
"""

import asyncio
from pathlib import Path
from typing import Final, assert_never

from pydantic import Field

from schemas.tools import ToolSpec
from services.tool_executor.builtin.changing import ChangingTool, Plan
from services.tool_executor.builtin.files import read_bytes
from services.tool_executor.builtin.patch import (
    AddFile,
    DeleteFile,
    FilePatch,
    PatchError,
    UpdateFile,
    apply_hunks,
    parse_patch,
)
from services.tool_executor.builtin.tool import Arguments, ToolFailedError, schema_of
from services.tool_executor.workspace.file_changes import Wanted, mode_at
from services.tool_executor.workspace.file_history import FILE_BYTES_MAX
from services.tool_executor.workspace.sandbox import Room

FILES_MAX: Final = 200
"""The end of the call names every changed file, and its size is limited."""


class ApplyPatchArguments(Arguments):
    patch: str = Field(
        description=(
            "`*** Begin Patch`, then for each file `*** Update File: path` with hunks (`@@`, then lines starting with "
            "space, - or +), `*** Add File: path` (all lines start with +) or `*** Delete File: path`, then "
            "`*** End Patch`. A unified diff works too."
        )
    )


class ApplyPatchTool(ChangingTool[ApplyPatchArguments]):
    """Applies a whole patch, or none of it.

    It has one attempt: after a first run the context lines are gone, so a second one would report a failure although
    the patch has been applied.
    """

    arguments = ApplyPatchArguments
    spec = ToolSpec(
        name="apply_patch",
        description="Change, add, delete and move text files in the workspace. The whole patch applies, or none.",
        input_schema=schema_of(ApplyPatchArguments),
        effect="unsafe",
        timeout_seconds=60,
        max_attempts=1,
    )

    async def plan(self, args: ApplyPatchArguments, room: Room, _tenant: str) -> Plan:
        try:
            return await asyncio.to_thread(_plan, room, parse_patch(args.patch), self._history.bytes_max)
        except PatchError as error:
            raise ToolFailedError(str(error)) from None


def _plan(room: Room, patches: tuple[FilePatch, ...], bytes_max: int) -> Plan:
    """Compute the contents of all files after the patch. Raises PatchError and RefusedError.

    Parts of one patch may concern the same file, so later parts see the contents that earlier ones produced.
    """
    if len(patches) > FILES_MAX:
        raise PatchError(f"The patch changes {len(patches)} files, more than {FILES_MAX}; split it.")
    contents: dict[Path, bytes | None] = {}
    modes: dict[Path, int | None] = {}
    done: list[str] = []
    for patch in patches:
        path = room.resolve(patch.path)
        match patch:
            case AddFile():
                if _exists(contents, path):
                    raise PatchError(f"{patch.path} exists already; update it instead. Nothing was changed.")
                contents[path] = patch.content.encode(errors="replace")
                done.append(f"A {patch.path}")
            case DeleteFile():
                if not _exists(contents, path):
                    raise PatchError(f"{patch.path} cannot be deleted: there is no such file. Nothing was changed.")
                contents[path] = None
                done.append(f"D {patch.path}")
            case UpdateFile():
                done.append(_update(room, patch, path, contents, modes))
            case _:
                assert_never(patch)
        if sum(len(content) for content in contents.values() if content is not None) > bytes_max:
            raise PatchError(
                f"The files would have more than {bytes_max} bytes together. Nothing was changed; split it."
            )
    wanted = {path: Wanted(content, modes.get(path)) for path, content in contents.items()}
    return Plan(wanted, lambda _changes: "Applied:\n" + "\n".join(done))


def _update(
    room: Room,
    patch: UpdateFile,
    path: Path,
    contents: dict[Path, bytes | None],
    modes: dict[Path, int | None],
) -> str:
    """Put the updated content into `contents`, and return its line of the report. A moved file keeps its mode."""
    before = contents[path] if path in contents else read_bytes(path, patch.path)
    if before is None:
        raise PatchError(f"{patch.path} is deleted by the same patch and cannot be updated. Nothing was changed.")
    try:
        text = before.decode()
    except UnicodeDecodeError:
        raise PatchError(f"{patch.path} is not UTF-8 text and cannot be patched. Nothing was changed.") from None
    after = apply_hunks(patch.path, text, patch.hunks).encode(errors="replace")
    if len(after) > FILE_BYTES_MAX:
        raise PatchError(f"{patch.path} would have more than {FILE_BYTES_MAX} bytes. Nothing was changed.")
    if patch.move_to is None:
        contents[path] = after
        return f"M {patch.path}"
    target = room.resolve(patch.move_to)
    if target != path and _exists(contents, target):
        raise PatchError(f"{patch.path} cannot be moved to {patch.move_to}: that exists. Nothing was changed.")
    modes[target] = modes.get(path) or mode_at(path)
    contents[path] = None
    contents[target] = after
    return f"R {patch.path} -> {patch.move_to}"


def _exists(contents: dict[Path, bytes | None], path: Path) -> bool:
    """Return whether the file exists at this point of the patch."""
    return contents[path] is not None if path in contents else path.exists()
