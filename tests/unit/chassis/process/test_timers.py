import asyncio
import gc
import weakref

import pytest

from services.chassis.process.timers import CANCELLED_MIN, SLEEP_SECONDS_MAX, Timers
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock

CLOCK = VirtualClock()


class Fired(list[tuple[str, int]]):
    """Names, and after how many milliseconds each fired."""

    def __init__(self) -> None:
        super().__init__()
        self._start_ms = CLOCK.now_ms()

    def __call__(self, name: str) -> None:
        self.append((name, CLOCK.now_ms() - self._start_ms))


@in_virtual_time
async def test_callbacks_come_at_their_times_in_their_order() -> None:
    timers, fired, now = Timers(CLOCK), Fired(), CLOCK.now_ms()
    running = asyncio.create_task(timers.run())
    for name, later_ms in (
        ("c", 3_000),
        ("a", 1_000),
        ("b", 1_000),
        ("z", int(1000 * SLEEP_SECONDS_MAX) + 1),
        ("0", 0),
    ):
        timers.at(now + later_ms, lambda name=name: fired(name))
    await asyncio.sleep(100)
    assert [name for name, _ in fired] == ["0", "a", "b", "c", "z"]
    for (_, at_ms), wanted_ms in zip(fired, (0, 1_000, 1_000, 3_000, 60_001), strict=True):
        assert wanted_ms <= at_ms <= wanted_ms + 2
    assert len(timers) == 0
    running.cancel()


@in_virtual_time
async def test_an_earlier_one_wakes_the_sleeper() -> None:
    timers, fired, now = Timers(CLOCK), Fired(), CLOCK.now_ms()
    running = asyncio.create_task(timers.run())
    timers.at(now + 50_000, lambda: fired("late"))
    await asyncio.sleep(1)
    timers.at(now + 2_000, lambda: fired("early"))
    await asyncio.sleep(2)
    assert [name for name, _ in fired] == ["early"]
    running.cancel()


@in_virtual_time
async def test_a_cancelled_one_does_not_fire_and_may_be_cancelled_again() -> None:
    timers, fired = Timers(CLOCK), Fired()
    running = asyncio.create_task(timers.run())
    timer = timers.at(CLOCK.now_ms() + 1_000, lambda: fired("never"))
    timer.cancel()
    timer.cancel()
    done = timers.at(CLOCK.now_ms() + 1_000, lambda: fired("once"))
    await asyncio.sleep(2)
    done.cancel()
    assert [name for name, _ in fired] == ["once"]
    running.cancel()


@in_virtual_time
async def test_one_may_be_cancelled_by_another_of_the_same_time() -> None:
    timers, fired, at_ms = Timers(CLOCK), Fired(), CLOCK.now_ms() + 1_000
    running = asyncio.create_task(timers.run())

    def cancel_second() -> None:
        second.cancel()

    timers.at(at_ms, cancel_second)
    second = timers.at(at_ms, lambda: fired("second"))
    await asyncio.sleep(2)
    assert fired == []
    assert len(timers) == 0
    running.cancel()


@in_virtual_time
async def test_one_that_sets_itself_again_at_once_starves_nobody() -> None:
    timers = Timers(CLOCK)
    fired = 0

    def again() -> None:
        nonlocal fired
        fired += 1
        timers.at(CLOCK.now_ms(), again)

    again()
    running = asyncio.create_task(timers.run())
    await asyncio.sleep(0.5)
    assert 10 < fired <= 600
    running.cancel()


@in_virtual_time
async def test_cancelled_ones_keep_nothing_in_memory() -> None:
    """A turn sets a timer of an hour, and ends after a second: its thread must be free to leave."""

    class Thread:
        def wake(self) -> None:
            raise AssertionError("it was cancelled")

    timers = Timers(CLOCK)
    for _ in range(10 * CANCELLED_MIN):
        thread = Thread()
        gone = weakref.ref(thread)
        timers.at(CLOCK.now_ms() + 3_600_000, thread.wake).cancel()
        del thread
    gc.collect()
    assert gone() is None
    assert len(timers) <= CANCELLED_MIN + 1
    kept = timers.at(CLOCK.now_ms() + 10, lambda: None)
    assert kept.callback is not None


@in_virtual_time
async def test_what_a_callback_raises_ends_the_run() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    timers = Timers(CLOCK)
    timers.at(CLOCK.now_ms(), fail)
    with pytest.raises(ZeroDivisionError):
        await timers.run()
