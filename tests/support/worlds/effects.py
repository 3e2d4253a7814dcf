"""Kafka, a database, and processes of the projector and of the windows' worker on them."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from schemas.canonical import canonical_json
from schemas.other_topics.effects import ThreadEffect, decode_effect
from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Incoming, Outgoing, TopicPartition
from services.cli.database import migrate_all
from services.cli.local.supervisor import Supervisor
from services.cli.topics import apply_topics
from services.projector.settings import ProjectorSettings
from tests.support.recorded.histories import History
from tests.support.worlds.projector import until

SOURCE, TOPIC = THREAD_EVENTS.name, THREAD_EFFECTS.name
PARTITIONS = 4
SECONDS = 60.0


@dataclass
class EffectsWorld:
    log: KafkaLog
    connection: asyncpg.Connection
    supervisor: Supervisor
    kafka: str
    appended: dict[int, int] = field(default_factory=dict)
    """Records of each partition."""

    async def append(self, history: History) -> None:
        key = history.key.to_bytes()
        partition = self.log.partition_for(key, PARTITIONS)
        records = [Outgoing(key, made.value, made.headers, made.record.time_ms) for made in history.encoded]
        offsets = await self.log.appender.append(SOURCE, partition, records)
        self.appended[partition] = offsets[-1] + 1

    async def append_raw(self, partition: int, record: Outgoing) -> None:
        offsets = await self.log.appender.append(SOURCE, partition, [record])
        self.appended[partition] = offsets[-1] + 1

    async def shown(self) -> None:
        """All that was appended has its rows."""
        await self.reached('select "partition", next_offset from views.positions', self.appended)

    async def published(self) -> None:
        query = 'select "partition", next_offset from threadlog.relay_positions'
        await self.reached(query, self.appended)

    async def reached(self, query: str, wanted: Mapping[int, int]) -> None:
        async def look() -> dict[int, int]:
            try:
                return dict(await self.connection.fetch(query))
            except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                return {}

        await until(look, lambda at: all(at.get(p, 0) >= end for p, end in wanted.items()), SECONDS)

    async def events(self) -> dict[int, list[tuple[Any, ...]]]:
        rows = await self.connection.fetch(
            'select "partition", tenant, thread, seq, "offset", id::text, type, '
            "round(extract(epoch from time) * 1000)::bigint, effect, reason, facts::text "
            'from views.events order by "partition", "offset"'
        )
        found: dict[int, list[tuple[Any, ...]]] = {}
        for partition, *row in rows:
            found.setdefault(partition, []).append(tuple(row))
        return found

    async def effects(self) -> dict[int, list[ThreadEffect]]:
        """All that the topic has, copies too."""
        return {partition: [_effect(one) for one in found] for partition, found in (await self.read(TOPIC)).items()}

    async def read(self, topic: str) -> dict[int, list[Incoming]]:
        tps = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        ends = await self.log.end_offsets(tps)
        found: dict[int, list[Incoming]] = {tp.partition: [] for tp in tps if ends[tp]}
        reader = await self.log.reader(await self.log.begin_offsets(tps))
        try:
            while any(
                not found[tp.partition] or found[tp.partition][-1].offset + 1 < ends[tp] for tp in tps if ends[tp]
            ):
                for tp, records in await reader.poll(1_000):
                    found[tp.partition] += records
        finally:
            await reader.close()
        return found


@asynccontextmanager
async def effects_world(
    kafka: str, dsn: str, logs: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[EffectsWorld]:
    settings = ProjectorSettings(kafka_bootstrap_servers=kafka, postgres_dsn=dsn, topic_partitions=PARTITIONS)
    await apply_topics(settings)
    await migrate_all(settings)
    own = {
        "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": kafka,
        "THREADLOG_POSTGRES_DSN": dsn,
        # A rollups worker that was killed keeps its partitions for so long.
        "THREADLOG_ROLLUPS_REBALANCE_TIMEOUT_SECONDS": "3",
        "THREADLOG_KAFKA_SESSION_TIMEOUT_MS": "3000",
        **(environment or {}),
    }
    log = await KafkaLog.open(settings, "test")
    connection = await asyncpg.connect(dsn)
    try:
        async with Supervisor({**os.environ, **own}, logs) as supervisor:
            world = EffectsWorld(log, connection, supervisor, kafka)
            tps = [TopicPartition(SOURCE, partition) for partition in range(PARTITIONS)]
            world.appended = {tp.partition: end for tp, end in (await log.end_offsets(tps)).items() if end}
            yield world
    finally:
        await connection.close()
        await log.close()


def first_copies(effects: Sequence[ThreadEffect]) -> list[ThreadEffect]:
    """What a consumer has that skips what is not beyond the last."""
    kept: list[ThreadEffect] = []
    for effect in effects:
        if not kept or effect.offset > kept[-1].offset:
            kept.append(effect)
    return kept


def as_row(effect: ThreadEffect) -> tuple[Any, ...]:
    facts = None if effect.facts is None else effect.facts.model_dump(mode="json", exclude_none=True)
    return (
        *(effect.tenant, effect.thread, effect.seq, effect.offset, effect.id, effect.type, effect.time_ms),
        *(effect.effect, effect.reason, None if facts is None else canonical_json(facts)),
    )


def _effect(record: Incoming) -> ThreadEffect:
    effect = decode_effect(record.value)
    assert effect is not None, record
    assert record.key == f"{effect.tenant}/{effect.thread}".encode()
    assert dict(record.headers)["ce_id"] == f"{effect.partition}-{effect.offset}".encode()
    return effect
