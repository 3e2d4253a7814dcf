"""The runtime's loop: it folds, decides ahead, appends, and calls models. The decisions are in `decide`.

Each thread has the confirmed state (what was read back) and, while own events are under way, the state ahead of it.
Decisions are made on the state ahead and go out as one batch. When a foreign record comes in between, the events under
way are folded again after it; those that no longer fit are no-ops for every reader alike, and decide answers anew.
A failed append takes its events out of the state ahead: should they have been stored all the same, they come back as
records like any other, with the ids that a second try derives again.
"""

import asyncio
from collections.abc import Iterable
from functools import partial

import structlog

from schemas.codec import Encoded, Record, encode
from schemas.events import Confirmed, Context, TurnRecovered
from schemas.other_topics.progress import Quarantine, encode_progress
from schemas.state import ThreadState, is_active
from schemas.thread import Verdict, fold
from schemas.topics import topic_of
from schemas.transcript import transcript_changes
from services.chassis.catalog.reader import CatalogReader
from services.chassis.catalog.tool_arguments import ArgumentCheck
from services.chassis.clock import Clock
from services.chassis.log.port import Log, LogError, Outgoing
from services.chassis.process.lifecycle import Spawn
from services.chassis.process.timers import Timers
from services.chassis.sanitize import sanitize_text
from services.runtime.child_store import ChildStore
from services.runtime.deciding import compaction
from services.runtime.deciding.children import own_end
from services.runtime.deciding.decide import decide
from services.runtime.deciding.decisions import (
    Append,
    AppendTo,
    CallModel,
    Decision,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    ReadChild,
    World,
)
from services.runtime.metrics import RuntimeMetrics
from services.runtime.model_calls import ModelCalls
from services.runtime.models.port import Model
from services.runtime.models.scheduling import ModelSlots
from services.runtime.thread_messages import ThreadMessages
from services.runtime.thread_work import Held, Partition, Pending, RuntimeIdentity, RuntimeOptions, Work
from services.runtime.transcript_loading import Transcripts
from services.runtime.transcript_store import TranscriptStore

log = structlog.get_logger()

