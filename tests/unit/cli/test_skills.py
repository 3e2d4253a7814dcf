"""`threadlog skills`: from a folder to the entry of a configuration."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.config import Skill
from services.chassis.threads.skill_tar import SkillLimits, SkillRefusedError, packed
from services.cli.__main__ import app
from services.cli.skills import entry_of, front_matter, listed, read_folder

HASH = "a" * 64
GIVEN: dict[str, str | None] = {"name": None, "version": None, "description": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "review"
    (place / "scripts").mkdir(parents=True)
    (place / "SKILL.md").write_text(
        "---\nname: review\nversion: 1.2\ndescription: >\n  Reviewing\n  changes.\n---\n# How\n"
    )
    (place / "scripts" / "look.sh").write_text("#!/bin/sh\n")
    (place / "scripts" / "look.sh").chmod(0o755)
    (place / ".git").mkdir()
    (place / ".git" / "config").write_text("x")
    return place


def test_a_folder_is_its_files(folder: Path) -> None:
    files = read_folder(folder, SkillLimits())
    assert sorted(files) == ["SKILL.md", "scripts/look.sh"]
    assert (files["scripts/look.sh"].executable, files["SKILL.md"].executable) == (True, False)
    before = packed(files, SkillLimits())
    os.utime(folder / "SKILL.md", (1, 1))
    assert packed(read_folder(folder, SkillLimits()), SkillLimits()) == before


def test_links_are_not_taken(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(SkillRefusedError, match="'link' is no regular file"):
        read_folder(folder, SkillLimits())


def test_a_link_to_a_folder_is_none_either(folder: Path) -> None:
    (folder / "link").symlink_to("/etc")
    with pytest.raises(SkillRefusedError, match="'link' is no regular file"):
        read_folder(folder, SkillLimits())


@pytest.mark.parametrize("limits", [SkillLimits(files_max=1), SkillLimits(file_bytes_max=10)])
def test_there_are_limits(folder: Path, limits: SkillLimits) -> None:
    with pytest.raises(SkillRefusedError, match="a skill may have"):
        read_folder(folder, limits)


def test_it_has_to_say_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(SkillRefusedError, match=r"there is no SKILL\.md"):
        read_folder(tmp_path, SkillLimits())


def test_the_front_matter_names_it(folder: Path) -> None:
    told = front_matter((folder / "SKILL.md").read_text())
    assert told["description"].strip() == "Reviewing changes."
    entry = entry_of("folder", told, GIVEN, HASH)
    assert entry == Skill(name="review", version="1.2", sha256=HASH, description="Reviewing changes.")
    given = GIVEN | {"name": "other", "version": "3", "description": "d"}
    assert entry_of("folder", told, given, HASH) == Skill(name="other", version="3", sha256=HASH, description="d")
    assert entry_of("folder", {"version": "1"}, GIVEN, HASH).name == "folder"


@pytest.mark.parametrize(
    ("text", "told"), [("# no front matter", {}), ("", {}), ("---\na: [1]\nb: x\n---\n", {"b": "x"})]
)
def test_what_a_file_tells_of_itself(text: str, told: dict[str, str]) -> None:
    assert front_matter(text) == told


@pytest.mark.parametrize("text", ["---\nname: x", "---\n- a\n---\n", "---\n: : :\n---\n", "---\n---\n"])
def test_front_matter_that_is_none(text: str) -> None:
    with pytest.raises(SkillRefusedError, match="front matter"):
        front_matter(text)


@pytest.mark.parametrize(
    ("told", "why"),
    [({"name": "x"}, "it has no version"), ({"name": "a b", "version": "1"}, "its name cannot be used")],
)
def test_what_cannot_be_an_entry(told: dict[str, str], why: str) -> None:
    with pytest.raises(SkillRefusedError, match=why):
        entry_of("f", told, GIVEN, HASH)


def test_the_list_says_what_is_loaded() -> None:
    config = {
        "skills": [
            {"name": "review", "version": "2", "sha256": HASH, "description": "d"},
            {"name": "b", "version": "1", "sha256": "c" * 64},
        ]
    }
    state = {
        "config": config,
        "skills": {"review": {"version": "2", "sha256": HASH}, "old": {"version": "1", "sha256": HASH}},
    }
    assert listed({"state": state}) == [
        "loaded  review 2  d",
        "        b 1",
        "loaded  old 1  (no longer in the configuration)",
    ]
    assert listed({"state": {"config": {"skills": []}, "skills": {}}}) == ["The thread has no skills."]


def test_a_folder_that_is_none_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["skills", "push", str(tmp_path), "--url", "http://127.0.0.1:1"])
    assert answer.exit_code == 2
    assert "SKILL.md" in answer.output
    assert json.dumps({}) not in answer.output
