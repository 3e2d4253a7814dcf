"""The demo's last scene: a session of each tool, recorded elsewhere, is imported and gone on with."""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from demo.stage import TENANT, DemoError, Screen, Stage
from services.cli.imports.importing import import_files
from services.client.client import ThreadlogClient
from services.client.sse import Fact, JsonObject
from services.importer.model import Tool
from services.importer.source_files import find_files

SESSIONS: Final = Path(__file__).with_name("sessions")
TOOLS: Final[tuple[Tool, ...]] = ("claude-code", "codex")
INPUT: Final = "Go on from here: what did we find out?"
SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class GoneOn:
    """An imported session, and its next turn."""

    tool: Tool
    thread: str
    turns: int
    """Turns that were imported."""
    calls: int
    outcome: str
    """Outcome of the turn that ran here."""
    answer: str


@dataclass(slots=True)
class _Collected:
    threads: list[JsonValue] = field(default_factory=list)

    def uploaded(self, done: int, total: int) -> None:
        """Two small files need no bar."""

    def imported(self, done: int) -> None: ...

    def file(self, report: dict[str, JsonValue], threads: list[JsonValue]) -> None:
        if report.get("problem") is not None:
            raise DemoError(f"{report['file']}: {report['problem']}")
        self.threads.extend(threads)


async def go_on_with_sessions(on: Stage, screen: Screen) -> list[GoneOn]:
    try:
        async with asyncio.timeout(SECONDS):
            return [await _go_on(on, screen, tool) for tool in TOOLS]
    except TimeoutError:
        raise DemoError(f"The imported sessions were not gone on with within {SECONDS:.0f} s.") from None


async def _go_on(on: Stage, screen: Screen, tool: Tool) -> GoneOn:
    collected = _Collected()
    files = find_files([SESSIONS / f"{tool}.jsonl"], tool)
    await import_files(files, tool, (on.url, None, TENANT), collected)
    [imported] = collected.threads
    assert isinstance(imported, dict)
    thread = str(imported["thread"])
    async with on.client() as client:
        turns = _data(await client.turns(thread))
        calls = _data(await client.tool_calls(thread))
        screen.tell(f"a session of {tool} is imported as thread {thread}: {len(turns)} turn, {len(calls)} call")
        screen.tell(f"input: {INPUT}")
        after = max([int(str(turn["ended_seq"])) for turn in turns], default=0)
        outcome, answer = await _turn(client, thread, after)
    screen.tell(f"answer: {answer}")
    return GoneOn(tool, thread, len(turns), len(calls), outcome, answer)


async def _turn(client: ThreadlogClient, thread: str, after: int) -> tuple[str, str]:
    """How it ended, and what was said last."""
    answer = ""
    await client.submit(thread, INPUT)
    async with aclosing(client.follow(thread, after)) as facts:
        async for fact in facts:
            if not isinstance(fact, Fact) or not fact.applied:
                continue
            if fact.kind == "step.finished":
                answer = _text(fact.data["items"])
            elif fact.kind == "turn.ended":
                return str(fact.data["outcome"]), answer
    raise DemoError(f"The turn of {thread} has no end.")


def _data(page: JsonObject) -> list[JsonObject]:
    found = page["data"]
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _text(items: JsonValue) -> str:
    parts = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return " ".join([str(part["text"]) for part in parts if part.get("type") == "text"])


async def verify_all(environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit status of `threadlog verify --all`, and its last line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "verify", "--all"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    lines = said.decode(errors="replace").strip().splitlines()
    assert process.returncode is not None
    return process.returncode, lines[-1] if lines else ""
