"""What an operator may set for the runtime. Every default stands here; what no two deployments set differently is a
constant beside the code that uses it (most of them in `deciding.limits`).
"""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.chassis.postgres.roles import RUNTIME
from services.chassis.settings import ROLE, Limit, Settings, Some
from services.runtime.deciding.limits import Limits


class RuntimeSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)

    runtime_postgres_role: Some[str] = Field(default=RUNTIME, pattern=ROLE)
    """Role of Postgres that the runtime acts as, of those that `threadlog migrate` makes. The login has to be a member
    of it. Empty: the runtime acts as the login.
    """
    runtime_agent_version: Some[str] = "1"
    """Version of your prompts and tools. Each turn records it."""
    runtime_script: Some[str | None] = None
    """Path of the YAML file that the model `scripted` plays."""

    runtime_model_timeout_seconds: Limit[float] = Field(default=600, gt=0)
    """Seconds that one model call may take, streaming included. A longer call fails and is tried again."""
    runtime_model_calls_max: Limit[int] = Field(default=256, ge=1)
    """Model calls that this process makes at once. Further ones wait, the tenant that used least first."""
    runtime_model_calls_per_tenant_max: Limit[int] = Field(default=64, ge=1)
    """Model calls that this process makes at once for one tenant."""
    runtime_steps_per_turn: Limit[int] = Field(default=100, ge=1)
    """Steps that a turn may take; then it ends as failed."""
    runtime_turn_seconds: Limit[int] = Field(default=3_600, ge=1)
    """Seconds that a turn may work; then it is cancelled. Time spent waiting for people or for child threads does not
    count.
    """
    runtime_turn_tokens: Limit[int] = Field(default=0, ge=0)
    """Tokens that a turn may use, without those of its child threads. A turn that has used them takes no further step
    and ends as failed. 0: unlimited.
    """
    runtime_context_tokens: Limit[int] = Field(default=0, ge=0)
    """Tokens beyond which a context is compacted before the next step. 0: a context is compacted only on request, or if
    it is too long for the model.
    """
    runtime_approval_seconds: Limit[int] = Field(default=86_400, ge=1)
    """Seconds that a call waits for its approval; then the approval expires."""
    runtime_client_tool_seconds: Limit[int] = Field(default=86_400, ge=1)
    """Seconds that your backend, a child thread or a plan has for a call, in addition to the tool's own time."""
    runtime_deadline_grace_seconds: Limit[int] = Field(default=60, ge=1)
    """Seconds after a call's deadline, or after a cancel, before the runtime gives up on whoever runs the call."""
    runtime_ephemeral_seconds: Limit[int] = Field(default=3_600, ge=1, le=5 * 3_600)
    """Seconds that an ephemeral thread may live; then it is closed. Its topic keeps records for 6 hours only, so the
    limit is at most 5 hours.
    """

    def limits(self) -> Limits:
        return Limits(
            steps_per_turn=self.runtime_steps_per_turn,
            turn_seconds=self.runtime_turn_seconds,
            turn_tokens=self.runtime_turn_tokens,
            context_tokens=self.runtime_context_tokens,
            approval_seconds=self.runtime_approval_seconds,
            client_tool_seconds=self.runtime_client_tool_seconds,
            deadline_grace_seconds=self.runtime_deadline_grace_seconds,
            child_depth=self.child_depth,
            ephemeral_seconds=self.runtime_ephemeral_seconds,
        )

    @property
    def postgres_role(self) -> str:
        return self.runtime_postgres_role
