"""Single records out of the log, by their offsets: for what the views do not hold as it was written."""

from collections.abc import Collection

from services.chassis.log.port import Incoming, Log, TopicPartition

POLL_MS = 500
NEAR_RECORDS = 500
"""An offset this close ahead is read up to; a seek costs a fetch."""


async def read_records(log: Log, tp: TopicPartition, offsets: Collection[int]) -> dict[int, Incoming]:
    """Those of the records that the log holds. Ends by the caller's timeout where the log gives nothing."""
    wanted = sorted(offsets)
    found: dict[int, Incoming] = {}
    if not wanted:
        return found
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
