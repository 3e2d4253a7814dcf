"""Partitions that went to another executor while calls of theirs still run here.

They are read on, outside the group, so that claims under way are read back and cancels reach what runs.
"""

from collections.abc import Callable, Mapping

import structlog

from schemas.codec import Unreadable, decode
from schemas.ids import ThreadKey
from schemas.thread import fold
from services.chassis.log.port import Incoming, Log, TopicPartition
from services.tool_executor.executing.work import Held, Partition

POLL_MS = 500

log = structlog.get_logger()


async def read_on(
    log_: Log,
    topic: str,
    partition: Partition,
    strays: Mapping[ThreadKey, Held],
    are_wanted: Callable[[], bool],
    look_at: Callable[[Partition, Held], None],
) -> None:
    """Folds the records of these threads, and has each looked at, for as long as they are wanted."""
    tp = TopicPartition(topic, partition.number)
    by_key = {key.to_bytes(): held for key, held in strays.items()}
    reader = await log_.reader({tp: partition.next_offset})
    try:
        while are_wanted():
            for _, records in await reader.poll(POLL_MS):
                for record in records:
                    held = by_key.get(record.key or b"")
                    if held is None or held.quarantined is not None or not are_wanted():
                        continue
                    if _fold(partition, held, record):
                        look_at(partition, held)
    finally:
        await reader.close()


def _fold(partition: Partition, held: Held, raw: Incoming) -> bool:
    """One that cannot be folded is set aside, as in a partition that is owned; what runs of it runs to its end."""
    record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
    if isinstance(record, Unreadable) or record.offset <= held.state.offset:
        return False
    try:
        held.state, _ = fold(held.state, record)
    except Exception as error:
        partition.set_aside(held, error)
        log.exception("stray_not_folded", thread=str(held.key), partition=partition.number)
        return False
    return True
