"""Reconcile hooks: how the downstream of a `reconcilable` tool is asked about a call.

A hook is a tool of the same executor, or a command. It gets the call's idempotency key and answers one JSON object:

    {"status": "done" | "not_done" | "unknown", "result": …, "note": "…"}

A hook must only read. It is asked again whenever an answer did not arrive, and by two executors at once when a
partition moves.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import JsonValue

from services.tool_executor.tools import ToolEnd, ToolRequest, ToolRunner
from services.tool_executor.workspace.process import Command, Warden, run_process
from services.tool_executor.workspace.sandbox import RefusedError, Sandbox

OUTPUT_BYTES_MAX: Final = 262_144
"""Limit on what a command may print. Its answer is the last line, so the whole output has to be at hand."""


class HookFailedError(Exception):
    """The hook gave no answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """The call that a hook is asked about."""

    tenant: str
    thread: str
    call: str
    attempt: int
    idempotency_key: str
    timeout_seconds: float


class ReconcileHook(Protocol):
    async def ask(self, question: Question, /) -> object:
        """Return the answer as the downstream gave it, unchecked. Raises HookFailedError. Cancelling stops it."""
        ...


class ToolHook:
    """Asks a tool of this executor, with the key as its argument `idempotency_key`."""

    def __init__(self, tool: str, tools: ToolRunner) -> None:
        self._tool = tool
        self._tools = tools

    async def ask(self, question: Question, /) -> object:
        request = ToolRequest(
            tenant=question.tenant,
            thread=question.thread,
            call=question.call,
            attempt=question.attempt,
            tool=self._tool,
            args={"idempotency_key": question.idempotency_key},
            idempotency_key=question.idempotency_key,
            timeout_seconds=question.timeout_seconds,
        )
        end = await self._tools.run(request, _unheard, asyncio.Event())
        if end.outcome != "succeeded":
            raise HookFailedError(f"the tool {self._tool} {end.outcome}: {end.evidence or _text_of(end)}")
        return _said(end)


class CommandHook:
    """Asks a command, which gets the key as its last argument and in its environment.

    It prints the answer as its last line. It runs as tools do, in the thread's workspace and under its profile.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        sandbox: Sandbox,
        warden: Warden,
        grace_seconds: float,
    ) -> None:
        self._argv = argv
        self._environment = environment
        self._sandbox = sandbox
        self._warden = warden
        self._grace_seconds = grace_seconds

    async def ask(self, question: Question, /) -> object:
        key = question.idempotency_key
        try:
            room = self._sandbox.enter(question.tenant, question.thread, {})
            argv = room.wrap([*self._argv, key])
        except RefusedError as error:
            raise HookFailedError(str(error)) from error
        command = Command(
            argv=argv,
            cwd=room.cwd,
            environment={**room.environment(key), **self._environment},
            timeout_seconds=question.timeout_seconds,
            grace_seconds=self._grace_seconds,
            kept_bytes_max=OUTPUT_BYTES_MAX,
            output_bytes_max=OUTPUT_BYTES_MAX,
            live_bytes_max=0,
        )
        end = await run_process(command, self._warden, _unheard, asyncio.Event())
        if end.outcome != "exited" or end.exit_code != 0:
            how = f"exit code {end.exit_code}" if end.outcome == "exited" else end.outcome
            raise HookFailedError(f"{self._argv[0]}: {how}: {_ending(end.output.text)}")
        return _parsed(end.output.text)


def _unheard(_text: str) -> None:
    """Drop live output: nobody watches a question."""


def _said(end: ToolEnd) -> object:
    """Return the structured answer, or the text parsed as JSON. Servers may wrap a text as {"result": text}."""
    result = end.result
    structured = result.get("structured") if isinstance(result, dict) else None
    if isinstance(structured, dict) and "status" in structured:
        return structured
    if isinstance(structured, dict) and isinstance(inner := structured.get("result"), str | dict):
        return _parsed(inner) if isinstance(inner, str) else inner
    return _parsed(_text_of(end))


def _parsed(text: str) -> object:
    """Parse the whole text as JSON, or else its last line. Raises HookFailedError."""
    lines = text.strip().splitlines()
    for candidate in (text, lines[-1] if lines else ""):
        with suppress(ValueError):
            return json.loads(candidate)
    raise HookFailedError(f"no JSON: {_ending(text)}")


def _text_of(end: ToolEnd) -> str:
    result = end.result
    blocks: JsonValue = result.get("content") if isinstance(result, dict) else None
    if not isinstance(blocks, list):
        return str(result)
    return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


def _ending(text: str) -> str:
    """Return the end of what a hook printed, where programs say what went wrong."""
    return repr(text.strip()[-200:])
