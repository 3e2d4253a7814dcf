"""`threadlog dev`: everything with no services installed, a service that dies comes back, nothing is left."""

import asyncio
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from services.cli.local.embedded import free_port
from services.client.client import ThreadlogClient
from services.client.sse import Fact, Live

READY_SECONDS = 300
GONE_SECONDS = 120
TURN_SECONDS = 180


class Dev:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.said = ""

    async def until(self, word: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(READY_SECONDS):
            while word not in self.said:
                line = await self.process.stdout.readline()
                assert line, self.said
                self.said += line.decode()

    async def command(self, *arguments: str) -> str:
        """What one says that is told to work with what was started here as `dev` says."""
        [line] = [line for line in self.said.splitlines() if "export THREADLOG_" in line]
        told = dict(word.split("=", 1) for word in shlex.split(line) if word.startswith("THREADLOG_"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("THREADLOG_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *["-m", "services.cli", *arguments],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environment, **told},
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def service(self, name: str) -> psutil.Process:
        [found] = [process for process in self.family() if process.cmdline()[-2:] == ["-m", f"services.{name}"]]
        return found


@pytest.fixture
def folder() -> Iterator[str]:
    """Not below pytest's own: where we are root, Postgres runs as somebody who may not look into it."""
    with tempfile.TemporaryDirectory(prefix="threadlog-test-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield made


@pytest.fixture
async def dev(folder: str) -> AsyncIterator[Dev]:
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("THREADLOG_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *["-m", "services.cli", "dev", "--port", str(port)],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**environment, "PYTHONUNBUFFERED": "1", "TMPDIR": folder},
    )
    found = Dev(process, port)
    try:
        await found.until("is ready")
        yield found
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def turn(client: ThreadlogClient, thread: str, after: int) -> tuple[list[Fact], str]:
    """The records of the next turn, and the text that was streamed."""
    facts: list[Fact] = []
    text = ""
    async with asyncio.timeout(TURN_SECONDS), aclosing(client.follow(thread, after, until_turn_end=True)) as events:
        async for event in events:
            if isinstance(event, Fact):
                facts.append(event)
            elif isinstance(event, Live):
                text += str(event.data.get("text") or "")
    assert [fact.seq for fact in facts] == list(range(after + 1, after + 1 + len(facts)))
    return facts, text


async def test_everything_runs_comes_back_and_goes(dev: Dev) -> None:
    assert "in memory" in dev.said
    async with ThreadlogClient(dev.url) as client:
        accepted = await client.create_thread(text="run echo one && sleep 2 && echo two")
        facts, text = await turn(client, accepted.thread, 0)
        assert "I run it." in text
        assert [fact.kind for fact in facts if fact.kind.startswith("t")][-1] == "turn.ended"
        [finished] = [fact for fact in facts if fact.kind == "tool_call.finished"]
        assert "one\ntwo" in finished.raw.decode().replace("\\n", "\n")
        dev.service("runtime").kill()
        await client.submit(accepted.thread, "hello")
        facts, text = await turn(client, accepted.thread, facts[-1].seq)
        assert facts[-1].data["outcome"] == "completed"
        page = await client.events(accepted.thread, after=facts[-1].seq)
        assert page == {"events": [], "next_after": facts[-1].seq, "end": True}
        await dev.until("Ctrl-C")
        assert len((await dev.command("export", accepted.thread)).splitlines()) > facts[-1].seq
        verified = await dev.command("verify", "--thread", f"dev/{accepted.thread}")
        assert "the views equal the log" in verified
    family = dev.family()
    dev.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(GONE_SECONDS):
        assert await dev.process.wait() == 0
    gone, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, alive
    assert len(gone) >= 6, "broker, database and four services"


async def test_nothing_outlives_a_killed_owner(dev: Dev) -> None:
    family = dev.family()
    dev.process.kill()
    await dev.process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, timeout=GONE_SECONDS)
    assert not alive, alive
