"""What every StateStore promises, over the projector's rows in Postgres and over the twin in memory."""

import asyncpg
import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Incoming
from services.chassis.threads.states import StatesUnavailableError
from tests.support.recorded.histories import History
from tests.support.recorded.walks import as_read
from tests.support.stored.view_harness import InPostgres, Views, advance

TOPIC = THREAD_EVENTS.name
IDLE = ThreadKey(TenantId("acme"), ThreadId("idle"))
ACTIVE = ThreadKey(TenantId("acme"), ThreadId("active"))
OTHERS = ThreadKey(TenantId("other"), ThreadId("active"))


def records() -> tuple[list[Incoming], dict[ThreadKey, History]]:
    """One partition with an idle thread and two that are active."""
    histories = [History(IDLE).ended_turn(), History(ACTIVE).with_running_call(), History(OTHERS).in_turn()]
    read: list[Incoming] = []
    for history in histories:
        history.records = [record._replace(offset=len(read) + number) for number, record in enumerate(history.records)]
        read += as_read(history, partition=3)
    return read, {history.key: history for history in histories}


async def test_nothing_is_stored_at_first(views: Views) -> None:
    assert await views.states.load_active(TOPIC, 3) == (0, {})
    assert await views.states.load_threads(TOPIC, 3, [IDLE]) == (0, {})


async def test_active_threads_come_with_the_position(views: Views) -> None:
    read, histories = records()
    await advance(views, read)
    next_offset, states = await views.states.load_active(TOPIC, 3)
    assert next_offset == len(read)
    assert states.keys() == {ACTIVE, OTHERS}
    for key, state in states.items():
        assert state.turn == histories[key].state.turn
        assert (state.seq, state.chain) == (histories[key].state.seq, histories[key].state.chain)
    assert await views.states.load_active(TOPIC, 4) == (0, {})
    assert await views.states.load_active("ephemeral-events", 3) == (0, {})


async def test_threads_come_by_key_and_those_without_a_record_do_not(views: Views) -> None:
    read, histories = records()
    await advance(views, read)
    unknown = ThreadKey(TenantId("acme"), ThreadId("unknown"))
    next_offset, states = await views.states.load_threads(TOPIC, 3, [IDLE, unknown, OTHERS])
    assert next_offset == len(read)
    assert states.keys() == {IDLE, OTHERS}
    assert states[IDLE].last_outcome == "completed"
    assert list(states[IDLE].commands) == list(histories[IDLE].state.commands)
    assert await views.states.load_threads(TOPIC, 3, [unknown]) == (len(read), {})


async def test_a_thread_that_comes_to_rest_is_active_no_more(views: Views) -> None:
    read, _ = records()
    cut = 3
    await advance(views, read[:cut])
    assert IDLE in (await views.states.load_active(TOPIC, 3)).states
    await advance(views, read[cut:])
    assert IDLE not in (await views.states.load_active(TOPIC, 3)).states


async def test_all_keys_come_with_the_position_unless_they_are_too_many(views: Views) -> None:
    nothing = await views.states.load_keys(TOPIC, 3, 10)
    assert nothing is not None and (nothing.next_offset, list(nothing.keys)) == (0, [])
    read, _ = records()
    await advance(views, read)
    found = await views.states.load_keys(TOPIC, 3, 3)
    assert found is not None and (found.next_offset, set(found.keys)) == (len(read), {IDLE, ACTIVE, OTHERS})
    assert await views.states.load_keys(TOPIC, 3, 2) is None


async def test_dropped_views_are_as_if_nothing_had_been_stored(views: Views) -> None:
    read, _ = records()
    await advance(views, read)
    await views.drop()
    assert await views.states.load_active(TOPIC, 3) == (0, {})
    assert await views.states.load_threads(TOPIC, 3, [IDLE]) == (0, {})


async def test_a_store_that_is_away_says_so(views: Views) -> None:
    await views.go_away()
    with pytest.raises(StatesUnavailableError) as raised:
        await views.states.load_active(TOPIC, 3)
    assert raised.value.retriable
    with pytest.raises(StatesUnavailableError):
        await views.states.load_threads(TOPIC, 3, [IDLE])


async def test_states_of_another_fold_are_not_given(postgres: InPostgres) -> None:
    read, _ = records()
    await advance(postgres, read)
    connection = await asyncpg.connect(postgres.dsn)
    try:
        await connection.execute("update threadlog.generations set fold_version = 99")
    finally:
        await connection.close()
    assert await postgres.states.load_active(TOPIC, 3) == (0, {})


async def test_a_state_that_is_none_is_not_taken_for_one(postgres: InPostgres) -> None:
    read, _ = records()
    await advance(postgres, read)
    connection = await asyncpg.connect(postgres.dsn)
    try:
        await connection.execute("""update views_g1.thread_states set state = '{"seq": "x"}'""")
    finally:
        await connection.close()
    with pytest.raises(StatesUnavailableError, match="acme/idle"):
        await postgres.states.load_threads(TOPIC, 3, [IDLE])
