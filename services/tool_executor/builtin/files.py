import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path

from pydantic import Field, JsonValue

from schemas.tools import ToolSpec
from services.tool_executor.builtin.tool import Arguments, FileTool, ToolFailedError, schema_of
from services.tool_executor.output import INLINE_BYTES_MAX, structured_result, text_result
from services.tool_executor.sandbox import Room, Sandbox
from services.tool_executor.tools import ToolEnd

FILE_BYTES_MAX = 16 * 1_048_576
LINES_DEFAULT = 2_000
TEMPORARY_SUFFIX = ".threadlog-new"


class ReadFileArguments(Arguments):
    path: str = Field(description="Path inside the workspace.")
    offset: int = Field(default=1, ge=1, description="First line to read, from 1.")
    limit: int = Field(default=LINES_DEFAULT, ge=1, description="How many lines to read.")


class ReadFileTool(FileTool[ReadFileArguments]):
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
        whole = len(chosen) == len(lines)
        return ToolEnd(
            "succeeded",
            text_result("".join(chosen), bytes_max=self._output_bytes_max)
            if whole
            else structured_result(["".join(chosen)], shown, bytes_max=self._output_bytes_max),
        )


class WriteFileArguments(Arguments):
    path: str = Field(description="Path inside the workspace; directories are made as needed.")
    content: str = Field(description="The whole new content.")


class WriteFileTool(FileTool[WriteFileArguments]):
    arguments = WriteFileArguments
    spec = ToolSpec(
        name="write_file",
        description="Write a text file in the workspace, replacing what was there. Use apply_patch to change parts.",
        input_schema=schema_of(WriteFileArguments),
        effect="idempotent",
        timeout_seconds=30,
    )

    def work(self, args: WriteFileArguments, room: Room) -> ToolEnd:
        room.require_write()
        path = room.resolve(args.path)
        content = args.content.encode(errors="replace")
        changes = write_all(room, {path: content})
        done = "Replaced" if changes and changes[0]["before"] else "Wrote"
        return ToolEnd("succeeded", text_result(f"{done} {args.path}: {len(content)} bytes."), changes=changes)


def read_bytes(path: Path, named: str) -> bytes:
    """Raises ToolFailedError for what is no readable file of a sensible size."""
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


def write_all(room: Room, contents: Mapping[Path, bytes | None]) -> list[dict[str, JsonValue]]:
    """Give each file its content, None deletes it. All or nothing: every new content is on disk beside its file before
    the first file changes, and what was changed is put back when a later change fails. Returns what changed.
    """
    before = {path: path.read_bytes() if path.is_file() else None for path in contents}
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path, content in before.items() if content is not None}
    made: list[Path] = []
    changed: list[Path] = []
    try:
        for path, content in contents.items():
            if content is not None:
                made.append(_write_beside(path, content, modes.get(path)))
        for path, content in contents.items():
            changed.append(path)
            if content is not None:
                _beside(path).replace(path)
            else:
                path.unlink(missing_ok=True)
    except OSError:
        for path in reversed(changed):
            _put_back(path, before[path], modes.get(path))
        raise
    finally:
        for temporary in made:
            temporary.unlink(missing_ok=True)
    return [_change(room, path, before[path], content) for path, content in contents.items() if content != before[path]]


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")


def _write_beside(path: Path, content: bytes, mode: int | None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "It is a directory", str(path))
    temporary = _beside(path)
    temporary.unlink(missing_ok=True)
    # O_EXCL and O_NOFOLLOW: nothing that a command planted under this name is written through.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    if mode is not None:
        temporary.chmod(mode)
    return temporary


def _put_back(path: Path, content: bytes | None, mode: int | None) -> None:
    with suppress(OSError):
        if content is None:
            path.unlink(missing_ok=True)
        else:
            _write_beside(path, content, mode).replace(path)


def _change(room: Room, path: Path, before: bytes | None, after: bytes | None) -> dict[str, JsonValue]:
    return {
        "path": room.relative(path),
        "before": None if before is None else sha256(before).hexdigest(),
        "after": None if after is None else sha256(after).hexdigest(),
        "mode": stat.S_IMODE(path.stat().st_mode) if after is not None else None,
    }
