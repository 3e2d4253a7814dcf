"""The projector's database in memory: what it writes, and all that the services read there.

`MemoryViews` is one database. It holds the rows of the projector's own projections, and implements every port that
Postgres stands behind: the projector's `Stores`, `StateStore` and `KeyStore`, the runtime's `TranscriptStore`, ingest's
`ThreadRows`, `EarlierCommands`, `Standings`, call facts and `History`. `tests/contract` holds it to what Postgres does.

What it is as a database, and what can go wrong with it, is in `memory_database`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar

import orjson
from pydantic import JsonValue

from schemas.envelope import format_time
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from schemas.transcript import Item
from services.chassis.threads.contexts import UNBOUNDED, Bounds, ShownAt, with_calls
from services.chassis.threads.states import PartitionKeys, PartitionStates, StatesUnavailableError
from services.ingest.commands.accepting.accept import CallFacts, Stored
from services.ingest.commands.accepting.plans import PlanFacts
from services.ingest.commands.commands import FoundCommands
from services.ingest.commands.existence import ThreadRow
from services.ingest.commands.forks import ForkAt, FoundPoint, MadeFork
from services.ingest.commands.refusals import CallStanding, Decided, InputStanding, PlanStanding
from services.ingest.http.problems import VIEWS_UNAVAILABLE, Problem, ProblemError
from services.ingest.streams.frames import FoldedRecord
from services.ingest.streams.history import PAGE_BYTES_MAX, SEQ_MAX, EventPage
from services.projector.generations.database import TIME_MS_MAX
from services.projector.projections import events
from services.runtime.deciding.children import WITHDRAWN, answer_text, child_end
from services.runtime.deciding.decisions import ChildEnd
from services.runtime.transcript_store import ColdTranscript, loaded_transcript
from tests.support.memory.database import AwayError, MemoryDatabase, Pause, next_offset
from tests.support.memory.forks import find_configs, find_made, find_point
from tests.support.memory.tables import EVENT_DATA, Refuses, Tables

TOPIC: Final = THREAD_EVENTS.name
_STORED, _FOLDED = (
    itemgetter(*[events.COLUMNS.index(name) for name in names])
    for names in (
        ("id", "type", "data_hash", "partition", "offset", "seq", "effect", "reason"),
        ("seq", "id", "type", "time", "actor", "cause", "effect", "reason", "partition", "offset", "data"),
    )
)
T = TypeVar("T")


class MemoryViews(MemoryDatabase):
    def __init__(
        self, pause: Pause | None = None, *, refuses: Refuses | None = None, page_bytes_max: int = PAGE_BYTES_MAX
    ) -> None:
        super().__init__(pause, refuses=refuses)
        self.page_bytes_max = page_bytes_max

    # `StateStore` and `KeyStore`

    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        def read(tables: Tables | None) -> PartitionStates:
            if tables is None or not _has(tables, topic, partition):
                return PartitionStates(0, {})
            active = {key: row.state for key, row in tables.states() if row.active and row[:2] == (topic, partition)}
            return PartitionStates(next_offset(tables, partition), active)

        return await self._ask_states(read)

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        def read(tables: Tables | None) -> PartitionStates:
            if tables is None or not _has(tables, topic, partition):
                return PartitionStates(0, {})
            found = ((key, tables.state(key)) for key in keys)
            states = {key: row.state for key, row in found if row is not None and row.topic == topic}
            return PartitionStates(next_offset(tables, partition), states)

        return await self._ask_states(read)

    async def load_keys(self, topic: str, partition: int, keys_max: int) -> PartitionKeys | None:
        def read(tables: Tables | None) -> PartitionKeys | None:
            if tables is None or not _has(tables, topic, partition):
                return PartitionKeys(0, ())
            keys = [key for key, row in tables.states() if row[:2] == (topic, partition)]
            return PartitionKeys(next_offset(tables, partition), keys) if len(keys) <= keys_max else None

        return await self._ask_states(read)

    async def _ask_states(self, read: Callable[[Tables | None], T]) -> T:
        try:
            return await self.ask(read)
        except AwayError as error:
            raise StatesUnavailableError(f"the stored states cannot be read: {error}") from error

    # The runtime's `TranscriptStore`

    async def load(self, key: ThreadKey) -> ColdTranscript | None:
        try:
            return await self.ask(lambda tables: None if tables is None else cold_transcript(tables, key))
        except AwayError:
            return None

    # The runtime's `ChildStore`

    async def find_ends(self, tenant: str, inputs: Mapping[str, str]) -> Mapping[str, ChildEnd]:
        def read(tables: Tables | None) -> Mapping[str, ChildEnd]:
            if tables is None:
                return {}
            keys = {ThreadKey(TenantId(tenant), ThreadId(thread)): name for thread, name in inputs.items()}
            found = {key.thread: _child_end(tables, key, name) for key, name in keys.items()}
            return {thread: end for thread, end in found.items() if end is not None}

        try:
            return await self.ask(read)
        except AwayError:
            return {}

    async def shown_at(self, key: ThreadKey, seq: int, bounds: Bounds = UNBOUNDED) -> ShownAt | None:
        try:
            return await self.ask(lambda tables: None if tables is None else own_at(tables, key, seq, bounds))
        except AwayError:
            return None

    # Ingest's `ThreadRows`, `EarlierCommands` and `Standings`

    async def thread_row(self, key: ThreadKey, partition: int) -> ThreadRow:
        def read(tables: Tables) -> ThreadRow:
            row, at = tables.state(key), next_offset(tables, partition)
            if row is None:
                return ThreadRow(at, -1, exists=False, queued=0, seq=0)
            state = row.state
            is_closing = state.status in {"closing", "closed"}
            return ThreadRow(at, row.offset, state.exists, len(state.queue), state.seq, is_closing)

        return await self._ask_views(read)

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    changes = self._changes
                    if await self._ask_views(lambda tables: next_offset(tables, partition)) >= offset:
                        return True
                    if changes == self._changes:
                        await self.change()
        except TimeoutError:
            return False

    async def find(self, key: ThreadKey, partition: int, ids: Sequence[EventId]) -> FoundCommands:
        def read(tables: Tables) -> FoundCommands:
            commands = tables.of("commands", key)
            first = {event_id: _stored(commands[event_id,]) for event_id in ids if (event_id,) in commands}
            begins_at = None if tables.state(key) is not None else next_offset(tables, partition)
            return FoundCommands(first, begins_at)

        return await self._ask_views(read)

    async def find_after(
        self, key: ThreadKey, event_id: EventId, partition: int, offset: int, timeout_seconds: float
    ) -> Stored | None:
        if not await self.wait_for(partition, offset + 1, timeout_seconds):
            return None
        return (await self.find(key, partition, [event_id])).first.get(event_id)

    async def call_facts(self, key: ThreadKey, call: str) -> CallFacts | None:
        def read(tables: Tables) -> CallFacts | None:
            stored, row = tables.state(key), tables.of("tool_calls", key).get((call,))
            standing = None if stored is None else stored.state.calls.get(call)
            if standing is not None:
                return CallFacts(standing.tool, standing.attempt, standing.pool or None, standing.claim)
            return None if row is None else CallFacts(row["tool"], row["attempts"], row.get("pool"), row.get("claim"))

        return await self._ask_views(read)

    async def call_standing(self, key: ThreadKey, call: str) -> CallStanding | None:
        return await self._ask_views(lambda tables: _call_standing(tables, key, call))

    async def plan_facts(self, key: ThreadKey, event_id: EventId) -> PlanFacts:
        def read(tables: Tables) -> PlanFacts:
            stored, first = tables.state(key), tables.of("commands", key).get((event_id,))
            data = None if first is None else first[EVENT_DATA]
            proposed = None if data is None else orjson.loads(data).get("plan_version")
            return PlanFacts(0, None) if stored is None else PlanFacts(stored.state.plan.last_version, proposed)

        return await self._ask_views(read)

    async def plan_standing(self, key: ThreadKey, version: int) -> PlanStanding | None:
        return await self._ask_views(lambda tables: _plan_standing(tables, key, version))

    # Ingest's `ForkRows`

    async def fork_point(self, key: ThreadKey, at: ForkAt) -> FoundPoint | None:
        return await self._ask_views(lambda tables: find_point(tables, key, at))

    async def fork_configs(self, key: ThreadKey, seq: int, most: int) -> Sequence[JsonValue]:
        return await self._ask_views(lambda tables: find_configs(tables, key, seq, most))

    async def fork_made(self, key: ThreadKey, event_id: EventId) -> MadeFork | None:
        return await self._ask_views(lambda tables: find_made(tables, key, event_id))

    async def input_standing(self, key: ThreadKey, input_id: str) -> InputStanding | None:
        return await self._ask_views(lambda tables: _input_standing(tables, key, input_id))

    async def _ask_views(self, read: Callable[[Tables], T]) -> T:
        def read_if_there(tables: Tables | None) -> T:
            if tables is None:
                raise ProblemError(Problem(VIEWS_UNAVAILABLE, "There are no views yet."))
            return read(tables)

        try:
            return await self.ask(read_if_there)
        except AwayError as error:
            raise ProblemError(Problem(VIEWS_UNAVAILABLE, f"The database cannot be asked: {error}.")) from error

    # Ingest's `History`

    async def page(self, key: ThreadKey, after: int, through: int, limit: int) -> list[FoldedRecord]:
        return (await self._page(key, after, through, limit, applied_only=False))[0]

    async def page_of(self, key: ThreadKey, after: int, limit: int, *, applied_only: bool) -> EventPage:
        records, is_end = await self._page(key, after, SEQ_MAX, limit, applied_only=applied_only)
        return EventPage(records, records[-1].seq if records else after, is_end)

    async def at(self, key: ThreadKey, partition: int, offset: int) -> FoldedRecord | None:
        def read(tables: Tables | None) -> FoldedRecord | None:
            rows = {} if tables is None else tables.of("events", key)
            newest_first = (rows[seq,] for seq in range(len(rows), 0, -1))
            return next((folded(row) for row in newest_first if row[3:5] == (partition, offset)), None)

        return await self._ask_states(read)

    async def _page(
        self, key: ThreadKey, after: int, through: int, limit: int, *, applied_only: bool
    ) -> tuple[list[FoldedRecord], bool]:
        """With whether nothing follows in this range."""

        def read(tables: Tables | None) -> tuple[list[FoldedRecord], bool]:
            rows = {} if tables is None else tables.of("events", key)
            records: list[FoldedRecord] = []
            size = 0
            for seq in range(after + 1, min(through, len(rows)) + 1):
                record = folded(rows[seq,])
                if applied_only and record.effect != "applied":
                    continue
                if len(records) == limit or size >= self.page_bytes_max:
                    return records, False
                records.append(record)
                size += len(record.data or b"")
            return records, True

        return await self._ask_states(read)


def _has(tables: Tables, topic: str, partition: int) -> bool:
    return topic == TOPIC and partition in tables.positions


def cold_transcript(tables: Tables, key: ThreadKey) -> ColdTranscript | None:
    state = tables.state(key)
    if state is None or state.quarantined is not None:
        return None
    items = [
        _item(seq, part, row)
        for (seq, part), row in sorted(tables.of("items", key).items())
        if not _HIDING & row.keys() and ("place" in row or "input" in row)
    ]
    return ColdTranscript(state.state.seq, loaded_transcript(items, state.state.lineage))


def own_at(tables: Tables, key: ThreadKey, seq: int, bounds: Bounds) -> ShownAt | None:
    state = tables.state(key)
    if state is None or state.quarantined is not None or state.state.seq < seq:
        return None
    rows = [
        (_item(at, part, row), row)
        for (at, part), row in tables.of("items", key).items()
        if row.get("place", seq + 1) <= seq and row.get("rewound_at", seq + 1) > seq
    ]
    summary = max((item for item, _ in rows if item.kind == "summary"), key=lambda item: item.seq, default=None)
    through_seq = 0 if summary is None else summary.content["through_seq"]
    assert isinstance(through_seq, int)
    items = [
        item for item, _ in rows if (item.place or 0) > through_seq and (item.kind != "summary" or item == summary)
    ]
    items.sort(key=lambda item: (item.kind != "summary", item.place, item.seq, item.part))
    lineage = state.state.lineage
    is_fork = lineage is not None and lineage.kind == "fork" and summary is None
    parent = (lineage.parent, lineage.seq) if lineage is not None and is_fork else None
    kept = _within(items, bounds)
    return ShownAt(with_calls(kept), parent, is_cut=len(kept) < len(items))


def _within(items: list[Item], bounds: Bounds) -> list[Item]:
    kept: list[Item] = []
    size = 0
    for item in items[: bounds.items_max]:
        if bounds.bytes_max is not None and size >= bounds.bytes_max:
            break
        kept.append(item)
        size += len(orjson.dumps(item.content))
    return kept


_HIDING: Final = {"rewound_at", "compacted_at", "dropped"}


def _item(seq: int, part: int, row: dict[str, Any]) -> Item:
    content = _as_jsonb(orjson.loads(row["content"]))
    assert isinstance(content, dict)
    return Item(
        seq,
        part,
        row["kind"],
        row.get("turn"),
        row.get("step"),
        row.get("place"),
        content,
        row["digest"],
        row.get("input"),
        row.get("call"),
    )


def _as_jsonb(value: JsonValue) -> JsonValue:
    """With the keys in the order in which Postgres gives them back, whatever order they had."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(raw := key.encode()), raw))
        return {key: _as_jsonb(value[key]) for key in keys}
    if isinstance(value, list):
        return [_as_jsonb(item) for item in value]
    return value


