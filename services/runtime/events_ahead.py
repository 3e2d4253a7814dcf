"""A thread's own events that are under way: decided and sent, and not read back yet.

Reading back takes a round trip to the broker, and a turn consists of many events. So the runtime folds its own events
onto the confirmed state at once and decides the next ones on the result, the state ahead. The log may disagree in two
ways, and neither does harm:

- A record of somebody else comes in between. The events under way are folded again after it, as every reader will do.
  Those that no longer fit have no effect for anybody, and the next decision answers anew.
- An append fails. Its events leave the state ahead. The log may have stored them all the same; then they come back like
  any other record, with the ids that a second try derives again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.codec import Record
from schemas.state import ThreadState
from schemas.thread import Verdict, fold
from schemas.transcript import Change, transcript_changes


@dataclass(slots=True, eq=False)
class SentEvent:
    """An own event under way, with what it changes in the transcript."""

    record: Record
    changes: tuple[Change, ...]


@dataclass(slots=True, eq=False)
class EventsAhead:
    events: list[SentEvent] = field(default_factory=list)
    state: ThreadState | None = None
    """Confirmed state with the events folded onto it; None if there are no events."""

    def latest(self, confirmed: ThreadState) -> ThreadState:
        """Return the state that decisions are made on."""
        return self.state or confirmed

    def add(self, confirmed: ThreadState, record: Record) -> Verdict:
        """Fold an event onto the state ahead and remember it. An event that does not fit is not remembered."""
        before = self.latest(confirmed)
        after, verdict = fold(before, record)
        if verdict.effect == "applied":
            self.state = after
            self.events.append(SentEvent(record, transcript_changes(before, after, record, verdict)))
        return verdict

    def read_back(self, confirmed: ThreadState, record: Record) -> None:
        """Take a record of the thread, which is part of the confirmed state already.

        Usually it is the first event under way. Anything else came from another writer, or is an event whose append was
        reported as failed; then what is under way comes after it.
        """
        if not self.events:
            return
        first = self.events[0].record
        if first.id == record.id and first.data_hash == record.data_hash:
            del self.events[0]
            if not self.events:
                self.state = None
        else:
            self._fold_again(confirmed)

    def withdraw(self, confirmed: ThreadState, failed: Sequence[SentEvent]) -> None:
        """Forget events of an append that failed."""
        self.events = [event for event in self.events if event not in failed]
        self._fold_again(confirmed)

    def _fold_again(self, confirmed: ThreadState) -> None:
        state = confirmed
        for event in self.events:
            before = state
            state, verdict = fold(before, event.record)
            event.changes = transcript_changes(before, state, event.record, verdict)
        self.state = state if self.events else None
