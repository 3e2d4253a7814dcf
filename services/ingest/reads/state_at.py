"""A thread as it was at any of its records: the folded control state, and what a model was shown of it.

The newest state is the projector's row. An earlier one is folded from the `events` view. That view holds data as jsonb,
which keeps neither the order of names nor the form of numbers, and the state's bytes depend on both. So each record's
bytes are written again canonically, as producers write them, and they count if their hash is the record's. A record
whose hash differs, or whose data the view does not hold, is read from the log by its position. At the end the folded
hash chain must be the one that the view shows; otherwise nothing is answered.

A fork's own items follow what its parents showed when they were forked, read from their rows.

Every cost is bounded: records, bytes, reads of the log, seconds, and how many states are folded at once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import asyncpg
import orjson
import pydantic_core

from schemas.canonical import canonical_json, data_hash
from schemas.codec import Problem as DataProblem
from schemas.codec import Record, decode
from schemas.envelope import Envelope, to_headers
from schemas.errors import ThreadlogError, UnstorableTextError
from schemas.events import BY_KIND, Lineage, cloudevents_type
from schemas.ids import DataHash, EventId, ThreadKey
from schemas.state import FOLD_VERSION, NOTHING, ThreadState, dump_state
from schemas.thread import fold
from schemas.transcript import Item, Transcript, context_hash, transcript_changes
from schemas.upcasters import UPCASTERS
from services.chassis.log.port import Incoming, Log, LogError, TopicPartition
from services.chassis.threads.contexts import (
    Bounds,
    BrokenLineageError,
    ContextRows,
    PostgresContexts,
    ShownAt,
    read_inherited,
)
from services.ingest.database import Database
from services.ingest.http.problems import (
    BAD_CURSOR,
    INTERNAL,
    LOG_UNAVAILABLE,
    OVERLOADED,
    STATE_OUT_OF_REACH,
    VIEWS_UNAVAILABLE,
    Problem,
    ProblemError,
)
from services.ingest.reads.log_records import read_records

RECORDS_PER_TURN_OF_THE_LOOP: Final = 32
"""Records after which folding lets other requests run: some milliseconds, at some thousand records a second."""
PAGE_RECORDS: Final = 500
"""Records of one query of the view."""
PAGE_BYTES: Final = 4 * 1_048_576
"""Bytes of one query's data, as stored."""
WITH_OLD_VERSIONS: Final = frozenset(kind for kind, _ in UPCASTERS)
"""Kinds of events with several versions. The view does not tell the versions apart, so they are read from the log,
whose headers do.
"""


@dataclass(frozen=True, slots=True)
class StateLimits:
    """How much one state may cost. Beyond a limit the answer is a problem, and `threadlog export` can still read the
    log.
    """

    records_max: int = 200_000
    """Records that are folded for one state."""
    bytes_max: int = 64 * 1_048_576
    """Bytes of the data that is folded, or of the items that are shown, as stored. All of them are in memory at once.
    """
    items_max: int = 50_000
    """Items of the model's context that are shown."""
    log_reads_max: int = 1_000
    """Records that are read from the log one by one, because the views do not hold them as they were written."""
    seconds: float = 10.0
    """How long an answer may take, waiting for other folds included."""
    at_once_max: int = 2
    """States that are folded at once. Folding shares the event loop with all other requests."""


class StateAt(NamedTuple):
    """A thread's state at a seq. `state` is JSON, as `schemas.state.dump_state` writes it."""

    seq: int
    chain: str
    partition: int
    offset: int
    """Offset of the record at this seq; -1 before the first."""
    state: bytes
    context: Sequence[Item]
    """The items that a model is shown, in order."""


class NotAsLoggedError(ThreadlogError):
    """The view does not fold to the hash chain that it shows: it, or the log, is damaged."""


