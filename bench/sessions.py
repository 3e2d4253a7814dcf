"""The workload "one tool": a new thread with its first input; the model calls a trivial tool at once; the tool returns
800 bytes; the model answers with text; the client sees `turn.ended` on its stream.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bench.system import Bench
from services.client.client import Accepted, ThreadlogClient
from services.client.sse import Fact

SESSION_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    rate: float
    """Sessions per second."""
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU time of everything but the client, per session."""
    cpu_ms_by_process: dict[str, float]
    requests_per_session: float
    """Produce requests of all services."""


async def one_session(client: ThreadlogClient, on_accepted: Callable[[Accepted], None] = lambda _: None) -> float:
    """Seconds from the request to the end of the turn on the stream."""
    begun = time.perf_counter()
    accepted = await client.create_thread(text="Say it.")
    on_accepted(accepted)
    async with (
        asyncio.timeout(SESSION_SECONDS_MAX),
        aclosing(client.follow(accepted.thread, until_turn_end=True)) as events,
    ):
        async for event in events:
            if isinstance(event, Fact) and event.kind == "turn.ended":
                seen = time.perf_counter()
                outcome = event.body["data"]
                assert isinstance(outcome, dict)
                assert outcome["outcome"] == "completed", event.body
    return seen - begun


async def measure(bench: Bench, client: ThreadlogClient, concurrent: int, sessions: int) -> Measured:
    seconds: list[float] = []
    left = iter(range(sessions))

    async def work() -> None:
        for _ in left:
            seconds.append(await one_session(client))  # noqa: PERF401  # they end in any order

    await asyncio.gather(*[one_session(client) for _ in range(concurrent)])
    cpu_before, batches_before = bench.cpu_seconds(), await asyncio.to_thread(bench.batches_sent)
    begun = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(concurrent)])
    elapsed = time.perf_counter() - begun
    cpu_after, batches_after = bench.cpu_seconds(), await asyncio.to_thread(bench.batches_sent)
    by_process = {part: round(1000 * (cpu_after[part] - cpu_before[part]) / sessions, 3) for part in sorted(cpu_before)}
    seconds.sort()
    return Measured(
        rate=sessions / elapsed,
        p50_ms=1000 * statistics.median(seconds),
        p99_ms=1000 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
        cpu_ms=sum(by_process.values()),
        cpu_ms_by_process=by_process,
        requests_per_session=(batches_after - batches_before) / sessions,
    )


async def effect_in_use(client: ThreadlogClient) -> str:
    """The effect class with which the tool is dispatched now."""
    accepted = await client.create_thread(text="Say it.")
    async with asyncio.timeout(SESSION_SECONDS_MAX), aclosing(client.follow(accepted.thread)) as events:
        async for event in events:
            if isinstance(event, Fact) and event.kind == "tool_call.dispatched":
                data = event.body["data"]
                assert isinstance(data, dict)
                return str(data["effect"])
    raise RuntimeError("the stream ended before the call")
