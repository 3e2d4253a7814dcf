"""How far the views have come, and what commands read from them. Every statement names the tenant first."""

import asyncio
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import asyncpg
import orjson

from schemas.ids import DataHash, EventId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.ingest.commands.accepting.accept import CallFacts, Stored
from services.ingest.commands.accepting.plans import PlanFacts
from services.ingest.commands.commands import FoundCommands
from services.ingest.commands.existence import ThreadRow
from services.ingest.commands.refusals import CallStanding, Decided, InputStanding, PlanStanding
from services.ingest.database import Database
from services.ingest.http.problems import BAD_CURSOR, Problem, ProblemError

TOPIC = THREAD_EVENTS.name
POLL_SECONDS: Final = 0.015
"""How often the views' positions are read while somebody waits for them. One query serves all who wait, and the
projector commits every 15 ms at its quickest.
"""


def format_moment(moment: dt.datetime) -> str:
    """Return the moment in UTC, with milliseconds and Z, as all answers write times."""
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def format_ms(milliseconds: int) -> str:
    """Return milliseconds since 1970 in the form of `format_moment`."""
    return format_moment(dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC))


class Positions:
    """How far the views have come. However many requests wait, one of them asks the database for all."""

    def __init__(self, database: Database, sql: Mapping[str, str], poll_seconds: float) -> None:
        self._database = database
        self._query = sql["positions"]
        self._poll_seconds = poll_seconds
        self._look_lock = asyncio.Lock()
        self._looks = 0
        self._next_offsets: dict[int, int] = {}

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        """Return whether the views hold all records of the partition below the offset, after waiting as long as
        allowed.

        Raises ProblemError (views-unavailable).
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._look(self._looks)
                while self._next_offsets.get(partition, 0) < offset:
                    await asyncio.sleep(self._poll_seconds)
                    await self._look(self._looks)
        except TimeoutError:
            return False
        return True

    async def _look(self, seen: int) -> None:
        """Read the positions, unless another request has read them since this one last looked (`seen`)."""
        async with self._look_lock:
            if self._looks > seen:
                return  # Another request has read them since.
            rows = await self._database.fetch_as_service(self._query, TOPIC)
            self._next_offsets = {row["partition"]: row["next_offset"] for row in rows}
            self._looks += 1


class CommandViews:
    """Implements `existence.ThreadRows`, `commands.EarlierCommands` and `refusals.Standings` on Postgres."""

    def __init__(self, database: Database, sql: Mapping[str, str], poll_seconds: float = POLL_SECONDS) -> None:
        self._database = database
        self._sql = sql
        self._poll_seconds = poll_seconds
        self._positions = Positions(database, sql, poll_seconds)

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        return await self._positions.wait_for(partition, offset, timeout_seconds)

    async def reached(self, partition: int | None, value: int, key: ThreadKey | None, timeout_seconds: float) -> bool:
        """Return whether the views hold the record at an offset of a partition or, without one, at a seq of the
        thread.
        """
        if partition is not None:
            return await self._positions.wait_for(partition, value + 1, timeout_seconds)
        if key is None:
            raise ProblemError(Problem(BAD_CURSOR, "A list of threads has no seq; name partition:offset."))
        try:
            async with asyncio.timeout(timeout_seconds):
                while (await self.thread_row(key, 0)).seq < value:  # noqa: ASYNC110 - another process moves it
                    await asyncio.sleep(self._poll_seconds)
        except TimeoutError:
            return False
        return True

    async def thread_row(self, key: ThreadKey, partition: int) -> ThreadRow:
        [row] = await self._database.fetch(
            key.tenant, self._sql["thread_row"], key.tenant, key.thread, TOPIC, partition
        )
        return ThreadRow(row["next_offset"], row["offset"], row["exists"], row["queued"], row["seq"], row["is_closing"])

    async def find(self, key: ThreadKey, partition: int, ids: Sequence[EventId]) -> FoundCommands:
        wanted = [UUID(event_id) for event_id in ids]
        query = self._sql["earlier_commands"]
        rows = await self._database.fetch(key.tenant, query, key.tenant, key.thread, TOPIC, partition, wanted)
        first = {EventId(str(row["id"])): _stored(row) for row in rows if row["id"] is not None}
        return FoundCommands(first, None if rows[0]["has_row"] else rows[0]["next_offset"])

    async def find_after(
        self, key: ThreadKey, event_id: EventId, partition: int, offset: int, timeout_seconds: float
    ) -> Stored | None:
        if not await self._positions.wait_for(partition, offset + 1, timeout_seconds):
            return None
        return (await self.find(key, partition, [event_id])).first.get(event_id)

    async def call_facts(self, key: ThreadKey, call: str) -> CallFacts | None:
        rows = await self._database.fetch(key.tenant, self._sql["call_facts"], key.tenant, key.thread, call)
        if not rows:
            return None
        return CallFacts(*rows[0])

    async def plan_facts(self, key: ThreadKey, event_id: EventId) -> PlanFacts:
        """Return what is known of the thread's plan; `event_id` is that of the proposing command."""
        query = self._sql["plan_facts"]
        rows = await self._database.fetch(key.tenant, query, key.tenant, key.thread, UUID(event_id))
        return PlanFacts(*rows[0]) if rows else PlanFacts(0, None)

    async def plan_standing(self, key: ThreadKey, version: int) -> PlanStanding | None:
        rows = await self._database.fetch(key.tenant, self._sql["plan_standing"], key.tenant, key.thread, version)
        if not rows:
            return None
        row = rows[0]
        decided = None
        if row["decided_by"] is not None:
            decision = "rejected" if row["status"] == "rejected" else "approved"
            decided = Decided(row["decided_by"], decision, _time(row["decided_at"]), row["decision_reason"])
        return PlanStanding(version, row["status"], decided)

    async def call_standing(self, key: ThreadKey, call: str) -> CallStanding | None:
        rows = await self._database.fetch(key.tenant, self._sql["call_standing"], key.tenant, key.thread, call)
        return _call_standing(rows[0]) if rows else None

    async def input_standing(self, key: ThreadKey, input_id: str) -> InputStanding | None:
        rows = await self._database.fetch(key.tenant, self._sql["input_standing"], key.tenant, key.thread, input_id)
        return InputStanding(input_id, *rows[0]) if rows else None


def _call_standing(row: asyncpg.Record) -> CallStanding:
    """Return the call of a row of `call_standing.sql`."""
    approval, resolution = None, None
    if row["decision"] is not None:
        approval = Decided(row["decided_by"], row["decision"], _time(row["decided_at"]), row["decision_reason"])
    if row["resolution"] is not None:
        resolution = Decided(row["resolved_by"], row["resolution"], _time(row["resolved_at"]), row["note"])
    return CallStanding(
        call=row["call"],
        tool=row["tool"],
        status=row["status"],
        call_hash=row["call_hash"],
        attempt=row["attempts"],
        approval=approval,
        resolution=resolution,
        outcome=row["outcome"],
        settled_at=_time(row["settled_at"]),
        result=None if row["result"] is None else orjson.loads(row["result"]),
        settled_by=None if row["id"] is None else _stored(row),
    )


def _time(moment: dt.datetime | None) -> str | None:
    return None if moment is None else format_moment(moment)


def _stored(row: asyncpg.Record) -> Stored:
    """Return the record of a row that has the columns of the `events` view."""
    return Stored(
        EventId(str(row["id"])),
        row["type"],
        DataHash(row["data_hash"]),
        row["partition"],
        row["offset"],
        row["seq"],
        row["effect"],
        row["reason"],
    )
