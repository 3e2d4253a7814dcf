"""An MCP server over stdio whose tools write to the ledger: `python -m tests.chaos.ledger_server LEDGER`.

`before_ms` and `after_ms` are what a call takes before and after its effect, so that a kill can hit on either side of
it. They are text, because a scripted model fills them in.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import mcp_types
from mcp.server.mcpserver import Context, MCPServer

from schemas.tools import IDEMPOTENCY_META_KEY
from tests.chaos.ledger import CLASSES, LOOKUP, PREFIX, EffectClass, Entry, Ledger

READ_ONLY = mcp_types.ToolAnnotations(read_only_hint=True)

server = MCPServer("ledger")
ledger = Ledger(Path(sys.argv[1]))


def add_tool(effect: EffectClass) -> None:
    async def record(before_ms: str, after_ms: str, refuse: str, context: Context[Any, Any]) -> str:
        meta: Any = context.request_context.meta or {}
        await asyncio.sleep(int(before_ms) / 1000)
        if refuse == "yes":
            raise ValueError("refused, and nothing was recorded")
        ledger.record(Entry(effect, str(meta[IDEMPOTENCY_META_KEY])), once=effect == "idempotent")
        await asyncio.sleep(int(after_ms) / 1000)
        return f"recorded by a tool that is {effect}"

    server.tool(name=f"{PREFIX}{effect}", description="Write a line into the ledger.")(record)


for each in CLASSES:
    add_tool(each)


@server.tool(name=LOOKUP, annotations=READ_ONLY)
async def lookup(idempotency_key: str) -> dict[str, Any]:
    """Say whether the ledger has a line of the call with this key."""
    if ledger.by_key().get(idempotency_key):
        return {"status": "done", "result": "found in the ledger", "note": "the ledger has its line"}
    return {"status": "not_done", "note": "the ledger has no line of it"}


if __name__ == "__main__":
    server.run()
