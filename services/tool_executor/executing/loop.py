"""The executor's loop: sees dispatched calls, claims them, runs them, says how they ended.

What a state asks of this executor is asked in `claim`, on the confirmed state alone: this service decides nothing
ahead. After each batch every touched thread is looked at once: attempts under way first, then claims of others, whose
leases it watches, then calls to claim, then unknown ones to ask about (`asking`). It never waits for a tool: beyond its
limits a call stays dispatched.

Attempts belong to the process, not to its partitions: one that runs while its partition goes and comes back is known as
such, and never claimed, denied or run a second time. It is forgotten only once its end has been acknowledged.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import structlog

from schemas.events import Event, ToolCallLost, ToolCallStarted
from schemas.ids import ThreadKey, derive_service_event, idempotency_key
from schemas.other_topics.progress import Heartbeat, Progress, Quarantine, ToolOutput
from schemas.state import Call, ThreadState, is_active
from schemas.thread import Verdict
from schemas.topics import THREAD_EVENTS
from services.chassis.clock import Clock
from services.chassis.log.port import Log, LogUnavailableError
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.timers import Timers
from services.chassis.storable import storable_text
from services.chassis.text_batch import TextBatch
from services.tool_executor.claiming.call_ends import end_events
from services.tool_executor.claiming.claim import (
    Attempt,
    before_running,
    claimable,
    claimed_by_others,
    environment,
    is_own_claim,
    is_settled,
    while_running,
)
from services.tool_executor.claiming.reconcile import ReconcileLimits
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.concurrency import CallSlots
from services.tool_executor.executing.leases import Leases
from services.tool_executor.executing.orphaned_calls import read_on
from services.tool_executor.executing.reconciling import Reconciling, ReconcilingOptions
from services.tool_executor.executing.work import Held, Partition, Run, RunName, Work
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.hooks import ReconcileHook
from services.tool_executor.tools import ToolEnd, ToolRequest, ToolRunner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    instance: str
    incarnation: str
    pool: str
    lease_seconds: int
    calls_max: int
    calls_per_tenant_max: int
    calls_per_tool_max: int
    append_retry_ms: int
    output_interval_ms: int
    topic: str = THREAD_EVENTS.name
    """Whose threads it follows."""
    reconcile: ReconcileLimits = field(default_factory=ReconcileLimits)
    reconcile_answer_seconds: float = 30.0
    reconciles_max: int = 8

    @property
    def executor(self) -> str:
        return f"{self.instance}/{self.incarnation}"


class Executor:
    """A `Follower` of the fold loop."""

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
        """`hooks`: by the names of the tools about whose calls they are asked."""
        self._log = log_
        self._clock = clock
        self._timers = timers
        self._leases = leases
        self._tools = tools
        self._spawn = spawn
        self._options = options
        self._metrics = metrics
        self._appends = Appends(log_, clock, options.instance)
        self._slots = CallSlots(
            options.calls_max, options.calls_per_tenant_max, options.calls_per_tool_max, metrics.running
        )
        self._stopping = False
        self._runs: dict[ThreadKey, dict[RunName, Run]] = {}
        self._owned: dict[int, Partition] = {}
        """Partitions that this process acts for."""
        self._followed: set[ThreadKey] = set()
        """Threads of lost partitions that are read on for their runs."""
        self._waiting: dict[Held, Partition] = {}
        self._waiting_shown = 0
        self._reconciling = Reconciling(
            clock=clock,
            timers=timers,
            appends=self._appends,
            hooks=hooks,
            spawn=spawn,
            is_busy=self._is_under_way,
            look_again=self._look_at,
            options=ReconcilingOptions(
                pool=options.pool,
                limits=options.reconcile,
                answer_seconds=options.reconcile_answer_seconds,
                asked_at_once_max=options.reconciles_max,
                append_retry_ms=options.append_retry_ms,
            ),
            metrics=metrics,
        )
        self._is_offering = False

    # Follower

    def new_work(self) -> Work:
        return Work()

    def on_record(self, held: Held, before: ThreadState, record: object, verdict: Verdict) -> None:
        """Everything is read off the state after the batch."""

    def on_batch(self, partition: Partition, touched: Iterable[Held]) -> None:
        for held in touched:
            self._look_at(partition, held)

    def on_ready(self, partition: Partition) -> None:
        self._owned[partition.number] = partition
        for held in list(partition.threads.values()):
            if is_active(held.state):
                self._look_at(partition, held)

    def on_lost(self, partition: Partition) -> None:
        """What runs goes on, and the partition is read on for its sake, outside the group."""
        self._owned.pop(partition.number, None)
        strays = {}
        for held in partition.threads.values():
            self._unwatch_all(held)
            self._waiting.pop(held, None)
            if held.key in self._runs and held.key not in self._followed:
                strays[held.key] = held
        if strays:
            self._followed.update(strays)
            self._spawn(self._follow_strays(partition, strays), f"strays of partition {partition.number}")

    def on_quarantined(self, partition: Partition, held: Held, error: Exception) -> None:
        log.error(
            "thread_quarantined",
            thread=str(held.key),
            partition=partition.number,
            seq=held.state.seq,
            reason=held.quarantined,
            exc_info=error,
        )

    def report_quarantined(self, partition: Partition, held: Held, seconds: float) -> None:
        report = Quarantine(
            reason=storable_text(held.quarantined or ""),
            by=f"tool-executor/{self._options.instance}",
            since_ms=self._clock.now_ms() - int(1000 * seconds),
        )
        self._progress(partition, held, report)

    def on_refold(self, held: Held) -> None:
        """Its runs go on: they are known by their thread, not by what is held of it."""
        self._unwatch_all(held)
        self._waiting.pop(held, None)

    def may_evict(self, held: Held) -> bool:
        return held.key not in self._runs and not held.work.watched

    # One thread

    def _look_at(self, partition: Partition, held: Held) -> None:
        """What fails for one thread sets that one aside."""
        if held.quarantined is not None:
            return
        try:
            self._tend_runs(partition, held)
            if not partition.lost:
                self._watch_others(partition, held)
                self._claim_calls(partition, held)
                self._reconciling.look_at(partition, held)
        except Exception as error:  # noqa: BLE001  # the edge of the loop: one thread's failure must not stop its partition
            partition.set_aside(held, error)
            self.on_quarantined(partition, held, error)

    def _tend_runs(self, partition: Partition, held: Held) -> None:
        for run in list(self._runs.get(held.key, {}).values()):
            if run.ended:
                if run.recorded and is_settled(held.state, run.attempt):
                    self._forget(held, run)
            elif run.started:
                if while_running(held.state, run.attempt) == "stop":
                    run.cancelled.set()
            else:
                self._tend_claim(partition, held, run)

    def _tend_claim(self, partition: Partition, held: Held, run: Run) -> None:
        match before_running(held.state, run.attempt, self._clock.now_ms()):
            case "run" if not run.cancelled.is_set():
                self._metrics.claims.labels("true").inc()
                self._metrics.claim_seconds.observe((self._clock.now_ms() - run.attempt.appended_ms) / 1000)
                self._start(partition, held, run)
            case "run" | "never_ran":
                self._finish(partition, held, run, ToolEnd("not_started", None))
            case "forget":
                self._metrics.claims.labels("false").inc()
                self._forget(held, run)
            case _:
                pass

    def _claim_calls(self, partition: Partition, held: Held) -> None:
        runs = self._runs.get(held.key, {})
        for call in held.state.calls.values():
            if is_own_claim(call, self._options.executor) and (call.call, call.attempt) not in runs:
                self._deny_forgotten_claim(partition, held, call)
        for call in claimable(held.state, self._options.pool):
            if (call.call, call.attempt) in runs or self._stopping:
                continue
            if not self._slots.has_room(held.key.tenant, call.tool):
                self._waiting[held] = partition
                self._show_waiting()
                return
            self._claim(partition, held, call)

    def _deny_forgotten_claim(self, partition: Partition, held: Held, call: Call) -> None:
        """A claim of this very process that it does not know: nothing has run under it."""
        log.warning("claim_denied", thread=str(held.key), call=call.call, attempt=call.attempt)
        attempt = self._attempt(held, call)
        run = Run(replace(attempt, claim=call.claim or attempt.claim), call.tool)
        self._remember(held, run)
        self._finish(partition, held, run, ToolEnd("not_started", None))

    def _is_under_way(self, key: ThreadKey, call: str) -> bool:
        """Whether an attempt of the call has begun here whose end is not in the log."""
        return any(name == call and not run.recorded for (name, _), run in self._runs.get(key, {}).items())

    def _remember(self, held: Held, run: Run) -> None:
        self._runs.setdefault(held.key, {})[run.attempt.call, run.attempt.attempt] = run

    def _forget(self, held: Held, run: Run) -> None:
        self._release(held, run)
        runs = self._runs.get(held.key, {})
        runs.pop((run.attempt.call, run.attempt.attempt), None)
        if not runs:
            self._runs.pop(held.key, None)

    def _claim(self, partition: Partition, held: Held, call: Call) -> None:
        run = Run(self._attempt(held, call), call.tool)
        self._remember(held, run)
        self._take(held, run)
        if run.attempt.pure:
            self._start(partition, held, run)
        else:
            self._append_claim(partition, held, run)

    def _attempt(self, held: Held, call: Call) -> Attempt:
        started = self._started_event(call.call, call.attempt)
        return Attempt(
            call=call.call,
            attempt=call.attempt,
            claim=derive_service_event(held.key, started.kind, call.call, call.attempt, started.executor),
            pure=call.effect == "pure",
            appended_ms=self._clock.now_ms(),
            lease_ms=1000 * self._options.lease_seconds,
        )

    def _started_event(self, call: str, attempt: int) -> ToolCallStarted:
        return ToolCallStarted(
            call=call, attempt=attempt, executor=self._options.executor, lease_seconds=self._options.lease_seconds
        )

    def _append_claim(self, partition: Partition, held: Held, run: Run) -> None:
        started = self._started_event(run.attempt.call, run.attempt.attempt)
        offsets = self._append(partition, held, [started])
        offsets.add_done_callback(partial(self._claim_appended, partition, held, run))

    def _claim_appended(
        self, partition: Partition, held: Held, run: Run, offsets: "asyncio.Future[tuple[int, ...]]"
    ) -> None:
        """A claim that failed may have been stored all the same. The second try has the same id, and the lease of the
        first: whoever saw that one counts from it.
        """
        if offsets.exception() is None or run.started:
            return
        self._metrics.append_failures.inc()
        retry_ms = self._clock.now_ms() + self._options.append_retry_ms
        self._timers.at(retry_ms, partial(self._claim_again, partition, held, run))

    def _claim_again(self, partition: Partition, held: Held, run: Run) -> None:
        if run.started or self._runs.get(held.key, {}).get((run.attempt.call, run.attempt.attempt)) is not run:
            return
        if partition.number in self._owned and not self._stopping:
            self._append_claim(partition, held, run)
        else:
            # Whoever finds it in the log would have to take it for one that ran.
            self._finish(partition, held, run, ToolEnd("not_started", None))

    # Running

    def _start(self, partition: Partition, held: Held, run: Run) -> None:
        call = held.state.calls[run.attempt.call]
        run.started = True
        request = ToolRequest(
            tenant=held.key.tenant,
            thread=held.key.thread,
            call=call.call,
            attempt=call.attempt,
            tool=call.tool,
            args=call.args,
            idempotency_key=idempotency_key(held.key, call.call),
            timeout_seconds=call.timeout_ms / 1000,
            environment=environment(held.state.turn),
            skills=held.state.skills,
        )
        if not run.attempt.pure:
            self._beat_later(partition, held, run)
        self._spawn(self._run(partition, held, run, request), f"tool {call.tool} {held.key} {call.call}")

    async def _run(self, partition: Partition, held: Held, run: Run, request: ToolRequest) -> None:
        output = TextBatch(partial(self._emit_output, partition, held, run), self._options.output_interval_ms)
        end = await self._tools.run(request, output.add, run.cancelled)
        output.flush()
        self._metrics.tool_seconds.observe(end.seconds)
        self._finish(partition, held, run, end)

    def _emit_output(self, partition: Partition, held: Held, run: Run, text: str) -> None:
        attempt = run.attempt
        output = ToolOutput(call=attempt.call, attempt=attempt.attempt, text=storable_text(text))
        self._progress(partition, held, output)

    def _beat_later(self, partition: Partition, held: Held, run: Run) -> None:
        at_ms = self._clock.now_ms() + 1000 * self._options.lease_seconds // 3
        self._timers.at(at_ms, partial(self._beat, partition, held, run))

    def _beat(self, partition: Partition, held: Held, run: Run) -> None:
        if run.ended:
            return
        attempt = run.attempt
        self._progress(partition, held, Heartbeat(call=attempt.call, attempt=attempt.attempt, claim=attempt.claim))
        self._beat_later(partition, held, run)

    def _finish(self, partition: Partition, held: Held, run: Run, end: ToolEnd) -> None:
        run.started = run.ended = True
        self._release(held, run)
        self._metrics.ends.labels(end.outcome).inc()
        started = self._started_event(run.attempt.call, run.attempt.attempt)
        events = end_events(run.attempt, started, end)
        self._append_surely(partition, held, run, events)

    def _append_surely(self, partition: Partition, held: Held, run: Run, events: list[Event]) -> None:
        """An end is appended until it is acknowledged: nobody else can say it. The ids make a repetition harmless."""
        offsets = self._append(partition, held, events)
        offsets.add_done_callback(partial(self._end_appended, partition, held, run, events))

    def _end_appended(
        self,
        partition: Partition,
        held: Held,
        run: Run,
        events: list[Event],
        offsets: "asyncio.Future[tuple[int, ...]]",
    ) -> None:
        error = offsets.exception()
        if error is None:
            run.recorded = True
            owned = self._owned.get(partition.number)
            is_given_away = partition.lost and owned is None
            now = held if owned is None else owned.threads.get(held.key, held)
            if is_given_away or is_settled(now.state, run.attempt):
                self._forget(held, run)
            return
        self._metrics.append_failures.inc()
        log.warning("end_not_appended", thread=str(held.key), error=str(error))
        retry_ms = self._clock.now_ms() + self._options.append_retry_ms
        self._timers.at(retry_ms, partial(self._append_surely, partition, held, run, events))

    def _append(self, partition: Partition, held: Held, events: list[Event]) -> "asyncio.Future[tuple[int, ...]]":
        return self._appends.events(partition.number, held.key, events)

    def _progress(self, partition: Partition, held: Held, progress: Progress) -> None:
        self._appends.progress(partition.number, held.key, progress)

    # Limits

    def _take(self, held: Held, run: Run) -> None:
        run.counted = True
        self._slots.take(held.key.tenant, run.tool)

    def _release(self, held: Held, run: Run) -> None:
        if not run.counted:
            return
        run.counted = False
        self._slots.release(held.key.tenant, run.tool)
        if self._waiting and not self._is_offering:
            self._is_offering = True
            asyncio.get_running_loop().call_soon(self._offer_room)

    def _offer_room(self) -> None:
        """To each that waits, in order. Who still finds none goes to the end."""
        self._is_offering = False
        for _ in range(len(self._waiting)):
            if self._slots.are_full():
                break
            held = next(iter(self._waiting))
            self._look_at(self._waiting.pop(held), held)
        self._show_waiting()

    def _show_waiting(self) -> None:
        """Of this executor beside those of others in the process."""
        self._metrics.waiting.inc(len(self._waiting) - self._waiting_shown)
        self._waiting_shown = len(self._waiting)

    # Claims of others

    def _watch_others(self, partition: Partition, held: Held) -> None:
        others = {call.call: call for call in claimed_by_others(held.state, self._options.pool, self._options.executor)}
        for name, claim in list(held.work.watched.items()):
            if name not in others or others[name].claim != claim:
                self._leases.unwatch(held.key, claim)
                del held.work.watched[name]
        for name, call in others.items():
            if name in held.work.watched or call.claim is None:
                continue
            held.work.watched[name] = call.claim
            lease_ms = 1000 * (call.lease_seconds or self._options.lease_seconds)
            give_up = partial(self._claim_lost, partition, held, call)
            self._leases.watch(held.key, call.claim, partition.number, lease_ms, give_up)

    def _claim_lost(self, partition: Partition, held: Held, call: Call) -> None:
        self._metrics.lost.inc()
        evidence = f"{call.executor} showed no heartbeat for its lease of {call.lease_seconds} s"
        lost = ToolCallLost(call=call.call, attempt=call.attempt, claim=call.claim, evidence=evidence)
        self._append(partition, held, [lost])

    def _unwatch_all(self, held: Held) -> None:
        for claim in held.work.watched.values():
            self._leases.unwatch(held.key, claim)
        held.work.watched.clear()

    # Leaving

    async def _follow_strays(self, partition: Partition, strays: dict[ThreadKey, Held]) -> None:
        """It claims nothing, and ends when their ends are recorded or the partition comes back."""

        def are_wanted() -> bool:
            return partition.number not in self._owned and any(key in self._runs for key in strays)

        try:
            while are_wanted():
                try:
                    await read_on(self._log, self._options.topic, partition, strays, are_wanted, self._look_at)
                except LogUnavailableError as error:
                    log.warning("strays_not_read", partition=partition.number, error=str(error))
                    await asyncio.sleep(self._options.append_retry_ms / 1000)
        finally:
            self._followed.difference_update(strays)

    async def drain(self, seconds: float, kill_seconds: float) -> None:
        """Claim nothing more and wait for what runs; what still runs then is killed."""
        self._stopping = True
        try:
            async with asyncio.timeout(seconds):
                await self._slots.idle.wait()
        except TimeoutError:
            self._give_unread_claims_back()
            for runs in self._runs.values():
                for run in runs.values():
                    run.cancelled.set()
            try:
                async with asyncio.timeout(kill_seconds):
                    await self._slots.idle.wait()
            except TimeoutError:
                log.warning("calls_left_running", calls=self._slots.taken)

    def _give_unread_claims_back(self) -> None:
        """Nothing ran under them, and nobody else can say so."""
        for partition in self._owned.values():
            for held in partition.threads.values():
                for run in list(self._runs.get(held.key, {}).values()):
                    if not run.started:
                        self._finish(partition, held, run, ToolEnd("not_started", None))
