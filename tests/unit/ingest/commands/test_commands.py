"""The HTTP API as a client sees it, on a simulated log."""

import asyncio

import pytest
from pydantic import JsonValue

from services.chassis.log.port import LogUnavailableError
from services.ingest.http.problems import VIEWS_UNAVAILABLE
from tests.unit.ingest.threads import in_turn, slug
from tests.unit.ingest.world import World

# Answers


async def test_a_command_is_answered_once_it_is_in_the_log() -> None:
    world = World()
    answer = await world.post("/v1/threads", {"title": "One", "input": {"text": "hello"}})
    assert answer.status_code == 202
    body = answer.json()
    [(created, _, _), (submitted, _, state)] = world.folded(body["thread"])
    assert body == {
        "thread": body["thread"],
        "input": submitted.id,
        "events": [
            {"id": created.id, "type": "thread.created"},
            {"id": submitted.id, "type": "input.submitted"},
        ],
        "position": {"partition": world.known.partition(world.key(body["thread"])), "offset": submitted.offset},
    }
    assert created.actor == "user:dev"
    assert created.source == "ingest/test"
    assert state.title == "One"
    assert [item.input for item in state.queue] == [submitted.id]
    assert world.views.asked == []


async def test_waiting_shows_what_the_fold_made_of_it() -> None:
    world = World()
    answer = await world.post("/v1/threads?wait=applied", {"input": {"text": "hello"}})
    assert answer.status_code == 200
    body = answer.json()
    assert [event["seq"] for event in body["events"]] == [1, 2]
    assert (body["seq"], body["effect"], body["reason"]) == (2, "applied", None)
    assert "undecided" not in body


async def test_what_took_no_effect_is_a_conflict_with_the_reason() -> None:
    world = World()
    thread = await in_turn(world)
    answer = await world.post(f"/v1/threads/{thread}/inputs", {"text": "no", "mode": "reject"})
    assert answer.status_code == 409
    body = answer.json()
    assert slug(body) == "not-applied"
    assert (body["effect"], body["reason"], body["seq"]) == ("rejected", "a turn is open", 4)
    assert body["events"][0]["effect"] == "rejected"


async def test_an_expected_turn_is_judged() -> None:
    world = World()
    thread = await in_turn(world)
    path = f"/v1/threads/{thread}/inputs"
    good = await world.post(path, {"text": "yes", "mode": "steer", "expected_turn": 1})
    bad = await world.post(path, {"text": "no", "mode": "steer", "expected_turn": 2})
    assert (good.status_code, good.json()["effect"]) == (200, "applied")
    assert (bad.status_code, bad.json()["reason"]) == (409, "turn 2 is not open")


async def test_an_undecided_command_says_how_to_ask_again() -> None:
    world = World()
    thread = await world.created()
    world.verdicts.is_silent = True
    answer = await world.post(f"/v1/threads/{thread}/inputs", {"text": "x", "mode": "reject"})
    assert answer.status_code == 202
    body = answer.json()
    assert body["undecided"] is True
    assert body["ask"] == f"/v1/threads/{thread}/commands/{body['events'][0]['id']}"
    assert "effect" not in body


async def test_everything_of_a_patch_is_told() -> None:
    world = World()
    thread = await world.created({"title": "Old"})
    answer = await world.client.patch(
        f"/v1/threads/{thread}?wait=applied",
        json={"title": None, "labels": {"a": "b"}, "archived": True, "config": {"model": "other"}},
    )
    assert answer.status_code == 200
    assert [event["type"] for event in answer.json()["events"]] == [
        "thread.described",
        "thread.configured",
        "thread.archived",
    ]
    state = world.state(thread)
    assert (state.title, state.labels, state.archived) == (None, {"a": "b"}, True)
    assert state.config is not None
    assert state.config.model == "other"


async def test_turns_are_cancelled_inputs_withdrawn_threads_closed() -> None:
    world = World()
    thread = await in_turn(world)
    waiting = (await world.post(f"/v1/threads/{thread}/inputs", {"text": "later"})).json()["input"]
    withdrawn = await world.post(f"/v1/threads/{thread}/inputs/{waiting}/withdraw")
    cancelled = await world.client.post(f"/v1/threads/{thread}/turns/1/cancel")
    closed = await world.client.post(f"/v1/threads/{thread}/close?wait=applied")
    assert [answer.status_code for answer in (withdrawn, cancelled, closed)] == [200, 200, 200]
    assert [answer.json()["effect"] for answer in (withdrawn, cancelled, closed)] == ["applied"] * 3
    assert world.state(thread).status == "closing"


