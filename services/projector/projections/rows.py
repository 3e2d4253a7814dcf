"""The rows of a batch: each row at most once, whatever happened to it in between."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from services.projector.projections.changes import (
    CallItemEdited,
    Change,
    ChangedRow,
    Columns,
    ItemsCompacted,
    ItemsRewound,
    Key,
    NewRow,
    Table,
)

KEYS: Mapping[Table, tuple[str, ...]] = {
    "turns": ("tenant", "thread", "turn"),
    "steps": ("tenant", "thread", "turn", "step"),
    "tool_calls": ("tenant", "thread", "call"),
    "items": ("tenant", "thread", "seq", "part"),
    "plans": ("tenant", "thread", "version"),
    "tasks": ("tenant", "thread", "version", "task"),
}
CHANGING: Mapping[Table, tuple[str, ...]] = {
    "turns": (
        *("status", "outcome", "reason", "cancel_cause", "cancelled_at", "recovered_at", "recovered_by", "steps"),
        *("input_tokens", "output_tokens", "waited_ms", "ended_seq", "ended_at", "unknown_calls"),
    ),
    "steps": (
        *("status", "attempts", "failures", "model", "owner", "context_seq", "context_items", "context_hash"),
        *("tools_hash", "attempt_at", "error_kind", "error", "retriable", "retry_at", "finished_seq", "finished_at"),
        *("finished_attempt", "stop_reason", "response_id", "calls", "input_tokens", "output_tokens"),
        *("cached_tokens", "reasoning_tokens"),
    ),
    "tool_calls": (
        *("status", "outcome", "args", "call_hash", "effect", "pool", "approval_reason", "approval_requested_at"),
        *("approval_expires_at", "decision", "decided_by", "decided_at", "decision_reason", "attempts"),
        *("lost_attempts", "dispatched_at", "deadline_at", "timeout_ms", "idempotency_key", "claim", "executor"),
        *("started_at", "lease_seconds", "evidence", "resolution", "resolved_by", "note", "milliseconds", "changes"),
        *("artifacts", "settled_seq", "settled_at", "settled_by", "resolved_at"),
    ),
    "items": ("turn", "step", "place", "dropped"),
    "plans": (
        *("status", "decided_seq", "decided_at", "decided_by", "decision_reason", "superseded_seq", "superseded_at"),
    ),
    "tasks": ("status", "child", "result", "changed_seq", "started_at", "ended_at"),
}
"""Columns that may change once the row exists."""
ALL: Mapping[Table, tuple[str, ...]] = {
    "turns": (
        *("inputs", "model", "agent_version", "config_seq", "base", "started_seq", "started_at"),
        *CHANGING["turns"],
    ),
    "steps": ("inputs", "started_seq", "started_at", *CHANGING["steps"]),
    "tool_calls": (
        *("turn", "step", "index", "tool", "malformed", "proposed_seq", "proposed_at"),
        *CHANGING["tool_calls"],
    ),
    "items": ("kind", "content", "digest", "input", "call", *CHANGING["items"]),
    "plans": ("tasks", "proposed_seq", "proposed_at", "proposed_by", "call", *CHANGING["plans"]),
    "tasks": ("place", "title", "instructions", "depends_on", "left_out", *CHANGING["tasks"]),
}


def _per_table() -> dict[Table, dict[Key, Columns]]:
    return {"turns": {}, "steps": {}, "tool_calls": {}, "items": {}, "plans": {}, "tasks": {}}


@dataclass(slots=True)
class Rows:
    """Tuples are in the order of the columns that their module names, or of `KEYS` and `ALL` or `CHANGING`."""

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
        columns = ALL[table]
        return [(*key, *map(row.get, columns)) for key, row in self.new[table].items()]

    def changed_rows(self, table: Table) -> list[tuple[object, ...]]:
        columns = CHANGING[table]
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
