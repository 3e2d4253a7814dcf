"""Inputs, cancels and closing as a client sees them, on a simulated log."""

import asyncio

import pytest

from schemas.events import ThreadClosed
from tests.support.recorded import histories
from tests.unit.ingest.threads import in_turn, slug
from tests.unit.ingest.world import World


async def submit(world: World, thread: str, text: str = "x", **more: object) -> str:
    answer = await world.post(f"/v1/threads/{thread}/inputs", {"text": text, **more})
    assert answer.status_code < 300, answer.text
    return str(answer.json()["input"])


async def end_turn(world: World, thread: str) -> None:
    await world.post(f"/v1/threads/{thread}/turns/1/cancel")
    await world.service_appends(thread, histories.turn_ended(world.state(thread), "aborted"))


# Steering


async def test_steering_a_turn_that_ended_is_refused_with_the_reason() -> None:
    world = World()
    thread = await in_turn(world)
    await end_turn(world, thread)
    body = {"text": "left", "mode": "steer", "expected_turn": 1}
    answer = await world.post(f"/v1/threads/{thread}/inputs", body)
    assert (answer.status_code, slug(answer.json())) == (409, "not-applied")
    assert answer.json()["reason"] == "turn 1 is not open"
    assert world.state(thread).queue == ()


@pytest.mark.parametrize(
    ("mode", "why"), [("interrupt", "cancel the turn, then submit"), ("queue", "waits for"), ("reject", "no turn")]
)
async def test_what_cannot_expect_a_turn_says_so_before_the_log(mode: str, why: str) -> None:
    world = World()
    thread = await in_turn(world)
    before = len(world.folded(thread))
    answer = await world.post(f"/v1/threads/{thread}/inputs", {"text": "x", "mode": mode, "expected_turn": 1})
    assert (answer.status_code, slug(answer.json())) == (422, "invalid-request")
    assert "expected_turn needs the mode `steer`" in answer.json()["detail"]
    assert why in answer.json()["detail"]
    assert len(world.folded(thread)) == before


async def test_an_input_that_needs_a_free_thread_is_refused_while_it_is_not() -> None:
    world = World()
    thread = await world.created({"input": {"text": "first"}})
    path = f"/v1/threads/{thread}/inputs"
    waiting = await world.post(path, {"text": "x", "mode": "reject"})
    await world.service_appends(thread, histories.turn_started(world.state(thread)))
    working = await world.post(path, {"text": "x", "mode": "reject"})
    await end_turn(world, thread)
    free = await world.post(path, {"text": "x", "mode": "reject"})
    assert [answer.status_code for answer in (waiting, working, free)] == [409, 409, 200]
    assert (waiting.json()["reason"], working.json()["reason"]) == ("inputs are waiting", "a turn is open")


# Taking back


async def test_an_input_that_a_turn_has_taken_says_which() -> None:
    world = World()
    thread = await world.created()
    started, steering, left = [await submit(world, thread, mode=mode) for mode in ("queue", "steer", "queue")]
    await world.service_appends(thread, histories.turn_started(world.state(thread), [started]))
    await world.service_appends(thread, histories.step_started(world.state(thread), [steering]))
    path = f"/v1/threads/{thread}/inputs"
    by_turn = await world.post(f"{path}/{started}/withdraw")
    by_step = await world.post(f"{path}/{steering}/withdraw")
    withdrawn = await world.post(f"{path}/{left}/withdraw")
    twice = await world.post(f"{path}/{left}/withdraw")
    assert [answer.status_code for answer in (by_turn, by_step, withdrawn, twice)] == [409, 409, 200, 409]
    assert (by_turn.json()["turn"], by_turn.json()["step"]) == (1, None)
    assert "Turn 1 has taken it." in by_turn.json()["detail"]
    assert (by_step.json()["turn"], by_step.json()["step"]) == (1, 1)
    assert "Turn 1, step 1 has taken it." in by_step.json()["detail"]
    assert twice.json()["input_status"] == "withdrawn"


async def test_an_input_that_was_discarded_says_so() -> None:
    world = World()
    thread = await in_turn(world)
    steering = await submit(world, thread, mode="steer")
    await world.post(f"/v1/threads/{thread}/turns/1/cancel", {"discard": True})
    answer = await world.post(f"/v1/threads/{thread}/inputs/{steering}/withdraw")
    assert (answer.status_code, answer.json()["input_status"]) == (409, "discarded")


async def test_an_input_that_never_was_cannot_be_taken_back() -> None:
    world = World()
    thread = await world.created()
    answer = await world.post(f"/v1/threads/{thread}/inputs/never/withdraw")
    assert (answer.status_code, answer.json()["reason"]) == (409, "there is no input never")
    assert answer.json()["status"] == 409
    assert "input_status" not in answer.json()


# Cancel


