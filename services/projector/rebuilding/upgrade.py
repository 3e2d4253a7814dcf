"""A projector that is newer than the live generation builds its own generation before it joins the group.

The services of the older version, their projector among them, keep working until the new generation has caught up and
is swapped in. If several new projectors start, one of them builds and the others wait for it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from services.chassis.log.port import Log
from services.projector.generations.errors import BusyError
from services.projector.generations.generations import OtherVersionError
from services.projector.generations.retries import retry_while_away
from services.projector.generations.store import Stores
from services.projector.metrics import ProjectorMetrics, RebuildMetrics
from services.projector.rebuilding.progress import Progress
from services.projector.rebuilding.rebuild import rebuild
from services.projector.settings import ProjectorSettings

SAID_EVERY_SECONDS: Final = 10.0
"""The pause between two log lines about the progress. Metrics show it at any time."""

logger = structlog.get_logger()


async def own_generation_live(
    log: Log, stores: Stores, dsn: str, settings: ProjectorSettings, metrics: ProjectorMetrics
) -> None:
    """Return once the live generation is of this version.

    Raises OtherVersionError if this version is the older one, or if the settings say to refuse; and what `Stores.live`
    and `rebuild` raise.
    """
    cluster_id = await log.cluster_id()
    while True:
        try:
            await retry_while_away(lambda: stores.live(cluster_id), settings, metrics.retries)
        except OtherVersionError as error:
            if settings.projector_other_version == "refuse" or not error.is_older_than_software:
                raise
            logger.info("own_generation_started", reason=str(error))
        else:
            return
        try:
            await rebuild(log, dsn, settings, _Saying(metrics.rebuild), keep_old=settings.projector_keep_old)
        except BusyError:
            logger.info("own_generation_delayed")
            await asyncio.sleep(settings.limits.look_seconds)


class _Saying:
    """Shows the progress in the metrics, and logs it every few seconds."""

    def __init__(self, metrics: RebuildMetrics) -> None:
        self._metrics = metrics
        self._said_at = float("-inf")

    def __call__(self, progress: Progress) -> None:
        progress.show_in(self._metrics)
        if progress.seconds - self._said_at >= SAID_EVERY_SECONDS:
            self._said_at = progress.seconds
            logger.info(
                "generation_building",
                generation=progress.generation,
                phase=progress.phase,
                records_done=progress.records_done,
                records_total=progress.records_total,
                records_per_second=round(progress.records_per_second),
            )


async def done_before(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work unless the process has to stop first; return whether it was done. What was built stays."""
    working = asyncio.create_task(work, name="own-generation")
    stop = asyncio.create_task(stopping.wait(), name="stopping")
    try:
        await asyncio.wait([working, stop], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        stop.cancel()
        await asyncio.wait([working, stop])
