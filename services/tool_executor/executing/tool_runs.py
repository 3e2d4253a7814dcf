"""Runs the tool of one attempt, with its heartbeats and its live output.

Heartbeats keep a claim alive: other executors take a call for lost after a lease without one. A pure call has no
heartbeats, because its claim is appended together with its end, so that there is no lease to keep.
"""

from functools import partial
from typing import Final

from schemas.ids import idempotency_key
from schemas.other_topics.progress import Heartbeat, ToolOutput
from services.chassis.clock import Clock
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.timers import Timers
from services.chassis.sanitize import sanitize_text
from services.chassis.text_batch import TextBatch
from services.tool_executor.claiming.claim import environment
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.end_recorder import EndRecorder
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.work import Followed, Partition, Run
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.tools import ToolRequest, ToolRunner

HEARTBEATS_PER_LEASE: Final = 3
"""Progress records may be dropped; with three, a single lost or late heartbeat does not cost the claim."""


class ToolRuns:
    """Starts tools. Their tasks belong to the process: they run on when the partition is lost or refolded."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        appends: Appends,
        ends: EndRecorder,
        tools: ToolRunner,
        spawn: Spawn,
        options: ExecutorOptions,
        metrics: ExecutorMetrics,
    ) -> None:
        self.tools = tools
        self._clock = clock
        self._timers = timers
        self._appends = appends
        self._ends = ends
        self._spawn = spawn
        self._options = options
        self._metrics = metrics

    def start(self, partition: Partition, followed: Followed, run: Run) -> None:
        """Start the tool in a task of its own; its end is recorded there."""
        call = followed.state.calls[run.attempt.call]
        # Marked before the task begins: the next look at this thread must not start it a second time.
        run.started = True
        request = ToolRequest(
            tenant=followed.key.tenant,
            thread=followed.key.thread,
            call=call.call,
            attempt=call.attempt,
            tool=call.tool,
            args=call.args,
            idempotency_key=idempotency_key(followed.key, call.call),
            timeout_seconds=call.timeout_ms / 1000,
            environment=environment(followed.state.turn),
            skills=followed.state.skills,
        )
        if not run.attempt.pure:
            self._beat_later(partition, followed, run)
        self._spawn(self._run(partition, followed, run, request), f"tool {call.tool} {followed.key} {call.call}")

    async def _run(self, partition: Partition, followed: Followed, run: Run, request: ToolRequest) -> None:
        output = TextBatch(partial(self._emit_output, partition, followed, run), self._options.output_interval_ms)
        end = await self.tools.run(request, output.add, run.cancelled)
        # Live output goes out before the end, so that watchers see the two in order.
        output.flush()
        self._metrics.tool_seconds.observe(end.seconds)
        self._ends.record(partition, followed, run, end)

    def _emit_output(self, partition: Partition, followed: Followed, run: Run, text: str) -> None:
        output = ToolOutput(call=run.attempt.call, attempt=run.attempt.attempt, text=sanitize_text(text))
        self._appends.progress(partition.number, followed.key, output)

    def _beat_later(self, partition: Partition, followed: Followed, run: Run) -> None:
        at_ms = self._clock.now_ms() + 1000 * self._options.lease_seconds // HEARTBEATS_PER_LEASE
        self._timers.at(at_ms, partial(self._beat, partition, followed, run))

    def _beat(self, partition: Partition, followed: Followed, run: Run) -> None:
        if run.ended:
            return
        attempt = run.attempt
        heartbeat = Heartbeat(call=attempt.call, attempt=attempt.attempt, claim=attempt.claim)
        self._appends.progress(partition.number, followed.key, heartbeat)
        self._beat_later(partition, followed, run)
