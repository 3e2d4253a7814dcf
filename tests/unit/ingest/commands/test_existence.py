import pytest

from schemas.events import InputSubmitted, ThreadCreated
from schemas.ids import ThreadKey
from services.ingest.http.problems import THREAD_NOT_FOUND, VIEWS_BEHIND, VIEWS_UNAVAILABLE, ProblemError, ProblemType
from tests.unit.ingest.world import World


async def refusal(world: World, key: ThreadKey) -> ProblemType:
    with pytest.raises(ProblemError) as raised:
        await world.known.require(key)
    return raised.value.problem.type


async def test_a_created_thread_needs_no_database() -> None:
    world = World()
    thread = await world.created()
    world.views.is_away = True
    await world.known.require(world.key(thread))
    assert world.views.asked == []


async def test_a_thread_of_another_process_is_looked_up_once() -> None:
    world, other = World(), World()
    thread = await world.created()
    other.views.broker = world.broker
    for _ in range(3):
        await other.known.require(other.key(thread))
    assert other.views.asked == ["thread_row"]


async def test_an_unknown_thread_is_missing_once_the_views_are_at_the_end() -> None:
    world = World()
    assert await refusal(world, world.key("never")) is THREAD_NOT_FOUND
    thread = await world.created()
    assert await refusal(world, world.key(thread, "other")) is THREAD_NOT_FOUND


@pytest.mark.parametrize("thread", ["", "a/b", "x" * 65, "a\x00b", "-a"])
async def test_what_is_no_name_is_no_thread(thread: str) -> None:
    world = World()
    assert await refusal(world, world.key(thread)) is THREAD_NOT_FOUND
    assert world.views.asked == []


async def test_behind_views_say_nothing() -> None:
    world, other = World(), World()
    thread = await world.created()
    other.views.broker, other.known._log = world.broker, world.log
    other.views.held_at = 0
    assert await refusal(other, other.key(thread)) is VIEWS_BEHIND
    other.views.held_at = None
    await other.known.require(other.key(thread))


async def test_a_command_to_nowhere_makes_no_thread() -> None:
    world = World()
    key = world.key("never")
    answer = await world.post("/v1/threads/never/inputs", {"text": "hi"})
    assert answer.status_code == 404
    assert world.folded("never") == []
    world.known.note_append(key, InputSubmitted.kind, 3)
    assert await refusal(world, key) is THREAD_NOT_FOUND


async def test_the_queue_is_counted_upwards_and_looked_at_when_it_could_be_full() -> None:
    world = World(ingest_queue_inputs_max=3)
    thread = await world.created({"input": {"text": "0"}})
    key = world.key(thread)
    assert await world.known.queued(key) == 1
    await world.post(f"/v1/threads/{thread}/inputs", {"text": "1"})
    assert await world.known.queued(key) == 2
    assert world.views.asked == []
    await world.post(f"/v1/threads/{thread}/inputs", {"text": "2"})
    assert await world.known.queued(key) == 3
    assert world.views.asked == ["thread_row"]
    world.known.note_state(key, world.state(thread))
    assert await world.known.queued(key) == 3


async def test_views_that_lag_do_not_empty_the_queue() -> None:
    world = World(ingest_queue_inputs_max=3)
    thread = await world.created()
    for text in "abc":
        await world.post(f"/v1/threads/{thread}/inputs", {"text": text})
    world.views.held_at = len(world.broker.records("thread-events", world.known.partition(world.key(thread)))) - 1
    assert await world.known.queued(world.key(thread)) == 3


async def test_an_older_look_does_not_count() -> None:
    world = World()
    thread = await world.created()
    key = world.key(thread)
    older = world.state(thread)
    await world.post(f"/v1/threads/{thread}/inputs", {"text": "a"})
    world.known.note_state(key, world.state(thread))
    world.known.note_state(key, older)
    assert await world.known.queued(key) == 1


async def test_only_inputs_count() -> None:
    world = World()
    thread = await world.created()
    world.known.note_append(world.key(thread), ThreadCreated.kind, 5)
    assert await world.known.queued(world.key(thread)) == 0


async def test_without_a_database_unknown_threads_cannot_be_told() -> None:
    world = World()
    world.views.is_away = True
    assert await refusal(world, world.key("some")) is VIEWS_UNAVAILABLE
