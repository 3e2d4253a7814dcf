"""Where a service's states come from: the projector's rows, which are read and never written.

Each load reads rows and the stored position in one snapshot. So a thread without a row has no record below that
position, and the caller knows exactly which records it still has to fold.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from schemas.errors import ThreadlogError
from schemas.ids import ThreadKey
from schemas.state import ThreadState


class StatesUnavailableError(ThreadlogError):
    """The database is away. Threads in memory go on; threads that must be loaded wait."""

    retriable: ClassVar[bool] = True


class PartitionStates(NamedTuple):
    """Stored states of one partition, with their position."""

    next_offset: int
    """The stored position: every record below it is in the rows."""
    states: Mapping[ThreadKey, ThreadState]


class ThreadStates(Protocol):
    """Reads the states of given threads."""

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        """Return the position, and the states of those threads that have a row. Raise StatesUnavailableError."""


class StateStore(ThreadStates, Protocol):
    """Reads the states that a follower of a partition needs."""

    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        """Return the position and the states of active threads. Raise StatesUnavailableError.

        Without a live generation of this fold version the position is 0 and there are no states: the partition is then
        read from its beginning.
        """


class PartitionKeys(NamedTuple):
    """The threads of one partition that have a row, with the position."""

    next_offset: int
    """The stored position: every thread with a record below it is among the keys."""
    keys: Sequence[ThreadKey]


class KeyStore(Protocol):
    """Reads which threads there are, without their states."""

    async def load_keys(self, topic: str, partition: int, keys_max: int) -> PartitionKeys | None:
        """Return all threads of the partition that have a row, and the position, in one snapshot.

        Return None if there are more than `keys_max`. Raise StatesUnavailableError.
        """
        ...
