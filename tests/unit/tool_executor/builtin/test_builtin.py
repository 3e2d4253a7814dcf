import asyncio
import os
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from services.chassis.settings import MIB
from services.tool_executor.builtin import files
from services.tool_executor.builtin.apply_patch import ApplyPatchTool
from services.tool_executor.builtin.echo import EchoTool
from services.tool_executor.builtin.files import ReadFileTool, WriteFileTool
from services.tool_executor.builtin.read_artifact import ReadArtifactTool
from services.tool_executor.builtin.restore_files import RestoreFilesTool
from services.tool_executor.builtin.shell import ShellTool
from services.tool_executor.tools import Toolbox, ToolEnd
from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy
from tests.support.recorded.tool_requests import request, run, text_of


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def shell(sandbox, warden):
    return ShellTool(sandbox, warden, 0.3, MIB)


async def test_shell_runs_in_the_workspace(shell, workspace):
    end, emitted = await run(shell, request("shell", command="pwd; echo $HOME; echo $THREADLOG_IDEMPOTENCY_KEY"))
    assert end.outcome == "succeeded"
    assert text_of(end) == emitted == f"{workspace}\n{workspace}\nkey-1\n"
    assert end.result["exit_code"] == 0
    assert end.seconds > 0


async def test_shell_takes_a_program_and_its_arguments(shell, workspace):
    (workspace / "sub").mkdir()
    end, _ = await run(shell, request("shell", command=["printf", "%s|", "a b", "$HOME"], cwd="sub"))
    assert text_of(end) == "a b|$HOME|"


async def test_a_command_that_fails_is_a_result(shell):
    end, _ = await run(shell, request("shell", command="exit 7"))
    assert end.outcome == "failed"
    assert end.result["exit_code"] == 7
    assert end.result["is_error"] is True
    assert "exit code 7" in text_of(end)


async def test_shell_times_out_and_says_so(shell):
    end, _ = await run(shell, replace(request("shell", command="echo before; sleep 60"), timeout_seconds=0.3))
    assert end.outcome == "timed_out"


async def test_shell_is_cancelled(shell):
    end, _ = await run(shell, request("shell", command="echo before; sleep 60"), cancel_after=0.2)
    assert end.outcome == "cancelled"
    assert text_of(end).startswith("before\n\n[cancelled")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "`command"),
        ({"command": []}, "empty"),
        ({"command": ""}, None),
        ({"command": "a\x00b"}, "U\\+0000"),
        ({"command": "ls", "cwd": "/etc"}, "outside the workspace"),
        ({"command": "ls", "colour": "red"}, "colour"),
        ({"command": "ls", "timeout_seconds": 0}, "timeout_seconds"),
    ],
)
async def test_shell_arguments_that_do_not_fit(shell, args, message):
    end, _ = await run(shell, request("shell", **args))
    if message is None:
        assert end.outcome == "succeeded"
    else:
        assert end.outcome == "failed"
        assert end.result["is_error"] is True
        assert re.search(message, text_of(end))


async def test_shell_where_the_profile_must_be_enforced_and_cannot(root, warden):
    shell = ShellTool(Sandbox(SandboxPolicy(root=root, enforcement="required"), {}), warden, 5.0, MIB)
    end, _ = await run(shell, request("shell", command="ls"))
    assert end.outcome == "failed"
    assert "bubblewrap" in text_of(end)


async def test_read_file(sandbox, workspace):
    (workspace / "f.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    read = ReadFileTool(sandbox)
    end, _ = await run(read, request("read_file", path="f.txt"))
    assert text_of(end).startswith("line 1\n")
    assert "structured" not in end.result
    end, _ = await run(read, request("read_file", path="f.txt", offset=3, limit=2))
    assert text_of(end) == "line 3\nline 4\n"
    assert end.result["structured"] == {"first_line": 3, "last_line": 4, "lines": 10}
    end, _ = await run(read, request("read_file", path="f.txt", offset=99))
    assert "has 10 lines" in text_of(end)


async def test_read_file_of_what_cannot_be_read(sandbox, workspace, monkeypatch):
    read = ReadFileTool(sandbox)
    (workspace / "dir" / "inner").mkdir(parents=True)
    (workspace / "big").write_bytes(b"x" * 100)
    (workspace / "link").symlink_to("/etc/passwd")
    os.mkfifo(workspace / "pipe")
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 50)
    for path, message in {
        "nowhere": "no file nowhere",
        "big/f": "not a directory",
        "dir": "it holds: inner/",
        "big": "more than 50",
        "link": "outside the workspace",
        "pipe": "not a regular file",
    }.items():
        end, _ = await run(read, request("read_file", path=path))
        assert end.outcome == "failed"
        assert message in text_of(end)


async def test_read_file_of_bytes_that_are_no_text(sandbox, workspace):
    (workspace / "f").write_bytes(b"a\x00\xff\n")
    end, _ = await run(ReadFileTool(sandbox), request("read_file", path="f"))
    assert text_of(end) == "a␀�\n"


