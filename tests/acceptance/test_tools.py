"""Tools on real processes: a reconcilable one whose executor is killed before and after its effect, and a client's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.client.client import RefusedError
from services.client.sse import JsonObject
from tests.acceptance.test_kill import applied, follow, wait_for_lines
from tests.support.processes.services import database
from tests.support.processes.system import System, system

SCRIPT = r"""
rules:
  - match: {last_user: "^run (?P<command>.+)", steps: 0}
    calls:
      - {tool: shell, args: {command: "{{command}}"}}
  - match: {last_user: "^ask", steps: 0}
    calls:
      - {tool: ask_customer, args: {question: "Which size?"}}
  - match: always
    text: Done.
"""
TOOLS = """
sandbox: {{enforcement: "off"}}
builtin: [shell]
tools:
  shell:
    effect: reconcilable
    timeout_seconds: 5
    max_attempts: 3
    reconcile: {{command: [{hook}, {ledger}]}}
client_tools:
  ask_customer:
    input_schema: {{type: object, properties: {{question: {{type: string}}}}, required: [question]}}
"""
HOOK = """#!/bin/sh
if grep -q "$2" "$1"; then echo '{"status": "done", "result": "it is in the ledger", "note": "line found"}'
else echo '{"status": "not_done"}'; fi
"""
UNCONFINED: JsonObject = {"permission_profile": "full"}
LEASE_SECONDS = 3


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    path.touch()
    return path


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory, ledger: Path
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("tools")
    hook = folder / "check-ledger"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    environment = {
        "THREADLOG_EXECUTOR_LEASE_SECONDS": str(LEASE_SECONDS),
        "THREADLOG_EXECUTOR_RECONCILE_GRACE_SECONDS": "1",
    }
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder,
            kafka=kafka_bootstrap,
            postgres=dsn,
            script=SCRIPT,
            tools=TOOLS.format(hook=hook, ledger=ledger),
            environment=environment,
        ) as found,
    ):
        yield found


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines()


async def test_an_executor_killed_after_the_effect_is_followed_by_one_that_asks(running: System, ledger: Path) -> None:
    before = len(lines(ledger))
    async with running.client() as client:
        command = f"echo $THREADLOG_IDEMPOTENCY_KEY >> {ledger}; sleep 60"
        thread = (await client.create_thread(text=f"run {command}", config=UNCONFINED)).thread
        await follow(client, thread, until="tool_call.started")
        await wait_for_lines(ledger, before + 1)
        running.supervisor.kill("tool-executor")
        facts = await follow(client, thread, until="turn.ended")
    (resolved,) = applied(facts, "tool_call.resolved")
    assert resolved["decision"] == "succeeded"
    assert resolved["note"] == "the downstream says that it was done: line found"
    assert len(applied(facts, "tool_call.dispatched")) == 1
    assert lines(ledger)[before:] == [applied(facts, "tool_call.dispatched")[0]["idempotency_key"]]
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"


async def test_an_executor_killed_before_the_effect_is_followed_by_one_that_runs_it(
    running: System, ledger: Path
) -> None:
    before = len(lines(ledger))
    async with running.client() as client:
        command = f"sleep 3; echo $THREADLOG_IDEMPOTENCY_KEY >> {ledger}"
        thread = (await client.create_thread(text=f"run {command}", config=UNCONFINED)).thread
        started = await follow(client, thread, until="tool_call.started")
        running.supervisor.kill("tool-executor")
        facts = await follow(client, thread, until="turn.ended")
    (resolved,) = applied(facts, "tool_call.resolved")
    assert resolved["decision"] == "again"
    assert [data["attempt"] for data in applied(facts, "tool_call.dispatched")] == [1, 2]
    assert len(lines(ledger)) == before + 1, "done once"
    assert applied(started, "tool_call.started")[0]["executor"] != applied(facts, "tool_call.started")[1]["executor"]
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"


async def test_a_client_tool_is_offered_and_run_by_the_client(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="ask the customer")).thread
        facts = await follow(client, thread, until="tool_call.dispatched")
        (dispatched,) = applied(facts, "tool_call.dispatched")
        assert (dispatched["pool"], dispatched["args"]) == ("client", {"question": "Which size?"})
        assert dispatched["idempotency_key"]
        await client.post_result(thread, "1.1.0", outcome="succeeded", result={"size": "large"})
        with pytest.raises(RefusedError):
            await client.post_result(thread, "1.1.0", outcome="succeeded", result={"size": "small"})
        facts = await follow(client, thread, until="turn.ended")
    (finished,) = applied(facts, "tool_call.finished")
    assert (finished["outcome"], finished["result"]) == ("succeeded", {"size": "large"})
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"
