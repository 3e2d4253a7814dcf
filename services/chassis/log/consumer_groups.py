"""Consumer groups: their names, and which member has which partitions.

The members of a group share the work: each partition belongs to one of them. A service takes its group's name from
here, and so does ingest, which reports partitions that nobody works on.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from services.chassis.log.port import TopicPartition

RUNTIME_GROUP: Final = "threadlog-runtime"
PROJECTOR_GROUP: Final = "threadlog-projector"
ROLLUPS_GROUP: Final = "threadlog-rollups"
EXECUTOR_GROUPS: Final = "threadlog-tool-executor-"
"""The beginning of the group names of all executor pools."""


def executor_group(pool: str) -> str:
    return f"{EXECUTOR_GROUPS}{pool}"


class GroupMembers(NamedTuple):
    """A group as the broker describes it."""

    members: int
    assigned: frozenset[TopicPartition]
    is_settled: bool
    """Whether `assigned` can be relied on: false while the group agrees on a new assignment, or if the broker does not
    report it.
    """


class Groups(Protocol):
    """What a broker can be asked about consumer groups. The methods raise LogError."""

    async def names(self) -> frozenset[str]:
        """Return the names of all groups that the broker knows, even without members while they have an offset."""
        ...

    async def members(self, group: str) -> GroupMembers:
        """Return the members of a group. A group that the broker does not know has none."""
        ...


def without_owner(
    groups: Mapping[str, GroupMembers], partitions: Iterable[TopicPartition]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return by group the partitions that no member has. Groups that are not settled are left out."""
    wanted = sorted(partitions)
    return {
        name: tuple(tp for tp in wanted if tp not in group.assigned)
        for name, group in groups.items()
        if group.is_settled
    }
