"""The ingest service on a real database: a simulated log, the real projector and the real live reader around it."""

import asyncio
import os
import signal
import sys

import asyncpg
import httpx2
import pytest

from schemas.topics import TOPICS
from services.chassis.kafka.topic_admin import apply, topic_specs
from services.chassis.kafka.topics import kafka_topics
from services.chassis.settings import Settings
from services.ingest.api_keys import KeyRequestError, create_key, revoke_key
from services.projector.generations.generations import ensure_live
from services.projector.settings import ProjectorSettings
from tests.support.recorded import histories
from tests.support.simulated.waiting import PATIENCE_SECONDS
from tests.support.worlds.ingest import SQL, Place, position

NOWHERE = "postgresql://threadlog@127.0.0.1:1/threadlog"


async def test_every_statement_can_be_prepared(place: Place) -> None:
    await ensure_live(place.dsn, ProjectorSettings(), "a cluster")
    connection = await asyncpg.connect(place.dsn)
    try:
        for name in SQL:
            await connection.prepare(SQL[name])
    finally:
        await connection.close()


# Commands


async def test_what_is_written_can_be_read(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    body = {"title": "One", "labels": {"team": "a"}, "config": {"model": "other"}, "input": {"text": "hello"}}
    created = await client.post("/v1/threads?wait=applied", json=body)
    assert created.status_code == 200, created.text
    thread = created.json()["thread"]
    assert [event["effect"] for event in created.json()["events"]] == ["applied", "applied"]

    read = await client.get(f"/v1/threads/{thread}?at_least={position(created)}")
    assert read.status_code == 200, read.text
    shown = read.json()
    assert (shown["title"], shown["labels"], shown["status"]) == ("One", {"team": "a"}, "active")
    assert (shown["seq"], shown["queued"], shown["config"]["model"]) == (2, 1, "other")
    assert shown["created_at"].endswith("Z") and len(shown["created_at"]) == len("2026-01-31T12:00:00.000Z")

    command = await client.get(f"/v1/threads/{thread}/commands/{created.json()['events'][1]['id']}")
    assert command.json() == {
        "thread": thread,
        "id": created.json()["input"],
        "type": "input.submitted",
        "seq": 2,
        "effect": "applied",
        "reason": None,
        "position": created.json()["position"],
    }
    for missing in ("nonsense", "00000000-0000-4000-8000-000000000000"):
        assert (await client.get(f"/v1/threads/{thread}/commands/{missing}")).status_code == 404


async def test_a_thread_that_was_just_created_can_be_read_at_once(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    for _ in range(5):
        thread = (await client.post("/v1/threads", json={})).json()["thread"]
        assert (await client.get(f"/v1/threads/{thread}")).status_code == 200


async def test_a_key_counts_once_across_processes(place: Place) -> None:
    await place.project()
    one, two = await place.ingest(), await place.ingest()
    keyed = {"idempotency-key": "k"}
    first = await one.post("/v1/threads?wait=applied", json={"input": {"text": "hi"}}, headers=keyed)
    thread = first.json()["thread"]
    await one.get(f"/v1/threads/{thread}?at_least={position(first)}")
    again = await two.post("/v1/threads?wait=applied", json={"input": {"text": "hi"}}, headers=keyed)
    assert again.json() == first.json()
    other = await two.post("/v1/threads", json={"input": {"text": "ho"}}, headers=keyed)
    assert other.status_code == 422
    assert place.state(thread).seq == 2
    # At the same time, before any view knows it: the fold counts it once.
    path, body = f"/v1/threads/{thread}/inputs?wait=applied", {"text": "x"}
    answers = await asyncio.gather(
        *[client.post(path, json=body, headers={"idempotency-key": "l"}) for client in (one, two, one, two)]
    )
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["seq"] for answer in answers}) == 1
    assert len(place.state(thread).queue) == 2


