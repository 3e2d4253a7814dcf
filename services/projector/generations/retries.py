"""Trying again while the database is away: without end, because the records wait in the log."""

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
    """Do the work until the database answers, and return its result. Only a cancel ends it before.

    Nothing is lost by waiting: the records are in the log. Each failure counts in `retries`, and doubles the pause.
    """
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
