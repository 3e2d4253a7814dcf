"""`threadlog skills`: a folder with a SKILL.md becomes an artifact that threads name in their configuration."""

import asyncio
import json
import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml
from pydantic import ValidationError

from schemas.config import Skill
from services.chassis.threads.skill_tar import MEDIA_TYPE, SKILL_FILE, SkillFile, SkillLimits, SkillRefusedError, packed
from services.cli.connection import TENANT, URL, Tenant, Token, Url, connect
from services.client.client import JsonObject, RefusedError, UnreachableError

app = typer.Typer(
    no_args_is_help=True, help="Upload folders of instructions that a model may load, and list those of a thread."
)

FENCE: Final = "---"
"""Line before and after the front matter."""
FRONT_MATTER_CHARACTERS_MAX: Final = 20_000
"""Longest front matter that is parsed."""
LEFT_OUT: Final = frozenset({".git", "__pycache__", ".DS_Store"})
"""Files and folders that are never part of a skill."""


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="Folder that contains a SKILL.md.", file_okay=False, exists=True)],
    name: Annotated[
        str | None, typer.Option("--name", help="Name [default: from the front matter, or the folder].")
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="Version [default: from the front matter].")] = None,
    description: Annotated[
        str | None, typer.Option("--description", help="What the skill is good for; the model chooses by it.")
    ] = None,
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
) -> None:
    """Upload the folder, and print the entry for `skills` of a thread's configuration."""
    try:
        files = read_folder(folder, SkillLimits())
        data = packed(files, SkillLimits())
        told = front_matter(files[SKILL_FILE].content.decode(errors="replace"))
        given = {"name": name, "version": version, "description": description}
        entry = entry_of(folder.resolve().name, told, given, sha256(data).hexdigest())
    except (SkillRefusedError, OSError) as error:
        raise typer.BadParameter(f"{folder}: {error}") from error
    asyncio.run(_upload(data, url, token, tenant))
    typer.echo(json.dumps(entry.model_dump(), indent=2, ensure_ascii=False))


@app.command("list")
def list_skills(
    thread: Annotated[str, typer.Argument(help="Id of the thread.")],
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
) -> None:
    """List the skills that the model of a thread may load, and those that it has loaded."""
    for line in listed(asyncio.run(_state(thread, url, token, tenant))):
        typer.echo(line)


async def _upload(data: bytes, url: str, token: str | None, tenant: str) -> None:
    """Upload the archive. A refusal becomes one line and exit status 1."""
    async with connect(url, token, tenant) as client:
        try:
            await client.put_artifact(data, MEDIA_TYPE)
        except (RefusedError, UnreachableError) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error


async def _state(thread: str, url: str, token: str | None, tenant: str) -> JsonObject:
    """Return the thread's state. A refusal becomes one line and exit status 1."""
    async with connect(url, token, tenant) as client:
        try:
            return await client.state(thread)
        except (RefusedError, UnreachableError) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from error


def read_folder(folder: Path, limits: SkillLimits) -> dict[str, SkillFile]:
    """Return the regular files of the folder. Raises SkillRefusedError for what a skill cannot contain."""
    files: dict[str, SkillFile] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for place in [*(Path(root) / each for each in folders), *(Path(root) / each for each in sorted(names))]:
            shown = place.relative_to(folder).as_posix()
            mode = place.lstat().st_mode
            if stat.S_ISDIR(mode) or place.name in LEFT_OUT:
                continue
            if not stat.S_ISREG(mode):
                raise SkillRefusedError(f"{shown!r} is no regular file: links are not taken")
            if len(files) >= limits.files_max or place.stat().st_size > limits.file_bytes_max:
                raise SkillRefusedError(
                    f"at {shown!r}: a skill may have {limits.files_max} files of {limits.file_bytes_max} bytes"
                )
            files[shown] = SkillFile(place.read_bytes(), bool(mode & stat.S_IXUSR))
    if SKILL_FILE not in files:
        raise SkillRefusedError(f"there is no {SKILL_FILE}")
    return files


def front_matter(text: str) -> dict[str, str]:
    """Return what SKILL.md says of itself between two lines `---` at its beginning."""
    first, _, rest = text.partition("\n")
    if first.strip() != FENCE:
        return {}
    between, fence, _ = f"\n{rest[:FRONT_MATTER_CHARACTERS_MAX]}".partition(f"\n{FENCE}")
    try:
        said = yaml.safe_load(between) if fence else None
    except yaml.YAMLError as error:
        raise SkillRefusedError(f"the front matter of {SKILL_FILE} is no YAML: {error}") from error
    if not isinstance(said, dict):
        raise SkillRefusedError(f"{SKILL_FILE} begins with {FENCE}, but no front matter follows")
    return {str(key): str(value) for key, value in said.items() if isinstance(value, str | int | float)}


def entry_of(folder: str, told: Mapping[str, str], given: Mapping[str, str | None], digest: str) -> Skill:
    """Return the entry for a configuration. What is given counts before what the folder says of itself."""
    chosen = {key: value for key, value in given.items() if value is not None}
    version = chosen.get("version") or told.get("version")
    if version is None:
        raise SkillRefusedError(
            f"it has no version: write one into the front matter of {SKILL_FILE}, or give --version"
        )
    try:
        return Skill(
            name=chosen.get("name") or told.get("name") or folder,
            version=version,
            sha256=digest,
            description=" ".join((chosen.get("description") or told.get("description") or "").split()),
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise SkillRefusedError(f"its {problem['loc'][0]} cannot be used: {problem['msg']}") from error


def listed(answer: JsonObject) -> list[str]:
    """Return lines for a terminal, from the thread's state."""
    state = answer["state"]
    assert isinstance(state, dict)
    loaded, config = state.get("skills"), state.get("config")
    skills = config.get("skills") if isinstance(config, dict) else None
    lines = []
    for skill in skills if isinstance(skills, list) else []:
        assert isinstance(skill, dict)
        held = loaded.get(str(skill["name"])) if isinstance(loaded, dict) else None
        is_loaded = isinstance(held, dict) and held.get("sha256") == skill["sha256"]
        mark = "loaded" if is_loaded else "      "
        lines.append(f"{mark}  {skill['name']} {skill['version']}  {skill.get('description') or ''}".rstrip())
    named = {str(skill["name"]) for skill in skills if isinstance(skill, dict)} if isinstance(skills, list) else set()
    for name, held in loaded.items() if isinstance(loaded, dict) else ():
        if name not in named and isinstance(held, dict):
            lines.append(f"loaded  {name} {held['version']}  (no longer in the configuration)")
    return lines or ["The thread has no skills."]
