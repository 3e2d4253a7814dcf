"""A thread's state at any seq: the same, byte for byte, as a fold of the log gives."""

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import orjson
import pytest

from schemas.canonical import call_hash, data_hash
from schemas.codec import Record, decode
from schemas.events import ThreadRewound
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, dump_state, load_state
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from schemas.transcript import Transcript, context_hash, transcript_changes
from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Outgoing
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.tenancy import TenantPool
from services.ingest.database import Database, statements
from services.ingest.http.problems import ProblemError
from services.ingest.reads.state_at import StateAt, StateLimits, StatesAt, to_json
from services.projector.generations.generations import ensure_live, migrate
from tests.support.recorded.histories import USER, History, compacted, plain_turn, proposed, step_finished, submitted
from tests.support.recorded.walks import as_read
from tests.support.simulated.log import SimulatedBroker
from tests.support.worlds.ingest import Place, position
from tests.support.worlds.projector import apply_all, key_of, random_records, settings_of

PARTITION = 3
SQL = statements()


@pytest.fixture
async def database(fresh_database: str) -> str:
    await migrate(fresh_database)
    return fresh_database


@contextlib.asynccontextmanager
async def states_of(
    dsn: str, records: Sequence[Incoming], limits: StateLimits | None = None
) -> AsyncIterator[StatesAt]:
    """Of a log that holds these records, in one partition, and of the views of them."""
    broker = SimulatedBroker({THREAD_EVENTS.name: 4}, SystemClock())
    log = broker.connect("ingest")
    outgoing = [Outgoing(r.key or b"", r.value, r.headers, r.timestamp_ms) for r in records]
    await log.appender.append(THREAD_EVENTS.name, PARTITION, outgoing)
    pool = await open_pool(
        dsn, application_name="t", size_min=0, size_max=4, command_timeout_seconds=10, connect_timeout_seconds=5
    )
    try:
        yield StatesAt(Database(TenantPool(pool), 10), SQL, log, limits or StateLimits())
    finally:
        pool.terminate()
        await log.close()


async def project(dsn: str, records: Sequence[Incoming], **options: Any) -> None:
    settings = settings_of(dsn)
    await apply_all(await ensure_live(dsn, settings, "cluster"), settings, records, 1_000, **options)


def folded(records: Sequence[Incoming], key: ThreadKey) -> list[tuple[ThreadState, str, list[Any]]]:
    """State, hash and items of the context before the thread's first record and after each."""
    state, transcript = NOTHING, Transcript()
    found: list[tuple[ThreadState, str, list[Any]]] = [(state, context_hash([]), [])]
    for incoming in records:
        record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
        if not isinstance(record, Record) or record.key != key:
            continue
        before = state
        state, verdict = fold(state, record)
        transcript.apply(transcript_changes(before, state, record, verdict))
        shown = transcript.context()
        found.append((state, context_hash(shown), [item._asdict() for item in shown]))
    return found


def agrees(found: StateAt | None, expected: tuple[ThreadState, str, list[Any]], key: ThreadKey) -> None:
    state, hash_, items = expected
    assert found is not None
    assert found.state == dump_state(state)
    assert load_state(found.state) == state
    assert (found.seq, found.chain, found.offset) == (state.seq, state.chain, state.offset)
    shown = orjson.loads(to_json(key, found))
    assert (shown["context"]["hash"], shown["context"]["count"]) == (hash_, len(items))
    assert shown["context"]["items"] == items
    assert shown["state"] == orjson.loads(dump_state(state))


def read_of(history: History) -> list[Incoming]:
    """Alone in its partition."""
    return [record._replace(offset=offset) for offset, record in enumerate(as_read(history, PARTITION))]


def keys_in(records: Sequence[Incoming]) -> list[ThreadKey]:
    decoded = [decode(r.key, r.headers, r.value, r.offset) for r in records]
    return list(dict.fromkeys(record.key for record in decoded if isinstance(record, Record)))


