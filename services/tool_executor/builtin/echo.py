"""Returns its argument, for trying out a deployment and for the bench. Off unless the tools file names it."""

import asyncio
from typing import Final

from schemas.tools import ToolSpec
from services.tool_executor.attachments import whole_text
from services.tool_executor.output import text_result
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest

ECHO = ToolSpec(
    name="echo",
    description="Return the text, repeated to the number of bytes asked for.",
    input_schema={
        "type": "object",
        "properties": {"text": {"type": "string"}, "bytes": {"type": "integer", "minimum": 0, "maximum": 1_048_576}},
        "required": ["text"],
        "additionalProperties": False,
    },
    effect="pure",
    parallel=True,
    timeout_seconds=30,
)
BYTES_MAX: Final = 1_048_576
"""Enough to see how a result is shortened and its whole output is stored."""


class EchoTool:
    """Needs neither a workspace nor a sandbox, so that it measures the executor alone."""

    spec = ECHO

    async def run(self, request: ToolRequest, _emit: Emit, _cancelled: asyncio.Event, /) -> ToolEnd:
        text, wanted = str(request.args.get("text", "")), request.args.get("bytes")
        if isinstance(wanted, int) and text:
            wanted = min(wanted, BYTES_MAX)
            text = (text * (wanted // len(text) + 1))[:wanted]
        return ToolEnd("succeeded", text_result(text), attachments=whole_text(text))
