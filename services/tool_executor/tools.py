"""What a tool is to the executor's loop: something that runs a request, reports how it ended, and never raises."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import structlog
from pydantic import JsonValue

from schemas.state import LoadedSkill
from services.tool_executor.attachments import Attachments
from services.tool_executor.output import text_result

Outcome: TypeAlias = Literal["succeeded", "failed", "timed_out", "cancelled", "not_started", "lost"]
"""`not_started`: nothing ran, so that it may be tried again. `lost`: it may have run, and its end was not seen."""

Emit: TypeAlias = Callable[[str], None]
"""Takes output as it comes, for whoever watches; may drop it."""

EXPECTED_WAIT_SECONDS = 30.0
"""How long a call waits for tools that this executor is still to get, from MCP servers that are starting."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ToolRequest:
    tenant: str
    thread: str
    call: str
    attempt: int
    tool: str
    args: dict[str, JsonValue]
    idempotency_key: str
    timeout_seconds: float
    environment: Mapping[str, JsonValue] = field(default_factory=dict)
    """`cwd` (relative to the workspace), `profile`, `variables`; all optional."""
    skills: Mapping[str, LoadedSkill] = field(default_factory=dict)
    """By name, what the thread has loaded: the folders have to be there."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    outcome: Outcome
    result: JsonValue
    """{"content": [{"type": "text", "text": …}], "is_error": bool, "bytes_cut": n, "structured"?, "exit_code"?}"""
    evidence: str | None = None
    """Why it is `lost` or `not_started`, for people."""
    changes: list[dict[str, JsonValue]] = field(default_factory=list)
    """{"path", "before", "after", "mode"}: files that changed, with the sha256 of their content; None: no such file."""
    attachments: Attachments = ()
    """What the result has no room for, until `keeping` has put it into the artifact store."""
    artifacts: list[dict[str, JsonValue]] = field(default_factory=list)
    """{"sha256", "size", "media_type", "name"}: what is in the artifact store."""
    seconds: float = 0.0


class ToolRunner(Protocol):
    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        """Never raises, and ends soon after `cancelled` is set. A task that is itself cancelled kills what it runs."""
        ...


class Toolbox:
    """Dispatches by tool name. A name that two sources have is run by the one whose name sorts first: the same to which
    the catalog says it belongs.
    """

    def __init__(self, expected_wait_seconds: float = EXPECTED_WAIT_SECONDS) -> None:
        self._sources: dict[str, Mapping[str, ToolRunner]] = {}
        self._runners: dict[str, ToolRunner] = {}
        self._expected: set[str] = set()
        self._expected_wait_seconds = expected_wait_seconds
        self._changed = asyncio.Event()

    def expect(self, source: str) -> None:
        """Tools of this source will be put later: after a restart a call may come before its MCP server does."""
        self._expected.add(source)

    def put(self, runners: Mapping[str, ToolRunner], source: str = "") -> None:
        """All runners of that source; those that it had before are gone."""
        self._sources[source] = runners
        self._expected.discard(source)
        self._changed.set()
        self._changed = asyncio.Event()
        self._runners = {
            name: runner for key in sorted(self._sources, reverse=True) for name, runner in self._sources[key].items()
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._runners)

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event) -> ToolEnd:
        started = time.monotonic()
        if request.tool not in self._runners and self._expected:
            await self._wait_for(request, cancelled)
            left_seconds = request.timeout_seconds - (time.monotonic() - started)
            request = replace(request, timeout_seconds=max(left_seconds, 0.001))
        runner = self._runners.get(request.tool)
        if runner is None and cancelled.is_set():
            text = "cancelled before it began"
            return ToolEnd("not_started", text_result(text, True), evidence=text)
        if runner is None and self._expected:
            text = (
                f"None of this executor's tools is `{request.tool}`; not here yet: {', '.join(sorted(self._expected))}."
            )
            return ToolEnd("not_started", text_result(text, True), evidence=text)
        if runner is None:
            known = ", ".join(sorted(self._runners)) or "none"
            return ToolEnd("failed", text_result(f"This executor has no tool `{request.tool}`; it has: {known}.", True))
        try:
            return await runner.run(request, emit, cancelled)
        except Exception as error:  # the edge of the tools: a bug in one is an end that was not seen
            log.exception("tool_runner_raised", tool=request.tool, call=request.call, attempt=request.attempt)
            evidence = f"the executor's own code failed while the tool ran: {type(error).__name__}: {error}"
            return ToolEnd("lost", text_result(evidence, True), evidence=evidence, seconds=time.monotonic() - started)

    async def _wait_for(self, request: ToolRequest, cancelled: asyncio.Event) -> None:
        """Until the tool is there, nothing more is expected, it is cancelled, or for as long as one waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._expected_wait_seconds, request.timeout_seconds)):
                while request.tool not in self._runners and self._expected and not cancelled.is_set():
                    await _first_of(self._changed, cancelled)


async def _first_of(*events: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = {group.create_task(event.wait()) for event in events}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
