"""A thread with 100,000 events beside one with 100: how long it takes to open them, to page in them, to fork them and
to go on.

The contexts that their models see are the same: what came before the last turns is compacted in both.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from bench.plain_http import PlainTransport
from bench.system import Bench
from schemas.config import Config
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing
from services.client.client import ThreadlogClient
from services.client.sse import Fact, JsonObject
from tests.support.recorded.histories import USER, History, compacted, created, plain_turn

LONG_EVENTS = 100_000
SHORT_EVENTS = 100
LAST_TURNS = 4
"""After the compaction."""
PAGE_ROWS = 20
"""Both threads have as many: a page of the long one must not be longer."""
APPEND_RECORDS = 2_000
ROUNDS = 15
TURN_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Compared:
    """Both are medians in milliseconds."""

    short_ms: float
    long_ms: float

    @property
    def ratio(self) -> float:
        return self.long_ms / self.short_ms


async def measure_long_thread(bench: Bench) -> dict[str, Compared]:
    """Return what was done → its times. The first turn follows a restart of the runtime: it knows neither thread."""
    short = await _append(bench, "short", SHORT_EVENTS)
    long = await _append(bench, "long", LONG_EVENTS)
    await bench.all_shown()
    async with bench.system.client(keyed=False, transport=PlainTransport()) as client:
        found = {}
        for name, ask in (_reads(client) | _forks(client)).items():
            found[name] = await _compare(lambda thread, ask=ask: ask(thread), short, long)  # type: ignore[misc]
        supervisor = bench.system.supervisor
        await supervisor.stop("runtime")
        supervisor.start("runtime")
        await supervisor.wait_ready("runtime")
        found["first turn"] = Compared(
            await _turn_ms(client, short.key.thread), await _turn_ms(client, long.key.thread)
        )
        found["turn"] = await _compare(lambda log: _turn(client, log.key.thread), short, long)
    return found


def _reads(client: ThreadlogClient) -> dict[str, Callable[[History], Awaitable[object]]]:
    def thread(log: History) -> str:
        return log.key.thread

    return {
        "thread": lambda log: client.thread(thread(log)),
        "events, first page": lambda log: client.events(thread(log), limit=PAGE_ROWS),
        "events, last page": lambda log: client.events(thread(log), after=log.state.seq - 50),
        "items, first page": lambda log: client.items(thread(log), limit=PAGE_ROWS),
        "turns, first page": lambda log: client.turns(thread(log), limit=LAST_TURNS),
        "tool calls, first page": lambda log: client.tool_calls(thread(log), limit=2 * LAST_TURNS),
        "stream, from the end": lambda log: _first_event(client, thread(log), log.state.seq - 10),
        "stream, from the start": lambda log: _first_event(client, thread(log), 0),
    }


def _forks(client: ThreadlogClient) -> dict[str, Callable[[History], Awaitable[object]]]:
    return {
        "fork": lambda log: _fork(client, log, {}),
        "fork, at an early seq": lambda log: _fork(client, log, {"at": {"seq": log.state.seq // 2}}),
        "fork, and its first turn": lambda log: _fork_that_goes_on(client, log),
    }


async def _fork(client: ThreadlogClient, log: History, body: JsonObject) -> str:
    accepted = await client.command(f"/v1/threads/{log.key.thread}/fork", body, None, wait_applied=True)
    return accepted.thread


async def _fork_that_goes_on(client: ThreadlogClient, log: History) -> None:
    fork = await _fork(client, log, {"input": {"text": "Say it."}})
    async with asyncio.timeout(TURN_SECONDS_MAX), aclosing(client.follow(fork, 0, until_turn_end=True)) as events:
        async for _ in events:
            pass


async def _first_event(client: ThreadlogClient, thread: str, after: int) -> None:
    async with asyncio.timeout(TURN_SECONDS_MAX), aclosing(client.follow(thread, after)) as events:
        async for event in events:
            if isinstance(event, Fact):
                return


async def _turn(client: ThreadlogClient, thread: str) -> None:
    accepted = await client.submit(thread, "Say it.", wait_applied=True)
    after = int(str(accepted.body["seq"]))
    async with asyncio.timeout(TURN_SECONDS_MAX), aclosing(client.follow(thread, after, until_turn_end=True)) as events:
        async for _ in events:
            pass


async def _turn_ms(client: ThreadlogClient, thread: str) -> float:
    begun = time.perf_counter()
    await _turn(client, thread)
    return 1000 * (time.perf_counter() - begun)


async def _compare(do: Callable[[History], Awaitable[object]], short: History, long: History) -> Compared:
    """Alternately, so that what else goes on meets both."""
    seconds: dict[str, list[float]] = {"short": [], "long": []}
    for number in range(ROUNDS + 1):
        for name, log in (("short", short), ("long", long)):
            begun = time.perf_counter()
            await do(log)
            if number > 0:  # the first one opens connections and plans
                seconds[name].append(time.perf_counter() - begun)
    return Compared(*[1000 * statistics.median(each) for each in seconds.values()])


async def _append(bench: Bench, name: str, events: int) -> History:
    log = History(ThreadKey(TenantId("dev"), ThreadId(f"bench-{name}")))
    log.apply(created(config=Config(model="scripted")), USER)
    plain_turn(log)
    of_turn = len(log.encoded) - 1
    while len(log.encoded) + of_turn * LAST_TURNS < events:
        plain_turn(log)
        await asyncio.sleep(0)
    log.apply(compacted(log.state))
    for _ in range(LAST_TURNS):
        plain_turn(log)
    kafka = await KafkaLog.open(bench.system.settings, "bench-long")
    try:
        key = log.key.to_bytes()
        partition = kafka.partition_for(key, await kafka.partition_count(THREAD_EVENTS.name))
        outgoing = [Outgoing(key, made.value, made.headers, made.record.time_ms) for made in log.encoded]
        for start in range(0, len(outgoing), APPEND_RECORDS):
            await kafka.appender.append(THREAD_EVENTS.name, partition, outgoing[start : start + APPEND_RECORDS])
    finally:
        await kafka.close()
    return log
