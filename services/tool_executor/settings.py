from pathlib import Path

from pydantic import Field

from services.chassis.settings import Settings
from services.tool_executor.output import INLINE_BYTES_MAX
from services.tool_executor.process import LIVE_BYTES_MAX


class ToolExecutorSettings(Settings):
    tools_file: Path | None = None
    """What this executor offers and allows, see `services/tool_executor/tools_file.py`. None: the built-in tools."""
    workspace_root: Path = Path(".threadlog/workspaces")
    """Holds one folder per tenant and thread. The tools file may name another."""

    lease_seconds: int = Field(default=30, ge=3)
    """A running call that showed no heartbeat for this long is lost. Heartbeats go out every third of it."""
    calls_max: int = Field(default=64, ge=1)
    """Calls that run at once in this process; the rest stay dispatched."""
    calls_per_tenant_max: int = Field(default=32, ge=1)
    calls_per_tool_max: int = Field(default=32, ge=1)
    kill_grace_seconds: float = Field(default=5, ge=0)
    """Between SIGTERM and SIGKILL, at a timeout and at a cancel."""

    result_inline_bytes_max: int = Field(default=INLINE_BYTES_MAX, ge=1_024, le=262_144)
    """Output beyond it is cut in the middle."""
    output_live_bytes_max: int = Field(default=LIVE_BYTES_MAX, ge=0)
    """How much of a call's output is streamed while it runs."""
    mcp_ready_seconds: float = Field(default=20, ge=0)
    """How long a starting executor waits for its MCP servers before it goes on without those that are missing."""