# Idempotency


async def test_the_same_key_and_body_are_answered_alike() -> None:
    world = World()
    answers = [await world.post("/v1/threads", {"input": {"text": "hi"}}, key="k") for _ in range(3)]
    assert len({answer.text for answer in answers}) == 1
    assert {answer.status_code for answer in answers} == {202}
    assert len(world.folded(answers[0].json()["thread"])) == 2


async def test_the_same_key_and_another_body_are_refused() -> None:
    world = World()
    thread = await world.created()
    path = f"/v1/threads/{thread}/inputs"
    assert (await world.post(path, {"text": "one"}, key="k")).status_code == 202
    answer = await world.post(path, {"text": "two"}, key="k")
    assert (answer.status_code, slug(answer.json())) == (422, "idempotency-conflict")
    assert (await world.post(path, {"text": "two"}, key="l")).status_code == 202


async def test_another_process_finds_a_command_in_the_views() -> None:
    world = World(recent_commands_max=0)
    thread = await world.created()
    path = f"/v1/threads/{thread}/inputs?wait=applied"
    first = await world.post(path, {"text": "one"}, key="k")
    again = await world.post(path, {"text": "one"}, key="k")
    other = await world.post(path, {"text": "two"}, key="k")
    assert first.json() == again.json()
    assert (other.status_code, slug(other.json())) == (422, "idempotency-conflict")
    assert len(world.folded(thread)) == 2


@pytest.mark.parametrize("recent", [0, 100])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"input": {"text": "hi"}}),
        ({"input": {"text": "hi"}}, {}),
        ({"title": "a"}, {"title": "b"}),
        ({"input": {"text": "hi"}}, {"input": {"text": "ho"}}),
    ],
)
async def test_no_other_body_passes_for_the_same_command(first: JsonValue, second: JsonValue, recent: int) -> None:
    world = World(recent_commands_max=recent)
    thread = (await world.post("/v1/threads", first, key="k")).json()["thread"]
    before = len(world.folded(thread))
    answer = await world.post("/v1/threads", second, key="k")
    assert (answer.status_code, slug(answer.json())) == (422, "idempotency-conflict")
    assert len(world.folded(thread)) == before
    await world.client.patch(f"/v1/threads/{thread}", json={"title": "t"}, headers={"idempotency-key": "p"})
    other = await world.client.patch(f"/v1/threads/{thread}", json={"archived": True}, headers={"idempotency-key": "p"})
    assert other.status_code == 422


async def test_a_command_that_the_views_hold_in_part_is_waited_for() -> None:
    world = World(recent_commands_max=0)
    body: JsonValue = {"input": {"text": "hi"}}
    first = await world.post("/v1/threads", body, key="k")
    world.views.held_at = first.json()["position"]["offset"]
    behind = await world.post("/v1/threads", body, key="k")
    assert (behind.status_code, slug(behind.json())) == (503, "views-behind")
    world.views.held_at = None
    assert (await world.post("/v1/threads", body, key="k")).json()["events"] == first.json()["events"]
    assert len(world.folded(first.json()["thread"])) == 2


async def test_the_fold_finds_what_the_views_do_not_hold_yet() -> None:
    world = World(recent_commands_max=0)
    thread = await world.created()
    world.views.held_at = 0
    path = f"/v1/threads/{thread}/inputs"
    first = await world.post(path, {"text": "one"}, key="k")
    second = await world.post(path, {"text": "one"}, key="k")
    assert first.json()["events"] == second.json()["events"]
    assert [verdict.effect for _, verdict, _ in world.folded(thread)] == ["applied", "applied", "duplicate"]
    other = await world.post(path + "?wait=applied", {"text": "two"}, key="k")
    assert (other.status_code, slug(other.json())) == (422, "idempotency-conflict")


async def test_a_duplicate_is_answered_as_the_first_was() -> None:
    world = World(recent_commands_max=0)
    thread = await in_turn(world)
    path = f"/v1/threads/{thread}/inputs"
    body: JsonValue = {"text": "no", "mode": "reject"}
    first = await world.post(path, body, key="k")
    # The views hold the first only once the second is in the log.
    real, world.views.find = world.views.find, _finds_nothing_once(world)  # type: ignore[method-assign]
    again = await world.post(path, body, key="k")
    assert world.views.find == real
    assert (first.status_code, again.status_code) == (409, 409)
    assert first.json() == again.json()
    assert world.folded(thread)[-1][1].effect == "duplicate"


