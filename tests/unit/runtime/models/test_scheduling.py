import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.runtime.models import scheduling
from services.runtime.models.scheduling import FairQueue, ModelSlots


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def step_without_loop(coroutine):
    """Runs it as far as it goes without the event loop."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it yielded to the event loop")


def test_where_there_is_room_nothing_waits():
    slots = ModelSlots(2, 2)
    slot = slots.slot("a")
    assert step_without_loop(slot.__aenter__()) is slot
    step_without_loop(slot.__aexit__(None, None, None))
    assert slots.queue.running_count == 0


async def test_limits_per_process_and_per_tenant():
    slots = ModelSlots(3, 2)
    running: list[str] = []
    most = {"all": 0, "a": 0}

    async def call(tenant: str) -> None:
        async with slots.slot(tenant) as slot:
            running.append(tenant)
            most["all"] = max(most["all"], len(running))
            most["a"] = max(most["a"], running.count("a"))
            await asyncio.sleep(0.001)
            running.remove(tenant)
            slot.used(10)

    await asyncio.gather(*(call(tenant) for tenant in "aaaaaabbbbbb"))
    assert most == {"all": 3, "a": 2}
    assert slots.queue.running_count == slots.queue.waiting_count == 0


async def test_the_tenant_that_used_least_comes_next():
    slots = ModelSlots(1, 1)
    order: list[str] = []

    async def call(tenant: str, tokens: int) -> None:
        async with slots.slot(tenant) as slot:
            order.append(tenant)
            await asyncio.sleep(0)
            slot.used(tokens)

    await asyncio.gather(
        *(call("greedy", 10_000) for _ in range(6)), *(call("modest", 100) for _ in range(6)), call("late", 1)
    )
    # One of the greedy goes first, since nobody else was there; its next one waits for all that used less.
    assert order[0] == "greedy"
    assert order[1:].index("greedy") == 7


async def test_who_was_away_saved_nothing_up():
    queue: FairQueue[str] = FairQueue(1, 1)
    for _ in range(100):
        assert queue.try_take("busy")
        queue.release("busy", queue.expected_tokens, 1_000)
    queue.try_take("busy")
    queue.wait("busy", "b1")
    queue.wait("new", "n1")
    queue.wait("new", "n2")
    first = queue.release("busy", queue.expected_tokens, 1_000)
    second = queue.release(first[0][0], queue.expected_tokens, 1_000)
    assert {first[0][0], second[0][0]} == {"busy", "new"}


async def test_a_waiter_that_is_cancelled_leaves_the_queue():
    slots = ModelSlots(1, 1)
    async with slots.slot("a"):
        waiting = asyncio.ensure_future(slots.slot("a").__aenter__())
        await settle()
        waiting.cancel()
        await settle()
        assert slots.queue.waiting_count == 0
    assert slots.queue.running_count == 0


async def test_a_place_given_to_a_cancelled_waiter_goes_on():
    slots = ModelSlots(1, 1)
    first = slots.slot("a")
    await first.__aenter__()
    cancelled = asyncio.ensure_future(slots.slot("a").__aenter__())
    following = asyncio.ensure_future(slots.slot("b").__aenter__())
    await settle()
    cancelled.cancel()
    # Before the cancelled task has run.
    await first.__aexit__(None, None, None)
    slot = await asyncio.wait_for(following, 1)
    await slot.__aexit__(None, None, None)
    assert slots.queue.running_count == slots.queue.waiting_count == 0


async def test_a_place_given_just_before_the_cancel_is_given_back():
    slots = ModelSlots(1, 1)
    first = slots.slot("a")
    await first.__aenter__()
    waiting = asyncio.ensure_future(slots.slot("a").__aenter__())
    await settle()
    await first.__aexit__(None, None, None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert slots.queue.running_count == 0


def test_what_is_remembered_of_tenants_is_bounded(monkeypatch):
    monkeypatch.setattr(scheduling, "TENANTS_REMEMBERED_MAX", 10)
    queue: FairQueue[str] = FairQueue(2, 2)
    for number in range(100):
        queue.try_take(f"t{number}")
        queue.release(f"t{number}", queue.expected_tokens, 0)
        assert len(queue._used) <= 12


def test_stopping_what_never_waited_is_nothing():
    FairQueue(1, 1).stop_waiting("a", "x")


class Queueing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(3, 2)
        self.running: list[tuple[str, float]] = []
        self.waiting: list[tuple[str, int]] = []
        self.number = 0

    @rule(tenant=st.sampled_from("abcd"))
    def ask(self, tenant: str) -> None:
        charge = self.queue.expected_tokens
        if self.queue.try_take(tenant):
            self.running.append((tenant, charge))
        else:
            self.number += 1
            self.queue.wait(tenant, self.number)
            self.waiting.append((tenant, self.number))

    @rule(which=st.integers(0, 10), tokens=st.none() | st.floats(0, 1e6))
    def end(self, which: int, tokens: float | None) -> None:
        if not self.running:
            return
        tenant, charged = self.running.pop(which % len(self.running))
        for started, waiter in self.queue.release(tenant, charged, tokens):
            self.waiting.remove((started, waiter))
            self.running.append((started, self.queue.expected_tokens))

    @rule(which=st.integers(0, 10))
    def give_up(self, which: int) -> None:
        if self.waiting:
            tenant, waiter = self.waiting.pop(which % len(self.waiting))
            self.queue.stop_waiting(tenant, waiter)

    @invariant()
    def limits_hold_and_nobody_waits_for_nothing(self) -> None:
        tenants = [tenant for tenant, _ in self.running]
        assert self.queue.running_count == len(tenants) <= 3
        assert self.queue.waiting_count == len(self.waiting)
        assert all(tenants.count(tenant) <= 2 for tenant in "abcd")
        for tenant, _ in self.waiting:
            assert len(tenants) == 3 or tenants.count(tenant) == 2


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(stateful_step_count=40, deadline=None)