def _call_standing(tables: Tables, key: ThreadKey, call: str) -> CallStanding | None:
    row = tables.of("tool_calls", key).get((call,))
    if row is None:
        return None
    approval, resolution, settled_by, result = None, None, None, None
    if "decision" in row:
        at = _time(row.get("decided_at"))
        approval = Decided(row.get("decided_by"), row["decision"], at, row.get("decision_reason"))
    if "resolution" in row:
        at = _time(row.get("resolved_at"))
        resolution = Decided(row.get("resolved_by"), row["resolution"], at, row.get("note"))
    if "settled_seq" in row:
        settled_by = _stored(tables.of("events", key)[row["settled_seq"],])
        result = _result(tables, key, call, row["settled_seq"])
    return CallStanding(
        call=call,
        tool=row["tool"],
        status=row["status"],
        call_hash=row["call_hash"],
        attempt=row["attempts"],
        approval=approval,
        resolution=resolution,
        outcome=row.get("outcome"),
        settled_at=_time(row.get("settled_at")),
        result=result,
        settled_by=settled_by,
    )


def _result(tables: Tables, key: ThreadKey, call: str, seq: int) -> JsonValue:
    for (of_seq, _), row in tables.of("items", key).items():
        if of_seq == seq and row.get("call") == call and row["kind"] in {"tool_result", "resolution"}:
            result: JsonValue = orjson.loads(row["content"]).get("content")
            return result
    return None


