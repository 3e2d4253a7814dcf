"""An MCP server over stdio that misbehaves when told to: `python mcp_stdio_server.py STATE_FOLDER`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types
from mcp.server.mcpserver import Context, MCPServer

STATE = Path(sys.argv[1])
server = MCPServer("misbehaving")
READ_ONLY = mcp_types.ToolAnnotations(read_only_hint=True)
IDEMPOTENT = mcp_types.ToolAnnotations(idempotent_hint=True)


@server.tool(annotations=READ_ONLY)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=IDEMPOTENT)
async def key(context: Context[Any, Any]) -> str:
    """Say the idempotency key."""
    meta: Any = context.request_context.meta
    return str((meta or {}).get("dev.threadlog/idempotency-key"))


@server.tool()
async def where(place: str, other: str = "none") -> str:
    """Say what it was given."""
    return f"{place} {other}"


@server.tool()
async def fail() -> str:
    """Fail."""
    raise ValueError("it does not work")


@server.tool()
async def report(steps: int, context: Context[Any, Any]) -> str:
    """Report progress."""
    for step in range(steps):
        await context.report_progress(step + 1, steps, "working")
    return "reported"


@server.tool()
async def hang() -> str:
    """Never answer."""
    return await _hang("hang")


@server.tool(annotations=READ_ONLY)
async def hang_pure() -> str:
    """Never answer, but change nothing."""
    return await _hang("hang_pure")


@server.tool()
async def die() -> str:
    """Die midway."""
    with (STATE / "died").open("a") as file:
        file.write("x")
    os.write(2, b"about to die\n")
    os._exit(9)


@server.tool()
async def create_charge(cents: int, context: Context[Any, Any]) -> str:
    """Charge, and die before saying so."""
    meta: Any = context.request_context.meta
    (STATE / f"charge-{meta['dev.threadlog/idempotency-key']}").write_text(str(cents))
    os._exit(9)


@server.tool(annotations=READ_ONLY)
async def lookup_charge(idempotency_key: str) -> dict[str, Any]:
    """Say what became of a charge."""
    charge = STATE / f"charge-{idempotency_key}"
    if not charge.exists():
        return {"status": "not_done"}
    return {"status": "done", "result": {"cents": int(charge.read_text())}, "note": "found by its key"}


@server.tool()
async def pid() -> int:
    """Say the process id."""
    return os.getpid()


async def _hang(name: str) -> str:
    (STATE / f"{name}.started").touch()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        (STATE / f"{name}.cancelled").touch()
        raise
    return "never"


if __name__ == "__main__":
    server.run()
