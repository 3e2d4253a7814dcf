"""`make demo`, as a newcomer runs it: it says what it saw, exits 0, and is gone without a trace."""

import asyncio
import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SECONDS_MAX = 500
MARK = "DEMO_TEST_MARK"
CHECKS = 13


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Not below pytest's own folders: every pytest that starts closes those to the user that Postgres runs as."""
    with tempfile.TemporaryDirectory(prefix="threadlog-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


async def test_the_demo_holds_and_leaves_nothing(temporary: Path) -> None:
    mark = uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "demo",
        env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    except BaseException:
        process.terminate()
        await process.wait()
        raise
    said = output.decode()
    assert process.returncode == 0, said
    assert said.count("\n✓ ") == CHECKS, said
    assert said.count("kill -9") == 3
    assert files_in(temporary) == []
    assert processes_with(mark, str(temporary)) == []


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def processes_with(mark: str, folder: str) -> list[str]:
    """What still runs of it: by the environment that it inherited, or by the folder that its command line names."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.environ().get(MARK) == mark or folder in command:
                found.append(command)
    return found