def _finds_nothing_once(world: World) -> object:
    real = world.views.find

    async def find(*arguments: object) -> object:
        world.views.find = real  # type: ignore[method-assign]
        found = await real(*arguments)  # type: ignore[arg-type]
        return found._replace(first={})

    return find


async def test_a_duplicate_whose_first_is_not_to_be_found_is_undecided() -> None:
    world = World(recent_commands_max=0)
    thread = await world.created()
    world.views.held_at = 0
    path = f"/v1/threads/{thread}/inputs?wait=applied"
    await world.post(path, {"text": "one"}, key="k")
    again = await world.post(path, {"text": "one"}, key="k")
    assert (again.status_code, again.json()["undecided"]) == (202, True)


async def test_without_a_database_the_fold_alone_sees_duplicates() -> None:
    world = World(recent_commands_max=0)
    thread = await world.created()
    world.views.is_away = True
    path = f"/v1/threads/{thread}/inputs"
    assert (await world.post(path, {"text": "one"}, key="k")).status_code == 202
    assert (await world.post(path, {"text": "one"}, key="k")).status_code == 202
    assert [verdict.effect for _, verdict, _ in world.folded(thread)] == ["applied", "applied", "duplicate"]
    waited = await world.post(path + "?wait=applied", {"text": "one"}, key="k")
    assert (waited.status_code, waited.json()["undecided"]) == (202, True)
    assert world.registry.get_sample_value("threadlog_ingest_lookups_skipped_total") == 3


async def test_a_new_thread_can_be_folded_from_where_it_begins() -> None:
    world = World()
    drawn = await world.created()
    keyed = (await world.post("/v1/threads", key="k")).json()["thread"]
    assert world.verdicts.created == {
        world.key(drawn): world.folded(drawn)[0][0].offset,
        world.key(keyed): world.folded(keyed)[0][0].offset,
    }


# Refusals


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "inputs", {"text": "x"}),
        ("POST", "inputs/i1/withdraw", {}),
        ("POST", "turns/1/cancel", {}),
        ("POST", "close", {}),
        ("PATCH", "", {"title": "x"}),
        ("POST", "tool-calls/1.1.0/decision", {"decision": "approve", "call_hash": "a" * 64}),
        ("POST", "tool-calls/1.1.0/result", {"outcome": "failed"}),
        ("POST", "tool-calls/1.1.0/resolution", {"decision": "abandoned", "attempt": 1, "note": "lost"}),
    ],
)
async def test_a_foreign_thread_answers_as_one_that_never_was(method: str, path: str, body: JsonValue) -> None:
    world = World()
    thread = await world.created()
    mallory = {"x-threadlog-tenant": "umbrella"}
    foreign = await world.client.request(method, f"/v1/threads/{thread}/{path}".rstrip("/"), json=body, headers=mallory)
    never = await world.client.request(method, f"/v1/threads/never/{path}".rstrip("/"), json=body, headers=mallory)
    unnamed = await world.client.request(method, f"/v1/threads/%00/{path}".rstrip("/"), json=body, headers=mallory)
    assert foreign.status_code == 404
    assert foreign.content == never.content == unnamed.content
    assert foreign.headers == never.headers
    assert len(world.folded(thread)) == 1


