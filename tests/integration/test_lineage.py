"""Forks, rewinds and requests for summaries over HTTP: on a real database, with the real projector and live reader."""

from typing import Any

import httpx2

from schemas.config import Config
from schemas.events import Lineage, ThreadCreated, ThreadImportStarted
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import ThreadState
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Outgoing
from services.ingest.reads.state_at import StateLimits
from tests.support.recorded import histories
from tests.support.recorded.histories import proposed, step_finished, step_started, turn_ended, turn_started
from tests.support.worlds.ingest import PARTITIONS, Place, position

Json = dict[str, Any]


async def open_place(place: Place) -> httpx2.AsyncClient:
    await place.project()
    return await place.ingest()


async def ends_a_turn(place: Place, thread: str) -> None:
    for event in (turn_started, step_started, lambda state: step_finished(state, "done"), turn_ended):
        await place.append(thread, event(place.state(thread)))


async def with_a_turn(place: Place, client: httpx2.AsyncClient, **body: Any) -> str:
    created = await client.post("/v1/threads?wait=applied", json={"input": {"text": "first"}, **body})
    thread = str(created.json()["thread"])
    await ends_a_turn(place, thread)
    return thread


async def fork(client: httpx2.AsyncClient, thread: str, status: int = 200, key: str | None = None, **body: Any) -> Json:
    headers = {} if key is None else {"idempotency-key": key}
    answer = await client.post(f"/v1/threads/{thread}/fork", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    shown: Json = answer.json()
    if status == 200:
        shown["position"] = position(answer)
    return shown


async def context(client: httpx2.AsyncClient, thread: str, at_least: str | None = None) -> list[str]:
    """The texts that a model would be shown."""
    query = "" if at_least is None else f"?at_least={at_least}"
    answer = await client.get(f"/v1/threads/{thread}/state{query}")
    assert answer.status_code == 200, answer.text
    items = answer.json()["context"]["items"]
    return [item["content"]["content"][0]["text"] for item in items if item["kind"] == "message"]


async def test_a_fork_names_its_parent_and_takes_its_configuration(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client, config={"model": "one", "instructions": "Be brief."})
    made = await fork(
        client, thread, title="Other", labels={"a": "b"}, config={"model": "two"}, input={"text": "go on"}
    )
    state = place.state(thread)
    assert made["fork"] == {"parent": thread, "seq": state.seq, "open_turn": None, "note": None}
    assert [event["effect"] for event in made["events"]] == ["applied", "applied"]
    forked = place.state(made["thread"])
    assert forked.lineage == Lineage(kind="fork", parent=thread, seq=state.seq, chain=state.chain)
    assert forked.config is not None
    assert (forked.config.model, forked.config.instructions) == ("two", "Be brief.")
    read = (await client.get(f"/v1/threads/{made['thread']}?at_least={made['position']}")).json()
    assert (read["title"], read["labels"], read["queued"]) == ("Other", {"a": "b"}, 1)
    assert (read["lineage_kind"], read["parent"], read["parent_seq"], read["depth"]) == ("fork", thread, state.seq, 0)


async def test_a_fork_shows_what_its_parent_showed_at_that_seq_and_a_fork_of_it_too(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client)
    first = await fork(client, thread, at={"turn": 1}, input={"text": "second"})
    await ends_a_turn(place, first["thread"])
    second = await fork(client, first["thread"], input={"text": "third"})
    await ends_a_turn(place, second["thread"])
    await client.post(f"/v1/threads/{thread}/inputs", json={"text": "of the parent"})
    await ends_a_turn(place, thread)
    newest = (await client.post(f"/v1/threads/{second['thread']}/rewind?wait=applied", json={"to_turn": 1})).json()
    at = f"{newest['position']['partition']}:{newest['position']['offset']}"
    assert await context(client, second["thread"], at) == ["first", "done", "second", "done", "third", "done"]
    earlier = await client.get(f"/v1/threads/{second['thread']}/state?at=2")
    items = earlier.json()["context"]["items"]
    assert [item["thread"] for item in items] == [thread, thread, first["thread"], first["thread"]]
    assert earlier.json()["context"]["count"] == 4


async def test_a_fork_of_an_open_turn_takes_what_is_settled_and_says_so(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client)
    await client.post(f"/v1/threads/{thread}/inputs", json={"text": "second"})
    await place.append(thread, turn_started(place.state(thread)))
    settled = place.state(thread)
    await place.append(thread, step_started(place.state(thread)))
    made = await fork(client, thread)
    assert made["fork"]["seq"] == settled.seq
    assert made["fork"]["open_turn"] == 2
    assert "Turn 2 was open" in made["fork"]["note"]
    await place.append(thread, step_finished(place.state(thread), "see", [proposed(0)]))
    state = place.state(thread)
    asked = await fork(client, thread, at={"seq": state.seq})
    assert asked["fork"]["seq"] == settled.seq
    assert f"At seq {state.seq} a step was under way" in asked["fork"]["note"]
    assert (await fork(client, thread, at={"turn": 2}))["fork"]["seq"] == settled.seq
    assert (await fork(client, thread, at={"turn": 1}))["fork"]["open_turn"] is None
    assert place.state(made["thread"]).turn is None


async def test_the_configuration_is_that_of_the_seq(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client, config={"model": "one", "model_settings": {"temperature": 1.0}})
    before = place.state(thread)
    for patch in ({"instructions": "second"}, {"instructions": "third", "model": "two"}):
        await client.patch(f"/v1/threads/{thread}?wait=applied", json={"config": patch})
    made = [(await fork(client, thread, at={"seq": before.seq + number}))["thread"] for number in range(3)]
    configs = [place.state(thread).config for thread in made]
    assert [(each.model, each.instructions) for each in configs if each is not None] == [
        ("one", None),
        ("one", "second"),
        ("two", "third"),
    ]
    assert configs[0] == before.config


async def test_the_same_key_makes_one_fork_at_one_seq_whatever_the_parent_has_come_to(place: Place) -> None:
    client = await open_place(place)
    other = await place.ingest()
    thread = await with_a_turn(place, client)
    first = await fork(client, thread, key="k", input={"text": "go on"})
    await client.patch(f"/v1/threads/{thread}?wait=applied", json={"config": {"model": "another"}})
    await client.post(f"/v1/threads/{thread}/inputs?wait=applied", json={"text": "second"})
    await ends_a_turn(place, thread)
    for process in (client, other):
        again = await fork(process, thread, key="k", input={"text": "go on"})
        assert (again["thread"], again["fork"], again["events"]) == (first["thread"], first["fork"], first["events"])
        conflict = await fork(process, thread, 422, key="k", input={"text": "go another way"})
        assert conflict["type"].endswith("/idempotency-conflict")
    assert place.state(first["thread"]).seq == 2
    assert (await fork(client, thread, key="l"))["fork"]["seq"] > first["fork"]["seq"]


async def test_a_closed_or_archived_thread_can_be_forked_and_one_that_is_being_imported_cannot(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client)
    await client.patch(f"/v1/threads/{thread}?wait=applied", json={"archived": True})
    await fork(client, thread)
    await client.post(f"/v1/threads/{thread}/close?wait=applied")
    made = await fork(client, thread, input={"text": "go on"})
    forked = place.state(made["thread"])
    assert (forked.status, forked.archived, len(forked.queue)) == ("active", False, 1)

    imported = "b31d7c7e-3d1c-4a52-8b5a-6a5ab4a64a3d"
    await place.append(imported, ThreadCreated(config=Config(model="m"), importing=True), "import:codex")
    await place.append(imported, ThreadImportStarted(source="s"), "import:codex")
    refused = await fork(client, imported, 409)
    assert (refused["type"].rpartition("/")[2], refused["detail"]) == ("not-forkable", "The thread is being imported.")


async def test_a_place_that_is_not_there_is_refused_and_nothing_is_made(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client)
    state = place.state(thread)
    for at in ({"seq": state.seq + 1}, {"turn": 2}, {"seq": 2**53 - 1}):
        refused = await fork(client, thread, 422, at=at)
        assert refused["type"].endswith("/fork-point"), refused
    bodies: list[Json] = [{"at": {}}, {"at": {"seq": 1, "turn": 1}}, {"at": {"seq": 0}}, {"config": {"model": 3}}]
    for body in (*bodies, {"to": 1}):
        refused = await fork(client, thread, 422, **body)
        assert refused["type"].endswith("/invalid-request"), refused
    await place.append("other", ThreadCreated(config=Config(model="m")), "user:ann")
    listed = (await client.get("/v1/threads")).json()["data"]
    assert {row["thread"] for row in listed} <= {thread, "other"}


async def test_another_tenants_thread_is_the_same_as_none(place: Place) -> None:
    client = await open_place(place)
    theirs = ThreadKey(TenantId("theirs"), ThreadId("t-1"))
    history = histories.History(theirs)
    made = history.apply(histories.created(), "user:eve")
    partition = place.log.partition_for(theirs.to_bytes(), PARTITIONS)
    await place.log.appender.append(
        THREAD_EVENTS.name, partition, [Outgoing(theirs.to_bytes(), made.value, made.headers)]
    )
    bodies: list[tuple[str, Json]] = [("fork", {"at": {"seq": 1}}), ("rewind", {"to_turn": 1}), ("compact", {})]
    for path, body in bodies:
        answers = [await client.post(f"/v1/threads/{thread}/{path}", json=body) for thread in ("t-1", "none")]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content


async def test_a_rewind_takes_later_turns_out_of_the_context_and_waits_for_no_open_turn(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client)
    await client.post(f"/v1/threads/{thread}/inputs?wait=applied", json={"text": "second"})
    await ends_a_turn(place, thread)
    rewound = await client.post(f"/v1/threads/{thread}/rewind", json={"to_turn": 1}, headers={"idempotency-key": "k"})
    assert rewound.status_code == 200, rewound.text
    assert await context(client, thread, position(rewound)) == ["first", "done"]
    again = await client.post(f"/v1/threads/{thread}/rewind", json={"to_turn": 1}, headers={"idempotency-key": "k"})
    assert again.json() == rewound.json()
    made = await fork(client, thread, at={"turn": 2})
    assert await context(client, made["thread"], made["position"]) == ["first", "done", "second", "done"]
    for to_turn, reason in ((3, "there is no turn 3"), (None, None)):
        refused = await client.post(f"/v1/threads/{thread}/rewind", json={"to_turn": to_turn})
        assert refused.status_code == (409 if reason else 422)
        assert reason is None or reason in refused.json()["detail"]
    await client.post(f"/v1/threads/{thread}/inputs?wait=applied", json={"text": "third"})
    await place.append(thread, turn_started(place.state(thread)))
    refused = await client.post(f"/v1/threads/{thread}/rewind", json={"to_turn": 0})
    assert (refused.status_code, "turn 3 is open" in refused.json()["detail"]) == (409, True)


async def test_a_summary_is_asked_for_once_and_not_while_a_step_is_open(place: Place) -> None:
    client = await open_place(place)
    thread = await with_a_turn(place, client)
    for effect in ("applied", "superseded"):
        asked = await client.post(f"/v1/threads/{thread}/compact")
        assert (asked.status_code, asked.json()["effect"]) == (200, effect)
    state: ThreadState = place.state(thread)
    assert state.compaction_requested
    other = (await client.post("/v1/threads?wait=applied", json={"input": {"text": "x"}})).json()["thread"]
    await place.append(other, turn_started(place.state(other)))
    await place.append(other, step_started(place.state(other)))
    refused = await client.post(f"/v1/threads/{other}/compact", json={})
    assert (refused.status_code, "a step is open" in refused.json()["detail"]) == (409, True)


async def test_no_more_of_what_a_fork_inherits_is_shown_than_a_limit_allows(place: Place) -> None:
    client = await open_place(place)
    limits = (StateLimits(items_max=3), StateLimits(bytes_max=1_024))
    bounded = [await place.ingest(state=limit) for limit in limits]
    thread = await with_a_turn(place, client, input={"text": "long " * 300})
    first = await fork(client, thread, input={"text": "second"})
    await ends_a_turn(place, first["thread"])
    second = await fork(client, first["thread"])
    assert len(await context(client, second["thread"], second["position"])) == 4
    for process in bounded:
        for query in ("", "?at=1"):
            refused = await process.get(f"/v1/threads/{second['thread']}/state{query}")
            assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (422, "state-out-of-reach")
