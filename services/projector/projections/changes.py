"""What a record changes in the views: rows that are new, and columns of rows that exist.

`None` leaves a column as it was. So changes of a row can be merged in any batching and give the same row: the last
value that is not None wins, in memory as in SQL (`coalesce(changed, stored)`). A column that can become null again is
written in full with every change of its row (`threads`), and has no changes that leave it out.
"""

from typing import NamedTuple, TypeAlias

import pydantic_core

from schemas.codec import Record
from schemas.state import ThreadState
from schemas.thread import Verdict
from services.projector.columns import Table

Key: TypeAlias = tuple[str | int, ...]
"""The primary key, in its order: tenant and thread first."""
Columns: TypeAlias = dict[str, object]
"""Times as milliseconds since 1970, JSON as bytes."""


class Applied(NamedTuple):
    """One record and what it came to."""

    record: Record
    before: ThreadState
    after: ThreadState
    verdict: Verdict


class NewRow(NamedTuple):
    table: Table
    key: Key
    columns: Columns


class ChangedRow(NamedTuple):
    table: Table
    key: Key
    columns: Columns


class CallItemEdited(NamedTuple):
    """The item of a call shows other arguments than those of the model."""

    tenant: str
    thread: str
    seq: int
    """Of the proposal."""
    call: str
    args: bytes


class ItemsRewound(NamedTuple):
    """Items of turns after `to_turn` with a place up to `seq`."""

    tenant: str
    thread: str
    to_turn: int
    seq: int


class ItemsCompacted(NamedTuple):
    """Items with a place up to `through_seq`."""

    tenant: str
    thread: str
    through_seq: int
    seq: int


Change: TypeAlias = NewRow | ChangedRow | CallItemEdited | ItemsRewound | ItemsCompacted


def given(**columns: object) -> Columns:
    """Without those that are None, which would hide an earlier change of the same row."""
    return {name: value for name, value in columns.items() if value is not None}


def json_bytes(value: object) -> bytes:
    return pydantic_core.to_json(value)


def json_models(models: object) -> bytes:
    """Without the fields that are None."""
    return pydantic_core.to_json(models, exclude_none=True)
