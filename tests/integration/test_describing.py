"""Titles, labels, archiving and closing of threads, as clients do it, on a real database."""

import httpx2
import pytest

from schemas.events import PlanApproved, PlanProposed, Task, TaskUpdated
from tests.support.worlds.ingest import Place, position


@pytest.fixture
async def client(place: Place) -> httpx2.AsyncClient:
    await place.project()
    return await place.ingest()


async def created(client: httpx2.AsyncClient, **body: object) -> str:
    return str((await client.post("/v1/threads", json=body)).json()["thread"])


async def patched(client: httpx2.AsyncClient, thread: str, **body: object) -> dict[str, object]:
    """What the thread is afterwards."""
    answer = await client.patch(f"/v1/threads/{thread}?wait=applied", json=body)
    assert answer.status_code == 200, answer.text
    shown: dict[str, object] = (await client.get(f"/v1/threads/{thread}?at_least={position(answer)}")).json()
    return shown


async def test_a_title_and_labels_are_given_changed_and_taken_away(client: httpx2.AsyncClient) -> None:
    thread = await created(client, title="A trip", labels={"team": "a", "n": "1"})
    shown = await patched(client, thread, title="Another trip")
    assert (shown["title"], shown["labels"]) == ("Another trip", {"team": "a", "n": "1"})
    shown = await patched(client, thread, labels={"team": "b"})
    assert (shown["title"], shown["labels"]) == ("Another trip", {"team": "b"})
    (listed,) = (await client.get("/v1/threads?label=team:b")).json()["data"]
    assert (listed["thread"], listed["title"], listed["labels"]) == (thread, "Another trip", {"team": "b"})
    shown = await patched(client, thread, title=None, labels=None)
    assert (shown["title"], shown["labels"]) == (None, {})
    assert (await client.get("/v1/threads?label=team:b")).json()["data"] == []


async def test_a_thread_is_archived_and_taken_back(client: httpx2.AsyncClient) -> None:
    thread, other = await created(client), await created(client)
    assert (await patched(client, thread, archived=True))["archived"] is True

    async def listed(archived: str) -> list[str]:
        return [row["thread"] for row in (await client.get(f"/v1/threads?archived={archived}")).json()["data"]]

    assert (await listed("true"), await listed("false")) == ([thread], [other])
    # It works as before; whether it is shown is up to who lists.
    submitted = await client.post(f"/v1/threads/{thread}/inputs?wait=applied", json={"text": "go on"})
    assert submitted.json()["effect"] == "applied"
    assert (await patched(client, thread, archived=False))["archived"] is False
    assert await listed("true") == []


@pytest.mark.parametrize("archived", [True, False])
async def test_what_is_so_already_is_answered_alike(client: httpx2.AsyncClient, archived: bool) -> None:
    thread = await created(client)
    await patched(client, thread, archived=True)
    await patched(client, thread, archived=archived, title="x")
    answer = await client.patch(f"/v1/threads/{thread}?wait=applied", json={"archived": archived})
    assert (answer.status_code, answer.json()["effect"]) == (200, "superseded")
    shown = (await client.get(f"/v1/threads/{thread}?at_least={position(answer)}")).json()
    assert (shown["archived"], shown["title"]) == (archived, "x")


async def test_a_closed_thread_is_read_and_no_longer_changed(client: httpx2.AsyncClient, place: Place) -> None:
    thread = await created(client, title="done")
    closed = await client.post(f"/v1/threads/{thread}/close?wait=applied")
    assert closed.status_code == 200
    again = await client.post(f"/v1/threads/{thread}/close?wait=applied")
    assert (again.status_code, again.json()["effect"]) == (200, "superseded")
    proposed = await client.post(f"/v1/threads/{thread}/plan", json={"tasks": [{"id": "a", "title": "A"}]})
    assert (proposed.status_code, proposed.json()["reason"]) == (409, "the thread is closing")
    shown = (await client.get(f"/v1/threads/{thread}?at_least={position(proposed)}")).json()
    assert (shown["status"], shown["title"]) == ("closing", "done")
    assert place.state(thread).status == "closing"


async def test_the_plan_of_a_thread_shows_its_graph(client: httpx2.AsyncClient, place: Place) -> None:
    thread = await created(client)
    graph = (Task(id="look", title="Look", instructions="Read."), Task(id="mend", title="Mend", depends_on=("look",)))
    await place.append(thread, PlanProposed(plan_version=1, tasks=graph))
    await place.append(thread, PlanApproved(plan_version=1, by="user:ann"))
    await place.append(thread, TaskUpdated(plan_version=1, task="look", status="running", child="t-1"))
    at_least = await place.append(
        thread, TaskUpdated(plan_version=1, task="look", status="succeeded", child="t-1", result="found it")
    )
    again = await client.post(f"/v1/threads/{thread}/plan", json={"tasks": [{"id": "tell", "title": "Tell"}]})
    assert again.json()["plan_version"] == 2
    page = (await client.get(f"/v1/threads/{thread}/plan?at_least={position(again)}")).json()
    second, first = page["data"]
    assert (first["version"], first["status"], first["decided_by"]) == (1, "in_force", "user:ann")
    look, mend = first["tasks"]
    assert (look["status"], look["child"], look["result"]) == ("succeeded", "t-1", "found it")
    assert look["started_at"].endswith("Z") and look["started_at"] <= look["ended_at"]
    assert (mend["status"], mend["depends_on"], mend["instructions"]) == ("pending", ["look"], None)
    assert (second["version"], second["status"], second["proposed_by"]) == (2, "waiting", "user:dev")
    assert [(task["task"], task["status"]) for task in second["tasks"]] == [("tell", "proposed")]
    one = (await client.get(f"/v1/threads/{thread}/plan?limit=1&at_least={at_least}")).json()
    rest = (await client.get(f"/v1/threads/{thread}/plan?limit=1&cursor={one['next_cursor']}")).json()
    assert [*one["data"], *rest["data"]] == page["data"]
    assert rest["next_cursor"] is None
