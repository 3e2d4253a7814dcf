"""What is stuck: the statements on views that the projector has made, and a group's partitions on a broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_PROGRESS
from services.chassis.clock import SystemClock
from services.chassis.kafka.consumer_groups import kafka_groups
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import TopicSpec
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.consumer_groups import (
    PROJECTOR_GROUP,
    RUNTIME_GROUP,
    GroupMembers,
    executor_group,
    without_owner,
)
from services.chassis.log.port import LogUnavailableError, TopicPartition
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.settings import Settings
from services.cli.local.embedded import embedded_broker
from services.ingest.database import Database, statements
from services.ingest.metrics import IngestMetrics
from services.ingest.operations import stuck as ingest_ops
from services.ingest.operations.no_progress import Quiet
from services.ingest.operations.quarantine_reports import QuarantineReports
from services.ingest.operations.stuck import Ops, OpsLimits
from services.projector.generations.generations import migrate
from services.projector.projections import batch as projections
from tests.support.recorded.deciding import idle, in_turn, with_calls
from tests.support.recorded.histories import USER, History, approval_requested, proposed, submitted
from tests.support.simulated.log import SimulatedBroker
from tests.support.simulated.waiting import PATIENCE_SECONDS
from tests.support.worlds.projector import PARTITIONS, World


class NoGroups:
    async def names(self) -> frozenset[str]:
        return frozenset()

    async def members(self, _group: str) -> GroupMembers:
        return GroupMembers(0, frozenset(), True)


@asynccontextmanager
async def no_groups() -> AsyncIterator[NoGroups]:
    yield NoGroups()


def of(thread: str, history: History) -> History:
    """The same under another name."""
    made = History(key=ThreadKey(TenantId("acme"), ThreadId(thread)))
    for record in history.records:
        made.apply(record.data, record.actor)  # type: ignore[arg-type]  # ours
    return made


async def test_quiet_and_quarantined_threads_are_found_in_the_views(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(fresh_database)
    await migrate(fresh_database)
    world, registry = World(fresh_database, connection), CollectorRegistry()
    waiting = idle()
    waiting.apply(submitted("i1"), USER)
    approval = with_calls(proposed(0))
    approval.apply(approval_requested(approval.only_call, approval.now_ms + 10**13))
    histories = [of("waiting", waiting), of("idle", idle()), of("approval", approval), of("bad", in_turn())]
    row = projections.usage_row  # type: ignore[attr-defined]  # the name that the module uses

    def refusing(applied: object) -> object:
        if applied.record.key.thread == "bad":  # type: ignore[attr-defined]  # an Applied
            raise RuntimeError("no row")
        return row(applied)  # type: ignore[arg-type]  # as above

    monkeypatch.setattr(projections, "usage_row", refusing)
    monkeypatch.setattr(ingest_ops, "PAGE_ROWS", 1)
    pool = await open_pool(
        fresh_database,
        application_name="test",
        size_min=0,
        size_max=2,
        command_timeout_seconds=5,
        connect_timeout_seconds=5,
    )
    try:
        async with world.projector():
            for history in histories:
                await world.append_history(history)
            await world.all_shown()
        progress = SimulatedBroker({THREAD_PROGRESS.name: PARTITIONS}, SystemClock()).connect("ingest")
        ops = Ops(
            database=Database(TenantPool(pool), 5),
            sql=statements(),
            reports=QuarantineReports(progress, PARTITIONS, 30_000, 10),
            groups=no_groups,
            partitions=PARTITIONS,
            clock=SystemClock(),
            limits=OpsLimits(
                quiet=Quiet(300_000, 900_000),
                refresh_seconds=60,
                candidates_max=100,
                threads_max=100,
                look_seconds=5,
            ),
            metrics=IngestMetrics.build(registry),
        )
        found = await ops.stuck()
        await ops.count_open()
    finally:
        pool.terminate()
        await connection.close()
    assert found.incomplete == []
    open_now = {name: registry.get_sample_value(f"threadlog_{name}") for name in OPEN}
    assert open_now == {"open_turns": 1, "waiting_approvals": 1, "unknown_calls": 0}
    assert registry.get_sample_value("threadlog_ops_sources_failed_total") == 0
    assert [(each.thread, each.reason) for each in found.threads] == [
        ("bad", "quarantined"),
        ("waiting", "no_progress"),
    ]
    assert found.threads[0].detail == "projector: seq 1: its rows cannot be made: RuntimeError"
    assert {each.group for each in found.partitions} == {RUNTIME_GROUP, PROJECTOR_GROUP}
    assert len(found.partitions) == 2 * PARTITIONS


OPEN = ("open_turns", "waiting_approvals", "unknown_calls")


class Nobody:
    async def revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)


@pytest.mark.kafka  # the embedded broker describes no groups
async def test_the_broker_tells_which_partitions_a_group_has(kafka_bootstrap: str) -> None:
    settings = Settings(kafka_bootstrap_servers=kafka_bootstrap, kafka_static_membership=False)
    async with kafka_topics(settings) as topics:
        await topics.create([TopicSpec("ops-events", 3, 1, {}), TopicSpec("ops-other", 1, 1, {})])
    tps = [TopicPartition("ops-events", number) for number in range(3)]
    group = executor_group("ops-test")
    log = await KafkaLog.open(settings, "test")
    try:
        reader = await log.group_reader(["ops-events", "ops-other"], group, Nobody())
        async with asyncio.timeout(PATIENCE_SECONDS), kafka_groups(settings) as groups:
            while not (members := await groups.members(group)).assigned:
                await reader.poll(100)
            assert members == GroupMembers(1, frozenset([*tps, TopicPartition("ops-other", 0)]), True)
            assert await groups.members("nobody's") == GroupMembers(0, frozenset(), True)
            assert group in await groups.names()
            assert without_owner({group: members}, tps) == {group: ()}
        await reader.close()
        async with asyncio.timeout(PATIENCE_SECONDS), kafka_groups(settings) as groups:
            while (members := await groups.members(group)).members:  # noqa: ASYNC110  # the event is the broker's
                await asyncio.sleep(0.1)
            assert without_owner({group: members}, tps) == {group: tuple(tps)}
    finally:
        await log.close()


async def test_a_broker_that_does_not_tell_who_has_what_is_no_alarm(tmp_path: Path) -> None:
    with embedded_broker(tmp_path) as broker:
        settings = Settings(
            kafka_bootstrap_servers=broker.address,
            kafka_idempotence=False,
            kafka_static_membership=False,
            kafka_fetch_max_wait_ms=20,
        )
        async with kafka_topics(settings) as topics:
            await topics.create([TopicSpec("ops-events", 1, 1, {})])
        log = await KafkaLog.open(settings, "test")
        try:
            await log.group_reader(["ops-events"], "group", Nobody())
            async with kafka_groups(settings) as groups:
                assert await groups.members("group") == GroupMembers(1, frozenset(), False)
                assert await groups.members("nobody's") == GroupMembers(0, frozenset(), True)
        finally:
            await log.close()


async def test_a_broker_that_is_away_is_an_error_of_the_log() -> None:
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1")
    with pytest.raises(LogUnavailableError):
        async with kafka_groups(settings):
            pass
