"""The newest records of every partition, raw, in bounded memory, found by key.

A watch that starts a little behind the shared reader is served from here instead of from the log.
"""

from collections import deque
from collections.abc import Sequence

from services.chassis.log.port import Incoming

RECORD_OVERHEAD_BYTES = 2_000
"""About what a record's headers and objects take in memory beside its key and value."""


class Ring:
    """Newest records of one topic. The oldest record leaves first, whatever its partition."""

    def __init__(self, begins: Sequence[int], bytes_max: int) -> None:
        """`begins` is, per partition, the offset at which its reading starts."""
        self._bytes_max = bytes_max
        self._begins = list(begins)
        self._order: deque[Incoming] = deque()
        self._by_key: list[dict[bytes, deque[Incoming]]] = [{} for _ in begins]
        self.payload_bytes = 0

    def begin(self, partition: int) -> int:
        """Return the offset from which on every record that was read is still here."""
        return self._begins[partition]

    def append(self, partition: int, records: Sequence[Incoming]) -> None:
        """Keep the records of a poll, and drop the oldest ones beyond the limit."""
        by_key = self._by_key[partition]
        for record in records:
            if record.key is None:
                continue  # A record without a key belongs to no thread.
            of_key = by_key.get(record.key)
            if of_key is None:
                by_key[record.key] = of_key = deque()
            of_key.append(record)
            self._order.append(record)
            self.payload_bytes += _size(record)
        while self.payload_bytes > self._bytes_max:
            self._drop_oldest()

    def of(self, partition: int, key: bytes, offset: int) -> list[Incoming]:
        """Return the key's records from this offset on, which is not below `begin`."""
        return [record for record in self._by_key[partition].get(key, ()) if record.offset >= offset]

    def _drop_oldest(self) -> None:
        record = self._order.popleft()
        assert record.key is not None, "others are not kept"
        by_key = self._by_key[record.partition]
        of_key = by_key[record.key]
        of_key.popleft()
        if not of_key:
            del by_key[record.key]
        self._begins[record.partition] = record.offset + 1
        self.payload_bytes -= _size(record)


def _size(record: Incoming) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