class _Stored(NamedTuple):
    """Where a thread's records are, and its newest state if that is enough."""

    seq: int
    topic: str
    partition: int
    newest: StateAt | None
    """The newest state, if the client asks for it and the projector keeps the thread's views up to date."""


class StatesAt:
    """Folds states on request, a few at a time."""

    def __init__(self, database: Database, sql: Mapping[str, str], log: Log, limits: StateLimits) -> None:
        self._database = database
        self._sql = sql
        self._log = log
        self._contexts: ContextRows = PostgresContexts(database.fetch)
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.at_once_max)

    async def state(self, key: ThreadKey, at: int | None) -> StateAt | None:
        """Return the state at the seq, or the newest one in the views. None if the views are not that far. Raises
        ProblemError.
        """
        try:
            async with asyncio.timeout(self._limits.seconds) as limit:
                async with self._turns:
                    return await self._state(key, at)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ProblemError(self._too_long()) from None
        except NotAsLoggedError as error:
            detail = f"{error}. An operator can find out with `threadlog verify --thread {key}`."
            raise ProblemError(Problem(INTERNAL, detail)) from error
        except LogError as error:
            detail = f"Records of this thread have to be read from the log, which does not answer: {error}."
            raise ProblemError(Problem(LOG_UNAVAILABLE, detail)) from error

    def _too_long(self) -> Problem:
        """Return the problem of a state that took too long: overloaded if others were folded all the time."""
        seconds = self._limits.seconds
        if self._turns.locked():
            return Problem(OVERLOADED, f"{self._limits.at_once_max} states are being folded, for {seconds:g} s.")
        return Problem(
            STATE_OUT_OF_REACH,
            f"Folding the state took longer than {seconds:g} s. `threadlog export` has no such limit.",
        )

    async def _state(self, key: ThreadKey, at: int | None) -> StateAt | None:
        stored = await self._newest(key, at)
        if stored is None or (at is not None and at > stored.seq):
            return None
        if stored.newest is not None:
            return await self._with_inherited(key, stored.newest)
        return await self._fold(key, stored, stored.seq if at is None else at)

    async def _newest(self, key: ThreadKey, at: int | None) -> _Stored | None:
        """Return what one snapshot of the views holds of the thread. Raises ProblemError if the fold's versions
        differ.
        """
        limits = self._limits
        rows = await self._database.fetch(
            key.tenant, self._sql["state_newest"], key.tenant, key.thread, at, limits.items_max, limits.bytes_max
        )
        if not rows:
            return None
        row = rows[0]
        if row["fold_version"] != FOLD_VERSION:
            detail = f"The views are of fold version {row['fold_version']}, this service is of {FOLD_VERSION}."
            raise ProblemError(Problem(VIEWS_UNAVAILABLE, detail))
        newest = None
        if row["is_wanted"]:
            items = [_item(row) for row in rows if row["item_seq"] is not None]
            if len(items) < row["shown"]:
                raise ProblemError(_out_of_reach(f"The model is shown {row['shown']} items"))
            state = row["state"].encode()
            chain = orjson.loads(state)["chain"]
            newest = StateAt(row["seq"], chain, row["partition"], row["offset"], state, items)
        return _Stored(row["seq"], row["topic"], row["partition"], newest)

    async def _fold(self, key: ThreadKey, stored: _Stored, at: int) -> StateAt:
        """Fold the records up to `at`, page by page. Raises NotAsLoggedError if the hash chain does not fit."""
        if at > self._limits.records_max:
            raise ProblemError(_out_of_reach(f"It takes {at} records"))
        folding = _Folding(key)
        while folding.state.seq < at:
            page = await self._page(key, stored, folding, at)
            for number, (row, record) in enumerate(page, start=1):
                folding.take(row, record)
                if number % RECORDS_PER_TURN_OF_THE_LOOP == 0:
                    await asyncio.sleep(0)
        state = folding.state
        if state.chain != folding.chain_shown:
            raise NotAsLoggedError(f"The hash chain at seq {at} is {state.chain}, not {folding.chain_shown}")
        transcript = folding.transcript
        if transcript.lacks_inherited and transcript.forked is not None:
            transcript.inherited = await self._inherited(key, transcript.forked)
        context = transcript.context()
        return StateAt(at, state.chain, stored.partition, state.offset, dump_state(state), context)

    async def _with_inherited(self, key: ThreadKey, found: StateAt) -> StateAt:
        """Put what the parents showed in front of a fork's items. A summary replaces it: whoever compacts, compacts
        that too.
        """
        lineage = orjson.loads(found.state)["lineage"]
        has_summary = bool(found.context) and found.context[0].kind == "summary"
        if lineage is None or lineage["kind"] != "fork" or has_summary:
            return found
        inherited = await self._inherited(key, Lineage.model_validate(lineage))
        return found._replace(context=[*inherited, *found.context])

    async def _inherited(self, key: ThreadKey, lineage: Lineage) -> tuple[Item, ...]:
        """Return what the parents showed when they were forked. Raises ProblemError beyond the limits."""
        bounds, shown = Bounds(self._limits.items_max, self._limits.bytes_max), 0

        async def read(parent: ThreadKey, seq: int) -> ShownAt:
            nonlocal shown
            found = await self._contexts.shown_at(parent, seq, bounds)
            if found is None:
                detail = f"The views do not hold its parent {parent.thread} at seq {seq}."
                raise ProblemError(Problem(STATE_OUT_OF_REACH, detail))
            shown += len(found.items)
            if found.is_cut or shown > self._limits.items_max:
                raise ProblemError(_out_of_reach(f"The model is shown more than {shown} items"))
            return found

        try:
            return await read_inherited(key.tenant, lineage, read)
        except BrokenLineageError as error:
            raise NotAsLoggedError(str(error)) from error

    async def _page(
        self, key: ThreadKey, stored: _Stored, folding: "_Folding", at: int
    ) -> list[tuple[asyncpg.Record, Record | None]]:
        """Return the next rows with their records; None for a record that the log does not hold either."""
        limits = self._limits
        rows = await self._database.fetch(
            key.tenant,
            self._sql["state_records"],
            key.tenant,
            key.thread,
            folding.state.seq,
            at,
            PAGE_RECORDS,
            PAGE_BYTES,
        )
        if not rows:
            raise NotAsLoggedError(f"The record at seq {folding.state.seq + 1} is missing")
        page: list[tuple[asyncpg.Record, Record | None]] = []
        for number, row in enumerate(rows, start=1):
            page.append((row, _record(key, row)))
            if number % RECORDS_PER_TURN_OF_THE_LOOP == 0:
                await asyncio.sleep(0)
        missing = [row["offset"] for row, record in page if record is None]
        folding.log_reads += len(missing)
        folding.bytes_read += sum([len(row["data"] or "") for row in rows])
        if folding.log_reads > limits.log_reads_max:
            raise ProblemError(_out_of_reach(f"More than {limits.log_reads_max} records have to be read from the log"))
        if folding.bytes_read > limits.bytes_max:
            raise ProblemError(_out_of_reach(f"It takes more than {limits.bytes_max} bytes of records"))
        logged = await read_records(self._log, TopicPartition(stored.topic, stored.partition), missing)
        return [(row, record or _decoded(logged.get(row["offset"]))) for row, record in page]


