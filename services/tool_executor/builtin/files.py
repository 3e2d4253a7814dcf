"""Tools that read and write text files of the workspace.

Reading is pure, so several executors may do it at once. Writing is idempotent: the same content again is no change.
"""

import stat
from itertools import islice
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from schemas.tools import ToolSpec
from services.tool_executor.attachments import whole_text
from services.tool_executor.builtin.changing import Changes, ChangingTool, Plan
from services.tool_executor.builtin.tool import Arguments, FileTool, ToolFailedError, schema_of
from services.tool_executor.output import INLINE_BYTES_MAX, structured_result, text_result
from services.tool_executor.tools import ToolEnd
from services.tool_executor.workspace.file_changes import Wanted
from services.tool_executor.workspace.file_history import FILE_BYTES_MAX
from services.tool_executor.workspace.sandbox import Room, Sandbox

LINES_DEFAULT: Final = 2_000
"""More lines hardly fit into a result; a model that wants others names an offset."""


class ReadFileArguments(Arguments):
    path: str = Field(description="Path inside the workspace.")
    offset: int = Field(default=1, ge=1, description="First line to read, from 1.")
    limit: int = Field(default=LINES_DEFAULT, ge=1, description="How many lines to read.")


class ReadFileTool(FileTool[ReadFileArguments]):
    """Reads lines of a file. Bytes that are no UTF-8 are replaced, so that a binary file fails nothing."""

    arguments = ReadFileArguments
    spec = ToolSpec(
        name="read_file",
        description="Read lines of a text file in the workspace.",
        input_schema=schema_of(ReadFileArguments),
        effect="pure",
        parallel=True,
        timeout_seconds=30,
    )

    def __init__(self, sandbox: Sandbox, output_bytes_max: int = INLINE_BYTES_MAX) -> None:
        super().__init__(sandbox)
        self._output_bytes_max = output_bytes_max

    def work(self, args: ReadFileArguments, room: Room) -> ToolEnd:
        content = read_bytes(room.resolve(args.path), args.path)
        lines = content.decode(errors="replace").splitlines(keepends=True)
        chosen = list(islice(lines, args.offset - 1, args.offset - 1 + args.limit))
        if not chosen and args.offset > 1:
            raise ToolFailedError(f"{args.path} has {len(lines)} lines; there is no line {args.offset}.")
        shown: JsonValue = {
            "first_line": args.offset,
            "last_line": args.offset - 1 + len(chosen),
            "lines": len(lines),
        }
        # A part says which lines it is, so that the model can ask for the next ones.
        whole = len(chosen) == len(lines)
        text = "".join(chosen)
        return ToolEnd(
            "succeeded",
            text_result(text, bytes_max=self._output_bytes_max)
            if whole
            else structured_result([text], shown, bytes_max=self._output_bytes_max),
            attachments=whole_text(text, bytes_max=self._output_bytes_max),
        )


class WriteFileArguments(Arguments):
    path: str = Field(description="Path inside the workspace; directories are made as needed.")
    content: str = Field(description="The whole new content.")


class WriteFileTool(ChangingTool[WriteFileArguments]):
    """Writes a whole file, and keeps its history like any other change."""

    arguments = WriteFileArguments
    spec = ToolSpec(
        name="write_file",
        description="Write a text file in the workspace, replacing what was there. Use apply_patch to change parts.",
        input_schema=schema_of(WriteFileArguments),
        effect="idempotent",
        timeout_seconds=30,
    )

    async def plan(self, args: WriteFileArguments, room: Room, _tenant: str) -> Plan:
        content = args.content.encode(errors="replace")

        def said(changes: Changes) -> str:
            done = "Replaced" if changes and changes[0]["before"] else "Wrote"
            return f"{done} {args.path}: {len(content)} bytes."

        return Plan({room.resolve(args.path): Wanted(content)}, said)


def read_bytes(path: Path, named: str) -> bytes:
    """Return the content. Raises ToolFailedError if it is not a regular file, or is too large.

    The message for a directory lists its entries: models often ask for a folder to see what is in it.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise ToolFailedError(f"There is no file {named}.") from None
    except NotADirectoryError:
        raise ToolFailedError(f"There is no file {named}: a part of the path is not a directory.") from None
    if stat.S_ISDIR(found.st_mode):
        entries = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in islice(path.iterdir(), 100))
        raise ToolFailedError(f"{named} is a directory; it holds: {', '.join(entries) or 'nothing'}.")
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailedError(f"{named} is not a regular file.")
    if found.st_size > FILE_BYTES_MAX:
        raise ToolFailedError(
            f"{named} has {found.st_size} bytes, more than {FILE_BYTES_MAX}; look at parts of it with the shell."
        )
    return path.read_bytes()
