"""Real processes; there is no broker, so that the services wait for one."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from services.cli.local.embedded import free_port
from services.cli.local.supervisor import NO_RESTARTS, Restarts, Supervisor


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}"}


async def started(supervisor: Supervisor, name: str, *, other_than: int = 0) -> psutil.Process:
    async with asyncio.timeout(20):
        while supervisor.pid(name) in {None, other_than}:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.01)
    return psutil.Process(supervisor.pid(name))


async def test_instances_of_one_service_keep_their_names_over_a_restart(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async with Supervisor(environment, tmp_path) as supervisor:
        names = [supervisor.start("projector", instance=instance) for instance in ("0", "1")]
        assert names == ["projector-0", "projector-1"]
        processes = [await started(supervisor, name) for name in names]
        killed = supervisor.kill("projector-1")
        processes[1] = await started(supervisor, "projector-1", other_than=killed)
        assert [process.environ()["THREADLOG_INSTANCE"] for process in processes] == ["0", "1"]
        assert supervisor.pid("projector-0") == processes[0].pid
        assert supervisor.probes_port("projector-0") != supervisor.probes_port("projector-1")
        assert supervisor.log("projector-1") == tmp_path / "projector-1.log"


async def test_a_service_that_is_killed_again_and_again_is_not_given_up(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async with Supervisor(environment, tmp_path) as supervisor:
        name, killed = supervisor.start("projector", restarts=Restarts(first_seconds=0.01, tries_max=2)), 0
        for _ in range(3):
            await started(supervisor, name, other_than=killed)
            killed = supervisor.kill(name)
        await started(supervisor, name, other_than=killed)


async def test_a_service_without_restarts_is_given_up_once_it_is_killed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    given_up = asyncio.Event()

    def on_change(_service: str, what: str, _pid: int) -> None:
        if what == "given up":
            given_up.set()

    async with Supervisor(environment, tmp_path, on_change) as supervisor:
        name = supervisor.start("projector", restarts=NO_RESTARTS)
        await started(supervisor, name)
        supervisor.kill(name)
        async with asyncio.timeout(20):
            await given_up.wait()


async def test_a_service_without_an_instance_goes_by_its_name(environment: dict[str, str], tmp_path: Path) -> None:
    async with Supervisor(environment, tmp_path) as supervisor:
        assert supervisor.start("projector") == "projector"
        assert "THREADLOG_INSTANCE" not in (await started(supervisor, "projector")).environ()


async def test_what_is_no_service_is_not_started(environment: dict[str, str], tmp_path: Path) -> None:
    async with Supervisor(environment, tmp_path) as supervisor:
        with pytest.raises(AssertionError, match="none of"):
            supervisor.start("projektor")
