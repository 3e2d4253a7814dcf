"""What the tools that change files leave in the artifact store, and how a person gets files back."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from services.tool_executor import file_changes
from services.tool_executor.builtin.apply_patch import ApplyPatchTool
from services.tool_executor.builtin.files import WriteFileTool
from services.tool_executor.builtin.restore_files import RestoreFilesTool
from services.tool_executor.file_history import FILE_BYTES_MAX, FileHistory
from services.tool_executor.sandbox import Sandbox
from services.tool_executor.tools import ToolEnd
from tests.support.memory_artifacts import MemoryArtifacts
from tests.support.tool_requests import request, run, text_of

TENANT = "acme"


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def kept(artifacts: MemoryArtifacts) -> set[str]:
    return {found.data.decode() for (tenant, _), found in artifacts.objects.items() if tenant == TENANT}


def back(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ingest makes of a turn's changes."""
    return [
        {"path": one["path"], "expected": one["after"], "wanted": one["before"], "mode": one["mode"]} for one in changes
    ]


def files_of(workspace: Path) -> dict[str, tuple[str, int]]:
    files = [path for path in workspace.rglob("*") if path.is_file()]
    return {str(path.relative_to(workspace)): (path.read_text(), path.stat().st_mode & 0o777) for path in files}


@pytest.fixture
def write(sandbox: Sandbox, history: FileHistory) -> WriteFileTool:
    return WriteFileTool(sandbox, history)


@pytest.fixture
def restore(sandbox: Sandbox, history: FileHistory) -> RestoreFilesTool:
    return RestoreFilesTool(sandbox, history)


async def restored(restore: RestoreFilesTool, files: list[dict[str, Any]]) -> ToolEnd:
    return (await run(restore, request("restore_files", files=files)))[0]


async def test_both_contents_are_kept(write: WriteFileTool, workspace: Path, artifacts: MemoryArtifacts) -> None:
    (workspace / "a.txt").write_text("one")
    await run(write, request("write_file", path="a.txt", content="two"))
    assert kept(artifacts) == {"one", "two"}


async def test_the_old_content_is_kept_before_the_file_changes(
    write: WriteFileTool, workspace: Path, artifacts: MemoryArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_args: object) -> None:
        raise OSError(5, "the machine dies here")

    monkeypatch.setattr(file_changes, "apply", dies)
    (workspace / "a.txt").write_text("one")
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    assert end.outcome == "failed"
    assert (workspace / "a.txt").read_text() == "one"
    assert kept(artifacts) == {"one", "two"}


@pytest.mark.parametrize("existing", [True, False])
async def test_a_store_that_is_away_keeps_files_from_changing(
    write: WriteFileTool, workspace: Path, artifacts: MemoryArtifacts, existing: bool
) -> None:
    path = workspace / "a.txt"
    if existing:
        path.write_text("one")
    artifacts.away = True
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    assert end.outcome == "failed"
    assert "Nothing was changed" in text_of(end)
    assert end.changes == []
    assert path.exists() == existing
    artifacts.away = False
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    assert end.outcome == "succeeded"


async def test_a_file_too_large_to_be_kept_is_not_replaced(write: WriteFileTool, workspace: Path) -> None:
    with (workspace / "large").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    end, _ = await run(write, request("write_file", path="large", content="small"))
    assert "too many to be kept" in text_of(end)
    assert (workspace / "large").stat().st_size == FILE_BYTES_MAX + 1


PATCH = """*** Begin Patch
*** Update File: run.sh
*** Move to: bin/run.sh
@@
-one
+eins
*** Add File: new.txt
+three
*** Delete File: gone.sh
*** End Patch"""