async def test_bad_requests_are_problems() -> None:
    world = World()
    thread = await world.created()
    post = world.client.post
    answers = [
        (await post("/v1/threads", content=b"{", headers={"content-type": "application/json"}), 400, "malformed-json"),
        (await post("/v1/threads", content=b"{}"), 415, "unsupported-media-type"),
        (await post("/v1/threads", json={"titel": "x"}), 422, "invalid-request"),
        (await post("/v1/threads?wait=seen", json={}), 422, "invalid-request"),
        (await post(f"/v1/threads/{thread}/turns/0/cancel", json={}), 404, "not-found"),
        (await post(f"/v1/threads/{thread}/turns/one/cancel", json={}), 404, "not-found"),
        (await post("/v1/threads", json={}, headers={"idempotency-key": "a b"}), 400, "malformed-idempotency-key"),
        (await post(f"/v1/threads/{thread}/inputs", json={"text": "\x00"}), 422, "unstorable"),
        (await post(f"/v1/threads/{thread}/inputs", json={"text": "x" * 300_000}), 413, "too-large"),
        (await post(f"/v1/threads/{thread}/inputs", json={"text": "x" * 3_000_000}), 413, "too-large"),
        (await post(f"/v1/threads/{thread}/inputs/a%20b/withdraw", json={}), 404, "not-found"),
        (await post(f"/v1/threads/{thread}/tool-calls/1.1/result", json={"outcome": "failed"}), 404, "not-found"),
        (await post("/v1/nothing", json={}), 404, "not-found"),
        (await world.client.put("/v1/threads", json={}), 405, "method-not-allowed"),
        (await post("/v1/threads", json={}, headers={"host": "evil.example"}), 403, "foreign-host"),
    ]
    for answer, status, name in answers:
        assert (answer.status_code, slug(answer.json())) == (status, name), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    assert len(world.folded(thread)) == 1


async def test_a_record_above_the_limit_is_refused() -> None:
    world = World(record_bytes_max=2_000)
    answer = await world.post("/v1/threads", {"config": {"instructions": "x" * 3_000}})
    assert (answer.status_code, slug(answer.json())) == (413, "too-large")


async def test_a_full_queue_is_refused_unless_the_key_is_known() -> None:
    world = World(ingest_queue_inputs_max=2)
    thread = await world.created()
    path = f"/v1/threads/{thread}/inputs"
    first = await world.post(path, {"text": "a"}, key="a")
    await world.post(path, {"text": "b"})
    full = await world.post(path, {"text": "c"})
    assert (full.status_code, slug(full.json())) == (429, "queue-full")
    assert int(full.headers["retry-after"]) > 0
    assert (await world.post(path, {"text": "a"}, key="a")).json() == first.json()


async def test_one_tenant_does_not_fill_the_outbox() -> None:
    world = World(ingest_appends_per_tenant_max=1)
    one, two = await asyncio.gather(world.post("/v1/threads"), world.post("/v1/threads"))
    other = await world.post("/v1/threads", headers={"x-threadlog-tenant": "other"})
    assert sorted([one.status_code, two.status_code]) == [202, 429]
    assert other.status_code == 202
    assert (await world.post("/v1/threads")).status_code == 202
    assert not world.commands._under_way


async def test_too_many_requests_at_once_are_refused() -> None:
    world = World(ingest_requests_max=1)
    one, two = await asyncio.gather(world.post("/v1/threads"), world.post("/v1/threads"))
    assert sorted([one.status_code, two.status_code]) == [202, 503]
    assert (await world.post("/v1/threads")).status_code == 202
    assert world.registry.get_sample_value("threadlog_ingest_requests_refused_total") == 1
    labels = {"method": "POST", "status": "202"}
    assert world.registry.get_sample_value("threadlog_ingest_requests_total", labels) == 2


async def test_a_log_that_does_not_answer_is_a_problem() -> None:
    world = World()

    def fails(*_arguments: object) -> asyncio.Future[tuple[int, ...]]:
        future: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        future.set_exception(LogUnavailableError("no acknowledgement"))
        return future

    world.log.appender.append = fails  # type: ignore[method-assign]
    answer = await world.post("/v1/threads")
    assert (answer.status_code, slug(answer.json())) == (503, "log-unavailable")
    assert not world.commands._under_way


async def test_a_failure_is_a_problem_too() -> None:
    world = World()

    def fails(*_arguments: object) -> None:
        raise ZeroDivisionError

    world.log.appender.append = fails  # type: ignore[assignment, method-assign]
    answer = await world.post("/v1/threads")
    assert (answer.status_code, slug(answer.json())) == (500, "internal")
    assert "ZeroDivision" not in answer.text


async def test_writes_to_known_threads_go_on_without_a_database() -> None:
    world = World()
    thread = await world.created()
    world.views.is_away = True
    assert (await world.post(f"/v1/threads/{thread}/inputs", {"text": "x"})).status_code == 202
    assert (await world.post("/v1/threads")).status_code == 202
    unknown = await world.post("/v1/threads/unknown/inputs", {"text": "x"})
    assert (unknown.status_code, slug(unknown.json())) == (503, VIEWS_UNAVAILABLE.slug)
