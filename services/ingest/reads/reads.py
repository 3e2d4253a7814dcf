"""What the API reads: pages and rows of the published views, each by one statement that names the tenant first.

Lists are cut by key, never by number of rows. So a list that grows meanwhile has no gaps and shows nothing twice. A
statement is asked for one row more than the page holds: that row tells whether there is a next page.
"""

import base64
import binascii
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
import orjson
import pydantic_core

from schemas.canonical import unstorable
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey, is_name
from services.ingest.commands.views import format_moment
from services.ingest.database import Database
from services.ingest.http.problems import BAD_CURSOR, Problem, ProblemError

PAGE_DEFAULT: Final = 50
"""Entries of a page if the client asks for no number."""
PAGE_MAX: Final = 500
"""Entries of a page at most. A client that asks for more gets so many, and a cursor."""
THREADS_LOOKED_AT_MAX: Final = 1_000
"""Threads that are read for one page of a filtered list. A match further on is on the next page, so that a filter that
few threads pass cannot read a tenant's whole table in one query.
"""
USAGE_DAYS_MAX: Final = 400
"""Days of usage that one request may cover: a year and a month to compare with, one index range for the database."""
OFFSET_MAX = 2**63 - 1
"""The largest number that Postgres stores as bigint."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BEFORE_THE_FIRST = dt.datetime.max.replace(tzinfo=dt.UTC)
"""A key before the first, in lists that have the newest first."""


class List(NamedTuple):
    """A list of a thread, or of a tenant's threads: its statement, and the columns by which it is ordered.

    The statement takes the tenant, the thread (not in a tenant's list), a key, and how many rows after the key.
    """

    query: str
    """Name of the statement."""
    order: tuple[str, ...]
    """Columns of the key."""
    start: tuple[int | str, ...]
    """A key before the first."""
    of_thread: str = ""
    """Name of the statement that a tenant's list uses if only one thread is asked for; empty if there is none."""


ITEMS = List("page_items", ("seq", "part"), (0, -1))
INPUTS = List("page_inputs", ("seq",), (0,))
TURNS = List("page_turns", ("turn",), (0,))
STEPS = List("page_steps", ("turn", "step"), (0, 0))
TOOL_CALLS = List("page_tool_calls", ("turn", "step", "index"), (0, 0, -1))
CHILDREN = List("page_children", ("thread",), ("",))
PLAN = List("page_plan", ("version",), (OFFSET_MAX,))
APPROVALS = List("page_approvals", ("thread", "turn", "step", "index"), ("", 0, 0, -1), "page_approvals_of_thread")
UNKNOWN_CALLS = List(
    "page_unknown_calls", ("thread", "turn", "step", "index"), ("", 0, 0, -1), "page_unknown_calls_of_thread"
)


class ThreadFilter(NamedTuple):
    """Which threads a list shows. None: any."""

    archived: bool | None = None
    status: str | None = None
    updated_after_ms: int | None = None
    labels: Mapping[str, str] | None = None


class UsageFilter(NamedTuple):
    """Which days of usage a list shows, and of which thread. None: all threads."""

    from_ms: int
    """Beginning of the time, in milliseconds since 1970."""
    to_ms: int
    """End of the time, which is not part of it."""
    thread: ThreadId | None = None


class Page(NamedTuple):
    """A page of a list, and the cursor of the next page; None at the end."""

    rows: Sequence[asyncpg.Record]
    next_cursor: str | None

    def to_json(self, more: Callable[[asyncpg.Record], Mapping[str, object]] | None = None) -> bytes:
        """Return the page as JSON. `more` gives members of an entry beside its row."""
        data = [dict(row) if more is None else {**row, **more(row)} for row in self.rows]
        return _dump({"data": data, "next_cursor": self.next_cursor})


class AtLeast(NamedTuple):
    """What a read must have seen: a position of the log, or a seq of the thread that is read."""

    partition: int | None
    """The partition of the position; None for a seq."""
    value: int
    """The offset, or the seq."""


class Reads:
    """Reads the views for the API. All methods raise ProblemError (views-unavailable, bad-cursor)."""

    def __init__(self, database: Database, sql: Mapping[str, str], looked_at_max: int = THREADS_LOOKED_AT_MAX) -> None:
        self._database = database
        self._sql = sql
        self._looked_at_max = looked_at_max

    async def thread(self, key: ThreadKey) -> bytes | None:
        """Return the thread's row as JSON; None if the views do not know it."""
        rows = await self._database.fetch(key.tenant, self._sql["thread"], key.tenant, key.thread)
        return _dump(dict(rows[0])) if rows else None

    async def command(self, key: ThreadKey, event_id: EventId) -> bytes | None:
        """Return the record of a command as JSON; None if the views do not hold it."""
        rows = await self._database.fetch(key.tenant, self._sql["command"], key.tenant, key.thread, UUID(event_id))
        if not rows:
            return None
        shown = dict(rows[0])
        position = {"partition": shown.pop("partition"), "offset": shown.pop("offset")}
        return _dump({"thread": key.thread, **shown, "position": position})

    async def threads(self, tenant: TenantId, chosen: ThreadFilter, cursor: str | None, limit: int) -> Page:
        """Return a page of the tenant's threads, newest first.

        With a filter that few threads pass, a page may have fewer entries than the limit, or none. Its cursor then
        continues behind all threads that were looked at.
        """
        after = _after_thread(cursor)
        is_filtered = chosen != ThreadFilter()
        looked_at = max(limit + 1, self._looked_at_max) if is_filtered else limit + 1
        updated_after = None if chosen.updated_after_ms is None else moment_at(chosen.updated_after_ms)
        labels = None if chosen.labels is None else orjson.dumps(dict(chosen.labels))
        rows = await self._database.fetch(
            tenant,
            self._sql["page_threads"],
            tenant,
            *after,
            chosen.archived,
            chosen.status,
            updated_after,
            labels,
            looked_at,
            limit + 1,
        )
        if is_filtered and len(rows) <= limit:
            ends = await self._database.fetch(tenant, self._sql["threads_looked_at"], tenant, *after, looked_at - 1)
            if ends:
                return Page(rows, encode_cursor(_of_thread(ends[0])))
        return page_of(rows, limit, _of_thread)

    async def usage(self, tenant: TenantId, chosen: UsageFilter, cursor: str | None, limit: int) -> Page:
        """Return a page of what the tenant used, by day and model."""
        day, model = _after_usage(cursor)
        # Days before the cursor's day were on earlier pages; the index need not look at them.
        begin = max(moment_at(chosen.from_ms), dt.datetime.combine(day, dt.time(), dt.UTC))
        query, of_thread = "page_usage", []
        if chosen.thread is not None:
            query, of_thread = "page_usage_of_thread", [chosen.thread]
        rows = await self._database.fetch(
            tenant, self._sql[query], tenant, *of_thread, begin, moment_at(chosen.to_ms), day, model, limit + 1
        )
        return page_of(rows, limit, lambda last: [last["day"].isoformat(), last["model"]])

    async def page(self, of: List, tenant: TenantId, thread: ThreadId | None, cursor: str | None, limit: int) -> Page:
        """Return a page of one of the lists above."""
        after = of.start if cursor is None else decode_cursor(cursor, tuple(type(part) for part in of.start))
        query, whose = of.query, [tenant] if thread is None else [tenant, thread]
        if thread is not None and of.of_thread:
            query = of.of_thread
        rows = await self._database.fetch(tenant, self._sql[query], *whose, *after, limit + 1)
        return page_of(rows, limit, lambda last: [last[name] for name in of.order])


def _of_thread(row: asyncpg.Record) -> Sequence[int | str]:
    """Return the key of a thread's row."""
    return [_microseconds(row["created_at"]), row["thread"]]


def page_of(rows: Sequence[asyncpg.Record], limit: int, key: Callable[[asyncpg.Record], Sequence[int | str]]) -> Page:
    """Return the page of rows that were read with one more than the limit. `key` returns the key of a row."""
    if len(rows) <= limit:
        return Page(rows, None)
    return Page(rows[:limit], encode_cursor(key(rows[limit - 1])))


def encode_cursor(key: Sequence[int | str]) -> str:
    """Return the key as a cursor, which clients give back unread."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: tuple[type, ...], is_text: Callable[[str], bool] = is_name) -> list[int | str]:
    """Return the key of a cursor. Raises ProblemError (bad-cursor). `is_text` is what texts in it must satisfy; by
    default they are names.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        key = pydantic_core.from_json(raw)
    except (ValueError, binascii.Error):
        key = None
    if not isinstance(key, list) or tuple(type(part) for part in key) != kinds:
        raise ProblemError(foreign_cursor())
    if not all(-1 <= part <= OFFSET_MAX if isinstance(part, int) else is_text(part) for part in key):
        raise ProblemError(foreign_cursor())
    return key


def parse_at_least(text: str) -> AtLeast:
    """Parse `partition:offset`, or a seq. Raises ProblemError (bad-cursor)."""
    partition, colon, offset = text.rpartition(":")
    numbers = [partition, offset] if colon else [offset]
    if not all(number.isascii() and number.isdecimal() and len(number) <= 18 for number in numbers):
        raise ProblemError(Problem(BAD_CURSOR, f"at_least is {text[:60]!r}; it is partition:offset, or a seq."))
    return AtLeast(int(partition) if colon else None, int(offset))


def _after_thread(cursor: str | None) -> tuple[dt.datetime, str]:
    if cursor is None:
        return _BEFORE_THE_FIRST, ""
    created, thread = decode_cursor(cursor, (int, str))
    try:
        return _EPOCH + dt.timedelta(microseconds=int(created)), str(thread)
    except OverflowError:
        raise ProblemError(foreign_cursor()) from None


def _after_usage(cursor: str | None) -> tuple[dt.date, str]:
    if cursor is None:
        return dt.date.min, ""
    day, model = decode_cursor(cursor, (str, str), lambda text: unstorable(text) is None)
    try:
        return dt.date.fromisoformat(str(day)), str(model)
    except ValueError:
        raise ProblemError(foreign_cursor()) from None


def foreign_cursor() -> Problem:
    """Return the problem of a cursor that this list has not given."""
    return Problem(BAD_CURSOR, "The cursor does not belong to this list. Begin again without a cursor.")


def moment_at(time_ms: int) -> dt.datetime:
    """Return the moment of milliseconds since 1970."""
    return _EPOCH + dt.timedelta(milliseconds=time_ms)


def milliseconds_of(moment: dt.datetime) -> int:
    """Return the milliseconds since 1970 of a moment, rounded down."""
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def _microseconds(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _dump(value: object) -> bytes:
    return orjson.dumps(value, _plain, orjson.OPT_PASSTHROUGH_DATETIME)


def _plain(value: object) -> object:
    """Return JSON for what the driver gives and JSON lacks: jsonb as bytes, moments, ids."""
    match value:
        case bytes():
            return orjson.Fragment(value)
        case dt.datetime():
            return format_moment(value)
        case _:
            return str(value)
