"""MCP servers over both transports: how they answer, hang, die and come back."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from services.tool_executor.claiming.reconcile import Answer, answer_of
from services.tool_executor.offering.catalog import McpTools
from services.tool_executor.offering.hooks import Question, ToolHook
from services.tool_executor.offering.mcp import Backoff, McpServer
from services.tool_executor.offering.tools_file import McpServerConfig, ReconcileSection, ToolPolicy
from services.tool_executor.tools import Toolbox
from services.tool_executor.workspace.process import Warden
from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy
from tests.support.recorded.tool_requests import request, run, text_of
from tests.support.simulated.waiting import PATIENCE_SECONDS, eventually

STDIO_SERVER = Path(__file__).parents[1] / "support" / "processes" / "mcp_stdio_server.py"
HTTP_SERVER = Path(__file__).parents[1] / "support" / "processes" / "mcp_http_server.py"
GIT_SERVER = shutil.which("mcp-server-git", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
CONNECT_SECONDS = PATIENCE_SECONDS
LISTENS = b"Uvicorn running on"
"""What a server over HTTP prints once its port takes connections."""
QUICK = Backoff(first_seconds=0.05, most_seconds=0.5, steady_seconds=0.0)


class Offered:
    """The last that a server offered, and how often it did."""

    def __init__(self) -> None:
        self.tools: McpTools | None = None
        self.times = 0

    def __call__(self, _server: McpServer, tools: McpTools) -> None:
        self.tools = tools
        self.times += 1


@pytest.fixture
def offered() -> Offered:
    return Offered()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(SandboxPolicy(root=tmp_path.resolve() / "workspaces"), os.environ)


@contextlib.asynccontextmanager
async def serving(
    config: McpServerConfig, sandbox: Sandbox, offered: Offered, policies: Mapping[str, ToolPolicy] | None = None
) -> AsyncIterator[McpServer]:
    warden = Warden()
    server = McpServer("tested", config, "default", policies or {}, sandbox, warden, offered, QUICK)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve())
        yield server
        task.cancel()
    await warden.close()


def stdio(tmp_path: Path, **more) -> McpServerConfig:
    return McpServerConfig(command=sys.executable, args=(str(STDIO_SERVER), str(tmp_path)), **more)


@pytest.fixture
async def server(tmp_path, sandbox, offered) -> AsyncIterator[McpServer]:
    async with serving(stdio(tmp_path), sandbox, offered) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        yield server


async def pid_of(server: McpServer) -> int:
    return int(text_of((await run(server, request("pid")))[0]))


async def test_tools_are_offered_with_the_effect_that_their_annotations_suggest(server, offered):
    effects = {spec.name: spec.effect for spec in offered.tools.entry.tools}
    assert effects["add"] == "pure"
    assert effects["key"] == "idempotent"
    assert effects["die"] == "unsafe"
    assert offered.tools.entry.source == "mcp:tested"


async def test_answers(server):
    end, _ = await run(server, request("add", a=1, b=2))
    assert (end.outcome, text_of(end)) == ("succeeded", "3")
    assert end.result["structured"] == {"result": 3}
    end, _ = await run(server, request("key"))
    assert text_of(end) == "key-1"
    end, _ = await run(server, request("fail"))
    assert (end.outcome, end.result["is_error"]) == ("failed", True)
    end, _ = await run(server, request("add", a="x"))
    assert end.outcome == "failed"
    assert "valid integer" in text_of(end)
    end, _ = await run(server, request("unheard_of"))
    assert end.outcome == "failed"
    assert "no longer has" in text_of(end)
    end, emitted = await run(server, request("report", steps=2))
    assert text_of(end) == "reported"
    assert emitted == "working (1/2)\nworking (2/2)\n"


async def test_calls_run_beside_each_other(server):
    ends = await asyncio.gather(*(run(server, request("add", a=n, b=n)) for n in range(50)))
    assert [text_of(end) for end, _ in ends] == [str(2 * n) for n in range(50)]


async def test_a_call_that_takes_too_long_is_lost_unless_it_is_pure(server, tmp_path):
    end, _ = await run(server, replace(request("hang"), timeout_seconds=0.5))
    assert end.outcome == "lost"
    assert "within 0.5 s" in end.evidence
    end, _ = await run(server, replace(request("hang_pure"), timeout_seconds=0.5))
    assert end.outcome == "timed_out"
    await eventually((tmp_path / "hang.cancelled").exists)
    await eventually((tmp_path / "hang_pure.cancelled").exists)
    assert (await run(server, request("add", a=1, b=1)))[0].outcome == "succeeded"


async def test_a_cancelled_call_is_told_to_the_server(server, tmp_path):
    end, _ = await run(server, request("hang"), cancel_after=0.3)
    assert end.outcome == "lost"
    assert "cancelled" in end.evidence
    await eventually((tmp_path / "hang.cancelled").exists)
    end, _ = await run(server, request("hang_pure"), cancel_after=0.1)
    assert end.outcome == "cancelled"


async def test_a_cancelled_task_is_told_to_the_server_too(server, tmp_path):
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run(server, request("hang")))
        await eventually((tmp_path / "hang.started").exists)
        running.cancel()
    await eventually((tmp_path / "hang.cancelled").exists)


async def test_a_server_that_dies_midway_leaves_its_calls_lost_and_comes_back(server, tmp_path, offered):
    hanging = asyncio.ensure_future(run(server, request("hang")))
    await eventually((tmp_path / "hang.started").exists)
    end, _ = await run(server, request("die"))
    assert end.outcome == "lost"
    assert "about to die" in end.evidence
    assert (await hanging)[0].outcome == "lost"
    end, _ = await run(server, request("add", a=2, b=3))
    assert (end.outcome, text_of(end)) == ("succeeded", "5")
    assert (tmp_path / "died").read_text() == "x"
    assert offered.times == 1


async def test_a_server_that_is_killed_while_idle_comes_back(server):
    pid = await pid_of(server)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: server.problem is not None)
    assert await server.wait_connected(CONNECT_SECONDS)
    assert await pid_of(server) != pid


async def test_the_server_ends_with_us(tmp_path, sandbox, offered):
    async with serving(stdio(tmp_path), sandbox, offered) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        pid = await pid_of(server)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("exec no-such-server", "Connection closed"),
        ("exec sleep 100", "in time"),
        ("echo nonsense", "Connection closed"),
    ],
)
async def test_a_server_that_does_not_come_up_leaves_calls_not_started(tmp_path, sandbox, offered, line, problem):
    config = McpServerConfig(command="bash", args=("-c", line), connect_seconds=0.7, call_wait_seconds=1.5)
    async with serving(config, sandbox, offered) as server:
        end, _ = await run(server, request("add", a=1, b=1))
        assert end.outcome == "not_started"
        assert problem in end.evidence
        assert not await server.wait_connected(0.1)
        assert (server.name, bool(server.problem)) == ("tested", True)
    assert offered.tools is None


async def test_policy_and_bound_arguments(tmp_path, sandbox, offered):
    policies = {
        "my_add": ToolPolicy(effect="unsafe", timeout_seconds=5),
        "my_die": ToolPolicy(enabled=False),
    }
    config = stdio(tmp_path, prefix="my_", bound_arguments={"place": "{cwd}|{tenant}/{thread}"})
    async with serving(config, sandbox, offered, policies) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        specs = {spec.name: spec for spec in offered.tools.entry.tools}
        assert (specs["my_add"].effect, specs["my_add"].parallel, specs["my_add"].timeout_seconds) == (
            "unsafe",
            False,
            5,
        )
        assert "my_die" not in specs
        assert set(specs["my_where"].input_schema["properties"]) == {"other"}
        assert specs["my_where"].input_schema["required"] == []
        end, _ = await run(server, request("my_where", other="x"))
        workspace = tmp_path.resolve() / "workspaces" / "acme" / "t-1"
        assert text_of(end) == f"{workspace}|acme/t-1 x"
        end, _ = await run(server, request("my_where", {"cwd": "../.."}))
        assert "outside the workspace" in text_of(end)


async def test_the_downstream_of_a_lost_call_is_asked_by_its_key(tmp_path, sandbox, offered):
    """By a tool that the model is not offered."""
    policies = {
        "create_charge": ToolPolicy(effect="reconcilable", reconcile=ReconcileSection(tool="lookup_charge")),
        "lookup_charge": ToolPolicy(enabled=False),
    }
    async with serving(stdio(tmp_path), sandbox, offered, policies) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        specs = {spec.name: spec for spec in offered.tools.entry.tools}
        assert "lookup_charge" not in specs
        assert specs["create_charge"].reconcile == "tool:lookup_charge"
        toolbox = Toolbox()
        toolbox.put(dict.fromkeys(offered.tools.server_names, server))
        hook = ToolHook("lookup_charge", toolbox)
        question = Question("acme", "t-1", "1.1.0", 1, "key-1", 10)
        assert answer_of(await hook.ask(question)) == Answer("not_done")
        end, _ = await run(toolbox, request("create_charge", cents=1200))
        assert end.outcome == "lost"
        answer = answer_of(await hook.ask(question))
        assert (answer.status, answer.note) == ("done", "found by its key")
        assert answer.result["structured"] == {"cents": 1200}
        assert answer_of(await hook.ask(replace(question, idempotency_key="key-2"))) == Answer("not_done")


def test_servers_die_with_an_executor_that_is_killed(tmp_path):
    program = textwrap.dedent("""
        import asyncio, os, sys
        from pathlib import Path
        from services.tool_executor.offering.mcp import McpServer
        from services.tool_executor.workspace.process import Warden
        from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy
        from services.tool_executor.offering.tools_file import McpServerConfig

        async def main():
            here = Path(sys.argv[1])
            # Ignores the end of its input, as a hung server does. What is asked first comes once it is watched.
            line = f"trap '' TERM HUP; read -r first; echo $$ > {here}/pid; sleep 300"
            config = McpServerConfig(command="bash", args=("-c", line))
            sandbox = Sandbox(SandboxPolicy(root=here), os.environ)
            await McpServer("s", config, "p", {}, sandbox, Warden(), print).serve()

        asyncio.run(main())
    """)
    executor = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=Path.cwd())
    pid = tmp_path / "pid"
    asyncio.run(eventually(lambda: pid.exists() and pid.read_text().strip()))
    executor.send_signal(signal.SIGKILL)
    executor.wait()
    asyncio.run(eventually(lambda: not psutil.pid_exists(int(pid.read_text()))))


# Over HTTP


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextlib.asynccontextmanager
async def http_server(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server that listens. How long its start takes depends on the machine, so it is waited for, not polled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HTTP_SERVER), str(port), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            said = b""
            while LISTENS not in said:
                said = await process.stderr.readline()
                assert said, "the server ended before it listened"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_http(sandbox, offered):
    port = free_port()
    config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer t"})
    async with http_server(port), serving(config, sandbox, offered) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        end, _ = await run(server, request("greet", name="you"))
        assert end.result["structured"] == {"greeting": "Hello you"}
        assert json.loads(text_of(end)) == {"greeting": "Hello you"}
        end, _ = await run(server, request("key"))
        assert text_of(end) == "key-1 Bearer t"
        end, _ = await run(server, replace(request("slow", seconds=60), timeout_seconds=0.3))
        assert end.outcome == "lost"
        ends = await asyncio.gather(*(run(server, request("slow", seconds=0.1)) for _ in range(10)))
        assert all(end.outcome == "succeeded" for end, _ in ends)


async def test_a_cancelled_call_is_told_to_an_http_server(sandbox, offered, tmp_path):
    port = free_port()
    config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp")
    async with http_server(port), serving(config, sandbox, offered) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        cancelled = asyncio.Event()
        hanging = asyncio.ensure_future(
            server.run(request("hang", folder=str(tmp_path)), lambda _text: None, cancelled)
        )
        await eventually((tmp_path / "hang.started").exists)
        cancelled.set()
        end = await hanging
        assert end.outcome == "lost"
        assert "cancelled" in end.evidence
        await eventually((tmp_path / "hang.cancelled").exists)
        assert (await run(server, request("greet", name="you")))[0].outcome == "succeeded"


async def test_an_http_server_that_is_away_leaves_calls_not_started(sandbox, offered):
    port = free_port()
    config = McpServerConfig(url=f"http://127.0.0.1:{port}/mcp", call_wait_seconds=0.5)
    async with serving(config, sandbox, offered) as server:
        await eventually(lambda: "cannot be reached" in str(server.problem))
        end, _ = await run(server, request("greet", name="you"))
        assert end.outcome == "not_started"
        assert "cannot be reached" in end.evidence
        async with http_server(port) as process:
            assert await server.wait_connected(CONNECT_SECONDS)
            # One call breaks off midway; the session and the other calls are not touched by it.
            end, _ = await run(server, request("die"))
            assert end.outcome == "lost"
            await process.wait()
        end, _ = await run(server, request("greet", name="you"))
        assert end.outcome == "not_started"
        async with http_server(port):
            end, _ = await run(server, request("greet", name="you"))
            assert end.outcome == "succeeded"


# A server as people use it


@pytest.mark.skipif(GIT_SERVER is None, reason="mcp-server-git is not installed")
async def test_mcp_server_git(tmp_path, sandbox, offered):
    workspace = tmp_path.resolve() / "workspaces" / "acme" / "t-1"
    repository = workspace / "repository"
    repository.mkdir(parents=True)
    git = ["git", "-C", str(repository), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    run_git = functools.partial(subprocess.run, check=True)
    run_git([*git, "init", "-q", "-b", "main"])
    (repository / "f.txt").write_text("one\n")
    run_git([*git, "add", "."])
    run_git([*git, "commit", "-q", "-m", "Begin"])
    (repository / "f.txt").write_text("two\n")
    config = McpServerConfig(command=GIT_SERVER, bound_arguments={"repo_path": "{cwd}"})
    async with serving(config, sandbox, offered) as server:
        assert await server.wait_connected(CONNECT_SECONDS)
        effects = {spec.name: spec.effect for spec in offered.tools.entry.tools}
        assert effects["git_status"] == effects["git_log"] == "pure"
        assert effects["git_commit"] == "unsafe"
        end, _ = await run(server, request("git_status", {"cwd": "repository"}))
        assert end.outcome == "succeeded"
        assert "f.txt" in text_of(end)
        end, _ = await run(server, request("git_diff_unstaged", {"cwd": "repository"}))
        assert "+two" in text_of(end)
        end, _ = await run(server, request("git_status"))
        assert end.outcome == "failed"
