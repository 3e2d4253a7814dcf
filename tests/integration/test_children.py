"""Child threads over HTTP: begun by a backend, listed, shown; on a real database with the real projector."""

from typing import Any

import httpx2
import pytest

from schemas.config import Config
from schemas.config import Limits as OwnLimits
from schemas.events import Lineage, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.runtime.deciding.children import Origin, child_of
from tests.support.recorded.histories import proposed, step_finished, step_started, turn_started
from tests.support.worlds.ingest import Place, position

Json = dict[str, Any]


async def open_place(place: Place) -> httpx2.AsyncClient:
    await place.project()
    return await place.ingest()


async def thread_of(client: httpx2.AsyncClient, **body: Any) -> str:
    answer = await client.post("/v1/threads?wait=applied", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["thread"])


async def beget(
    client: httpx2.AsyncClient, thread: str, status: int = 200, key: str | None = None, **body: Any
) -> Json:
    headers = {} if key is None else {"idempotency-key": key}
    answer = await client.post(f"/v1/threads/{thread}/children?wait=applied", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    shown: Json = answer.json()
    return {**shown, "at": position(answer)} if status == 200 else shown


async def children(client: httpx2.AsyncClient, thread: str, query: str = "") -> Json:
    answer = await client.get(f"/v1/threads/{thread}/children{query}")
    assert answer.status_code == 200, answer.text
    shown: Json = answer.json()
    return shown


async def test_a_child_has_its_parents_configuration_and_its_place_below_it(place: Place) -> None:
    client = await open_place(place)
    thread = await thread_of(client, config={"model": "one", "instructions": "Be brief."})
    state = place.state(thread)
    made = await beget(client, thread, title="Helper", labels={"a": "b"}, config={"model": "two"}, input={"text": "go"})
    born = place.state(made["thread"])
    assert born.lineage == Lineage(kind="child", parent=thread, seq=state.seq, chain=state.chain, depth=1)
    assert born.config is not None and (born.config.model, born.config.instructions) == ("two", "Be brief.")
    assert [item.input for item in born.queue] == [made["input"]]
    read = (await client.get(f"/v1/threads/{made['thread']}?at_least={made['at']}")).json()
    assert (read["lineage_kind"], read["parent"], read["parent_seq"], read["depth"]) == ("child", thread, state.seq, 1)
    assert (read["parent_call"], read["parent_task"], read["title"]) == (None, None, "Helper")
    grandchild = await beget(client, made["thread"])
    shown = (await children(client, made["thread"], f"?at_least={grandchild['at']}"))["data"]
    assert [(child["thread"], child["depth"]) for child in shown] == [(grandchild["thread"], 2)]


async def test_a_request_that_is_sent_again_makes_one_child_wherever_its_parent_is_by_then(place: Place) -> None:
    client = await open_place(place)
    thread = await thread_of(client)
    first = await beget(client, thread, key="k", title="Helper")
    await client.patch(f"/v1/threads/{thread}?wait=applied", json={"config": {"model": "another"}})
    again = await beget(client, thread, key="k", title="Helper")
    assert first["thread"] == again["thread"] and again["effect"] in {"applied", "duplicate"}
    assert (await beget(client, thread, 422, key="k", title="Other"))["type"].endswith("/idempotency-conflict")
    await client.post(f"/v1/threads/{thread}/close?wait=applied", json={})
    assert (await beget(client, thread, key="k", title="Helper"))["thread"] == first["thread"]
    refused = await beget(client, thread, 409, key="k2")
    assert refused["type"].endswith("/thread-closing")


@pytest.mark.parametrize(("own", "allowed"), [(None, 3), (1, 1), (0, 0), (50, 3)])
async def test_no_thread_is_deeper_than_allowed(place: Place, own: int | None, allowed: int) -> None:
    client = await open_place(place)
    limits = OwnLimits(child_depth=own)
    thread = await thread_of(client, config={"model": "m", "limits": limits.model_dump(exclude_none=True)})
    for _ in range(allowed):
        thread = (await beget(client, thread))["thread"]
    refused = await beget(client, thread, 409)
    assert refused["type"].endswith("/child-too-deep")
    assert refused["detail"].startswith(f"A child would be {allowed + 1} generations below")
    assert (await children(client, thread))["data"] == []


async def test_children_of_calls_and_of_tasks_are_listed_page_by_page(place: Place) -> None:
    client = await open_place(place)
    thread = await thread_of(client, input={"text": "go"})
    await place.append(thread, turn_started(place.state(thread)))
    await place.append(thread, step_started(place.state(thread)))
    await place.append(thread, step_finished(place.state(thread), calls=[proposed(0, "spawn_thread", {"task": "x"})]))
    parent = ThreadKey(TenantId("acme"), ThreadId(thread))
    state = place.state(thread)
    for origin in (Origin("1.1.0"), Origin(None, 1, "build")):
        lineage = Lineage(
            kind="child",
            parent=thread,
            seq=state.seq,
            chain=state.chain,
            call=origin.call,
            plan_version=origin.plan_version,
            task=origin.task,
            depth=1,
        )
        created = ThreadCreated(config=Config(model="m"), lineage=lineage)
        await place.append(child_of(parent, origin).thread, created)
    fork = (await client.post(f"/v1/threads/{thread}/fork", json={})).json()["thread"]
    last = await beget(client, thread)
    found: list[Json] = []
    query = f"?limit=1&at_least={last['at']}"
    while True:
        page = await children(client, thread, query)
        found += page["data"]
        if page["next_cursor"] is None:
            break
        query = f"?limit=1&cursor={page['next_cursor']}"
    origins = {(each["parent_call"], each["parent_plan_version"], each["parent_task"]) for each in found}
    assert origins == {("1.1.0", None, None), (None, 1, "build"), (None, None, None)}
    assert [each["thread"] for each in found] == sorted(each["thread"] for each in found)
    assert fork not in {each["thread"] for each in found}


async def test_nobody_begets_what_they_cannot_see(place: Place) -> None:
    client = await open_place(place)
    assert (await beget(client, "no-such-thread", 404))["type"].endswith("/thread-not-found")
    answer = await client.get("/v1/threads/no-such-thread/children")
    assert answer.status_code == 404


async def test_a_configuration_that_is_none_is_refused(place: Place) -> None:
    client = await open_place(place)
    thread = await thread_of(client)
    assert (await beget(client, thread, 422, config={"model": 7}))["type"].endswith("/invalid-request")
    assert (await beget(client, thread, 422, nonsense=1))["type"].endswith("/invalid-request")
    assert (await children(client, thread))["data"] == []
