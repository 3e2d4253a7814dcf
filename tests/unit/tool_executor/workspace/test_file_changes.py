"""Changes of several files, with the process killed at every line of the code that makes them."""

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from services.tool_executor.workspace import file_changes
from services.tool_executor.workspace.file_changes import (
    FileBusyError,
    Said,
    Wanted,
    apply,
    journal_of,
    look,
    recover,
    said_before,
)

OLD = {"a.txt": ("one", 0o755), "gone.txt": ("x", 0o644)}
SAID = Said("key", ({"path": "a.txt"},))
NEW = {"a.txt": ("eins", 0o755), "deep/er/c.txt": ("three", 0o600)}


# A process that is killed closes its files by being gone.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class KilledError(BaseException):
    pass


def killed_at(line: int, work: Callable[[], None]) -> bool:
    """Whether the work came so far. A process that is killed runs no handler: the module's own see no OSError."""
    seen = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != file_changes.__file__:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KilledError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KilledError:
        return True
    finally:
        sys.settrace(before)
    return False


def prepared(workspace: Path) -> Path:
    workspace.mkdir(parents=True)
    for name, (text, mode) in OLD.items():
        (workspace / name).write_text(text)
        (workspace / name).chmod(mode)
    return workspace


def state(workspace: Path) -> dict[str, tuple[str, int]]:
    files = [path for path in workspace.rglob("*") if path.is_file()]
    return {str(path.relative_to(workspace)): (path.read_text(), path.stat().st_mode & 0o777) for path in files}


def written(workspace: Path) -> int:
    """Lines of the journal."""
    journal = journal_of(workspace)
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def change(workspace: Path) -> None:
    wanted = {
        workspace / "a.txt": Wanted(b"eins"),
        workspace / "gone.txt": Wanted(None),
        workspace / "deep" / "er" / "c.txt": Wanted(b"three", 0o600),
    }
    apply(workspace, wanted, {path: look(path) for path in wanted}, SAID)


def test_all_files_change(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    change(workspace)
    assert state(workspace) == NEW
    assert said_before(workspace, "key") == SAID.changes
    assert said_before(workspace, "another") == ()


@pytest.mark.parametrize("recovery_killed", [False, True])
def test_a_kill_at_any_line_leaves_all_or_nothing(
    tmp_path: Path, recovery_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_changes, "LOCK_SECONDS", 0.0)
    seen, said_of = set(), set()
    for line in range(1, 2_000):
        workspace = prepared(tmp_path / f"t{line}")
        if not killed_at(line, lambda workspace=workspace: change(workspace)):  # type: ignore[misc]  # mypy infers no default
            break
        if recovery_killed:
            for place in (7, 14, 21, 28, 35):
                killed_at(place + line % 7, lambda workspace=workspace: recover(workspace))  # type: ignore[misc]  # as above
        recover(workspace)
        found = state(workspace)
        assert found in (OLD, NEW), (line, found)
        assert (workspace / "deep").exists() == (found == NEW), line
        with suppress(FileBusyError):  # killed while it let go of the lock, which a process takes with it
            assert said_before(workspace, "key") == (SAID.changes if found == NEW else ()), line
            said_of.add(found == NEW)
        seen.add(found == NEW)
        change(workspace) if found == OLD else None
        assert state(workspace) == NEW
    else:
        raise AssertionError("it never came to its end")
    assert line > 50
    assert seen == said_of == {True, False}


def test_what_a_dead_process_left_is_put_back_by_the_next_change(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    line = next(
        line for line in range(1, 2_000) if killed_at(line, lambda: change(workspace)) and written(workspace) == 2
    )
    assert line
    path = workspace / "b.txt"
    apply(workspace, {path: Wanted(b"two")}, {path: None})
    assert state(workspace) == OLD | {"b.txt": ("two", 0o644)}


def test_a_live_change_is_not_taken_for_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = prepared(tmp_path / "t")
    monkeypatch.setattr(file_changes, "LOCK_SECONDS", 0.05)
    journal = journal_of(workspace)
    journal.write_text('prepare [[["/nowhere/x", ".0", true, true, []]], "", []]\napply\n')
    with journal.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        recover(workspace)
        assert journal.stat().st_size
        with pytest.raises(FileBusyError, match="Another call"):
            change(workspace)
    assert state(workspace) == OLD


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    path = workspace / "a.txt"
    found = {path: look(path)}
    path.write_text("by somebody else")
    with pytest.raises(FileBusyError, match=r"a\.txt was changed"):
        apply(workspace, {path: Wanted(b"eins")}, found)
    assert path.read_text() == "by somebody else"


def test_a_file_that_appeared_meanwhile_is_left_alone(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    path = workspace / "new.txt"
    path.write_text("by somebody else")
    with pytest.raises(FileBusyError):
        apply(workspace, {path: Wanted(b"x")}, {path: None})
    assert path.read_text() == "by somebody else"


def test_without_hard_links_a_copy_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_args: object, **_more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    workspace = prepared(tmp_path / "t")
    change(workspace)
    assert state(workspace) == NEW


def test_a_torn_journal_says_that_nothing_was_done(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    journal_of(workspace).write_text('prepare [[["/nowhere/x", tr')
    recover(workspace)
    assert state(workspace) == OLD
    assert journal_of(workspace).stat().st_size == 0


def test_a_journal_that_is_none_is_said_and_left(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    journal_of(workspace).write_text("prepare {]\n")
    with pytest.raises(OSError, match="damaged"):
        recover(workspace)
    assert journal_of(workspace).stat().st_size


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    path = workspace / ("n" * 255)
    for content in (b"one", b"two", None):
        apply(workspace, {path: Wanted(content)}, {path: look(path)})
        recover(workspace)
    assert state(workspace) == OLD


def test_a_change_that_cannot_be_made_leaves_a_workspace_that_can_be_entered(tmp_path: Path) -> None:
    workspace = prepared(tmp_path / "t")
    wanted = {workspace / "a.txt": Wanted(b"eins"), workspace / ("n" * 256): Wanted(b"x")}
    with pytest.raises(OSError, match="too long"):
        apply(workspace, wanted, dict.fromkeys(wanted) | {workspace / "a.txt": look(workspace / "a.txt")})
    recover(workspace)
    assert state(workspace) == OLD
    change(workspace)
    assert state(workspace) == NEW


def test_what_cannot_be_cleared_away_undoes_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    workspace = prepared(tmp_path / "t")
    path = workspace / "a.txt"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuses)
        apply(workspace, {path: Wanted(b"eins")}, {path: look(path)})
    recover(workspace)
    assert path.read_bytes() == b"eins"


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_a_new_file_has_the_permissions_that_are_said(tmp_path: Path, umask: int) -> None:
    workspace = prepared(tmp_path / "t")
    path = workspace / "new.txt"
    before = os.umask(umask)
    try:
        apply(workspace, {path: Wanted(b"x")}, {path: None})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == file_changes.MODE_DEFAULT


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        look(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        look(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic links"):
        look(tmp_path / "link")
