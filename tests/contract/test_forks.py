"""Where a thread can be forked, as the views tell it: the newest settled seq, whatever lies at the one that is asked."""

import random

from schemas.config import Config
from schemas.events import ThreadConfigured, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.state import ThreadState
from schemas.transcript import is_settled
from services.ingest.commands.forks import ForkAt, Forks, FoundPoint, MadeFork
from tests.support.recorded import actors
from tests.support.recorded.contexts import forked_at
from tests.support.recorded.histories import USER, History, created, plain_turn, step_started, submitted
from tests.support.stored.view_harness import Views, advance, read_of


async def point(views: Views, key: ThreadKey, seq: int | None = None, turn: int | None = None) -> FoundPoint:
    found = await views.forks.fork_point(key, ForkAt(seq, turn))
    assert found is not None
    return found


def well_behaved(state: ThreadState) -> list[actors.Move]:
    move = actors.next_move(state)
    return [] if move is None else [move]


def submitting(state: ThreadState) -> list[actors.Move]:
    return [actors.Move(submitted(f"m{state.seq}"), USER)]


def configuring(state: ThreadState) -> list[actors.Move]:
    return [actors.Move(ThreadConfigured(patch={"instructions": f"at {state.seq}"}), USER)]


MOVERS = (
    *[well_behaved] * 5,
    *[actors.runtime("A"), actors.executor("E")] * 3,
    *(submitting, configuring, actors.client, actors.canceller),
)


def walk(seed: int, key: ThreadKey, moves: int = 120) -> History:
    """Steps that fail, calls that are lost, turns that are cancelled, configurations that change."""
    rng = random.Random(seed)
    history = History(key)
    history.apply(created(), USER)
    for _ in range(moves):
        possible = rng.choice(MOVERS)(history.state)
        if possible:
            history.append(*rng.choice(possible))
    return history


def newest_settled(history: History, seq: int) -> int:
    return max(at for at in range(1, seq + 1) if is_settled(history.states[at]))


async def test_at_each_seq_it_is_the_newest_settled_one(views: Views) -> None:
    histories = [walk(seed, ThreadKey(TenantId("acme"), ThreadId(f"t-{seed}"))) for seed in range(6)]
    await advance(views, read_of(*histories))
    left_out = configurations = 0
    for history in histories:
        for seq in range(1, history.state.seq + 1):
            row = await point(views, history.key, seq)
            expected = newest_settled(history, seq)
            state = history.states[expected]
            assert (row.asked, row.seq, row.chain) == (seq, expected, state.chain), (history.key, seq)
            assert (row.newest, row.forks, row.depth) == (history.state.seq, 0, 0)
            open_turn = history.states[seq].turn
            assert row.turn == (None if open_turn is None else open_turn.turn)
            left_out += expected < seq
            assert await config_at(views, history, row) == state.config
            configurations += row.config_seq > expected
        newest = await point(views, history.key)
        assert newest.seq == newest_settled(history, history.state.seq)
    assert left_out > 0
    assert configurations > 0


async def config_at(views: Views, history: History, row: FoundPoint) -> Config:
    forks = Forks(views.forks, None, 1_000)  # type: ignore[arg-type]  # what is known of threads is not asked
    return await forks._config(history.key, row)


async def test_the_end_of_a_turn_is_where_it_ended_or_what_is_settled_of_it(views: Views) -> None:
    history = plain_turn(History())
    history.in_turn("i2")
    history.apply(step_started(history.state))
    await advance(views, read_of(history))
    first = await point(views, history.key, turn=1)
    assert history.records[first.seq - 1].kind == "turn.ended"
    assert (first.turn, first.is_there) == (None, True)
    second = await point(views, history.key, turn=2)
    assert (second.turn, second.asked, second.seq) == (2, history.state.seq, history.state.seq - 1)
    assert not (await point(views, history.key, turn=3)).is_there


async def test_forks_above_a_thread_are_counted_and_a_child_thread_ends_the_count(views: Views) -> None:
    histories = [plain_turn(History(ThreadKey(TenantId("acme"), ThreadId("t-0"))))]
    for number in range(1, 5):
        lineage = forked_at(histories[-1], 1)
        if number == 3:
            lineage = lineage.model_copy(update={"kind": "child", "depth": 1})
        history = History(ThreadKey(TenantId("acme"), ThreadId(f"t-{number}")))
        history.apply(created(lineage=lineage), USER)
        histories.append(history)
    await advance(views, read_of(*histories))
    found = [await point(views, history.key) for history in histories]
    assert [each.forks for each in found] == [0, 1, 2, 0, 1]
    assert [each.depth for each in found] == [0, 0, 0, 1, 1]
    assert await views.forks.fork_point(ThreadKey(TenantId("other"), ThreadId("t-4")), ForkAt()) is None


async def test_what_a_command_made_is_found_by_its_id(views: Views) -> None:
    parent = plain_turn(History(ThreadKey(TenantId("acme"), ThreadId("t-0"))))
    fork = History(ThreadKey(TenantId("acme"), ThreadId("t-1")))
    made = fork.apply(created(lineage=forked_at(parent, 4)), USER)
    assert isinstance(made.record.data, ThreadCreated)
    await advance(views, read_of(parent, fork))
    assert await views.forks.fork_made(fork.key, made.record.id) == MadeFork("t-0", 4)
    assert await views.forks.fork_made(parent.key, derive("another")) is None
    assert await views.forks.fork_made(parent.key, parent.records[0].id) == MadeFork(None, None)
