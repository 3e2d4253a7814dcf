"""Topics of a Kafka broker, for `topic_admin`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code

from services.chassis.kafka.producer import log_error
from services.chassis.kafka.topic_admin import FoundTopic, TopicSpec
from services.chassis.log.port import LogError, LogUnavailableError
from services.chassis.settings import Settings

VISIBLE_SECONDS = 15.0
"""How long a new topic may take until the broker tells its partitions."""
LOOK_SECONDS = 0.1


@asynccontextmanager
async def kafka_topics(settings: Settings) -> AsyncIterator["KafkaTopics"]:
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
        try:
            async with asyncio.timeout(VISIBLE_SECONDS):
                while len(await self.partition_counts(names)) < len(names):  # noqa: ASYNC110  # the event is the broker's
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise LogUnavailableError(
                f"the topics {', '.join(names)} were created, but do not show within {VISIBLE_SECONDS} s"
            ) from None

    async def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """All topics are asked for and filtered: to ask for a missing one by name could create it."""
        described = await self._admin.describe_topics()
        return {
            topic["topic"]: len(topic["partitions"])
            for topic in described
            if topic["topic"] in set(names) and for_code(topic["error_code"]) is NoError and topic["partitions"]
        }

    async def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        answers = await self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
        configs: dict[str, dict[str, str]] = {}
        for answer in answers:
            for code, _, _, name, entries in answer.resources:
                if for_code(code) is NoError:
                    configs[name] = {entry[0]: entry[1] for entry in entries}
        return configs
