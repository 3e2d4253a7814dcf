"""A skill's folder as one artifact: a plain tar, with the same bytes for the same files, and read with suspicion.

This module is pure. It takes nothing out of an archive but directories and regular files with plain relative names.
Times, owners and modes are ignored, except that a file may be executed: so equal folders have equal hashes. Anybody may
upload an archive, so links, devices, paths out of the folder and sizes without a limit are refused before anything is
written.
"""

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.errors import ThreadlogError

MEDIA_TYPE: Final = "application/x-tar"
SKILL_FILE: Final = "SKILL.md"
"""The file that every skill has, which says what it is for."""
EXECUTABLE: Final = 0o100
"""The bit of a file's mode by which its owner may execute it."""
PATH_CHARACTERS_MAX: Final = 500
"""Longest path in an archive. File systems take more, but the workspace's own path comes before it."""
TAR_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size of a whole archive. An executor has it in memory while it unpacks it."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of one file. A skill is text and small programs; data belongs into an artifact of its own."""
FILES_MAX: Final = 1_000
"""Files of one skill, which an executor writes before the first call that uses them."""
PARTS_MAX: Final = 32
"""Deepest nesting of folders."""


class SkillRefusedError(ThreadlogError):
    """The bytes, or the folder, are not a skill. The text says why, for people and models."""


@dataclass(frozen=True, slots=True)
class SkillLimits:
    """Sizes of one skill. Packing and unpacking have the same, so that what was uploaded can be used."""

    tar_bytes_max: int = TAR_BYTES_MAX
    file_bytes_max: int = FILE_BYTES_MAX
    files_max: int = FILES_MAX


class SkillFile(NamedTuple):
    """A skill consists of files like this one."""

    content: bytes
    executable: bool = False


def packed(files: Mapping[str, SkillFile], limits: SkillLimits) -> bytes:
    """Return the archive of these files, by relative path with `/`.

    Raise SkillRefusedError for what `unpacked` would refuse.
    """
    for path, file in files.items():
        _require_path(path)
        _require_size(path, len(file.content), limits)
    _require_whole(list(files), limits)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files):
            info = tarfile.TarInfo(path)
            info.size = len(files[path].content)
            info.mode = 0o755 if files[path].executable else 0o644
            tar.addfile(info, io.BytesIO(files[path].content))
    data = out.getvalue()
    if len(data) > limits.tar_bytes_max:
        raise SkillRefusedError(f"the skill has {len(data)} bytes as a tar; {limits.tar_bytes_max} are allowed")
    return data


def unpacked(data: bytes, limits: SkillLimits) -> dict[str, SkillFile]:
    """Return the files of an archive by their paths. Raise SkillRefusedError."""
    if len(data) > limits.tar_bytes_max:
        raise SkillRefusedError(f"it has {len(data)} bytes; {limits.tar_bytes_max} are allowed")
    files: dict[str, SkillFile] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for seen, member in enumerate(tar, start=1):
                if seen > 2 * limits.files_max:
                    raise SkillRefusedError(f"it has more than {2 * limits.files_max} entries")
                file = _taken(tar, member, files, limits)
                if file is not None:
                    files[member.name] = file
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise SkillRefusedError(f"it is no tar: {error}") from error
    _require_whole(list(files), limits)
    return files


def _taken(
    tar: tarfile.TarFile, member: tarfile.TarInfo, files: Mapping[str, SkillFile], limits: SkillLimits
) -> SkillFile | None:
    """Return the file of an entry, or None if it is a directory, which its files imply. Raise SkillRefusedError."""
    if member.isdir():
        _require_path(member.name.removesuffix("/"))
        return None
    if not member.isreg() or member.issparse():
        raise SkillRefusedError(f"{member.name[:200]!r} is no regular file: links and devices are not taken")
    _require_path(member.name)
    _require_size(member.name, member.size, limits)
    if member.name in files:
        raise SkillRefusedError(f"{member.name!r} is there twice")
    content = tar.extractfile(member)
    assert content is not None  # it is a regular file
    return SkillFile(content.read(), bool(member.mode & EXECUTABLE))


def _require_path(path: str) -> None:
    parts = path.split("/")
    plain = all(part not in {"", ".", ".."} for part in parts) and path.isprintable() and "\\" not in path
    if not plain or len(path) > PATH_CHARACTERS_MAX or len(parts) > PARTS_MAX:
        raise SkillRefusedError(f"{path[:200]!r} is no plain relative path inside the folder")


def _require_size(path: str, size: int, limits: SkillLimits) -> None:
    if size > limits.file_bytes_max:
        raise SkillRefusedError(f"{path!r} has {size} bytes; {limits.file_bytes_max} are allowed")


def _require_whole(paths: Sequence[str], limits: SkillLimits) -> None:
    if len(paths) > limits.files_max:
        raise SkillRefusedError(f"it has {len(paths)} files; {limits.files_max} are allowed")
    if SKILL_FILE not in paths:
        raise SkillRefusedError(f"it has no {SKILL_FILE}")
    folders = {path[:place] for path in paths for place, sign in enumerate(path) if sign == "/"}
    both = folders & set(paths)
    if both:
        raise SkillRefusedError(f"{min(both)!r} is a file and a folder")
