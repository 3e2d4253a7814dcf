"""What the kernel costs on one core, over a thread's decoded log: CPU time, best of some rounds."""

from time import process_time

from schemas.codec import Record
from schemas.events import ContextCompactionRequested, InputWithdrawn, ThreadConfigured, ThreadDescribed
from schemas.state import NOTHING
from schemas.thread import fold
from tests.support.histories import (
    EXECUTOR,
    USER,
    History,
    approval_requested,
    approved,
    claimed,
    compacted,
    dispatched,
    finished,
    lost,
    plain_turn,
    proposed,
    read_back,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_recovered,
    turn_started,
)

PLAIN_TURNS = 9
"""For each turn in which something goes wrong."""
CYCLES = 10
ROUNDS = 50
KINDS_MIN = 16


def fold_events_per_second() -> float:
    records = thread_records()
    seconds = min(_fold_seconds(records) for _ in range(ROUNDS))
    return len(records) / seconds


def thread_records() -> list[Record]:
    """The log of a long thread, as a reader decodes it."""
    history = History().idle()
    for _ in range(CYCLES):
        for _ in range(PLAIN_TURNS):
            plain_turn(history)
        _troubled_turn(history)
    assert len({record.kind for record in history.records}) >= KINDS_MIN
    return [read_back(history.key, made, offset) for offset, made in enumerate(history.encoded)]


def _troubled_turn(log: History) -> None:
    """People change their minds and are asked, a model fails, an executor dies, an owner too."""
    turn = log.state.last_turn + 1
    log.apply(ThreadConfigured(patch={"instructions": f"be brief {turn}"}), USER)
    log.apply(ThreadDescribed(title=f"turn {turn}"), USER)
    log.apply(submitted(f"i{turn}a"), USER)
    log.apply(submitted(f"i{turn}b"), USER)
    log.apply(InputWithdrawn(input=f"i{turn}b"), USER)
    log.apply(turn_started(log.state))
    log.apply(step_started(log.state))
    log.apply(step_failed(log.state))
    log.apply(submitted(f"i{turn}c", "steer"), USER)
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, calls=[proposed(0)]))
    name = next(reversed(log.state.calls))
    log.apply(approval_requested(log.call(name)))
    log.apply(approved(log.call(name)), USER)
    log.apply(dispatched(log.call(name), "idempotent"))
    log.apply(claimed(log.call(name)), EXECUTOR)
    log.apply(lost(log.call(name)))
    log.apply(turn_recovered(log.state))
    log.apply(dispatched(log.call(name), "idempotent"))
    log.apply(claimed(log.call(name), "E2"), EXECUTOR)
    log.apply(finished(log.call(name), "failed"), EXECUTOR)
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "It fails."))
    log.apply(turn_ended(log.state))
    log.apply(ContextCompactionRequested(base=log.state.base), USER)
    log.apply(compacted(log.state))


def _fold_seconds(records: list[Record]) -> float:
    state = NOTHING
    started = process_time()
    for record in records:
        state, _ = fold(state, record)
    return process_time() - started


if __name__ == "__main__":
    print(f"{fold_events_per_second():,.0f} events/s folded")
