"""Child processes of tools, which never outlive their executor.

Theory of operation. A tool's process that outlives its executor could still change things after the call was declared
lost and ran elsewhere. So every process must be dead once its executor is.

- Each child leads a process group of its own, so that one signal reaches everything that it started.
- The executor may die without a chance to kill anything (SIGKILL, out of memory). A *warden* does it then: one small
  shell per executor, which is told each group over a pipe. The kernel closes the pipe when the executor dies, however
  it dies, and the warden kills the groups that are left. It ignores the signals that people send to whole sessions.
- Between the start of a child and the moment in which the warden knows it, the executor may die, too. So the child
  first waits for one line on its standard input, and gets it only once the warden has been told. If the executor dies
  before that, the child reads the end of its input and ends without running the command.

What a child moves into another process group or session is out of reach; only a sandbox with its own process namespace
stops that (`workspace.sandbox`). The kernel's PR_SET_PDEATHSIG is no alternative: it reaches the direct child alone,
and setting it needs Python code between fork and exec.

When a command ends by itself, what it has left running in its group is killed as well. Its output is read for a moment
longer, since bytes may still be in the pipe.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import structlog

from services.tool_executor.attachments import Spool
from services.tool_executor.output import INLINE_BYTES_MAX, Cut, HeadTail, LiveText

SHELL: Final = "/bin/bash"
LIVE_BYTES_MAX: Final = 262_144
"""How much of one command's output watchers see live. The progress topic is for people, who read no more of it."""
KILLED_WAIT_SECONDS: Final = 5.0
"""How long a process may take to vanish after SIGKILL. One that is stuck in the kernel is reported and left behind."""
DRAIN_SECONDS: Final = 0.25
"""How long the output is still read after the end. A process that left the group may hold the pipe open for ever."""

_WARDEN = """
trap '' INT TERM HUP QUIT
declare -A groups
while IFS=' ' read -r sign group; do
    if [[ $sign == + ]]; then groups[$group]=1; else unset "groups[$group]"; fi
done
for group in "${!groups[@]}"; do kill -KILL -- "-$group"; done 2>/dev/null
"""
_AFTER_GO = 'IFS= read -r go && exec "$@" </dev/null'

log = structlog.get_logger()


class Warden:
    """The process that kills the groups that are left when the executor dies.

    It starts when it is first needed, and again if somebody kills it; a new one is told all groups that are alive.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._groups: set[int] = set()
        self._starting = asyncio.Lock()

    async def ready(self) -> None:
        """Make sure that the warden runs. Await this before each start of a process that it shall watch."""
        if self._alive():
            return
        async with self._starting:
            if not self._alive():
                await self._start()

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """Stop watching a group that is dead. Its number may be used again by a process that is none of ours."""
        self._groups.discard(group)
        self._tell(f"- {group}\n")

    async def close(self) -> None:
        """End the warden, which kills the groups that are still watched."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILLED_WAIT_SECONDS)

    def _alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            SHELL,
            "-c",
            _WARDEN,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={},
            cwd="/",
        )
        self._tell("".join(f"+ {group}\n" for group in sorted(self._groups)))

    def _tell(self, lines: str) -> None:
        process = self._process
        if process is None or process.stdin is None or not self._alive() or process.stdin.is_closing():
            return
        process.stdin.write(lines.encode())


ProcessOutcome: TypeAlias = Literal["exited", "timed_out", "cancelled", "not_spawned"]


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run, where, and within which limits."""

    argv: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    timeout_seconds: float
    grace_seconds: float
    """Time between SIGTERM and SIGKILL."""
    kept_bytes_max: int
    """How much of the output is kept for the artifact store, if it does not fit the result."""
    output_bytes_max: int = INLINE_BYTES_MAX
    """How much of the output the result shows."""
    live_bytes_max: int = LIVE_BYTES_MAX
    """How much of the output watchers see while the command runs."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    outcome: ProcessOutcome
    exit_code: int | None
    """None if it did not start or is still there; a negative number is the signal that ended it."""
    output: Cut
    """Standard output and standard error together, in the order in which they came."""
    whole: Spool | None
    """The whole output, if it is more than the result shows. The caller closes it."""
    seconds: float


