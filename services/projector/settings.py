from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.chassis.postgres.roles import PROJECTOR, ROLLUPS
from services.chassis.settings import MIB, ROLE, Settings


class ProjectorSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)
    service: ClassVar[str] = "projector"

    projector_postgres_role: str = Field(default=PROJECTOR, pattern=ROLE)
    """What it acts as in Postgres, of the roles that `threadlog migrate` makes: the login has to be a member. Empty: as
    the login is.
    """
    projector_batch_interval_ms: int = Field(default=120, ge=0)
    """From one commit to the next under load. A record that comes after a quiet time is committed at once."""
    projector_batch_interval_idle_ms: int = Field(default=15, ge=0)
    """The same while few records come."""
    projector_busy_records_per_second: int = Field(default=1_500, ge=1)
    """From this rate on it is load."""
    projector_batch_records_max: int = Field(default=5_000, ge=1)
    projector_batch_bytes_max: int = Field(default=16 * MIB, ge=MIB)
    """Of values, in one transaction. Two batches are in memory at most, and what one poll brought."""
    projector_states_max: int = Field(default=10_000, ge=0)
    """Thread states kept in memory; others are read from the database when a record for them comes."""
    projector_retry_seconds: float = Field(default=0.1, gt=0)
    """After a failure of the database; doubled with each one that follows."""
    projector_retry_seconds_max: float = Field(default=5.0, gt=0)
    projector_pause_after_seconds: float = Field(default=1.0, gt=0)
    """A batch that takes longer than this to write pauses reading; the partitions stay assigned."""
    projector_transaction_idle_seconds: float = Field(default=10.0, gt=0)
    """A projector that stands still in the midst of a batch holds its partitions. After this time the database rolls
    the batch back, so that another one can have them.
    """
    projector_reclaim_seconds: float = Field(default=10.0, gt=0)
    """A partition that was taken over, but is still assigned to this projector, is claimed again after this time."""
    projector_look_seconds: float = Field(default=5.0, gt=0)
    """From one look at what became of the claims to the next."""
    projector_dead_letter_bytes_max: int = Field(default=256 * 1024, ge=0, le=MIB)
    """What is kept of the value of a record that cannot be read or stored; the record itself stays on its topic."""
    projector_effects: bool = True
    """Whether what took effect is told on thread-effects, for the windows of operators and for customers."""
    projector_effects_batch_records_max: int = Field(default=1_000, ge=1)
    """Of a partition, in one append or one read of what is no longer in memory."""
    projector_effects_held_max: int = Field(default=2_000, ge=0)
    """Per partition: effects in memory that wait for their topic. What is more is read again from `events` later."""
    projector_effects_position_seconds: float = Field(default=1.0, gt=0)
    """From one storing of what is published to the next: so much is published again after a crash."""
    projector_other_version: Literal["build", "refuse"] = "refuse"
    """What a projector does that is newer than the live views: build its own generation beside them and swap, or end
    with a message. One that is older always ends.
    """
    projector_keep_old: bool = True
    """Whether a projector that built its own generation keeps the one before, to go back to."""
    projector_rebuild_seconds_max: float = Field(default=86_400, gt=0)
    """A rebuild that has not caught up by then gives up and leaves the live views as they are; the next goes on."""
    projector_rebuild_workers: int = Field(default=2, ge=1, le=64)
    """Processes that a rebuild has, each with its own partitions. 1 is the process of the rebuild itself."""
    projector_rebuild_records_per_second_max: int = Field(default=0, ge=0)
    """Of a rebuild, all of its workers together; 0 is as fast as they can."""
    projector_rebuild_live_lag_max: int = Field(default=20_000, ge=1)
    """While the live views are further behind the log than so many records, and move, a rebuild pauses for them."""
    projector_rebuild_look_seconds: float = Field(default=1.0, gt=0)
    """From one look of a rebuild at the live views to the next."""
    projector_compare_wait_seconds: float = Field(default=60, gt=0)
    """How long a rebuild that is ahead of the live views waits for them, to compare both at an equal position."""
    projector_verify_seconds_max: float = Field(default=86_400, gt=0)
    """A verification that is not done by then gives up."""
    projector_verify_idle_seconds: float = Field(default=60, gt=0)
    """A verification gives up where the log gives nothing for so long and does not end there."""
    projector_verify_rounds_max: int = Field(default=20, ge=1)
    """How often a verification reads on to where the live views are by then, before it compares them in a snapshot."""
    projector_last_record_seconds: float = Field(default=10.0, gt=0)
    """How long the last record that the views hold of a partition is waited for, to see whether the log is the same."""
    projector_swap_lock_seconds: float = Field(default=2.0, gt=0)
    """How long a swap of generations waits for the projector's batches and for running reads before it lets others
    through and tries again. For reads never longer than half of Postgres's deadlock_timeout.
    """
    projector_swap_tries_max: int = Field(default=200, ge=1)

    @property
    def postgres_role(self) -> str:
        return self.projector_postgres_role


class RollupsSettings(ProjectorSettings):
    """Of the windows' worker, which has some of the projector's too."""

    service: ClassVar[str] = "rollups"

    rollups_postgres_role: str = Field(default=ROLLUPS, pattern=ROLE)
    """What its connections to Postgres act as; empty: as the login is."""
    rollups_flush_seconds: float = Field(default=1.0, gt=0)
    """What comes within this time is counted and written at once."""
    rollups_batch_max: int = Field(default=5_000, ge=1)
    """Effects in memory that are not counted yet."""
    rollups_late_seconds: int = Field(default=86_400, ge=60)
    """An effect whose time is so far behind the latest of its partition belongs to no minute any more, and is counted
    as late.
    """
    rollups_ahead_seconds: int = Field(default=300, ge=0)
    """An effect whose time is further than this after its publication does not make others late."""
    rollups_names_max: int = Field(default=50, ge=1)
    """Tools, models, reasons of failures: of each so many in a cell, then `other`."""
    rollups_cells_max: int = Field(default=10_000, ge=0)
    """Cells in memory; others are read from the database when an effect for them comes."""
    rollups_keep_days: int = Field(default=400, ge=0)
    """Cells older than this are deleted; 0 keeps them all."""
    rollups_prune_seconds: float = Field(default=600.0, gt=0)
    """From one deletion of old cells to the next."""
    rollups_prune_cells_max: int = Field(default=10_000, ge=1)
    """Deleted at once."""
    rollups_rebalance_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long the group waits for its members when one comes or goes. On the embedded broker every join takes so long
    where more than one worker runs.
    """

    @property
    def postgres_role(self) -> str:
        return self.rollups_postgres_role
