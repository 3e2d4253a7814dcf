"""Claims calls for this executor, and takes each claim to its run or to its end.

A claim is the executor's own `tool_call.started`. The order is what keeps a tool from running twice: append it, read
it back as the claim in force, and only then run (`claiming.claim` decides). Between the append and the run the process
may die: the claim is then in the log, nothing has run, and the call is lost once the lease is over. A claim that this
process gives up while it lives is therefore denied in the log, as `not_started`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import structlog

from schemas.ids import derive_service_event
from schemas.state import Call
from services.chassis.clock import Clock
from services.chassis.process.timers import Timers
from services.tool_executor.claiming.claim import (
    Attempt,
    before_running,
    claimable,
    is_own_claim,
    is_settled,
    while_running,
)
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.concurrency import CallSlots, WaitingThreads
from services.tool_executor.executing.end_recorder import NEVER_RAN, EndRecorder, started_event
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.runs import Runs
from services.tool_executor.executing.tool_runs import ToolRuns
from services.tool_executor.executing.work import Followed, Partition, Run
from services.tool_executor.metrics import ExecutorMetrics

log = structlog.get_logger()


class OwnClaims:
    """Claims of this process: which ones it makes, and what it does once it reads them back."""

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        appends: Appends,
        slots: CallSlots,
        waiting: WaitingThreads,
        runs: Runs,
        tool_runs: ToolRuns,
        ends: EndRecorder,
        owned: Mapping[int, Partition],
        options: ExecutorOptions,
        metrics: ExecutorMetrics,
    ) -> None:
        self.stopping = False
        """Set by a drain: nothing more is claimed."""
        self._clock = clock
        self._timers = timers
        self._appends = appends
        self._slots = slots
        self._waiting = waiting
        self._runs = runs
        self._tool_runs = tool_runs
        self._ends = ends
        self._owned = owned
        self._options = options
        self._metrics = metrics

    # What is under way

    def tend(self, partition: Partition, followed: Followed) -> None:
        """Start, stop or forget the thread's runs as its state wants it. Also called for partitions that are lost."""
        for run in self._runs.of(followed.key):
            if run.ended:
                if run.recorded and is_settled(followed.state, run.attempt):
                    self._runs.forget(run)
            elif run.started:
                if while_running(followed.state, run.attempt) == "stop":
                    run.cancelled.set()
            else:
                self._tend_claim(partition, followed, run)

    def _tend_claim(self, partition: Partition, followed: Followed, run: Run) -> None:
        """Act on a claim that is not run yet. One that was cancelled meanwhile (a drain) is denied like a late one."""
        match before_running(followed.state, run.attempt, self._clock.now_ms()):
            case "run" if not run.cancelled.is_set():
                self._metrics.claims.labels("true").inc()
                self._metrics.claim_seconds.observe((self._clock.now_ms() - run.attempt.appended_ms) / 1000)
                self._tool_runs.start(partition, followed, run)
            case "run" | "never_ran":
                self._ends.record(partition, followed, run, NEVER_RAN)
            case "forget":
                self._metrics.claims.labels("false").inc()
                self._runs.forget(run)
            case _:
                pass

    def give_unread_back(self) -> None:
        """Deny the claims that were not read back until now. Nothing ran under them, and nobody else can say so."""
        for partition in self._owned.values():
            for followed in partition.threads.values():
                for run in self._runs.of(followed.key):
                    if not run.started:
                        self._ends.record(partition, followed, run, NEVER_RAN)

    # New claims

    def claim(self, partition: Partition, followed: Followed) -> None:
        """Claim the thread's dispatched calls, as far as there are slots; else the thread waits for one."""
        for call in followed.state.calls.values():
            is_own = is_own_claim(call, self._options.executor)
            if is_own and self._runs.find(followed.key, call.call, call.attempt) is None:
                self._deny_forgotten(partition, followed, call)
        for call in claimable(followed.state, self._options.pool):
            if self.stopping or self._runs.find(followed.key, call.call, call.attempt) is not None:
                continue
            if not self._slots.has_room(followed.key.tenant, call.tool):
                self._waiting.add(partition, followed)
                return
            # Remembered before the append: the claim may be read back before this process sees the acknowledgement.
            run = Run(followed.key, self._attempt(followed, call), call.tool)
            self._runs.add(run)
            self._runs.take_slot(run)
            if run.attempt.pure:
                self._tool_runs.start(partition, followed, run)
            else:
                self._append(partition, followed, run)

    def _deny_forgotten(self, partition: Partition, followed: Followed, call: Call) -> None:
        """Deny a claim of this very process that it does not remember; so nothing has run under it.

        Its append was reported as failed after the call was given up, and the log had stored it all the same.
        """
        log.warning("claim_denied", thread=str(followed.key), call=call.call, attempt=call.attempt)
        attempt = self._attempt(followed, call)
        run = Run(followed.key, replace(attempt, claim=call.claim or attempt.claim), call.tool)
        self._runs.add(run)
        self._ends.record(partition, followed, run, NEVER_RAN)

    def _attempt(self, followed: Followed, call: Call) -> Attempt:
        started = started_event(call.call, call.attempt, self._options)
        return Attempt(
            call=call.call,
            attempt=call.attempt,
            claim=derive_service_event(followed.key, started.kind, call.call, call.attempt, started.executor),
            pure=call.effect == "pure",
            appended_ms=self._clock.now_ms(),
            lease_ms=1000 * self._options.lease_seconds,
        )

    def _append(self, partition: Partition, followed: Followed, run: Run) -> None:
        started = started_event(run.attempt.call, run.attempt.attempt, self._options)
        offsets = self._appends.events(partition.number, followed.key, [started])
        offsets.add_done_callback(partial(self._appended, partition, followed, run))

    def _appended(
        self, partition: Partition, followed: Followed, run: Run, offsets: "asyncio.Future[tuple[int, ...]]"
    ) -> None:
        """Append a claim again that was not acknowledged.

        It may have been stored all the same. So the second append has the same id and keeps the lease of the first:
        whoever has seen the first counts from it.
        """
        if offsets.exception() is None or run.started:
            return
        self._metrics.append_failures.inc()
        retry_ms = self._clock.now_ms() + self._options.append_retry_ms
        self._timers.at(retry_ms, partial(self._append_again, partition, followed, run))

    def _append_again(self, partition: Partition, followed: Followed, run: Run) -> None:
        if run.started or self._runs.find(followed.key, run.attempt.call, run.attempt.attempt) is not run:
            return
        if partition.number in self._owned and not self.stopping:
            self._append(partition, followed, run)
        else:
            # Whoever finds the claim in the log would have to assume that the tool ran under it.
            self._ends.record(partition, followed, run, NEVER_RAN)
