"""Which event takes a turn or a call from one status to which others: the fold's outcome as a table.

`schemas.thread` decides whether an event fits, from more than a status: hashes, attempts, claims, deadlines. This table
says what is possible at all, so that a reader sees a life at one look. It is data: the state diagrams of the documents
are drawn from it, and a property test holds it against the fold, in both directions: no history shows a change that is
not here, and every change that is here has been seen.

A status that stays as it is has no entry.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from schemas.events import (
    Event,
    InputSubmitted,
    StepFinished,
    ThreadCloseRequested,
    ThreadImportEnded,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.state import CallStatus, ThreadState

TurnStatus = Literal["open", "cancelling", "ended"]
Changes: TypeAlias = Mapping[tuple[str | None, type[Event]], frozenset[str]]
"""(status before, event) → statuses that may follow. None is the status of what does not exist yet."""

TURN_CHANGES: Final[Changes] = {
    (None, TurnStarted): frozenset({"open"}),
    ("open", TurnCancelRequested): frozenset({"cancelling"}),
    ("open", InputSubmitted): frozenset({"cancelling"}),  # an interrupting input
    ("open", ThreadCloseRequested): frozenset({"cancelling", "ended"}),  # ended where the thread is being imported
    ("open", TurnEnded): frozenset({"ended"}),
    ("open", ThreadImportEnded): frozenset({"ended"}),
    ("cancelling", TurnEnded): frozenset({"ended"}),
    ("cancelling", ThreadImportEnded): frozenset({"ended"}),
    ("cancelling", ThreadCloseRequested): frozenset({"ended"}),  # as above
}
"""A turn is cancelled by the first of several events, and no later one changes that."""

_CANCELS: Final = (TurnCancelRequested, InputSubmitted, ThreadCloseRequested)
_UNSTARTED: Final = ("proposed", "waiting", "approved")
_UNCLAIMED: Final = ("dispatched", "repeatable")

CALL_CHANGES: Final[Changes] = {
    # A turn that is being cancelled settles the calls of a late answer at once.
    (None, StepFinished): frozenset({"proposed", "settled"}),
    ("proposed", ToolCallApprovalRequested): frozenset({"waiting"}),
    ("proposed", ToolCallApproved): frozenset({"approved"}),
    ("waiting", ToolCallApproved): frozenset({"approved"}),
    ("proposed", ToolCallDenied): frozenset({"settled"}),
    ("waiting", ToolCallDenied): frozenset({"settled"}),
    ("waiting", ToolCallApprovalExpired): frozenset({"settled"}),
    # Calls that no executor claims, such as those of client tools, run from their dispatch on.
    ("approved", ToolCallDispatched): frozenset({"dispatched", "running"}),
    ("repeatable", ToolCallDispatched): frozenset({"dispatched", "running"}),
    ("dispatched", ToolCallStarted): frozenset({"running"}),
    # `not_started` gives the call back, or shows that it is unknown on account of an earlier claim.
    ("running", ToolCallFinished): frozenset({"settled", "repeatable", "unknown"}),
    # The late result of an earlier attempt: of a pure call, which may run more than once.
    ("dispatched", ToolCallFinished): frozenset({"settled"}),
    ("repeatable", ToolCallFinished): frozenset({"settled"}),
    ("unknown", ToolCallFinished): frozenset({"settled", "repeatable"}),
    ("dispatched", ToolCallLost): frozenset({"repeatable", "unknown", "settled"}),
    ("running", ToolCallLost): frozenset({"repeatable", "unknown", "settled"}),
    ("unknown", ToolCallResolved): frozenset({"settled", "repeatable"}),
    # A cancel settles what did not run; what may have run under an earlier claim is unknown.
    **{(status, cancel): frozenset({"settled"}) for status in _UNSTARTED for cancel in _CANCELS},
    # Closing a thread that is being imported ends its import, too.
    **{(status, ThreadCloseRequested): frozenset({"settled", "unknown"}) for status in _UNSTARTED},
    **{(status, cancel): frozenset({"settled", "unknown"}) for status in _UNCLAIMED for cancel in _CANCELS},
    # The end of an import: nobody will ever say what became of what its source left open.
    **{(status, ThreadImportEnded): frozenset({"unknown"}) for status in (*_UNSTARTED, *_UNCLAIMED, "running")},
    ("running", ThreadCloseRequested): frozenset({"unknown"}),
}
"""Settled calls change no more: the state forgets them when the next turn starts."""


def turn_status(state: ThreadState, turn: int) -> TurnStatus | None:
    """Return the status of a turn by its number, None before it started."""
    if state.turn is not None and state.turn.turn == turn:
        return "open" if state.turn.cancelling is None else "cancelling"
    return "ended" if turn <= state.last_turn else None


def call_statuses(state: ThreadState) -> dict[str, CallStatus]:
    """Return the status of each call that the state holds. Settled calls leave it when the next turn starts."""
    return {name: call.status for name, call in state.calls.items()}
