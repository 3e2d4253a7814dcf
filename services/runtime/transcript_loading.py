"""A thread's transcript in memory: loaded when a decision needs it, kept up to date by the thread's records.

Most threads in memory are idle or wait for tools, so a transcript is loaded only when a model is about to be asked.
What records change in it until then is buffered. The loaded rows and the buffer overlap; the seq of each change says
what the rows contain already.

The rows come from the projector, which may be behind this process. If they do not reach the seq from which the buffer
is whole, the thread is read out of its partition instead: slower, and always right.
"""

import structlog

from schemas.codec import Record
from schemas.errors import ThreadlogError
from schemas.state import ThreadState
from schemas.thread import Verdict
from schemas.topics import topic_of
from schemas.transcript import Transcript, transcript_changes
from services.chassis.log.port import Log, TopicPartition
from services.chassis.threads.contexts import read_inherited, reading
from services.runtime.deciding.children import answer_text
from services.runtime.deciding.context import Window, window
from services.runtime.metrics import RuntimeMetrics
from services.runtime.outcomes import Outcome, Proceed, RetryLater, SetAside
from services.runtime.thread_work import Followed, Partition
from services.runtime.transcript_store import TranscriptStore, scan_transcript

log = structlog.get_logger()


class Transcripts:
    def __init__(self, *, log_: Log, store: TranscriptStore, metrics: RuntimeMetrics) -> None:
        self._log = log_
        self.store = store
        self._metrics = metrics

    def on_record(self, followed: Followed, before: ThreadState, record: Record, verdict: Verdict) -> None:
        work = followed.work
        if before.seq == 0 and followed.from_start:
            work.transcript = Transcript()
        changes = transcript_changes(before, followed.state, record, verdict)
        if work.transcript is not None:
            if followed.state.seq > work.transcript_seq:
                work.transcript.apply(changes)
                if work.transcript.lacks_items:
                    # A rewind shows items again that were not loaded. Only rows as of this record have them.
                    work.transcript, work.rows_from_seq = None, followed.state.seq
        elif changes:
            work.buffered.append((followed.state.seq, changes))

    def answer(self, followed: Followed, turn: int, step: int) -> str | None:
        """Return the texts that the model answered in that step; None while the transcript is not loaded."""
        transcript = followed.work.transcript
        if transcript is None:
            return None
        return answer_text(
            item.content
            for item in transcript.items
            if item.turn == turn and item.step == step and item.kind == "message" and item.input is None
        )

    def window(self, followed: Followed) -> Window | None:
        """Return the context as of the state ahead; None until the transcript is loaded and the state has caught up."""
        work = followed.work
        transcript = work.transcript
        if transcript is None or transcript.lacks_inherited or work.transcript_seq > followed.state.seq:
            return None
        ahead = [change for event in work.ahead.events for change in event.changes]
        return window(transcript, ahead, followed.state.seq)

    def is_incomplete(self, followed: Followed) -> bool:
        """Whether there is something to load.

        A transcript that is ahead of the state is complete: the records that are in it already are on their way here.
        """
        transcript = followed.work.transcript
        return transcript is None or transcript.lacks_inherited

    async def load(self, partition: Partition, followed: Followed) -> Outcome:
        """Load the thread's own items; if they are loaded, the items that a fork inherits. Never raises.

        Own items come first because they show whether inherited ones are needed: a summary may stand for them.
        """
        work = followed.work
        try:
            if work.transcript is None:
                await self._load_own(partition, followed)
            else:
                await self._load_inherited(followed, work.transcript)
        except ThreadlogError as error:
            log.warning("transcript_load_failed", thread=str(followed.key), error=str(error))
            return RetryLater()
        except Exception as error:  # what is stored of one thread must not stop the service
            log.exception("transcript_load_failed", thread=str(followed.key))
            return SetAside(error)
        finally:
            work.loading = False
        return Proceed()

    async def _load_inherited(self, followed: Followed, transcript: Transcript) -> None:
        """Load what the parents showed. Raises BrokenLineageError.

        What a parent showed at a seq never changes, so it does not matter how long this takes.
        """
        assert transcript.forked is not None
        read = reading(self.store, self._log)
        transcript.inherited = await read_inherited(followed.key.tenant, transcript.forked, read)
        self._metrics.transcripts_loaded.labels("parents").inc()

    async def _load_own(self, partition: Partition, followed: Followed) -> None:
        work = followed.work
        cold, source = await self.store.load(followed.key), "items"
        if cold is not None:
            cold.apply(work.buffered)
        if cold is None or cold.seq < max(followed.loaded_seq, work.rows_from_seq) or cold.transcript.lacks_items:
            tp = TopicPartition(topic_of(followed.key).name, partition.number)
            cold, source = await scan_transcript(self._log, tp, followed.key, followed.state.offset + 1), "scan"
            cold.apply(work.buffered)
        self._metrics.transcripts_loaded.labels(source).inc()
        work.transcript, work.transcript_seq, work.buffered = cold.transcript, cold.seq, []