async def test_a_patch_is_put_back_with_modes(
    sandbox: Sandbox, history: FileHistory, workspace: Path, restore: RestoreFilesTool
) -> None:
    (workspace / "run.sh").write_text("one\n")
    (workspace / "run.sh").chmod(0o755)
    (workspace / "gone.sh").write_text("x\n")
    (workspace / "gone.sh").chmod(0o700)
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", patch=PATCH))
    modes = {change["path"]: change["mode"] for change in end.changes}
    assert modes == {"run.sh": 0o755, "bin/run.sh": 0o755, "new.txt": 0o644, "gone.sh": 0o700}
    assert (workspace / "bin" / "run.sh").stat().st_mode & 0o777 == 0o755
    end = await restored(restore, back(end.changes))
    assert end.outcome == "succeeded", text_of(end)
    assert files_of(workspace) == {"run.sh": ("one\n", 0o755), "gone.sh": ("x\n", 0o700)}
    assert "gone.sh: put back" in text_of(end)
    again = await restored(restore, back(end.changes))
    assert again.outcome == "succeeded"
    assert (workspace / "bin" / "run.sh").read_text() == "eins\n"


async def test_a_restore_runs_again_as_if_it_had_not(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    (workspace / "a.txt").write_text("one")
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    files = back(end.changes)
    assert len((await restored(restore, files)).changes) == 1
    again = await restored(restore, files)
    assert (again.outcome, again.changes) == ("succeeded", [])
    assert "1 of them were so already" in text_of(again)


async def test_files_that_have_changed_since_are_listed_and_none_is_touched(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    files = []
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (workspace / name).write_text(f"old {name}")
        end, _ = await run(write, request("write_file", path=name, content=f"new {name}"))
        files += back(end.changes)
    (workspace / "e.txt").write_text("somebody's")
    files.append({"path": "e.txt", "expected": None, "wanted": digest("old a.txt"), "mode": None})
    (workspace / "b.txt").write_text("edited by hand")
    (workspace / "c.txt").unlink()
    end = await restored(restore, files)
    assert end.outcome == "failed"
    text = text_of(end)
    assert f"b.txt has the sha256 {digest('edited by hand')}; it had {digest('new b.txt')}" in text
    assert "c.txt is gone" in text
    assert "e.txt is there again" in text
    assert "a.txt" not in text and "d.txt" not in text
    assert (workspace / "a.txt").read_text() == "new a.txt"
    assert end.changes == []


async def test_a_restore_without_its_contents_is_refused(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool, artifacts: MemoryArtifacts
) -> None:
    (workspace / "a.txt").write_text("one")
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    files = back(end.changes)
    stored = artifacts.objects[TENANT, digest("one")]
    stored.data = b"altered"
    assert "not what it was" in text_of(await restored(restore, files))
    artifacts.away = True
    assert "does not answer" in text_of(await restored(restore, files))
    artifacts.away = False
    del artifacts.objects[TENANT, digest("one")]
    assert "not in the artifact store" in text_of(await restored(restore, files))
    assert (workspace / "a.txt").read_text() == "two"


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", ""])
async def test_nothing_outside_the_workspace_is_put_back(restore: RestoreFilesTool, path: str) -> None:
    end = await restored(restore, [{"path": path, "expected": None, "wanted": None}])
    assert end.outcome == "failed"


async def test_a_file_that_is_named_twice_is_refused(restore: RestoreFilesTool) -> None:
    one = {"path": "a", "expected": None, "wanted": None}
    assert "named twice" in text_of(await restored(restore, [one, {**one, "path": "./a"}]))


async def test_paths_are_below_the_workspace_whatever_the_working_directory(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "a.txt").write_text("one")
    end, _ = await run(write, request("write_file", {"cwd": "sub"}, path="a.txt", content="two"))
    assert end.changes[0]["path"] == "sub/a.txt"
    wanted = request("restore_files", {"cwd": "sub"}, files=back(end.changes))  # type: ignore[arg-type]  # JSON all the same
    assert (await run(restore, wanted))[0].outcome == "succeeded"
    assert (workspace / "sub" / "a.txt").read_text() == "one"


async def test_entering_the_workspace_puts_back_what_a_dead_process_left(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "a.txt").write_text("half")
    (workspace / ".a.txt.threadlog-old").write_text("whole")
    file_changes.journal_of(workspace).write_text(f'prepare [["{workspace}/a.txt", true, true, []]]\napply\n')
    sandbox.enter(TENANT, workspace.name, {})
    assert (workspace / "a.txt").read_text() == "whole"
    assert set(files_of(workspace)) == {"a.txt"}
