"""Comparing the rows of two generations: which rows differ, and in which column first.

Both sides are read in the order of the primary key, each row as its key and a hash, and merged here. So memory holds a
few pages of a view, whatever its size. Only for the first difference are the rows themselves fetched.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import asyncpg
from pydantic import JsonValue

from services.projector.generations import schema_sql
from services.projector.generations.generations import checksum_columns
from services.projector.verification.report import VALUE_CHARACTERS_MAX, Finding

PREFETCH_ROWS: Final = 2_000
"""Rows of one page of a cursor: each side has one in memory, and each page is a round trip."""

Key: TypeAlias = tuple[str | int, ...]


class KeyColumn(NamedTuple):
    """A column of a primary key. Text has a collation, whose order Python does not know."""

    name: str
    is_collated: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One generation, read on a connection that is in a transaction."""

    connection: asyncpg.Connection
    schema: str
    timeout_seconds: float


class Restriction(NamedTuple):
    """The rows of a view that are compared: a condition with parameters from `$1` on, and their values."""

    condition: str = "true"
    arguments: tuple[object, ...] = ()


class Differences(NamedTuple):
    """How many rows differ, and the first of them; None if none does."""

    rows: int
    first: Finding | None


async def compare_rows(
    view: str, keys: Sequence[KeyColumn], log_side: Side, view_side: Side, only: Restriction
) -> Differences:
    """Count the rows that one side lacks or has otherwise, and describe the first of them."""
    count, first = 0, None
    of_log, of_view = _rows(view, keys, log_side, only), _rows(view, keys, view_side, only)
    # A merge of two ordered lists: the smaller key is missing on the other side.
    left, right = await anext(of_log, None), await anext(of_view, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            kind, key = "missing", left[0] if left is not None else ()
            left = await anext(of_log, None)
        elif left is None or right[0] < left[0]:
            kind, key = "extra", right[0]
            right = await anext(of_view, None)
        else:
            kind, key = ("same" if left[1] == right[1] else "changed"), left[0]
            left, right = await anext(of_log, None), await anext(of_view, None)
        if kind != "same":
            count += 1
            first = first or (kind, key)
    if first is None:
        return Differences(0, None)
    return Differences(count, await _finding(view, keys, log_side, view_side, *first))


async def _rows(view: str, keys: Sequence[KeyColumn], side: Side, only: Restriction) -> AsyncIterator[tuple[Key, int]]:
    """Yield key and hash of each row. Text is ordered by code points, as Python orders it: the merge compares
    keys here.
    """
    names = ", ".join([f'r."{key.name}"' for key in keys])
    order = ", ".join([f'r."{key.name}" collate "C"' if key.is_collated else f'r."{key.name}"' for key in keys])
    query = schema_sql.hashed_rows(side.schema, view, _compared(view), names, order, only.condition)
    cursor = side.connection.cursor(query, *only.arguments, prefetch=PREFETCH_ROWS, timeout=side.timeout_seconds)
    async for row in cursor:
        *key, hash_ = row
        yield tuple(key), hash_


async def _finding(
    view: str, keys: Sequence[KeyColumn], log_side: Side, view_side: Side, kind: str, key: Key
) -> Finding:
    of_log, of_view = await _row(view, keys, log_side, key), await _row(view, keys, view_side, key)
    either = of_log or of_view
    named: dict[str, JsonValue] = {column.name: value for column, value in zip(keys, key, strict=True)}
    tenant, thread = either.get("tenant"), either.get("thread")
    if kind == "missing":
        what = f"{view} lacks a row that the log comes to"
        return Finding("view", what, tenant, thread, view, named)
    if kind == "extra":
        what = f"{view} has a row that the log does not come to"
        return Finding("view", what, tenant, thread, view, named)
    column = next(name for name in of_log if of_log[name] != of_view[name])
    what = f"{view}.{column} is not what the log comes to"
    return Finding("view", what, tenant, thread, view, named, column, _short(of_log[column]), _short(of_view[column]))


async def _row(view: str, keys: Sequence[KeyColumn], side: Side, key: Key) -> dict[str, str | None]:
    """Return the columns that the log determines, as text; empty if there is no such row."""
    columns = await _columns(side.connection, view, side.schema)
    row = await side.connection.fetchrow(
        schema_sql.one_row(side.schema, view, columns, [column.name for column in keys]),
        *key,
        timeout=side.timeout_seconds,
    )
    return {} if row is None else dict(zip(columns, row, strict=True))


async def _columns(connection: asyncpg.Connection, view: str, schema: str) -> list[str]:
    statement = await connection.prepare(schema_sql.select_columns(schema, view, _compared(view)))
    return [attribute.name for attribute in statement.get_attributes()]


def _compared(view: str) -> str:
    return schema_sql.columns_or_all(checksum_columns(view))


def _short(value: str | None) -> str | None:
    """Cut a value that is too long for a report."""
    if value is None or len(value) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{value[:VALUE_CHARACTERS_MAX]}… ({len(value)} characters)"