async def test_write_file_says_what_changed(sandbox, workspace, history):
    write = WriteFileTool(sandbox, history)
    end, _ = await run(write, request("write_file", path="a/b.txt", content="one"))
    assert end.changes == [{"path": "a/b.txt", "before": None, "after": digest("one"), "mode": 0o644}]
    (workspace / "a" / "b.txt").chmod(0o755)
    end, _ = await run(write, request("write_file", path="a/b.txt", content="two"))
    assert end.changes == [{"path": "a/b.txt", "before": digest("one"), "after": digest("two"), "mode": 0o755}]
    assert (workspace / "a" / "b.txt").read_text() == "two"
    assert (workspace / "a" / "b.txt").stat().st_mode & 0o777 == 0o755
    another = replace(request("write_file", path="a/b.txt", content="two"), idempotency_key="another")
    end, _ = await run(write, another)
    assert end.changes == []
    assert [path.name for path in (workspace / "a").iterdir()] == ["b.txt"]


@pytest.mark.parametrize(("path", "message"), [("../x", "outside"), ("dir", "directory"), ("file/x", "file")])
async def test_write_file_refuses(sandbox, workspace, path, message, history):
    (workspace / "dir").mkdir()
    (workspace / "file").write_text("x")
    end, _ = await run(WriteFileTool(sandbox, history), request("write_file", path=path, content="x"))
    assert end.outcome == "failed"
    assert message in text_of(end)


async def test_nothing_is_written_under_a_read_only_profile(sandbox, workspace, history):
    asked = request("write_file", {"profile": "read-only"}, path="x", content="x")
    end, _ = await run(WriteFileTool(sandbox, history), asked)
    assert "read-only" in text_of(end)
    patch = "*** Begin Patch\n*** Add File: x\n+x\n*** End Patch"
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", {"profile": "read-only"}, patch=patch))
    assert "read-only" in text_of(end)
    assert not list(workspace.iterdir())


PATCH = """*** Begin Patch
*** Update File: a.txt
@@
-one
+eins
*** Update File: b.txt
*** Move to: sub/b.txt
@@
-two
+zwei
*** Add File: new/c.txt
+three
*** Delete File: gone.txt
*** End Patch"""


def prepared(workspace: Path) -> None:
    for name, text in {"a.txt": "one\n", "b.txt": "two\n", "gone.txt": "x\n"}.items():
        (workspace / name).write_text(text)


def listed(workspace: Path) -> dict[str, str]:
    return {
        str(path.relative_to(workspace)): path.read_text() for path in sorted(workspace.rglob("*")) if path.is_file()
    }


async def test_apply_patch(sandbox, workspace, history):
    prepared(workspace)
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", patch=PATCH))
    assert end.outcome == "succeeded"
    assert listed(workspace) == {"a.txt": "eins\n", "new/c.txt": "three\n", "sub/b.txt": "zwei\n"}
    assert text_of(end) == "Applied:\nM a.txt\nR b.txt -> sub/b.txt\nA new/c.txt\nD gone.txt"
    assert {change["path"]: (change["before"], change["after"]) for change in end.changes} == {
        "a.txt": (digest("one\n"), digest("eins\n")),
        "b.txt": (digest("two\n"), None),
        "sub/b.txt": (None, digest("zwei\n")),
        "new/c.txt": (None, digest("three\n")),
        "gone.txt": (digest("x\n"), None),
    }


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (PATCH.replace("-two", "-zwo"), "b.txt, hunk 1"),
        (PATCH.replace("gone.txt", "never.txt"), "no such file"),
        (PATCH.replace("new/c.txt", "a.txt"), "exists already"),
        (PATCH.replace("sub/b.txt", "gone.txt"), "that exists"),
        (PATCH.replace("new/c.txt", "../c.txt"), "outside"),
        (
            PATCH.replace("*** Update File: a.txt", "*** Delete File: b.txt\n*** Update File: a.txt"),
            "deleted by the same",
        ),
        (PATCH.replace("b.txt\n*** Move", "missing.txt\n*** Move"), "no file missing.txt"),
    ],
)
async def test_a_patch_applies_whole_or_not_at_all(sandbox, workspace, broken, message, history):
    prepared(workspace)
    before = listed(workspace)
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", patch=broken))
    assert end.outcome == "failed"
    assert message in text_of(end)
    assert listed(workspace) == before


async def test_a_failed_write_puts_back_what_was_changed(sandbox, workspace, monkeypatch, history):
    prepared(workspace)
    before = listed(workspace)
    unlink = Path.unlink

    def refuses(path, *args, **more):
        if path.name == "gone.txt":
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, *args, **more)

    monkeypatch.setattr(Path, "unlink", refuses)
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", patch=PATCH))
    assert end.outcome == "failed"
    assert "Permission denied" in text_of(end)
    assert listed(workspace) == before


