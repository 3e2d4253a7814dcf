"""Asking the downstreams of unknown `reconcilable` calls, and appending what they say.

`look_at` reads off the state what is to be asked; hooks and timers only have it called again. What is asked belongs to
the thread as this assignment of its partition holds it: when the partition goes, answers under way are dropped, and
the new owner asks from the start. Two that ask at once append the same event, and the first one counts.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from schemas.events import ToolCallResolved
from schemas.ids import ThreadKey, idempotency_key
from schemas.state import Call
from services.chassis.clock import Clock
from services.chassis.process.timers import Timers
from services.tool_executor.claiming.reconcile import (
    Answer,
    AskAgain,
    LeaveToPeople,
    ReconcileLimits,
    answer_of,
    next_step,
    unknown_reconcilable,
)
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.work import Asked, Held, Partition
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.hooks import HookFailedError, Question, ReconcileHook

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReconcilingOptions:
    pool: str
    limits: ReconcileLimits = field(default_factory=ReconcileLimits)
    answer_seconds: float = 30.0
    asked_at_once_max: int = 8
    append_retry_ms: int = 1_000


class Reconciling:
    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        appends: Appends,
        hooks: Mapping[str, ReconcileHook],
        spawn: Callable[[Coroutine[None, None, None], str], object],
        is_busy: Callable[[ThreadKey, str], bool],
        look_again: Callable[[Partition, Held], None],
        options: ReconcilingOptions,
        metrics: ExecutorMetrics,
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._appends = appends
        self._hooks = hooks
        self._spawn = spawn
        self._is_busy = is_busy
        self._look_again = look_again
        self._options = options
        self._metrics = metrics
        self._slots = asyncio.Semaphore(options.asked_at_once_max)

    def look_at(self, partition: Partition, held: Held) -> None:
        by_call = held.work.asked
        unknown = {call.call: call for call in unknown_reconcilable(held.state, self._options.pool)}
        for name, asked in list(by_call.items()):
            if name not in unknown or unknown[name].attempt != asked.attempt:
                del by_call[name]
        for name, call in unknown.items():
            if name not in by_call:
                by_call[name] = Asked(call.attempt, self._clock.now_ms())
            self._go_on(partition, held, call, by_call[name])

    def _go_on(self, partition: Partition, held: Held, call: Call, asked: Asked) -> None:
        now_ms = self._clock.now_ms()
        if asked.answer is not None:
            self._use(partition, held, call, asked, now_ms)
        elif asked.resolved_at is not None and held.state.offset >= asked.resolved_at:
            asked.resolved_at, asked.next_ms = None, now_ms
        if asked.next_ms is None or now_ms < asked.next_ms:
            return
        if self._is_busy(held.key, call.call):
            self._later(partition, held, asked, now_ms + self._options.append_retry_ms)
            return
        asked.next_ms = None
        hook = self._hooks.get(call.tool)
        if hook is None:
            self._leave(held, call, "no reconcile hook is declared for it here")
        else:
            self._spawn(self._ask(partition, held, call, asked, hook), f"reconcile {held.key} {call.call}")

    def _leave(self, held: Held, call: Call, note: str) -> None:
        self._metrics.left_to_people.inc()
        log.warning("call_left_to_people", thread=str(held.key), call=call.call, tool=call.tool, note=note)

    def _later(self, partition: Partition, held: Held, asked: Asked, at_ms: int) -> None:
        asked.next_ms = at_ms
        self._timers.at(at_ms, partial(self._look, partition, held))

    def _look(self, partition: Partition, held: Held) -> None:
        if not partition.lost:
            self._look_again(partition, held)

    # The answer

    async def _ask(self, partition: Partition, held: Held, call: Call, asked: Asked, hook: ReconcileHook) -> None:
        async with self._slots:
            if partition.lost or held.work.asked.get(call.call) is not asked:
                return  # while it waited for its place somebody settled it, or another executor has it now
            asked.asked_ms = self._clock.now_ms()
            asked.answer = await self._answer(hook, held.key, call)
        self._look(partition, held)

    async def _answer(self, hook: ReconcileHook, key: ThreadKey, call: Call) -> Answer:
        seconds = self._options.answer_seconds
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
            log.exception("reconcile_hook_raised", thread=str(key), call=call.call, tool=call.tool)
            return Answer("unknown", note=f"{type(error).__name__}: {error}")

    def _use(self, partition: Partition, held: Held, call: Call, asked: Asked, now_ms: int) -> None:
        answer, asked.answer = asked.answer, None
        assert answer is not None
        asked.asked += 1
        self._metrics.reconciled.labels(answer.status).inc()
        log.info(
            "downstream_asked",
            thread=str(held.key),
            call=call.call,
            tool=call.tool,
            status=answer.status,
            note=answer.note,
            asked=asked.asked,
        )
        step = next_step(
            held.state, call, answer, asked.asked_ms, now_ms, asked.asked, asked.tries, self._options.limits
        )
        match step:
            case AskAgain(at_ms=at_ms, is_try=is_try):
                asked.tries += is_try
                self._later(partition, held, asked, at_ms)
            case LeaveToPeople(note=note):
                self._leave(held, call, note)
            case ToolCallResolved():
                self._resolve(partition, held, asked, step)

    def _resolve(self, partition: Partition, held: Held, asked: Asked, resolved: ToolCallResolved) -> None:
        offsets = self._appends.events(partition.number, held.key, [resolved])
        offsets.add_done_callback(partial(self._resolved, partition, held, asked))

    def _resolved(
        self,
        partition: Partition,
        held: Held,
        asked: Asked,
        offsets: "asyncio.Future[tuple[int, ...]]",
    ) -> None:
        """One that could not be appended may be in the log all the same: then the call is not unknown when the time
        comes to ask again.
        """
        if offsets.cancelled() or offsets.exception() is not None:
            self._metrics.append_failures.inc()
            self._later(partition, held, asked, self._clock.now_ms() + self._options.append_retry_ms)
        else:
            asked.resolved_at = offsets.result()[-1]
            self._look(partition, held)
