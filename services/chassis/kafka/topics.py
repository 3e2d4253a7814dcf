"""Topics of a Kafka broker: what `topic_admin` asks and makes, through aiokafka's admin client."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code

from services.chassis.kafka.producer import log_error
from services.chassis.kafka.topic_admin import FoundTopic, TopicSpec
from services.chassis.log.port import LogError, LogUnavailableError
from services.chassis.settings import Settings

VISIBLE_SECONDS: Final = 15.0
"""How long a new topic may take until the broker reports its partitions. Metadata spreads to all brokers in seconds."""
LOOK_SECONDS: Final = 0.1
"""Pause between two looks whether it does."""


@asynccontextmanager
async def kafka_topics(settings: Settings) -> AsyncIterator["KafkaTopics"]:
    """Open a connection for questions about topics, for the length of the block. The block raises LogError."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=settings.kafka_bootstrap_servers, request_timeout_ms=settings.kafka_request_timeout_ms
    )
    try:
        await admin.start()
        yield KafkaTopics(admin)
    except KafkaError as error:
        raise log_error(error, f"ask {settings.kafka_bootstrap_servers} about topics") from error
    finally:
        await admin.close()


class KafkaTopics:
    """Implements `topic_admin.Topics` on one connection."""

    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin = admin

    async def find(self, names: Sequence[str]) -> dict[str, FoundTopic]:
        partitions = await self.partition_counts(names)
        configs = await self._configs(list(partitions))
        return {name: FoundTopic(count, configs.get(name, {})) for name, count in partitions.items()}

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        answer = await self._admin.create_topics(
            [
                NewTopic(spec.name, spec.partitions, spec.replication_factor, topic_configs=dict(spec.configs))
                for spec in specs
            ]
        )
        for name, code, *message in answer.topic_errors:
            error = for_code(code)
            if error not in {NoError, TopicAlreadyExistsError}:
                raise LogError(f"create topic {name}: {error.__name__} {message[0] if message else ''}".strip())
        await self._wait_until_visible([spec.name for spec in specs])

    async def _wait_until_visible(self, names: Sequence[str]) -> None:
        """Wait until clients can use the topics: a producer that is told of none fails its appends."""
        try:
            async with asyncio.timeout(VISIBLE_SECONDS):
                while len(await self.partition_counts(names)) < len(names):  # noqa: ASYNC110  # the event is the broker's
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise LogUnavailableError(
                f"the topics {', '.join(names)} were created, but do not show within {VISIBLE_SECONDS} s"
            ) from None

    async def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of each topic that exists.

        All topics are asked for and filtered. A broker may create a topic that is asked for by name.
        """
        described = await self._admin.describe_topics()
        return {
            topic["topic"]: len(topic["partitions"])
            for topic in described
            if topic["topic"] in set(names) and for_code(topic["error_code"]) is NoError and topic["partitions"]
        }

    async def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return each topic's configuration, as far as the broker reports it."""
        if not names:
            return {}
        answers = await self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
        configs: dict[str, dict[str, str]] = {}
        for answer in answers:
            for code, _, _, name, entries in answer.resources:
                if for_code(code) is NoError:
                    configs[name] = {entry[0]: entry[1] for entry in entries}
        return configs
