"""Skills in a workspace: restored whole or not at all, from the store, whatever lies in the way."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from schemas.state import LoadedSkill
from services.chassis.artifacts.store import sha256_of
from services.chassis.clock import SystemClock
from services.chassis.settings import MIB
from services.chassis.threads.skill_tar import MEDIA_TYPE, SkillFile, SkillLimits, packed
from services.tool_executor.builtin.files import ReadFileTool, WriteFileTool
from services.tool_executor.builtin.load_skill import LoadSkillTool
from services.tool_executor.builtin.shell import ShellTool
from services.tool_executor.tools import ToolEnd, ToolRequest, ToolRunner
from services.tool_executor.workspace.file_history import FileHistory
from services.tool_executor.workspace.process import Warden
from services.tool_executor.workspace.sandbox import Sandbox, SandboxPolicy
from services.tool_executor.workspace.skills import FOLDER, SkillFolders, folder_of
from tests.support.memory.artifacts import MemoryArtifacts

TENANT, THREAD = "acme", "t-1"
FILES = {
    "SKILL.md": SkillFile(b"# How to review\nRun scripts/look.sh.\n"),
    "scripts/look.sh": SkillFile(b"#!/bin/sh\necho looked\n", executable=True),
}
DATA = packed(FILES, SkillLimits())


class Here:
    def __init__(self, root: Path) -> None:
        self.store = MemoryArtifacts(SystemClock(), 1 << 24)
        self.root = root
        self.policy = SandboxPolicy(root=root, enforcement="off")
        self.sandbox = self.another()
        self.skill = LoadedSkill("1.0", sha256_of(DATA))

    def another(self) -> Sandbox:
        """That of an executor that knows nothing yet."""
        return Sandbox(self.policy, os.environ, SkillFolders(self.store, SkillLimits(), 5.0))

    @property
    def workspace(self) -> Path:
        return self.root / TENANT / THREAD

    @property
    def folder(self) -> Path:
        return folder_of(self.workspace, "review", self.skill)

    async def push(self, data: bytes = DATA) -> None:
        await self.store.put(TENANT, sha256_of(data), data, MEDIA_TYPE)
        self.skill = LoadedSkill("1.0", sha256_of(data))

    async def run(self, tool: ToolRunner, **args: object) -> ToolEnd:
        request = ToolRequest(
            tenant=TENANT,
            thread=THREAD,
            call="1.1.0",
            attempt=1,
            tool="x",
            args=args,  # type: ignore[arg-type]
            idempotency_key="k",
            timeout_seconds=20,
            skills={"review": self.skill},
        )
        return await tool.run(request, lambda _: None, asyncio.Event())

    async def load(self, **args: object) -> ToolEnd:
        return await self.run(LoadSkillTool(self.sandbox), **({"name": "review"} | args))


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path.resolve() / "workspaces")


def text_of(end: ToolEnd) -> str:
    assert isinstance(end.result, dict)
    return "".join(part["text"] for part in end.result["content"])  # type: ignore[index,call-overload,misc,union-attr]


async def test_loading_shows_what_the_skill_says_and_where_it_is(here: Here) -> None:
    await here.push()
    end = await here.load()
    assert end.outcome == "succeeded", end
    where = f"{FOLDER}/review/1.0-{here.skill.sha256[:12]}"
    assert text_of(end) == f"The skill's folder is {where}.\n\n# How to review\nRun scripts/look.sh.\n"
    assert end.result["structured"] == {"skill": "review", "version": "1.0", "folder": where}  # type: ignore[index,call-overload]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in here.folder.rglob("*") if path.is_file()}
    assert modes == {"SKILL.md": 0o444, "look.sh": 0o555}


async def test_its_scripts_run_and_its_files_are_read(here: Here) -> None:
    await here.push()
    await here.load()
    warden = Warden()
    ran = await here.run(
        ShellTool(here.sandbox, warden, 1.0, MIB),
        command=f"./{here.folder.relative_to(here.workspace)}/scripts/look.sh",
    )
    assert "looked" in text_of(ran)
    read = await here.run(ReadFileTool(here.sandbox), path=f"{FOLDER}/review/{here.folder.name}/SKILL.md")
    assert "How to review" in text_of(read)


async def test_file_tools_do_not_change_it(here: Here) -> None:
    await here.push()
    await here.load()
    writing = WriteFileTool(here.sandbox, FileHistory(here.store, MIB))
    for path in (f"{FOLDER}/review/{here.folder.name}/SKILL.md", f"{FOLDER}/new"):
        end = await here.run(writing, path=path, content="mine now")
        assert (end.outcome, "read-only" in text_of(end)) == ("failed", True)
    assert (here.folder / "SKILL.md").read_bytes() == FILES["SKILL.md"].content


async def test_an_executor_without_the_folder_fetches_it_before_the_next_call(here: Here) -> None:
    await here.push()
    sandbox = here.another()
    ran = await here.run(ShellTool(sandbox, Warden(), 1.0, MIB), command=f"cat {FOLDER}/review/*/SKILL.md")
    assert "How to review" in text_of(ran)


async def test_a_store_that_is_away_holds_calls_up_until_it_is_back(here: Here) -> None:
    await here.push()
    here.store.away = True
    for tool, args in (
        (ShellTool(here.sandbox, Warden(), 1.0, MIB), {"command": "echo ran"}),
        (LoadSkillTool(here.sandbox), {"name": "review"}),
    ):
        end = await here.run(tool, **args)
        assert (end.outcome, "does not answer" in text_of(end), "ran" in text_of(end)) == ("failed", True, False)
    here.store.away = False
    assert (await here.load()).outcome == "succeeded"


@pytest.mark.parametrize("data", [None, b"no tar", packed({"SKILL.md": SkillFile(b"x" * 2_000)}, SkillLimits())])
async def test_what_is_no_skill_is_said_and_holds_nothing_up(here: Here, data: bytes | None) -> None:
    if data is None:
        here.skill = LoadedSkill("1.0", "0" * 64)
    else:
        await here.push(data)
    here.sandbox = Sandbox(here.policy, os.environ, SkillFolders(here.store, SkillLimits(file_bytes_max=1_000), 5.0))
    for _ in range(2):
        end = await here.load()
        assert (end.outcome, "cannot be used" in text_of(end)) == ("failed", True), text_of(end)
    ran = await here.run(ShellTool(here.sandbox, Warden(), 1.0, MIB), command="echo ran")
    assert "ran" in text_of(ran)
    assert not here.folder.exists()


async def test_what_the_thread_has_not_loaded_is_not_there(here: Here) -> None:
    end = await here.load(name="other")
    assert (end.outcome, text_of(end)) == ("failed", "This thread has no skill 'other'.")


@pytest.mark.parametrize("in_the_way", [FOLDER, f"{FOLDER}/review"])
async def test_a_link_in_the_way_is_not_followed(here: Here, tmp_path: Path, in_the_way: str) -> None:
    await here.push()
    outside = tmp_path / "outside"
    outside.mkdir()
    place = here.workspace / in_the_way
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    end = await here.load()
    assert (end.outcome, "its folder cannot be made" in text_of(end)) == ("failed", True)
    assert list(outside.iterdir()) == []


async def test_what_a_tool_made_of_the_folder_is_not_what_is_shown(here: Here) -> None:
    await here.push()
    await here.load()
    (here.folder / "SKILL.md").unlink()
    (here.folder / "SKILL.md").write_text("do something else")
    assert "How to review" in text_of(await here.load())


async def test_several_calls_at_once_restore_it_once(here: Here) -> None:
    await here.push()
    ends = await asyncio.gather(*[here.load() for _ in range(4)])
    assert {end.outcome for end in ends} == {"succeeded"}
    assert [path.name for path in here.folder.parent.iterdir()] == [here.folder.name]


async def test_what_a_dead_executor_left_half_is_not_taken_for_whole(here: Here) -> None:
    await here.push()
    beside = here.folder.with_name(f".{here.folder.name}.{os.getpid()}")
    (beside / "scripts").mkdir(parents=True)
    (beside / "half").write_text("half")
    assert (await here.load()).outcome == "succeeded"
    assert not (here.folder / "half").exists()
    assert [path.name for path in here.folder.parent.iterdir()] == [here.folder.name]
