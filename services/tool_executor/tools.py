"""The interface between the executor's loop and its tools: a request goes in, an end comes out, nothing is raised.

Exceptions would leave open what happened. A `ToolEnd` has to choose one of six outcomes instead, and the difference
between `failed`, `not_started` and `lost` decides whether a call may run again.
"""

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
"""`succeeded`, `failed`: the tool's own end. `timed_out`: it ran out of its time and was stopped. `cancelled`: it was
stopped on request. `not_started`: nothing ran, so the call may be tried again. `lost`: it may have run, and its end was
not seen.
"""

Emit: TypeAlias = Callable[[str], None]
"""Takes output while the tool runs, for people who watch. It may drop output, so the end carries everything."""

EXPECTED_WAIT_SECONDS = 30.0
"""How long a call waits for a tool that may still come from an MCP server that is starting. It covers the start of most
servers; after it the call is handed back, and another executor of the pool may have the tool.
"""

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
    """The thread's `cwd` (relative to the workspace), `profile` and `variables`, each of them optional."""
    skills: Mapping[str, LoadedSkill] = field(default_factory=dict)
    """The skills that the thread has loaded, by name. Their folders are restored before the tool runs."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    outcome: Outcome
    result: JsonValue
    """{"content": [{"type": "text", "text": …}], "is_error": bool, "bytes_cut": n, "structured"?, "exit_code"?}"""
    evidence: str | None = None
    """Why the call is `lost` or `not_started`, for the people who resolve it."""
    changes: list[dict[str, JsonValue]] = field(default_factory=list)
    """Files that changed: {"path", "before", "after", "mode"}, with sha256 hashes; a hash of None means no file."""
    attachments: Attachments = ()
    """Content that the result has no room for. `OutputStore` turns it into artifacts."""
    artifacts: list[dict[str, JsonValue]] = field(default_factory=list)
    """What is in the artifact store by now: {"sha256", "size", "media_type", "name"}."""
    seconds: float = 0.0


class ToolRunner(Protocol):
    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        """Run the tool and return its end. Never raises.

        It ends soon after `cancelled` is set. If its own task is cancelled, it kills what it runs before it leaves.
        """
        ...


class Toolbox:
    """Runs each request with the runner of that tool's name.

    If two sources have a tool of the same name, the source whose name sorts first runs it. The catalog resolves such a
    clash by the same rule, so the model sees the description of the tool that runs.
    """

    def __init__(self, expected_wait_seconds: float = EXPECTED_WAIT_SECONDS) -> None:
        self._sources: dict[str, Mapping[str, ToolRunner]] = {}
        self._runners: dict[str, ToolRunner] = {}
        self._expected: set[str] = set()
        self._expected_wait_seconds = expected_wait_seconds
        self._changed = asyncio.Event()

    def expect(self, source: str) -> None:
        """Announce tools that will be put later: after a restart, calls may arrive before their MCP server is there."""
        self._expected.add(source)

    def put(self, runners: Mapping[str, ToolRunner], source: str = "") -> None:
        """Replace all runners of the source, and wake the calls that wait for a tool."""
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
        """Wait until the tool is there, nothing more is expected, the call is cancelled, or the wait is over."""
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
