"""A batch of records becomes rows: the records are folded in log order, each on the state that the previous one left.

The module is pure: states come in, rows and states go out. The applier calls it, and may call it again with the same
records after a failure, on the same states.

The rows depend on the records alone, not on where a batch begins. Three things make it so:

- Everything in a row comes from its records; no clock, no database and no setting takes part.
- Merges of changes are associative: see `changes`.
- A record that cannot be stored is always the same one, because each record has a row of its own in `events` that
  contains all of it.

A record that fails does not stop its partition. Its thread is quarantined: from there on it is still folded, and its
events are still listed without their data, but its other rows stay as they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from schemas.codec import Record, Unreadable
from schemas.errors import Fault
from schemas.events import TurnRecovered
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.thread import Effect, Verdict, fold, next_chain
from services.chassis.log.port import Incoming
from services.projector.projections.artifacts import artifact_rows
from services.projector.projections.changes import Applied, Change
from services.projector.projections.dead_letters import DeadLetter, dead_letter_row
from services.projector.projections.events import bare_event_row, event_row
from services.projector.projections.items import item_changes
from services.projector.projections.plans import plan_changes
from services.projector.projections.rows import Rows
from services.projector.projections.steps import step_changes
from services.projector.projections.threads import (
    changed_state_row,
    changed_thread_row,
    new_state_row,
    new_thread_row,
)
from services.projector.projections.tool_calls import tool_call_changes
from services.projector.projections.turns import turn_changes
from services.projector.projections.usage import usage_row

PROJECTION_VERSION = 3
"""The version of the rows. Raise it with every change of their content: older generations are then built anew."""


class Kept(NamedTuple):
    """What the projector keeps of a thread between two batches."""

    state: ThreadState = NOTHING
    quarantined: str | None = None
    is_stored: bool = False
    """Whether the thread has a row among the states."""


UNKNOWN: Final = Kept()
"""A thread of which nothing is stored: its first record is still to come, or is in this batch."""


class Refused(NamedTuple):
    """The database refuses a row of the record at this position.

    The applier has found the record by writing halves of a batch; the batch is folded again with this knowledge.
    """

    partition: int
    offset: int
    reason: str
    fault: Fault = "row_refused"


class _Failed(NamedTuple):
    """Why the rows of a record are not written."""

    reason: str
    fault: Fault


@dataclass(slots=True)
class Batch:
    """One batch while it is folded: `take` each record in log order, then `finish` once.

    `known` has what is kept of each thread of the batch that has a row. A thread that is missing there has none.
    """

    topic: str
    known: Mapping[ThreadKey, Kept]
    partition_of: Callable[[ThreadKey], int]
    dead_letter_bytes_max: int
    refused: Refused | None = None
    rows: Rows = field(default_factory=Rows)
    kept: dict[ThreadKey, Kept] = field(default_factory=dict)
    """What to keep of the threads that the batch touched, once it is committed."""
    homes: dict[ThreadKey, int] = field(default_factory=dict)
    """The partition of each thread. The hash of a key is looked up once per thread, not once per record."""
    shown: dict[ThreadKey, ThreadState] = field(default_factory=dict)
    """The state that the views show of each thread. Once a thread is quarantined, its own state is ahead of this."""
    dead: list[DeadLetter] = field(default_factory=list)
    effects: dict[tuple[Effect, str], int] = field(default_factory=dict)
    """The number of records by effect and kind, for metrics."""

    def take(self, incoming: Incoming, decoded: Record | Unreadable) -> None:
        """Fold one record and add its rows.

        A record that cannot be read, or that lies in the wrong partition, becomes a dead letter and touches no thread.
        """
        if isinstance(decoded, Unreadable):
            self._bury(DeadLetter(incoming, decoded.reason, decoded.fault))
            return
        key = decoded.key
        home = self.homes.get(key)
        if home is None:
            home = self.homes[key] = self.partition_of(key)
        if home != incoming.partition:
            self._bury(DeadLetter(incoming, f"the key belongs to partition {home}", "wrong_partition", key))
            return
        kept = self.kept.get(key) or self.known.get(key) or UNKNOWN
        # A record at or below the offset of the state is in the state already.
        if decoded.offset <= kept.state.offset:
            return
        applied, failed = _fold(kept.state, decoded)
        counted = applied.verdict.effect, decoded.kind
        self.effects[counted] = self.effects.get(counted, 0) + 1
        failed = failed or self._why_refused(incoming)
        if failed is None and kept.quarantined is None:
            failed = self._project(applied, incoming)
        seq = applied.after.seq
        if failed is not None:
            self._bury(DeadLetter(incoming, failed.reason, failed.fault, key, seq))
        elif decoded.problem is not None and decoded.problem.understood:
            self._bury(DeadLetter(incoming, decoded.problem.reason, decoded.problem.fault, key, seq))
        quarantined = kept.quarantined
        if quarantined is None and failed is not None:
            quarantined = f"seq {seq}: {failed.reason}"
        if quarantined is not None:
            self.rows.events.append(bare_event_row(applied, incoming.partition))
        self.kept[key] = Kept(applied.after, quarantined, kept.is_stored)

    def finish(self) -> None:
        """Add the rows that each thread has once per batch: its state, and its row of `threads`."""
        for key, state in self.shown.items():
            if state.exists:
                self._write_thread(key, state)
        for key, (state, quarantined, is_stored) in self.kept.items():
            if is_stored:
                self.rows.changed_states.append(changed_state_row(key, state, quarantined))
            else:
                self.rows.new_states.append(new_state_row(key, self.topic, self.homes[key], state, quarantined))
            self.kept[key] = Kept(state, quarantined, is_stored=True)

    def _write_thread(self, key: ThreadKey, state: ThreadState) -> None:
        before = self.known.get(key)
        if before is not None and before.state.exists:
            self.rows.changed_threads.append(changed_thread_row(key, before.state, state))
        else:
            self.rows.new_threads.append(new_thread_row(key, self.homes[key], state))

    def _project(self, applied: Applied, incoming: Incoming) -> _Failed | None:
        """Add the rows of the record; return the failure if they cannot be made.

        All rows are made before the first is added, so that a failure leaves no half of a record behind.
        """
        rows = self.rows
        try:
            changes = _changes(applied) if applied.verdict.effect == "applied" else []
            used = usage_row(applied)
            artifacts = artifact_rows(applied)
            event = event_row(applied, incoming.partition, incoming.value)
        except Exception as error:  # noqa: BLE001  # one record's bug must not stop its partition
            return _Failed(f"its rows cannot be made: {type(error).__name__}", "rows_failed")
        rows.add(changes)
        if used is not None:
            rows.usage.append(used)
        rows.artifacts.extend(artifacts)
        rows.events.append(event)
        self.shown[applied.record.key] = applied.after
        return None

    def _why_refused(self, incoming: Incoming) -> _Failed | None:
        refused = self.refused
        if refused is not None and (incoming.partition, incoming.offset) == refused[:2]:
            return _Failed(refused.reason, refused.fault)
        return None

    def _bury(self, dead: DeadLetter) -> None:
        self.dead.append(dead)
        self.rows.dead_letters.append(dead_letter_row(dead, self.dead_letter_bytes_max))


def _changes(applied: Applied) -> list[Change]:
    """Return the changes of the views that the record causes.

    The state is immutable: a part that is the same object before and after did not change. This comparison by identity
    spares most records most projections.
    """
    record, before, after, _ = applied
    changes: list[Change] = []
    if after.turn is not before.turn:
        changes += turn_changes(applied)
        changes += step_changes(applied)
    elif type(record.data) is TurnRecovered:  # a takeover shows in the row, and may leave the state as it was
        changes += turn_changes(applied)
    if after.calls is not before.calls:
        changes += tool_call_changes(applied)
    if after.plan is not before.plan:
        changes += plan_changes(applied)
    changes += item_changes(applied)
    return changes


def _fold(before: ThreadState, record: Record) -> tuple[Applied, _Failed | None]:
    """Fold the record. If the fold itself fails, the record only counts: seq, offset and hash chain go on
    without it.
    """
    try:
        after, verdict = fold(before, record)
    except Exception as error:  # noqa: BLE001  # the fold is total; if it is not, one thread must not stop the others
        after = replace(before, seq=before.seq + 1, offset=record.offset, chain=next_chain(before.chain, record))
        verdict = Verdict("rejected", "the fold failed")
        failed = _Failed(f"the fold failed: {type(error).__name__}", "fold_failed")
        return Applied(record, before, after, verdict), failed
    return Applied(record, before, after, verdict), None
