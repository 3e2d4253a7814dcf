"""Skills that a thread's model may load: how they are offered, and what is recorded before one is loaded. Pure.

A skill is a folder of instructions and files in the artifact store. The model sees only its name and description, until
it loads the skill with a tool of the executors.
"""

from collections.abc import Iterable

from schemas.config import Config, Skill
from schemas.events import SkillLoaded
from schemas.state import Call, LoadedSkill, ThreadState, Turn
from schemas.tools import LOAD_SKILL_TOOL, Catalog, ToolSpec

HEADING = f"Skills: folders of instructions and files. Before work that one is made for, load it by {LOAD_SKILL_TOOL}."


def is_loader(catalog: Catalog, tool: str) -> bool:
    """Whether the tool is the executors' own loader, and not some other tool of that name."""
    found = catalog.find(tool)
    return tool == LOAD_SKILL_TOOL and found is not None and found.source == "builtin"


def without_loader(tools: Iterable[ToolSpec], config: Config) -> tuple[ToolSpec, ...]:
    """Return the tools, without the loader if the thread has no skills: there is nothing that it could load."""
    return tuple([tool for tool in tools if config.skills or tool.name != LOAD_SKILL_TOOL])


def instructions(config: Config, tools: Iterable[ToolSpec]) -> str | None:
    """Return the thread's own instructions, followed by its skills if the tool that loads them is offered."""
    if not config.skills or all(tool.name != LOAD_SKILL_TOOL for tool in tools):
        return config.instructions
    lines = [HEADING, *[_line(skill) for skill in config.skills]]
    return "\n\n".join([*([config.instructions] if config.instructions else []), "\n".join(lines)])


def why_refused(turn: Turn, call: Call) -> tuple[str, str] | None:
    """Return policy and reason if the named skill is none of the thread's; the arguments fit the tool's schema."""
    if _named(turn.config, call) is not None:
        return None
    names = ", ".join(skill.name for skill in turn.config.skills) or "none"
    return "policy:arguments", f"There is no skill named {str(call.args.get('name'))[:100]!r}. The skills are: {names}."


def to_record(state: ThreadState, turn: Turn, call: Call) -> SkillLoaded | None:
    """Return what has to be recorded before the call is dispatched; None if it is recorded already.

    The record pins the version. The executor that runs this call, and every later call that uses the skill's files,
    finds the same version there, even if the thread's configuration has changed since.
    """
    skill = _named(turn.config, call)
    if skill is None or state.skills.get(skill.name) == LoadedSkill(skill.version, skill.sha256):
        return None
    return SkillLoaded(name=skill.name, skill_version=skill.version, sha256=skill.sha256)


def _named(config: Config, call: Call) -> Skill | None:
    """Return the skill that the call names; if several versions are listed, the last one."""
    name = call.args.get("name")
    return next((skill for skill in reversed(config.skills) if skill.name == name), None)


def _line(skill: Skill) -> str:
    return f"- {skill.name} ({skill.version})" + (f": {skill.description}" if skill.description else "")
