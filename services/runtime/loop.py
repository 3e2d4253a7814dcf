"""The runtime's loop: for each thread it folds what it reads, decides, appends, and starts what takes time.

A service must do three things with a thread: know its state, decide what to do next, and do it. Knowing and deciding
are pure (`schemas.thread.fold`, `deciding.decide`); this module does the rest, and it is the only one that acts for a
thread. Everything runs in one event loop, so nothing here needs a lock.

It acts on three occasions. The frame hands it a batch of records (`on_batch`). Something that it started has an
outcome: an append, a model call, a load, a look-up (`outcomes`). Or the time has come that a decision named (`_woken`).
Each time it decides until nothing more is to be appended (`advance`), on the state ahead of what was read back
(`events_ahead`), and sends all events as one batch.

The log is the judge. Whatever is in memory here may be lost at any moment: the next owner of the partition folds the
same records, decides the same, and the ids of its events are derived from what they answer, so an event that both
append counts once. What cannot be known from the log, a model call that another process had under way, is repeated.

One thread's failure must not stop its partition. What a decision or an outcome cannot mend sets its thread aside
(`_quarantine`); the frame reads it anew after a while.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import structlog

from schemas.codec import Encoded, Record, encode
from schemas.events import Confirmed, Context, InputSubmitted, TurnRecovered
from schemas.other_topics.progress import Quarantine
from schemas.state import ThreadState, is_active
from schemas.thread import Verdict
from schemas.topics import topic_of
from services.chassis.catalog.reader import CatalogReader
from services.chassis.catalog.tool_arguments import ArgumentCheck
from services.chassis.clock import Clock
from services.chassis.log.port import Log, Outgoing
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
    Calling,
    CallModel,
    Decision,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    ReadChild,
    Summarising,
    World,
)
from services.runtime.events_ahead import SentEvent
from services.runtime.metrics import RuntimeMetrics
from services.runtime.model_calls import ModelCalls
from services.runtime.models.port import Model
from services.runtime.models.scheduling import ModelSlots
from services.runtime.outcomes import Outcome, Proceed, RetryLater, SetAside, after_failed_append
from services.runtime.progress import ProgressSender
from services.runtime.thread_messages import Sending, ThreadMessages
from services.runtime.thread_work import Followed, Partition, RuntimeIdentity, RuntimeOptions, Work
from services.runtime.transcript_loading import Transcripts
from services.runtime.transcript_store import TranscriptStore

log = structlog.get_logger()

DECISIONS_MAX: Final = 1_000
"""Rounds of decisions in one go for one thread. A thread that needs more would never come to rest."""


class Runtime:
    """The runtime as a `Follower` of the fold loop; one for each topic that it follows."""

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
        self._spawn = spawn
        self._identity = identity
        self._options = options
        self._metrics = metrics
        self._arguments = ArgumentCheck()
        self._stopping = False
        self._progress = ProgressSender(log_, clock)
        self._transcripts = Transcripts(log_=log_, store=transcripts, metrics=metrics)
        self._model_calls = ModelCalls(
            clock=clock,
            catalog=catalog,
            model=model,
            slots=slots,
            progress=self._progress,
            identity=identity,
            options=options,
            metrics=metrics,
        )
        self._messages = ThreadMessages(
            log_=log_, clock=clock, children=children, partitions=partitions, identity=identity, metrics=metrics
        )

    # Follower

    def new_work(self) -> Work:
        return Work()

    def on_record(self, followed: Followed, before: ThreadState, record: Record, verdict: Verdict) -> None:
        work = followed.work
        self._transcripts.on_record(followed, before, record, verdict)
        # A record without effect ends nothing, except a task that reaches a child which is closing already.
        may_end = verdict.effect == "applied" or isinstance(record.data, InputSubmitted)
        if followed.state.lineage is not None and may_end:
            answer = partial(self._transcripts.answer, followed)
            work.ended = own_end(followed.key, before, followed.state, record, answer) or work.ended
        work.ahead.read_back(followed.state, record)

    def on_batch(self, partition: Partition, touched: Iterable[Followed]) -> None:
        for followed in touched:
            self.advance(partition, followed)

    def on_ready(self, partition: Partition) -> None:
        for followed in list(partition.threads.values()):
            # An ephemeral thread is closed when its time is over, so an idle one needs a timer, too.
            if is_active(followed.state) or followed.key.ephemeral:
                self.advance(partition, followed)

    def on_lost(self, partition: Partition) -> None:
        for followed in partition.threads.values():
            self._hand_over(partition, followed)
            if followed.quarantined is not None:
                self._metrics.quarantined.dec()

    def on_quarantined(self, partition: Partition, followed: Followed, error: Exception) -> None:
        self._metrics.quarantined.inc()
        log.error(
            "thread_quarantined",
            thread=str(followed.key),
            partition=partition.number,
            seq=followed.state.seq,
            reason=followed.quarantined,
            exc_info=error,
        )
        self._model_calls.drop(followed.work)
        self._cancel_timer(followed.work)

    def report_quarantined(self, partition: Partition, followed: Followed, seconds: float) -> None:
        report = Quarantine(
            reason=sanitize_text(followed.quarantined or ""),
            by=self._identity.source,
            since_ms=self._clock.now_ms() - int(1000 * seconds),
        )
        self._progress.send(partition, followed, report)

    def on_refold(self, followed: Followed) -> None:
        """Let go of a thread in memory that is read anew.

        Outcomes that this one still waits for find it set aside, and change nothing.
        """
        self._cancel_timer(followed.work)
        self._metrics.quarantined.dec()
        self._metrics.refolded.inc()

    def may_evict(self, followed: Followed) -> bool:
        """Whether the thread may leave memory: only if no outcome and no timer refers to it."""
        work = followed.work
        if work.ahead.events or work.calling is not None or work.loading or work.reading_children:
            return False
        return work.wake is None and "under way" not in work.sent.values()

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Take no new decisions, and hand over what runs."""
        self._stopping = True
        for partition in partitions:
            for followed in partition.threads.values():
                self._hand_over(partition, followed)

    def _hand_over(self, partition: Partition, followed: Followed) -> None:
        """Tell the next owner that a model call was given up, so that it asks again at once.

        Nobody waits for this append. If it is lost, the next owner finds the step open and recovers it.
        """
        event = self._model_calls.hand_over(followed)
        if event is not None:
            self._append_to_log(partition, followed, [self._encode(followed, Append(event))])
        self._cancel_timer(followed.work)

    # Deciding

    def advance(self, partition: Partition, followed: Followed, first: Append | None = None) -> None:
        """Decide until there is nothing more to append, and send it; `first` is appended before, if it still fits.

        Whatever fails for the thread sets it aside.
        """
        if followed.quarantined is not None or self._is_over(partition):
            return
        self._meet(followed)
        try:
            self._decide_ahead(partition, followed, first)
        except Exception as error:  # noqa: BLE001  # the edge of the loop: one thread's failure must not stop its partition
            self._quarantine(partition, followed, error)

    def _is_over(self, partition: Partition) -> bool:
        """Whether this process no longer acts for the partition."""
        return partition.lost or self._stopping

    def _meet(self, followed: Followed) -> None:
        """Note the step that is open when this process first acts for a thread: its owner is gone."""
        work = followed.work
        if work.is_met:
            return
        work.is_met = True
        turn = followed.state.turn
        step = turn.step if turn is not None else None
        work.taken_over = step.starts[-1] if step is not None and step.status == "open" else None

    def _decide_ahead(self, partition: Partition, followed: Followed, first: Append | None) -> None:
        work = followed.work
        outgoing: list[Encoded] = []
        decisions: list[Decision] = [] if first is None else [first]
        for _ in range(DECISIONS_MAX):
            if not decisions:
                state = work.ahead.latest(followed.state)
                decisions = list(decide(followed.key, state, self._clock.now_ms(), self._world(followed)))
            appends = [decision for decision in decisions if isinstance(decision, Append)]
            for decision in decisions:
                self._obey(partition, followed, decision, outgoing, may_lose=decision is first)
            if not appends:
                break
            decisions = []
        else:
            raise RuntimeError(f"{DECISIONS_MAX} decisions without coming to rest")
        if not any(isinstance(decision, LookAgain) for decision in decisions):
            self._cancel_timer(work)
        if outgoing:
            self._send(partition, followed, outgoing)
        # Only the last decisions say what other threads need: those before them were made of an earlier state.
        for sending in self._messages.send(followed, [each for each in decisions if isinstance(each, AppendTo)]):
            sending.offsets.add_done_callback(partial(self._message_appended, partition, followed, sending))
        self._look_up_children(partition, followed, [each for each in decisions if isinstance(each, ReadChild)])

    def _obey(
        self, partition: Partition, followed: Followed, decision: Decision, outgoing: list[Encoded], *, may_lose: bool
    ) -> None:
        match decision:
            case Append():
                self._append(followed, decision, outgoing, may_lose=may_lose)
            case CallModel(calling):
                self._call_model(partition, followed, calling)
            case DropModelCall():
                self._model_calls.drop(followed.work)
            case LoadTranscript():
                self._load_transcript(partition, followed)
            case LookAgain(at_ms):
                self._set_timer(partition, followed, at_ms)
            case AppendTo() | ReadChild():
                pass  # once decisions have come to rest

    def _world(self, followed: Followed) -> World:
        """Return what a decision may know besides the state. The context is costly, so it is made only on demand."""
        work = followed.work

        def context() -> Context | None:
            shown = self._transcripts.window(followed)
            return None if shown is None else shown.context

        def summed_up(through_seq: int) -> int | None:
            shown = self._transcripts.window(followed)
            return None if shown is None else len(compaction.summed_up(shown.items, through_seq))

        return World(
            owner=self._identity.owner,
            agent_version=self._identity.agent_version,
            catalog=self._catalog.catalog,
            limits=self._options.limits,
            confirmed=Confirmed(seq=followed.state.seq, chain=followed.state.chain),
            context=context,
            arguments_problem=self._arguments.problem,
            is_ahead=bool(work.ahead.events),
            calling=work.calling,
            tries=work.tries,
            summed_up=summed_up,
            taken_over=work.taken_over,
            ended=work.ended,
            children=work.children,
            children_read_ms=work.children_read_ms,
            stored=frozenset([name for name, how in work.sent.items() if how == "stored"]),
        )

    # Appending

    def _append(self, followed: Followed, decision: Append, outgoing: list[Encoded], *, may_lose: bool) -> None:
        """Fold an event onto the state ahead and put it into the batch.

        An event that was just decided always fits. The outcome of a model call may not: `may_lose` says so.
        """
        work = followed.work
        encoded = self._encode(followed, decision)
        verdict = work.ahead.add(followed.state, encoded.record)
        if verdict.effect != "applied":
            if may_lose:
                self._metrics.answers_superseded.inc()
                return
            raise RuntimeError(f"decided a {encoded.record.kind} that does not fit: {verdict.reason}")
        if isinstance(decision.event, TurnRecovered):
            work.taken_over = None
            self._metrics.takeovers.inc()
        outgoing.append(encoded)
        self._metrics.decisions.labels(encoded.record.kind).inc()

    def _encode(self, followed: Followed, decision: Append) -> Encoded:
        return encode(
            followed.key,
            decision.event,
            source=self._identity.source,
            actor=decision.actor,
            time_ms=self._clock.now_ms(),
        )

    def _send(self, partition: Partition, followed: Followed, outgoing: list[Encoded]) -> None:
        sent = followed.work.ahead.events[-len(outgoing) :]
        offsets = self._append_to_log(partition, followed, outgoing)
        offsets.add_done_callback(partial(self._appended, partition, followed, sent))

    def _append_to_log(
        self, partition: Partition, followed: Followed, events: Iterable[Encoded]
    ) -> "asyncio.Future[tuple[int, ...]]":
        key = followed.key.to_bytes()
        records = [Outgoing(key, event.value, event.headers, event.record.time_ms) for event in events]
        return self._log.appender.append(topic_of(followed.key).name, partition.number, records)

    def _appended(
        self,
        partition: Partition,
        followed: Followed,
        sent: list[SentEvent],
        offsets: "asyncio.Future[tuple[int, ...]]",
    ) -> None:
        """Take events of an append that failed out of the state ahead. One that succeeded is left to be read back."""
        error = offsets.exception()
        if error is None:
            return
        work = followed.work
        self._metrics.append_failures.inc()
        log.warning("append_failed", thread=str(followed.key), events=len(sent), error=str(error))
        work.ahead.withdraw(followed.state, sent)
        if any(isinstance(event.record.data, TurnRecovered) for event in sent):
            work.is_met = False  # the takeover has yet to be recorded
        self._act_on(partition, followed, after_failed_append(error))

    def _message_appended(
        self, partition: Partition, followed: Followed, sending: Sending, _offsets: "asyncio.Future[tuple[int, ...]]"
    ) -> None:
        self._act_on(partition, followed, self._messages.appended(followed, sending))

    # What takes time

    def _call_model(self, partition: Partition, followed: Followed, calling: Calling | Summarising) -> None:
        work = followed.work
        shown = self._transcripts.window(followed)
        request = None if shown is None else self._model_calls.request(followed, calling, shown)
        if request is None:
            self._load_transcript(partition, followed)
            return
        work.calling = calling
        ask = partial(self._model_calls.ask, partition, followed, calling, request)
        work.task = self._spawn(self._act_after(partition, followed, ask), f"model {followed.key}")

    def _load_transcript(self, partition: Partition, followed: Followed) -> None:
        work = followed.work
        if not work.loading and self._transcripts.is_incomplete(followed):
            work.loading = True
            load = partial(self._transcripts.load, partition, followed)
            self._spawn(self._act_after(partition, followed, load), f"transcript {followed.key}")

    def _look_up_children(self, partition: Partition, followed: Followed, wanted: list[ReadChild]) -> None:
        work = followed.work
        if wanted and not work.reading_children:
            work.reading_children = True
            look_up = partial(self._messages.look_up, followed, wanted)
            self._spawn(self._act_after(partition, followed, look_up), f"children {followed.key}")

    async def _act_after(
        self, partition: Partition, followed: Followed, wait_for: Callable[[], Awaitable[Outcome | None]]
    ) -> None:
        self._act_on(partition, followed, await wait_for())

    def _act_on(self, partition: Partition, followed: Followed, outcome: Outcome | None) -> None:
        if outcome is None or self._is_over(partition):
            return
        match outcome:
            case Proceed(first):
                self.advance(partition, followed, first)
            case RetryLater():
                self._set_timer_at_latest(partition, followed, self._clock.now_ms() + self._options.append_retry_ms)
            case SetAside(error):
                self._quarantine(partition, followed, error)

    # Timers

    def _set_timer(self, partition: Partition, followed: Followed, at_ms: int) -> None:
        """Decide again at that time, and not before because of a timer."""
        wake = followed.work.wake
        if wake is None or wake.time_ms != at_ms:
            self._cancel_timer(followed.work)
            followed.work.wake = self._timers.at(at_ms, partial(self._woken, partition, followed))

    def _set_timer_at_latest(self, partition: Partition, followed: Followed, at_ms: int) -> None:
        """Decide again at that time, or earlier if the thread's timer is earlier."""
        wake = followed.work.wake
        if wake is None or wake.time_ms > at_ms:
            self._set_timer(partition, followed, at_ms)

    def _cancel_timer(self, work: Work) -> None:
        """Cancel the thread's timer. A timer keeps the thread in memory, so drop it when nothing is due."""
        if work.wake is not None:
            work.wake.cancel()
            work.wake = None

    def _woken(self, partition: Partition, followed: Followed) -> None:
        followed.work.wake = None
        self.advance(partition, followed)

    def _quarantine(self, partition: Partition, followed: Followed, error: Exception) -> None:
        partition.set_aside(followed, error)
        self.on_quarantined(partition, followed, error)
