"""Hold the number of the log's partitions, which is chosen once.

A thread is in the partition that results from its key and the number of partitions. If a topic gets more partitions, a
process that starts afterwards would look for threads in the wrong ones, and write where nobody reads. So the database
keeps the number that the views' log had first, and a process that finds another one does not start.

Processes that run at that moment continue with the number that they began with: that is where the threads are. They do
not read the added partitions, and report them.
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
    """The log has another number of partitions than its threads were placed by."""

    def __init__(self, topic: str, known: int, found: int) -> None:
        super().__init__(
            f"{topic} has {found} partitions, and had {known} when views of this database were first built from it, so "
            "threads would be looked for where they are not. Kafka takes no partitions away: make the topics anew with "
            f"{known} and copy the records back, or connect to a cluster that has them so (docs/operations.md, under "
            "Number of partitions). Where the topic was made anew on purpose: `threadlog rebuild --new-log`."
        )


def require_same(topic: str, known: int | None, found: int) -> None:
    """Raise OtherPartitionsError if the numbers differ. `known` is None for a log that no views were built from."""
    if known is not None and known != found:
        raise OtherPartitionsError(topic, known, found)


async def check_partitions(settings: Settings, log: Log) -> bool:
    """Raise OtherPartitionsError if the log has another number of partitions than the database remembers.

    Return False if the database, which alone knows the first number, cannot be asked.
    """
    cluster_id, found = await log.cluster_id(), await log.partition_count(TOPIC)
    return await _check(settings, cluster_id, found)


async def _check(settings: Settings, cluster_id: str, found: int) -> bool:
    try:
        connection = await connect(settings, settings.postgres_role)
    except SetupError:  # the part of the service that needs the database reports what is wrong with it
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
    """A service's watch on the number of partitions: `begin` at its start, then `run` as a task."""

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
        """Note the number at the start, and check it. Raise OtherPartitionsError."""
        self._cluster_id = await self._log.cluster_id()
        self._begun_with = self._seen = await self._log.partition_count(TOPIC)
        self._is_checked = await _check(self._settings, self._cluster_id, self._begun_with)

    async def run(self) -> None:
        """Watch until cancelled. Raise OtherPartitionsError if the database could not be asked before and differs."""
        while True:
            await asyncio.sleep(self._look_seconds)
            if not self._is_checked:
                self._is_checked = await _check(self._settings, self._cluster_id, self._begun_with)
            self._look(self._log.partition_count_now(TOPIC))

    def _look(self, found: int | None) -> None:
        """Report a change once. None means that the producer has no metadata now."""
        if found is None or found == self._seen:
            return
        self._seen = found
        self._added.set(found - self._begun_with)
        if found != self._begun_with:
            logger.error("partitions_added", reason=str(OtherPartitionsError(TOPIC, self._begun_with, found)))


@cache
def _sql() -> SqlFiles:
    return SqlFiles(Path(__file__).with_name("sql"))
