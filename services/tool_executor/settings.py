from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.chassis.postgres.roles import EXECUTOR
from services.chassis.settings import MIB, ROLE, Settings


class ExecutorSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)

    executor_postgres_role: str = Field(default=EXECUTOR, pattern=ROLE)
    """What it acts as in Postgres, of the roles that `threadlog migrate` makes: the login has to be a member. Empty: as
    the login is.
    """
    executor_tools_file: Path | None = None
    """The operator's YAML file: pool, MCP servers, policies. None: the built-in tools with their defaults."""
    executor_workspace_root: Path = Path("/var/lib/threadlog/workspaces")
    executor_lease_seconds: int = Field(default=30, ge=3)
    """A running call whose executor is silent for this long is lost. Heartbeats go out every third of it."""
    executor_calls_max: int = Field(default=64, ge=1)
    executor_calls_per_tenant_max: int = Field(default=32, ge=1)
    executor_calls_per_tool_max: int = Field(default=32, ge=1)
    executor_append_retry_seconds: float = Field(default=1.0, gt=0)
    executor_output_interval_ms: int = Field(default=50, ge=0)
    """Output of a running tool within this time goes out as one progress record."""
    executor_grace_seconds: float = Field(default=5.0, ge=0)
    """What a tool's processes may take between SIGTERM and SIGKILL when they are stopped."""
    executor_kill_seconds: float = Field(default=6.0, gt=0)
    """After the drain time: what killed calls may take to end. More than the grace, else their ends are not said."""
    executor_output_bytes_max: int = Field(default=256 * MIB, ge=MIB)
    """Of one command's output, in a temporary file and then in the artifact store; what comes after it is dropped."""
    executor_keep_seconds: float = Field(default=30.0, gt=0)
    """What the artifact store may take for what one call leaves. Then a result goes out cut, and a file is not changed.
    """
    executor_change_bytes_max: int = Field(default=256 * MIB, ge=16 * MIB)
    """Of all files that one call changes, before and after together; a larger change is refused. They are in memory."""
    executor_skill_bytes_max: int = Field(default=16 * MIB, ge=1)
    """Of a skill's folder as a tar; a larger one is refused."""
    executor_skill_file_bytes_max: int = Field(default=4 * MIB, ge=1)
    executor_skill_files_max: int = Field(default=1_000, ge=1)
    executor_reconcile_first_seconds: float = Field(default=2.0, gt=0)
    """The downstream of a reconcilable call that cannot say is asked again after this; twice as long after each."""
    executor_reconcile_most_seconds: float = Field(default=300.0, gt=0)
    executor_reconcile_tries: int = Field(default=10, ge=1)
    """After so many answers that say nothing the call is left to people."""
    executor_reconcile_answer_seconds: float = Field(default=30.0, gt=0)
    """What a reconcile hook may take to answer."""
    executor_reconcile_grace_seconds: float = Field(default=15.0, ge=0)
    """After a call's lease and time, until `not_done` is believed: for killing it, and for clocks that differ."""
    executor_reconciles_max: int = Field(default=8, ge=1)
    """Hooks that run at once."""

    @property
    def postgres_role(self) -> str:
        return self.executor_postgres_role