DECISIONS_MAX = 1_000
"""In one go for one thread; more is a decision that never comes to rest."""


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
        children: ChildStore,
        partitions: int,
        spawn: Spawn,
        identity: RuntimeIdentity,
        options: RuntimeOptions,
        metrics: RuntimeMetrics,
    ) -> None:
        self._log = log_
        self._clock = clock
        self._timers = timers
        self._catalog = catalog
        self._identity = identity
        self._options = options
        self._metrics = metrics
        self._arguments = ArgumentCheck()
        self._stopping = False
        self._transcripts = Transcripts(
            loop=self, log_=log_, clock=clock, store=transcripts, spawn=spawn, options=options, metrics=metrics
        )
        self._model_calls = ModelCalls(
            loop=self,
            log_=log_,
            clock=clock,
            catalog=catalog,
            model=model,
            slots=slots,
            transcripts=self._transcripts,
            spawn=spawn,
            identity=identity,
            options=options,
            metrics=metrics,
        )
        self._messages = ThreadMessages(
            loop=self,
            log_=log_,
            clock=clock,
            children=children,
            partitions=partitions,
            spawn=spawn,
            identity=identity,
            options=options,
            metrics=metrics,
        )

    # Follower

    def new_work(self) -> Work:
        return Work()

    def on_record(self, held: Held, before: ThreadState, record: Record, verdict: Verdict) -> None:
        work = held.work
        self._transcripts.on_record(held, before, record, verdict)
        if held.state.lineage is not None and verdict.effect == "applied":
            answer = partial(self._transcripts.answer, held)
            work.ended = own_end(held.key, before, held.state, record, answer) or work.ended
        if work.pending:
            self._confirm(held, record)

    def on_batch(self, partition: Partition, touched: Iterable[Held]) -> None:
        for held in touched:
            self.advance(partition, held)

    def on_ready(self, partition: Partition) -> None:
        for held in list(partition.threads.values()):
            if is_active(held.state) or held.key.ephemeral:
                self.advance(partition, held)

    def on_lost(self, partition: Partition) -> None:
        for held in partition.threads.values():
            self._model_calls.hand_over(partition, held)
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
        self._model_calls.drop(held.work)
        self._sleep(held.work)

    def report_quarantined(self, partition: Partition, held: Held, seconds: float) -> None:
        report = Quarantine(
            reason=sanitize_text(held.quarantined or ""),
            by=self._identity.source,
            since_ms=self._clock.now_ms() - int(1000 * seconds),
        )
        self._model_calls.progress(partition, held, encode_progress(report))

    def on_refold(self, held: Held) -> None:
        """What this one still waits for comes to a thread that is set aside, and changes nothing."""
        self._sleep(held.work)
        self._metrics.quarantined.dec()
        self._metrics.refolded.inc()

    def may_evict(self, held: Held) -> bool:
        work = held.work
        if work.pending or work.calling is not None or work.loading or work.reading_children:
            return False
        return work.wake is None and "under way" not in work.sent.values()

    def is_over(self, partition: Partition) -> bool:
        return partition.lost or self._stopping

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Take no new decisions; hand over what runs."""
        self._stopping = True
        for partition in partitions:
            for held in partition.threads.values():
                self._model_calls.hand_over(partition, held)
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
        if self.is_over(partition):
            return
        if isinstance(error, LogError) and not error.retriable:
            self.quarantine(partition, held, error)
        else:
            self.look_again(partition, held, self._clock.now_ms() + self._options.append_retry_ms)

    # Deciding

    def advance(self, partition: Partition, held: Held, first: Append | None = None) -> None:
        """Decide until there is nothing more to append, and send it. What fails for one thread sets that one aside."""
        if held.quarantined is not None or self.is_over(partition):
            return
        self._meet(held)
        try:
            self._decide_ahead(partition, held, first)
        except Exception as error:  # noqa: BLE001  # the edge of the loop: one thread's failure must not stop its partition
            self.quarantine(partition, held, error)

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
        to_others = [decision for decision in decisions if isinstance(decision, AppendTo)]
        self._messages.send(partition, held, to_others, is_ahead=bool(work.pending))
        self._messages.read(partition, held, [each for each in decisions if isinstance(each, ReadChild)])

    def _obey(
        self, partition: Partition, held: Held, decision: Decision, outgoing: list[Encoded], *, may_lose: bool
    ) -> None:
        match decision:
            case Append():
                self._append(held, decision, outgoing, may_lose=may_lose)
            case CallModel(calling):
                self._model_calls.call(partition, held, calling)
            case DropModelCall():
                self._model_calls.drop(held.work)
            case LoadTranscript():
                self._transcripts.load(partition, held)
            case LookAgain(at_ms):
                self.look_again(partition, held, at_ms, is_final=True)
            case AppendTo() | ReadChild():
                pass  # once decisions have come to rest

    def _world(self, held: Held) -> World:
        work = held.work

        def context() -> Context | None:
            shown = self._transcripts.window(held)
            return None if shown is None else shown.context

        def summed_up(through_seq: int) -> int | None:
            shown = self._transcripts.window(held)
            return None if shown is None else len(compaction.summed_up(shown.items, through_seq))

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
            tries=work.tries,
            summed_up=summed_up,
            taken_over=work.taken_over,
            ended=work.ended,
            children=work.children,
            children_read_ms=work.children_read_ms,
        )

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
        offsets = self._log.appender.append(topic_of(held.key).name, partition.number, records)
        offsets.add_done_callback(partial(self._appended, partition, held, sent))

    def look_again(self, partition: Partition, held: Held, at_ms: int, *, is_final: bool = False) -> None:
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
        self.advance(partition, held)

    def quarantine(self, partition: Partition, held: Held, error: Exception) -> None:
        partition.set_aside(held, error)
        self.on_quarantined(partition, held, error)
