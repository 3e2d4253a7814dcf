"""What operators are told when a service is missing, on real processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from schemas.topics import PARTITIONS_DEFAULT
from services.chassis.log.consumer_groups import RUNTIME_GROUP
from services.client.sse import JsonObject
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka]

SCRIPT = """
rules:
  - match: always
    text: Done.
"""
TOOLS = "builtin: [read_file]"
QUICK = {"THREADLOG_OPS_STUCK_SECONDS": "2"}


async def until(running: System, holds: Callable[[JsonObject], bool]) -> JsonObject:
    async with asyncio.timeout(PATIENCE_SECONDS), httpx2.AsyncClient(base_url=running.url) as http:
        while True:
            answer = await http.get("/v1/ops/stuck")
            assert answer.status_code == 200, answer.text
            found: JsonObject = answer.json()
            if holds(found):
                return found
            await asyncio.sleep(0.2)


async def test_a_missing_runtime_is_told_by_its_partitions_and_by_the_threads_that_wait_for_it(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path: Path
) -> None:
    async with (
        database(postgres_dsn) as dsn,
        system(tmp_path, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools=TOOLS, environment=QUICK) as running,
        running.client() as client,
    ):
        await until(running, lambda found: not found["partitions"])
        await running.supervisor.stop("runtime")
        created = await client.create_thread(text="hello")
        found = await until(running, lambda found: bool(found["threads"] and found["partitions"]))
        (thread,) = found["threads"]  # type: ignore[misc]  # a list
        assert thread["thread"] == created.thread  # type: ignore[index,call-overload]  # an object
        assert thread["detail"] == "Inputs wait (1), and no turn is started."  # type: ignore[index,call-overload]
        groups = [each["group"] for each in found["partitions"]]  # type: ignore[index,union-attr,call-overload]
        assert groups == [RUNTIME_GROUP] * PARTITIONS_DEFAULT
        assert found["incomplete"] == []
        running.supervisor.start("runtime")
        await until(running, lambda found: not found["threads"] and not found["partitions"])
        async for fact in client.follow(created.thread, until_turn_end=True):
            last = fact
        assert getattr(last, "kind", "") == "turn.ended"
