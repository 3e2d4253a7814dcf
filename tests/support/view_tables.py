"""The views in memory: what a batch's rows come to in a database, without one.

`Projected` folds and projects records in batches of any size; two of them over the same records must hold the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.codec import decode
from schemas.ids import ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log import Incoming
from services.projector.projections import dead_letters, events, threads, usage
from services.projector.projections.batch import Batch, Kept
from services.projector.projections.rows import ALL, CHANGING, KEYS, Rows

TOPIC = THREAD_EVENTS.name
Row = dict[str, Any]
JSON_COLUMNS = {"args", "content", "labels", "config", "changes", "artifacts", "headers", "data"}


@dataclass
class Tables:
    rows: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=dict)

    def write(self, batch: Rows) -> None:
        for table, columns, key, records in (
            ("thread_states", threads.STATE_COLUMNS, 2, batch.new_states),
            ("threads", threads.COLUMNS, 2, batch.new_threads),
            ("events", events.COLUMNS, 3, batch.events),
            ("usage", usage.COLUMNS, 3, batch.usage),
            ("dead_letters", dead_letters.COLUMNS, 3, batch.dead_letters),
            *[(table, (*KEYS[table], *ALL[table]), len(KEYS[table]), batch.new_rows(table)) for table in KEYS],
        ):
            for record in records:
                self._insert(table, record[:key], dict(zip(columns, record, strict=True)))
        for record in batch.changed_states:
            self._change("thread_states", threads.CHANGED_STATE_COLUMNS, 2, record, keep_none=())
        for record in batch.changed_threads:
            self._change("threads", threads.CHANGED_COLUMNS, 2, record, keep_none=("labels", "config"))
        for table in KEYS:
            for record in batch.changed_rows(table):
                columns = (*KEYS[table], *CHANGING[table])
                self._change(table, columns, len(KEYS[table]), record, keep_none=columns)
        self._reach_items(batch)

    def _reach_items(self, batch: Rows) -> None:
        for row in self.all("items"):
            whose = (row["tenant"], row["thread"])
            args = batch.edits.get((*whose, row["seq"], row["call"]))
            if args is not None and row["kind"] == "tool_call":
                row["content"] = {**row["content"], "args": orjson.loads(args)}
            place = row["place"]
            if place is None:
                continue
            for rewound in batch.rewinds:
                if whose == rewound[:2] and (row["turn"] or 0) > rewound.to_turn and place <= rewound.seq:
                    row.setdefault("rewound_at", rewound.seq)
            for compacted in batch.compactions:
                if whose == compacted[:2] and place <= compacted.through_seq:
                    row.setdefault("compacted_at", compacted.seq)

    def all(self, table: str) -> list[Row]:
        return [row for _, row in sorted(self.rows.get(table, {}).items())]

    def _insert(self, table: str, key: tuple[Any, ...], row: Row) -> None:
        rows = self.rows.setdefault(table, {})
        assert key not in rows, (table, key)
        rows[key] = {name: _value(name, value) for name, value in row.items()}

    def _change(
        self, table: str, columns: Sequence[str], key: int, record: tuple[Any, ...], keep_none: Sequence[str]
    ) -> None:
        row = self.rows[table][record[:key]]
        for name, value in zip(columns, record, strict=True):
            if value is not None or name not in keep_none:
                row[name] = _value(name, value)


@dataclass
class Projected:
    """`partition_of` for the key's home; every record in partition 0 without it."""

    tables: Tables = field(default_factory=Tables)
    kept: dict[ThreadKey, Kept] = field(default_factory=dict)
    partition_of: Callable[[ThreadKey], int] = lambda _: 0
    effects: dict[str, int] = field(default_factory=dict)

    def project(self, records: Sequence[Incoming], batch_size: int = 1_000_000) -> "Projected":
        for start in range(0, len(records), batch_size):
            batch = Batch(TOPIC, dict(self.kept), self.partition_of, dead_letter_bytes_max=1_000)
            for incoming in records[start : start + batch_size]:
                batch.take(incoming, decode(*_raw(incoming)))
            batch.finish()
            self.tables.write(batch.rows)
            self.kept |= batch.kept
        return self


def _raw(incoming: Incoming) -> tuple[Any, ...]:
    return incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms


def _value(name: str, value: Any) -> Any:
    if name in JSON_COLUMNS and value is not None:
        return orjson.loads(value)
    return list(value) if isinstance(value, tuple) else value
