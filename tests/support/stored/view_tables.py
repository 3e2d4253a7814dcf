"""The views of some records in memory, as rows to look at.

`Projected` folds and projects records in batches of any size; two of them over the same records must hold the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.ids import ThreadKey
from schemas.state import dump_state, load_state
from services.chassis.log.port import Incoming
from services.projector.columns import MERGED, THREAD_STATES, THREADS
from services.projector.projections import artifacts, dead_letters, events, usage
from tests.support.memory.tables import TABLES, StateRow, Tables
from tests.support.stored.views_equal import Fold, decode_incoming

Row = dict[str, Any]
JSON_COLUMNS = {
    *("args", "content", "labels", "config", "changes", "artifacts", "headers", "data", "facts", "tasks", "result"),
}
COLUMNS: Mapping[str, Sequence[str]] = {
    "thread_states": THREAD_STATES.columns,
    "threads": THREADS.columns,
    "events": events.COLUMNS,
    "usage": usage.COLUMNS,
    "artifacts": artifacts.COLUMNS,
    "dead_letters": dead_letters.COLUMNS,
    **{name: table.columns for name, table in MERGED.items()},
}


@dataclass
class Projected:
    """`partition_of` for the key's home; every record in partition 0 without it."""

    tables: Tables = field(default_factory=Tables)
    partition_of: Callable[[ThreadKey], int] = lambda _: 0

    def __post_init__(self) -> None:
        self._fold = Fold(self.tables, self.partition_of)

    def project(self, records: Sequence[Incoming], batch_size: int = 1_000_000) -> "Projected":
        new = {incoming.partition for incoming in records} - self.tables.positions.keys()
        self.tables.claim(new, "test", "cluster")
        for start in range(0, len(records), batch_size):
            self._fold.take([(incoming, decode_incoming(incoming)) for incoming in records[start : start + batch_size]])
        return self

    def start_again(self) -> None:
        """States come from their rows from now on."""
        kept = self._fold.kept
        for key, value in kept.items():
            kept[key] = value._replace(state=load_state(dump_state(value.state)))

    def all(self, table: str) -> list[Row]:
        """In the order of their keys; columns that nobody has written yet are None."""
        groups = self.tables.groups(table)
        return [
            _row(table, (*whose, *place), row)
            for whose, rows in sorted(groups.items())
            for place, row in sorted(rows.items())
        ]

    def everything(self) -> dict[str, list[Row]]:
        return {table: self.all(table) for table in TABLES}


def _row(table: str, key: tuple[Any, ...], row: Any) -> Row:
    if isinstance(row, dict):
        named = dict.fromkeys(COLUMNS[table]) | dict(zip(COLUMNS[table], key, strict=False)) | row
    elif isinstance(row, StateRow):
        named = dict(zip(COLUMNS[table], (*key, *row[:-1]), strict=True))
    else:
        named = dict(zip(COLUMNS[table], row, strict=True))
    return {name: _value(name, value) for name, value in named.items()}


def _value(name: str, value: Any) -> Any:
    if name in JSON_COLUMNS and value is not None:
        return orjson.loads(value)
    return list(value) if isinstance(value, tuple) else value
