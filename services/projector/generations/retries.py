import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from prometheus_client import Counter

from services.chassis.backoff import backoff_seconds
from services.projector.generations.errors import StoreAwayError
from services.projector.settings import ProjectorSettings

logger = structlog.get_logger()

T = TypeVar("T")


async def retry_while_away(work: Callable[[], Awaitable[T]], settings: ProjectorSettings, retries: Counter) -> T:
    """Until the database answers: records wait in the log, so nothing is lost by waiting. Ends by being cancelled."""
    limits = settings.limits
    failures = 0
    while True:
        try:
            return await work()
        except StoreAwayError as error:
            retries.inc()
            failures += 1
            pause = backoff_seconds(failures, limits.retry_seconds, limits.retry_seconds_max)
            logger.warning("database_away", error=str(error), again_in_seconds=pause)
        await asyncio.sleep(pause)
