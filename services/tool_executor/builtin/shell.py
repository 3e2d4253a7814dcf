"""The tool that runs commands in the workspace.

It is unsafe and has one attempt: nobody knows what a command does, so a command whose end was not seen is left to
people instead of being run again.
"""

import asyncio
from dataclasses import replace
from typing import Annotated

from pydantic import Field, JsonValue

from schemas.tools import ToolSpec
from services.tool_executor.attachments import TEXT, Attachment
from services.tool_executor.builtin.tool import Arguments, BuiltinTool, ToolFailedError, schema_of
from services.tool_executor.output import INLINE_BYTES_MAX, Cut, cut_result
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest
from services.tool_executor.workspace.process import (
    LIVE_BYTES_MAX,
    SHELL,
    Command,
    ProcessEnd,
    Warden,
    run_process,
)
from services.tool_executor.workspace.sandbox import Room, Sandbox


class ShellArguments(Arguments):
    """A list runs a program directly, for arguments that bash would interpret."""

    command: Annotated[
        str | list[str],
        Field(description="A command line for bash, or a program and its arguments as a list, run without a shell."),
    ]
    cwd: str | None = Field(default=None, description="Directory to run in, inside the workspace.")
    timeout_seconds: float | None = Field(
        default=None, gt=0, description="Stop it after this long; at most what the tool allows."
    )


class ShellTool(BuiltinTool[ShellArguments]):
    """Runs a command. An exit code other than 0 is a result that the model reads, with the outcome `failed`."""

    arguments = ShellArguments
    spec = ToolSpec(
        name="shell",
        description=(
            "Run a command in the workspace and return its exit code and output (standard output and standard error "
            "together). It gets no input, and what it leaves running is stopped when it ends."
        ),
        input_schema=schema_of(ShellArguments),
        effect="unsafe",
        timeout_seconds=600,
        max_attempts=1,
    )

    def __init__(
        self,
        sandbox: Sandbox,
        warden: Warden,
        grace_seconds: float,
        kept_bytes_max: int,
        output_bytes_max: int = INLINE_BYTES_MAX,
        live_bytes_max: int = LIVE_BYTES_MAX,
    ) -> None:
        super().__init__(sandbox)
        self._warden = warden
        self._grace_seconds = grace_seconds
        self._output_bytes_max = output_bytes_max
        self._live_bytes_max = live_bytes_max
        self._kept_bytes_max = kept_bytes_max

    async def act(
        self, args: ShellArguments, room: Room, request: ToolRequest, emit: Emit, cancelled: asyncio.Event
    ) -> ToolEnd:
        argv = [SHELL, "-c", args.command] if isinstance(args.command, str) else args.command
        if not argv or not argv[0] or any("\x00" in part for part in argv):
            raise ToolFailedError("`command` is empty or holds U+0000; give a command line, or a program as a list.")
        place = room if args.cwd is None else room.moved(args.cwd)
        # The model may ask for less time than the operator allows, never for more.
        timeout_seconds = min(args.timeout_seconds or request.timeout_seconds, request.timeout_seconds)
        command = Command(
            argv=place.wrap(argv),
            cwd=place.cwd,
            environment=place.environment(request.idempotency_key),
            timeout_seconds=timeout_seconds,
            grace_seconds=self._grace_seconds,
            output_bytes_max=self._output_bytes_max,
            live_bytes_max=self._live_bytes_max,
            kept_bytes_max=self._kept_bytes_max,
        )
        end = await run_process(command, self._warden, emit, cancelled)
        attachments = () if end.whole is None else (Attachment(end.whole, TEXT, "output.txt"),)
        return replace(_tool_end(end, timeout_seconds), attachments=attachments)


def _tool_end(end: ProcessEnd, timeout_seconds: float) -> ToolEnd:
    """Return the end of the call. A command that did not start is `failed`: its own arguments are the usual cause."""
    match end.outcome:
        case "exited":
            assert end.exit_code is not None
            text = end.output.text or f"(no output; exit code {end.exit_code})"
            output = Cut(text, end.output.bytes_cut)
            result = cut_result(output, is_error=end.exit_code != 0, exit_code=end.exit_code)
            return ToolEnd("succeeded" if end.exit_code == 0 else "failed", result)
        case "timed_out":
            return ToolEnd("timed_out", _stopped(end, f"stopped after {timeout_seconds:g} s"))
        case "cancelled":
            return ToolEnd("cancelled", _stopped(end, "cancelled"))
        case "not_spawned":
            return ToolEnd("failed", cut_result(Cut(f"The command did not start. {end.output.text}", 0), is_error=True))


def _stopped(end: ProcessEnd, how: str) -> JsonValue:
    """Return the output up to the stop, with the reason as its last line."""
    output = Cut(f"{end.output.text}\n[{how}, with all that it had started]", end.output.bytes_cut)
    return cut_result(output, is_error=True, exit_code=end.exit_code)
