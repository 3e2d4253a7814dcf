"""The rows of a batch: each row at most once, whatever happened to it in between."""

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
    """Of rows that were there before the batch."""
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
        """Rewinds and compactions, one of each thread per round at most, each thread's in their order: a rewind gives
        back what a summary stood for, and the next summary takes it again.
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
