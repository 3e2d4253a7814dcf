"""Read threads out of their partition, if no row can be trusted or none exists: the log is enough, but slow.

The cost is a reading of the whole partition, so callers collect threads and wait for the store first.
"""

from collections.abc import AsyncGenerator, Collection
from typing import Final

from schemas.codec import Record, Unreadable, decode
from schemas.ids import ThreadKey
from services.chassis.log.port import Log, TopicPartition

POLL_MS: Final = 500
"""How long one poll waits. The records are there already, so only a log that is away lets it wait."""


async def scan(log: Log, tp: TopicPartition, keys: Collection[ThreadKey], until: int) -> AsyncGenerator[Record, None]:
    """Yield the records of these threads, from the partition's beginning up to but without the offset `until`.

    The partition's end counts if it comes first. Unreadable records are left out, as everywhere. Raise LogError.
    """
    raw_keys = {key.to_bytes() for key in keys}
    begin = (await log.begin_offsets([tp]))[tp]
    until = min(until, (await log.end_offsets([tp]))[tp])
    if begin >= until:
        return
    reader = await log.reader({tp: begin})
    try:
        while reader.position(tp) < until:
            for _, records in await reader.poll(POLL_MS):
                for raw in records:
                    if raw.offset >= until or raw.key not in raw_keys:
                        continue
                    record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
                    if not isinstance(record, Unreadable):
                        yield record
    finally:
        await reader.close()
