"""Appends of this executor: events, which are acknowledged, and progress, which may be lost."""

import asyncio
from collections.abc import Sequence
from typing import Final

from schemas.codec import Encoded, encode
from schemas.errors import LimitError
from schemas.events import Event, ToolCallFinished, ToolCallResolved
from schemas.ids import ThreadKey
from schemas.other_topics.progress import Progress, encode_progress
from schemas.topics import THREAD_PROGRESS, topic_of
from services.chassis.clock import Clock
from services.chassis.log.port import Log, Outgoing
from services.tool_executor.output import text_result

EXECUTOR: Final = "service:tool-executor"
"""The actor of its events, as readers of the log see it."""


class Appends:
    """Encodes what this executor has to say, and hands it to the log's client. It waits for nothing itself."""

    def __init__(self, log_: Log, clock: Clock, instance: str) -> None:
        self._log = log_
        self._clock = clock
        self._source = f"tool-executor/{instance}"

    def events(self, partition: int, key: ThreadKey, events: Sequence[Event]) -> "asyncio.Future[tuple[int, ...]]":
        """Append the events as one batch; the future holds their offsets once they are acknowledged.

        An end whose result is too large for a record is appended without it: an end must never fail for its size.
        """
        now = self._clock.now_ms()
        outgoing = []
        for event in events:
            try:
                encoded = self._encode(key, event, now)
            except LimitError as error:
                encoded = self._encode(key, _without_result(event, str(error)), now)
            outgoing.append(Outgoing(key.to_bytes(), encoded.value, encoded.headers, now))
        return self._log.appender.append(topic_of(key).name, partition, outgoing)

    def progress(self, partition: int, key: ThreadKey, progress: Progress) -> None:
        """Append to the progress topic without waiting. A full queue drops it, which changes no state."""
        value, headers = encode_progress(progress)
        outgoing = Outgoing(key.to_bytes(), value, headers, self._clock.now_ms())
        self._log.appender.append_lossy(THREAD_PROGRESS.name, partition, [outgoing])

    def _encode(self, key: ThreadKey, event: Event, now_ms: int) -> Encoded:
        return encode(key, event, source=self._source, actor=EXECUTOR, time_ms=now_ms)


def _without_result(event: Event, why: str) -> Event:
    """Return the end with the reason in place of its result."""
    if isinstance(event, ToolCallFinished):
        return event.model_copy(update={"result": text_result(why, True), "changes": (), "artifacts": ()})
    if isinstance(event, ToolCallResolved):
        return event.model_copy(update={"result": text_result(why, True)})
    return event
