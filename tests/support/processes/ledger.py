"""Tools that write to a ledger outside of the log: what really happened, whatever the log says."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from schemas.events import EffectClass
from schemas.tools import ToolSpec
from services.tool_executor.attachments import TEXT, Attachment, Attachments
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest

EFFECTS: tuple[EffectClass, ...] = ("pure", "idempotent", "reconcilable", "unsafe")
POOL = "builtin"
TOOLS = tuple(
    ToolSpec(name=effect, effect=effect, timeout_seconds=30, input_schema={"type": "object"}) for effect in EFFECTS
)


@dataclass(slots=True, eq=False)
class ToolRun:
    """One time that a tool was really run."""

    executor: str
    thread: str
    call: str
    attempt: int
    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str = ""
    effects: int = 0
    ended: str | None = None
    """None: it was cut off, or still runs."""
    cancelled: bool = False
    """Whether the executor asked it to stop."""


Moment = Literal["before", "after"]
AtMoment = Callable[[ToolRun, Moment], Awaitable[None]]
"""Awaited right before a run's effect, and right after it."""


async def no_trouble(_run: ToolRun, _moment: Moment) -> None:
    pass


@dataclass
class Ledger:
    runs: list[ToolRun] = field(default_factory=list)
    at_moment: AtMoment = no_trouble

    def of(self, thread: str, call: str) -> list[ToolRun]:
        return [run for run in self.runs if (run.thread, run.call) == (thread, call)]

    def effects(self) -> dict[tuple[str, str], int]:
        """By thread and call."""
        counted: dict[tuple[str, str], int] = defaultdict(int)
        for run in self.runs:
            counted[run.thread, run.call] += run.effects
        return counted

    def knows(self, idempotency_key: str) -> bool:
        """What the downstream answers when it is asked by key."""
        return any(run.effects for run in self.runs if run.idempotency_key == idempotency_key)


class LedgerTools:
    """Implements ToolRunner. A call's `seconds` are half before its effect and half after it; `fails` has none. Its
    result leaves so many `outputs` for the artifact store, the same ones as every other call that is as `alike`.
    """

    def __init__(self, ledger: Ledger, executor: str) -> None:
        self._ledger = ledger
        self._executor = executor

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        ledger = self._ledger
        thread = f"{request.tenant}/{request.thread}"
        run = ToolRun(
            self._executor,
            thread,
            request.call,
            request.attempt,
            request.tool,
            dict(request.args),
            request.idempotency_key,
        )
        ledger.runs.append(run)
        seconds = float(request.args.get("seconds", 0))
        if await self._is_cancelled(run, cancelled, seconds / 2):
            return ToolEnd("cancelled", None)
        if request.args.get("fails"):
            run.ended = "failed"
            return ToolEnd("failed", "it did not work", seconds=seconds)
        await ledger.at_moment(run, "before")
        if request.tool != "pure":
            run.effects += 1
        await ledger.at_moment(run, "after")
        emit("half done")
        if await self._is_cancelled(run, cancelled, seconds / 2):
            return ToolEnd("cancelled", None)
        run.ended = "succeeded"
        result: JsonValue = {"content": [{"type": "text", "text": f"{request.call} done"}]}
        return ToolEnd("succeeded", result, attachments=_outputs(run), seconds=seconds)

    async def _is_cancelled(self, run: ToolRun, cancelled: asyncio.Event, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await cancelled.wait()
        except TimeoutError:
            return False
        run.cancelled, run.ended = True, "cancelled"
        return True


def output_of(said: object, number: int) -> Attachment:
    return Attachment(f"{said} {number}".encode(), TEXT, f"output{number}.txt")


def _outputs(run: ToolRun) -> Attachments:
    said = run.args.get("alike") or f"{run.thread} {run.call} {run.attempt}"
    return tuple(output_of(said, number) for number in range(int(run.args.get("outputs", 0))))
