"""The tables of statuses are what the fold does: no history changes a status otherwise, and each change can happen."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from schemas.events import Event
from schemas.state import CALL_CHANGES, TURN_CHANGES, Changes, ThreadState, call_statuses, turn_status
from tests.support.recorded import actors
from tests.support.recorded.actors import Move, Moves
from tests.support.recorded.histories import IMPORTER, History, approval_requested, cancel_requested, denied

HISTORIES_MAX = 20_000
"""Bounds the search; it ends far below, where nothing new is found."""
TURNS_MAX = 1
ATTEMPTS_MAX = 3


def doubtful_importer(state: ThreadState) -> list[Move]:
    """An importer of a session in which people were asked, and turns cancelled."""
    if state.status != "importing" or state.turn is None:
        return []
    events: list[Event] = [cancel_requested(state)]
    for call in state.calls.values():
        events += [approval_requested(call), denied(call)]
    return [Move(event, IMPORTER) for event in events]


CAST: tuple[Moves, ...] = (
    actors.client,
    actors.person,
    actors.watcher,
    actors.canceller,
    actors.closer,
    actors.importer,
    doubtful_importer,
    actors.runtime("A"),
    actors.executor("E1"),
)


class Change(NamedTuple):
    before: str | None
    event: type[Event]
    after: str


def changes(before: ThreadState, after: ThreadState, event: Event) -> Iterator[tuple[Changes, Change]]:
    for turn in {before.last_turn, after.last_turn} - {0}:
        was, then = turn_status(before, turn), turn_status(after, turn)
        if then is not None and was != then:
            yield TURN_CHANGES, Change(was, type(event), then)
    statuses = call_statuses(before)
    for call, status in call_statuses(after).items():
        if statuses.get(call) != status:
            yield CALL_CHANGES, Change(statuses.get(call), type(event), status)


def situation(state: ThreadState) -> object:
    """What decides which changes are possible from here on: histories that agree in it are searched once."""
    turn, calls = state.turn, list(state.calls.values())[:1]
    return (
        state.status,
        turn and (turn.cancelling, turn.step and turn.step.status),
        [(call.status, call.effect, call.attempt, call.lost_claims, call.last, call.pool) for call in calls],
        [call.claim_attempt == call.attempt for call in calls],
        len(state.queue) > 0,
    ).__repr__()


@pytest.fixture(scope="module")
def seen() -> set[tuple[bool, Change]]:
    """Every change that the actors can bring about within a turn: (is one of a turn, change)."""
    found: set[tuple[bool, Change]] = set()
    frontier, known = [History()], set()
    for _ in range(HISTORIES_MAX):
        if not frontier:
            return found
        history = frontier.pop(0)
        state = history.state
        for moves in CAST:
            for move in moves(state):
                after = history.fork()
                if after.append(*move).effect != "applied" or after.state.last_turn > TURNS_MAX:
                    continue
                if any(call.attempt > ATTEMPTS_MAX for call in after.state.calls.values()):
                    continue
                found |= {(table is TURN_CHANGES, change) for table, change in changes(state, after.state, move.event)}
                key = situation(after.state)
                if key not in known:
                    known.add(key)
                    frontier.append(after)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("table", [TURN_CHANGES, CALL_CHANGES], ids=["turns", "calls"])
def test_the_fold_makes_no_other_changes(table: Changes, seen: set[tuple[bool, Change]]) -> None:
    assert [
        change
        for is_turn, change in seen
        if is_turn == (table is TURN_CHANGES) and change.after not in table.get((change.before, change.event), ())
    ] == []


@pytest.mark.parametrize("table", [TURN_CHANGES, CALL_CHANGES], ids=["turns", "calls"])
def test_every_change_can_happen(table: Changes, seen: set[tuple[bool, Change]]) -> None:
    listed = {Change(before, event, after) for (before, event), each in table.items() for after in each}
    assert listed - {change for is_turn, change in seen if is_turn == (table is TURN_CHANGES)} == set()
