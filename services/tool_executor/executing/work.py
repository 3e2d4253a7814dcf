"""What the executor keeps in mind: the attempts that it runs, which belong to the process; and of each thread, for as
long as it owns the partition, whose claims it watches and what it has asked.
"""

import asyncio
from dataclasses import dataclass, field

from services.chassis.following.fold_loop import Held as HeldThread
from services.chassis.following.fold_loop import Partition as AssignedPartition
from services.tool_executor.claiming.claim import Attempt
from services.tool_executor.claiming.reconcile import Answer


@dataclass(slots=True, eq=False)
class Run:
    """An attempt of this process, from its claim until its end is recorded."""

    attempt: Attempt
    tool: str
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False
    ended: bool = False
    recorded: bool = False
    """Whether its end is in the log."""
    counted: bool = False
    """Whether it takes a place under the limits."""


RunName = tuple[str, int]
"""Call and attempt."""


@dataclass(slots=True, eq=False)
class Asked:
    """What has been asked about an attempt of an unknown call."""

    attempt: int
    next_ms: int | None
    """When to ask; None while an answer or an append is under way, and once it is left to people."""
    asked: int = 0
    tries: int = 0
    asked_ms: int = 0
    """When the answer that came last was asked for."""
    answer: Answer | None = None
    resolved_at: int | None = None
    """Offset of the resolution that was appended. Where it took no effect, the call is asked about again."""


@dataclass(slots=True, eq=False)
class Work:
    watched: dict[str, str] = field(default_factory=dict)
    """Claims of others whose lease is watched, by call."""
    asked: dict[str, Asked] = field(default_factory=dict)
    """By call."""


Held = HeldThread[Work]
Partition = AssignedPartition[Work]