async def test_another_process_can_write_to_a_thread_before_the_views_know_it(place: Place) -> None:
    one, two = await place.ingest(), await place.ingest(views_wait_seconds=20)
    await ensure_live(place.dsn, ProjectorSettings(), await place.log.cluster_id())
    thread = (await one.post("/v1/threads", json={})).json()["thread"]
    writing = asyncio.create_task(two.post(f"/v1/threads/{thread}/inputs", json={"text": "x"}))
    await asyncio.sleep(0.1)
    assert not writing.done()
    await place.project()
    assert (await writing).status_code == 202


async def test_a_client_tools_result_waits_for_views_that_lag(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    thread = (await client.post("/v1/threads", json={"input": {"text": "book"}})).json()["thread"]
    await place.append(thread, histories.turn_started(place.state(thread)))
    await place.append(thread, histories.step_started(place.state(thread)))
    await place.append(thread, histories.step_finished(place.state(thread), calls=[histories.proposed(0, "book")]))
    await place.append(
        thread, histories.approved(place.state(thread).calls["1.1.0"], by="policy:never"), "policy:never"
    )
    await place.append(thread, histories.dispatched(place.state(thread).calls["1.1.0"], pool="client"))
    path = f"/v1/threads/{thread}/tool-calls/1.1.0/result"
    answer = await client.post(path, json={"outcome": "succeeded", "result": {"seat": 2}})
    assert answer.status_code == 200, answer.text
    read = await client.get(f"/v1/threads/{thread}/tool-calls?at_least={position(answer)}")
    [call] = read.json()["data"]
    assert (call["call"], call["status"], call["outcome"], call["args"]) == (
        "1.1.0",
        "settled",
        "succeeded",
        {"command": "run 0"},
    )
    late = await client.post(path, json={"outcome": "failed"})
    assert (late.status_code, late.json()["effect"]) == (409, "superseded")


# Reads


async def test_lists_are_cut_by_cursor(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    thread = (await client.post("/v1/threads", json={})).json()["thread"]
    at_least = ""
    for text in ("a", "b", "c"):
        await client.post(f"/v1/threads/{thread}/inputs", json={"text": text})
        await place.append(thread, histories.turn_started(place.state(thread)))
        await place.append(thread, histories.step_started(place.state(thread)))
        calls = [histories.proposed(0), histories.proposed(1)] if text == "c" else []
        finished = histories.step_finished(place.state(thread), text=text.upper(), calls=calls)
        at_least = await place.append(thread, finished)
        if not calls:
            at_least = await place.append(thread, histories.turn_ended(place.state(thread)))
    for name, column, expected in (
        ("turns", "turn", [1, 2, 3]),
        ("steps", "turn", [1, 2, 3]),
        ("tool-calls", "call", ["3.1.0", "3.1.1"]),
        ("items", "seq", None),
    ):
        whole = (await client.get(f"/v1/threads/{thread}/{name}?at_least={at_least}")).json()
        assert whole["next_cursor"] is None
        pages, cursor = [], ""
        while cursor is not None:
            page = (await client.get(f"/v1/threads/{thread}/{name}?limit=1{cursor}")).json()
            pages += page["data"]
            cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
        assert pages == whole["data"]
        if expected is not None:
            assert [row[column] for row in pages] == expected
    assert len(pages) >= 6
    assert pages[0]["content"] is not None


async def test_threads_are_listed_and_filtered(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    threads = []
    for number in range(3):
        labels = {"team": "a" if number else "b", "n": str(number)}
        created = await client.post("/v1/threads", json={"labels": labels})
        threads.append(created.json()["thread"])
        last = await client.patch(f"/v1/threads/{threads[-1]}", json={"archived": number == 2} | {"title": "x"})
        await client.get(f"/v1/threads?at_least={position(last)}")

    async def listed(query: str, tenant: str = "dev") -> list[str]:
        answer = await client.get(f"/v1/threads?{query}", headers={"x-threadlog-tenant": tenant})
        assert answer.status_code == 200, answer.text
        return [row["thread"] for row in answer.json()["data"]]

    assert sorted(await listed("")) == sorted(threads)
    assert await listed("", "other") == []
    assert sorted(await listed("label=team:a")) == sorted(threads[1:])
    assert await listed("label=team:a&label=n:2") == [threads[2]]
    assert await listed("archived=true") == [threads[2]]
    assert await listed("status=closed") == []
    assert len(await listed("updated_after=2020-01-01T00:00:00Z")) == 3
    assert await listed("updated_after=2099-01-01T00:00:00%2B02:00") == []
    first = (await client.get("/v1/threads?limit=2")).json()
    second = (await client.get(f"/v1/threads?limit=2&cursor={first['next_cursor']}")).json()
    assert [row["thread"] for row in first["data"] + second["data"]] == await listed("")
    assert second["next_cursor"] is None
    of_few = await place.ingest(threads_looked_at_max=2)
    none_yet = (await of_few.get("/v1/threads?label=n:0&limit=1")).json()
    rest = (await of_few.get(f"/v1/threads?label=n:0&limit=1&cursor={none_yet['next_cursor']}")).json()
    assert none_yet["data"] == [] and [row["thread"] for row in rest["data"]] == [threads[0]]
    assert rest["next_cursor"] is None


async def test_bad_reads_are_problems(place: Place) -> None:
    await place.project()
    client = await place.ingest(at_least_wait_seconds=0.05)
    thread = (await client.post("/v1/threads", json={})).json()["thread"]
    assert (await client.get(f"/v1/threads/{thread}/items?at_least=1")).status_code in {200, 503}
    for path, status, slug in (
        (f"/v1/threads/{thread}/items?cursor=x", 400, "bad-cursor"),
        ("/v1/threads?cursor=WzEsMl0", 400, "bad-cursor"),
        ("/v1/threads?cursor=WzEsIlx1MDAwMCJd", 400, "bad-cursor"),
        ("/v1/threads?at_least=x", 400, "bad-cursor"),
        ("/v1/threads?at_least=7", 400, "bad-cursor"),
        (f"/v1/threads/{thread}?at_least=0:999999", 503, "views-behind"),
        (f"/v1/threads/{thread}?at_least=999", 503, "views-behind"),
        (f"/v1/threads/{thread}/turns?limit=0", 422, "invalid-request"),
        ("/v1/threads?updated_after=yesterday", 422, "invalid-request"),
        ("/v1/threads?label=team", 422, "invalid-request"),
        ("/v1/threads?label=a:%00", 422, "invalid-request"),
        ("/v1/threads?status=open", 422, "invalid-request"),
        ("/v1/threads/never", 404, "thread-not-found"),
        ("/v1/threads/never/items", 404, "thread-not-found"),
        ("/v1/threads/%00/items", 404, "thread-not-found"),
    ):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (status, slug), path
        assert ("retry-after" in answer.headers) == (status == 503)


async def test_a_foreign_thread_cannot_be_told_from_none(place: Place) -> None:
    await place.project()
    client = await place.ingest()
    created = await client.post("/v1/threads?wait=applied", json={"input": {"text": "secret"}})
    thread, mallory = created.json()["thread"], {"x-threadlog-tenant": "umbrella"}
    await client.get(f"/v1/threads/{thread}?at_least={position(created)}")
    for below in ("", "/items", "/turns", "/steps", "/tool-calls", f"/commands/{created.json()['input']}"):
        foreign = await client.get(f"/v1/threads/{thread}{below}", headers=mallory)
        never = await client.get(f"/v1/threads/never{below}", headers=mallory)
        assert foreign.status_code == 404
        assert foreign.content == never.content


async def test_without_a_database_reads_wait_and_writes_go_on(place: Place) -> None:
    client = await place.ingest(NOWHERE)
    created = await client.post("/v1/threads?wait=applied", json={"input": {"text": "hi"}})
    assert created.status_code == 200, created.text
    thread = created.json()["thread"]
    written = await client.post(f"/v1/threads/{thread}/inputs", json={"text": "x"}, headers={"idempotency-key": "k"})
    assert written.status_code == 202
    for path in ("/v1/threads", f"/v1/threads/{thread}", f"/v1/threads/{thread}/items", "/v1/threads/other"):
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_without_views_reads_say_so(place: Place) -> None:
    answer = await (await place.ingest()).get("/v1/threads")
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "There are no views yet; the projector makes them when it starts.",
    )


# Keys


async def test_keys_are_made_used_and_revoked(place: Place) -> None:
    await place.project()
    client = await place.ingest(ingest_auth="keys", ingest_key_cache_seconds=0.05)
    connection = await asyncpg.connect(place.dsn)
    try:
        scopes = ["threads:write", "threads:read"]
        key = await create_key(connection, SQL, tenant="acme", subject="ann@example.com", scopes=scopes)
        reader = await create_key(connection, SQL, tenant="acme", subject="bot", scopes=["threads:read"])
        headers = {"authorization": f"Bearer {key}"}
        created = await client.post("/v1/threads?wait=applied", json={}, headers=headers)
        assert created.status_code == 200, created.text
        path = f"/v1/threads/{created.json()['thread']}?at_least={position(created)}"
        assert (await client.get(path, headers={"authorization": f"Bearer {reader}"})).status_code == 200
        forbidden = await client.post("/v1/threads", json={}, headers={"authorization": f"Bearer {reader}"})
        assert (forbidden.status_code, "threads:write" in forbidden.json()["detail"]) == (403, True)
        assert (await client.get("/v1/threads")).status_code == 401
        # Development's headers mean nothing here.
        assert (await client.get("/v1/threads", headers={"x-threadlog-tenant": "acme"})).status_code == 401
        stored = await connection.fetch("select * from ingest.api_keys")
        assert not any(key.split("_", 2)[2] in str(row) for row in stored)
        assert await revoke_key(connection, SQL, key.split("_")[1])
        assert not await revoke_key(connection, SQL, key.split("_")[1])
        await asyncio.sleep(0.1)
        assert (await client.get(path, headers=headers)).status_code == 401
        for wrong in ({"tenant": "a/b"}, {"subject": "a b"}, {"scopes": []}, {"scopes": ["all"]}):
            with pytest.raises(KeyRequestError):
                await create_key(connection, SQL, **({"tenant": "acme", "subject": "ann", "scopes": ["ops"]} | wrong))
    finally:
        await connection.close()


# The process


async def start(**environment: str) -> asyncio.subprocess.Process:
    given = {name: value for name, value in os.environ.items() if not name.startswith("THREADLOG_")}
    given |= {f"THREADLOG_{name}": value for name, value in environment.items()}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.ingest", env=given, stderr=asyncio.subprocess.PIPE
    )


async def test_dev_mode_does_not_start_where_others_can_reach_it() -> None:
    process = await start(INGEST_AUTH="dev", INGEST_HOST="0.0.0.0")
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.decode().startswith("THREADLOG_INGEST_AUTH=dev lets everybody act for every tenant")


async def test_the_process_serves_and_stops(kafka_bootstrap: str, place: Place) -> None:
    settings = Settings(kafka_bootstrap_servers=kafka_bootstrap)
    async with kafka_topics(settings) as topics:
        await apply(topics, topic_specs(TOPICS, settings.topic_partitions, 1))
    process = await start(
        KAFKA_BOOTSTRAP_SERVERS=kafka_bootstrap,
        KAFKA_IDEMPOTENCE="false",
        POSTGRES_DSN=place.dsn,
        INGEST_AUTH="dev",
        INGEST_PORT="0",
        INSTANCE="test",
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = None
            while port is None:
                line = (await process.stderr.readline()).decode()
                assert line, "it ended"
                if '"http_listening"' in line:
                    port = int(line.partition('"port":')[2].partition(",")[0].partition("}")[0])
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                created = await client.post("/v1/threads?wait=applied", json={"input": {"text": "hi"}})
                assert created.status_code == 200, created.text
                assert (await client.get("/v1/openapi.json")).json()["info"]["title"] == "threadlog"
            process.send_signal(signal.SIGTERM)
            await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
