"""A tool server of your own, over MCP. Name it in the tools file and pass that to `threadlog dev --tools`:

    mcp:
      orders: {command: python, args: [-m, examples.tool_server]}
    tools:
      place_order: {effect: idempotent}

`read_only_hint` makes a tool `pure` by default; your tools file has the last word on effect classes (docs/tools.md).
The idempotency key is the same for every attempt of a call. Handing it on to the shop is what makes `place_order` safe
to run twice: here a dictionary plays the shop.
"""

from typing import Any

import mcp_types
from mcp.server.mcpserver import Context, MCPServer

KEY = "dev.threadlog/idempotency-key"

server = MCPServer("orders")
orders: dict[str, str] = {}


@server.tool(annotations=mcp_types.ToolAnnotations(read_only_hint=True))
async def price(article: str) -> int:
    """Return the price of an article in cents."""
    return 100 * len(article)


@server.tool(annotations=mcp_types.ToolAnnotations(idempotent_hint=True))
async def place_order(article: str, context: Context[Any, Any]) -> str:
    """Order an article, once for each call."""
    meta: Any = context.request_context.meta or {}
    number = orders.setdefault(str(meta.get(KEY)), f"order-{len(orders) + 1}")
    return f"{number}: {article}"


if __name__ == "__main__":
    server.run(transport="stdio")
