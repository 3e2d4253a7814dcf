"""A consumer group of the simulated broker: who its members are, and which partitions each of them has."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from services.chassis.log.port import TopicPartition
from tests.support.simulated.virtual_time import NOWHERE

OnAgreed = Callable[[str, Mapping[str, frozenset[TopicPartition]]], None]
"""Called with a group's name and what each of its members has now."""


class Member(Protocol):
    member: str
    topics: tuple[str, ...]
    absences: int
    paused_times: int

    def come(self, coming: frozenset[TopicPartition]) -> None: ...

    def fence(self) -> None: ...


class GroupFaults(Protocol):
    retry_seconds: float

    def rebalance_seconds(self) -> float: ...


class GroupBroker(Protocol):
    @property
    def faults(self) -> GroupFaults: ...

    session_seconds: float
    is_away: bool

    on_agreed: OnAgreed

    def partition_count(self, topic: str) -> int: ...


class Group:
    def __init__(self, broker: GroupBroker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._members: dict[str, tuple[Member, tuple[str, ...]]] = {}
        self._assigned: dict[str, frozenset[TopicPartition]] = {}
        self._generation = 0
        self.committed: dict[TopicPartition, int] = {}

    def join(self, reader: Member, topics: Sequence[str]) -> None:
        reader.topics = tuple(topics)
        former = self._members.get(reader.member)
        self._members[reader.member] = (reader, tuple(topics))
        if former is not None:
            former[0].fence()
        if former is not None and reader.member in self._assigned and former[1] == tuple(topics):
            reader.come(self._assigned[reader.member])
        else:
            self._rebalance()

    def leave(self, reader: Member) -> None:
        if self._members.get(reader.member, (None,))[0] is reader:
            del self._members[reader.member]
            self._rebalance()

    def miss(self, reader: Member) -> None:
        """It vanished; the group notices after the session timeout."""
        _later(self._broker.session_seconds, self.leave, reader)

    def miss_while_paused(self, reader: Member) -> None:
        _later(self._broker.session_seconds, self._leave_paused, reader, reader.paused_times)

    def has(self, reader: Member) -> bool:
        return self._members.get(reader.member, (None,))[0] is reader

    def _leave_paused(self, reader: Member, paused_times: int) -> None:
        if reader.absences and reader.paused_times == paused_times:
            self.leave(reader)

    def _rebalance(self) -> None:
        self._generation += 1
        _later(self._broker.faults.rebalance_seconds(), self._agree, self._generation)

    def _agree(self, generation: int) -> None:
        if generation != self._generation:
            return  # another change came in between
        if self._broker.is_away:
            _later(self._broker.faults.retry_seconds, self._agree, generation)
            return
        self._assigned = self._range()
        self._broker.on_agreed(self._name, self._assigned)
        for member, (reader, _) in self._members.items():
            reader.come(self._assigned[member])

    def _range(self) -> dict[str, frozenset[TopicPartition]]:
        """Kafka's range assignor."""
        assigned: dict[str, set[TopicPartition]] = {member: set() for member in self._members}
        for topic in sorted({topic for _, topics in self._members.values() for topic in topics}):
            members = sorted(member for member, (_, topics) in self._members.items() if topic in topics)
            each, extra = divmod(self._broker.partition_count(topic), len(members))
            start = 0
            for index, member in enumerate(members):
                count = each + (index < extra)
                assigned[member].update(TopicPartition(topic, n) for n in range(start, start + count))
                start += count
        return {member: frozenset(tps) for member, tps in assigned.items()}


def _later(seconds: float, call: Callable[..., None], *arguments: Any) -> None:
    """As the broker does it: whoever caused it may stand still by then."""
    asyncio.get_running_loop().call_later(seconds, call, *arguments, context=NOWHERE)
