"""What is told of threads and partitions that stand still, from sources that answer, fail or take too long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.other_topics.progress import Delta, Progress, Quarantine, encode_progress
from schemas.state import FOLD_VERSION, dump_state
from schemas.topics import EPHEMERAL_EVENTS, THREAD_PROGRESS
from services.chassis.log.consumer_groups import PROJECTOR_GROUP, RUNTIME_GROUP, GroupMembers, executor_group
from services.chassis.log.port import LogUnavailableError, Outgoing, TopicPartition
from services.chassis.threads.states import StateStore
from services.ingest.database import Database
from services.ingest.http.auth import Principal, Scope
from services.ingest.http.problems import VIEWS_UNAVAILABLE, Problem, ProblemError
from services.ingest.metrics import IngestMetrics
from services.ingest.operations.no_progress import Quiet
from services.ingest.operations.quarantine_reports import QuarantineReports
from services.ingest.operations.stuck import TOPIC, Ops, OpsLimits
from services.ingest.streams.history import History
from services.ingest.streams.live import Watches
from tests.support.recorded.deciding import in_turn
from tests.support.simulated.log import SimulatedBroker
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock
from tests.support.worlds.live import live_limits
from tests.unit.ingest.world import World

PARTITIONS = 2
ALL = frozenset(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
OWNED = GroupMembers(1, ALL, True)
LIMITS = OpsLimits(
    quiet=Quiet(300_000, 900_000), refresh_seconds=60, candidates_max=1_000, threads_max=3, look_seconds=5
)
IN_TURN = in_turn().state
SQL = {"ops_quarantined_threads": "quarantined", "ops_quiet_threads": "quiet"}


class FakeDatabase:
    """The rows that the statements would give, in the order of their keys."""

    def __init__(self) -> None:
        self.quarantined: list[dict[str, Any]] = []
        self.quiet: list[dict[str, Any]] = []
        self.is_away = False
        self.asked = 0

    async def fetch_as_operator(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        self.asked += 1
        if self.is_away:
            raise ProblemError(Problem(VIEWS_UNAVAILABLE, "The database cannot be asked: OSError."))
        if query == "quarantined":
            return self.quarantined
        _, _, tenant, thread, limit = arguments
        return [row for row in self.quiet if (row["tenant"], row["thread"]) > (tenant, thread)][:limit]


class FakeGroups:
    def __init__(self) -> None:
        self.groups = {RUNTIME_GROUP: OWNED, PROJECTOR_GROUP: OWNED, executor_group("gpu"): OWNED, "theirs": OWNED}
        self.seconds = 0.0
        self.is_away = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeGroups"]:
        await asyncio.sleep(self.seconds)
        if self.is_away:
            raise LogUnavailableError("no broker")
        yield self

    async def names(self) -> frozenset[str]:
        return frozenset(self.groups)

    async def members(self, group: str) -> GroupMembers:
        return self.groups[group]


class OpsWorld:
    def __init__(self, limits: OpsLimits = LIMITS) -> None:
        self.clock = VirtualClock()
        self.broker = SimulatedBroker(
            dict.fromkeys((TOPIC, EPHEMERAL_EVENTS.name, THREAD_PROGRESS.name), PARTITIONS), self.clock
        )
        self.log = self.broker.connect("ingest")
        self.database, self.groups = FakeDatabase(), FakeGroups()
        self.registry = CollectorRegistry()
        self.reports = QuarantineReports(self.log, PARTITIONS, records_max=20, valid_ms=30_000)
        self.ops = Ops(
            database=cast("Database", self.database),
            sql=SQL,
            reports=self.reports,
            groups=self.groups.open,
            partitions=PARTITIONS,
            clock=self.clock,
            limits=limits,
            metrics=IngestMetrics.build(self.registry),
        )

    async def report(self, thread: str, progress: Progress) -> None:
        key = ThreadKey(TenantId("acme"), ThreadId(thread)).to_bytes()
        value, headers = encode_progress(progress)
        self.log.appender.append_lossy(
            THREAD_PROGRESS.name,
            self.log.partition_for(key, PARTITIONS),
            [Outgoing(key, value, headers, self.clock.now_ms())],
        )
        await self.log.appender.flush()

    def quiet(self, thread: str, seconds: float, **row: Any) -> None:
        state = dump_state(replace(IN_TURN, updated_ms=self.clock.now_ms() - int(1000 * seconds))).decode()
        self.database.quiet.append(
            {"tenant": "acme", "thread": thread, "fold_version": FOLD_VERSION, "state": state} | row
        )

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@in_virtual_time
async def test_where_nothing_stands_still_nothing_is_listed() -> None:
    world = OpsWorld()
    await world.report("a", Delta(turn=1, step=1, attempt=1, text="x"))
    value, headers = encode_progress(Quarantine(reason="of nobody's thread"))
    for foreign in (Outgoing(b"no key", value, headers), Outgoing(b"acme/a", b"{", headers)):
        world.log.appender.append_lossy(THREAD_PROGRESS.name, 0, [foreign])
    await world.log.appender.flush()
    found = await world.ops.stuck()
    assert (found.threads, found.partitions, found.incomplete) == ([], [], [])
    assert world.metric("threadlog_stuck_threads", reason="no_progress") == 0
    assert world.metric("threadlog_partitions_without_owner", group=RUNTIME_GROUP) == 0


@in_virtual_time
async def test_each_source_tells_its_own() -> None:
    world = OpsWorld()
    for _ in range(3):
        await world.report("aside", Quarantine(reason="RuntimeError: x", by="runtime/r1", since_ms=1_790_000_000_000))
    world.quiet("slow", seconds=400)
    world.quiet("lately", seconds=10)
    world.database.quarantined.append({"tenant": "b", "thread": "t", "quarantined": "seq 5: no", "updated_at": None})
    world.groups.groups[executor_group("gpu")] = GroupMembers(0, frozenset(), True)
    found = await world.ops.stuck()
    assert [(each.tenant, each.thread, each.reason, each.detail) for each in found.threads] == [
        ("b", "t", "quarantined", "projector: seq 5: no"),
        ("acme", "aside", "quarantined", "runtime/r1: RuntimeError: x"),
        ("acme", "slow", "no_progress", "Turn 1 has finished 0 steps, and nothing starts the next."),
    ]
    assert found.threads[1].since == "2026-09-21T14:13:20.000Z"
    assert all(each.what_to_do.endswith(".") for each in found.threads)
    assert [(each.group, each.partition) for each in found.partitions] == [
        ("threadlog-tool-executor-gpu", 0),
        ("threadlog-tool-executor-gpu", 1),
    ]
    assert "pool gpu" in found.partitions[0].what_to_do
    assert world.metric("threadlog_stuck_threads", reason="quarantined") == 2
    assert world.metric("threadlog_stuck_threads", reason="no_progress") == 1
    assert world.metric("threadlog_partitions_without_owner", group="threadlog-tool-executor-gpu") == 2
    assert world.metric("threadlog_partitions_without_owner", group="theirs") is None


@in_virtual_time
async def test_a_thread_whose_reason_is_known_is_not_listed_as_quiet_too() -> None:
    world = OpsWorld()
    await world.report("a", Quarantine(reason="x", by="runtime/r1"))
    world.quiet("a", seconds=400)
    assert [each.reason for each in (await world.ops.stuck()).threads] == ["quarantined"]


@in_virtual_time
async def test_a_report_is_believed_for_a_while_and_looked_for_in_the_recent_end_alone() -> None:
    world = OpsWorld()
    await world.report("a", Quarantine(reason="x", by="runtime/r1"))
    for _ in range(19):
        await world.report("a", Delta(turn=1, step=1, attempt=1, text="x"))
    assert len((await world.ops.stuck()).threads) == 1
    await asyncio.sleep(31)
    assert (await world.ops.stuck()).threads == [], "the service does not repeat it: the thread has healed"
    await world.report("a", Quarantine(reason="x", by="runtime/r1"))
    for _ in range(20):
        await world.report("a", Delta(turn=1, step=1, attempt=1, text="x"))
    await asyncio.sleep(6)
    assert (await world.ops.stuck()).threads == []


@in_virtual_time
async def test_a_report_is_heard_however_much_progress_comes_after_it() -> None:
    """A busy partition has thousands of records a second, and a report every ten."""
    world = OpsWorld()
    watches = Watches(
        world.log, cast("StateStore", None), cast("History", None), live_limits(), on_quarantine=world.reports.hear
    )
    await watches.open()
    reading = asyncio.create_task(watches.run())
    for _ in range(2):
        await world.report("a", Quarantine(reason="x", by="runtime/r1"))
        await world.report("a", Quarantine(reason="y", by="tool-executor/e1"))
        for _ in range(30):
            await world.report("b", Delta(turn=1, step=1, attempt=1, text="x"))
        await asyncio.sleep(6)
    found = [(entry.thread, entry.detail) for entry in (await world.ops.stuck()).threads]
    assert found == [("a", "runtime/r1: x"), ("a", "tool-executor/e1: y")]
    await asyncio.sleep(31)
    assert (await world.ops.stuck()).threads == [], "the thread has healed"
    assert world.reports._heard == {}
    reading.cancel()


@in_virtual_time
async def test_sources_that_cannot_be_asked_are_named_and_the_others_told() -> None:
    world = OpsWorld()
    await world.report("a", Quarantine(reason="x"))
    world.database.is_away = True
    world.groups.seconds = 60
    found = await world.ops.stuck()
    assert [each.detail for each in found.threads] == ["a service: x"]
    assert len(found.incomplete) == 3
    assert found.incomplete[2].endswith("within 5 s.")
    assert world.metric("threadlog_ops_sources_failed_total") == 3
    world.database.is_away = False
    world.groups.seconds = 0
    world.groups.is_away = True
    world.broker.is_away = True
    await asyncio.sleep(60)
    found = await world.ops.stuck()
    assert len(found.incomplete) == 2
    assert "no broker" in found.incomplete[1]


@in_virtual_time
async def test_a_source_that_answers_nonsense_does_not_end_the_service() -> None:
    world = OpsWorld()
    world.quiet("t", 400)
    del world.groups.groups[RUNTIME_GROUP]
    watching = asyncio.create_task(world.ops.run())
    await asyncio.sleep(1)
    found = await world.ops.stuck()
    assert found.incomplete == ["The broker could not be asked for the owners of partitions: KeyError."]
    assert [entry.thread for entry in found.threads] == ["t"]
    assert not watching.done()
    watching.cancel()


@in_virtual_time
async def test_many_who_ask_at_once_cost_one_look() -> None:
    world = OpsWorld()
    first, second = await asyncio.gather(world.ops.stuck(), world.ops.stuck())
    assert first is second
    assert world.database.asked == 2
    await asyncio.sleep(6)
    assert await world.ops.stuck() is not first


@in_virtual_time
async def test_a_partition_is_without_owner_since_it_was_first_seen_so() -> None:
    world = OpsWorld()
    lost = GroupMembers(1, frozenset(list(ALL)[:1]), True)
    world.groups.groups[RUNTIME_GROUP] = lost
    first = (await world.ops.stuck()).partitions[0]
    await asyncio.sleep(30)
    assert (await world.ops.stuck()).partitions == [first]
    world.groups.groups[RUNTIME_GROUP] = lost._replace(is_settled=False)
    await asyncio.sleep(6)
    assert (await world.ops.stuck()).partitions == [], "the group is about to agree"


@in_virtual_time
async def test_more_than_can_be_listed_or_looked_at_is_said() -> None:
    world = OpsWorld(LIMITS)
    for number in range(1_200):
        world.quiet(f"t{number:04}", seconds=400 if number < 4 else 1)
    world.quiet("tz", seconds=400)
    world.quiet("older", seconds=400, fold_version=FOLD_VERSION - 1)
    world.database.quiet.sort(key=lambda row: row["thread"])
    found = await world.ops.stuck()
    assert len(found.threads) == 3
    assert found.incomplete == [
        "More than 1000 threads are quiet; only these were looked at.",
        "4 entries of threads were found; these are 3 of them.",
    ]


@in_virtual_time
async def test_a_state_that_is_none_is_said_and_the_others_judged() -> None:
    world = OpsWorld()
    world.quiet("bad", seconds=400, state="{}{")
    world.quiet("good", seconds=400)
    found = await world.ops.stuck()
    assert [each.thread for each in found.threads] == ["good"]
    assert found.incomplete == ["The stored state of acme/bad is not one; rebuild the views."]


@in_virtual_time
async def test_the_metrics_are_kept_up_without_anybody_asking() -> None:
    world = OpsWorld()
    running = asyncio.create_task(world.ops.run())
    await asyncio.sleep(1)
    world.quiet("a", seconds=400)
    assert world.metric("threadlog_stuck_threads", reason="no_progress") == 0
    await asyncio.sleep(60)
    assert world.metric("threadlog_stuck_threads", reason="no_progress") == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Scoped:
    def __init__(self, *scopes: Scope) -> None:
        self._scopes = frozenset[str](scopes)

    async def principal(self, _headers: Any) -> Principal:
        return Principal(TenantId("acme"), "ann", self._scopes)


def client_of(app: ASGIApp) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")


async def test_only_operators_see_it() -> None:
    world = OpsWorld()
    world.database.quarantined.append({"tenant": "b", "thread": "t", "quarantined": "no", "updated_at": None})
    ingest = World()
    async with client_of(ingest.app_for(Scoped("threads:read", "threads:write"), world.ops)) as other:
        assert (await other.get("/v1/ops/stuck")).status_code == 403
        assert (await other.get("/v1/ops/dead-letters")).status_code == 403
    async with client_of(ingest.app_for(Scoped("ops"), world.ops)) as operator:
        answer = await operator.get("/v1/ops/stuck")
    assert answer.status_code == 200
    assert [each["tenant"] for each in answer.json()["threads"]] == ["b"]
    assert set(answer.json()) == {"looked_at", "threads", "partitions", "incomplete"}
