"""Whether the log is the one that the views were built from: the last record of each partition must be the same.

A topic that was deleted and created again has the same name, in a cluster with the same id, and may have grown beyond
the position of the views. Offsets alone do not show that. But at the offset before the position it has another record,
whose digest differs from the stored one.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Final

import structlog

from services.chassis.log.port import Incoming, Log, TopicPartition

POLL_MS: Final = 100
LAST_RECORD_SECONDS: Final = 10.0
"""How long a last record is waited for. A start must not hang on a broker that does not answer, so a partition that was
not read in time counts as the same log.
"""

logger = structlog.get_logger()


def digest_of(record: Incoming) -> str:
    """Return a digest of everything that the writer put into the record: key, value and headers.

    Each part goes in with its length, so that no two records give the same bytes. What the broker adds is left out.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (record.key, record.value, *[part for header in record.headers for part in header]):
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if raw is None else b"%d:%b" % (len(raw), raw))
    return digest.hexdigest()


async def replaced_records(
    log: Log, digests: Mapping[TopicPartition, tuple[int, str]], timeout_seconds: float = LAST_RECORD_SECONDS
) -> list[TopicPartition]:
    """Return the partitions whose record at the given offset has another digest than the given one.

    The log has to reach these offsets. A record that cannot be read in time, or that retention has removed, is not
    judged: its partition is not among the result.
    """
    begins = await log.begin_offsets(digests)
    wanted = {tp: offset for tp, (offset, _) in digests.items() if offset >= begins[tp]}
    found: dict[TopicPartition, Incoming] = {}
    reader = await log.reader(wanted)
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            while len(found) < len(wanted):
                for tp, records in await reader.poll(POLL_MS):
                    found.setdefault(tp, records[0])
    except TimeoutError:
        if not limit.expired():
            raise
        logger.warning("last_records_timed_out", partitions=sorted(tp.partition for tp in wanted.keys() - found))
    finally:
        await reader.close()
    return [tp for tp, record in found.items() if record.offset == wanted[tp] and digest_of(record) != digests[tp][1]]
