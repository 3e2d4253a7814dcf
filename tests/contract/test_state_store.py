"""What every StateStore promises, over the projector's rows in Postgres and over the twin in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import asyncpg
import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log import Incoming
from services.chassis.postgres_states import PostgresStates
from services.chassis.states import KeyStore, StateStore, StatesUnavailableError
from services.projector.generations import drop_views, ensure_live, migrate
from services.projector.settings import ProjectorSettings
from tests.support.applying import applier_of
from tests.support.histories import History
from tests.support.state_store import MemoryStates
from tests.support.walks import as_read

TOPIC = THREAD_EVENTS.name
IDLE = ThreadKey(TenantId("acme"), ThreadId("idle"))
ACTIVE = ThreadKey(TenantId("acme"), ThreadId("active"))
OTHERS = ThreadKey(TenantId("other"), ThreadId("active"))


class Store(StateStore, KeyStore, Protocol):
    pass


@dataclass
class Harness:
    store: Store
    advance: Callable[[Sequence[Incoming]], Awaitable[None]]
    drop: Callable[[], Awaitable[None]]
    go_away: Callable[[], Awaitable[None]]


def in_memory() -> Harness:
    store = MemoryStates()

    async def advance(records: Sequence[Incoming]) -> None:
        store.advance(records)

    async def drop() -> None:
        store.forget()

    async def go_away() -> None:
        store.is_away = True

    return Harness(store, advance, drop, go_away)


@asynccontextmanager
async def in_postgres(fresh_database: str) -> AsyncIterator[Harness]:
    settings = ProjectorSettings(postgres_dsn=fresh_database)
    await migrate(fresh_database)
    pool = await asyncpg.create_pool(fresh_database, min_size=0, max_size=2)

    async def advance(records: Sequence[Incoming]) -> None:
        generation = await ensure_live(fresh_database, settings, "cluster")
        async with applier_of(generation, settings) as applier:
            await applier.submit(records)
            await applier.settle()

    async def drop() -> None:
        await drop_views(fresh_database, settings)

    async def go_away() -> None:
        await pool.close()

    yield Harness(PostgresStates(pool), advance, drop, go_away)
    pool.terminate()


@pytest.fixture(params=["memory", "postgres"])
async def harness(request: pytest.FixtureRequest, fresh_database: str) -> AsyncIterator[Harness]:
    if request.param == "memory":
        yield in_memory()
    else:
        async with in_postgres(fresh_database) as made:
            yield made


@pytest.fixture
async def postgres(fresh_database: str) -> AsyncIterator[Harness]:
    async with in_postgres(fresh_database) as made:
        yield made


def records() -> tuple[list[Incoming], dict[ThreadKey, History]]:
    """One partition with an idle thread and two that are active."""
    histories = [History(IDLE).ended_turn(), History(ACTIVE).with_running_call(), History(OTHERS).in_turn()]
    read: list[Incoming] = []
    for history in histories:
        history.records = [record._replace(offset=len(read) + number) for number, record in enumerate(history.records)]
        read += as_read(history, partition=3)
    return read, {history.key: history for history in histories}


async def test_nothing_is_stored_at_first(harness: Harness) -> None:
    assert await harness.store.load_active(TOPIC, 3) == (0, {})
    assert await harness.store.load_threads(TOPIC, 3, [IDLE]) == (0, {})


async def test_active_threads_come_with_the_position(harness: Harness) -> None:
    read, histories = records()
    await harness.advance(read)
    next_offset, states = await harness.store.load_active(TOPIC, 3)
    assert next_offset == len(read)
    assert states.keys() == {ACTIVE, OTHERS}
    for key, state in states.items():
        assert state.turn == histories[key].state.turn
        assert (state.seq, state.chain) == (histories[key].state.seq, histories[key].state.chain)
    assert await harness.store.load_active(TOPIC, 4) == (0, {})
    assert await harness.store.load_active("ephemeral-events", 3) == (0, {})


async def test_threads_come_by_key_and_those_without_a_record_do_not(harness: Harness) -> None:
    read, histories = records()
    await harness.advance(read)
    unknown = ThreadKey(TenantId("acme"), ThreadId("unknown"))
    next_offset, states = await harness.store.load_threads(TOPIC, 3, [IDLE, unknown, OTHERS])
    assert next_offset == len(read)
    assert states.keys() == {IDLE, OTHERS}
    assert states[IDLE].last_outcome == "completed"
    assert list(states[IDLE].commands) == list(histories[IDLE].state.commands)
    assert await harness.store.load_threads(TOPIC, 3, [unknown]) == (len(read), {})


async def test_a_thread_that_comes_to_rest_is_active_no_more(harness: Harness) -> None:
    read, _ = records()
    cut = 3
    await harness.advance(read[:cut])
    assert IDLE in (await harness.store.load_active(TOPIC, 3)).states
    await harness.advance(read[cut:])
    assert IDLE not in (await harness.store.load_active(TOPIC, 3)).states


async def test_all_keys_come_with_the_position_unless_they_are_too_many(harness: Harness) -> None:
    nothing = await harness.store.load_keys(TOPIC, 3, 10)
    assert nothing is not None and (nothing.next_offset, list(nothing.keys)) == (0, [])
    read, _ = records()
    await harness.advance(read)
    found = await harness.store.load_keys(TOPIC, 3, 3)
    assert found is not None and (found.next_offset, set(found.keys)) == (len(read), {IDLE, ACTIVE, OTHERS})
    assert await harness.store.load_keys(TOPIC, 3, 2) is None


async def test_dropped_views_are_as_if_nothing_had_been_stored(harness: Harness) -> None:
    read, _ = records()
    await harness.advance(read)
    await harness.drop()
    assert await harness.store.load_active(TOPIC, 3) == (0, {})
    assert await harness.store.load_threads(TOPIC, 3, [IDLE]) == (0, {})


async def test_a_store_that_is_away_says_so(harness: Harness) -> None:
    await harness.go_away()
    with pytest.raises(StatesUnavailableError) as raised:
        await harness.store.load_active(TOPIC, 3)
    assert raised.value.retriable
    with pytest.raises(StatesUnavailableError):
        await harness.store.load_threads(TOPIC, 3, [IDLE])


async def test_states_of_another_fold_are_not_given(postgres: Harness, fresh_database: str) -> None:
    read, _ = records()
    await postgres.advance(read)
    connection = await asyncpg.connect(fresh_database)
    try:
        await connection.execute("update threadlog.generations set fold_version = 99")
    finally:
        await connection.close()
    assert await postgres.store.load_active(TOPIC, 3) == (0, {})


async def test_a_state_that_is_none_is_not_taken_for_one(postgres: Harness, fresh_database: str) -> None:
    read, _ = records()
    await postgres.advance(read)
    connection = await asyncpg.connect(fresh_database)
    try:
        await connection.execute("""update views_g1.thread_states set state = '{"seq": "x"}'""")
    finally:
        await connection.close()
    with pytest.raises(StatesUnavailableError, match="acme/idle"):
        await postgres.store.load_threads(TOPIC, 3, [IDLE])
