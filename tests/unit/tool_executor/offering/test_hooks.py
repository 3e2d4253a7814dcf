"""Reconcile hooks: commands with real processes, and tools."""

import asyncio
import os
from dataclasses import replace

import psutil
import pytest

from services.tool_executor.offering.hooks import CommandHook, HookFailedError, Question, ToolHook
from services.tool_executor.output import structured_result, text_result
from services.tool_executor.tools import Toolbox, ToolEnd
from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy
from tests.support.simulated.waiting import eventually

QUESTION = Question("acme", "t-1", "1.1.0", 1, "key-1", 10)


# Commands


def command(line: str, sandbox, warden, environment=None, grace_seconds: float = 0.3) -> CommandHook:
    return CommandHook(["/bin/bash", "-c", line, "check-charge"], environment or {}, sandbox, warden, grace_seconds)


async def test_a_command_gets_the_key_as_its_last_argument_and_in_its_environment(sandbox, warden, workspace):
    line = """printf '{"status": "done", "result": ["%s", "%s", "%s", "%s"]}' "$1" "$THREADLOG_IDEMPOTENCY_KEY" "$T" "$PWD" """
    said = await command(line, sandbox, warden, {"T": "token"}).ask(QUESTION)
    assert said == {"status": "done", "result": ["key-1", "key-1", "token", str(workspace)]}


async def test_what_it_printed_before_its_last_line_is_no_answer(sandbox, warden):
    line = """echo "looking it up" >&2; echo '{"half": '; echo '{"status": "not_done"}'"""
    assert await command(line, sandbox, warden).ask(QUESTION) == {"status": "not_done"}


async def test_an_answer_over_several_lines_is_one(sandbox, warden):
    assert await command("""printf '{\\n"status":\\n"done"\\n}\\n'""", sandbox, warden).ask(QUESTION) == {
        "status": "done"
    }


async def test_a_long_answer_is_read_whole(sandbox, warden):
    line = """printf '{"status": "done", "result": "%s"}' "$(head -c 100000 /dev/zero | tr '\\0' x)" """
    assert len((await command(line, sandbox, warden).ask(QUESTION))["result"]) == 100_000


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("""echo '{"status": "done"}'; exit 3""", "exit code 3"),
        ("kill -9 $$", "exit code -9"),
        ("true", "no JSON: ''"),
        ("echo garbage", "no JSON: 'garbage'"),
        ("head -c 1000000 /dev/zero", "no JSON"),
    ],
)
async def test_a_command_that_fails_or_babbles_answers_nothing(sandbox, warden, line, why):
    with pytest.raises(HookFailedError, match=r"exit code|no JSON") as raised:
        await command(line, sandbox, warden).ask(QUESTION)
    assert why in str(raised.value)


async def test_a_command_that_is_missing_answers_nothing(sandbox, warden):
    hook = CommandHook(["no-such-program"], {}, sandbox, warden, 0.1)
    with pytest.raises(HookFailedError, match="no-such-program: exit code 127"):
        await hook.ask(QUESTION)


async def test_a_command_that_hangs_is_killed(sandbox, warden, workspace):
    hook = command("trap '' TERM; echo $$ > pid; sleep 300 & wait", sandbox, warden, grace_seconds=0.1)
    with pytest.raises(HookFailedError, match="timed_out"):
        await hook.ask(replace(QUESTION, timeout_seconds=0.5))
    await eventually(lambda: not psutil.pid_exists(int((workspace / "pid").read_text())))


async def test_a_question_that_is_given_up_kills_its_command(sandbox, warden, workspace):
    asking = asyncio.ensure_future(command("echo $$ > pid; sleep 300", sandbox, warden).ask(QUESTION))
    await eventually(lambda: (workspace / "pid").exists() and (workspace / "pid").read_text().strip())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: not psutil.pid_exists(int((workspace / "pid").read_text())))


async def test_a_command_that_may_not_run_answers_nothing(root, warden):
    """Its profile must be enforced, and cannot."""
    strict = Sandbox(SandboxPolicy(root=root, enforcement="required", bubblewrap=None), os.environ)
    with pytest.raises(HookFailedError, match="must be enforced"):
        await command("true", strict, warden).ask(QUESTION)


# Tools


class Lookup:
    def __init__(self, end: ToolEnd) -> None:
        self.end = end
        self.requests = []

    async def run(self, request, emit, cancelled, /) -> ToolEnd:
        self.requests.append(request)
        emit("unheard")
        return self.end


def answering(result) -> ToolHook:
    toolbox = Toolbox()
    toolbox.put({"lookup": Lookup(ToolEnd("succeeded", result))})
    return ToolHook("lookup", toolbox)


async def test_a_tool_gets_the_key_as_its_argument_and_as_its_key():
    toolbox, lookup = Toolbox(), Lookup(ToolEnd("succeeded", text_result('{"status": "done"}')))
    toolbox.put({"lookup": lookup})
    assert await ToolHook("lookup", toolbox).ask(QUESTION) == {"status": "done"}
    (request,) = lookup.requests
    assert (request.tool, request.args, request.idempotency_key) == ("lookup", {"idempotency_key": "key-1"}, "key-1")
    assert (request.tenant, request.thread, request.call, request.attempt) == ("acme", "t-1", "1.1.0", 1)
    assert request.timeout_seconds == 10


DONE = {"status": "done", "result": {"id": "ch_1"}}


@pytest.mark.parametrize(
    "result",
    [
        structured_result([], DONE),
        structured_result(["it was done"], DONE),
        structured_result(["it was done"], {"result": DONE}),
        structured_result([], {"result": '{"status": "done", "result": {"id": "ch_1"}}'}),
        text_result('{"status": "done", "result": {"id": "ch_1"}}'),
        text_result('looked it up:\n{"status": "done", "result": {"id": "ch_1"}}'),
    ],
)
async def test_a_tool_answers_with_structure_or_as_text(result):
    assert await answering(result).ask(QUESTION) == DONE


@pytest.mark.parametrize(
    "result", [text_result("it was done"), structured_result([], {"id": 1}), None, "done", {"content": 7}]
)
async def test_a_tool_that_answers_something_else_is_judged_by_what_it_said(result):
    try:
        said = await answering(result).ask(QUESTION)
    except HookFailedError as error:
        assert "no JSON" in str(error)
    else:
        assert said == {"id": 1}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (ToolEnd("failed", text_result("the ledger is closed", True)), "the tool lookup failed: the ledger is closed"),
        (ToolEnd("lost", None, evidence="the connection broke"), "the tool lookup lost: the connection broke"),
        (ToolEnd("not_started", None, evidence="not connected"), "the tool lookup not_started: not connected"),
        (ToolEnd("timed_out", None), "the tool lookup timed_out: None"),
    ],
)
async def test_a_tool_that_fails_answers_nothing(end, why):
    toolbox = Toolbox()
    toolbox.put({"lookup": Lookup(end)})
    with pytest.raises(HookFailedError) as raised:
        await ToolHook("lookup", toolbox).ask(QUESTION)
    assert str(raised.value) == why


async def test_a_tool_that_this_executor_does_not_have_answers_nothing():
    with pytest.raises(HookFailedError, match="has no tool"):
        await ToolHook("lookup", Toolbox()).ask(QUESTION)
