"""The errors between the projector and its database, and whether trying again can help.

ProjectorError              retriable = False
├── RowRefusedError         the database refuses a row of the batch: the record is found and set aside
├── FenceError              a partition has another owner, or is not where its rows begin
├── GenerationGoneError     the schema is not there any more, dropped after a swap or by hand, or is not the live one
├── StoreAwayError          retriable: the database does not answer, or cannot write now
├── OtherLogError           a SetupError: the views were built from another log, never mixed, a person decides
├── RebuildError            a generation cannot take over; the live one is as it was
└── BusyError               somebody else makes, swaps or removes generations of this database
"""

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from schemas.errors import Fault, ThreadlogError
from services.chassis.errors import SetupError


class StoredPosition(NamedTuple):
    """How far a partition is in the views, and who wrote it last."""

    next_offset: int
    owner: str
    owner_epoch: int


UNCLAIMED: Final = StoredPosition(0, "", 0)
"""The position of a partition without a row: nobody has claimed it yet."""


class ProjectorError(ThreadlogError):
    pass


class RowRefusedError(ProjectorError):
    def __init__(self, reason: str, fault: Fault = "row_refused") -> None:
        super().__init__(reason)
        self.fault: Fault = fault


class FenceError(ProjectorError):
    def __init__(self, stored: Mapping[int, StoredPosition], taken_over: frozenset[int]) -> None:
        super().__init__(f"partitions {sorted(stored)} are not where this projector left them: {dict(stored)}")
        self.stored = stored
        """Where the partitions are that the batch could not move."""
        self.taken_over = taken_over
        """The partitions among them that have another owner; the others have another offset."""


class GenerationGoneError(ProjectorError):
    pass


class StoreAwayError(ProjectorError):
    retriable: ClassVar[bool] = True


class OtherLogError(ProjectorError, SetupError):
    pass


class BusyError(ProjectorError):
    pass


class RebuildError(ProjectorError):
    pass
