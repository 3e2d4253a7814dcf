"""What a thread's records in the log come to, read and folded anew, by nothing but the kernel."""

from demo.evidence import Logged
from schemas import state
from schemas.codec import Unreadable, decode
from schemas.ids import ThreadKey
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Log, TopicPartition

POLL_MS = 200


async def logged_records(log: Log, key: ThreadKey) -> list[Logged]:
    """From the beginning of its partition to the end as of now."""
    topic = THREAD_EVENTS.name
    tp = TopicPartition(topic, log.partition_for(key.to_bytes(), await log.partition_count(topic)))
    at = (await log.begin_offsets([tp]))[tp]
    end = (await log.end_offsets([tp]))[tp]
    logged: list[Logged] = []
    folded = state.NOTHING
    reader = await log.reader({tp: at})
    try:
        while at < end:
            for _, records in await reader.poll(POLL_MS):
                for incoming in records:
                    at = incoming.offset + 1
                    record = decode(
                        incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms
                    )
                    if isinstance(record, Unreadable) or record.key != key:
                        continue
                    folded, verdict = fold(folded, record)
                    logged.append(Logged(folded.seq, record, verdict.effect))
    finally:
        await reader.close()
    return logged
