"""Single records out of the log, by their offsets: for what the views do not hold as it was written."""

from collections.abc import Collection

from services.chassis.log.port import Incoming, Log, TopicPartition

POLL_MS = 500
"""How long the broker may hold a poll that finds nothing."""
NEAR_RECORDS = 500
"""An offset at most this far ahead is reached by reading on. A seek costs a fetch, and so do about so many records."""


async def read_records(log: Log, tp: TopicPartition, offsets: Collection[int]) -> dict[int, Incoming]:
    """Return those of the records that the log holds, by offset. It ends by the caller's timeout if the log returns
    nothing.
    """
    wanted = sorted(offsets)
    found: dict[int, Incoming] = {}
    if not wanted:
        return found
    # One reader, forwards only: what is wanted is a few records in order, often close together.
    reader = await log.reader({tp: wanted[0]})
    try:
        for offset in wanted:
            if offset - reader.position(tp) > NEAR_RECORDS:
                reader.seek(tp, offset)
            while reader.position(tp) <= offset:
                for _, records in await reader.poll(POLL_MS):
                    found.update({record.offset: record for record in records if record.offset in offsets})
    finally:
        await reader.close()
    return found
