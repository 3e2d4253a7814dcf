"""What a record changes in the views: new rows, and columns of rows that exist.

None leaves a column as it is. Changes of a row can therefore be merged in any batching and give the same row: the last
value that is not None wins, in memory as in SQL (`coalesce(changed, stored)`). A column that can become null again is
written in full with every change of its row (`threads`), and no change leaves it out.

Two kinds of change reach many rows at once: a rewind and a compaction. They are not merged with changes of rows. They
are written after them, in the order of `Rows.rounds`.
"""

from typing import NamedTuple, TypeAlias

import pydantic_core

from schemas.codec import Record
from schemas.state import ThreadState
from schemas.thread import Verdict
from services.projector.columns import Table

Key: TypeAlias = tuple[str | int, ...]
"""The values of a table's key, in the order of its declaration: tenant and thread first."""
Columns: TypeAlias = dict[str, object]
"""Values by column. Times are milliseconds since 1970, JSON is bytes."""


class Applied(NamedTuple):
    """One record, the thread's state before and after it, and the verdict of the fold."""

    record: Record
    before: ThreadState
    after: ThreadState
    verdict: Verdict


class NewRow(NamedTuple):
    """A row that no earlier record made. Columns that are missing are null."""

    table: Table
    key: Key
    columns: Columns


class ChangedRow(NamedTuple):
    """New values of some columns of a row that exists, here or in the database."""

    table: Table
    key: Key
    columns: Columns


class CallItemEdited(NamedTuple):
    """An approver edited the arguments of a call: its item shows those now, not the model's."""

    tenant: str
    thread: str
    seq: int
    """Seq of the record that proposed the call."""
    call: str
    args: bytes


class ItemsRewound(NamedTuple):
    """A rewind: it hides the items of turns after `to_turn` that had a place up to `seq`."""

    tenant: str
    thread: str
    to_turn: int
    seq: int


class ItemsCompacted(NamedTuple):
    """A compaction: the summary at `seq` replaces the items with a place up to `through_seq`."""

    tenant: str
    thread: str
    through_seq: int
    seq: int


Change: TypeAlias = NewRow | ChangedRow | CallItemEdited | ItemsRewound | ItemsCompacted


def given(**columns: object) -> Columns:
    """Return the columns without those that are None.

    A None would hide an earlier change of the same row in the same batch, because dicts are merged before SQL sees
    them.
    """
    return {name: value for name, value in columns.items() if value is not None}


def json_bytes(value: object) -> bytes:
    return pydantic_core.to_json(value)


def json_models(models: object) -> bytes:
    """Encode models as JSON, without their fields that are None."""
    return pydantic_core.to_json(models, exclude_none=True)
