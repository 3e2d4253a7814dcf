"""What the tools that change files have in common.

Each plans its changes without touching a file. Then the contents are stored, and all files change together or none
does. So a tool that fails has changed nothing, and the model may correct its arguments and try again.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from services.tool_executor.builtin.tool import ArgumentsT, BuiltinTool, ToolFailedError
from services.tool_executor.output import text_result
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest
from services.tool_executor.workspace.file_changes import Wanted
from services.tool_executor.workspace.file_history import FileHistory, NotChangedError
from services.tool_executor.workspace.sandbox import Room, Sandbox

Changes: TypeAlias = list[dict[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The files that a call wants, and the text of its result."""

    wanted: Mapping[Path, Wanted]
    said: Callable[[Changes], str]
    """Returns the text of the result, given what has changed."""
    expected: Mapping[Path, str | None] | None = None
    """The sha256 that files must have now; None means that the file must not exist."""


class ChangingTool(BuiltinTool[ArgumentsT]):
    """A built-in tool that changes files. A subclass only plans."""

    def __init__(self, sandbox: Sandbox, history: FileHistory) -> None:
        super().__init__(sandbox)
        self._history = history

    @abstractmethod
    async def plan(self, args: ArgumentsT, room: Room, tenant: str) -> Plan:
        """Return the changes that the arguments ask for. Raises ToolFailedError, RefusedError and OSError."""

    async def act(
        self, args: ArgumentsT, room: Room, request: ToolRequest, _emit: Emit, _cancelled: asyncio.Event, /
    ) -> ToolEnd:
        room.require_write()
        plan = await self.plan(args, room, request.tenant)
        room.require_own(plan.wanted)
        try:
            changes = await self._history.change(
                room, request.tenant, plan.wanted, plan.expected, request.idempotency_key
            )
        except NotChangedError as error:
            raise ToolFailedError(str(error)) from None
        return ToolEnd("succeeded", text_result(plan.said(changes)), changes=changes)
