"""From the operator's file to what is in the catalog, and to hooks."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas.tools import CatalogSource
from schemas.topics import TOOL_CATALOG
from services.chassis.catalog.publisher import Publisher
from services.chassis.catalog.reader import CatalogReader
from services.tool_executor.assembly import Assembly, assembled
from services.tool_executor.offering.hooks import CommandHook, Question, ToolHook
from services.tool_executor.offering.tools_file import parse_tools_file
from services.tool_executor.settings import ExecutorSettings
from services.tool_executor.workspace.process import Warden
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.simulated.log import SimulatedBroker
from tests.support.simulated.virtual_time import VirtualClock
from tests.support.simulated.waiting import eventually

FILE = """
pool: payments
builtin: [shell, echo]
tools:
  shell: {effect: reconcilable, reconcile: {command: [echo, '{"status": "done"}']}, timeout_seconds: 20}
  echo: {effect: reconcilable, reconcile: {tool: shell}}
"""
CLIENT_TOOLS = """
client_tools:
  ask_customer: {description: Ask., effect: idempotent, timeout_seconds: 60}
"""


@asynccontextmanager
async def started(tmp_path: Path, text: str, broker: SimulatedBroker) -> AsyncIterator[tuple[Assembly, CatalogReader]]:
    """Once all that it publishes at its start has been published."""
    log, tasks = broker.connect(), []
    catalog = CatalogReader(log)

    def spawn(work, name):
        tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    settings = ExecutorSettings(executor_workspace_root=tmp_path, executor_grace_seconds=1.5)
    publisher = Publisher(log, VirtualClock(), catalog)
    file = parse_tools_file(text, "tools.yaml", {})
    assembly = assembled(settings, file, os.environ, publisher, spawn, MemoryArtifacts())
    spawn(catalog.run(), "catalog")
    assembly.start()
    await asyncio.gather(*[task for task in tasks if task.get_name().startswith("publish ")])
    try:
        yield assembly, catalog
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await assembly.warden.close()


@pytest.fixture
def broker() -> SimulatedBroker:
    return SimulatedBroker({TOOL_CATALOG.name: 1}, VirtualClock())


async def test_the_catalog_shows_policies_and_client_tools(tmp_path, broker):
    async with started(tmp_path, FILE + CLIENT_TOOLS, broker) as (_, catalog):
        await eventually(lambda: len(catalog.catalog.tools) == 3)
        shell, asked = catalog.catalog.find("shell"), catalog.catalog.find("ask_customer")
        assert (shell.pool, shell.spec.effect, shell.spec.reconcile) == ("payments", "reconcilable", "command:echo")
        assert catalog.catalog.find("echo").spec.reconcile == "tool:shell"
        assert (asked.pool, asked.source, asked.spec.effect, asked.spec.timeout_seconds) == (
            "client",
            "client",
            "idempotent",
            60,
        )


async def test_a_file_that_says_nothing_of_client_tools_leaves_them_and_an_empty_section_takes_them_away(
    tmp_path, broker
):
    async with started(tmp_path, FILE + CLIENT_TOOLS, broker) as (_, catalog):
        await eventually(lambda: catalog.catalog.find("ask_customer") is not None)
    async with started(tmp_path, FILE, broker) as (_, catalog):
        await eventually(lambda: len(catalog.catalog.tools) == 3)
    async with started(tmp_path, "client_tools: {}", broker) as (_, catalog):
        await eventually(lambda: catalog.catalog.sources.get("client") == CatalogSource(source="client", pool="client"))


async def test_what_is_in_the_catalog_already_is_not_written_again(tmp_path, broker):
    async with started(tmp_path, CLIENT_TOOLS, broker) as (_, catalog):
        await eventually(lambda: catalog.catalog.find("ask_customer") is not None)
    written = len(broker.records(TOOL_CATALOG.name, 0))
    assert written == 2
    async with started(tmp_path, CLIENT_TOOLS, broker):
        assert len(broker.records(TOOL_CATALOG.name, 0)) == written
    async with started(tmp_path, CLIENT_TOOLS.replace("60", "61"), broker):
        assert len(broker.records(TOOL_CATALOG.name, 0)) == written + 1


async def test_hooks_are_those_of_the_file(tmp_path, broker):
    async with started(tmp_path, FILE, broker) as (assembly, _):
        hooks = assembly.hooks()
        assert isinstance(hooks["shell"], CommandHook)
        assert isinstance(hooks["echo"], ToolHook)
        assert set(hooks) == {"shell", "echo"}
        # The key is its last argument, so that `echo` prints it after the answer: no JSON.
        with pytest.raises(Exception, match="no JSON"):
            await hooks["shell"].ask(Question("acme", "t", "1.1.0", 1, "key", 5))


async def test_the_grace_of_killed_tools_is_the_operators(tmp_path, broker):
    async with started(tmp_path, FILE, broker) as (assembly, _):
        assert isinstance(assembly.warden, Warden)
        assert assembly.grace_seconds == 1.5
        assert assembly._builtin("shell")[1]._grace_seconds == 1.5  # type: ignore[attr-defined]  # a builtin tool has it
        assert assembly.hooks()["shell"]._grace_seconds == 1.5  # type: ignore[attr-defined]  # a builtin tool has it
