"""An MCP server over streamable HTTP: `python mcp_http_server.py PORT`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("over-http")


@server.tool(annotations=mcp_types.ToolAnnotations(read_only_hint=True))
async def greet(name: str) -> dict[str, str]:
    """Greet somebody."""
    return {"greeting": f"Hello {name}"}


@server.tool()
async def key(context: Context[Any, Any]) -> str:
    """Say the idempotency key and the authorization header."""
    request: Any = context.request_context
    return f"{(request.meta or {}).get('dev.threadlog/idempotency-key')} {request.request.headers.get('authorization')}"


@server.tool()
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
async def hang(folder: str) -> str:
    """Never answer, and leave a mark when it begins and when it is cancelled."""
    (Path(folder) / "hang.started").touch()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        (Path(folder) / "hang.cancelled").touch()
        raise
    return "never"


@server.tool()
async def die() -> str:
    """Die midway."""
    os._exit(9)


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