@dataclass(slots=True)
class _Folding:
    """The fold under way, and what it has cost."""

    key: ThreadKey
    state: ThreadState = field(default_factory=lambda: NOTHING)
    transcript: Transcript = field(default_factory=Transcript)
    chain_shown: str = NOTHING.chain
    """The hash chain that the view shows for the last record."""
    log_reads: int = 0
    bytes_read: int = 0

    def take(self, row: asyncpg.Record, record: Record | None) -> None:
        """Fold one record. Raises NotAsLoggedError if it is missing, or took another effect than the view shows."""
        before, seq = self.state, row["seq"]
        if record is None or record.key != self.key or seq != before.seq + 1:
            raise NotAsLoggedError(f"The record at seq {before.seq + 1} is missing, or not the one of the log")
        self.state, verdict = fold(before, record)
        # Why a record took no effect may be lost in the view, and the state does not depend on it: see `_record`.
        if (verdict.effect == "applied") != (row["effect"] == "applied"):
            raise NotAsLoggedError(f"The record at seq {seq} is {verdict.effect}, not {row['effect']}")
        self.transcript.apply(transcript_changes(before, self.state, record, verdict))
        self.chain_shown = row["chain"]


def beyond(key: ThreadKey, at: int) -> Problem:
    """Return the problem of a seq that the thread does not have yet."""
    return Problem(BAD_CURSOR, f"The thread {key.thread} has no record with seq {at} yet.")


