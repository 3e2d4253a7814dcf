"""What the kernel costs on one core, over a thread's decoded log: CPU time, best of some rounds."""

from time import process_time

from schemas.codec import Record
from schemas.state import NOTHING
from schemas.thread import fold
from tests.support.recorded.histories import History, plain_turn, read_back, troubled_turn

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
        troubled_turn(history)
    assert len({record.kind for record in history.records}) >= KINDS_MIN
    return [read_back(history.key, made, offset) for offset, made in enumerate(history.encoded)]


def _fold_seconds(records: list[Record]) -> float:
    state = NOTHING
    started = process_time()
    for record in records:
        state, _ = fold(state, record)
    return process_time() - started


if __name__ == "__main__":
    print(f"{fold_events_per_second():,.0f} events/s folded")
