"""Reading a thread out of its partition, where no row can be trusted or none is there: the log is enough, and slow."""

from collections.abc import AsyncGenerator, Collection

from schemas.codec import Record, Unreadable, decode
from schemas.ids import ThreadKey
from services.chassis.log.port import Log, TopicPartition

POLL_MS = 500


async def scan(log: Log, tp: TopicPartition, keys: Collection[ThreadKey], until: int) -> AsyncGenerator[Record, None]:
    """The records of these threads from the partition's beginning up to the offset `until`, which is left out, or up to
    the partition's end where that comes first.
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
