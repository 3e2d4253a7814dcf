from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.chassis.postgres.roles import RUNTIME
from services.chassis.settings import ROLE, Settings
from services.runtime.deciding.limits import Limits


class RuntimeSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)

    runtime_postgres_role: str = Field(default=RUNTIME, pattern=ROLE)
    """What it acts as in Postgres, of the roles that `threadlog migrate` makes: the login has to be a member. Empty: as
    the login is.
    """
    runtime_agent_version: str = "1"
    """Recorded with each turn: the version of your prompts and tools."""
    runtime_script: str | None = None
    """Path of the YAML file that the model `scripted` plays."""
    runtime_model_timeout_seconds: float = Field(default=600, gt=0)
    runtime_model_calls_max: int = Field(default=256, ge=1)
    runtime_model_calls_per_tenant_max: int = Field(default=64, ge=1)
    runtime_answer_bytes_max: int = Field(default=512 * 1024, ge=1024)
    runtime_delta_interval_ms: int = Field(default=20, ge=0)
    """Text deltas of one answer within this time go out as one progress record."""
    runtime_append_retry_seconds: float = Field(default=1.0, gt=0)
    runtime_steps_per_turn: int = Field(default=100, ge=1)
    runtime_turn_seconds: int = Field(default=3_600, ge=1)
    runtime_parallel_calls: int = Field(default=8, ge=1)
    runtime_model_tries: int = Field(default=3, ge=1)
    runtime_retry_base_seconds: float = Field(default=1.0, gt=0)
    runtime_retry_most_seconds: float = Field(default=60.0, gt=0)
    runtime_approval_seconds: int = Field(default=86_400, ge=1)
    runtime_dispatch_wait_seconds: int = Field(default=600, ge=1)
    runtime_client_tool_seconds: int = Field(default=86_400, ge=1)
    runtime_deadline_grace_seconds: int = Field(default=60, ge=1)
    runtime_calls_per_step: int = Field(default=64, ge=1, le=1_000)

    runtime_turn_tokens: int = Field(default=0, ge=0)
    """Tokens that a turn may use, those of its child threads not among them: a turn that has used as many takes no
    further step and ends as failed. 0: no limit.
    """
    runtime_context_tokens: int = Field(default=0, ge=0)
    """A context that has grown beyond so many tokens is compacted before the next step. 0: only when asked."""
    runtime_children_per_turn: int = Field(default=16, ge=0, le=1_000)
    runtime_parallel_tasks: int = Field(default=4, ge=1, le=1_000)
    """Tasks of one plan that run at once."""
    runtime_plan_tasks: int = Field(default=64, ge=1, le=1_000)
    """Tasks that a version of a plan may have: one with more is rejected."""
    runtime_child_look_seconds: int = Field(default=10, ge=1)
    """How often the views are asked whether a child thread that a call or a task waits for has ended. Its own runtime
    tells it at once, unless it dies just then.
    """

    runtime_ephemeral_seconds: int = Field(default=3_600, ge=1, le=5 * 3_600)
    """How long an ephemeral thread may live; then it is closed. Less than what its topic keeps, which is 6 hours."""

    def limits(self) -> Limits:
        return Limits(
            steps_per_turn=self.runtime_steps_per_turn,
            turn_seconds=self.runtime_turn_seconds,
            parallel_calls=self.runtime_parallel_calls,
            model_tries=self.runtime_model_tries,
            retry_base_seconds=self.runtime_retry_base_seconds,
            retry_most_seconds=self.runtime_retry_most_seconds,
            approval_seconds=self.runtime_approval_seconds,
            dispatch_wait_seconds=self.runtime_dispatch_wait_seconds,
            client_tool_seconds=self.runtime_client_tool_seconds,
            deadline_grace_seconds=self.runtime_deadline_grace_seconds,
            calls_per_step=self.runtime_calls_per_step,
            turn_tokens=self.runtime_turn_tokens,
            context_tokens=self.runtime_context_tokens,
            child_depth=self.child_depth,
            children_per_turn=self.runtime_children_per_turn,
            parallel_tasks=self.runtime_parallel_tasks,
            plan_tasks=self.runtime_plan_tasks,
            child_look_seconds=self.runtime_child_look_seconds,
            ephemeral_seconds=self.runtime_ephemeral_seconds,
        )

    @property
    def postgres_role(self) -> str:
        return self.runtime_postgres_role
