"""Where a service's states come from: the projector's rows, read and never written.

Each load reads rows and the stored position in one snapshot: a thread without a row has no record below that position.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from schemas.errors import ThreadlogError
from schemas.ids import ThreadKey
from schemas.state import ThreadState


class StatesUnavailableError(ThreadlogError):
    """The database is away. What is held goes on; what would have to be loaded waits."""

    retriable: ClassVar[bool] = True


class PartitionStates(NamedTuple):
    next_offset: int
    """The stored position: every record below it is in the rows."""
    states: Mapping[ThreadKey, ThreadState]


class ThreadStates(Protocol):
    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        """Position, and the states of those of the keys that have a row. Raises StatesUnavailableError."""


class StateStore(ThreadStates, Protocol):
    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        """Position and the states of active threads. Position 0 and nothing where there is no live generation, or one
        of another fold version: the partition is then read from its beginning.
        """


class PartitionKeys(NamedTuple):
    next_offset: int
    """The stored position: every thread with a record below it is among the keys."""
    keys: Sequence[ThreadKey]


class KeyStore(Protocol):
    async def load_keys(self, topic: str, partition: int, keys_max: int) -> PartitionKeys | None:
        """All threads of the partition that have a row, and the position, in one snapshot; None where there are more
        than `keys_max`. Raises StatesUnavailableError.
        """
        ...