def _plan_standing(tables: Tables, key: ThreadKey, version: int) -> PlanStanding | None:
    row = tables.of("plans", key).get((version,))
    if row is None:
        return None
    decided = None
    if "decided_by" in row:
        decision = "rejected" if row["status"] == "rejected" else "approved"
        decided = Decided(row["decided_by"], decision, _time(row["decided_at"]), row.get("decision_reason"))
    return PlanStanding(version, row["status"], decided)


def _input_standing(tables: Tables, key: ThreadKey, input_id: str) -> InputStanding | None:
    found = [(place, row) for place, row in tables.of("items", key).items() if row.get("input") == input_id]
    if not found:
        return None
    _, row = max(found, key=lambda item: item[0])
    turn = row.get("turn")
    status = "queued" if turn is None else "taken"
    if "dropped" in row:
        status = "withdrawn" if row["dropped"] == "input.withdrawn" else "discarded"
    return InputStanding(input_id, status, turn, row.get("step"))


def _child_end(tables: Tables, key: ThreadKey, input_id: str) -> ChildEnd | None:
    standing = _input_standing(tables, key, input_id)
    if standing is None:
        row = tables.state(key)
        is_closed = row is not None and row.state.status in {"closing", "closed"}
        return child_end(None, WITHDRAWN, "") if is_closed else None
    if standing.status == "queued":
        return None
    if standing.status != "taken":
        return child_end(None, WITHDRAWN, "")
    turn = tables.of("turns", key)[standing.turn,]
    if turn["status"] != "ended":
        return None
    step = tables.of("steps", key).get((standing.turn, turn["steps"]))
    answer = [
        orjson.loads(row["content"])
        for (seq, _), row in sorted(tables.of("items", key).items())
        if step is not None and seq == step.get("finished_seq") and row["kind"] == "message"
    ]
    return child_end(turn.get("outcome"), turn.get("reason"), answer_text(answer))


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else format_time(time_ms)


def _stored(row: tuple[Any, ...]) -> Stored:
    return Stored(*_STORED(row))


def folded(row: tuple[Any, ...]) -> FoldedRecord:
    record = FoldedRecord(*_FOLDED(row))
    return record if record.time_ms <= TIME_MS_MAX else record._replace(time_ms=TIME_MS_MAX)
