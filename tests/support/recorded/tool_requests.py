"""Requests to tools, and what came back, for tests."""

import asyncio
from typing import Any

from pydantic import JsonValue

from services.tool_executor.tools import ToolEnd, ToolRequest, ToolRunner

WORKSPACE_OF = ("acme", "t-1")


def request(tool: str, environment: dict[str, JsonValue] | None = None, **args: JsonValue) -> ToolRequest:
    return ToolRequest(
        tenant=WORKSPACE_OF[0],
        thread=WORKSPACE_OF[1],
        call="1.1.0",
        attempt=1,
        tool=tool,
        args=args,
        idempotency_key="key-1",
        timeout_seconds=10,
        environment=environment or {},
    )


async def run(runner: ToolRunner, wanted: ToolRequest, cancel_after: float | None = None) -> tuple[ToolEnd, str]:
    """The end, and all that was emitted."""
    emitted: list[str] = []
    cancelled = asyncio.Event()
    if cancel_after is not None:
        asyncio.get_running_loop().call_later(cancel_after, cancelled.set)
    end = await runner.run(wanted, emitted.append, cancelled)
    return end, "".join(emitted)


def text_of(end: ToolEnd) -> str:
    result: Any = end.result
    return "\n".join(item["text"] for item in result["content"])
