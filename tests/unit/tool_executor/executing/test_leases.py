"""Watching the claims of others. One executor beats or does not; time is virtual."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.other_topics.progress import Delta, Heartbeat, Progress, encode_progress
from schemas.topics import THREAD_PROGRESS
from services.chassis.log.port import LogUnavailableError, Outgoing, Reader
from services.chassis.process.timers import Timers
from services.tool_executor.executing.leases import Leases
from tests.support.simulated.log import SimulatedBroker, SimulatedLog
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock

KEY = ThreadKey(TenantId("acme"), ThreadId("t"))
OTHER = ThreadKey(TenantId("acme"), ThreadId("other"))
LEASE = 30.0
CLOCK = VirtualClock()


@dataclass
class Watcher:
    broker: SimulatedBroker
    log: SimulatedLog
    leases: Leases
    timers: Timers
    lost: list[tuple[str, float]] = field(default_factory=list)
    """Claims, and the seconds at which each was called lost."""

    def watch(self, claim: str = "c", key: ThreadKey = KEY, partition: int = 0) -> None:
        def on_lost() -> None:
            self.lost.append((claim, asyncio.get_running_loop().time()))

        self.leases.watch(key, claim, partition, int(1000 * LEASE), on_lost)

    async def say(self, progress: Progress, key: ThreadKey = KEY, partition: int = 0) -> None:
        value, headers = encode_progress(progress)
        await self.log.appender.append(THREAD_PROGRESS.name, partition, [Outgoing(key.to_bytes(), value, headers)])

    async def beat(self, claim: str = "c", key: ThreadKey = KEY, partition: int = 0) -> None:
        await self.say(Heartbeat(call="1.1.0", attempt=1, claim=claim), key, partition)


@asynccontextmanager
async def watching(partitions: int = 1) -> AsyncIterator[Watcher]:
    broker = SimulatedBroker({THREAD_PROGRESS.name: partitions}, CLOCK)
    timers = Timers(CLOCK)
    leases = Leases(broker.connect(), CLOCK, timers)
    tasks = [asyncio.create_task(timers.run()), asyncio.create_task(leases.run())]
    yield Watcher(broker, broker.connect(), leases, timers)
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert broker._readers == []


@in_virtual_time
async def test_a_silent_executors_claim_is_lost_after_its_lease_again_and_again() -> None:
    async with watching() as w:
        w.watch()
        await asyncio.sleep(LEASE - 1)
        assert w.lost == []
        await asyncio.sleep(4)
        assert [claim for claim, _ in w.lost] == ["c"]
        await asyncio.sleep(LEASE)
        assert [claim for claim, _ in w.lost] == ["c", "c"], "what was appended may have been lost"


@in_virtual_time
async def test_a_claim_is_lost_as_soon_as_its_heartbeats_are_read_to_the_end() -> None:
    async with watching() as w:
        w.watch()
        await asyncio.sleep(LEASE + 0.6)
        assert len(w.lost) == 1


@in_virtual_time
async def test_one_that_beats_is_alive() -> None:
    async with watching() as w:
        w.watch()
        for _ in range(30):
            await asyncio.sleep(LEASE / 3)
            await w.beat()
        assert w.lost == []
        await asyncio.sleep(LEASE + 4)
        assert len(w.lost) == 1


@in_virtual_time
async def test_only_a_heartbeat_of_this_claim_and_thread_counts() -> None:
    async with watching(2) as w:
        w.watch("c")
        w.watch("c", OTHER, partition=1)
        for _ in range(5):
            await asyncio.sleep(LEASE / 3)
            await w.beat("another")
            await w.say(Delta(turn=1, step=1, attempt=1, text="x"))
            await w.log.appender.append(THREAD_PROGRESS.name, 0, [Outgoing(b"x", b"{", (("kind", b"heartbeat"),))])
            await w.beat("c", OTHER, partition=1)
        assert [claim for claim, _ in w.lost] == ["c"]


@in_virtual_time
async def test_a_claim_that_is_not_watched_any_more_is_never_lost() -> None:
    async with watching() as w:
        w.watch()
        await asyncio.sleep(LEASE / 2)
        w.leases.unwatch(KEY, "c")
        w.leases.unwatch(KEY, "c")
        await asyncio.sleep(3 * LEASE)
        assert w.lost == []
        assert w.broker._readers == [], "nothing is read where nothing is watched"


@in_virtual_time
async def test_watching_again_counts_anew_and_once() -> None:
    async with watching() as w:
        w.watch()
        w.watch()
        await asyncio.sleep(LEASE / 2)
        w.leases.unwatch(KEY, "c")
        w.watch()
        await asyncio.sleep(LEASE - 1)
        assert w.lost == []
        await asyncio.sleep(4)
        assert len(w.lost) == 1
        await asyncio.sleep(LEASE)
        assert len(w.lost) == 2


@in_virtual_time
async def test_a_lease_is_judged_only_on_what_has_been_read_to_the_end() -> None:
    """This reader lags: heartbeats are there that it has not seen."""
    async with watching() as w:
        w.watch()
        await asyncio.sleep(1)
        w.broker.faults._fetch_seconds_max = 100.0
        w.broker.faults._random.uniform = lambda low, high: high  # type: ignore[method-assign]  # always the most
        for _ in range(6):
            await w.beat()
            await asyncio.sleep(LEASE / 3)
        assert w.lost == [], "60 seconds have passed, and nothing has been read"
        w.broker.faults._fetch_seconds_max = 0.0
        await asyncio.sleep(LEASE + 20)
        assert w.lost == []


@in_virtual_time
async def test_a_heartbeat_that_comes_while_the_end_is_asked_for_counts_and_later_leases_ask_again() -> None:
    async with watching() as w:
        w.watch()
        await asyncio.sleep(LEASE - 0.2)
        await w.say(Delta(turn=1, step=1, attempt=1, text="so that the reader waits anew"))
        await asyncio.sleep(0.3)
        await w.beat()
        await asyncio.sleep(LEASE - 2)
        assert w.lost == []
        end = w.leases._ends[0]
        assert not w.leases._is_read_since(0, end.asked_ms + 1), "an answer from before says nothing of later"
        await asyncio.sleep(5)
        assert len(w.lost) == 1


@in_virtual_time
async def test_a_log_that_is_away_when_the_first_watch_begins_is_asked_again() -> None:
    async with watching() as w:
        log_, tries = w.leases._log, 0
        reader = log_.reader

        async def away(*arguments: Any) -> Reader:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise LogUnavailableError("open a reader: no answer")
            return await reader(*arguments)

        log_.reader = away  # type: ignore[method-assign]
        w.watch()
        await asyncio.sleep(LEASE + 10)
        assert tries == 4
        assert [claim for claim, _ in w.lost] == ["c"]


@in_virtual_time
async def test_while_the_log_is_away_nobody_is_called_lost() -> None:
    """Nobody could have been heard. After it came back leases count anew."""
    async with watching() as w:
        w.watch()
        await asyncio.sleep(1)
        w.broker.is_away = True
        await asyncio.sleep(3 * LEASE)
        assert w.lost == []
        w.broker.come_back()
        await asyncio.sleep(LEASE - 2)
        assert w.lost == []
        await w.beat()
        await asyncio.sleep(LEASE - 2)
        assert w.lost == []
        await asyncio.sleep(8)
        assert len(w.lost) == 1


@in_virtual_time
async def test_partitions_come_and_go_with_what_is_watched() -> None:
    async with watching(3) as w:
        w.watch("a", partition=0)
        w.watch("b", partition=2)
        await asyncio.sleep(LEASE / 2)
        w.leases.unwatch(KEY, "a")
        w.watch("c", partition=1)
        await asyncio.sleep(LEASE / 3)
        await w.beat("b", partition=2)
        await asyncio.sleep(LEASE / 2)
        assert w.lost == []
        await asyncio.sleep(LEASE)
        assert sorted(claim for claim, _ in w.lost) == ["b", "c"]
