"""The ingest application on a simulated log, with views and verdicts that fold that log themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import httpx2
from prometheus_client import CollectorRegistry
from pydantic import JsonValue
from starlette.types import ASGIApp

from schemas.codec import Record, decode, encode
from schemas.envelope import format_time
from schemas.events import (
    Event,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    StepStarted,
    ToolCallApprovalExpired,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallFinished,
    ToolCallResolved,
    TurnStarted,
)
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.thread import Verdict, fold
from schemas.tools import Catalog, CatalogSource, ToolSpec
from schemas.topics import THREAD_EVENTS
from services.chassis.catalog.reader import CatalogReader
from services.chassis.log.port import Outgoing
from services.ingest.__main__ import accept_limits, diffs_of, request_rules, transfer_limits
from services.ingest.app import create_app
from services.ingest.commands.accepting.accept import CallFacts, Stored
from services.ingest.commands.accepting.plans import PlanFacts
from services.ingest.commands.commands import CommandLimits, Commands, FoundCommands
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads, ThreadRow
from services.ingest.commands.forks import Forks
from services.ingest.commands.refusals import CallStanding, Decided, InputStanding, PlanStanding, Refusals
from services.ingest.commands.tools import Tools
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.files.transfers import Transfers
from services.ingest.files.turn_diff import RecordedChange
from services.ingest.http.auth import Authenticator, DevAuthenticator
from services.ingest.http.problems import VIEWS_UNAVAILABLE, Problem, ProblemError
from services.ingest.imports.jobs import FILES_MAX, Imports
from services.ingest.limits import LIMITS, IngestLimits
from services.ingest.metrics import IngestMetrics
from services.ingest.operations.dead_letters import DeadLetters
from services.ingest.operations.stuck import Ops
from services.ingest.operations.windows import HOURS_MAX, OpsWindows
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.reads.reads import USAGE_DAYS_MAX, Reads
from services.ingest.reads.state_at import StatesAt
from services.ingest.routes.artifacts import ArtifactRoutes
from services.ingest.routes.children import ChildRoutes
from services.ingest.routes.events import EventRoutes
from services.ingest.routes.file_history import FileHistoryRoutes
from services.ingest.routes.imports import ImportRoutes
from services.ingest.routes.inputs import InputRoutes
from services.ingest.routes.lineage import LineageRoutes
from services.ingest.routes.operations.stuck import StuckRoutes
from services.ingest.routes.operations.windows import WindowRoutes
from services.ingest.routes.parameters import PageSizes
from services.ingest.routes.plans import PlanRoutes
from services.ingest.routes.reads import ReadRoutes
from services.ingest.routes.state import StateRoutes
from services.ingest.routes.threads import ThreadRoutes
from services.ingest.routes.tool_calls import ToolCallRoutes
from services.ingest.routes.usage import UsageRoutes
from services.ingest.settings import IngestSettings
from services.ingest.streams.event_stream import StreamOptions
from services.ingest.streams.live import Judged, Watches
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.simulated.log import SimulatedBroker, SimulatedLog
from tests.support.worlds.declared_answers import DeclaredAnswers

PARTITIONS = 4
NOW_MS = 1_790_000_000_000
SHELL: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
CATALOG = CatalogSource(source="test", pool="builtin", tools=(ToolSpec(name="shell", input_schema=SHELL),))


class StoppedClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


def read_thread(
    broker: SimulatedBroker, key: ThreadKey, partition: int, below: int | None = None
) -> list[tuple[Record, Verdict, ThreadState]]:
    state, folded = NOTHING, []
    for incoming in broker.records(THREAD_EVENTS.name, partition):
        if incoming.key != key.to_bytes() or (below is not None and incoming.offset >= below):
            continue
        record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset)
        assert isinstance(record, Record)
        state, verdict = fold(state, record)
        folded.append((record, verdict, state))
    return folded


def stored_of(record: Record, verdict: Verdict, state: ThreadState, partition: int) -> Stored:
    return Stored(
        record.id, record.kind, record.data_hash, partition, record.offset, state.seq, verdict.effect, verdict.reason
    )


@dataclass
class LogViews:
    """What the views would hold. `held_at` keeps them behind the log."""

    broker: SimulatedBroker
    log: SimulatedLog
    held_at: int | None = None
    is_away: bool = False
    asked: list[str] = field(default_factory=list)

    def _read(self, what: str, key: ThreadKey, partition: int) -> list[tuple[Record, Verdict, ThreadState]]:
        self.asked.append(what)
        if self.is_away:
            raise ProblemError(Problem(VIEWS_UNAVAILABLE, "The database cannot be asked: OSError."))
        return read_thread(self.broker, key, partition, self.held_at)

    def _next_offset(self, partition: int) -> int:
        end = len(self.broker.records(THREAD_EVENTS.name, partition))
        return end if self.held_at is None else min(end, self.held_at)

    def _partition(self, key: ThreadKey) -> int:
        return self.log.partition_for(key.to_bytes(), PARTITIONS)

    async def thread_row(self, key: ThreadKey, partition: int) -> ThreadRow:
        folded = self._read("thread_row", key, partition)
        state = folded[-1][2] if folded else NOTHING
        is_closing = state.status in {"closing", "closed"}
        return ThreadRow(
            self._next_offset(partition), state.offset, state.exists, len(state.queue), state.seq, is_closing
        )

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        self.asked.append("wait_for")
        return self._next_offset(partition) >= offset

    async def reached(self, partition: int | None, value: int, key: ThreadKey | None, timeout_seconds: float) -> bool:
        if partition is not None:
            return await self.wait_for(partition, value + 1, timeout_seconds)
        assert key is not None
        return len(self._read("reached", key, self._partition(key))) >= value

    async def find(self, key: ThreadKey, partition: int, ids: Sequence[EventId]) -> FoundCommands:
        folded = self._read("find", key, partition)
        first: dict[EventId, Stored] = {}
        for record, verdict, state in folded:
            if record.id in ids and record.actor.startswith("user:"):
                first.setdefault(record.id, stored_of(record, verdict, state, partition))
        return FoundCommands(first, None if folded else self._next_offset(partition))

    async def find_after(
        self, key: ThreadKey, event_id: EventId, partition: int, offset: int, timeout_seconds: float
    ) -> Stored | None:
        found = await self.find(key, partition, [event_id])
        return found.first.get(event_id) if await self.wait_for(partition, offset + 1, 0) else None

    async def call_facts(self, key: ThreadKey, call: str) -> CallFacts | None:
        folded = self._read("call_facts", key, self._partition(key))
        found = [state.calls[call] for _, _, state in folded if call in state.calls]
        if not found:
            return None
        return CallFacts(found[-1].tool, found[-1].attempt, found[-1].pool or None, found[-1].claim)

    async def call_standing(self, key: ThreadKey, call: str) -> CallStanding | None:
        partition = self._partition(key)
        standing: CallStanding | None = None
        for record, verdict, state in self._read("call_standing", key, partition):
            now = state.calls.get(call)
            if verdict.effect != "applied" or now is None:
                continue
            before = standing or CallStanding(call, now.tool, now.status, now.call_hash, 0, None, None)
            standing = replace(before, status=now.status, call_hash=now.call_hash, attempt=now.attempt)
            at = format_time(record.time_ms)
            match record.data:
                case ToolCallApproved(call=name) as data if name == call:
                    decision = "approved" if data.edited is None else "edited"
                    standing = replace(standing, approval=Decided(data.by, decision, at, None))
                case ToolCallDenied(call=name) as data if name == call:
                    standing = replace(standing, approval=Decided(data.by, "denied", at, data.reason))
                case ToolCallApprovalExpired(call=name) if name == call:
                    standing = replace(standing, approval=Decided(None, "expired", at, None))
                case ToolCallResolved(call=name) as data if name == call:
                    standing = replace(standing, resolution=Decided(record.actor, data.decision, at, data.note))
            if now.settled and before.outcome is None:
                result = record.data.result if isinstance(record.data, ToolCallFinished | ToolCallResolved) else None
                standing = replace(
                    standing,
                    outcome=now.outcome,
                    settled_at=at,
                    result=result,
                    settled_by=stored_of(record, verdict, state, partition),
                )
        return standing

    async def plan_facts(self, key: ThreadKey, event_id: EventId) -> PlanFacts:
        folded = self._read("plan_facts", key, self._partition(key))
        proposed = [record.data.plan_version for record, _, _ in folded if record.id == event_id]
        return PlanFacts(folded[-1][2].plan.last_version if folded else 0, proposed[0] if proposed else None)

    async def plan_standing(self, key: ThreadKey, version: int) -> PlanStanding | None:
        standing: PlanStanding | None = None
        for record, verdict, state in self._read("plan_standing", key, self._partition(key)):
            if verdict.effect != "applied":
                continue
            at = format_time(record.time_ms)
            match record.data:
                case PlanProposed(plan_version=proposed) if proposed == version:
                    standing = PlanStanding(version, "waiting", None)
                case PlanApproved(plan_version=decided) as data if decided == version:
                    standing = PlanStanding(version, "in_force", Decided(data.by, "approved", at, None))
                case PlanRejected(plan_version=decided) as data if decided == version:
                    standing = PlanStanding(version, "rejected", Decided(data.by, "rejected", at, data.reason))
            if standing is not None and standing.status == "waiting" and state.plan.waiting != version:
                standing = PlanStanding(version, "superseded", None)
        return standing

    async def input_standing(self, key: ThreadKey, input_id: str) -> InputStanding | None:
        standing: InputStanding | None = None
        for record, verdict, state in self._read("input_standing", key, self._partition(key)):
            if verdict.effect != "applied":
                continue
            match record.data:
                case TurnStarted(inputs=inputs) as data if input_id in inputs:
                    standing = InputStanding(input_id, "taken", data.turn, None)
                case StepStarted(inputs=inputs) as data if input_id in inputs:
                    standing = InputStanding(input_id, "taken", data.turn, data.step)
                case _ if any(item.input == input_id for item in state.queue):
                    standing = InputStanding(input_id, "queued", None, None)
                case _ if standing is not None and standing.status == "queued":
                    how = "withdrawn" if isinstance(record.data, InputWithdrawn) else "discarded"
                    standing = InputStanding(input_id, how, None, None)
        return standing


@dataclass
class LogVerdicts:
    broker: SimulatedBroker
    log: SimulatedLog
    created: dict[ThreadKey, int] = field(default_factory=dict)
    is_silent: bool = False

    async def verdict(self, key: ThreadKey, offset: int, timeout_seconds: float) -> Judged | None:
        if self.is_silent:
            return None
        folded = read_thread(self.broker, key, self.log.partition_for(key.to_bytes(), PARTITIONS))
        for seq, (record, verdict, _) in enumerate(folded, 1):
            if record.offset == offset:
                return Judged(seq, verdict, folded[-1][2])
        raise AssertionError(f"no record of {key} at {offset}")

    def note_created(self, key: ThreadKey, offset: int) -> None:
        self.created[key] = offset


@dataclass
class LogFileHistories:
    """What the views hold of files, once they have caught up."""

    broker: SimulatedBroker
    known: KnownThreads

    async def of_turn(self, key: ThreadKey, turn: int) -> list[RecordedChange] | None:
        folded = read_thread(self.broker, key, self.known.partition(key))
        if all(not isinstance(record.data, TurnStarted) or record.data.turn != turn for record, _, _ in folded):
            return None
        return [change for change in self._all(key) if change.call.startswith(f"{turn}.")]

    async def latest(self, key: ThreadKey, paths: Sequence[str]) -> dict[str, RecordedChange]:
        return {change.path: change for change in self._all(key) if change.path in paths}

    def _all(self, key: ThreadKey) -> list[RecordedChange]:
        return [
            RecordedChange(record.data.call, state.seq, one.path, one.before, one.after, one.mode)
            for record, verdict, state in read_thread(self.broker, key, self.known.partition(key))
            if isinstance(record.data, ToolCallFinished) and verdict.effect == "applied"
            for one in record.data.changes
        ]


class World:
    def __init__(self, **changed: Any) -> None:
        """`changed`: settings, and fields of IngestLimits."""
        own = {field.name for field in fields(IngestLimits)}
        self.limits = replace(LIMITS, **{name: value for name, value in changed.items() if name in own})
        # What the machine's environment says of the settings is no part of a test.
        self.settings = IngestSettings.model_construct(
            **{name: info.get_default(call_default_factory=True) for name, info in IngestSettings.model_fields.items()}
            | {"ingest_auth": "dev", "instance": "test"}
            | {name: value for name, value in changed.items() if name not in own}
        )
        self.clock = StoppedClock()
        self.broker = SimulatedBroker({THREAD_EVENTS.name: PARTITIONS}, self.clock)
        self.log = self.broker.connect("ingest")
        self.views = LogViews(self.broker, self.log)
        self.verdicts = LogVerdicts(self.broker, self.log)
        self.registry = CollectorRegistry()
        self.metrics = IngestMetrics.build(self.registry)
        self.known = KnownThreads(
            log=self.log,
            rows=self.views,
            partitions=PARTITIONS,
            queue_max=self.settings.ingest_queue_inputs_max,
            wait_seconds=self.limits.views_wait_seconds,
        )
        self.commands = Commands(
            appender=self.log.appender,
            known=self.known,
            earlier_commands=self.views,
            verdicts=self.verdicts,
            clock=self.clock,
            instance=self.settings.instance,
            limits=CommandLimits(
                record_bytes_max=self.limits.record_bytes_max,
                appends_per_tenant_max=self.settings.ingest_appends_per_tenant_max,
                queue_inputs_max=self.settings.ingest_queue_inputs_max,
                recent_max=self.limits.recent_commands_max,
                verdict_wait_seconds=self.settings.ingest_verdict_wait_seconds,
            ),
            metrics=self.metrics,
            refusals=Refusals(self.views, self.limits.views_wait_seconds),
        )
        self.authenticator = DevAuthenticator()
        self.catalog = CatalogReader(self.log)
        self.catalog.catalog = Catalog().with_source("test", CATALOG)
        self.catalog.ready.set()
        self.artifacts = MemoryArtifacts(self.clock, self.settings.artifact_bytes_max)
        self.histories = LogFileHistories(self.broker, self.known)
        self.transfers = Transfers(transfer_limits(self.settings, self.limits), self.metrics)
        self.app = self.app_for(self.authenticator)
        transport = httpx2.ASGITransport(DeclaredAnswers(self.app), raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")

    def app_for(self, authenticator: Authenticator, ops: Ops | None = None) -> ASGIApp:
        """The application. Lists of the views are read on a real database only, so their reader is missing here."""
        limits, clock = accept_limits(self.settings), self.clock
        views, reads = cast("ViewsAndFold", self.views), cast("Reads", None)
        commands, known, tools = self.commands, self.known, Tools(self.catalog)
        named, forks = NamedArtifacts(self.artifacts), cast("Forks", None)
        at_least = AtLeastWaits(known, views, self.limits.at_least_wait_seconds)
        pages = PageSizes(self.limits.page_default, self.limits.page_max)
        options = StreamOptions(self.limits.heartbeat_seconds, self.limits.send_seconds_max)
        diffs = diffs_of(self.limits, self.artifacts)
        groups = (
            InputRoutes(commands, limits, named),
            ThreadRoutes(commands, limits, named, known, views, reads, at_least, pages),
            EventRoutes(known, cast("Watches", None), at_least, pages, options),
            ReadRoutes(known, reads, tools, at_least, pages),
            StateRoutes(known, cast("StatesAt", None), at_least),
            ToolCallRoutes(commands, limits, known, views, tools),
            LineageRoutes(commands, limits, named, forks),
            PlanRoutes(commands, limits, known, views),
            ChildRoutes(commands, limits, named, forks, self.settings.child_depth),
            ImportRoutes(cast("Imports", None), pages, FILES_MAX),
            UsageRoutes(reads, known, at_least, pages, clock, USAGE_DAYS_MAX),
            ArtifactRoutes(self.artifacts, self.transfers, self.settings.artifact_bytes_max),
            FileHistoryRoutes(commands, known, tools, self.histories, diffs),
            StuckRoutes(ops or cast("Ops", None), cast("DeadLetters", None), pages),
            WindowRoutes(cast("OpsWindows", None), pages, clock, HOURS_MAX),
        )
        rules = request_rules(self.settings, authenticator)
        return create_app(groups, rules, requests_max=self.settings.ingest_requests_max, metrics=self.metrics)

    async def post(
        self, path: str, json: object = None, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        sent = dict(headers or {}) | ({} if key is None else {"idempotency-key": key})
        return await self.client.post(path, json={} if json is None else json, headers=sent)

    async def created(self, json: object = None) -> str:
        answer = await self.post("/v1/threads", json)
        assert answer.status_code == 202, answer.text
        return cast("str", answer.json()["thread"])

    def key(self, thread: str, tenant: str = "dev") -> ThreadKey:
        return ThreadKey(TenantId(tenant), ThreadId(thread))

    def folded(self, thread: str, tenant: str = "dev") -> list[tuple[Record, Verdict, ThreadState]]:
        key = self.key(thread, tenant)
        return read_thread(self.broker, key, self.known.partition(key))

    def state(self, thread: str) -> ThreadState:
        return self.folded(thread)[-1][2]

    async def service_appends(self, thread: str, event: Event, actor: str = "service:runtime") -> None:
        """What another service would append; it has to apply."""
        key = self.key(thread)
        made = encode(key, event, source="runtime/test", actor=actor, time_ms=self.clock.now_ms())
        record = Outgoing(key.to_bytes(), made.value, made.headers)
        await self.log.appender.append(THREAD_EVENTS.name, self.known.partition(key), [record])
        assert self.folded(thread)[-1][1].effect == "applied", self.folded(thread)[-1][1]
