"""What the tools that change files share: they plan, their contents are kept, then all files change or none."""

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
    wanted: Mapping[Path, Wanted]
    said: Callable[[Changes], str]
    """The result, once that has come about."""
    expected: Mapping[Path, str | None] | None = None
    """The sha256 that files have to have."""


class ChangingTool(BuiltinTool[ArgumentsT]):
    def __init__(self, sandbox: Sandbox, history: FileHistory) -> None:
        super().__init__(sandbox)
        self._history = history

    @abstractmethod
    async def plan(self, args: ArgumentsT, room: Room, tenant: str) -> Plan:
        """Raises ToolFailedError, RefusedError, OSError."""

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
