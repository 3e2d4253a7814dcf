"""The tool by which a model loads a skill: it gets the instructions, and the folder into its workspace."""

import asyncio

from pydantic import Field

from schemas.tools import LOAD_SKILL_TOOL, ToolSpec
from services.chassis.threads.skill_tar import SKILL_FILE, SkillRefusedError
from services.tool_executor.attachments import whole_text
from services.tool_executor.builtin.tool import Arguments, BuiltinTool, ToolFailedError, schema_of
from services.tool_executor.output import INLINE_BYTES_MAX, structured_result
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest
from services.tool_executor.workspace.sandbox import Room
from services.tool_executor.workspace.skills import folder_of, seen_from


class LoadSkillArguments(Arguments):
    name: str = Field(description="Name of a skill that the instructions list.")


class LoadSkillTool(BuiltinTool[LoadSkillArguments]):
    """Shows the instructions of a skill from its artifact, never from the folder, which commands can change.

    The runtime has recorded which version the name stands for before this call was dispatched. From then on, each call
    of the thread finds the folder restored.
    """

    arguments = LoadSkillArguments
    spec = ToolSpec(
        name=LOAD_SKILL_TOOL,
        description=(
            f"Load a skill: a folder of instructions and files for some kind of work. Returns its {SKILL_FILE}; the "
            "folder is read-only in the workspace."
        ),
        input_schema=schema_of(LoadSkillArguments),
        effect="pure",
        parallel=True,
        timeout_seconds=120,
    )

    async def act(
        self, args: LoadSkillArguments, room: Room, request: ToolRequest, _emit: Emit, _cancelled: asyncio.Event, /
    ) -> ToolEnd:
        skill = request.skills.get(args.name)
        folders = self._sandbox.skills
        if skill is None or folders is None:
            raise ToolFailedError(f"This thread has no skill {args.name!r}.")
        try:
            files = await folders.load(request.tenant, room.workspace, args.name, skill)
        except SkillRefusedError as error:
            raise ToolFailedError(f"The skill {args.name!r} cannot be used: {error}.") from None
        text = files[SKILL_FILE].content.decode(errors="replace")
        where = seen_from(room.cwd, folder_of(room.workspace, args.name, skill))
        shown = {"skill": args.name, "version": skill.version, "folder": where}
        return ToolEnd(
            "succeeded",
            structured_result([f"The skill's folder is {where}.\n\n", text], shown, bytes_max=INLINE_BYTES_MAX),
            attachments=whole_text(text, bytes_max=INLINE_BYTES_MAX),
        )
