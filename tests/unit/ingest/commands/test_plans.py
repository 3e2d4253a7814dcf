"""Proposing a plan and deciding on it, as a client sees it, on a simulated log."""

from typing import Any, cast

import httpx2
import pytest

from schemas.events import PlanApproved, PlanProposed, Task
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey
from schemas.state import ThreadState
from services.ingest.commands.accepting.plans import next_version
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.views import CommandViews
from tests.support.recorded.histories import USER, History, created
from tests.unit.ingest.threads import slug
from tests.unit.ingest.world import World

TASKS: list[dict[str, Any]] = [
    {"id": "look", "title": "Look", "instructions": "Read the tests."},
    {"id": "mend", "title": "Mend", "depends_on": ["look"]},
]


async def propose(world: World, thread: str, key: str | None = None, **body: Any) -> httpx2.Response:
    return await world.post(f"/v1/threads/{thread}/plan", {"tasks": TASKS} | body, key=key)


async def decide(world: World, thread: str, version: int, decision: str, **more: Any) -> httpx2.Response:
    headers = {"x-threadlog-subject": more.pop("subject", "dev")}
    key = more.pop("key", None)
    path = f"/v1/threads/{thread}/plan/{version}/decision"
    return await world.post(path, {"decision": decision} | more, headers=headers, key=key)


async def with_plan(world: World) -> str:
    thread = await world.created()
    assert (await propose(world, thread)).status_code == 200
    return thread


async def test_a_proposal_is_the_next_version() -> None:
    world = World()
    thread = await world.created()
    for version in (1, 2):
        answer = await propose(world, thread)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["plan_version"], answer.json()["effect"]) == (version, "applied")
    plan = world.state(thread).plan
    assert plan.waiting == 2
    assert plan.proposed == (
        Task(id="look", title="Look", instructions="Read the tests."),
        Task(id="mend", title="Mend", depends_on=("look",)),
    )
    assert plan.call is None


async def test_a_proposal_that_is_sent_again_counts_once() -> None:
    world = World()
    thread = await world.created()
    first = await propose(world, thread, key="k")
    await propose(world, thread)
    again = await propose(world, thread, key="k")
    assert again.json() == first.json()
    assert world.state(thread).plan.last_version == 2
    other = await propose(world, thread, key="k", tasks=TASKS[:1])
    assert (other.status_code, slug(other.json())) == (422, "idempotency-conflict")


async def test_of_an_ephemeral_thread_the_fold_tells_that_it_came_before() -> None:
    tasks, others = (Task(id="look", title="Look"),), (Task(id="mend", title="Mend"),)
    history = History(ThreadKey(TenantId("acme"), ThreadId("e-1")))
    history.apply(created(), USER)
    sent = history.apply(PlanProposed(plan_version=1, tasks=tasks), USER)
    for version in (2, 3):
        history.apply(PlanProposed(plan_version=version, tasks=others), USER)

    class States:
        async def newest(self, _: ThreadKey) -> ThreadState:
            return history.state

    views = ViewsAndFold(cast("CommandViews", None), States())
    facts = await views.plan_facts(history.key, sent.record.id)
    assert next_version(facts, tasks) == 1
    assert next_version(facts, others[:0]) == 4
    assert next_version(await views.plan_facts(history.key, EventId("never sent")), tasks) == 4


async def test_a_proposal_may_say_which_version_it_is_to_be() -> None:
    world = World()
    thread = await world.created()
    assert (await propose(world, thread, version=1)).status_code == 200
    late = await propose(world, thread, version=1)
    assert (late.status_code, late.json()["reason"]) == (409, "version 2 is next")
    early = await propose(world, thread, version=3)
    assert (early.status_code, early.json()["reason"]) == (409, "version 2 is next")
    assert world.state(thread).plan.last_version == 1


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ([*TASKS, *TASKS], "the task id 'look' occurs twice"),
        ([TASKS[1]], "task 'mend' depends on 'look', which is no task of this plan"),
        (
            [{"id": "a", "title": "A", "depends_on": ["b"]}, {"id": "b", "title": "B", "depends_on": ["a"]}],
            "tasks wait for each other: a, b, a",
        ),
        ([{"id": "a", "title": "A", "depends_on": ["a"]}], "tasks wait for each other: a, a"),
    ],
)
async def test_what_is_no_graph_is_refused(tasks: list[dict[str, Any]], why: str) -> None:
    world = World()
    thread = await world.created()
    answer = await propose(world, thread, tasks=tasks)
    assert (answer.status_code, slug(answer.json())) == (422, "invalid-request")
    assert answer.json()["errors"] == [{"place": "tasks", "detail": why}]
    assert why in answer.json()["detail"]
    assert len(world.folded(thread)) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"tasks": []},
        {"tasks": [{"id": "a b", "title": "A"}]},
        {"tasks": [{"id": "a", "title": ""}]},
        {"tasks": [{"id": "a", "title": "A", "needs": []}]},
        {"tasks": TASKS, "version": 0},
        {"tasks": [{"id": "a", "title": "A", "instructions": "x" * 20_001}]},
    ],
)
async def test_what_has_not_the_shape_of_a_plan_is_refused(body: dict[str, Any]) -> None:
    world = World()
    thread = await world.created()
    answer = await propose(world, thread, **body)
    assert (answer.status_code, slug(answer.json())) == (422, "invalid-request")


