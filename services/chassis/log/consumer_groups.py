"""Consumer groups: what they are called, and who has which partitions.

Groups share the work: each partition belongs to one member of its group. A service takes its group's name from here.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from services.chassis.log.port import TopicPartition

RUNTIME_GROUP: Final = "threadlog-runtime"
PROJECTOR_GROUP: Final = "threadlog-projector"
ROLLUPS_GROUP: Final = "threadlog-rollups"
EXECUTOR_GROUPS: Final = "threadlog-tool-executor-"
"""What the names of all pools' groups begin with."""


def executor_group(pool: str) -> str:
    return f"{EXECUTOR_GROUPS}{pool}"


class GroupMembers(NamedTuple):
    members: int
    assigned: frozenset[TopicPartition]
    is_settled: bool
    """False while the group agrees on a new assignment, or where the broker does not tell it."""


class Groups(Protocol):
    """What a broker can be asked about groups. Raises LogError."""

    async def names(self) -> frozenset[str]:
        """Of all groups that it knows, also of those that have no member any more and still have an offset."""
        ...

    async def members(self, group: str) -> GroupMembers:
        """None of a group that it does not know."""
        ...


def without_owner(
    groups: Mapping[str, GroupMembers], partitions: Iterable[TopicPartition]
) -> dict[str, tuple[TopicPartition, ...]]:
    """The partitions that no member of the group has. A group that is about to change has its say later."""
    wanted = sorted(partitions)
    return {
        name: tuple(tp for tp in wanted if tp not in group.assigned)
        for name, group in groups.items()
        if group.is_settled
    }
