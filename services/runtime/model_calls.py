"""Model calls: how one is made, and what its answer or its failure comes to."""

from functools import partial

import structlog

from schemas.canonical import canonical_json
from schemas.codec import encode
from schemas.errors import LimitError, ThreadlogError
from schemas.events import StepFailed, StepFinished
from schemas.other_topics.progress import Delta as DeltaProgress
from schemas.other_topics.progress import encode_progress
from schemas.topics import THREAD_PROGRESS, topic_of
from services.chassis.catalog.reader import CatalogReader
from services.chassis.clock import Clock
from services.chassis.log.port import Log, Outgoing
from services.chassis.process.lifecycle import Spawn
from services.chassis.sanitize import sanitize_text
from services.chassis.text_batch import TextBatch
from services.runtime.deciding import compaction, skills
from services.runtime.deciding.calls import offered_tools
from services.runtime.deciding.decisions import RUNTIME, Append, Calling, Summarising
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
from services.runtime.thread_work import Advancing, Held, Partition, RuntimeIdentity, RuntimeOptions, Work
from services.runtime.transcript_loading import Transcripts

log = structlog.get_logger()


class ModelCalls:
    def __init__(
        self,
        *,
        loop: Advancing,
        log_: Log,
        clock: Clock,
        catalog: CatalogReader,
        model: Model,
        slots: ModelSlots,
        transcripts: Transcripts,
        spawn: Spawn,
        identity: RuntimeIdentity,
        options: RuntimeOptions,
        metrics: RuntimeMetrics,
    ) -> None:
        self._loop = loop
        self._log = log_
        self._clock = clock
        self._catalog = catalog
        self._model = model
        self._slots = slots
        self._transcripts = transcripts
        self._spawn = spawn
        self._identity = identity
        self._options = options
        self._metrics = metrics

    def call(self, partition: Partition, held: Held, calling: Calling | Summarising) -> None:
        work = held.work
        shown = self._transcripts.window(held)
        state = work.ahead or held.state
        config = state.config if state.turn is None else state.turn.config
        if shown is None or config is None:
            self._transcripts.load(partition, held)
            return
        tools = list(offered_tools(self._catalog.catalog, config))
        request = ModelRequest(
            model=config.model,
            settings=config.model_settings,
            instructions=skills.instructions(config, tools),
            items=[item.content for item in shown.items],
            tools=tools,
        )
        if isinstance(calling, Summarising):
            request = compaction.asked_with(request, shown.items, calling)
        work.calling = calling
        work.task = self._spawn(self._ask(partition, held, calling, request), f"model {held.key}")

    async def _ask(
        self, partition: Partition, held: Held, calling: Calling | Summarising, request: ModelRequest
    ) -> None:
        if isinstance(calling, Summarising):
            # Nobody waits for it word by word, and shown as it comes it would look like an answer.
            answer = await self._answer(held, request, lambda _: None)
        else:
            text = TextBatch(partial(self._emit_text, partition, held, calling), self._options.delta_interval_ms)
            reasoning = TextBatch(
                partial(self._emit_reasoning, partition, held, calling), self._options.delta_interval_ms
            )

            def emit(delta: Delta) -> None:
                (reasoning if delta.kind == "reasoning" else text).add(delta.text)

            answer = await self._answer(held, request, emit)
            reasoning.flush()
            text.flush()
        self._answered(partition, held, calling, answer)

    async def _answer(self, held: Held, request: ModelRequest, emit: EmitDelta) -> ModelAnswer | ModelFailure:
        asked_ms = started_ms = self._clock.now_ms()
        answer: ModelAnswer | ModelFailure
        try:
            async with self._slots.slot(held.key.tenant) as slot:
                started_ms = self._clock.now_ms()
                self._metrics.model_wait_seconds.observe((started_ms - asked_ms) / 1000)
                with self._metrics.model_calls.track_inprogress():
                    answer = await self._model.answer(request, emit)
                if isinstance(answer, ModelAnswer):
                    slot.used(answer.usage.input_tokens + answer.usage.output_tokens)
        except Exception as error:  # a bug in an adapter is a failed try, not a stuck turn
            log.exception("model_adapter_failed", thread=str(held.key), model=request.model)
            answer = ModelFailure(f"the model adapter failed: {type(error).__name__}: {error}", retriable=True)
        self._metrics.model_seconds.observe((self._clock.now_ms() - started_ms) / 1000)
        return answer

    def _answered(
        self, partition: Partition, held: Held, calling: Calling | Summarising, answer: ModelAnswer | ModelFailure
    ) -> None:
        work = held.work
        if work.calling != calling:
            return
        work.calling, work.task = None, None
        if isinstance(calling, Calling):
            self._loop.advance(partition, held, Append(self._step_end(held, calling, answer)))
            return
        if isinstance(answer, ModelAnswer):
            self._note_tokens(answer)
            summary = compaction.to_summary(calling, answer, self._options.answer_bytes_max)
        else:
            summary = answer
        if not isinstance(summary, ModelFailure):
            self._loop.advance(partition, held, Append(summary))
            return
        self._metrics.model_failures.labels(str(summary.retriable).lower()).inc()
        delay_ms = retry_delay_ms(self._options.limits, calling.attempt - 1, summary.retry_after_seconds)
        work.tries = compaction.after_failure(calling, summary, self._clock.now_ms() + delay_ms)
        self._loop.advance(partition, held)

    def _step_end(self, held: Held, calling: Calling, answer: ModelAnswer | ModelFailure) -> StepFinished | StepFailed:
        if isinstance(answer, ModelFailure):
            self._metrics.model_failures.labels(str(answer.retriable).lower()).inc()
            return self._step_failed(held, calling, answer)
        try:
            finished = step_finished(calling, answer)
            size = len(canonical_json(finished.model_dump(mode="json", exclude_none=True)))
            if size > self._options.answer_bytes_max:
                raise LimitError(f"the answer has {size} bytes, {self._options.answer_bytes_max} are allowed")
        except (ThreadlogError, ValueError) as error:
            return self._step_failed(held, calling, ModelFailure(str(error), retriable=False))
        self._note_tokens(answer)
        return finished

    def _note_tokens(self, answer: ModelAnswer) -> None:
        self._metrics.tokens.labels("input").inc(answer.usage.input_tokens)
        self._metrics.tokens.labels("output").inc(answer.usage.output_tokens)

    def _step_failed(self, held: Held, calling: Calling, failure: ModelFailure) -> StepFailed:
        turn = (held.work.ahead or held.state).turn
        failures = turn.step.failures if turn is not None and turn.step is not None else 0
        limits = self._options.limits if turn is None else narrowed(self._options.limits, turn.config)
        delay_ms = retry_delay_ms(limits, failures, failure.retry_after_seconds)
        return step_failed(calling, failure, self._clock.now_ms() + delay_ms)

    def _emit_text(self, partition: Partition, held: Held, calling: Calling, text: str) -> None:
        turn, step, attempt, _ = calling
        delta = DeltaProgress(turn=turn, step=step, attempt=attempt, text=sanitize_text(text))
        self.progress(partition, held, encode_progress(delta))

    def _emit_reasoning(self, partition: Partition, held: Held, calling: Calling, text: str) -> None:
        turn, step, attempt, _ = calling
        delta = DeltaProgress(turn=turn, step=step, attempt=attempt, reasoning=sanitize_text(text))
        self.progress(partition, held, encode_progress(delta))

    def drop(self, work: Work) -> None:
        if work.task is not None:
            work.task.cancel()
        work.calling, work.task = None, None

    def hand_over(self, partition: Partition, held: Held) -> None:
        """The next owner asks the model again at once, and the try does not count."""
        calling = held.work.calling
        self.drop(held.work)
        if not isinstance(calling, Calling) or held.quarantined is not None:
            return
        event = step_handed_over(calling, self._identity.owner)
        now_ms = self._clock.now_ms()
        encoded = encode(held.key, event, source=self._identity.source, actor=RUNTIME, time_ms=now_ms)
        outgoing = Outgoing(held.key.to_bytes(), encoded.value, encoded.headers, encoded.record.time_ms)
        self._log.appender.append(topic_of(held.key).name, partition.number, [outgoing])

    def progress(self, partition: Partition, held: Held, encoded: tuple[bytes, tuple[tuple[str, bytes], ...]]) -> None:
        value, headers = encoded
        outgoing = Outgoing(held.key.to_bytes(), value, headers, self._clock.now_ms())
        self._log.appender.append_lossy(THREAD_PROGRESS.name, partition.number, [outgoing])
