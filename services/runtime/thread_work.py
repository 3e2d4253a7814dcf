"""What the runtime keeps beside a thread's state, and what the parts of its loop need of each other."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from schemas.codec import Record
from schemas.ids import EventId, ThreadKey
from schemas.state import ThreadState
from schemas.transcript import Change, Transcript
from services.chassis.following.fold_loop import Held as HeldThread
from services.chassis.following.fold_loop import Partition as AssignedPartition
from services.chassis.process.timers import Timer
from services.runtime.deciding.decisions import NO_TRIES, Append, Calling, ChildEnd, Summarising, SummaryTries
from services.runtime.deciding.limits import Limits

ANSWER_BYTES_MAX: Final = 512 * 1024
"""Bytes of an answer, or of a summary, as JSON. A record may have 1 MiB; this leaves room for the rest of the event."""
APPEND_RETRY_MS: Final = 1_000
"""Pause after an append or a read that failed for a passing reason. The log's client has tried for seconds already, so
a short pause is enough to keep threads from asking in a tight loop.
"""
DELTA_INTERVAL_MS: Final = 20
"""Text deltas of one answer within this time go out as one progress record: a person sees no difference, and the broker
gets 50 records a second and answer at most.
"""


@dataclass(slots=True, eq=False)
class Pending:
    """An own event under way."""

    record: Record
    changes: tuple[Change, ...]


@dataclass(slots=True, eq=False)
class Work:
    """What the runtime keeps beside a thread's state."""

    transcript: Transcript | None = None
    """None while it is cold; `buffered` then keeps what came since the thread was taken into memory."""
    transcript_seq: int = 0
    """Up to which the transcript was loaded: it may be ahead of the state, whose records then add nothing to it."""
    rows_from_seq: int = 0
    """What is loaded has to reach this seq: what came before it is not buffered any more."""
    buffered: list[tuple[int, tuple[Change, ...]]] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    ahead: ThreadState | None = None
    """The confirmed state with the pending events folded onto it; None where there are none."""
    calling: Calling | Summarising | None = None
    tries: SummaryTries = NO_TRIES
    task: "asyncio.Task[None] | None" = None
    loading: bool = False
    is_met: bool = False
    """Whether this process has acted for the thread since it took it into memory."""
    taken_over: str | None = None
    """Data hash of the start that was found open then, until `turn.recovered` says so."""
    wake: Timer | None = None
    sent: dict[tuple[ThreadKey, EventId], Literal["under way", "stored"]] = field(default_factory=dict)
    """Events of other threads that were sent and are still wanted."""
    ended: ChildEnd | None = None
    """What this thread, a child, came to; until its parent's thread has it."""
    children: Mapping[str, ChildEnd] = field(default_factory=dict)
    """Ends of its own children, as far as they were looked up."""
    children_read_ms: int = 0
    reading_children: bool = False


Held = HeldThread[Work]
Partition = AssignedPartition[Work]


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    instance: str
    incarnation: str
    agent_version: str

    @property
    def owner(self) -> str:
        return f"{self.instance}/{self.incarnation}"

    @property
    def source(self) -> str:
        return f"runtime/{self.instance}"


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How the runtime acts. Only tests give values other than the constants."""

    limits: Limits
    answer_bytes_max: int = ANSWER_BYTES_MAX
    append_retry_ms: int = APPEND_RETRY_MS
    delta_interval_ms: int = DELTA_INTERVAL_MS


class Advancing(Protocol):
    """The loop, as its parts see it."""

    def advance(self, partition: Partition, held: Held, first: Append | None = None) -> None:
        """Decide, after something has come that is no record. `first` is appended before that, where it still fits."""

    def look_again(self, partition: Partition, held: Held, at_ms: int, *, is_final: bool = False) -> None:
        """At that time; unless it is final, earlier where that was agreed before."""

    def quarantine(self, partition: Partition, held: Held, error: Exception) -> None: ...

    def is_over(self, partition: Partition) -> bool:
        """Whether this process acts for the partition no more."""
