"""Model calls: the request, the call itself within its limits, and the event that its answer or failure becomes.

The loop starts a call as a task of its own and keeps what it answers in `Work.calling`. By the time of the answer that
may be gone or another: the turn was cancelled, or a record showed that another owner took the step. Such an answer is
dropped. One that is wanted still has to fit the thread when it is appended; the fold decides between two owners.

If this process dies during a call, the step stays open in the log, and the next owner asks the model once more. If it
stops in order, it says so (`hand_over`), and that try does not count as a failure of the model.
"""

import structlog

from schemas.canonical import canonical_json
from schemas.errors import LimitError, ThreadlogError
from schemas.events import StepFailed, StepFinished
from schemas.other_topics.progress import Delta as DeltaProgress
from services.chassis.catalog.reader import CatalogReader
from services.chassis.clock import Clock
from services.chassis.sanitize import sanitize_text
from services.chassis.text_batch import TextBatch
from services.runtime.deciding import compaction, skills
from services.runtime.deciding.calls import offered_tools
from services.runtime.deciding.context import Window
from services.runtime.deciding.decisions import Append, Calling, Summarising
from services.runtime.deciding.limits import narrowed, retry_delay_ms
from services.runtime.deciding.step_outcomes import step_failed, step_finished, step_handed_over
from services.runtime.metrics import RuntimeMetrics
from services.runtime.models.port import (
    Delta,
    EmitDelta,
    Model,
    ModelAnswer,
    ModelFailure,
    ModelRequest,
)
from services.runtime.models.scheduling import ModelSlots
from services.runtime.outcomes import Proceed
from services.runtime.progress import ProgressSender
from services.runtime.thread_work import Followed, Partition, RuntimeIdentity, RuntimeOptions, Work

log = structlog.get_logger()


