"""What the built-in tools have in common: checked arguments, a room to act in, errors as results.

Whatever the model got wrong comes back as a result with the outcome `failed` and a text that says what to do, so that
it can try again. Only bugs of the executor leave a tool as exceptions.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from schemas.tools import ToolSpec
from services.tool_executor.output import text_result
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest
from services.tool_executor.workspace.sandbox import RefusedError, Room, Sandbox
from services.tool_executor.workspace.skills import SkillUnavailableError


class Arguments(BaseModel):
    """Arguments of a tool. Unknown ones are refused: a model that invents one should hear of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


class ToolFailedError(Exception):
    """The tool could not do what was asked, and changed nothing. The model reads the text."""


class BuiltinTool(ABC, Generic[ArgumentsT]):
    """A `ToolRunner` that checks the arguments and opens the room before it acts."""

    spec: ToolSpec
    arguments: type[ArgumentsT]
    works_in_cwd = True
    """Whether it acts in the thread's working directory, which must exist then, or in the workspace as a whole."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @abstractmethod
    async def act(
        self, args: ArgumentsT, room: Room, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /
    ) -> ToolEnd: ...

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event) -> ToolEnd:
        started = time.monotonic()
        try:
            args = self.arguments.model_validate(request.args)
            environment = dict(request.environment) if self.works_in_cwd else {**request.environment, "cwd": "."}
            room = self._sandbox.enter(request.tenant, request.thread, environment)
            if request.skills and self._sandbox.skills is not None:
                await self._sandbox.skills.restore(request.tenant, room.workspace, request.skills)
            end = await self.act(args, room, request, emit, cancelled)
        except (RefusedError, ToolFailedError, SkillUnavailableError) as error:
            end = failed(str(error))
        except ValidationError as error:
            end = failed(_described(request.tool, error))
        except OSError as error:
            end = failed(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
        return replace(end, seconds=time.monotonic() - started)


class FileTool(BuiltinTool[ArgumentsT]):
    """A tool with short work on files, which runs in a thread so that the event loop is not blocked."""

    @abstractmethod
    def work(self, args: ArgumentsT, room: Room) -> ToolEnd: ...

    async def act(
        self, args: ArgumentsT, room: Room, _request: ToolRequest, _emit: Emit, _cancelled: asyncio.Event, /
    ) -> ToolEnd:
        return await asyncio.to_thread(self.work, args, room)


def failed(text: str) -> ToolEnd:
    """Return the end of a call that changed nothing, with the reason for the model."""
    return ToolEnd("failed", text_result(text, is_error=True))


def schema_of(arguments: type[Arguments]) -> dict[str, JsonValue]:
    """Return the JSON Schema of the arguments without pydantic's titles, which cost tokens and say nothing."""
    schema = arguments.model_json_schema()
    parts: dict[str, JsonValue] = {"type": "object", "properties": _untitled(schema.get("properties", {}))}
    parts |= {
        name: {key: _untitled(part) for key, part in schema[name].items()} for name in ("$defs",) if name in schema
    }
    required = {"required": schema["required"]} if "required" in schema else {}
    return {**parts, **required, "additionalProperties": False}


def _untitled(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the schema, or the properties of one, without titles. No argument may be called `title`."""
    return {
        key: _untitled(value) if isinstance(value, dict) else value
        for key, value in schema.items()
        if key != "title" and not (key == "description" and "properties" in schema)
    }


def _described(tool: str, error: ValidationError) -> str:
    """Return what is wrong with the arguments: the first five problems, which is enough to correct the rest."""
    problems = "; ".join(
        f"`{'.'.join(map(str, problem['loc']))}`: {problem['msg']}" for problem in error.errors(include_url=False)[:5]
    )
    return f"The arguments do not fit the tool `{tool}`: {problems}."
