"""What a service that follows threads holds in memory: the threads of its partitions, beside what it does with them."""

import asyncio
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from schemas.codec import Record
from schemas.ids import ThreadKey
from schemas.state import ThreadState
from services.chassis.following.key_filter import KeyFilter
from services.chassis.following.quarantine import Quarantine

Work = TypeVar("Work")

REASON_MAX = 500
KEPT_MAX = 1_000
"""Records of one thread that are kept for its refold."""


@dataclass(slots=True, eq=False)
class Held(Generic[Work]):
    """One thread in memory."""

    key: ThreadKey
    partition: int
    state: ThreadState
    work: Work
    from_start: bool
    """Whether every record of the thread has passed `on_record`, so that what the service folds beside is whole."""
    loaded_seq: int
    """Seq of the state that it came into memory with."""
    quarantined: str | None = None
    skipped: int = -1
    """Offset of the last record that was neither folded nor kept because the thread is quarantined."""
    kept: list[Record] | None = None
    """Records since its refold was due, for folding them onto the row that it waits for."""

    def keep(self, record: Record) -> None:
        """Of a quarantined thread."""
        if self.kept is not None and len(self.kept) < KEPT_MAX:
            self.kept.append(record)
        else:
            self.kept, self.skipped = None, record.offset


@dataclass(slots=True, eq=False)
class Partition(Generic[Work]):
    number: int
    relied_on: int
    """No stored position below this is trusted: records below it were never read here, or have left memory."""
    catch_up_to: int
    quarantine: Quarantine
    whole: bool
    """Read from its beginning: a thread that is not in memory and was not evicted has no earlier record."""
    foreign_store: bool = False
    """What is stored is of another log. It is never loaded, so nothing may leave memory."""
    next_offset: int = 0
    ready: bool = False
    threads: dict[ThreadKey, Held[Work]] = field(default_factory=dict)
    parked: dict[ThreadKey, list[Record]] = field(default_factory=dict)
    parked_records: int = 0
    paused: bool = False
    evicted: bool = False
    lost: bool = False
    loading: bool = False
    known: KeyFilter | None = None
    """Every thread with a record that was not read here, and every one that was; None until the keys are loaded."""
    unlisted: set[ThreadKey] = field(default_factory=set)
    """Taken into memory while `known` was not there."""
    distrusted_since: float | None = None
    """Since when, on the loop's clock, the store could not be read, or fell short of `relied_on`."""

    def set_aside(self, held: Held[Work], error: Exception) -> None:
        held.quarantined = f"{type(error).__name__}: {error}"[:REASON_MAX]
        self.quarantine.set_aside(held.key, asyncio.get_running_loop().time())
