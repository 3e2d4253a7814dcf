"""A thread's transcript in memory: loaded when a decision needs it, kept up by its records."""

import structlog

from schemas.codec import Record
from schemas.errors import ThreadlogError
from schemas.state import ThreadState
from schemas.thread import Verdict
from schemas.topics import topic_of
from schemas.transcript import Transcript, transcript_changes
from services.chassis.clock import Clock
from services.chassis.log.port import Log, TopicPartition
from services.chassis.process.lifecycle import Spawn
from services.chassis.threads.contexts import read_inherited, reading
from services.runtime.deciding.children import answer_text
from services.runtime.deciding.context import Window, window
from services.runtime.metrics import RuntimeMetrics
from services.runtime.thread_work import Advancing, Held, Partition, RuntimeOptions
from services.runtime.transcript_store import TranscriptStore, scan_transcript

log = structlog.get_logger()


class Transcripts:
    def __init__(
        self,
        *,
        loop: Advancing,
        log_: Log,
        clock: Clock,
        store: TranscriptStore,
        spawn: Spawn,
        options: RuntimeOptions,
        metrics: RuntimeMetrics,
    ) -> None:
        self._loop = loop
        self._log = log_
        self._clock = clock
        self.store = store
        self._spawn = spawn
        self._options = options
        self._metrics = metrics

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

    def answer(self, held: Held, turn: int, step: int) -> str | None:
        """The texts of what a model answered in that step; None while the transcript is not loaded."""
        transcript = held.work.transcript
        if transcript is None:
            return None
        return answer_text(
            item.content
            for item in transcript.items
            if item.turn == turn and item.step == step and item.kind == "message" and item.input is None
        )

    def window(self, held: Held) -> Window | None:
        work = held.work
        transcript = work.transcript
        if transcript is None or transcript.lacks_inherited or work.transcript_seq > held.state.seq:
            return None
        ahead = [change for pending in work.pending for change in pending.changes]
        return window(transcript, ahead, held.state.seq)

    def load(self, partition: Partition, held: Held) -> None:
        """One that is ahead of the state is not read again: the records that it has in it are on their way."""
        work = held.work
        if not work.loading and (work.transcript is None or work.transcript.lacks_inherited):
            work.loading = True
            self._spawn(self._load(partition, held), f"transcript {held.key}")

    async def _load(self, partition: Partition, held: Held) -> None:
        """First its own items, then, where it turns out to need them, those that it inherits."""
        work = held.work
        try:
            if work.transcript is None:
                await self._load_own(partition, held)
            else:
                await self._load_inherited(held, work.transcript)
        except ThreadlogError as error:
            log.warning("transcript_not_loaded", thread=str(held.key), error=str(error))
            work.loading = False
            if not self._loop.is_over(partition):
                self._loop.look_again(partition, held, self._clock.now_ms() + self._options.append_retry_ms)
            return
        except Exception as error:  # noqa: BLE001  # what is stored of one thread must not stop the service
            work.loading = False
            if not partition.lost:
                self._loop.quarantine(partition, held, error)
            return
        work.loading = False
        self._loop.advance(partition, held)

    async def _load_inherited(self, held: Held, transcript: Transcript) -> None:
        """What a parent showed at a seq stays as it was, so this may take its time. Raises BrokenLineageError."""
        assert transcript.forked is not None
        read = reading(self.store, self._log)
        transcript.inherited = await read_inherited(held.key.tenant, transcript.forked, read)
        self._metrics.transcripts_loaded.labels("parents").inc()

    async def _load_own(self, partition: Partition, held: Held) -> None:
        work = held.work
        cold, source = await self.store.load(held.key), "items"
        if cold is not None:
            cold.apply(work.buffered)
        if cold is None or cold.seq < max(held.loaded_seq, work.rows_from_seq) or cold.transcript.lacks_items:
            tp = TopicPartition(topic_of(held.key).name, partition.number)
            cold, source = await scan_transcript(self._log, tp, held.key, held.state.offset + 1), "scan"
            cold.apply(work.buffered)
        self._metrics.transcripts_loaded.labels(source).inc()
        work.transcript, work.transcript_seq, work.buffered = cold.transcript, cold.seq, []
