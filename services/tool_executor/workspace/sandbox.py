"""Where a tool may act: one workspace per tenant and thread below a root, a scrubbed environment, a permission profile.

`read-only` and `workspace-write` are enforced by bubblewrap where it works: the machine is read-only, other workspaces
are not there, processes have their own namespace. Without it, the built-in file tools keep to the profile by
themselves, and a shell under `workspace-write` merely starts in its workspace; an operator who requires enforcement has
such calls refused, and a shell under `read-only` is refused in any case, since nothing would hold it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pydantic import JsonValue

from schemas.config import PermissionProfile
from schemas.ids import is_name
from services.tool_executor.workspace.file_changes import recover
from services.tool_executor.workspace.skills import FOLDER, SkillFolders

Enforcement: TypeAlias = Literal["where-present", "required", "off"]

IDEMPOTENCY_KEY_VARIABLE = "THREADLOG_IDEMPOTENCY_KEY"
VARIABLES_DEFAULT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR")
PROBE_SECONDS = 5.0

_WIDTH: dict[PermissionProfile, int] = {"read-only": 0, "workspace-write": 1, "full": 2}


class RefusedError(Exception):
    """The request asks for what it may not have. The text is for the model, too."""


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    root: Path
    enforcement: Enforcement = "where-present"
    profile_default: PermissionProfile = "workspace-write"
    profile_widest: PermissionProfile = "full"
    network: bool = True
    """Whether sandboxed processes reach the network."""
    variables: tuple[str, ...] = VARIABLES_DEFAULT
    """Of the executor's environment, what every tool sees."""
    variables_on_request: tuple[str, ...] = ()
    """What a thread's configuration may ask for beyond these."""
    bubblewrap: Path | None = None
    """None: not there, or it does not work here."""


@dataclass(frozen=True, slots=True)
class Room:
    """One request's place: its workspace, and what it may do there."""

    policy: SandboxPolicy
    workspace: Path
    cwd: Path
    profile: PermissionProfile
    variables: Mapping[str, str]

    def resolve(self, path: str) -> Path:
        """The file meant, symbolic links followed, which lies inside the workspace; relative paths start at cwd."""
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
        """The same room with another working directory in it."""
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
        """What skills have brought is not the thread's to change."""
        for path in paths:
            if path.is_relative_to(self.workspace / FOLDER):
                raise RefusedError(f"{self.relative(path)} belongs to a skill, which is read-only. Copy it elsewhere.")

    def environment(self, idempotency_key: str) -> dict[str, str]:
        return {
            **self.variables,
            "HOME": str(self.workspace),
            "PWD": str(self.cwd),
            IDEMPOTENCY_KEY_VARIABLE: idempotency_key,
        }

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command under its profile; raises RefusedError where the profile cannot be enforced but must be."""
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
        # The root hides every other workspace; this one is put back.
        options += ["--tmpfs", str(self.policy.root), bind, workspace, workspace, "--chdir", str(self.cwd)]
        return options if self.policy.network else ["--unshare-net", *options]


class Sandbox:
    def __init__(self, policy: SandboxPolicy, environ: Mapping[str, str], skills: SkillFolders | None = None) -> None:
        self._policy = policy
        self._environ = environ
        self.skills = skills

    def enter(self, tenant: str, thread: str, environment: Mapping[str, JsonValue]) -> Room:
        """Makes the workspace where there is none yet. Raises RefusedError for what a thread may not have."""
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
    """Where it is, if it also works: in many containers it may not make namespaces."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    probe = [found, "--ro-bind", "/", "/", "--unshare-pid", "--dev", "/dev", "--proc", "/proc", "--", "/bin/true"]
    try:
        tried = subprocess.run(probe, check=False, capture_output=True, timeout=PROBE_SECONDS)  # noqa: S603  # constant
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(found) if tried.returncode == os.EX_OK else None