async def test_a_plan_may_be_too_large() -> None:
    world = World(ingest_input_bytes_max=2_000)
    thread = await world.created()
    answer = await propose(world, thread, tasks=[{"id": "a", "title": "A", "instructions": "x" * 2_000}])
    assert (answer.status_code, slug(answer.json())) == (413, "too-large")


async def test_the_first_decision_counts_and_the_others_learn_whose_it_was() -> None:
    world = World()
    thread = await with_plan(world)
    approved = await decide(world, thread, 1, "approve", subject="ann")
    assert approved.status_code == 200
    assert (approved.json()["plan_version"], world.state(thread).plan.in_force) == (1, 1)
    late = await decide(world, thread, 1, "reject", reason="no", subject="bob")
    body = late.json()
    assert (late.status_code, slug(body)) == (409, "not-applied")
    assert body["plan"] == {"version": 1, "status": "in_force"}
    assert body["decided"] == {
        "by": "user:ann",
        "decision": "approved",
        "at": body["decided"]["at"],
        "reason": None,
    }
    assert "It was approved by user:ann; it is in_force." in body["detail"]


async def test_a_rejection_is_told_with_its_reason() -> None:
    world = World()
    thread = await with_plan(world)
    assert (await decide(world, thread, 1, "reject", reason="too much", subject="ann")).status_code == 200
    assert world.state(thread).plan.rejection == "too much"
    late = (await decide(world, thread, 1, "approve")).json()
    assert (late["decided"]["decision"], late["decided"]["reason"]) == ("rejected", "too much")


async def test_an_approval_dies_with_its_version() -> None:
    world = World()
    thread = await with_plan(world)
    await propose(world, thread)
    late = await decide(world, thread, 1, "approve")
    assert late.status_code == 409
    assert late.json()["plan"] == {"version": 1, "status": "superseded"}
    assert "decided" not in late.json()
    assert world.state(thread).plan.waiting == 2


async def test_a_decision_that_is_sent_again_is_answered_alike() -> None:
    world = World()
    thread = await with_plan(world)
    first = await decide(world, thread, 1, "approve", key="k")
    again = await decide(world, thread, 1, "approve", key="k")
    assert first.json() == again.json()
    other = await decide(world, thread, 1, "reject", reason="no", key="k")
    assert (other.status_code, slug(other.json())) == (422, "idempotency-conflict")


async def test_a_version_that_a_policy_has_approved_waits_for_nobody() -> None:
    world = World()
    thread = await with_plan(world)
    await world.service_appends(thread, PlanApproved(plan_version=1, by="policy:never"), "policy:never")
    late = await decide(world, thread, 1, "reject", reason="no")
    assert (late.status_code, late.json()["decided"]["by"]) == (409, "policy:never")


@pytest.mark.parametrize("body", [{"decision": "reject"}, {"decision": "approve", "reason": "x"}, {"decision": "deny"}])
async def test_a_rejection_has_a_reason_and_an_approval_none(body: dict[str, Any]) -> None:
    world = World()
    thread = await with_plan(world)
    answer = await world.post(f"/v1/threads/{thread}/plan/1/decision", body)
    assert (answer.status_code, slug(answer.json())) == (422, "invalid-request")


async def test_what_is_not_there_is_not_decided_on() -> None:
    world = World()
    thread = await with_plan(world)
    for version in (2, 0, "x"):
        answer = await decide(world, thread, version, "approve")  # type: ignore[arg-type]
        assert (answer.status_code, slug(answer.json())) == (404, "not-found"), version
    assert len(world.folded(thread)) == 2
    answer = await decide(world, "none", 1, "approve")
    assert (answer.status_code, slug(answer.json())) == (404, "thread-not-found")
    answer = await propose(world, "none")
    assert (answer.status_code, slug(answer.json())) == (404, "thread-not-found")


async def test_only_who_may_decides() -> None:
    world = World()
    thread = await with_plan(world)
    headers = {"x-threadlog-tenant": "other"}
    for path in (f"/v1/threads/{thread}/plan/1/decision", f"/v1/threads/{thread}/plan"):
        body = {"decision": "approve"} if path.endswith("decision") else {"tasks": TASKS}
        answer = await world.post(path, body, headers=headers)
        assert (answer.status_code, slug(answer.json())) == (404, "thread-not-found")


async def test_decisions_go_on_without_a_database_and_proposals_that_say_their_version() -> None:
    world = World()
    thread = await with_plan(world)
    world.views.is_away = True
    assert (await decide(world, thread, 1, "approve")).status_code == 200
    assert (await propose(world, thread)).status_code == 503
    assert (await propose(world, thread, version=2)).status_code == 200
