"""Settings of the projector and of the windows' worker: what two deployments set differently."""

from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.chassis.postgres.roles import PROJECTOR, ROLLUPS
from services.chassis.settings import ROLE, Limit, Settings, Some
from services.projector.limits import ProjectorLimits, WindowLimits


class ProjectorSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)
    service: ClassVar[str] = "projector"
    limits: ClassVar[ProjectorLimits] = ProjectorLimits()

    projector_postgres_role: Some[str] = Field(default=PROJECTOR, pattern=ROLE)
    """The role that the projector takes in Postgres: one of those that `threadlog migrate` makes. The login must be a
    member of it. Empty: the projector keeps the login's own role.
    """
    projector_batch_records_max: Limit[int] = Field(default=5_000, ge=1)
    """Records in one transaction. More need more memory, fewer cost more commits."""
    projector_states_max: Limit[int] = Field(default=10_000, ge=0)
    """Thread states in memory. Other states are read from the database when a record of their thread comes."""
    projector_effects: Some[bool] = True
    """Whether records that took effect are published on thread-effects: operators' windows and customers read them."""
    projector_other_version: Some[Literal["build", "refuse"]] = "refuse"
    """What a projector does that is newer than the live views: `build` its own generation beside them and swap, or
    `refuse` to start. A projector that is older than the live views always refuses.
    """
    projector_keep_old: Some[bool] = True
    """Whether a projector that built its own generation keeps the previous one, so that you can go back to it."""
    projector_rebuild_workers: Some[int] = Field(default=2, ge=1, le=64)
    """Processes that fill a rebuild, each with partitions of its own. 1 uses the rebuild's own process alone."""
    projector_rebuild_records_per_second_max: Limit[int] = Field(default=0, ge=0)
    """Records per second that all processes of a rebuild read together. 0 is as fast as they can."""
    projector_rebuild_live_lag_max: Limit[int] = Field(default=20_000, ge=1)
    """A rebuild pauses while the live views are more records than this behind the log and still move."""

    @property
    def postgres_role(self) -> str:
        return self.projector_postgres_role


class RollupsSettings(ProjectorSettings):
    """Settings of the windows' worker. It shares the projector's limits for its database."""

    service: ClassVar[str] = "rollups"
    window_limits: ClassVar[WindowLimits] = WindowLimits()

    rollups_postgres_role: Some[str] = Field(default=ROLLUPS, pattern=ROLE)
    """The role that the worker takes in Postgres. Empty: it keeps the login's own role."""
    rollups_keep_days: Some[int] = Field(default=400, ge=0)
    """Days after which cells of the windows are deleted. 0 keeps them all."""
    rollups_rebalance_timeout_seconds: Some[float] = Field(default=10.0, gt=0)
    """How long the group waits for its members when one joins or leaves. The embedded broker waits this long at every
    join if more than one worker runs.
    """

    @property
    def postgres_role(self) -> str:
        return self.rollups_postgres_role
