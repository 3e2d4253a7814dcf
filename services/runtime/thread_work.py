"""What the runtime keeps in memory for each thread, and what all parts of a runtime know of it.

Nothing here is stored. When a process dies, or a partition moves, the next owner starts with an empty `Work`: it loads
what it needs, and whatever was sent without an answer is sent once more under the same ids.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.ids import EventId, ThreadKey
from schemas.transcript import Change, Transcript
from services.chassis.following.followed_threads import FollowedThread
from services.chassis.following.followed_threads import Partition as AssignedPartition
from services.chassis.process.timers import Timer
from services.runtime.deciding.decisions import NO_TRIES, Calling, ChildEnd, Summarising, SummaryTries
from services.runtime.deciding.limits import Limits
from services.runtime.events_ahead import EventsAhead

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
class Work:
    """The runtime's memory of one thread, next to the thread's folded state."""

    ahead: EventsAhead = field(default_factory=EventsAhead)
    transcript: Transcript | None = None
    """None until it is needed and loaded; until then `buffered` keeps what records change in it."""
    transcript_seq: int = 0
    """Seq up to which the transcript was loaded. The views may be ahead of the state here; then the records that the
    transcript has already add nothing to it.
    """
    rows_from_seq: int = 0
    """Seq that a loaded transcript has to reach, because changes before it are no longer buffered."""
    buffered: list[tuple[int, tuple[Change, ...]]] = field(default_factory=list)
    """Changes of the transcript with the seq of their record, since the thread came into memory."""
    loading: bool = False
    calling: Calling | Summarising | None = None
    """Model call under way."""
    task: "asyncio.Task[None] | None" = None
    """Task of the model call, for cancelling it."""
    tries: SummaryTries = NO_TRIES
    wake: Timer | None = None
    is_met: bool = False
    """Whether this process has acted for the thread since the thread came into memory."""
    taken_over: str | None = None
    """Data hash of the step's start that was open when this process first acted, until `turn.recovered` says so."""
    sent: dict[tuple[ThreadKey, EventId], Literal["under way", "stored"]] = field(default_factory=dict)
    """Events of other threads that were sent and that decisions still want."""
    ended: ChildEnd | None = None
    """This thread's own end as a child, until its parent's thread has it."""
    children: Mapping[str, ChildEnd] = field(default_factory=dict)
    """Ends of its own children that were found in the views, by thread."""
    children_read_ms: int = 0
    """When the views were asked last; 0: never by this process."""
    reading_children: bool = False


Followed = FollowedThread[Work]
Partition = AssignedPartition[Work]


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    instance: str
    incarnation: str
    """Drawn at each start, so a restarted process does not take the open steps of its former life for its own."""
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
