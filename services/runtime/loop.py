"""The runtime's loop: it folds, decides ahead, appends, and calls models. The decisions are in `decide`.

Each thread has the confirmed state (what was read back) and, while own events are under way, the state ahead of it.
Decisions are made on the state ahead and go out as one batch. When a foreign record comes in between, the events under
way are folded again after it; those that no longer fit are no-ops for every reader alike, and decide answers anew.
A failed append takes its events out of the state ahead: should they have been stored all the same, they come back as
records like any other, with the ids that a second try derives again.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import structlog

from schemas.canonical import canonical_json
from schemas.codec import Encoded, Record, encode
from schemas.errors import LimitError, ThreadlogError
from schemas.events import Confirmed, Context, StepFailed, StepFinished, TurnRecovered
from schemas.progress import Delta as DeltaProgress
from schemas.progress import Quarantine, encode_progress
from schemas.state import ThreadState, is_active
from schemas.thread import Verdict, fold
from schemas.topics import THREAD_EVENTS, THREAD_PROGRESS
from schemas.transcript import Change, Transcript, transcript_changes
from services.chassis.catalog_reader import CatalogReader
from services.chassis.clock import Clock
from services.chassis.fold_loop import Held as HeldThread
from services.chassis.fold_loop import Partition as AssignedPartition
from services.chassis.lifecycle import Spawn
from services.chassis.log import Log, LogError, Outgoing, TopicPartition
from services.chassis.storable import storable_text
from services.chassis.text_batch import TextBatch
from services.chassis.timers import Timer, Timers
from services.chassis.tool_arguments import ArgumentCheck
from services.runtime.answers import step_failed, step_finished, step_handed_over
from services.runtime.context import Window, window
from services.runtime.decide import (
    Append,
    Calling,
    CallModel,
    Decision,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    World,
    decide,
    offered_tools,
)
from services.runtime.limits import Limits, narrowed, retry_delay_ms
from services.runtime.metrics import RuntimeMetrics
from services.runtime.model import Delta, Model, ModelAnswer, ModelFailure, ModelRequest
from services.runtime.scheduling import ModelSlots
from services.runtime.transcripts import TranscriptStore, scan_transcript

log = structlog.get_logger()

DECISIONS_MAX = 1_000
"""In one go for one thread; more is a decision that never comes to rest."""


@dataclass(slots=True, eq=False)
class Pending:
    """An own event under way."""

    record: Record
    changes: tuple[Change, ...]


@dataclass(slots=True, eq=False)
class Work:
    """What the runtime keeps beside a thread's state."""

    transcript: Transcript | None = None
    """None while it is cold; `buffered` then keeps what came since the thread was taken into memory."""
    transcript_seq: int = 0
    """Up to which the transcript was loaded: it may be ahead of the state, whose records then add nothing to it."""
    rows_from_seq: int = 0
    """What is loaded has to reach this seq: what came before it is not buffered any more."""
    buffered: list[tuple[int, tuple[Change, ...]]] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    ahead: ThreadState | None = None
    """The confirmed state with the pending events folded onto it; None where there are none."""
    calling: Calling | None = None
    task: "asyncio.Task[None] | None" = None
    loading: bool = False
    is_met: bool = False
    """Whether this process has acted for the thread since it took it into memory."""
    taken_over: str | None = None
    """Data hash of the start that was found open then, until `turn.recovered` says so."""
    wake: Timer | None = None


Held = HeldThread[Work]
Partition = AssignedPartition[Work]


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    instance: str
    incarnation: str
    agent_version: str

    @property
    def owner(self) -> str:
        return f"{self.instance}/{self.incarnation}"

    @property
    def source(self) -> str:
        return f"runtime/{self.instance}"


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    limits: Limits
    answer_bytes_max: int
    append_retry_ms: int
    delta_interval_ms: int


