"""What the client's commands come to in the real application: each is of the shape that it expects."""

import httpx2
import pytest
from pydantic import JsonValue

from schemas.canonical import call_hash
from schemas.events import ToolCallResolved
from schemas.state import Call
from services.client.client import RefusedError, ThreadlogClient
from tests.support.recorded import histories
from tests.unit.ingest.world import World

CALL = "1.1.0"


def client_of(world: World, subject: str = "dev") -> ThreadlogClient:
    transport = httpx2.ASGITransport(world.app, raise_app_exceptions=False)
    return ThreadlogClient("http://localhost", subject=subject, transport=transport)


def call_of(world: World, thread: str) -> Call:
    return world.state(thread).calls[CALL]


async def with_proposed_call(world: World) -> str:
    thread = (await client_of(world).create_thread(text="hello")).thread
    await world.service_appends(thread, histories.turn_started(world.state(thread)))
    await world.service_appends(thread, histories.step_started(world.state(thread)))
    finished = histories.step_finished(world.state(thread), calls=[histories.proposed(0, "shell")])
    await world.service_appends(thread, finished)
    return thread


async def with_waiting_call(world: World) -> str:
    thread = await with_proposed_call(world)
    await world.service_appends(thread, histories.approval_requested(call_of(world, thread)))
    return thread


async def with_dispatched_call(world: World, pool: str) -> str:
    thread = await with_proposed_call(world)
    await world.service_appends(thread, histories.approved(call_of(world, thread), by="policy:never"), "policy:never")
    await world.service_appends(thread, histories.dispatched(call_of(world, thread), pool=pool))
    return thread


async def with_unknown_call(world: World) -> str:
    thread = await with_dispatched_call(world, "default")
    await world.service_appends(thread, histories.claimed(call_of(world, thread)))
    call = call_of(world, thread)
    await world.service_appends(thread, histories.lost(call, call.claim))
    assert call_of(world, thread).status == "unknown"
    return thread


async def test_an_input_is_withdrawn() -> None:
    world = World()
    client = client_of(world)
    accepted = await client.create_thread(text="hello")
    withdrawn = await client.withdraw(accepted.thread, str(accepted.body["input"]), wait_applied=True)
    assert withdrawn.body["effect"] == "applied"
    assert world.state(accepted.thread).queue == ()
    with pytest.raises(RefusedError, match="409"):
        await client.withdraw(accepted.thread, str(accepted.body["input"]), wait_applied=True)


async def test_a_turn_is_cancelled() -> None:
    world = World()
    thread = await with_waiting_call(world)
    cancelled = await client_of(world).cancel(thread, 1, note="enough", discard=True, wait_applied=True)
    assert cancelled.body["effect"] == "applied"
    assert call_of(world, thread).outcome == "cancelled"


async def test_a_thread_is_closed() -> None:
    world = World()
    client = client_of(world)
    thread = (await client.create_thread(text="hello")).thread
    closed = await client.close_thread(thread, reason="over", wait_applied=True)
    assert closed.body["effect"] == "applied"
    assert world.state(thread).status == "closing"


async def test_the_first_decision_counts_and_names_who_decided() -> None:
    world = World()
    thread = await with_waiting_call(world)
    call = call_of(world, thread)
    await client_of(world, "ada").decide(thread, CALL, call.call_hash, approve=True)
    assert call_of(world, thread).status == "approved"
    with pytest.raises(RefusedError, match="409"):
        await client_of(world, "bob").decide(thread, CALL, call.call_hash, approve=False, reason="no")
    assert call_of(world, thread).status == "approved"


async def test_an_approval_may_change_the_arguments() -> None:
    world = World()
    thread = await with_waiting_call(world)
    args: dict[str, JsonValue] = {"command": "ls"}
    await client_of(world).decide(thread, CALL, call_of(world, thread).call_hash, approve=True, args=args)
    approved = call_of(world, thread)
    assert (approved.args, approved.call_hash) == (args, call_hash("shell", args))


async def test_an_approval_may_be_for_every_call_of_a_tool() -> None:
    world = World()
    thread = await with_waiting_call(world)
    hash_ = call_of(world, thread).call_hash
    await client_of(world).decide(thread, CALL, hash_, approve=True, scope="thread", tool="shell")
    assert [grant.tool for grant in world.state(thread).grants] == ["shell"]


async def test_a_call_is_denied_with_a_reason() -> None:
    world = World()
    thread = await with_waiting_call(world)
    await client_of(world).decide(thread, CALL, call_of(world, thread).call_hash, approve=False, reason="not today")
    assert call_of(world, thread).outcome == "denied"


async def test_the_result_of_a_client_tool_is_posted_once() -> None:
    world = World()
    thread = await with_dispatched_call(world, "client")
    client = client_of(world)
    result: JsonValue = {"rows": 3}
    for _ in range(2):  # sent again with its key, it has the same answer
        await client.post_result(thread, CALL, outcome="succeeded", result=result, idempotency_key="k")
    assert call_of(world, thread).outcome == "succeeded"
    with pytest.raises(RefusedError, match="409"):
        await client.post_result(thread, CALL, outcome="failed")


async def test_an_unknown_call_is_settled() -> None:
    world = World()
    thread = await with_unknown_call(world)
    client = client_of(world, "ada")
    await client.resolve(thread, CALL, 1, "succeeded", result="it is there", note="I looked")
    resolved, _, _ = world.folded(thread)[-1]
    assert resolved.actor == "user:ada"
    assert isinstance(resolved.data, ToolCallResolved)
    assert (resolved.data.decision, resolved.data.result, resolved.data.note) == (
        "succeeded",
        "it is there",
        "I looked",
    )
    with pytest.raises(RefusedError, match="409"):
        await client.resolve(thread, CALL, 1, "failed", note="I looked")


async def test_an_unknown_call_may_run_again() -> None:
    world = World()
    thread = await with_unknown_call(world)
    await client_of(world).resolve(thread, CALL, 1, "again", note="it did not run")
    assert call_of(world, thread).status == "repeatable"
