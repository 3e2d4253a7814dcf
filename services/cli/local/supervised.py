"""Runs a program so that it cannot outlive whoever started it, not even after SIGKILL.

The owner starts this file as a small supervisor of its own session and holds the write end of the supervisor's
standard input. The supervisor starts the program and waits for the end of either one: when its input ends, because
the owner closed it or is gone, it stops the program, first politely, then by force. Should the supervisor itself be
killed, Linux sends the program the stop signal (PR_SET_PDEATHSIG). The kernel closes pipes of dead processes on every
system, so the first half also holds on macOS; and nothing here runs between fork and exec in a process with threads,
except in the supervisor, which has none yet.

A terminal's Ctrl-C reaches neither of the two: the owner decides in which order things stop.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypedDict

GRACE_SECONDS = 10.0
LOG_TAIL_BYTES = 4_000
PR_SET_PDEATHSIG = 1


class ProgramEndedError(RuntimeError):
    """The program ended although nobody asked it to; the text ends with the last lines of its log."""


class _Order(TypedDict):
    command: list[str]
    log: str
    stop_signal: int
    grace_seconds: float
    user: str | None


@dataclass(frozen=True, slots=True)
class Supervised:
    pid: int
    """Process id of the program itself: tests kill it, and the bench counts its CPU time."""
    log: Path
    _supervisor: subprocess.Popen[bytes]

    def is_running(self) -> bool:
        return self._supervisor.poll() is None

    def check(self) -> None:
        if not self.is_running():
            raise ProgramEndedError(f"{self._supervisor.args!r} ended early.\n{log_tail(self.log)}")


@contextlib.contextmanager
def supervised(
    command: Sequence[str],
    *,
    log: Path,
    stop_signal: signal.Signals = signal.SIGTERM,
    grace_seconds: float = GRACE_SECONDS,
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Supervised]:
    """Start `command` with its output appended to `log`. Leaving the context stops it."""
    order = _Order(
        command=list(command),
        log=str(log),
        stop_signal=stop_signal,
        grace_seconds=grace_seconds,
        user=user,
    )
    with subprocess.Popen(
        [sys.executable, "-I", __file__, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=None if environment is None else dict(environment),
    ) as supervisor:
        try:
            pid = _pipe(supervisor.stdout).readline()
            if not pid:
                raise ProgramEndedError(f"{command[0]} could not be started.\n{log_tail(log)}")
            yield Supervised(int(pid), log, supervisor)
        finally:
            _pipe(supervisor.stdin).close()
            try:
                supervisor.wait(grace_seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                supervisor.kill()


def log_tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return f"The end of {log}:\n{text}"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "opened as PIPE above"
    return pipe


def _supervise(order: _Order) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def die_with_supervisor() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, order["stop_signal"])

    with Path(order["log"]).open("ab") as log:
        try:
            program = subprocess.Popen(
                order["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=order["user"],
                extra_groups=None if order["user"] is None else [],
                preexec_fn=die_with_supervisor,  # noqa: PLW1509 - this process has one thread until the next lines
            )
        except OSError as error:
            log.write(f"{order['command'][0]}: {error}\n".encode())
            return 127

    def stop_when_the_owner_is_gone() -> None:
        sys.stdin.buffer.read()
        program.send_signal(order["stop_signal"])
        try:
            program.wait(order["grace_seconds"])
        except subprocess.TimeoutExpired:
            program.kill()

    threading.Thread(target=stop_when_the_owner_is_gone, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the owner may be gone already; then the thread above stops the program
        os.write(sys.stdout.fileno(), f"{program.pid}\n".encode())
    return program.wait()


if __name__ == "__main__":
    # The daemon thread may still be reading: leave without waiting for the lock of standard input.
    os._exit(_supervise(json.loads(sys.argv[1])) & 0xFF)
