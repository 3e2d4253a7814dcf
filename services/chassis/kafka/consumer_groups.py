"""Consumer groups of a Kafka broker: the implementation of `chassis.log.consumer_groups`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import KafkaError, NoError, for_code

from services.chassis.kafka.producer import log_error
from services.chassis.log.consumer_groups import GroupMembers
from services.chassis.log.port import TopicPartition
from services.chassis.settings import Settings

SETTLED: Final = frozenset({"Stable", "Empty", "Dead"})
"""States of a group that is not about to change its assignment. "Dead" is Kafka's word for a group it does not know."""


@asynccontextmanager
async def kafka_groups(settings: Settings) -> AsyncIterator["KafkaGroups"]:
    """Open a connection for questions about groups, for the length of the block. The block raises LogError."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=settings.kafka_bootstrap_servers, request_timeout_ms=settings.kafka_request_timeout_ms
    )
    try:
        await admin.start()
        yield KafkaGroups(admin)
    except KafkaError as error:
        raise log_error(error, f"ask {settings.kafka_bootstrap_servers} about consumer groups") from error
    finally:
        await admin.close()


class KafkaGroups:
    """Implements `Groups` on one connection."""

    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin = admin

    async def names(self) -> frozenset[str]:
        return frozenset(name for name, *_ in await self._admin.list_consumer_groups())

    async def members(self, group: str) -> GroupMembers:
        """Return the members of one group.

        Groups are asked for one at a time: of several, aiokafka reads all but the first wrongly if the broker also
        reports the allowed operations.
        """
        (answer,) = await self._admin.describe_consumer_groups([group])
        code, _, state, _, _, members, *_ = answer.groups[0]
        error = for_code(code)
        if error is not NoError:
            raise error(f"describe group {group}")
        assigned: set[TopicPartition] = set()
        for _, _, _, _, assignment in members:
            if assignment:
                decoded = ConsumerProtocol.ASSIGNMENT.decode(assignment)
                assigned.update(TopicPartition(*tp) for tp in decoded.partitions())
        # The embedded broker names the members but not their partitions.
        is_reported = bool(assigned) or not members
        return GroupMembers(len(members), frozenset(assigned), is_reported and state in SETTLED)
