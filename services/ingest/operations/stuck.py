"""What is stuck, for operators: threads and partitions of all tenants.

Nothing is stored for this. It is put together when somebody asks, and now and then for the metrics: from the views
(active threads that are quiet, threads that the projector has set aside), the recent end of `thread-progress` (threads
that other services have set aside), and the broker (partitions that nobody reads).

A source that cannot be asked is named in `incomplete`; the others are reported all the same. So the answer is useful in
the middle of an outage, which is when operators ask.
"""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal

import pydantic
import structlog

from schemas.envelope import format_time
from schemas.errors import ThreadlogError
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import FOLD_VERSION, load_state
from schemas.topics import THREAD_EVENTS
from services.chassis.clock import Clock
from services.chassis.log.consumer_groups import EXECUTOR_GROUPS, PROJECTOR_GROUP, RUNTIME_GROUP, Groups, without_owner
from services.chassis.log.port import TopicPartition
from services.ingest.commands.views import format_moment
from services.ingest.database import Database
from services.ingest.http.answers import Answer, Time
from services.ingest.http.problems import ProblemError
from services.ingest.metrics import IngestMetrics
from services.ingest.operations.no_progress import Quiet, stall
from services.ingest.operations.quarantine_reports import QuarantineReports

TOPIC = THREAD_EVENTS.name
PAGE_ROWS = 500
"""Quiet threads of one query."""

REPORTED = (
    "It is read anew by itself, after growing pauses; if it stays, the log lines `thread_quarantined` of this service"
    " have the traceback: restart it with a release that mends it."
)
"""What to do about a thread that a service has set aside."""
NOT_KEPT_UP = (
    "The thread goes on and only its views stand still; look at its entry in views.dead_letters, then run"
    " `threadlog rebuild` with a release that can store it."
)
"""What to do about a thread that the projector has set aside."""
NO_OWNER: Mapping[str, str] = {
    RUNTIME_GROUP: "Start a runtime, or look why those that run do not join: turns of these threads stand still.",
    PROJECTOR_GROUP: "Start a projector, or look why those that run do not join: the views fall behind.",
}
"""What to do about a partition without a member, by consumer group."""
NO_EXECUTOR = (
    "Start a tool-executor of the pool {pool}, or delete the consumer group if the pool is no more: its calls wait."
)
"""What to do if a pool has no executor."""

Reason = Literal["quarantined", "no_progress"]

log = structlog.get_logger()


class StuckThread(Answer):
    """A thread that is stuck. A thread has one entry for each service that has set it aside."""

    tenant: str
    thread: str
    reason: Reason
    """`quarantined`: a service has set the thread aside. `no_progress`: a service should act for the thread, and
    nothing happens.
    """
    since: Time | None
    detail: str
    what_to_do: str


class PartitionWithoutOwner(Answer):
    """A partition that no member of its consumer group reads."""

    group: str
    topic: str
    partition: int
    reason: Literal["no_owner"] = "no_owner"
    since: Time | None
    """When this process first saw it."""
    what_to_do: str


