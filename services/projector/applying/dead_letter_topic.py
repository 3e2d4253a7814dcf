"""Dead letters are published on their topic."""

import asyncio
from collections.abc import Sequence

import structlog

from schemas.topics import THREAD_EVENTS_DLQ
from services.chassis.log.port import Appender, LogError
from services.projector.metrics import ProjectorMetrics
from services.projector.projections.dead_letters import VALUE_BYTES_MAX, DeadLetter, dead_letter_record
from services.projector.settings import ProjectorSettings

logger = structlog.get_logger()


class DeadLetterTopic:
    """Publishes at least once: it is called before the commit, so a crash in between publishes again."""

    def __init__(self, appender: Appender, settings: ProjectorSettings, metrics: ProjectorMetrics) -> None:
        self._appender = appender
        self._settings = settings
        self._metrics = metrics

    async def publish(self, dead: Sequence[DeadLetter]) -> None:
        """Publish, and return once the log has taken them. A letter that it refuses for good is only in the table."""
        await asyncio.gather(*[self._publish_one(letter) for letter in dead])

    async def _publish_one(self, letter: DeadLetter) -> None:
        record = dead_letter_record(letter, VALUE_BYTES_MAX)
        while True:
            try:
                await self._appender.append(THREAD_EVENTS_DLQ.name, letter.incoming.partition, [record])
                return
            except LogError as error:
                if not error.retriable:
                    self._metrics.dead_letters_unpublished.inc()
                    logger.error("dead_letter_refused", offset=letter.incoming.offset, error=str(error))
                    return
                logger.warning("dead_letter_topic_away", error=str(error))
            await asyncio.sleep(self._settings.limits.retry_seconds_max)
