"""Random histories in which everybody acts, well and badly informed, for tests of what is made from them."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from schemas.codec import Encoded
from schemas.ids import ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Incoming
from tests.support.recorded import actors
from tests.support.recorded.histories import KEY, USER, History, created

ROLES: tuple[actors.Moves, ...] = (
    actors.client,
    actors.person,
    actors.runtime("A"),
    actors.executor("E1"),
    actors.client,
    actors.runtime("B"),
    actors.executor("E2"),
    actors.watcher,
    actors.canceller,
    actors.owner_of_settings,
    actors.planner,
    actors.importer,
    actors.closer,
)
Choice = tuple[int, int, int]
"""Who moves (beyond the roles: the well-behaved), which of the moves, how many records behind."""
GO_ON = len(ROLES)

CHOICES: SearchStrategy[Choice] = st.tuples(st.integers(0, 2 * GO_ON), st.integers(0, 47), st.integers(0, 3))


def walk(choices: Sequence[Choice], key: ThreadKey = KEY, history: History | None = None) -> History:
    """`history`: an empty one to go on with."""
    history = History(key) if history is None else history
    if choices and choices[0][0] != ROLES.index(actors.importer):
        history.append(created(title="walk"), USER)
    for role, pick, stale in choices:
        if role >= GO_ON:
            move = actors.next_move(history.state, steps_with_calls=1)
            if move is not None:
                history.append(*move)
        else:
            moves = ROLES[role](history.states[max(0, len(history.states) - 1 - stale)])
            if moves:
                history.append(*moves[pick % len(moves)])
    return history


def incoming(key: ThreadKey, made: Encoded, offset: int, partition: int = 0) -> Incoming:
    """The record as a reader gets it."""
    return Incoming(
        THREAD_EVENTS.name, partition, offset, made.record.time_ms, key.to_bytes(), made.value, made.headers
    )


def as_read(history: History, partition: int = 0) -> list[Incoming]:
    return [
        incoming(history.key, made, record.offset, partition)
        for made, record in zip(history.encoded, history.records, strict=True)
    ]