class Runtime:
    """A `Follower` of the fold loop."""

    def __init__(
        self,
        *,
        log_: Log,
        clock: Clock,
        timers: Timers,
        catalog: CatalogReader,
        model: Model,
        slots: ModelSlots,
        transcripts: TranscriptStore,
        spawn: Spawn,
        identity: RuntimeIdentity,
        options: RuntimeOptions,
        metrics: RuntimeMetrics,
    ) -> None:
        self._log = log_
        self._clock = clock
        self._timers = timers
        self._catalog = catalog
        self._model = model
        self._slots = slots
        self._transcripts = transcripts
        self._spawn = spawn
        self._identity = identity
        self._options = options
        self._metrics = metrics
        self._arguments = ArgumentCheck()
        self._stopping = False

    # Follower

    def new_work(self) -> Work:
        return Work()

    def on_record(self, held: Held, before: ThreadState, record: Record, verdict: Verdict) -> None:
        work = held.work
        if before.seq == 0 and held.from_start:
            work.transcript = Transcript()
        changes = transcript_changes(before, held.state, record, verdict)
        if work.transcript is not None:
            if held.state.seq > work.transcript_seq:
                work.transcript.apply(changes)
                if work.transcript.lacks_items:
                    work.transcript, work.rows_from_seq = None, held.state.seq
        elif changes:
            work.buffered.append((held.state.seq, changes))
        if work.pending:
            self._confirm(held, record)

    def on_batch(self, partition: Partition, touched: Iterable[Held]) -> None:
        for held in touched:
            self._advance(partition, held)

    def on_ready(self, partition: Partition) -> None:
        for held in list(partition.threads.values()):
            if is_active(held.state):
                self._advance(partition, held)

    def on_lost(self, partition: Partition) -> None:
        for held in partition.threads.values():
            self._hand_over(partition, held)
            self._sleep(held.work)
            if held.quarantined is not None:
                self._metrics.quarantined.dec()

    def on_quarantined(self, partition: Partition, held: Held, error: Exception) -> None:
        self._metrics.quarantined.inc()
        log.error(
            "thread_quarantined",
            thread=str(held.key),
            partition=partition.number,
            seq=held.state.seq,
            reason=held.quarantined,
            exc_info=error,
        )
        self._drop_model_call(held.work)
        self._sleep(held.work)

    def report_quarantined(self, partition: Partition, held: Held, seconds: float) -> None:
        report = Quarantine(
            reason=storable_text(held.quarantined or ""),
            by=self._identity.source,
            since_ms=self._clock.now_ms() - int(1000 * seconds),
        )
        self._progress(partition, held, encode_progress(report))

    def on_refold(self, held: Held) -> None:
        """What this one still waits for comes to a thread that is set aside, and changes nothing."""
        self._sleep(held.work)
        self._metrics.quarantined.dec()
        self._metrics.refolded.inc()

    def may_evict(self, held: Held) -> bool:
        work = held.work
        return not work.pending and work.calling is None and not work.loading

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Take no new decisions; hand over what runs."""
        self._stopping = True
        for partition in partitions:
            for held in partition.threads.values():
                self._hand_over(partition, held)
                self._sleep(held.work)

    # Own events under way

    def _confirm(self, held: Held, record: Record) -> None:
        work = held.work
        head = work.pending[0].record
        if head.id == record.id and head.data_hash == record.data_hash:
            del work.pending[0]
            if not work.pending:
                work.ahead = None
        else:
            self._fold_ahead_again(held)

    def _fold_ahead_again(self, held: Held) -> None:
        """After a foreign record, or a failed append."""
        work = held.work
        state = held.state
        for pending in work.pending:
            before = state
            state, verdict = fold(before, pending.record)
            pending.changes = transcript_changes(before, state, pending.record, verdict)
        work.ahead = state if work.pending else None

    def _appended(
        self, partition: Partition, held: Held, sent: list[Pending], offsets: "asyncio.Future[tuple[int, ...]]"
    ) -> None:
        error = offsets.exception()
        if error is None:
            return
        work = held.work
        self._metrics.append_failures.inc()
        log.warning("append_failed", thread=str(held.key), events=len(sent), error=str(error))
        work.pending = [pending for pending in work.pending if pending not in sent]
        self._fold_ahead_again(held)
        if any(isinstance(pending.record.data, TurnRecovered) for pending in sent):
            work.is_met = False
        if partition.lost or self._stopping:
            return
        if isinstance(error, LogError) and not error.retriable:
            self._quarantine(partition, held, error)
        else:
            self._look_again(partition, held, self._clock.now_ms() + self._options.append_retry_ms)

    # Deciding

    def _advance(self, partition: Partition, held: Held, first: Append | None = None) -> None:
        """Decide until there is nothing more to append, and send it. What fails for one thread sets that one aside."""
        if held.quarantined is not None or partition.lost or self._stopping:
            return
        self._meet(held)
        try:
            self._decide_ahead(partition, held, first)
        except Exception as error:  # noqa: BLE001  # the edge of the loop: one thread's failure must not stop its partition
            self._quarantine(partition, held, error)

    def _meet(self, held: Held) -> None:
        """A step that is open when this process first acts for a thread is that of an owner that is gone."""
        work = held.work
        if work.is_met:
            return
        work.is_met = True
        turn = held.state.turn
        step = turn.step if turn is not None else None
        work.taken_over = step.starts[-1] if step is not None and step.status == "open" else None

    def _decide_ahead(self, partition: Partition, held: Held, first: Append | None) -> None:
        work = held.work
        outgoing: list[Encoded] = []
        decisions: list[Decision] = [] if first is None else [first]
        for _ in range(DECISIONS_MAX):
            if not decisions:
                decisions = list(decide(held.key, work.ahead or held.state, self._clock.now_ms(), self._world(held)))
            appends = [decision for decision in decisions if isinstance(decision, Append)]
            for decision in decisions:
                self._obey(partition, held, decision, outgoing, may_lose=decision is first)
            if not appends:
                break
            decisions = []
        else:
            raise RuntimeError(f"{DECISIONS_MAX} decisions without coming to rest")
        if not any(isinstance(decision, LookAgain) for decision in decisions):
            self._sleep(work)
        if outgoing:
            self._send(partition, held, outgoing)

    def _obey(
        self, partition: Partition, held: Held, decision: Decision, outgoing: list[Encoded], *, may_lose: bool
    ) -> None:
        match decision:
            case Append():
                self._append(held, decision, outgoing, may_lose=may_lose)
            case CallModel(calling):
                self._call_model(partition, held, calling)
            case DropModelCall():
                self._drop_model_call(held.work)
            case LoadTranscript():
                self._load_transcript(partition, held)
            case LookAgain(at_ms):
                self._look_again(partition, held, at_ms, is_final=True)

    def _world(self, held: Held) -> World:
        work = held.work

        def context() -> Context | None:
            shown = self._window(held)
            return None if shown is None else shown.context

        return World(
            owner=self._identity.owner,
            agent_version=self._identity.agent_version,
            catalog=self._catalog.catalog,
            limits=self._options.limits,
            confirmed=Confirmed(seq=held.state.seq, chain=held.state.chain),
            context=context,
            arguments_problem=self._arguments.problem,
            is_ahead=bool(work.pending),
            calling=work.calling,
            taken_over=work.taken_over,
        )

    def _window(self, held: Held) -> Window | None:
        work = held.work
        if work.transcript is None or work.transcript_seq > held.state.seq:
            return None
        ahead = [change for pending in work.pending for change in pending.changes]
        return window(work.transcript, ahead, held.state.seq)

    def _append(self, held: Held, decision: Append, outgoing: list[Encoded], *, may_lose: bool) -> None:
        work = held.work
        before = work.ahead or held.state
        encoded = self._encode(held, decision)
        after, verdict = fold(before, encoded.record)
        if verdict.effect != "applied":
            if may_lose:
                self._metrics.answers_superseded.inc()
                return
            raise RuntimeError(f"decided a {encoded.record.kind} that does not fit: {verdict.reason}")
        if isinstance(decision.event, TurnRecovered):
            work.taken_over = None
            self._metrics.takeovers.inc()
        work.ahead = after
        work.pending.append(Pending(encoded.record, transcript_changes(before, after, encoded.record, verdict)))
        outgoing.append(encoded)
        self._metrics.decisions.labels(encoded.record.kind).inc()

    def _encode(self, held: Held, decision: Append) -> Encoded:
        return encode(
            held.key,
            decision.event,
            source=self._identity.source,
            actor=decision.actor,
            time_ms=self._clock.now_ms(),
        )

    def _send(self, partition: Partition, held: Held, outgoing: list[Encoded]) -> None:
        key = held.key.to_bytes()
        records = [Outgoing(key, encoded.value, encoded.headers, encoded.record.time_ms) for encoded in outgoing]
        sent = held.work.pending[-len(outgoing) :]
        offsets = self._log.appender.append(THREAD_EVENTS.name, partition.number, records)
        offsets.add_done_callback(partial(self._appended, partition, held, sent))

    def _look_again(self, partition: Partition, held: Held, at_ms: int, *, is_final: bool = False) -> None:
        """At that time; unless it is final, earlier where that was agreed before."""
        wake = held.work.wake
        if wake is not None and (wake.time_ms == at_ms or (wake.time_ms < at_ms and not is_final)):
            return
        self._sleep(held.work)
        held.work.wake = self._timers.at(at_ms, partial(self._woken, partition, held))

    def _sleep(self, work: Work) -> None:
        """Until something comes of itself. A timer keeps its thread in memory, so none is left that is not wanted."""
        if work.wake is not None:
            work.wake.cancel()
            work.wake = None

    def _woken(self, partition: Partition, held: Held) -> None:
        held.work.wake = None
        self._advance(partition, held)

    def _quarantine(self, partition: Partition, held: Held, error: Exception) -> None:
        partition.set_aside(held, error)
        self.on_quarantined(partition, held, error)

    def _progress(self, partition: Partition, held: Held, encoded: tuple[bytes, tuple[tuple[str, bytes], ...]]) -> None:
        value, headers = encoded
        outgoing = Outgoing(held.key.to_bytes(), value, headers, self._clock.now_ms())
        self._log.appender.append_lossy(THREAD_PROGRESS.name, partition.number, [outgoing])

    # Models

    def _call_model(self, partition: Partition, held: Held, calling: Calling) -> None:
        work = held.work
        shown = self._window(held)
        state = work.ahead or held.state
        if shown is None or state.turn is None:
            self._load_transcript(partition, held)
            return
        config = state.turn.config
        request = ModelRequest(
            model=config.model,
            settings=config.model_settings,
            instructions=config.instructions,
            items=[item.content for item in shown.items],
            tools=list(offered_tools(self._catalog.catalog, config)),
        )
        work.calling = calling
        work.task = self._spawn(self._ask(partition, held, calling, request), f"model {held.key}")

    async def _ask(self, partition: Partition, held: Held, calling: Calling, request: ModelRequest) -> None:
        asked_ms = started_ms = self._clock.now_ms()
        text = TextBatch(partial(self._emit_text, partition, held, calling), self._options.delta_interval_ms)
        reasoning = TextBatch(partial(self._emit_reasoning, partition, held, calling), self._options.delta_interval_ms)

        def emit(delta: Delta) -> None:
            (reasoning if delta.kind == "reasoning" else text).add(delta.text)

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
        reasoning.flush()
        text.flush()
        self._metrics.model_seconds.observe((self._clock.now_ms() - started_ms) / 1000)
        self._answered(partition, held, calling, answer)

    def _answered(self, partition: Partition, held: Held, calling: Calling, answer: ModelAnswer | ModelFailure) -> None:
        work = held.work
        if work.calling != calling:
            return
        work.calling, work.task = None, None
        self._advance(partition, held, Append(self._step_end(held, calling, answer)))

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
        self._metrics.tokens.labels("input").inc(answer.usage.input_tokens)
        self._metrics.tokens.labels("output").inc(answer.usage.output_tokens)
        return finished

    def _step_failed(self, held: Held, calling: Calling, failure: ModelFailure) -> StepFailed:
        turn = (held.work.ahead or held.state).turn
        failures = turn.step.failures if turn is not None and turn.step is not None else 0
        limits = self._options.limits if turn is None else narrowed(self._options.limits, turn.config)
        delay_ms = retry_delay_ms(limits, failures, failure.retry_after_seconds)
        return step_failed(calling, failure, self._clock.now_ms() + delay_ms)

    def _emit_text(self, partition: Partition, held: Held, calling: Calling, text: str) -> None:
        turn, step, attempt, _ = calling
        delta = DeltaProgress(turn=turn, step=step, attempt=attempt, text=storable_text(text))
        self._progress(partition, held, encode_progress(delta))

    def _emit_reasoning(self, partition: Partition, held: Held, calling: Calling, text: str) -> None:
        turn, step, attempt, _ = calling
        delta = DeltaProgress(turn=turn, step=step, attempt=attempt, reasoning=storable_text(text))
        self._progress(partition, held, encode_progress(delta))

    def _drop_model_call(self, work: Work) -> None:
        if work.task is not None:
            work.task.cancel()
        work.calling, work.task = None, None

    def _hand_over(self, partition: Partition, held: Held) -> None:
        """The next owner asks the model again at once, and the try does not count."""
        calling = held.work.calling
        self._drop_model_call(held.work)
        if calling is None or held.quarantined is not None:
            return
        encoded = self._encode(held, Append(step_handed_over(calling, self._identity.owner)))
        outgoing = Outgoing(held.key.to_bytes(), encoded.value, encoded.headers, encoded.record.time_ms)
        self._log.appender.append(THREAD_EVENTS.name, partition.number, [outgoing])

    # Transcripts

    def _load_transcript(self, partition: Partition, held: Held) -> None:
        """One that is ahead of the state is not read again: the records that it has in it are on their way."""
        if not held.work.loading and held.work.transcript is None:
            held.work.loading = True
            self._spawn(self._load(partition, held), f"transcript {held.key}")

    async def _load(self, partition: Partition, held: Held) -> None:
        work = held.work
        try:
            cold, source = await self._transcripts.load(held.key), "items"
            if cold is not None:
                cold.apply(work.buffered)
            if cold is None or cold.seq < max(held.loaded_seq, work.rows_from_seq) or cold.transcript.lacks_items:
                tp = TopicPartition(THREAD_EVENTS.name, partition.number)
                cold, source = await scan_transcript(self._log, tp, held.key, held.state.offset + 1), "scan"
                cold.apply(work.buffered)
        except ThreadlogError as error:
            log.warning("transcript_not_loaded", thread=str(held.key), error=str(error))
            work.loading = False
            if not (partition.lost or self._stopping):
                self._look_again(partition, held, self._clock.now_ms() + self._options.append_retry_ms)
            return
        except Exception as error:  # noqa: BLE001  # what is stored of one thread must not stop the service
            work.loading = False
            if not partition.lost:
                self._quarantine(partition, held, error)
            return
        self._metrics.transcripts_loaded.labels(source).inc()
        work.transcript, work.transcript_seq, work.buffered, work.loading = cold.transcript, cold.seq, [], False
        self._advance(partition, held)
