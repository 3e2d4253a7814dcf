"""The tool that puts files back to what they were before a turn.

A person asks for it: `POST …/turns/{n}/restore` computes the arguments from the recorded changes. It is a tool call so
that it is recorded, approved and executed like any other change of files. Models are not offered it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from schemas.tools import ToolSpec
from services.chassis.artifacts.store import ArtifactError, ArtifactMissingError, collected, sha256_of
from services.tool_executor.builtin.changing import ChangingTool, Plan
from services.tool_executor.builtin.tool import Arguments, ToolFailedError, schema_of
from services.tool_executor.workspace.file_changes import Wanted
from services.tool_executor.workspace.file_history import FILE_BYTES_MAX
from services.tool_executor.workspace.sandbox import Room

FILES_MAX: Final = 500
"""The arguments are part of a record, whose size is limited."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RestoredFile(BaseModel):
    """One file: what it must be now, and what it should become."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="Path below the workspace.")
    expected: Hash | None = Field(description="sha256 that it has to have now; null: it has to be absent.")
    wanted: Hash | None = Field(description="sha256 of the content to put back; null: delete it.")
    mode: int | None = Field(default=None, ge=0, le=0o7777, description="Permissions to put back.")


class RestoreFilesArguments(Arguments):
    files: tuple[RestoredFile, ...] = Field(min_length=1, max_length=FILES_MAX)


class RestoreFilesTool(ChangingTool[RestoreFilesArguments]):
    """Restores all files if each is as expected, or already restored; otherwise touches none.

    So it can run again after a death in between, and never overwrites what somebody has changed since.
    """

    arguments = RestoreFilesArguments
    works_in_cwd = False
    spec = ToolSpec(
        name="restore_files",
        description="Put files of the workspace back to what they were.",
        input_schema=schema_of(RestoreFilesArguments),
        effect="idempotent",
        timeout_seconds=120,
        on_request=True,
    )

    async def plan(self, args: RestoreFilesArguments, room: Room, tenant: str) -> Plan:
        paths = {room.resolve(file.path): file for file in args.files}
        # A link that was put in the way since must not direct the old content to another file.
        moved = [
            f"- {file.path} leads to {room.relative(path)} now"
            for path, file in paths.items()
            if path != room.workspace / file.path
        ]
        if moved:
            raise ToolFailedError("Nothing was changed. These files have changed since:\n" + "\n".join(moved))
        if len(paths) < len(args.files):
            raise ToolFailedError("A file is named twice. Nothing was changed.")
        contents = await self._contents(tenant, {file.wanted for file in args.files} - {None})
        wanted = {
            path: Wanted(None if file.wanted is None else contents[file.wanted], file.mode)
            for path, file in paths.items()
        }
        return Plan(
            wanted,
            lambda changes: _said(paths, {str(change["path"]) for change in changes}),
            {path: file.expected for path, file in paths.items()},
        )

    async def _contents(self, tenant: str, hashes: "set[str | None]") -> dict[str, bytes]:
        """Fetch the contents to put back. Raises ToolFailedError, naming all that are missing or damaged."""
        contents: dict[str, bytes] = {}
        missing: list[str] = []
        size = 0
        for sha256 in sorted(name for name in hashes if name is not None):
            try:
                content = await collected(await self._history.store.get(tenant, sha256, 0, FILE_BYTES_MAX + 1))
            except ArtifactMissingError:
                missing.append(f"- {sha256} is not in the artifact store")
                continue
            except ArtifactError as error:
                raise ToolFailedError(f"The artifact store does not answer: {error}. Nothing was changed.") from None
            if sha256_of(content) != sha256:
                missing.append(f"- {sha256} is not what it was when it was stored")
            contents[sha256] = content
            size += len(content)
            if size > self._history.bytes_max:
                raise ToolFailedError(
                    f"The contents to put back have more than {self._history.bytes_max} bytes. Nothing was changed."
                )
        if missing:
            raise ToolFailedError("Nothing was changed. Contents to put back cannot be had:\n" + "\n".join(missing))
        return contents


def _said(paths: Mapping[Path, RestoredFile], changed: set[str]) -> str:
    lines = [f"- {file.path}: {'deleted' if file.wanted is None else 'put back'}" for file in paths.values()]
    already = len(paths) - len(changed)
    return "Restored:\n" + "\n".join(lines) + (f"\n{already} of them were so already." if already else "")
