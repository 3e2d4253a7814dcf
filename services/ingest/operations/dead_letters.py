"""What operators read about records that could not be decoded or stored: of all tenants, newest first.

The order is by the broker's time and then by position. So the first page always begins with what is new, and a cursor
continues where its page ended.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Final, NamedTuple

import asyncpg

from schemas.envelope import TIME_MS_MAX
from schemas.errors import Fault
from services.ingest.database import Database
from services.ingest.http.answers import Answer, Time
from services.ingest.http.problems import ProblemError
from services.ingest.reads.reads import Page, decode_cursor, foreign_cursor, milliseconds_of, moment_at, page_of

VALUE_BYTES_MAX: Final = 2_048
"""Bytes shown of a record's value: enough to recognise what it is. The whole record stays on its topic."""
PARTITION_MAX: Final = 2**31 - 1
"""The largest partition number, for Kafka and for the database."""
_BEFORE_ALL = (dt.datetime.max.replace(tzinfo=dt.UTC), "", 0, 0)
"""A key before the first, in a list that has the newest first."""
_SINCE_EVER = dt.datetime.min.replace(tzinfo=dt.UTC)
"""A time before all records."""


class DeadLetter(Answer):
    """A record that cannot be decoded or stored, as far as it can be shown."""

    topic: str
    partition: int
    offset: int
    tenant: str | None
    """The tenant that the record's key names; null if the key cannot be read."""
    thread: str | None
    seq: int | None
    """The record's number in its thread, if it has one. The thread's events show it, too."""
    fault: Fault
    """What is wrong with the record, as a class."""
    reason: str
    at: Time
    """The broker's time of the record."""
    key: str | None
    """The key as text, with replacement characters for bytes that are no text."""
    headers: list[tuple[str, str]]
    value: str | None
    """The beginning of the value as text, with replacement characters. The whole record stays on its topic."""
    value_bytes: int
    """Length of the whole value."""


class DeadLetterPage(Answer):
    data: list[DeadLetter]
    next_cursor: str | None


class DeadLetterFilter(NamedTuple):
    """Which dead letters a list shows. None: any."""

    tenant: str | None = None
    topic: str | None = None
    partition: int | None = None
    fault: Fault | None = None
    since_ms: int | None = None


class DeadLetters:
    """Reads the dead letters of all tenants."""

    def __init__(self, database: Database, sql: Mapping[str, str], value_bytes_max: int = VALUE_BYTES_MAX) -> None:
        """`value_bytes_max` is how many bytes of each value are shown."""
        self._database = database
        self._sql = sql
        self._value_bytes_max = value_bytes_max

    async def page(self, chosen: DeadLetterFilter, cursor: str | None, limit: int) -> Page:
        """Return a page. Raises ProblemError (bad-cursor, views-unavailable)."""
        arguments: list[object] = [
            *(_BEFORE_ALL if cursor is None else _place(cursor)),
            _SINCE_EVER if chosen.since_ms is None else moment_at(chosen.since_ms),
            chosen.topic,
            chosen.partition,
            chosen.fault,
            self._value_bytes_max,
            limit + 1,
        ]
        name = "ops_dead_letters"
        if chosen.tenant is not None:
            name, arguments = "ops_dead_letters_of_tenant", [*arguments, chosen.tenant]
        rows = await self._database.fetch_as_operator(self._sql[name], *arguments)
        return page_of(
            rows,
            limit,
            lambda last: [milliseconds_of(last["at"]), last["topic"], last["partition"], last["offset"]],
        )


def as_text(row: asyncpg.Record) -> Mapping[str, object]:
    """Return a row's bytes as text."""
    return {name: None if row[name] is None else row[name].decode("utf-8", "replace") for name in ("key", "value")}


def _place(cursor: str) -> tuple[dt.datetime, str, int, int]:
    """Return the key of a cursor. Raises ProblemError (bad-cursor)."""
    at_ms, topic, partition, offset = decode_cursor(cursor, (int, str, int, int))
    at_ms, partition = int(at_ms), int(partition)
    if at_ms > TIME_MS_MAX or partition > PARTITION_MAX:
        raise ProblemError(foreign_cursor())
    return moment_at(at_ms), str(topic), partition, int(offset)
