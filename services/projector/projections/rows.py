"""The rows of a batch: each row at most once, however often it changed within the batch.

A change of a row that is new in this batch goes into the new row, so a turn that begins and ends within one batch is
one row of COPY and no UPDATE. Rows are written in this order: new rows, changed rows, edited items, then rewinds and
compactions, because each of these reaches rows that the steps before it wrote.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from services.projector.columns import MERGED, Table
from services.projector.projections.changes import (
    CallItemEdited,
    Change,
    ChangedRow,
    Columns,
    ItemsCompacted,
    ItemsRewound,
    Key,
    NewRow,
)


def _per_table() -> dict[Table, dict[Key, Columns]]:
    return {table: {} for table in MERGED}


@dataclass(slots=True)
class Rows:
    """Tuples are in the order of the columns that `columns`, or the module of the view, declares."""

    new: dict[Table, dict[Key, Columns]] = field(default_factory=_per_table)
    changed: dict[Table, dict[Key, Columns]] = field(default_factory=_per_table)
    """Changes of rows that were in the database before the batch."""
    edits: dict[tuple[str, str, int, str], bytes] = field(default_factory=dict)
    """Arguments of calls' items, those of this batch too: written after the new rows."""
    rewinds: list[ItemsRewound] = field(default_factory=list)
    compactions: list[ItemsCompacted] = field(default_factory=list)
    """Written last, in `rounds`: they reach items of this batch too, and by their place only those that came before.
    """
    events: list[tuple[object, ...]] = field(default_factory=list)
    usage: list[tuple[object, ...]] = field(default_factory=list)
    artifacts: list[tuple[object, ...]] = field(default_factory=list)
    new_threads: list[tuple[object, ...]] = field(default_factory=list)
    changed_threads: list[tuple[object, ...]] = field(default_factory=list)
    new_states: list[tuple[object, ...]] = field(default_factory=list)
    changed_states: list[tuple[object, ...]] = field(default_factory=list)
    dead_letters: list[tuple[object, ...]] = field(default_factory=list)

    def add(self, changes: Iterable[Change]) -> None:
        """Merge changes into the rows of the batch, in the order of their records."""
        for change in changes:
            if isinstance(change, ChangedRow):
                table, key, columns = change
                row = self.new[table].get(key)
                if row is None:
                    row = self.changed[table].setdefault(key, {})
                row.update(columns)
            elif isinstance(change, NewRow):
                self.new[change.table][change.key] = change.columns
            else:
                self._add_other(change)

    def new_rows(self, table: Table) -> list[tuple[object, ...]]:
        columns = MERGED[table].columns[len(MERGED[table].key) :]
        return [(*key, *map(row.get, columns)) for key, row in self.new[table].items()]

    def changed_rows(self, table: Table) -> list[tuple[object, ...]]:
        columns = MERGED[table].changing
        return [(*key, *map(row.get, columns)) for key, row in self.changed[table].items()]

    def rounds(self) -> list[tuple[list[ItemsRewound], list[ItemsCompacted]]]:
        """Return rewinds and compactions in rounds: at most one of each thread per round, each thread's in its order.

        The order within a thread matters: a rewind restores the items that a summary replaced, and the next summary
        replaces them again. Threads do not affect each other, so each round is one statement of each kind for all.
        """
        of_thread: dict[tuple[str, str], list[ItemsRewound | ItemsCompacted]] = {}
        everything: list[ItemsRewound | ItemsCompacted] = [*self.rewinds, *self.compactions]
        for change in everything:
            of_thread.setdefault(change[:2], []).append(change)
        rounds: list[tuple[list[ItemsRewound], list[ItemsCompacted]]] = []
        for changes in of_thread.values():
            for number, change in enumerate(sorted(changes, key=lambda change: change.seq)):
                if number == len(rounds):
                    rounds.append(([], []))
                rewinds, compactions = rounds[number]
                if isinstance(change, ItemsRewound):
                    rewinds.append(change)
                else:
                    compactions.append(change)
        return rounds

    def _add_other(self, change: CallItemEdited | ItemsRewound | ItemsCompacted) -> None:
        match change:
            case CallItemEdited():
                self.edits[change[:4]] = change.args
            case ItemsRewound():
                self.rewinds.append(change)
            case ItemsCompacted():
                self.compactions.append(change)
            case _:
                assert_never(change)
