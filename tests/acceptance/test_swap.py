"""`threadlog rebuild` and `threadlog generations` on real processes: under load, while others read, and killed."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import orjson
import pytest

from services.client.client import ThreadlogClient
from tests.support.processes.services import database
from tests.support.processes.system import System, system

SCRIPT = """
rules:
  - match: always
    text: Done.
"""
READS_PER_SECOND = 200
READERS = 8
READS_MIN = 1_000
WRITERS = 3
END_SECONDS = 180


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("swap")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools="builtin: []\n") as found,
    ):
        yield found


async def _threadlog(running: System, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments),
        env={**os.environ, **running.environment},
        stdout=PIPE,
        stderr=PIPE,
    )


async def _said(running: System, *arguments: str) -> str:
    process = await _threadlog(running, *arguments)
    communicating = asyncio.create_task(process.communicate())
    await asyncio.wait([communicating], timeout=END_SECONDS)
    if not communicating.done():
        process.kill()
    out, err = await communicating
    assert process.returncode == 0, f"{arguments}: {out.decode()[-2000:]}\n{err.decode()[-4000:]}"
    return out.decode()


# Reads through swaps


class _Reads:
    """Reads of many kinds at a steady rate, until told to stop. What one raises ends the test."""

    def __init__(self, running: System, tenant: str, threads: list[str], pool: asyncpg.Pool) -> None:
        self._tenant = tenant
        self._threads = threads
        self._pool = pool
        self._seqs: dict[str, int] = {}
        self._position = 0
        self._generations: set[int] = set()
        self._http = httpx2.AsyncClient(
            base_url=running.url, headers={"x-threadlog-tenant": tenant}, timeout=httpx2.Timeout(10.0)
        )
        self.done: Counter[str] = Counter()
        self.slowest_seconds = 0.0
        self.stopping = asyncio.Event()

    @property
    def generations(self) -> set[int]:
        return self._generations

    async def run(self) -> None:
        kinds = (self._of_thread, self._in_one_statement, self._of_events, self._back_and_forth, self._in_one_snapshot)
        async with self._http, asyncio.TaskGroup() as tasks:
            for number in range(READERS):
                tasks.create_task(self._read(number, itertools.cycle(kinds[number % 5 :] + kinds[: number % 5])))

    async def _read(self, number: int, kinds: "itertools.cycle[Callable[[int], Awaitable[None]]]") -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self.stopping.is_set():
            kind = next(kinds)
            begun = loop.time()
            await kind(number)
            self.done[kind.__name__] += 1
            self.slowest_seconds = max(self.slowest_seconds, loop.time() - begun)
            due = max(due + READERS / READS_PER_SECOND, loop.time() - 0.5)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _of_thread(self, number: int) -> None:
        thread = self._threads[number % len(self._threads)]
        before = self._seqs.get(thread, 0)
        body = await self._get(f"/v1/threads/{thread}")
        assert body["seq"] >= before, "a thread went back"
        self._seqs[thread] = max(self._seqs.get(thread, 0), body["seq"])

    async def _of_events(self, number: int) -> None:
        thread = self._threads[-1 - number % len(self._threads)]
        before = self._seqs.get(thread, 0)
        page = await self._get(f"/v1/threads/{thread}/events?after={max(before - 1, 0)}&limit=5")
        assert page["events"], "what was shown is not there any more"

    async def _get(self, path: str) -> Any:
        response = await self._http.get(path)
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text}"
        return orjson.loads(response.content)

    async def _in_one_statement(self, number: int) -> None:
        del number
        before = self._position
        row = await self._pool.fetchrow(
            "select (select number from views.generation), (select sum(next_offset) from views.positions), "
            "(select count(*) from views.events where tenant = $1), "
            "(select sum(seq) from views.threads where tenant = $1)",
            self._tenant,
        )
        assert row is not None
        self._generations.add(row[0])
        assert row[1] >= before, "the position went back"
        self._position = max(self._position, row[1])
        assert row[2] == row[3], f"events and threads are not of one moment: {row}"

    async def _in_one_snapshot(self, number: int) -> None:
        """Several statements, in either order of the views."""
        queries = [
            "select count(*) from views.events where tenant = $1",
            "select sum(seq) from views.threads where tenant = $1",
        ]
        async with self._pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
            seen = [await connection.fetchval(query, self._tenant) for query in queries[:: 1 if number % 2 else -1]]
        assert seen[0] == seen[1], f"two views of two moments: {seen}"

    async def _back_and_forth(self, number: int) -> None:
        """Once a transaction has read a view, it stays with its generation."""
        views = ["events", "threads", "turns", "items"]
        async with self._pool.acquire() as connection, connection.transaction():
            generations = set()
            for view in views[:: 1 if number % 2 else -1]:
                await connection.fetch(f"select * from views.{view} where tenant = $1 limit 1", self._tenant)
                generations.add(await connection.fetchval("select number from views.generation"))
        assert len(generations) == 1, f"one transaction saw generations {generations}"


async def _write(client: ThreadlogClient, threads: list[str], stopping: asyncio.Event) -> None:
    for number in itertools.count():
        if stopping.is_set():
            return
        await client.submit(threads[number % len(threads)], f"say something, {number}")
        await asyncio.sleep(0.05)


async def test_reads_through_swaps_under_load_neither_fail_nor_mix(running: System) -> None:
    tenant = f"swap-{uuid.uuid4().hex[:8]}"
    async with (
        running.client(tenant=tenant) as client,
        asyncpg.create_pool(running.settings.postgres_dsn, min_size=READERS, max_size=READERS) as pool,
    ):
        threads = [(await client.create_thread(text="hello", wait_applied=True)).thread for _ in range(6)]
        await _until_shown(client, threads)
        reads = _Reads(running, tenant, threads, pool)
        begun = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reads.run())
            for number in range(WRITERS):
                tasks.create_task(_write(client, threads[number::WRITERS], reads.stopping))
            await asyncio.sleep(1)
            said = [await _said(running, "rebuild", "--keep", "--workers", str(workers)) for workers in (2, 1)]
            said.append(await _said(running, "generations", "use", "1"))
            await asyncio.sleep(1)
            reads.stopping.set()
    for text in said:
        last = orjson.loads(text.splitlines()[-1])
        assert (last["phase"], last["records_done"]) == ("done", last["records_total"])
    assert '"phase":"comparing"' in said[0] and '"phase":"comparing"' in said[1]
    assert reads.generations == {1, 2, 3}, "it did not read through all of the swaps"
    rate = reads.done.total() / (asyncio.get_running_loop().time() - begun)
    shown = f"{dict(reads.done)}, {rate:.0f} a second, the slowest took {reads.slowest_seconds:.3f} s"
    sys.stderr.write(f"\nreads through three swaps: {shown}\n")
    assert reads.done.total() >= READS_MIN, reads.done


async def _until_shown(client: ThreadlogClient, threads: list[str]) -> None:
    async with asyncio.timeout(END_SECONDS):
        for thread in threads:
            while (await client.thread(thread)).get("last_outcome") is None:  # noqa: ASYNC110 - a view
                await asyncio.sleep(0.1)


# Stopped and killed


async def test_a_rebuild_that_was_stopped_and_killed_goes_on(running: System) -> None:
    async with running.client() as client:
        threads = [(await client.create_thread(text="hello")).thread for _ in range(10)]
        await _until_shown(client, threads)
    before = _numbers(await _said(running, "generations", "list"))
    slow = ("rebuild", "--rate", "40", "--workers", "3", "--keep")

    stopped = await _threadlog(running, *slow)
    await _read_some(stopped)
    stopped.send_signal(signal.SIGINT)
    out, err = await stopped.communicate()
    assert stopped.returncode == 130, err
    assert b"continues it" in err, out
    [number] = _numbers(await _said(running, "generations", "list")) - before

    killed = await _threadlog(running, *slow)
    first = await _read_some(killed)
    assert (first["generation"], first["records_done"] > 0) == (number, True)
    workers = _children_of(killed.pid)
    assert len(workers) == 2
    killed.kill()
    await killed.communicate()
    await _until_gone(workers)

    last = orjson.loads((await _said(running, "rebuild", "--keep")).splitlines()[-1])
    assert (last["phase"], last["generation"]) == ("done", number)
    listed = await _said(running, "generations", "list")
    assert re.search(rf"^{number} +live ", listed, re.MULTILINE)
    refused = await _threadlog(running, "generations", "drop", str(number))
    _, err = await refused.communicate()
    assert refused.returncode == 1 and b"is the live one" in err
    for kept in before:
        await _said(running, "generations", "drop", str(kept))
    assert _numbers(await _said(running, "generations", "list")) == {number}


async def _read_some(process: Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(END_SECONDS):
        async for line in process.stdout:
            said = orjson.loads(line)
            if said["records_done"] > 0 and said["seconds"] > 0.5:
                return said
    raise AssertionError("it ended before it had read anything")


async def _until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(END_SECONDS):
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):  # noqa: ASYNC110, ASYNC240, PTH110 - other processes
            await asyncio.sleep(0.05)


def _numbers(listed: str) -> set[int]:
    return {int(line.split()[0]) for line in listed.splitlines()[1:]}


def _children_of(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(status.parent.name))
    return found
