import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from services.tool_executor.workspace.sandbox import RefusedError, Sandbox, SandboxPolicy, find_bubblewrap

WORKING_BUBBLEWRAP = find_bubblewrap()


def enter(root: Path, environment=None, environ=None, **policy):
    return Sandbox(SandboxPolicy(root=root, **policy), environ or os.environ).enter("acme", "t-1", environment or {})


def test_one_workspace_per_tenant_and_thread(root):
    room = enter(root)
    assert room.workspace == room.cwd == root / "acme" / "t-1"
    assert room.workspace.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["../t-2/f", "/etc/passwd", "a/../../t-2", "link/f", "", "a\x00b", "loop"])
def test_paths_stay_inside(root, path):
    room = enter(root)
    (room.workspace / "link").symlink_to("/etc")
    (room.workspace / "loop").symlink_to("loop")
    with pytest.raises(RefusedError):
        room.resolve(path)


def test_paths_inside_resolve(root):
    room = enter(root)
    (room.workspace / "sub").mkdir()
    (room.workspace / "link").symlink_to("sub")
    assert room.resolve("link/new.txt") == room.workspace / "sub" / "new.txt"
    assert room.resolve(str(room.workspace / "sub")) == room.workspace / "sub"
    assert room.moved("sub").resolve("../f") == room.workspace / "f"
    with pytest.raises(RefusedError, match="not a directory"):
        room.moved("nowhere")


def test_the_environment_is_scrubbed(root):
    environ = {"PATH": "/bin", "SECRET": "x", "TOKEN": "y", "LANG": "C"}
    room = enter(root, {"variables": ["TOKEN", "SECRET"]}, environ, variables_on_request=("TOKEN",))
    assert room.environment("key") == {
        "PATH": "/bin",
        "LANG": "C",
        "TOKEN": "y",
        "HOME": str(room.workspace),
        "PWD": str(room.cwd),
        "THREADLOG_IDEMPOTENCY_KEY": "key",
    }


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"profile": "root"}, "no permission profile"),
        ({"profile": "full"}, "at most the profile workspace-write"),
        ({"cwd": "../.."}, "outside the workspace"),
        ({"cwd": "nowhere"}, "not a directory"),
    ],
)
def test_what_a_thread_may_not_have_is_refused(root, environment, message):
    with pytest.raises(RefusedError, match=message):
        enter(root, environment, profile_widest="workspace-write")


def test_what_names_no_thread_is_refused(root):
    with pytest.raises(RefusedError):
        Sandbox(SandboxPolicy(root=root), os.environ).enter("..", "t", {})


def test_profiles_without_bubblewrap(root):
    assert enter(root, {"profile": "full"}, enforcement="required").wrap(["x"]) == ["x"]
    assert enter(root, {"profile": "workspace-write"}).wrap(["x"]) == ["x"]
    assert enter(root, {"profile": "workspace-write"}, enforcement="off").wrap(["x"]) == ["x"]
    with pytest.raises(RefusedError, match="bubblewrap is missing"):
        enter(root, {"profile": "workspace-write"}, enforcement="required").wrap(["x"])
    for enforcement in ("where-present", "off"):
        with pytest.raises(RefusedError, match="nothing could enforce it"):
            enter(root, {"permission_profile": "read-only"}, enforcement=enforcement).wrap(["x"])
    with pytest.raises(RefusedError, match="cannot be changed"):
        enter(root, {"profile": "read-only"}).require_write()


def test_a_workspace_that_cannot_be_made_is_refused(root):
    root.write_text("a file")
    with pytest.raises(RefusedError, match="cannot be made"):
        enter(root)


def test_bubblewrap_is_asked_for_what_the_profile_means(root):
    argv = enter(root, {"profile": "read-only"}, bubblewrap=Path("/bin/bwrap"), network=False).wrap(["ls"])
    assert argv[0] == "/bin/bwrap"
    assert argv[-2:] == ["--", "ls"]
    assert "--unshare-net" in argv
    assert argv[argv.index("--ro-bind", argv.index("/proc")) + 1] == str(root / "acme" / "t-1")


@pytest.mark.skipif(WORKING_BUBBLEWRAP is None, reason="bubblewrap is not here or may not make namespaces")
def test_bubblewrap_holds_the_profile(root):
    other = enter(root).workspace.parent / "t-2"
    other.mkdir()
    (other / "secret").write_text("x")
    room = enter(root, bubblewrap=WORKING_BUBBLEWRAP)

    def tried(line: str, profile="workspace-write") -> int:
        argv = replace(room, profile=profile).wrap(["/bin/bash", "-c", line])
        return subprocess.run(argv, capture_output=True, check=False).returncode

    assert tried("touch mine") == 0
    assert (room.workspace / "mine").exists()
    assert tried(f"cat {other}/secret") != 0
    assert tried("touch /usr/x") != 0
    assert tried("touch ours", "read-only") != 0
    assert tried("cat mine", "read-only") == 0
