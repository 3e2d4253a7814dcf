"""What the executor remembers.

A `Run` belongs to the process: it lives from the claim until the end is in the log, wherever its partition goes
meanwhile. `Work` belongs to one thread under one assignment of its partition, and is dropped with it: the new owner
finds the same things in the log again.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from schemas.ids import ThreadKey
from services.chassis.following.followed_threads import FollowedThread
from services.chassis.following.followed_threads import Partition as AssignedPartition
from services.tool_executor.claiming.claim import Attempt
from services.tool_executor.claiming.reconcile import Answer


@dataclass(slots=True, eq=False)
class Run:
    """One attempt of this process, from its claim until its end is recorded."""

    key: ThreadKey
    attempt: Attempt
    tool: str
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Asks the tool to end."""
    started: bool = False
    ended: bool = False
    recorded: bool = False
    """Whether its end is in the log."""
    has_slot: bool = False
    """Whether it counts against the concurrency limits."""


@dataclass(slots=True, eq=False)
class Reconciliation:
    """What this executor has asked about one attempt of an unknown call."""

    attempt: int
    next_ms: int | None
    """When to ask next. None while an answer or an append is awaited, and once the call is left to people."""
    asked: int = 0
    """How often the downstream has been asked."""
    tries: int = 0
    """How many of its answers were inconclusive."""
    asked_ms: int = 0
    """When the latest answer was asked for."""
    answer: Answer | None = None
    """An answer that has arrived and was not used yet."""
    resolved_at: int | None = None
    """Offset of the appended resolution. If it took no effect, the call is asked about again."""


@dataclass(slots=True, eq=False)
class Work:
    """What the executor remembers about one thread while it owns the partition."""

    watched: dict[str, str] = field(default_factory=dict)
    """Claims of other executors whose lease is watched: call to claim."""
    reconciliations: dict[str, Reconciliation] = field(default_factory=dict)
    """What was asked about unknown calls, by call."""


Followed: TypeAlias = FollowedThread[Work]
Partition: TypeAlias = AssignedPartition[Work]
