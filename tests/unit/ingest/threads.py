"""Threads of an ingest world, brought to where a test begins."""

from pydantic import JsonValue

from tests.support.recorded import histories
from tests.unit.ingest.world import World


def slug(body: dict[str, JsonValue]) -> str:
    return str(body["type"]).rpartition("/")[2]


async def in_turn(world: World) -> str:
    thread = await world.created({"input": {"text": "hello"}})
    await world.service_appends(thread, histories.turn_started(world.state(thread)))
    return thread


async def with_call(world: World, pool: str = "builtin", tool: str = "shell") -> str:
    """A thread with a call that waits for approval or, in a pool, was dispatched to it."""
    thread = await in_turn(world)
    await world.service_appends(thread, histories.step_started(world.state(thread)))
    finished = histories.step_finished(world.state(thread), calls=[histories.proposed(0, tool)])
    await world.service_appends(thread, finished)
    if pool != "builtin":
        call = world.state(thread).calls["1.1.0"]
        await world.service_appends(thread, histories.approved(call, by="policy:never"), "policy:never")
        call = world.state(thread).calls["1.1.0"]
        await world.service_appends(thread, histories.dispatched(call, pool=pool))
    return thread
