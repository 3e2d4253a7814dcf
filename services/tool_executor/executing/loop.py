"""The executor's side of the fold loop: sees dispatched calls, and has them claimed, run and ended.

The confirmed state alone decides what is to be done (`claiming`); unlike the runtime, this service never decides ahead
of the log. After each batch every touched thread is looked at once, by four parts in this order:

    OwnClaims.tend         runs and claims of this process: start, stop, forget
    ForeignClaims.watch    claims of other executors, whose leases are watched
    OwnClaims.claim        dispatched calls, claimed as far as there are slots
    Reconciling.look_at    unknown calls, about which a downstream can be asked

Runs are tended first because a claim that has just been read back should start at once, and because it frees slots
that the later parts use. A lost partition has only its runs tended: claiming, watching and asking are the new owner's.

The loop never waits for a tool. What takes time runs in tasks and timers, and has the thread looked at again.
"""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import structlog

from schemas.other_topics.progress import Quarantine
from schemas.state import ThreadState, is_active
from schemas.thread import Verdict
from services.chassis.clock import Clock
from services.chassis.log.port import Log
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.timers import Timers
from services.chassis.sanitize import sanitize_text
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.concurrency import CallSlots, WaitingThreads
from services.tool_executor.executing.end_recorder import EndRecorder
from services.tool_executor.executing.foreign_claims import ForeignClaims
from services.tool_executor.executing.leases import Leases
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.orphaned_calls import OrphanedCalls
from services.tool_executor.executing.own_claims import OwnClaims
from services.tool_executor.executing.reconciling import Reconciling
from services.tool_executor.executing.runs import Runs
from services.tool_executor.executing.tool_runs import ToolRuns
from services.tool_executor.executing.work import Followed, Partition, Work
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.hooks import ReconcileHook
from services.tool_executor.tools import ToolRunner

log = structlog.get_logger()


class Executor:
    """A `Follower` of the fold loop.

    The parts are built in the order of their dependencies and do not know the executor. Those that wait for something
    (a slot, an answer, a record) get `_look_at`, by which the whole thread is looked at again.
    """

    def __init__(
        self,
        *,
        log_: Log,
        clock: Clock,
        timers: Timers,
        leases: Leases,
        tools: ToolRunner,
        spawn: Spawn,
        options: ExecutorOptions,
        metrics: ExecutorMetrics,
        hooks: Mapping[str, ReconcileHook] = MappingProxyType({}),
    ) -> None:
        """`hooks` ask downstreams, by the name of the tool whose calls they are asked about."""
        self.metrics = metrics
        self._clock = clock
        self._instance = options.instance
        self._owned: dict[int, Partition] = {}
        """Partitions that this process acts for, by number."""
        owned: Mapping[int, Partition] = MappingProxyType(self._owned)
        self.appends = Appends(log_, clock, options.instance)
        self.slots = CallSlots(
            options.calls_max, options.calls_per_tenant_max, options.calls_per_tool_max, metrics.running
        )
        self.waiting = WaitingThreads(self.slots, self._look_at, metrics.waiting)
        self.runs = Runs(self.slots, self.waiting)
        ends = EndRecorder(clock, timers, self.appends, self.runs, owned, options, metrics)
        self.tool_runs = ToolRuns(clock, timers, self.appends, ends, tools, spawn, options, metrics)
        self.own_claims = OwnClaims(
            clock=clock,
            timers=timers,
            appends=self.appends,
            slots=self.slots,
            waiting=self.waiting,
            runs=self.runs,
            tool_runs=self.tool_runs,
            ends=ends,
            owned=owned,
            options=options,
            metrics=metrics,
        )
        self.foreign_claims = ForeignClaims(leases, self.appends, options, metrics)
        self.reconciling = Reconciling(
            clock=clock,
            timers=timers,
            appends=self.appends,
            runs=self.runs,
            hooks=hooks,
            spawn=spawn,
            look_again=self._look_at,
            options=options,
            metrics=metrics,
        )
        self.orphaned_calls = OrphanedCalls(log_, self.runs, owned, self._look_at, spawn, options)

    # Follower

    def new_work(self) -> Work:
        return Work()

    def on_record(self, followed: Followed, before: ThreadState, record: object, verdict: Verdict) -> None:
        """Nothing is done for a single record: everything is read off the state after the batch."""

    def on_batch(self, partition: Partition, touched: Iterable[Followed]) -> None:
        for followed in touched:
            self._look_at(partition, followed)

    def on_ready(self, partition: Partition) -> None:
        self._owned[partition.number] = partition
        for followed in list(partition.threads.values()):
            if is_active(followed.state):
                self._look_at(partition, followed)

    def on_lost(self, partition: Partition) -> None:
        """Leave everything to the new owner but the tools that run here: those are followed to their end."""
        self._owned.pop(partition.number, None)
        for followed in partition.threads.values():
            self._let_go(followed)
        self.orphaned_calls.follow(partition, partition.threads.values())

    def on_quarantined(self, partition: Partition, followed: Followed, error: Exception) -> None:
        log.error(
            "thread_quarantined",
            thread=str(followed.key),
            partition=partition.number,
            seq=followed.state.seq,
            reason=followed.quarantined,
            exc_info=error,
        )

    def report_quarantined(self, partition: Partition, followed: Followed, seconds: float) -> None:
        report = Quarantine(
            reason=sanitize_text(followed.quarantined or ""),
            by=f"tool-executor/{self._instance}",
            since_ms=self._clock.now_ms() - int(1000 * seconds),
        )
        self.appends.progress(partition.number, followed.key, report)

    def on_refold(self, followed: Followed) -> None:
        """Let go of this copy of the thread. Its runs continue: they are known by their thread, not by this copy."""
        self._let_go(followed)

    def may_evict(self, followed: Followed) -> bool:
        return not self.runs.has_any(followed.key) and not followed.work.watched

    def _let_go(self, followed: Followed) -> None:
        self.foreign_claims.unwatch(followed)
        self.waiting.remove(followed)

    # One thread

    def _look_at(self, partition: Partition, followed: Followed) -> None:
        """Do all that the thread's state asks for. A thread that fails is set aside, and the others continue."""
        if followed.quarantined is not None:
            return
        try:
            self.own_claims.tend(partition, followed)
            if not partition.lost:
                self.foreign_claims.watch(partition, followed)
                self.own_claims.claim(partition, followed)
                self.reconciling.look_at(partition, followed)
        except Exception as error:  # noqa: BLE001  # the edge of the loop: one thread's failure must not stop its partition
            partition.set_aside(followed, error)
            self.on_quarantined(partition, followed, error)

    # Leaving

    async def drain(self, seconds: float, kill_seconds: float) -> None:
        """Claim nothing more and wait for the tools that run; cancel those that still run after `seconds`.

        The ends of cancelled tools are recorded within `kill_seconds`. What does not end by then is left behind: the
        caller ends the process, and other executors declare those calls lost after their lease.
        """
        self.own_claims.stopping = True
        try:
            async with asyncio.timeout(seconds):
                await self.slots.idle.wait()
        except TimeoutError:
            self.own_claims.give_unread_back()
            self.runs.cancel_all()
            try:
                async with asyncio.timeout(kill_seconds):
                    await self.slots.idle.wait()
            except TimeoutError:
                log.warning("calls_left_running", calls=self.slots.taken)
