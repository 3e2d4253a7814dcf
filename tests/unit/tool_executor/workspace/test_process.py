import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from services.chassis.settings import MIB
from services.tool_executor.workspace.process import Command, run_process
from tests.support.simulated.waiting import eventually

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def command(line: str, tmp_path: Path, timeout_seconds: float = 10, grace_seconds: float = 0.3, **more) -> Command:
    return Command(
        ["/bin/bash", "-c", line],
        tmp_path,
        ENVIRONMENT,
        timeout_seconds,
        grace_seconds,
        **{"kept_bytes_max": MIB, **more},
    )


async def run(wanted, warden, cancelled=None):
    emitted = []
    end = await run_process(wanted, warden, emitted.append, cancelled or asyncio.Event())
    return end, "".join(emitted)


async def test_output_exit_code_and_stream(tmp_path, warden):
    end, emitted = await run(command("echo out; echo err >&2; exit 3", tmp_path), warden)
    assert (end.outcome, end.exit_code) == ("exited", 3)
    assert sorted(end.output.text.split()) == ["err", "out"]
    assert emitted == end.output.text


async def test_output_streams_while_it_runs(tmp_path, warden):
    seen = []
    cancelled = asyncio.Event()

    def emit(text):
        seen.append(text)
        cancelled.set()

    end = await run_process(command("echo first; sleep 60", tmp_path), warden, emit, cancelled)
    assert end.outcome == "cancelled"
    assert seen == ["first\n"]


async def test_input_is_empty(tmp_path, warden):
    end, _ = await run(command("cat; echo done", tmp_path), warden)
    assert end.output.text == "done\n"


async def test_timeout_terminates_then_kills_the_whole_group(tmp_path, warden):
    line = "trap '' TERM; (trap '' TERM; echo $BASHPID; exec sleep 300) & sleep 300; wait"
    started = time.monotonic()
    end, _ = await run(command(line, tmp_path, timeout_seconds=0.4), warden)
    assert end.outcome == "timed_out"
    assert end.exit_code == -signal.SIGKILL
    assert time.monotonic() - started < 5
    await eventually(lambda: not psutil.pid_exists(int(end.output.text)) or _dead(int(end.output.text)))


async def test_a_cancel_gives_the_grace_then_kills_the_whole_group(tmp_path, warden):
    line = "trap 'echo told' TERM; (trap '' TERM; exec sleep 300) & inner=$!; echo $inner; while true; do wait; done"
    cancelled = asyncio.Event()

    def emit(_text):
        asyncio.get_running_loop().call_later(0.1, cancelled.set)

    started = time.monotonic()
    end = await run_process(command(line, tmp_path, grace_seconds=0.5), warden, emit, cancelled)
    assert (end.outcome, end.exit_code) == ("cancelled", -signal.SIGKILL)
    assert 0.5 <= time.monotonic() - started < 5
    inner, told = end.output.text.split()
    assert told == "told"
    await eventually(lambda: _dead(int(inner)))


async def test_term_gives_a_grace(tmp_path, warden):
    line = "trap 'echo tidy; exit 0' TERM; sleep 300 & wait"
    end, _ = await run(command(line, tmp_path, timeout_seconds=0.3, grace_seconds=5), warden)
    assert (end.outcome, end.exit_code, end.output.text) == ("timed_out", 0, "tidy\n")


async def test_what_it_leaves_running_dies_with_it(tmp_path, warden):
    started = time.monotonic()
    end, _ = await run(command("sleep 300 & echo $!", tmp_path), warden)
    assert end.outcome == "exited"
    assert time.monotonic() - started < 3
    await eventually(lambda: _dead(int(end.output.text)))


async def test_cancelling_the_task_kills_it(tmp_path, warden):
    task = asyncio.ensure_future(run(command("echo $$ > pid; sleep 300", tmp_path), warden))
    await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: _dead(int((tmp_path / "pid").read_text())))


async def test_what_does_not_start_says_why(tmp_path, warden):
    end, _ = await run(Command(["true"], tmp_path / "nowhere", ENVIRONMENT, 5, 5, MIB), warden)
    assert end.outcome == "not_spawned"
    assert "nowhere" in end.output.text
    end, _ = await run(Command(["no-such-program"], tmp_path, ENVIRONMENT, 5, 5, MIB), warden)
    assert (end.outcome, end.exit_code) == ("exited", 127)
    assert "not found" in end.output.text


async def test_much_output_is_bounded(tmp_path, warden):
    end, emitted = await run(command("yes | head -c 5000000", tmp_path, live_bytes_max=1_000), warden)
    assert len(end.output.text.encode()) <= 32_768
    assert end.output.bytes_cut > 4_900_000
    assert len(emitted) < 1_100


async def test_a_killed_warden_is_replaced(tmp_path, warden):
    await run(command("true", tmp_path), warden)
    first = warden._process
    first.kill()
    await first.wait()
    end, _ = await run(command("true", tmp_path), warden)
    assert end.exit_code == 0
    assert warden._process is not first


def test_processes_die_with_an_executor_that_is_killed(tmp_path):
    program = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from services.tool_executor.workspace.process import Command, Warden, run_process

        async def main():
            line = "(echo $BASHPID > inner; exec sleep 300) & echo $$ > outer; sleep 300"
            command = Command(["/bin/bash", "-c", line], Path(sys.argv[1]), {"PATH": "/usr/bin:/bin"}, 60, 5, 1000)
            await run_process(command, Warden(), print, asyncio.Event())

        asyncio.run(main())
    """)
    executor = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=Path.cwd())
    pids = [tmp_path / "inner", tmp_path / "outer"]
    _wait(lambda: all(path.exists() and path.read_text().strip() for path in pids))
    numbers = [int(path.read_text()) for path in pids]
    assert not any(map(_dead, numbers))
    executor.send_signal(signal.SIGKILL)
    executor.wait()
    _wait(lambda: all(map(_dead, numbers)))


def _dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait(condition, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
