"""What the tools that change files leave in the artifact store, and how a person gets files back."""

import os
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from services.tool_executor.builtin.apply_patch import ApplyPatchTool
from services.tool_executor.builtin.files import WriteFileTool
from services.tool_executor.builtin.restore_files import RestoreFilesTool
from services.tool_executor.tools import ToolEnd
from services.tool_executor.workspace import file_changes
from services.tool_executor.workspace.file_history import FILE_BYTES_MAX, FileHistory
from services.tool_executor.workspace.sandbox import Sandbox
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.recorded.tool_requests import request, run, text_of

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


async def restored(restore: RestoreFilesTool, files: list[dict[str, Any]], key: str = "restore") -> ToolEnd:
    asked = replace(request("restore_files", files=files), idempotency_key=key)
    return (await run(restore, asked))[0]


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
    again = await restored(restore, files, "another call")
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
    (workspace / ".0.threadlog-old").write_text("whole")
    journal = f'prepare [[["{workspace}/a.txt", ".0", true, true, []]], "", []]\napply\n'
    file_changes.journal_of(workspace).write_text(journal)
    sandbox.enter(TENANT, workspace.name, {})
    assert (workspace / "a.txt").read_text() == "whole"
    assert set(files_of(workspace)) == {"a.txt"}


# A call that runs again, because its executor died before its end was in the log


async def test_a_call_that_runs_again_says_what_it_changed_the_first_time(
    write: WriteFileTool, workspace: Path, artifacts: MemoryArtifacts
) -> None:
    (workspace / "a.txt").write_text("one")
    asked = request("write_file", path="a.txt", content="two")
    first, _ = await run(write, asked)
    artifacts.clock = Later()
    again, _ = await run(write, asked)
    assert again.changes == first.changes
    assert text_of(again) == text_of(first)
    assert {stored.touched_ms for stored in artifacts.objects.values()} == {Later.MS}
    other, _ = await run(write, replace(asked, idempotency_key="another call"))
    assert other.changes == []


async def test_a_call_that_runs_again_names_nothing_that_is_gone_from_the_store(
    write: WriteFileTool, workspace: Path, artifacts: MemoryArtifacts
) -> None:
    (workspace / "a.txt").write_text("one")
    asked = request("write_file", path="a.txt", content="two")
    await run(write, asked)
    del artifacts.objects[TENANT, digest("one")]
    assert (await run(write, asked))[0].changes == []


async def test_a_call_that_runs_again_over_a_file_that_changed_says_what_it_does_now(
    write: WriteFileTool, workspace: Path
) -> None:
    asked = request("write_file", path="a.txt", content="two")
    await run(write, asked)
    (workspace / "a.txt").write_text("three")
    [change] = (await run(write, asked))[0].changes
    assert (change["before"], change["after"]) == (digest("three"), digest("two"))


async def test_a_restore_that_runs_again_can_be_put_back(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    (workspace / "a.txt").write_text("one")
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    first = await restored(restore, back(end.changes))
    again = await restored(restore, back(end.changes))
    assert again.changes == first.changes
    assert (await restored(restore, back(again.changes), "back")).outcome == "succeeded"
    assert (workspace / "a.txt").read_text() == "two"


class Later:
    MS = 10**15

    def now_ms(self) -> int:
        return self.MS


# What cannot be recorded, or is no longer what it was


async def test_a_name_that_is_no_text_is_not_changed(write: WriteFileTool, workspace: Path) -> None:
    """A record cannot name it: the change would be lost."""
    name = os.fsdecode(b"\xff")
    (workspace / name).write_text("one")
    (workspace / "link").symlink_to(name)
    end, _ = await run(write, request("write_file", path="link", content="two"))
    assert (end.outcome, "not UTF-8" in text_of(end)) == ("failed", True)
    assert (workspace / name).read_text() == "one"


async def test_a_change_of_more_than_fits_the_memory_is_refused(
    sandbox: Sandbox, artifacts: MemoryArtifacts, workspace: Path
) -> None:
    history = FileHistory(artifacts, bytes_max=1_000)
    (workspace / "a.txt").write_text("x" * 600)
    end, _ = await run(WriteFileTool(sandbox, history), request("write_file", path="a.txt", content="y" * 600))
    assert "more than 1000 bytes" in text_of(end)
    patch = "*** Begin Patch\n*** Add File: b.txt\n+" + "z" * 1_000 + "\n*** End Patch"
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", patch=patch))
    assert "more than 1000 bytes" in text_of(end)
    wanted = digest("w" * 1_001)
    await artifacts.put(TENANT, wanted, b"w" * 1_001, "text/plain")
    end = await restored(RestoreFilesTool(sandbox, history), [{"path": "c.txt", "expected": None, "wanted": wanted}])
    assert "more than 1000 bytes" in text_of(end)
    assert files_of(workspace) == {"a.txt": ("x" * 600, 0o644)}


async def test_what_took_the_place_of_a_file_is_listed_with_what_changed(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    files = []
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        end, _ = await run(write, request("write_file", path=name, content=name))
        files += back(end.changes)
    for name in ("a.txt", "b.txt", "c.txt"):
        (workspace / name).unlink()
    (workspace / "a.txt").mkdir()
    os.mkfifo(workspace / "b.txt")
    with (workspace / "c.txt").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    end = await restored(restore, files)
    text = text_of(end)
    assert text.startswith("Nothing was changed. These files have changed since:\n- a.txt: Is a directory"), text
    assert "- b.txt: It is no regular file" in text and "- c.txt: " in text and "d.txt" not in text
    assert (workspace / "d.txt").exists()


async def test_a_link_that_took_the_place_of_a_folder_is_not_followed(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    end, _ = await run(write, request("write_file", path="sub/a.txt", content="one"))
    shutil.move(workspace / "sub", workspace / "elsewhere")
    (workspace / "sub").symlink_to("elsewhere")
    again = await restored(restore, back(end.changes))
    assert "sub/a.txt leads to elsewhere/a.txt now" in text_of(again)
    assert (workspace / "elsewhere" / "a.txt").read_text() == "one"


async def test_files_are_put_back_although_the_working_directory_is_gone(
    sandbox: Sandbox, history: FileHistory, workspace: Path, restore: RestoreFilesTool
) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "a.txt").write_text("one\n")
    patch = "*** Begin Patch\n*** Delete File: a.txt\n*** End Patch"
    end, _ = await run(ApplyPatchTool(sandbox, history), request("apply_patch", {"cwd": "sub"}, patch=patch))
    (workspace / "sub").rmdir()
    asked = request("restore_files", {"cwd": "sub"}, files=back(end.changes))  # type: ignore[arg-type]  # JSON all the same
    assert (await run(restore, asked))[0].outcome == "succeeded"
    assert (workspace / "sub" / "a.txt").read_text() == "one\n"


async def test_a_change_that_cannot_be_put_back_is_said_by_every_call(
    write: WriteFileTool, workspace: Path, restore: RestoreFilesTool
) -> None:
    file_changes.journal_of(workspace).write_text("prepare {]\n")
    end, _ = await run(write, request("write_file", path="a.txt", content="two"))
    assert (end.outcome, "cannot be put back" in text_of(end)) == ("failed", True)
