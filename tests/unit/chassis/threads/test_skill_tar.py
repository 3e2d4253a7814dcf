"""A skill's folder as a tar, and what is not taken out of one."""

import io
import tarfile
from collections.abc import Callable

import pytest

from services.chassis.threads.skill_tar import SkillFile, SkillLimits, SkillRefusedError, packed, unpacked

LIMITS = SkillLimits(tar_bytes_max=100_000, file_bytes_max=1_000, files_max=5)
SKILL = {"SKILL.md": SkillFile(b"# Review\n"), "scripts/run.sh": SkillFile(b"#!/bin/sh\n", executable=True)}


def made(*members: tarfile.TarInfo, whole: bool = True) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        if whole:
            tar.addfile(tarfile.TarInfo("SKILL.md"))
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return out.getvalue()


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def test_the_same_files_are_the_same_bytes() -> None:
    assert packed(SKILL, LIMITS) == packed(dict(reversed(SKILL.items())), LIMITS)
    assert unpacked(packed(SKILL, LIMITS), LIMITS) == SKILL


def test_folders_and_other_modes_say_nothing() -> None:
    data = made(member("scripts", kind=tarfile.DIRTYPE), member("scripts/a", 3))
    assert unpacked(data, LIMITS) == {"SKILL.md": SkillFile(b""), "scripts/a": SkillFile(b"xxx")}


@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/passwd", "a/../../out", "a//b", "./a", "a/", "a\\b", "a\nb", "", "x" * 501, "/".join("a" * 40)],
)
def test_paths_outside_are_refused(name: str) -> None:
    with pytest.raises(SkillRefusedError, match="no plain relative path"):
        packed({"SKILL.md": SkillFile(b""), name: SkillFile(b"")}, LIMITS)
    if name and not name.endswith("/") and len(name) < 100:
        with pytest.raises(SkillRefusedError, match="no plain relative path"):
            unpacked(made(member(name)), LIMITS)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind: bytes) -> None:
    with pytest.raises(SkillRefusedError, match="links and devices are not taken"):
        unpacked(made(member("evil", kind=kind, link="/etc/passwd")), LIMITS)


def test_a_folder_that_leads_outside_is_refused() -> None:
    with pytest.raises(SkillRefusedError, match="no plain relative path"):
        unpacked(made(member("../out", kind=tarfile.DIRTYPE)), LIMITS)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lambda: made(member("big", 1_001)), "'big' has 1001 bytes; 1000 are allowed"),
        (lambda: made(*[member(f"f{n}") for n in range(5)]), "it has 6 files; 5 are allowed"),
        (lambda: made(*[member(f"d{n}", kind=tarfile.DIRTYPE) for n in range(12)]), "more than 10 entries"),
        (lambda: made(member("a"), member("a")), "'a' is there twice"),
        (lambda: made(member("a"), member("a/b")), "'a' is a file and a folder"),
        (lambda: made(member("a"), whole=False), r"it has no SKILL\.md"),
        (lambda: b"x" * 100_001, "it has 100001 bytes; 100000 are allowed"),
        (lambda: b"", "it is no tar"),
        (lambda: b"no tar at all" * 100, "it is no tar"),
        (lambda: made(member("a", 900))[:1_400], "it is no tar: unexpected end of data"),
    ],
)
def test_what_else_is_no_skill(data: Callable[[], bytes], why: str) -> None:
    with pytest.raises(SkillRefusedError, match=why):
        unpacked(data(), LIMITS)


def test_a_sparse_file_may_claim_to_be_anything() -> None:
    info = member("sparse")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("SKILL.md"))
        info.size = 512
        tar.addfile(info, io.BytesIO(b"1\n0\n512\n".ljust(512, b"\x00")))
    with pytest.raises(SkillRefusedError):
        unpacked(out.getvalue(), LIMITS)


def test_a_folder_that_is_too_large_is_not_packed() -> None:
    many = {f"f{n}": SkillFile(b"x" * 1_000) for n in range(4)} | {"SKILL.md": SkillFile(b"")}
    with pytest.raises(SkillRefusedError, match="as a tar"):
        packed(many, SkillLimits(tar_bytes_max=3_000))
    with pytest.raises(SkillRefusedError, match="'big' has"):
        packed(SKILL | {"big": SkillFile(b"x" * 1_001)}, LIMITS)
