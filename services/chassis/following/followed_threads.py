"""The threads that a service follows, in memory: by partition, each with the work that the service has with it."""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from schemas.codec import Record
from schemas.ids import ThreadKey
from schemas.state import ThreadState
from services.chassis.following.key_filter import KeyFilter
from services.chassis.following.quarantine import Quarantine

Work = TypeVar("Work")

REASON_MAX: Final = 500
"""Characters of an error that are kept as the reason of a quarantine. It is reported often, so it is short."""
KEPT_MAX: Final = 1_000
"""Records of one thread that are kept for its refold. With more the refold waits for a newer row instead."""


@dataclass(slots=True, eq=False)
class FollowedThread(Generic[Work]):
    """One thread in memory. A refold makes another one for the same thread, so it is compared by identity."""

    key: ThreadKey
    partition: int
    state: ThreadState
    work: Work
    from_start: bool
    """Whether every record of the thread has passed `on_record`. If so, what the service derives itself is complete."""
    loaded_seq: int
    """The seq of the state with which the thread came into memory."""
    quarantined: str | None = None
    """Why the thread is set aside; None while it is not."""
    skipped: int = -1
    """Offset of the last record that was neither folded nor kept because the thread is quarantined. A refold needs a
    row that contains it.
    """
    kept: list[Record] | None = None
    """Records since the refold was due, which are folded onto the row once it is there; None before that."""

    def keep(self, record: Record) -> None:
        """Keep or skip a record of a quarantined thread."""
        if self.kept is not None and len(self.kept) < KEPT_MAX:
            self.kept.append(record)
        else:
            self.kept, self.skipped = None, record.offset


@dataclass(slots=True, eq=False)
class Partition(Generic[Work]):
    """One assigned partition. It is dropped when it is lost, and made anew if it comes back."""

    number: int
    relied_on: int
    """The lowest stored position that is trusted. Records below it were never read here, or have left memory, so that
    only the store has them.
    """
    catch_up_to: int
    """The end of the log at the assignment. The service acts once the partition has been read up to here."""
    quarantine: Quarantine
    whole: bool
    """Whether it was read from its beginning: then a thread that is not in memory and was not evicted is new."""
    foreign_store: bool = False
    """Whether the stored rows belong to another log. They are never loaded, so no thread may leave memory."""
    next_offset: int = 0
    """Offset of the first record that was not read."""
    ready: bool = False
    threads: dict[ThreadKey, FollowedThread[Work]] = field(default_factory=dict)
    parked: dict[ThreadKey, list[Record]] = field(default_factory=dict)
    """Records that wait for the rows of their threads, in log order."""
    parked_records: int = 0
    paused: bool = False
    """Whether the reader skips this partition because too many records are parked."""
    evicted: bool = False
    """Whether a thread has left memory: from then on a thread that is not in memory may have earlier records."""
    lost: bool = False
    """Whether another member has the partition now. Tasks that still work for it stop."""
    loading: bool = False
    """Whether a task loads rows for it. One at a time, so that rows are taken in in the order of their queries."""
    known: KeyFilter | None = None
    """A filter that contains every thread with an earlier record; None until the keys are loaded."""
    unlisted: set[ThreadKey] = field(default_factory=set)
    """Threads that came into memory while `known` was None."""
    distrusted_since: float | None = None
    """Since when the store could not be read, or fell short of `relied_on`, in seconds on the loop's clock; None while
    it is trusted.
    """

    def set_aside(self, thread: FollowedThread[Work], error: Exception) -> None:
        """Quarantine a thread because of an error. Nothing is folded onto it until it is read anew."""
        thread.quarantined = f"{type(error).__name__}: {error}"[:REASON_MAX]
        self.quarantine.set_aside(thread.key, asyncio.get_running_loop().time())