async def test_a_second_hunk_for_the_same_file_sees_the_first(sandbox, workspace, history):
    prepared(workspace)
    patch = "*** Begin Patch\n*** Update File: a.txt\n-one\n+1\n*** Update File: a.txt\n-1\n+2\n*** End Patch"
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", patch=patch))
    assert end.outcome == "succeeded"
    assert (workspace / "a.txt").read_text() == "2\n"
    assert len(end.changes) == 1


async def test_bytes_that_are_no_text_are_not_patched(sandbox, workspace, history):
    (workspace / "a.txt").write_bytes(b"one\n\xff\n")
    end, _ = await run(
        ApplyPatchTool(sandbox, history),
        request("apply_patch", patch="*** Begin Patch\n*** Update File: a.txt\n-one\n+1\n*** End Patch"),
    )
    assert "not UTF-8" in text_of(end)


async def test_echo():
    end, _ = await run(EchoTool(), request("echo", text="ab", bytes=5))
    assert text_of(end) == "ababa"
    end, _ = await run(EchoTool(), request("echo", text="ab"))
    assert text_of(end) == "ab"


class Raises:
    async def run(self, *_):
        raise RuntimeError("a bug")


class Fine:
    async def run(self, *_):
        return ToolEnd("succeeded", None)


async def test_the_toolbox_dispatches_by_name_and_never_raises():
    toolbox = Toolbox()
    toolbox.put({"fine": Fine(), "raises": Raises()})
    assert toolbox.names() == {"fine", "raises"}
    assert (await run(toolbox, request("fine")))[0].outcome == "succeeded"
    end, _ = await run(toolbox, request("raises"))
    assert end.outcome == "lost"
    assert "a bug" in end.evidence
    end, _ = await run(toolbox, request("nothing"))
    assert end.outcome == "failed"
    assert "it has: fine, raises" in text_of(end)


async def test_a_name_of_two_sources_is_run_by_the_one_that_the_catalog_names():
    toolbox = Toolbox()
    toolbox.put({"x": Raises(), "y": Raises()}, "mcp:b")
    toolbox.put({"x": Fine()}, "builtin")
    assert (await run(toolbox, request("x")))[0].outcome == "succeeded"
    toolbox.put({"y": Fine()}, "mcp:b")
    assert toolbox.names() == {"x", "y"}
    assert (await run(toolbox, request("y")))[0].outcome == "succeeded"


async def test_a_call_waits_for_a_source_that_is_still_to_come():
    toolbox = Toolbox()
    toolbox.expect("mcp:a")
    toolbox.expect("mcp:b")
    async with asyncio.TaskGroup() as group:
        calling = group.create_task(run(toolbox, request("x")))
        await asyncio.sleep(0)
        toolbox.put({"y": Fine()}, "mcp:a")
        await asyncio.sleep(0)
        assert not calling.done()
        toolbox.put({"x": Fine()}, "mcp:b")
    assert calling.result()[0].outcome == "succeeded"
    assert (await run(toolbox, request("z")))[0].outcome == "failed"


async def test_what_a_call_waited_is_taken_off_its_time():
    """When it may still run is reckoned from its claim."""
    toolbox, times = Toolbox(), []

    class Timed:
        async def run(self, wanted, emit, cancelled, /):
            times.append(wanted.timeout_seconds)
            return ToolEnd("succeeded", None)

    toolbox.expect("late")
    asyncio.get_running_loop().call_later(0.2, toolbox.put, {"x": Timed()}, "late")
    await run(toolbox, request("x"))
    await run(toolbox, request("x"))
    assert 9 < times[0] <= 9.8
    assert times[1] == 10


async def test_a_source_that_does_not_come_leaves_its_calls_to_another_try():
    toolbox = Toolbox(expected_wait_seconds=0.01)
    toolbox.expect("mcp:a")
    end, _ = await run(toolbox, request("x"))
    assert end.outcome == "not_started"
    assert "not here yet: mcp:a" in end.evidence


async def test_a_call_that_is_cancelled_while_it_waits_for_its_source_never_ran():
    toolbox = Toolbox()
    toolbox.expect("mcp:a")
    end, _ = await run(toolbox, request("x"), cancel_after=0.01)
    assert (end.outcome, end.evidence) == ("not_started", "cancelled before it began")


def test_the_declared_schemas_are_their_models(sandbox, warden, history):
    for tool in (
        ShellTool(sandbox, warden, 5.0, MIB),
        ReadFileTool(sandbox),
        WriteFileTool(sandbox, history),
        ApplyPatchTool(sandbox, history),
        RestoreFilesTool(sandbox, history),
        ReadArtifactTool(sandbox, history.store),
    ):
        assert set(tool.spec.input_schema["properties"]) == set(tool.arguments.model_fields)
        assert "title" not in str(tool.spec.input_schema)
        assert replace(request(tool.spec.name)).tool == tool.spec.name
