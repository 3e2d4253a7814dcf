"""What an operator may set for the tool-executor. Every default stands here; what no two deployments set differently is
a constant beside the code that uses it.

Which tools there are, and what each of them may do, is in the operator's tools file (`offering.tools_file`).
"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.chassis.postgres.roles import EXECUTOR
from services.chassis.settings import MIB, ROLE, Everybody, Limit, Settings, Some


class ExecutorSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)

    executor_postgres_role: Some[str] = Field(default=EXECUTOR, pattern=ROLE)
    """Role of Postgres that the executor acts as, of those that `threadlog migrate` makes. The login has to be a member
    of it. Empty: the executor acts as the login.
    """
    executor_tools_file: Everybody[Path | None] = None
    """Path of the operator's YAML file with the pool, the MCP servers and the policies. Unset: the built-in tools with
    their defaults.
    """
    executor_workspace_root: Everybody[Path] = Path("/var/lib/threadlog/workspaces")
    """Folder in which each thread has its workspace. The tools file may name another one."""
    executor_lease_seconds: Limit[int] = Field(default=30, ge=3)
    """Seconds without a heartbeat after which a running call counts as lost. Heartbeats go out every third of it."""
    executor_calls_max: Limit[int] = Field(default=64, ge=1)
    """Calls that this process runs at once. Further ones stay dispatched, for whichever executor has room first."""
    executor_calls_per_tenant_max: Limit[int] = Field(default=32, ge=1)
    """Calls that this process runs at once for one tenant."""
    executor_calls_per_tool_max: Limit[int] = Field(default=32, ge=1)
    """Calls that this process runs at once of one tool."""
    executor_grace_seconds: Limit[float] = Field(default=5.0, ge=0)
    """Seconds between SIGTERM and SIGKILL when the processes of a tool are stopped. When the service stops, as much of
    the drain time and a second more is reserved for killing tools.
    """
    executor_output_bytes_max: Limit[int] = Field(default=256 * MIB, ge=MIB)
    """Bytes of one command's output that are kept, first in a temporary file and then in the artifact store. The rest
    is dropped.
    """
    executor_change_bytes_max: Limit[int] = Field(default=256 * MIB, ge=16 * MIB)
    """Bytes of all files that one call changes, before and after together. They are in memory at once; a larger change
    is refused.
    """
    executor_reconcile_answer_seconds: Limit[float] = Field(default=30.0, gt=0)
    """Seconds that a reconcile hook may take to answer."""
    executor_reconcile_grace_seconds: Limit[float] = Field(default=15.0, ge=0)
    """Seconds after a call's lease and timeout until `not_done` is believed: for killing the tool, and for clocks that
    differ.
    """

    @property
    def postgres_role(self) -> str:
        return self.executor_postgres_role
