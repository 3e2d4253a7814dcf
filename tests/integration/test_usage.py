"""What was used: each response of a provider counts once, whatever came to the views first, and the API adds it up."""

from typing import Any

import asyncpg
import pytest

from schemas.events import Usage
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.projector.generations.generations import ensure_live, migrate
from tests.support.recorded import histories
from tests.support.recorded.histories import START_MS, USER, History
from tests.support.recorded.walks import as_read
from tests.support.worlds.ingest import Place
from tests.support.worlds.projector import another_generation, apply_all, settings_of

DAY_MS = 86_400_000
LONG = "\u6f22" * 200
"""The longest name of a model, in a script that takes much room in a cursor."""
TOKENS = Usage(input_tokens=1_000, output_tokens=50, cached_tokens=20, reasoning_tokens=5)


def answered(
    thread: str, *responses: str | None, start_ms: int = START_MS, tenant: str = "acme", tokens: Usage = TOKENS
) -> History:
    """A turn with a step for each response."""
    history = History(ThreadKey(TenantId(tenant), ThreadId(thread)), now_ms=start_ms)
    history.in_turn()
    for response in responses:
        history.apply(histories.step_started(history.state))
        finished = histories.step_finished(history.state, "fine")
        history.apply(finished.model_copy(update={"response_id": response, "usage": tokens}))
    history.apply(histories.turn_ended(history.state))
    return history


def of_one_partition(*given: History) -> list[Any]:
    records = [record for history in given for record in as_read(history, 3)]
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


async def counted(connection: asyncpg.Connection, schema: str) -> set[tuple[str, int, str | None]]:
    rows = await connection.fetch(f"select thread, seq, response_id from {schema}.usage_counted where counted")
    return {tuple(row) for row in rows}


async def test_a_response_counts_once_however_many_threads_hold_it(fresh_database: str) -> None:
    await migrate(fresh_database)
    settings = settings_of(fresh_database)
    original = answered("original", "r1", "r2", None)
    copy = answered("copy", "r1", "r2", "r3", start_ms=START_MS + DAY_MS)
    same_time = answered("a-copy-at-the-same-time", "r1")
    others = answered("of-others", "r1", tenant="other")
    live = await ensure_live(fresh_database, settings, "cluster")
    connection = await asyncpg.connect(fresh_database)
    try:
        await apply_all(live, settings, of_one_partition(original, copy, same_time, others), 1)
        expected = {
            ("a-copy-at-the-same-time", 5, "r1"),
            ("original", 7, "r2"),
            ("original", 9, None),
            ("copy", 9, "r3"),
            ("of-others", 5, "r1"),
        }
        assert await counted(connection, live.schema) == expected
        rebuilt = await another_generation(fresh_database, settings)
        await apply_all(rebuilt, settings, of_one_partition(others, copy, original, same_time), 1_000)
        assert await counted(connection, rebuilt.schema) == expected
        assert await connection.fetchval("select count(*) from views.usage") == 8
    finally:
        await connection.close()


async def test_of_a_response_that_was_told_in_parts_the_most_counts(fresh_database: str) -> None:
    """A snapshot of a session may end within a response, whose tokens it then knows in part."""
    await migrate(fresh_database)
    settings = settings_of(fresh_database)
    part = answered("part", "r1", tokens=Usage(input_tokens=1_000, output_tokens=1))
    nothing = answered("told-again-without-tokens", "r1", tokens=Usage())
    whole = answered("whole", "r1", start_ms=START_MS + DAY_MS)
    live = await ensure_live(fresh_database, settings, "cluster")
    connection = await asyncpg.connect(fresh_database)
    try:
        await apply_all(live, settings, of_one_partition(nothing, part, whole), 1)
        assert await counted(connection, live.schema) == {("whole", 5, "r1")}
    finally:
        await connection.close()


async def test_a_response_that_is_repeated_in_its_thread_counts_once(fresh_database: str) -> None:
    """Two owners had the same answer; both were appended."""
    await migrate(fresh_database)
    settings = settings_of(fresh_database)
    history = History(ThreadKey(TenantId("acme"), ThreadId("t"))).in_step()
    answer = histories.step_finished(history.state, "fine").model_copy(update={"response_id": "r1"})
    history.apply(answer)
    history.append(answer.model_copy(update={"stop_reason": "length"}))
    assert history.verdicts[-1].effect == "superseded"
    live = await ensure_live(fresh_database, settings, "cluster")
    await apply_all(live, settings, of_one_partition(history), 1)
    connection = await asyncpg.connect(fresh_database)
    try:
        assert await counted(connection, live.schema) == {("t", 5, "r1")}
    finally:
        await connection.close()


async def spend(place: Place, thread: str, response: str, model: str) -> str:
    """A turn of one answer. The position of its end."""
    await place.append(thread, histories.submitted(f"for {response}"), USER)
    await place.append(thread, histories.turn_started(place.state(thread)))
    await place.append(thread, histories.step_started(place.state(thread)))
    finished = histories.step_finished(place.state(thread), "fine")
    await place.append(thread, finished.model_copy(update={"response_id": response, "usage": TOKENS}))
    return await place.append(thread, histories.turn_ended(place.state(thread)))


async def test_the_api_adds_it_up_by_day_and_model(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    threads = {}
    for model in (LONG, "m-2", "m-2"):
        created = await client.post("/v1/threads?wait=applied", json={"config": {"model": model}})
        threads[created.json()["thread"]] = model
    shared = [await spend(place, thread, "shared", model) for thread, model in threads.items()]
    own = [await spend(place, thread, f"own-{thread}", model) for thread, model in threads.items()]
    for at_least in (*shared, *own):
        found = await client.get(f"/v1/usage?at_least={at_least}")
        assert found.status_code == 200, found.text
    by_model = {entry["model"]: entry for entry in found.json()["data"]}
    assert by_model.keys() == {LONG, "m-2"}
    first, second = by_model[LONG], by_model["m-2"]
    assert (first["responses"], first["input_tokens"], first["cached_tokens"]) == (2, 2_000, 40)
    assert (second["responses"], second["output_tokens"], second["reasoning_tokens"]) == (2, 100, 10)
    assert len(first["day"]) == len("2026-11-29")

    pages = [(await client.get("/v1/usage?limit=1")).json()]
    while pages[-1]["next_cursor"] is not None:
        pages.append((await client.get(f"/v1/usage?limit=1&cursor={pages[-1]['next_cursor']}")).json())
    assert [entry for page in pages for entry in page["data"]] == found.json()["data"]

    spent = [(await client.get(f"/v1/usage?thread={thread}")).json()["data"] for thread in threads]
    assert [sum(entry["responses"] for entry in entries) for entries in spent] == [2, 1, 1]
    until_then = await client.get("/v1/usage?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z")
    assert until_then.json() == {"data": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("query", "status", "slug"),
    [
        ("thread=nobody", 404, "thread-not-found"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", 422, "invalid-request"),
        ("from=2020-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", 422, "invalid-request"),
        ("from=yesterday", 422, "invalid-request"),
        ("cursor=WyJ4IiwibSJd", 400, "bad-cursor"),
        ("cursor=WzEsIm0iXQ", 400, "bad-cursor"),
    ],
)
async def test_what_cannot_be_asked_is_a_problem(place: Place, query: str, status: int, slug: str) -> None:
    await place.project()
    client = await place.ingest()
    answer = await client.get(f"/v1/usage?{query}")
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (status, slug), answer.text
