import asyncio
import os
import signal
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from services.chassis.process.lifecycle import Lifecycle, run_service


def test_the_first_signal_stops_gracefully() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    async def main(lifecycle: Lifecycle) -> None:
        lifecycle.spawn(work(), "work")
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await lifecycle.stopping.wait()
        await asyncio.sleep(0.01)
        ended.append("drained")

    with capture_logs() as logs:
        assert run_service(main, drain_seconds=5) == 0
    assert ended == ["drained", "work"]
    assert [line["event"] for line in logs] == ["service_stop_requested", "service_ended"]


def test_main_ends_its_tasks_before_it_closes_what_they_work_with() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")

    async def main(lifecycle: Lifecycle) -> None:
        await lifecycle.end_tasks()
        lifecycle.spawn(work(), "work")
        await asyncio.sleep(0)
        await lifecycle.end_tasks()
        ended.append("closed")

    assert run_service(main, drain_seconds=5) == 0
    assert ended == ["work", "closed"]


def test_a_drain_that_takes_too_long_is_cut_short() -> None:
    async def main(lifecycle: Lifecycle) -> None:
        lifecycle.stop()
        await asyncio.sleep(60)

    with capture_logs() as logs:
        assert run_service(main, drain_seconds=0.05) == 1
    assert logs[0] == {"event": "drain_cut_short", "log_level": "warning", "seconds": 0.05, "tasks": ["main"]}


def test_a_task_that_fails_ends_the_service() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    async def main(lifecycle: Lifecycle) -> None:
        lifecycle.spawn(broken(), "broken")
        await lifecycle.stopping.wait()

    with capture_logs() as logs:
        assert run_service(main, drain_seconds=5) == 1
    assert [(line["event"], line["error"]) for line in logs] == [("service_failed", "ValueError('broken')")]


def test_main_that_fails_ends_the_service() -> None:
    async def main(lifecycle: Lifecycle) -> None:
        lifecycle.spawn(asyncio.sleep(60), "work")
        raise ValueError("no settings")

    with capture_logs():
        assert run_service(main, drain_seconds=5) == 1


STUBBORN = """
import asyncio
from services.chassis.process.lifecycle import run_service

async def main(lifecycle):
    print("up", flush=True)
    await lifecycle.stopping.wait()
    print("stopping", flush=True)
    await asyncio.sleep(60)

run_service(main, drain_seconds=60)
"""


@pytest.mark.timeout(30)
def test_a_second_signal_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "up\n"
        service.send_signal(signal.SIGINT)
        # Its logs come on the same stream, since nothing configured them.
        while service.stdout.readline() != "stopping\n":
            pass
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=10) == 128 + signal.SIGTERM