def to_json(key: ThreadKey, found: StateAt) -> bytes:
    """Return the answer of `GET …/state`. State and items are inserted as they are, without decoding them."""
    head = {
        "thread": key.thread,
        "seq": found.seq,
        "chain": found.chain,
        "position": {"partition": found.partition, "offset": found.offset},
        "fold_version": FOLD_VERSION,
    }
    context = {"hash": context_hash(list(found.context)), "count": len(found.context)}
    items = b",".join([pydantic_core.to_json(item._asdict()) for item in found.context])
    parts = (orjson.dumps(head)[:-1], b',"state":', found.state, b',"context":', orjson.dumps(context)[:-1])
    return b"".join((*parts, b',"items":[', items, b"]}}"))


def _out_of_reach(what: str) -> Problem:
    """Return the problem of a state that would cost more than a limit allows."""
    return Problem(
        STATE_OUT_OF_REACH, f"{what}, which is above a limit of this service. `threadlog export` has no such limit."
    )


def _item(row: asyncpg.Record) -> Item:
    return Item(
        row["item_seq"],
        row["part"],
        row["kind"],
        row["turn"],
        row["step"],
        row["place"],
        pydantic_core.from_json(row["content"]),
        row["digest"],
        row["input"],
        row["call"],
    )


def _record(key: ThreadKey, row: asyncpg.Record) -> Record | None:
    """Return the record as the log has it, or one that folds to the same. None: it must be read from the log."""
    model, data = BY_KIND.get(row["type"]), row["data"]
    if model is not None and data is not None and row["type"] not in WITH_OLD_VERSIONS:
        value = _written(data)
        if value is not None and data_hash(value) == row["data_hash"]:
            envelope = Envelope(
                EventId(row["id"]),
                cloudevents_type(model),
                row["source"],
                row["time_ms"],
                row["actor"],
                DataHash(row["data_hash"]),
                row["cause"],
            )
            record = decode(key.to_bytes(), to_headers(envelope), value, row["offset"])
            return record if isinstance(record, Record) and record.problem is None else None
    if row["effect"] == "applied":
        return None
    # A record without effect changes the state by its envelope alone, and by whether it was understood.
    understood = row["effect"] != "ignored"
    return Record(
        key,
        row["offset"],
        EventId(row["id"]),
        row["type"],
        row["time_ms"],
        row["actor"],
        row["source"],
        row["cause"],
        DataHash(row["data_hash"]),
        None,
        DataProblem(understood, row["reason"] or ""),
    )


def _decoded(incoming: Incoming | None) -> Record | None:
    """Return the record that the log holds; None if it holds none that can be decoded."""
    if incoming is None:
        return None
    record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
    return record if isinstance(record, Record) else None


def _written(data: str) -> bytes | None:
    """Return the data as producers write it; None if it cannot be written so."""
    try:
        return canonical_json(orjson.loads(data))
    except (UnstorableTextError, ValueError):
        return None
