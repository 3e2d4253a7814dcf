"""`threadlog import` and what it prints, against a running system."""

import asyncio
import json
import os
import sys
from pathlib import Path

from services.client.sse import JsonObject
from tests.support.processes.system import System


async def threadlog(running: System, *arguments: str) -> tuple[int, list[JsonObject]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **running.environment},
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    if process.returncode:
        sys.stdout.write(out.decode(errors="replace"))
    return process.returncode, [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]


async def imported(running: System, tool: str, path: Path, tenant: str) -> list[JsonObject]:
    code, lines = await threadlog(running, "import", tool, str(path), "--url", running.url, "--tenant", tenant)
    assert code == 0, lines
    return lines


def threads_of(lines: list[JsonObject]) -> list[JsonObject]:
    found = lines[-1]["imported"]
    assert lines[-1]["kind"] == "report" and isinstance(found, list)
    return [thread for thread in found if isinstance(thread, dict)]


def reports_of(lines: list[JsonObject]) -> list[JsonObject]:
    return [{name: line[name] for name in line if name not in {"kind", "imported"}} for line in lines[:-1]]


def data_of(page: JsonObject) -> list[JsonObject]:
    found = page["data"]
    assert isinstance(found, list)
    return [each for each in found if isinstance(each, dict)]