async def test_a_second_cancel_changes_nothing_and_is_answered_as_the_first() -> None:
    world = World()
    thread = await in_turn(world)
    path = f"/v1/threads/{thread}/turns/1/cancel"
    first = await world.post(path, {"note": "stop"})
    state = world.state(thread)
    again = [
        await world.post(path, {"note": "really"}),
        await world.post(path, key="k"),
        await world.post(path, key="k"),
    ]
    assert [answer.status_code for answer in (first, *again)] == [200] * 4
    assert first.json()["effect"] == "applied"
    assert {answer.json()["effect"] for answer in again} == {"superseded"}
    assert again[0].json()["reason"] == "turn 1 is being cancelled"
    assert world.state(thread).turn == state.turn


async def test_an_old_turn_cannot_be_cancelled() -> None:
    world = World()
    thread = await in_turn(world)
    await end_turn(world, thread)
    old = await world.post(f"/v1/threads/{thread}/turns/1/cancel")
    never = await world.post(f"/v1/threads/{thread}/turns/7/cancel")
    assert (old.status_code, slug(old.json()), old.json()["reason"]) == (409, "not-applied", "turn 1 has ended")
    assert (never.status_code, never.json()["reason"]) == (409, "there is no turn 7")


# Closing


async def test_a_closing_thread_takes_no_new_input() -> None:
    world = World()
    thread = await world.created()
    kept = await world.post(f"/v1/threads/{thread}/inputs", {"text": "before"}, key="k")
    await world.post(f"/v1/threads/{thread}/close")
    before = len(world.folded(thread))
    answer = await world.post(f"/v1/threads/{thread}/inputs", {"text": "after"})
    assert (answer.status_code, slug(answer.json())) == (409, "thread-closing")
    assert len(world.folded(thread)) == before
    again = await world.post(f"/v1/threads/{thread}/inputs", {"text": "before"}, key="k")
    assert (again.status_code, again.json()) == (202, kept.json())


async def test_another_process_learns_of_the_closing_from_the_view_or_from_the_fold() -> None:
    world, other, third = World(), World(), World()
    thread = await world.created()
    for process in (other, third):
        process.views.broker, process.verdicts.broker = world.broker, world.broker
        process.known._log = process.log = world.broker.connect("other")
        process.commands._appender = process.log.appender
    await third.known.require(third.key(thread))  # before it closes
    await world.post(f"/v1/threads/{thread}/close")
    of_view = await other.post(f"/v1/threads/{thread}/inputs", {"text": "after"})
    assert (of_view.status_code, slug(of_view.json())) == (409, "thread-closing")
    of_fold = await third.post(f"/v1/threads/{thread}/inputs?wait=applied", {"text": "after"})
    assert (of_fold.status_code, of_fold.json()["reason"]) == (409, "the thread is closing")
    then = await third.post(f"/v1/threads/{thread}/inputs", {"text": "after"})
    assert (then.status_code, slug(then.json())) == (409, "thread-closing")


async def test_an_input_that_came_before_the_closing_is_no_new_one() -> None:
    """Its first try went through another process, and its answer was lost; the views do not hold it yet."""
    world = World(recent_commands_max=0)
    thread = await world.created()
    path = f"/v1/threads/{thread}/inputs"
    first = await world.post(path, {"text": "x"}, key="k")
    await world.post(f"/v1/threads/{thread}/close")
    world.views.held_at = first.json()["position"]["offset"]
    early = await world.post(path, {"text": "x"}, key="k")
    assert (early.status_code, slug(early.json())) == (503, "views-behind")
    world.views.held_at = None
    again = await world.post(path, {"text": "x"}, key="k")
    new = await world.post(path, {"text": "x"}, key="l")
    assert (again.status_code, again.json()["input"]) == (202, first.json()["input"])
    assert (new.status_code, slug(new.json())) == (409, "thread-closing")
    assert len(world.folded(thread)) == 3


async def test_closing_twice_comes_to_the_same() -> None:
    world = World()
    thread = await world.created()
    path = f"/v1/threads/{thread}/close?wait=applied"
    first, closing = await world.post(path), await world.post(path)
    await world.service_appends(thread, ThreadClosed())
    closed = await world.post(path)
    assert [answer.status_code for answer in (first, closing, closed)] == [200, 200, 200]
    assert closing.json()["reason"] == "the thread is closing already"


# Floods


async def test_a_flood_is_refused_at_the_limit_and_loses_nothing() -> None:
    world = World(ingest_queue_inputs_max=20)
    thread = await world.created()
    path = f"/v1/threads/{thread}/inputs"
    answers = await asyncio.gather(*[world.post(path, {"text": str(number)}, key=str(number)) for number in range(60)])
    taken = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code != 202]
    assert {(answer.status_code, slug(answer.json())) for answer in refused} <= {(429, "queue-full")}
    late = await world.post(path, {"text": "late"})
    assert (late.status_code, slug(late.json()), late.headers["retry-after"]) == (429, "queue-full", "5")
    queued = [item.input for item in world.state(thread).queue]
    assert sorted(queued) == sorted(answer.json()["input"] for answer in taken)
    assert len(queued) == 20
