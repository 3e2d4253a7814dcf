"""Real processes, small ones: what is promised is about the kernel's behaviour."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from services.cli.local.supervised import ProgramEndedError, supervised

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
]
OWNER = """
import sys, time
from pathlib import Path
from services.cli.local.supervised import supervised
with supervised([sys.executable, "-S", "-c", "import time; time.sleep(60)"], log=Path(sys.argv[1])) as program:
    print(program.pid, flush=True)
    time.sleep(60)
"""
SOON_SECONDS = 10.0


def is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + SOON_SECONDS
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True  # it runs no more; in a container there may be nobody to reap it
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_leaving_the_context_stops_the_program(tmp_path: Path) -> None:
    with supervised(SLEEP, log=tmp_path / "log") as program:
        assert program.is_running()
        assert psutil.pid_exists(program.pid)
    assert not psutil.pid_exists(program.pid)


def test_it_does_not_outlive_a_killed_owner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert psutil.pid_exists(pid)
        owner.kill()
    assert is_gone_soon(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_it_does_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with supervised(SLEEP, log=tmp_path / "log") as program:
        os.kill(psutil.Process(program.pid).ppid(), signal.SIGKILL)
        assert is_gone_soon(program.pid)


def test_a_stubborn_program_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with supervised(STUBBORN, log=log, grace_seconds=0.2) as program:
        deadline = time.monotonic() + SOON_SECONDS
        while "deaf" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not psutil.pid_exists(program.pid)


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(ProgramEndedError, match="No such file"),
        supervised([str(tmp_path / "nothing")], log=tmp_path / "log"),
    ):
        pass


def test_a_program_that_ends_early_shows_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.exit('the port is taken')"]
    with supervised(command, log=tmp_path / "log") as program:
        deadline = time.monotonic() + SOON_SECONDS
        while program.is_running() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ProgramEndedError, match="the port is taken"):
            program.check()
