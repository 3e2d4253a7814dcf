"""Calls that still run here although their partition went to another executor.

Their records are still read, outside of the consumer group, so that claims under way are read back and cancels reach
the tools. The new owner sees the claims as those of another executor and watches their leases; nothing is claimed from
here any more. Reading ends once the calls' ends are recorded, or the partition comes back.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final

import structlog

from schemas.codec import Unreadable, decode
from schemas.ids import ThreadKey
from schemas.thread import fold
from services.chassis.log.port import Incoming, Log, LogUnavailableError, TopicPartition
from services.chassis.process.lifecycle import Spawn
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.runs import Runs
from services.tool_executor.executing.work import Followed, Partition

POLL_MS: Final = 500
"""How long one read waits for records, and so how late the end of the last call is noticed."""

log = structlog.get_logger()


class OrphanedCalls:
    def __init__(
        self,
        log_: Log,
        runs: Runs,
        owned: Mapping[int, Partition],
        tend: Callable[[Partition, Followed], None],
        spawn: Spawn,
        options: ExecutorOptions,
    ) -> None:
        """`tend` acts on a thread's runs after each record that was folded onto it."""
        self.followed: set[ThreadKey] = set()
        """Threads of lost partitions whose records are still read."""
        self._log = log_
        self._runs = runs
        self._owned = owned
        self._tend = tend
        self._spawn = spawn
        self._options = options

    def follow(self, partition: Partition, threads: Iterable[Followed]) -> None:
        """Follow those of the threads that have runs, unless an earlier loss of the partition does so already."""
        orphaned = {
            followed.key: followed
            for followed in threads
            if self._runs.has_any(followed.key) and followed.key not in self.followed
        }
        if orphaned:
            self.followed.update(orphaned)
            self._spawn(self._follow(partition, orphaned), f"orphaned calls of partition {partition.number}")

    async def _follow(self, partition: Partition, orphaned: Mapping[ThreadKey, Followed]) -> None:
        def are_wanted() -> bool:
            return partition.number not in self._owned and any(map(self._runs.has_any, orphaned))

        try:
            while are_wanted():
                try:
                    async with aclosing(
                        changed_threads(self._log, self._options.topic, partition, orphaned, are_wanted)
                    ) as changed:
                        async for followed in changed:
                            self._tend(partition, followed)
                except LogUnavailableError as error:
                    log.warning("orphaned_calls_not_read", partition=partition.number, error=str(error))
                    await asyncio.sleep(self._options.append_retry_ms / 1000)
        finally:
            self.followed.difference_update(orphaned)


async def changed_threads(
    log_: Log,
    topic: str,
    partition: Partition,
    orphaned: Mapping[ThreadKey, Followed],
    are_wanted: Callable[[], bool],
) -> AsyncGenerator[Followed]:
    """Yield each of the threads after a record was folded onto it. Raises LogUnavailableError.

    Starts where the partition was lost, also after an error: records at or below a thread's own offset are skipped.
    """
    topic_partition = TopicPartition(topic, partition.number)
    by_key = {key.to_bytes(): followed for key, followed in orphaned.items()}
    reader = await log_.reader({topic_partition: partition.next_offset})
    try:
        while are_wanted():
            for _, records in await reader.poll(POLL_MS):
                for record in records:
                    followed = by_key.get(record.key or b"")
                    if followed is None or followed.quarantined is not None or not are_wanted():
                        continue
                    if _fold(partition, followed, record):
                        yield followed
    finally:
        await reader.close()


def _fold(partition: Partition, followed: Followed, raw: Incoming) -> bool:
    """Return whether the record changed the thread.

    A thread that cannot be folded is set aside, as in a partition that is owned. Its tools run to their end.
    """
    record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
    if isinstance(record, Unreadable) or record.offset <= followed.state.offset:
        return False
    try:
        followed.state, _ = fold(followed.state, record)
    except Exception as error:
        partition.set_aside(followed, error)
        log.exception("orphaned_thread_not_folded", thread=str(followed.key), partition=partition.number)
        return False
    return True