@pytest.mark.parametrize("seed", range(6))
async def test_the_state_at_every_seq_is_the_fold_of_the_log(database: str, seed: int) -> None:
    records = random_records(seed, threads=5, moves=50)
    records = _with_odd_values(records, random.Random(seed))
    await project(database, records)
    async with states_of(database, records) as states:
        for key in keys_in(records):
            expected = folded(records, key)
            for seq, at in enumerate(expected):
                agrees(await states.state(key, seq), at, key)
            agrees(await states.state(key, None), expected[-1], key)
            assert await states.state(key, len(expected)) is None
    assert sum(len(folded(records, key)) for key in keys_in(records)) > 100


def _with_odd_values(records: list[Incoming], rng: random.Random) -> list[Incoming]:
    """Some of them as another producer could write them: the same JSON, spaced, its names in another order."""
    odd = []
    for record in records:
        value = record.value
        if value is not None and value.startswith(b"{") and rng.random() < 0.1:
            with contextlib.suppress(ValueError):
                value = orjson.dumps(dict(reversed(orjson.loads(value).items())), option=orjson.OPT_INDENT_2)
                headers = dict(record.headers) | {"ce_datahash": data_hash(value).encode()}
                record = record._replace(value=value, headers=tuple(headers.items()))  # noqa: PLW2901
        odd.append(record)
    return odd


async def test_names_and_numbers_keep_their_order_and_form(database: str) -> None:
    args = {"b": 1.5, "aa": [1e21, 1e-7, 0.1, 123456789012345.6], "A": {"z": 2, "é": None, "\U0001f600": 1}, "a": -0.25}
    history = History(key_of(1)).in_step()
    history.apply(_answer(history, args))
    records = read_of(history)
    await project(database, records)
    async with states_of(database, records, StateLimits(log_reads_max=0)) as states:
        for seq, at in enumerate(folded(records, key_of(1))):
            agrees(await states.state(key_of(1), seq), at, key_of(1))
        agrees(await states.state(key_of(1), None), folded(records, key_of(1))[-1], key_of(1))


async def test_what_a_summary_stood_for_comes_back_when_it_is_rewound(database: str) -> None:
    history = plain_turn(plain_turn(History(key_of(1))))
    history.apply(compacted(history.state))
    plain_turn(history)
    for to_turn in (2, 1):
        history.apply(ThreadRewound(to_turn=to_turn), USER)
        plain_turn(history)
    history.apply(compacted(history.state, history.state.seq - 4))
    records = read_of(history)
    await project(database, records)
    async with states_of(database, records) as states:
        expected = folded(records, key_of(1))
        agrees(await states.state(key_of(1), None), expected[-1], key_of(1))
    rewinds = [seq for seq, record in enumerate(history.records, start=1) if record.kind == "thread.rewound"]
    assert [len(expected[seq][2]) for seq in rewinds] == [1, 7]
    for last in rewinds:
        found = await _newest_of(database, records[:last])
        agrees(found, expected[last], key_of(1))


async def _newest_of(dsn: str, records: Sequence[Incoming]) -> StateAt | None:
    connection = await asyncpg.connect(dsn)
    for table in ("thread_states", "positions", "threads", "turns", "steps", "tool_calls", "items", "usage", "events"):
        await connection.execute(f"delete from views_g1.{table}")
    await connection.close()
    await project(dsn, records)
    async with states_of(dsn, records) as states:
        return await states.state(key_of(1), None)


def _answer(history: History, args: Any) -> Any:
    call = proposed(0).model_copy(update={"args": args, "call_hash": call_hash(proposed(0).tool, args)})
    return step_finished(history.state, calls=[call])


async def test_a_thread_whose_views_stand_still_is_folded_from_the_log(database: str) -> None:
    """The database refuses a row of it: a name of more bytes than an index takes."""
    key = key_of(1)
    history = plain_turn(History(key).idle())
    history.apply(submitted("x" * 100), USER)
    records = read_of(plain_turn(history))
    connection = await asyncpg.connect(database)
    await ensure_live(database, settings_of(database), "cluster")
    await connection.execute("alter table views_g1.turns add constraint one check (turn < 2)")
    await project(database, records)
    assert await connection.fetchval("select quarantined from views.thread_states") is not None
    assert await connection.fetchval("select count(*) from views.events where data is null") > 0
    await connection.close()
    async with states_of(database, records) as states:
        expected = folded(records, key)
        for seq, at in enumerate(expected):
            agrees(await states.state(key, seq), at, key)
        agrees(await states.state(key, None), expected[-1], key)
    async with states_of(database, records, StateLimits(log_reads_max=1)) as states:
        assert await refusal(states, key, None) == "state-out-of-reach"


