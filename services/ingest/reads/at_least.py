"""Reads after writes: a read with `at_least` waits until the views hold what the client has seen."""

from dataclasses import dataclass
from typing import Final, Protocol

from schemas.ids import ThreadKey
from services.ingest.commands.existence import KnownThreads
from services.ingest.http.problems import BAD_CURSOR, VIEWS_BEHIND, Problem, ProblemError
from services.ingest.reads.reads import parse_at_least

AT_LEAST_WAIT_SECONDS: Final = 5.0
"""How long a read waits for the views. They are usually a fraction of a second behind; a client that waited in vain may
read again without `at_least`.
"""


class ReachedPositions(Protocol):
    """The views, as this module needs them."""

    async def reached(self, partition: int | None, value: int, key: ThreadKey | None, timeout_seconds: float) -> bool:
        """Whether the views hold the record at an offset of a partition or, without one, at a seq of the thread."""
        ...


@dataclass(frozen=True, slots=True)
class AtLeastWaits:
    """Makes a read wait for what its client has written or seen before."""

    known: KnownThreads
    views: ReachedPositions
    wait_seconds: float

    async def wait(self, at_least: str | None, key: ThreadKey | None) -> None:
        """Return once the views hold the position. `key` is the thread that is read; None for a list of threads.

        Raises ProblemError: bad-cursor if the position cannot be one, views-behind if the views do not hold it in time,
        and thread-not-found if it is a seq of a thread that does not exist.
        """
        if at_least is None:
            return
        wanted = parse_at_least(at_least)
        if wanted.partition is not None and wanted.partition >= self.known.partitions:
            raise ProblemError(Problem(BAD_CURSOR, f"The log has no partition {wanted.partition}."))
        if wanted.partition is None and key is not None:
            await self.known.require(key)
        if not await self.views.reached(wanted.partition, wanted.value, key, self.wait_seconds):
            raise ProblemError(
                Problem(VIEWS_BEHIND, f"The views do not hold {at_least} yet; it took too long to wait.")
            )