class Stuck(Answer):
    """What is stuck though it should not be."""

    looked_at: Time
    """When this was put together."""
    threads: list[StuckThread]
    partitions: list[PartitionWithoutOwner]
    incomplete: list[str]
    """Sentences that say what could not be asked, or was too much. If it is empty, the lists are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsLimits:
    """When a thread counts as stuck, and how much one look may cost."""

    quiet: Quiet
    refresh_seconds: float
    """How often the metrics are brought up to date."""
    candidates_max: int = 5_000
    """Quiet threads whose state is loaded in one look. More of them mean that something larger is broken."""
    threads_max: int = 500
    """Threads that are listed: a screen of a person, not an export."""
    look_seconds: float = 10.0
    """How long the views, thread-progress and the broker may each take to answer."""
    fresh_seconds: float = 5.0
    """Whoever asks within this time is told the last finding again, so that many dashboards cost one look."""


@dataclass(slots=True)
class _Look:
    """What one look has found so far."""

    now_ms: int
    threads: list[StuckThread] = field(default_factory=list)
    partitions: list[PartitionWithoutOwner] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


class Ops:
    """Looks for what is stuck, and keeps the metrics of operators."""

    def __init__(
        self,
        *,
        database: Database,
        sql: Mapping[str, str],
        reports: QuarantineReports,
        groups: Callable[[], AbstractAsyncContextManager[Groups]],
        partitions: int,
        clock: Clock,
        limits: OpsLimits,
        metrics: IngestMetrics,
    ) -> None:
        self._database = database
        self._sql = sql
        self._reports = reports
        self._groups = groups
        self._tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._looking = asyncio.Lock()
        self._last: Stuck | None = None
        self._last_ms = 0
        self._without_owner_since: dict[tuple[str, TopicPartition], int] = {}
        self._groups_seen: set[str] = set()

    async def run(self) -> None:
        """Keep the metrics up to date until cancelled."""
        while True:
            await self.stuck()
            await self.count_open()
            await asyncio.sleep(self._limits.refresh_seconds)

    async def count_open(self) -> None:
        """Set the metrics of open turns, approvals and unknown calls. A failure is logged; nobody waits for the
        answer.
        """
        look = _Look(self._clock.now_ms())
        await self._ask(look, "The views could not be asked how much is open", self._count_open)

    async def stuck(self) -> Stuck:
        """Return what is stuck. However many ask at once, one looks, and the finding is valid for a few seconds."""
        async with self._looking:
            now_ms = self._clock.now_ms()
            if self._last is None or now_ms - self._last_ms >= 1000 * self._limits.fresh_seconds:
                self._last = await self._look(now_ms)
                self._last_ms = now_ms
            return self._last

    async def _look(self, now_ms: int) -> Stuck:
        """Ask all sources, one after the other.

        Threads that were set aside come first, because threads with a known reason are left out of those without
        progress.
        """
        look = _Look(now_ms)
        await self._ask(look, "The views could not be asked for quarantined threads", self._add_set_aside)
        await self._ask(
            look, "The end of thread-progress could not be read for quarantined threads", self._add_reported
        )
        await self._ask(look, "The views could not be asked for quiet threads", self._add_quiet)
        await self._ask(look, "The broker could not be asked for the owners of partitions", self._add_without_owner)
        self._count(look)
        threads_max = self._limits.threads_max
        if len(look.threads) > threads_max:
            look.incomplete.append(
                f"{len(look.threads)} entries of threads were found; these are {threads_max} of them."
            )
        return Stuck(
            looked_at=format_time(now_ms),
            threads=look.threads[:threads_max],
            partitions=look.partitions,
            incomplete=look.incomplete,
        )

    async def _ask(self, look: _Look, failure: str, source: Callable[[_Look], Awaitable[None]]) -> None:
        """Ask one source. Whatever it raises becomes a sentence in `incomplete`, a log line and a metric."""
        try:
            async with asyncio.timeout(self._limits.look_seconds):
                await source(look)
        except TimeoutError:
            look.incomplete.append(f"{failure} within {self._limits.look_seconds:g} s.")
        except ProblemError as error:
            look.incomplete.append(f"{failure}: {error.problem.detail}")
        except (ThreadlogError, OSError) as error:
            look.incomplete.append(f"{failure}: {error}.")
        except Exception as error:  # A bug in a report must not end the service.
            log.exception("ops_source_raised")
            look.incomplete.append(f"{failure}: {type(error).__name__}.")
        else:
            return
        self._metrics.ops_sources_failed.inc()
        log.warning("ops_source_failed", reason=look.incomplete[-1])

    # Sources

    async def _add_set_aside(self, look: _Look) -> None:
        """Add threads that the projector has set aside."""
        for row in await self._database.fetch_as_operator(
            self._sql["ops_quarantined_threads"], TOPIC, self._limits.threads_max + 1
        ):
            since = None if row["updated_at"] is None else format_moment(row["updated_at"])
            detail = f"projector: {row['quarantined']}"
            look.threads.append(_thread(row["tenant"], row["thread"], "quarantined", since, detail, NOT_KEPT_UP))

    async def _add_reported(self, look: _Look) -> None:
        """Add threads that other services report as set aside."""
        for key, by, reason, since_ms, _ in sorted(await self._reports.recent(look.now_ms)):
            since, detail = format_time(since_ms), f"{by}: {reason}"
            look.threads.append(_thread(key.tenant, key.thread, "quarantined", since, detail, REPORTED))

    async def _add_quiet(self, look: _Look) -> None:
        """Add quiet threads for which a service should act. Threads that are listed already are left out."""
        known = {(entry.tenant, entry.thread) for entry in look.threads}
        before = dt.datetime.fromtimestamp((look.now_ms - self._limits.quiet.thread_ms) / 1000, dt.UTC)
        after, seen = ThreadKey(TenantId(""), ThreadId("")), 0
        while True:
            rows = await self._database.fetch_as_operator(
                self._sql["ops_quiet_threads"], TOPIC, before, *after, PAGE_ROWS
            )
            for row in rows:
                if (row["tenant"], row["thread"]) not in known and row["fold_version"] == FOLD_VERSION:
                    self._judge(look, row["tenant"], row["thread"], row["state"])
            seen += len(rows)
            if len(rows) < PAGE_ROWS:
                return
            if seen >= self._limits.candidates_max:
                look.incomplete.append(f"More than {seen} threads are quiet; only these were looked at.")
                return
            after = ThreadKey(rows[-1]["tenant"], rows[-1]["thread"])

    def _judge(self, look: _Look, tenant: str, thread: str, stored: str) -> None:
        """Add the thread if its stored state says that a service should act."""
        try:
            state = load_state(stored.encode())
        except pydantic.ValidationError:
            look.incomplete.append(f"The stored state of {tenant}/{thread} is not one; rebuild the views.")
            return
        found = stall(state, look.now_ms, self._limits.quiet)
        if found is not None:
            since = format_time(state.updated_ms)
            look.threads.append(_thread(tenant, thread, "no_progress", since, found.detail, found.what_to_do))

    async def _add_without_owner(self, look: _Look) -> None:
        """Add partitions that no runtime, projector or executor of a known pool reads."""
        async with self._groups() as groups:
            pools = sorted(name for name in await groups.names() if name.startswith(EXECUTOR_GROUPS))
            members = {name: await groups.members(name) for name in (RUNTIME_GROUP, PROJECTOR_GROUP, *pools)}
        since = self._without_owner_since
        found = {
            (name, tp): since.get((name, tp), look.now_ms)
            for name, tps in without_owner(members, self._tps).items()
            for tp in tps
        }
        self._without_owner_since = found
        self._groups_seen |= members.keys()
        for (name, tp), since_ms in found.items():
            advice = NO_OWNER.get(name) or NO_EXECUTOR.format(pool=name.removeprefix(EXECUTOR_GROUPS))
            look.partitions.append(
                PartitionWithoutOwner(
                    group=name,
                    topic=tp.topic,
                    partition=tp.partition,
                    since=format_time(since_ms),
                    what_to_do=advice,
                )
            )

    async def _count_open(self, _: _Look) -> None:
        """Set the metrics; if the query fails they stay as they were."""
        [row] = await self._database.fetch_as_operator(self._sql["ops_open"])
        self._metrics.open_turns.set(row["open_turns"])
        self._metrics.waiting_approvals.set(row["waiting_approvals"])
        self._metrics.unknown_calls.set(row["unknown_calls"])

    def _count(self, look: _Look) -> None:
        """Set the metrics of what is stuck. A thread with several entries counts once for each reason."""
        by_reason: dict[Reason, set[tuple[str, str]]] = {"quarantined": set(), "no_progress": set()}
        for entry in look.threads:
            by_reason[entry.reason].add((entry.tenant, entry.thread))
        for reason, threads in by_reason.items():
            self._metrics.stuck_threads.labels(reason).set(len(threads))
        by_group = Counter(entry.group for entry in look.partitions)
        for group in self._groups_seen:
            self._metrics.partitions_without_owner.labels(group).set(by_group[group])


def _thread(tenant: str, thread: str, reason: Reason, since: str | None, detail: str, what_to_do: str) -> StuckThread:
    return StuckThread(tenant=tenant, thread=thread, reason=reason, since=since, detail=detail, what_to_do=what_to_do)
