"""The port to where the projector keeps the views.

It has two implementations: `postgres_store`, and the one in memory of the tests. Both pass
`tests/contract/test_projector_store.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from schemas.ids import ThreadKey
from services.projector.generations.errors import UNCLAIMED, FenceError, StoredPosition
from services.projector.projections.batch import Batch, Kept


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    fold_version: int
    projection_version: int
    cluster_id: str
    topic: str

    @property
    def schema(self) -> str:
        return f"views_g{self.number}"


class Claim(NamedTuple):
    """What a claim of a partition returns: where its rows end, and the epoch under which they may now be written."""

    next_offset: int
    owner_epoch: int
    cluster_id: str
    last_record: str = ""
    """Digest of the last record below `next_offset`, as its span had it; empty if it is not known."""


class Span(NamedTuple):
    """The range of a partition's records in a batch, and the epoch of the claim under which they were read."""

    partition: int
    owner_epoch: int
    from_offset: int
    to_offset: int
    last_record: str = ""
    """Digest of the last of them (`record_digests.digest_of`)."""


class GenerationStore(Protocol):
    """One generation. Loads and writes may run at the same time, two of the same kind may not.

    All raise StoreAwayError while the database is away, GenerationGoneError where the generation is there no more.
    """

    @property
    def generation(self) -> Generation: ...

    async def close(self) -> None: ...

    async def claim(self, partitions: Iterable[int], owner: str, cluster_id: str) -> dict[int, Claim]:
        """Take partitions over. Durable before it returns, so that epochs never go back with a crashed database."""
        ...

    async def positions(self) -> dict[int, StoredPosition]: ...

    async def load(self, keys: Sequence[ThreadKey]) -> dict[ThreadKey, Kept]:
        """Return what is kept of the threads that have a row, read in one snapshot."""
        ...

    async def write(self, batch: Batch, spans: Sequence[Span]) -> None:
        """Write all of the batch or nothing. Idempotent by the positions: a batch that is stored is not stored again.

        Raises FenceError if a span does not fit the position of its partition, RowRefusedError if the database refuses
        a row. A crash of the database may lose the last batches, together with their positions.
        """
        ...


class Stores(Protocol):
    """The projector reaches the generations of one database through this port."""

    async def admit(self, cluster_id: str, partitions: int) -> None:
        """Accept a log with this number of partitions.

        Raises StoreAwayError, and OtherPartitionsError if it had another number when views were first built from it.
        """
        ...

    async def live(self, cluster_id: str) -> Generation:
        """Return the live generation; create an empty one if there is none.

        Raises StoreAwayError; and OtherLogError, OtherVersionError and NotMigratedError, which need a person.
        """
        ...

    def open(self, generation: Generation) -> GenerationStore: ...


def fence_error(spans: Sequence[Span], moved: set[int], everything: Mapping[int, StoredPosition]) -> FenceError | None:
    """Return why the spans could not all be moved, given the positions of all partitions.

    None if the partitions are where the batch would have left them: a try whose answer was lost has written it.
    """
    missed = [span for span in spans if span.partition not in moved]
    stored = {span.partition: everything.get(span.partition, UNCLAIMED) for span in missed}
    taken_over = {span.partition for span in missed if stored[span.partition].owner_epoch != span.owner_epoch}
    is_written = all(stored[span.partition].next_offset == span.to_offset for span in missed)
    if is_written and not taken_over and len(missed) == len(spans):
        return None
    return FenceError(stored, frozenset(taken_over))
