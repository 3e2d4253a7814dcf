"""Whether views are what their log comes to: a fold from zero with the projector's own projections, compared row by row.

The fold knows nothing of batches, positions, claims, caches or restarts: it takes each partition in one batch, and in
halves only where the database refuses a record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.codec import Record, Unreadable, decode
from schemas.ids import ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Incoming
from services.projector.generations.errors import RowRefusedError
from services.projector.generations.store import Span
from services.projector.projections.batch import Batch, Kept, Refused
from services.projector.projections.dead_letters import VALUE_BYTES_MAX
from tests.support.memory.tables import Refuses, Tables, first_difference
from tests.support.memory.views import MemoryViews

Decode = Callable[[Incoming], Record | Unreadable]
Decoded = tuple[Incoming, Record | Unreadable]


def decode_incoming(incoming: Incoming) -> Record | Unreadable:
    return decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)


def assert_views_equal(
    views: MemoryViews,
    records: Mapping[int, Sequence[Incoming]],
    partition_of: Callable[[ThreadKey], int],
    decode_one: Decode = decode_incoming,
) -> None:
    """`records` by partition: all of the log, which the views must have caught up with."""
    assert views.tables is not None, "there are no views"
    expected = fold_from_zero(records, partition_of, decode_one, views.refuses)
    difference = first_difference(expected, views.tables)
    assert difference is None, f"the views are not what the log comes to: {difference}"


def fold_from_zero(
    records: Mapping[int, Sequence[Incoming]],
    partition_of: Callable[[ThreadKey], int],
    decode_one: Decode = decode_incoming,
    refuses: Refuses | None = None,
) -> Tables:
    tables = Tables()
    tables.claim(records, "fold", "cluster")
    fold = Fold(tables, partition_of, refuses)
    for of_partition in records.values():
        parts = [[(incoming, decode_one(incoming)) for incoming in of_partition]]
        while parts:
            part = parts.pop()
            try:
                fold.take(part)
            except RowRefusedError as error:
                middle = len(part) // 2
                if middle > 0:
                    parts += [part[middle:], part[:middle]]
                else:
                    incoming = part[0][0]
                    reason = f"the database refuses a row of it: {error}"
                    fold.take(part, Refused(incoming.partition, incoming.offset, reason))
    return tables


@dataclass
class Fold:
    """Partitions have to be claimed."""

    tables: Tables
    partition_of: Callable[[ThreadKey], int]
    refuses: Refuses | None = None
    kept: dict[ThreadKey, Kept] = field(default_factory=dict)

    def take(self, part: Sequence[Decoded], refused: Refused | None = None) -> None:
        """Records of one partition, as one batch. Raises RowRefusedError; then nothing of them is taken."""
        if not part:
            return
        batch = Batch(THREAD_EVENTS.name, self.kept, self.partition_of, VALUE_BYTES_MAX, refused)
        for incoming, decoded in part:
            batch.take(incoming, decoded)
        batch.finish()
        partition, end = part[0][0].partition, part[-1][0].offset + 1
        at = self.tables.positions[partition]
        self.tables.commit(batch, [Span(partition, at.owner_epoch, at.next_offset, end)], self.refuses)
        self.kept.update(batch.kept)