class ModelCalls:
    """Asks models for the threads of one runtime. All that it remembers of a call is in the thread's `Work`."""

    def __init__(
        self,
        *,
        clock: Clock,
        catalog: CatalogReader,
        model: Model,
        slots: ModelSlots,
        progress: ProgressSender,
        identity: RuntimeIdentity,
        options: RuntimeOptions,
        metrics: RuntimeMetrics,
    ) -> None:
        self._clock = clock
        self._catalog = catalog
        self._model = model
        self._slots = slots
        self._progress = progress
        self._identity = identity
        self._options = options
        self._metrics = metrics

    def request(self, followed: Followed, calling: Calling | Summarising, shown: Window) -> ModelRequest | None:
        """Return what the model is asked with this context; None if the thread has no configuration."""
        state = followed.work.ahead.latest(followed.state)
        config = state.config if state.turn is None else state.turn.config
        if config is None:
            return None
        tools = list(offered_tools(self._catalog.catalog, config))
        request = ModelRequest(
            model=config.model,
            settings=config.model_settings,
            instructions=skills.instructions(config, tools),
            items=[item.content for item in shown.items],
            tools=tools,
        )
        return compaction.asked_with(request, shown.items, calling) if isinstance(calling, Summarising) else request

    async def ask(
        self, partition: Partition, followed: Followed, calling: Calling | Summarising, request: ModelRequest
    ) -> Proceed | None:
        """Ask the model and return the event that its answer becomes; None if nobody wants the answer any more."""
        if isinstance(calling, Summarising):
            # Nobody reads a summary while it is written, and its text would look like an answer.
            answer = await self._answer(followed, request, lambda _: None)
        else:
            answer = await self._answer_with_progress(partition, followed, calling, request)
        work = followed.work
        if work.calling != calling:
            # The call was dropped, or replaced by another, just before its task would have been cancelled.
            return None
        work.calling, work.task = None, None
        if isinstance(calling, Calling):
            return Proceed(Append(self._step_outcome(followed, calling, answer)))
        return self._summary_outcome(work, calling, answer)

    def drop(self, work: Work) -> None:
        """Cancel the call under way, if there is one: its answer is not wanted any more."""
        if work.task is not None:
            work.task.cancel()
        work.calling, work.task = None, None

    def hand_over(self, followed: Followed) -> StepFailed | None:
        """Cancel the call under way and return the event that lets the next owner ask again at once.

        The event does not count as a failed try. None if no step was under way; a summary needs no event, because its
        request stands until somebody writes it.
        """
        calling = followed.work.calling
        self.drop(followed.work)
        if not isinstance(calling, Calling) or followed.quarantined is not None:
            return None
        return step_handed_over(calling, self._identity.owner)

    # Asking

    async def _answer_with_progress(
        self, partition: Partition, followed: Followed, calling: Calling, request: ModelRequest
    ) -> ModelAnswer | ModelFailure:
        turn, step, attempt, _ = calling

        def send_text(text: str) -> None:
            delta = DeltaProgress(turn=turn, step=step, attempt=attempt, text=sanitize_text(text))
            self._progress.send(partition, followed, delta)

        def send_reasoning(text: str) -> None:
            delta = DeltaProgress(turn=turn, step=step, attempt=attempt, reasoning=sanitize_text(text))
            self._progress.send(partition, followed, delta)

        text = TextBatch(send_text, self._options.delta_interval_ms)
        reasoning = TextBatch(send_reasoning, self._options.delta_interval_ms)

        def emit(delta: Delta) -> None:
            (reasoning if delta.kind == "reasoning" else text).add(delta.text)

        answer = await self._answer(followed, request, emit)
        # The answer's event follows: what is left of the text has to go out before it.
        reasoning.flush()
        text.flush()
        return answer

    async def _answer(self, followed: Followed, request: ModelRequest, emit: EmitDelta) -> ModelAnswer | ModelFailure:
        """Wait for a slot and call the model. Cancelling this coroutine is the only way in which it raises."""
        asked_ms = started_ms = self._clock.now_ms()
        answer: ModelAnswer | ModelFailure
        try:
            async with self._slots.slot(followed.key.tenant) as slot:
                started_ms = self._clock.now_ms()
                self._metrics.model_wait_seconds.observe((started_ms - asked_ms) / 1000)
                with self._metrics.model_calls.track_inprogress():
                    answer = await self._model.answer(request, emit)
                # A failed or cancelled call reports no tokens, so it counts nothing against its tenant.
                if isinstance(answer, ModelAnswer):
                    slot.used(answer.usage.input_tokens + answer.usage.output_tokens)
        except Exception as error:  # a bug in an adapter is a failed try, not a stuck turn
            log.exception("model_adapter_failed", thread=str(followed.key), model=request.model)
            answer = ModelFailure(f"the model adapter failed: {type(error).__name__}: {error}", retriable=True)
        self._metrics.model_seconds.observe((self._clock.now_ms() - started_ms) / 1000)
        return answer

    # What an answer becomes

    def _step_outcome(
        self, followed: Followed, calling: Calling, answer: ModelAnswer | ModelFailure
    ) -> StepFinished | StepFailed:
        """Return the event of a step's answer. An answer that cannot be an event, or is too large, fails the step."""
        if isinstance(answer, ModelFailure):
            self._count_failure(answer)
            return self._step_failed(followed, calling, answer)
        try:
            finished = step_finished(calling, answer)
            size = len(canonical_json(finished.model_dump(mode="json", exclude_none=True)))
            if size > self._options.answer_bytes_max:
                raise LimitError(f"the answer has {size} bytes, {self._options.answer_bytes_max} are allowed")
        except (ThreadlogError, ValueError) as error:
            # The provider did its part, so this is no failed model call; and the same answer would come again.
            return self._step_failed(followed, calling, ModelFailure(str(error), retriable=False))
        self._count_tokens(answer)
        return finished

    def _step_failed(self, followed: Followed, calling: Calling, failure: ModelFailure) -> StepFailed:
        """Return the event of a failed step, which says when to try again: the next owner waits as long as this one."""
        turn = followed.work.ahead.latest(followed.state).turn
        failures = turn.step.failures if turn is not None and turn.step is not None else 0
        limits = self._options.limits if turn is None else narrowed(self._options.limits, turn.config)
        delay_ms = retry_delay_ms(limits, failures, failure.retry_after_seconds)
        return step_failed(calling, failure, self._clock.now_ms() + delay_ms)

    def _summary_outcome(self, work: Work, calling: Summarising, answer: ModelAnswer | ModelFailure) -> Proceed:
        """Return the event of a summary. A failed try becomes no event: it is counted in memory, until none is left."""
        if isinstance(answer, ModelAnswer):
            self._count_tokens(answer)
            summary = compaction.to_summary(calling, answer, self._options.answer_bytes_max)
        else:
            summary = answer
        if not isinstance(summary, ModelFailure):
            return Proceed(Append(summary))
        self._count_failure(summary)
        delay_ms = retry_delay_ms(self._options.limits, calling.attempt - 1, summary.retry_after_seconds)
        work.tries = compaction.after_failure(calling, summary, self._clock.now_ms() + delay_ms)
        return Proceed()

    def _count_failure(self, failure: ModelFailure) -> None:
        self._metrics.model_failures.labels(str(failure.retriable).lower()).inc()

    def _count_tokens(self, answer: ModelAnswer) -> None:
        self._metrics.tokens.labels("input").inc(answer.usage.input_tokens)
        self._metrics.tokens.labels("output").inc(answer.usage.output_tokens)
