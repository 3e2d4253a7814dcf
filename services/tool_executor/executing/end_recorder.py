"""Puts the end of each run into the log.

Nobody but this process knows how a run ended, so an end is appended again until the log acknowledges it, also after
its partition went to another executor. The ids of its events are derived from the attempt, so that a second append
counts as a duplicate. If the process dies first, the lease of the claim runs out and another executor declares the
call lost.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from schemas.events import Event, ToolCallStarted
from services.chassis.clock import Clock
from services.chassis.process.timers import Timers
from services.tool_executor.claiming.call_ends import end_events
from services.tool_executor.claiming.claim import is_settled
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.runs import Runs
from services.tool_executor.executing.work import Followed, Partition, Run
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.tools import ToolEnd

log = structlog.get_logger()

NEVER_RAN = ToolEnd("not_started", None)
"""The end of a claim under which nothing ran. Unless it is said, readers must assume that the tool may have run."""


def started_event(call: str, attempt: int, options: ExecutorOptions) -> ToolCallStarted:
    return ToolCallStarted(call=call, attempt=attempt, executor=options.executor, lease_seconds=options.lease_seconds)


class EndRecorder:
    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        appends: Appends,
        runs: Runs,
        owned: Mapping[int, Partition],
        options: ExecutorOptions,
        metrics: ExecutorMetrics,
    ) -> None:
        """`owned` is the executor's own view of its partitions, by number; it changes under way."""
        self._clock = clock
        self._timers = timers
        self._appends = appends
        self._runs = runs
        self._owned = owned
        self._options = options
        self._metrics = metrics

    def record(self, partition: Partition, followed: Followed, run: Run, end: ToolEnd) -> None:
        """Free the run's slot at once, and append the end until it is acknowledged."""
        run.started = run.ended = True
        self._runs.release_slot(run)
        self._metrics.ends.labels(end.outcome).inc()
        started = started_event(run.attempt.call, run.attempt.attempt, self._options)
        ended = end_events(run.attempt, started, end)
        if ended.changes_problem is not None:
            log.warning("file_changes_refused", thread=str(followed.key), error=ended.changes_problem)
        self._append(partition, followed, run, ended.events)

    def _append(self, partition: Partition, followed: Followed, run: Run, events: Sequence[Event]) -> None:
        offsets = self._appends.events(partition.number, followed.key, events)
        offsets.add_done_callback(partial(self._appended, partition, followed, run, events))

    def _appended(
        self,
        partition: Partition,
        followed: Followed,
        run: Run,
        events: Sequence[Event],
        offsets: "asyncio.Future[tuple[int, ...]]",
    ) -> None:
        error = offsets.exception()
        if error is None:
            run.recorded = True
            if self._is_no_longer_needed(partition, followed, run):
                self._runs.forget(run)
            return
        self._metrics.append_failures.inc()
        log.warning("end_not_appended", thread=str(followed.key), error=str(error))
        retry_ms = self._clock.now_ms() + self._options.append_retry_ms
        self._timers.at(retry_ms, partial(self._append, partition, followed, run, events))

    def _is_no_longer_needed(self, partition: Partition, followed: Followed, run: Run) -> bool:
        """Return whether no state that this process reads can still show the attempt as under way.

        The partition may have gone, or have gone and come back, since the run began: `followed` is then an old copy of
        the thread, and the copy of the present assignment decides.
        """
        owned = self._owned.get(partition.number)
        if partition.lost and owned is None:
            return True
        current = followed if owned is None else owned.threads.get(followed.key, followed)
        return is_settled(current.state, run.attempt)
