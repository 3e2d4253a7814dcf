"""The limits of a fold loop: how much it keeps in memory, and how long it waits for what is away."""

from dataclasses import dataclass, field
from typing import Final

from services.chassis.following.quarantine import Pauses

POLL_MS: Final = 500
"""How long one poll waits for records. It bounds how late the loop notices that it should stop."""
KEYS_PER_LOAD: Final = 500
"""Threads whose rows one query reads: few enough that the query stays short, many enough to save round trips."""
LOAD_RETRY_SECONDS: Final = 0.5
"""Pause before a store or a log that did not answer is asked again."""
ASSIGN_WAIT_SECONDS: Final = 20.0
"""How long an assignment waits for the database. Then the partition is read from its beginning, which is slow but needs
no database.
"""
STALE_WAIT_SECONDS: Final = 30.0
"""How long threads wait for a store that is away, or that fell back behind what this reader relied on. Then they are
read out of their partition.
"""
EVICT_EVERY_SECONDS: Final = 5.0
"""Pause between two looks for idle threads that may leave memory."""
KEYS_KNOWN_MAX: Final = 2_000_000
"""Threads of a partition whose keys are kept to recognise new threads without asking the database, at 4 bytes of memory
each. In a partition with more threads, the database is asked for every one.
"""
KEYS_RETRY_SECONDS: Final = 30.0
"""Pause before keys that could not be loaded are asked for again. Meanwhile each new thread costs a query."""
PARKED_RECORDS_MAX: Final = 20_000
"""Records of a partition that wait for their threads' rows. With more, the partition is paused."""


@dataclass(frozen=True, slots=True)
class FoldLoopLimits:
    poll_ms: int = POLL_MS
    keys_per_load: int = KEYS_PER_LOAD
    load_retry_seconds: float = LOAD_RETRY_SECONDS
    assign_wait_seconds: float = ASSIGN_WAIT_SECONDS
    stale_wait_seconds: float = STALE_WAIT_SECONDS
    evict_every_seconds: float = EVICT_EVERY_SECONDS
    keys_known_max: int = KEYS_KNOWN_MAX
    keys_retry_seconds: float = KEYS_RETRY_SECONDS
    parked_records_max: int = PARKED_RECORDS_MAX
    quarantine: Pauses = field(default_factory=Pauses)
