import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge

from services.chassis.log.lag import LOOKS_MAX, Lag, LagMeter
from services.chassis.log.port import LogUnavailableError, TopicPartition
from tests.support.simulated.virtual_tests import in_virtual_time

TP = TopicPartition("thread-events", 0)
OTHER = TopicPartition("thread-events", 1)
LOOK_SECONDS = 5.0
STUCK_SECONDS = 60.0


def test_who_has_everything_is_not_behind_however_long_nothing_came() -> None:
    lag = Lag()
    assert lag.look(0, {TP: 10}, {TP: 10}) == (0, 0)
    assert lag.look(3_600, {TP: 10}, {TP: 10}) == (0, 0)
    assert lag.look(3_605, {TP: 30}, {TP: 30}) == (0, 0)


def test_seconds_are_since_the_log_ended_there() -> None:
    lag = Lag()
    lag.look(0, {TP: 0}, {TP: 0})
    lag.look(10, {TP: 100}, {TP: 0})
    assert lag.look(20, {TP: 300}, {TP: 50}) == (250, 15)  # the log had 50 at 5
    assert lag.look(30, {TP: 300}, {TP: 100}) == (200, 20)
    assert lag.look(40, {TP: 300}, {TP: 200}) == (100, 25)
    assert lag.look(50, {TP: 300}, {TP: 300}) == (0, 0)


def test_the_partition_that_is_furthest_behind_counts_and_a_lost_one_no_more() -> None:
    lag = Lag()
    lag.look(0, {TP: 0, OTHER: 0}, {TP: 0, OTHER: 0})
    assert lag.look(10, {TP: 10, OTHER: 10}, {TP: 0, OTHER: 9}) == (11, 10)
    assert lag.look(20, {OTHER: 10}, {OTHER: 10}) == (0, 0)
    assert lag.look(30, {TP: 20, OTHER: 10}, {TP: 10, OTHER: 10}) == (10, 0)  # behind at its first look


@given(
    st.lists(
        st.tuples(st.floats(0.01, 100, allow_nan=False), st.integers(0, 50), st.integers(0, 60)),
        max_size=3 * LOOKS_MAX,
    )
)
def test_it_is_never_negative_never_longer_than_it_has_looked_and_bounded(steps: list[tuple[float, int, int]]) -> None:
    lag, at, end, position = Lag(), 0.0, 0, 0
    for seconds, grown, read in steps:
        at, end = at + seconds, end + grown
        position = min(end, position + read)
        behind = lag.look(at, {TP: end}, {TP: position})
        assert behind.records == end - position
        assert 0 <= behind.seconds <= at + 1e-6
        assert (behind.seconds == 0) or behind.records > 0
        assert len(lag._looks[TP]) <= LOOKS_MAX


class World:
    """A log's end, and how far a reader has come."""

    def __init__(self) -> None:
        self.end, self.position, self.away, self.waiting = 0, 0, False, False
        registry = CollectorRegistry()
        self.records, self.seconds = (Gauge(name, name, registry=registry) for name in ("records", "seconds"))
        self.meter = LagMeter(
            self,  # type: ignore[arg-type]  # all that it is asked for
            lambda: {TP: self.position},
            records=self.records,
            seconds=self.seconds,
            look_seconds=LOOK_SECONDS,
            stuck_seconds=STUCK_SECONDS,
            waits=lambda: self.waiting,
        )

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.away:
            raise LogUnavailableError("no broker")
        return dict.fromkeys(tps, self.end)


async def pass_time(seconds: float, change: Callable[[], None] = lambda: None) -> None:
    for _ in range(int(seconds / LOOK_SECONDS)):
        change()
        await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def metered(world: World) -> AsyncIterator[LagMeter]:
    running = asyncio.create_task(world.meter.run())
    yield world.meter
    running.cancel()


@in_virtual_time
async def test_a_reader_that_stands_still_before_records_is_not_live() -> None:
    world = World()
    world.end = 10
    async with metered(world) as meter:
        await pass_time(STUCK_SECONDS)
        assert meter.not_live() is None
        await pass_time(2 * LOOK_SECONDS)
        assert "no record was read" in (meter.not_live() or "")
        world.position = 1
        await pass_time(LOOK_SECONDS)
        assert meter.not_live() is None
    assert world.records._value.get() == 9


@in_virtual_time
@pytest.mark.parametrize("why", ["nothing to read", "it reads, slowly", "the log is away", "the database is away"])
async def test_whoever_has_a_reason_is_live(why: str) -> None:
    world = World()
    world.end = 0 if why == "nothing to read" else 1_000
    world.away, world.waiting = why == "the log is away", why == "the database is away"

    def change() -> None:
        world.position += why == "it reads, slowly"

    async with metered(world) as meter:
        await pass_time(5 * STUCK_SECONDS, change)
        assert meter.not_live() is None


@in_virtual_time
async def test_a_log_that_answers_again_gives_the_reader_its_time_again() -> None:
    world = World()
    world.end = 10
    async with metered(world) as meter:
        await pass_time(STUCK_SECONDS / 2)
        world.away = True
        await pass_time(3 * STUCK_SECONDS)
        assert meter.not_live() is None
        world.away = False
        await pass_time(STUCK_SECONDS)
        assert meter.not_live() is None
        await pass_time(2 * LOOK_SECONDS)
        assert meter.not_live() is not None
