"""Limits of the projector and of the windows' worker that no deployment needs to change.

They are constants with a reason each. They are fields of a class because tests give shorter waits and smaller batches:
the settings carry `limits`, and whoever has the settings reads them there.
"""

from dataclasses import dataclass

MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class ProjectorLimits:
    batch_bytes_max: int = 16 * MIB
    """Bytes of values in one transaction. Memory holds two batches at most, and what one poll brought."""
    batch_interval_idle_seconds: float = 0.015
    """From one commit to the next while few records come: short enough that a reader does not notice, long enough that
    the records of one action share a commit.
    """
    retry_seconds: float = 0.1
    """The pause after the first failure of the database; it doubles with each failure that follows."""
    retry_seconds_max: float = 5.0
    """The longest pause between two tries: a database that comes back is noticed within this time."""
    pause_after_seconds: float = 1.0
    """A batch that takes longer than this to write pauses reading. The partitions stay assigned: polls go on."""
    transaction_idle_seconds: float = 10.0
    """A projector that stands still in the middle of a batch keeps its rows locked. After this time the database rolls
    the batch back, so that the next owner of the partitions can write. It is longer than the default session timeout
    of the group: nobody else is given the partitions before that.
    """
    reclaim_seconds: float = 10.0
    """A partition that another projector claimed, but that is still assigned to this one, is claimed again after this
    time. It is longer than the default session timeout of the group, so that two projectors do not take a partition
    from each other while the group moves it.
    """
    look_seconds: float = 5.0
    """From one look at the claims and the live generation to the next. A swap is noticed within this time even if no
    record comes.
    """
    rebuild_seconds_max: float = 86_400
    """A rebuild that has not caught up after this time ends and leaves the live views as they are. Its work is kept:
    the next rebuild continues it.
    """
    rebuild_look_seconds: float = 1.0
    """From one look of a rebuild at the live generation to the next."""
    compare_wait_seconds: float = 60
    """How long a rebuild that is ahead of the live generation waits for it, to compare both at one position."""
    verify_idle_seconds: float = 60
    """A verification ends with an error if the log, before its end, brings no record for this time."""
    swap_lock_seconds: float = 2.0
    """How long one try of a swap waits for the projector's batches and for running reads. Readers that come meanwhile
    wait behind it, so it is short; for the locks of the views it is never above half of Postgres's deadlock_timeout.
    """
    swap_tries_max: int = 200
    """Tries of a swap, each with its wait for locks: with the pauses between them seven minutes at most."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    flush_seconds: float = 1.0
    """Effects that come within this time are counted and written together. Operators see them this much later."""
    batch_max: int = 5_000
    """Effects in memory that are not counted yet; with so many, reading waits."""
    cells_max: int = 10_000
    """Cells in memory. Others are read from the database when an effect for them comes."""