async def run_process(
    command: Command, warden: Warden, emit: Callable[[str], None], cancelled: asyncio.Event
) -> ProcessEnd:
    """Run the command to its end, its timeout, or until `cancelled` is set.

    When this returns, or is itself cancelled, the process group has been killed. A command that cannot be started is
    an outcome (`not_spawned`), not an exception.
    """
    started = time.monotonic()
    output = _Output(command, emit)
    reading, writing = os.pipe()
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, os.fdopen(reading, "rb", 0))
        try:
            return await _run(command, warden, output, writing, started, cancelled)
        finally:
            transport.close()
    finally:
        if not output.writer_closed:
            os.close(writing)


async def _run(
    command: Command, warden: Warden, output: "_Output", writing: int, started: float, cancelled: asyncio.Event
) -> ProcessEnd:
    try:
        await warden.ready()
        process = await asyncio.create_subprocess_exec(
            SHELL,
            "-c",
            _AFTER_GO,
            SHELL,
            *command.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=writing,
            stderr=writing,
            cwd=command.cwd,
            env=dict(command.environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = Cut(f"{type(error).__name__}: {error}", 0)
        return ProcessEnd("not_spawned", None, why, None, time.monotonic() - started)
    os.close(writing)
    output.writer_closed = True
    try:
        warden.watch(process.pid)
        _let_go(process)
        outcome = await _wait(process, command.timeout_seconds, cancelled)
        if outcome != "exited":
            await _terminate(process, command.grace_seconds)
        kill_group(process.pid)
        with suppress(TimeoutError):
            await asyncio.wait_for(output.closed.wait(), DRAIN_SECONDS)
        return ProcessEnd(outcome, process.returncode, output.buffer.cut(), output.whole, time.monotonic() - started)
    finally:
        # Also when this task is cancelled: the group dies before the warden forgets it.
        kill_group(process.pid)
        warden.forget(process.pid)
        if process.stdin is not None:
            process.stdin.close()


def kill_group(group: int, sent: signal.Signals = signal.SIGKILL) -> None:
    """Signal every process of the group; do nothing if there is none."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sent)


def _let_go(process: asyncio.subprocess.Process) -> None:
    """Let the child become the command. It may be dead already, which its end will show."""
    assert process.stdin is not None
    with suppress(OSError, RuntimeError):
        process.stdin.write(b"go\n")


async def _wait(
    process: asyncio.subprocess.Process, timeout_seconds: float, cancelled: asyncio.Event
) -> Literal["exited", "timed_out", "cancelled"]:
    async with asyncio.TaskGroup() as group:
        ended = group.create_task(process.wait())
        stopped = group.create_task(cancelled.wait())
        await asyncio.wait({ended, stopped}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        outcome: Literal["exited", "timed_out", "cancelled"] = (
            "exited" if ended.done() else "cancelled" if stopped.done() else "timed_out"
        )
        ended.cancel()
        stopped.cancel()
    return outcome


async def _terminate(process: asyncio.subprocess.Process, grace_seconds: float) -> None:
    """Ask the group to end, and kill it after the grace time."""
    kill_group(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), grace_seconds)
    kill_group(process.pid)
    try:
        await asyncio.wait_for(process.wait(), KILLED_WAIT_SECONDS)
    except TimeoutError:
        log.error("process_survives_sigkill", pid=process.pid)


class _Output(asyncio.Protocol):
    """Receives the output: head and tail for the result, all of it for the store, the beginning for watchers."""

    def __init__(self, command: Command, emit: Callable[[str], None]) -> None:
        self.buffer = HeadTail(command.output_bytes_max)
        self.whole: Spool | None = None
        self.closed = asyncio.Event()
        self.writer_closed = False
        self._inline_max = command.output_bytes_max
        self._kept_max = command.kept_bytes_max
        self._live = LiveText(command.live_bytes_max)
        self._emit = emit

    def data_received(self, data: bytes) -> None:
        # A temporary file is opened only for output that the result cannot show.
        if self.whole is None and self.buffer.bytes_seen + len(data) > self._inline_max:
            self.whole = Spool(self._kept_max)
            self.whole.add(self.buffer.head())
        if self.whole is not None:
            self.whole.add(data)
        self.buffer.add(data)
        if text := self._live.text(data):
            self._emit(text)

    def connection_lost(self, _exc: Exception | None, /) -> None:
        self.closed.set()
