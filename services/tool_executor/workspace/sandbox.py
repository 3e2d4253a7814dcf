"""Where a tool may act: one workspace per tenant and thread, a reduced environment, a permission profile.

Theory of operation. Every request enters the sandbox and gets a `Room`: its workspace, its working directory, and the
profile under which it acts. There are two kinds of tools, and two ways to hold them.

- Built-in file tools run inside the executor. They resolve every path through their room, which follows symbolic links
  first and then refuses what lies outside of the workspace, and they ask the room before they write.
- Commands can do whatever the operating system lets them, so only bubblewrap can hold them. Under `read-only` and
  `workspace-write` the machine is mounted read-only, other workspaces are not visible, and processes have a namespace
  of their own. Under `full`, nothing is enforced.

bubblewrap is missing or not permitted on many machines. What happens then is the operator's choice (`enforcement`):
`where-present` starts a command under `workspace-write` in its workspace, unenforced; `required` refuses it. A command
under `read-only` is refused in either case, because nothing would keep it from writing. `off` never uses bubblewrap.

The executor's environment holds credentials, so a tool sees named variables of it only.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from pydantic import JsonValue

from schemas.config import PermissionProfile
from schemas.ids import is_name
from services.tool_executor.workspace.file_changes import recover
from services.tool_executor.workspace.skills import FOLDER, SkillFolders

Enforcement: TypeAlias = Literal["where-present", "required", "off"]

IDEMPOTENCY_KEY_VARIABLE = "THREADLOG_IDEMPOTENCY_KEY"
VARIABLES_DEFAULT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR")
PROBE_SECONDS: Final = 5.0
"""How long the trial run of bubblewrap may take when the executor starts."""

_WIDTH: dict[PermissionProfile, int] = {"read-only": 0, "workspace-write": 1, "full": 2}


class RefusedError(Exception):
    """The request asks for something that it may not have. The model reads the text."""


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """What the operator allows to every thread of this executor."""

    root: Path
    """Folder of all workspaces."""
    enforcement: Enforcement = "where-present"
    profile_default: PermissionProfile = "workspace-write"
    profile_widest: PermissionProfile = "full"
    network: bool = True
    """Whether sandboxed processes reach the network."""
    variables: tuple[str, ...] = VARIABLES_DEFAULT
    """Variables of the executor's environment that every tool sees."""
    variables_on_request: tuple[str, ...] = ()
    """Further variables, which a thread's configuration may ask for."""
    bubblewrap: Path | None = None
    """Path of the program. None if it is missing or does not work here."""


