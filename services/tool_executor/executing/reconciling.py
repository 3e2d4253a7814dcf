"""Asks the downstreams of unknown `reconcilable` calls, and appends what they say.

`look_at` reads off the state which calls are to be asked about; `claiming.reconcile` decides what an answer means.
Answers, appends and timers only record what they learnt and have the thread looked at again, so that every decision is
made on the newest state.

What has been asked belongs to the thread under this assignment of its partition. When the partition goes, answers that
are under way are dropped, and the new owner asks from the start: hooks only read, so asking twice does no harm. Two
executors that ask at once append the same event, and the first counts.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from schemas.events import ToolCallResolved
from schemas.ids import ThreadKey, idempotency_key
from schemas.state import Call
from services.chassis.clock import Clock
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.timers import Timers
from services.tool_executor.claiming.reconcile import (
    Answer,
    AskAgain,
    LeaveToPeople,
    answer_of,
    next_step,
    unknown_reconcilable,
)
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.runs import Runs
from services.tool_executor.executing.work import Followed, Partition, Reconciliation
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.hooks import HookFailedError, Question, ReconcileHook

log = structlog.get_logger()


class Reconciling:
    """Takes unknown reconcilable calls to an answer, step by step."""

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        appends: Appends,
        runs: Runs,
        hooks: Mapping[str, ReconcileHook],
        spawn: Spawn,
        look_again: Callable[[Partition, Followed], None],
        options: ExecutorOptions,
        metrics: ExecutorMetrics,
    ) -> None:
        self.hooks = hooks
        self.slots = asyncio.Semaphore(options.reconciles_max)
        """How many hooks may run at once."""
        self._clock = clock
        self._timers = timers
        self._appends = appends
        self._runs = runs
        self._spawn = spawn
        self._look_again = look_again
        self._options = options
        self._metrics = metrics

    def look_at(self, partition: Partition, followed: Followed) -> None:
        """Take every unknown reconcilable call of the thread one step further, and forget those that are settled."""
        by_call = followed.work.reconciliations
        unknown = {call.call: call for call in unknown_reconcilable(followed.state, self._options.pool)}
        for name, reconciliation in list(by_call.items()):
            if name not in unknown or unknown[name].attempt != reconciliation.attempt:
                del by_call[name]
        for name, call in unknown.items():
            if name not in by_call:
                by_call[name] = Reconciliation(call.attempt, self._clock.now_ms())
            self._advance(partition, followed, call, by_call[name])

    def _advance(self, partition: Partition, followed: Followed, call: Call, reconciliation: Reconciliation) -> None:
        """Use an answer that has arrived, or ask if it is time; else wait for a timer, an answer or an append."""
        now_ms = self._clock.now_ms()
        if reconciliation.answer is not None:
            self._use_answer(partition, followed, call, reconciliation, now_ms)
        elif reconciliation.resolved_at is not None and followed.state.offset >= reconciliation.resolved_at:
            # The resolution has been read back and the call is still unknown: it took no effect.
            reconciliation.resolved_at, reconciliation.next_ms = None, now_ms
        if reconciliation.next_ms is None or now_ms < reconciliation.next_ms:
            return
        if self._runs.is_under_way(followed.key, call.call):
            # It runs in this very process, whose heartbeats got lost: its end will say more than any downstream.
            self._ask_later(partition, followed, reconciliation, now_ms + self._options.append_retry_ms)
            return
        reconciliation.next_ms = None
        hook = self.hooks.get(call.tool)
        if hook is None:
            self._leave_to_people(followed, call, "no reconcile hook is declared for it here")
        else:
            asking = self._ask(partition, followed, call, reconciliation, hook)
            self._spawn(asking, f"reconcile {followed.key} {call.call}")

    def _leave_to_people(self, followed: Followed, call: Call, note: str) -> None:
        """Ask no more. The call stays unknown until a person resolves it; an alert calls for one."""
        self._metrics.left_to_people.inc()
        log.warning("call_left_to_people", thread=str(followed.key), call=call.call, tool=call.tool, note=note)

    def _ask_later(self, partition: Partition, followed: Followed, reconciliation: Reconciliation, at_ms: int) -> None:
        reconciliation.next_ms = at_ms
        self._timers.at(at_ms, partial(self._revisit, partition, followed))

    def _revisit(self, partition: Partition, followed: Followed) -> None:
        """Have the thread looked at again, unless its partition has gone: the new owner asks for itself."""
        if not partition.lost:
            self._look_again(partition, followed)

    # The answer

    async def _ask(
        self, partition: Partition, followed: Followed, call: Call, reconciliation: Reconciliation, hook: ReconcileHook
    ) -> None:
        async with self.slots:
            if partition.lost or followed.work.reconciliations.get(call.call) is not reconciliation:
                return  # while it waited for its slot, the call was settled or went to another executor
            reconciliation.asked_ms = self._clock.now_ms()
            reconciliation.answer = await self._answer(hook, followed.key, call)
        self._revisit(partition, followed)

    async def _answer(self, hook: ReconcileHook, key: ThreadKey, call: Call) -> Answer:
        """Return the hook's answer. A hook that fails or takes too long gives an inconclusive one, with the reason."""
        seconds = self._options.reconcile_answer_seconds
        question = Question(
            tenant=key.tenant,
            thread=key.thread,
            call=call.call,
            attempt=call.attempt,
            idempotency_key=idempotency_key(key, call.call),
            timeout_seconds=seconds,
        )
        try:
            async with asyncio.timeout(seconds):
                return answer_of(await hook.ask(question))
        except TimeoutError:
            return Answer("unknown", note=f"no answer within {seconds:g} s")
        except HookFailedError as error:
            return Answer("unknown", note=str(error))
        except Exception as error:  # the edge of the hooks: a bug in one says nothing about the call
            log.exception("reconcile_hook_failed", thread=str(key), call=call.call, tool=call.tool)
            return Answer("unknown", note=f"{type(error).__name__}: {error}")

    def _use_answer(
        self, partition: Partition, followed: Followed, call: Call, reconciliation: Reconciliation, now_ms: int
    ) -> None:
        answer, reconciliation.answer = reconciliation.answer, None
        assert answer is not None
        reconciliation.asked += 1
        self._metrics.reconciled.labels(answer.status).inc()
        log.info(
            "downstream_asked",
            thread=str(followed.key),
            call=call.call,
            tool=call.tool,
            status=answer.status,
            note=answer.note,
            asked=reconciliation.asked,
        )
        step = next_step(
            followed.state,
            call,
            answer,
            reconciliation.asked_ms,
            now_ms,
            reconciliation.asked,
            reconciliation.tries,
            self._options.reconcile,
        )
        match step:
            case AskAgain(at_ms=at_ms, is_try=is_try):
                reconciliation.tries += is_try
                self._ask_later(partition, followed, reconciliation, at_ms)
            case LeaveToPeople(note=note):
                self._leave_to_people(followed, call, note)
            case ToolCallResolved():
                offsets = self._appends.events(partition.number, followed.key, [step])
                offsets.add_done_callback(partial(self._resolution_appended, partition, followed, reconciliation))

    def _resolution_appended(
        self,
        partition: Partition,
        followed: Followed,
        reconciliation: Reconciliation,
        offsets: "asyncio.Future[tuple[int, ...]]",
    ) -> None:
        """Wait for the resolution to be read back; ask again later if it was not acknowledged.

        A resolution that was not acknowledged may be in the log all the same. Then the call is no longer unknown when
        the time comes, and nothing is asked.
        """
        if offsets.cancelled() or offsets.exception() is not None:
            self._metrics.append_failures.inc()
            self._ask_later(partition, followed, reconciliation, self._clock.now_ms() + self._options.append_retry_ms)
        else:
            reconciliation.resolved_at = offsets.result()[-1]
            self._revisit(partition, followed)
