"""How many partitions the log has: chosen once.

A thread is in the partition that its key and their number come to. Where a topic was given more partitions, a process
that starts afterwards would look for threads where they are not, and write where nobody reads. So the database keeps
the number that the views' log had first, and whoever finds another one does not start.

Processes that run when it happens go on with the number that they began with: that is where the threads are. They leave
the added partitions alone, and say so.
"""

import asyncio
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg
import structlog
from prometheus_client import Gauge

from schemas.topics import THREAD_EVENTS
from services.chassis.errors import SetupError
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Log
from services.chassis.postgres.database_setup import AWAY, connect
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.settings import Settings

TOPIC: Final = THREAD_EVENTS.name
LOOK_SECONDS: Final = 5.0
"""Pause between two looks at the number of partitions. The producer keeps it up to date anyway, so a look is free."""

logger = structlog.get_logger()


class OtherPartitionsError(SetupError):
    def __init__(self, topic: str, known: int, found: int) -> None:
        super().__init__(
            f"{topic} has {found} partitions, and had {known} when views of this database were first built from it, so "
            "threads would be looked for where they are not. Kafka takes no partitions away: make the topics anew with "
            f"{known} and copy the records back, or connect to a cluster that has them so (docs/operations.md, under "
            "Number of partitions). Where the topic was made anew on purpose: `threadlog rebuild --new-log`."
        )


def require_same(topic: str, known: int | None, found: int) -> None:
    """None is known of a log that no views were built from. Raises OtherPartitionsError."""
    if known is not None and known != found:
        raise OtherPartitionsError(topic, known, found)


async def check_partitions(settings: Settings, log: Log) -> bool:
    """False where the database, which alone knows, cannot be asked. Raises OtherPartitionsError."""
    cluster_id, found = await log.cluster_id(), await log.partition_count(TOPIC)
    return await _check(settings, cluster_id, found)


async def _check(settings: Settings, cluster_id: str, found: int) -> bool:
    try:
        connection = await connect(settings, settings.postgres_role)
    except SetupError:  # whoever needs it says what is wrong with it
        return False
    try:
        known = await connection.fetchval(_sql()["log_partitions"], cluster_id, TOPIC)
    except (*AWAY, asyncpg.PostgresError):
        return False
    finally:
        connection.terminate()
    require_same(TOPIC, known, found)
    return True


class PartitionWatch:
    """Of a service: `begin` when it starts, then `run` beside it."""

    def __init__(self, settings: Settings, log: KafkaLog, added: Gauge, look_seconds: float = LOOK_SECONDS) -> None:
        self._settings = settings
        self._log = log
        self._added = added
        self._look_seconds = look_seconds
        self._cluster_id = ""
        self._begun_with = 0
        self._seen = 0
        self._is_checked = False

    async def begin(self) -> None:
        """Raises OtherPartitionsError."""
        self._cluster_id = await self._log.cluster_id()
        self._begun_with = self._seen = await self._log.partition_count(TOPIC)
        self._is_checked = await _check(self._settings, self._cluster_id, self._begun_with)

    async def run(self) -> None:
        """Until it is cancelled. Raises OtherPartitionsError where the database could not be asked before."""
        while True:
            await asyncio.sleep(self._look_seconds)
            if not self._is_checked:
                self._is_checked = await _check(self._settings, self._cluster_id, self._begun_with)
            self._look(self._log.partition_count_now(TOPIC))

    def _look(self, found: int | None) -> None:
        if found is None or found == self._seen:
            return
        self._seen = found
        self._added.set(found - self._begun_with)
        if found != self._begun_with:
            logger.error("partitions_added", reason=str(OtherPartitionsError(TOPIC, self._begun_with, found)))


@cache
def _sql() -> SqlFiles:
    return SqlFiles(Path(__file__).with_name("sql"))