@pytest.mark.parametrize(
    "limited", [{"records_max": 5}, {"bytes_max": 500}, {"seconds": 1e-6}], ids=["records", "bytes", "seconds"]
)
async def test_what_it_takes_is_limited(database: str, limited: dict[str, Any]) -> None:
    records = read_of(plain_turn(plain_turn(History(key_of(1)))))
    await project(database, records)
    async with states_of(database, records, replace(StateLimits(), **limited)) as states:
        assert await refusal(states, key_of(1), 20) == "state-out-of-reach"
    async with states_of(database, records, StateLimits(items_max=3)) as states:
        assert await refusal(states, key_of(1), None) == "state-out-of-reach"


async def refusal(states: StatesAt, key: ThreadKey, at: int | None) -> str:
    with pytest.raises(ProblemError) as raised:
        await states.state(key, at)
    return raised.value.problem.type.slug


@pytest.mark.parametrize(
    "alteration",
    [
        """update {}.events set data = '{{"input": "i1", "items": [], "mode": "queue"}}' where seq = 2""",
        "update {}.events set chain = repeat('0', 64) where seq = 5",
        "update {}.events set id = gen_random_uuid() where seq = 3",
        "update {}.events set effect = 'superseded' where seq = 3",
        "delete from {}.events where seq = 2",
    ],
)
async def test_rows_that_are_not_those_of_the_log_are_not_believed(database: str, alteration: str) -> None:
    """Nor shown: either the log's record is taken, or it is said that they differ."""
    records = read_of(plain_turn(History(key_of(1))))
    await project(database, records)
    connection = await asyncpg.connect(database)
    await connection.execute(alteration.format("views_g1"))
    await connection.close()
    async with states_of(database, records) as states:
        if "set data" in alteration:
            agrees(await states.state(key_of(1), 5), folded(records, key_of(1))[5], key_of(1))
        else:
            assert await refusal(states, key_of(1), 5) == "internal"


# Over HTTP


@pytest.fixture
async def place(database: str) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        found = Place(database, stack)
        await found.project()
        yield found


async def test_a_state_over_http(place: Place) -> None:
    client = await place.ingest()
    made = (await client.post("/v1/threads", json={"input": {"text": "hi"}, "title": "A trip"})).json()
    thread, at_least = made["thread"], f"{made['position']['partition']}:{made['position']['offset']}"
    path = f"/v1/threads/{thread}/state"
    now = await client.get(f"{path}?at_least={at_least}")
    assert now.status_code == 200
    assert now.json()["seq"] == 2 and now.json()["state"]["title"] == "A trip"
    assert now.json()["position"] == made["position"]
    assert now.json()["context"]["items"] == []
    assert (await client.get(f"{path}?at=2")).content == now.content
    assert (await client.get(f"{path}?at=1")).json()["state"]["queue"] == []
    assert (await client.get(f"{path}?at=0")).json()["state"]["status"] == "none"
    for query, status, slug in (
        ("?at=3", 400, "bad-cursor"),
        ("?at=-1", 422, "invalid-request"),
        ("?at=x", 422, "invalid-request"),
        ("?at_least=999", 503, "views-behind"),
    ):
        refused = await client.get(path + query, timeout=20)
        assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (status, slug), query
        assert ("retry-after" in refused.headers) == (status == 503)
    missing = await client.get("/v1/threads/nothing/state")
    assert missing.status_code == 404
    other = await client.get(path, headers={"x-threadlog-tenant": "other"})
    assert (other.status_code, other.content) == (404, missing.content)


async def test_a_seq_that_is_in_the_log_and_not_in_the_views_yet_is_waited_for(place: Place) -> None:
    client = await place.ingest()
    created_ = await client.post("/v1/threads?wait=applied", json={})
    thread = created_.json()["thread"]
    assert (await client.get(f"/v1/threads/{thread}?at_least={position(created_)}")).status_code == 200
    sent = await client.post(f"/v1/threads/{thread}/inputs", json={"text": "hi"})
    assert sent.status_code == 202
    assert (await client.get(f"/v1/threads/{thread}/state?at=2")).json()["seq"] == 2
