from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from services.chassis.log.port import Incoming
from services.ingest.streams.ring import RECORD_OVERHEAD_BYTES, Ring

STEPS = st.lists(st.tuples(st.integers(0, 1), st.lists(st.sampled_from([None, b"a", b"b"]), min_size=1, max_size=4)))


def record(partition: int, offset: int, key: bytes | None, value: bytes = b"") -> Incoming:
    return Incoming("thread-events", partition, offset, 0, key, value, ())


@given(STEPS, st.integers(0, 8))
def test_from_begin_on_nothing_is_missing(steps: list[tuple[int, list[bytes | None]]], room: int) -> None:
    ring = Ring([5, 0], room * (RECORD_OVERHEAD_BYTES + 1))
    read: dict[tuple[int, bytes], list[Incoming]] = defaultdict(list)
    ends = [5, 0]
    for partition, keys in steps:
        records = [record(partition, ends[partition] + n, key) for n, key in enumerate(keys)]
        ends[partition] += len(keys)
        ring.append(partition, records)
        for item in records:
            if item.key is not None:
                read[partition, item.key].append(item)
        assert ring.payload_bytes <= room * (RECORD_OVERHEAD_BYTES + 1)
    for (partition, key), records in read.items():
        begin = ring.begin(partition)
        assert ring.of(partition, key, begin) == [item for item in records if item.offset >= begin]


def test_a_record_larger_than_the_ring_is_not_kept() -> None:
    ring = Ring([0], RECORD_OVERHEAD_BYTES)
    ring.append(0, [record(0, 0, b"a", b"x" * 10)])
    assert (ring.begin(0), ring.payload_bytes, ring.of(0, b"a", 1)) == (1, 0, [])
