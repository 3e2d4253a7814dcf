"""Progress of threads: text as it comes, and reports of threads that are set aside.

Progress is for whoever watches. Nothing is decided by it and no view keeps it, so it may be lost: an append is not
retried, and it is dropped if it would have to queue behind events.
"""

from schemas.other_topics.progress import Progress, encode_progress
from schemas.topics import THREAD_PROGRESS
from services.chassis.clock import Clock
from services.chassis.log.port import Log, Outgoing
from services.runtime.thread_work import Followed, Partition


class ProgressSender:
    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    def send(self, partition: Partition, followed: Followed, progress: Progress) -> None:
        """Append to the partition of the progress topic that has the number of the thread's own partition."""
        value, headers = encode_progress(progress)
        record = Outgoing(followed.key.to_bytes(), value, headers, self._clock.now_ms())
        self._log.appender.append_lossy(THREAD_PROGRESS.name, partition.number, [record])