@dataclass(frozen=True, slots=True)
class Room:
    """The place of one request: its workspace, and what it may do there."""

    policy: SandboxPolicy
    workspace: Path
    cwd: Path
    profile: PermissionProfile
    variables: Mapping[str, str]

    def resolve(self, path: str) -> Path:
        """Return the file that is meant, with symbolic links followed. Relative paths start at the working directory.

        Raises RefusedError if it lies outside of the workspace. The answer holds for this moment: a command that runs
        at the same time may move links, which is why changes open files without following them.
        """
        if "\x00" in path or not path:
            raise RefusedError(f"{path!r} is not a path.")
        try:
            resolved = (self.cwd / path).resolve()
        except (OSError, RuntimeError) as error:
            raise RefusedError(f"The path {path!r} cannot be followed: {error}") from error
        if not resolved.is_relative_to(self.workspace):
            raise RefusedError(
                f"The path {path!r} leads outside the workspace. Use a path inside it; relative paths start at "
                f"{self.relative(self.cwd)}."
            )
        return resolved

    def moved(self, cwd: str) -> "Room":
        """Return the same room with another working directory. Raises RefusedError if there is no such directory."""
        directory = self.resolve(cwd)
        if not directory.is_dir():
            raise RefusedError(f"The working directory {cwd!r} is not a directory of the workspace.")
        return replace(self, cwd=directory)

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.workspace))

    def require_write(self) -> None:
        if self.profile == "read-only":
            raise RefusedError("This thread's permission profile is read-only: files cannot be changed.")

    def require_own(self, paths: Iterable[Path]) -> None:
        """Refuse paths below the folder of skills, which a thread does not own."""
        for path in paths:
            if path.is_relative_to(self.workspace / FOLDER):
                raise RefusedError(f"{self.relative(path)} belongs to a skill, which is read-only. Copy it elsewhere.")

    def environment(self, idempotency_key: str) -> dict[str, str]:
        """Return the environment of a command. It names the call's key, for downstreams that can deduplicate."""
        return {
            **self.variables,
            "HOME": str(self.workspace),
            "PWD": str(self.cwd),
            IDEMPOTENCY_KEY_VARIABLE: idempotency_key,
        }

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command under its profile. Raises RefusedError if the profile must be enforced and cannot be."""
        policy = self.policy
        if self.profile == "full" or (policy.enforcement == "off" and self.profile != "read-only"):
            return list(argv)
        if policy.bubblewrap is not None and policy.enforcement != "off":
            return [str(policy.bubblewrap), *self._bubblewrap_options(), "--", *argv]
        if policy.enforcement == "required":
            raise RefusedError(
                f"The profile {self.profile} must be enforced on this executor, but bubblewrap is missing or does not "
                "work here. An operator has to install it."
            )
        if self.profile == "read-only":
            raise RefusedError("Commands cannot run under the read-only profile here: nothing could enforce it.")
        return list(argv)

    def _bubblewrap_options(self) -> list[str]:
        bind = "--bind" if self.profile == "workspace-write" else "--ro-bind"
        workspace = str(self.workspace)
        options = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--ro-bind", "/", "/"]
        options += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]  # noqa: S108  # the sandbox's own /tmp
        # An empty folder in place of the root hides every other workspace; this one is mounted back into it.
        options += ["--tmpfs", str(self.policy.root), bind, workspace, workspace, "--chdir", str(self.cwd)]
        return options if self.policy.network else ["--unshare-net", *options]


class Sandbox:
    """Opens rooms for requests, under one policy."""

    def __init__(self, policy: SandboxPolicy, environ: Mapping[str, str], skills: SkillFolders | None = None) -> None:
        self._policy = policy
        self._environ = environ
        self.skills = skills

    def enter(self, tenant: str, thread: str, environment: Mapping[str, JsonValue]) -> Room:
        """Open the thread's room, and create its workspace if there is none yet.

        A change of files that an executor left half done is put back first, so that no tool sees it. Raises
        RefusedError for anything that the thread may not have.
        """
        if not is_name(tenant) or not is_name(thread):
            raise RefusedError(f"{tenant!r}/{thread!r} names no thread.")
        profile = self._profile(environment.get("profile", environment.get("permission_profile")))
        workspace = self._policy.root / tenant / thread
        try:
            workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RefusedError(f"The thread's workspace cannot be made: {error}") from error
        try:
            recover(workspace)
        except OSError as error:
            raise RefusedError(f"A change of files that was cut off here cannot be put back: {error}") from error
        room = Room(self._policy, workspace, workspace, profile, self._variables(environment.get("variables")))
        return room.moved(str(environment.get("cwd") or "."))

    def _profile(self, asked: JsonValue) -> PermissionProfile:
        if asked is None:
            return self._policy.profile_default
        profile = next((known for known in get_args(PermissionProfile) if known == asked), None)
        if profile is None:
            raise RefusedError(f"There is no permission profile {asked!r}; there are read-only, workspace-write, full.")
        widest = self._policy.profile_widest
        if _WIDTH[profile] > _WIDTH[widest]:
            raise RefusedError(f"This executor allows at most the profile {widest}; the thread asks for {profile}.")
        return profile  # type: ignore[no-any-return]  # get_args is untyped

    def _variables(self, asked: JsonValue) -> dict[str, str]:
        wanted = [str(name) for name in asked] if isinstance(asked, list | tuple) else []
        names = [*self._policy.variables, *(name for name in wanted if name in self._policy.variables_on_request)]
        return {name: self._environ[name] for name in names if name in self._environ}


def find_bubblewrap() -> Path | None:
    """Return the path of bubblewrap if it works. Many containers have it and do not let it create namespaces."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    probe = [found, "--ro-bind", "/", "/", "--unshare-pid", "--dev", "/dev", "--proc", "/proc", "--", "/bin/true"]
    try:
        tried = subprocess.run(probe, check=False, capture_output=True, timeout=PROBE_SECONDS)  # noqa: S603  # constant
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(found) if tried.returncode == os.EX_OK else None
