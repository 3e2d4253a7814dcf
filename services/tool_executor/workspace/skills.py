"""Skills in a thread's workspace: `.skills/<name>/<version>-<hash>`, read-only, restored from the artifact store.

A folder is complete or absent: it is written under another name and moved to its place by one rename. So a call can
rely on a folder that it finds, whoever restored it and whether or not that process died. An executor that has never
seen the thread restores its skills before the thread's next call.

Nothing in the workspace is trusted, because commands can change it. Each part of a path is opened relative to the one
before, without following links, so that a link cannot lead the executor to write elsewhere.
"""

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from schemas.state import LoadedSkill
from services.chassis.artifacts.store import ArtifactError, ArtifactMissingError, ArtifactStore, collected
from services.chassis.threads.skill_tar import SkillFile, SkillLimits, SkillRefusedError, unpacked
from services.tool_executor.attachments import STORE_SECONDS

log = structlog.get_logger()

FOLDER: Final = ".skills"
HASH_CHARACTERS: Final = 12
"""Enough to tell versions of one skill apart, and short enough for a path that a model repeats."""
REFUSED_REMEMBERED_MAX: Final = 10_000
"""Bounds the memory for skills that were refused; beyond it they are fetched and refused again."""


class SkillUnavailableError(Exception):
    """The skill cannot be restored now. The model reads the text."""


class SkillFolders:
    def __init__(self, store: ArtifactStore, limits: SkillLimits, seconds: float = STORE_SECONDS) -> None:
        self._store = store
        self._limits = limits
        self._seconds = seconds
        self._refused: dict[tuple[str, str], str] = {}
        """The reason, by tenant and hash: a hash names the same content for ever, so it is fetched once."""
        self._restoring: dict[Path, asyncio.Lock] = {}

    async def restore(self, tenant: str, workspace: Path, skills: Mapping[str, LoadedSkill]) -> None:
        """Restore the thread's skills as far as possible.

        A skill that is refused is logged and left out: a call must not fail for a skill that it may not need. Raises
        SkillUnavailableError if the store does not answer, since the skill may be needed and will be there later.
        """
        for name, skill in skills.items():
            if folder_of(workspace, name, skill).is_dir():
                continue
            try:
                await self.load(tenant, workspace, name, skill)
            except SkillRefusedError as error:
                log.warning("skill_refused", tenant=tenant, skill=name, version=skill.version, error=str(error))

    async def load(self, tenant: str, workspace: Path, name: str, skill: LoadedSkill) -> Mapping[str, SkillFile]:
        """Restore one skill and return its files as the store has them, whatever a tool did to the folder.

        Raises SkillRefusedError and SkillUnavailableError.
        """
        files = await self._files(tenant, name, skill)
        folder = folder_of(workspace, name, skill)
        lock = self._restoring.setdefault(folder, asyncio.Lock())
        try:
            async with lock:
                if not folder.is_dir():
                    await asyncio.to_thread(_put, files, workspace, name, folder.name)
        except OSError as error:
            raise SkillRefusedError(f"its folder cannot be made: {error}") from error
        finally:
            if not lock.locked():
                self._restoring.pop(folder, None)
        return files

    async def _files(self, tenant: str, name: str, skill: LoadedSkill) -> dict[str, SkillFile]:
        refused = self._refused.get((tenant, skill.sha256))
        if refused is not None:
            raise SkillRefusedError(refused)
        try:
            async with asyncio.timeout(self._seconds):
                end = self._limits.tar_bytes_max + 1
                data = await collected(await self._store.get(tenant, skill.sha256, 0, end))
        except ArtifactMissingError:
            raise SkillRefusedError(f"there is no artifact {skill.sha256}; push the skill again") from None
        except (ArtifactError, TimeoutError) as error:
            log.warning("skill_unavailable", tenant=tenant, skill=name, error=str(error))
            raise SkillUnavailableError(
                f"The skill {name!r} cannot be restored: the artifact store does not answer. Try again later."
            ) from error
        try:
            return unpacked(data, self._limits)
        except SkillRefusedError as error:
            if len(self._refused) < REFUSED_REMEMBERED_MAX:
                self._refused[tenant, skill.sha256] = str(error)
            raise


def folder_of(workspace: Path, name: str, skill: LoadedSkill) -> Path:
    return workspace / FOLDER / name / f"{skill.version}-{skill.sha256[:HASH_CHARACTERS]}"


def seen_from(cwd: Path, folder: Path) -> str:
    return os.path.relpath(folder, cwd)


def _put(files: Mapping[str, SkillFile], workspace: Path, name: str, called: str) -> None:
    """Write the folder under another name and rename it. Raises OSError.

    If another process was faster, it has put the same content there. Anything else in the way, such as a link that
    leads out of the workspace, is an error and is not followed.
    """
    with contextlib.ExitStack() as stack:
        parent = _entered(str(workspace), None, stack)
        for part in (FOLDER, name):
            parent = _made(part, parent, stack)
        beside = f".{called}.{os.getpid()}"
        _remove(beside, parent)
        try:
            folder = _made(beside, parent, stack)
            for path, file in files.items():
                *inner, last = path.split("/")
                place = folder
                for part in inner:
                    place = _made(part, place, stack)
                _write(last, file, place)
            os.rename(beside, called, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            _remove(beside, parent)
            if not stat.S_ISDIR(os.stat(called, dir_fd=parent, follow_symlinks=False).st_mode):
                raise


def _entered(name: str, parent: int | None, stack: contextlib.ExitStack) -> int:
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    stack.callback(os.close, opened)
    return opened


def _made(name: str, parent: int, stack: contextlib.ExitStack) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    return _entered(name, parent, stack)


def _write(name: str, file: SkillFile, parent: int) -> None:
    mode = 0o555 if file.executable else 0o444
    opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=parent)
    with os.fdopen(opened, "wb") as out:
        out.write(file.content)


def _remove(name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(name, dir_fd=parent)
