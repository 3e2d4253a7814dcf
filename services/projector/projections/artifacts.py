"""The rows of the view `artifacts`: one for each time that a record names an artifact.

A record has its rows whatever its effect, rejected ones included: an artifact that the log names is kept.
"""

from typing import NamedTuple

from pydantic import JsonValue

from schemas.config import Config, Skill
from schemas.events import (
    ArtifactItem,
    ArtifactRecorded,
    FileChange,
    InputSubmitted,
    SkillLoaded,
    ThreadConfigured,
    ThreadCreated,
    ToolCallFinished,
)
from services.projector.projections.changes import Applied

COLUMNS = (
    *("tenant", "thread", "seq", "part", "kind", "effect", "call", "sha256", "size", "media_type", "name", "at"),
)
HASH_CHARACTERS = 64
"""Characters of a sha256 in hexadecimal."""
NAMING = frozenset({ToolCallFinished, InputSubmitted, ArtifactRecorded, SkillLoaded, ThreadCreated, ThreadConfigured})
"""Events that can name an artifact. Most records are of other kinds, and are done after one look into this set."""


class Named(NamedTuple):
    """An artifact as a record names it; None where the record does not say."""

    kind: str
    sha256: str
    name: str | None
    size: int | None = None
    media_type: str | None = None
    call: str | None = None


def artifact_rows(applied: Applied) -> list[tuple[object, ...]]:
    """Return a row for each artifact that the record names, in the order in which it names them."""
    record = applied.record
    if type(record.data) not in NAMING:
        return []
    return [
        (
            *(*record.key, applied.after.seq, part, one.kind, applied.verdict.effect, one.call),
            *(one.sha256, one.size, one.media_type, one.name, record.time_ms),
        )
        for part, one in enumerate(named_in(record.data))
    ]


def named_in(event: object) -> list[Named]:
    """Return the artifacts that an event names. The place in this list becomes `part` in the key of the row."""
    match event:
        case ToolCallFinished(artifacts=(), changes=()):
            return []
        case ToolCallFinished() as data:
            made = [
                Named("tool_call", one.sha256, one.name, one.size, one.media_type, data.call) for one in data.artifacts
            ]
            return [*made, *(content for change in data.changes for content in _contents(change, data.call))]
        case InputSubmitted(items=items):
            return [
                Named("input", item.sha256, item.name, item.size, item.media_type)
                for item in items
                if isinstance(item, ArtifactItem)
            ]
        case ArtifactRecorded() as data:
            return [Named("recorded", data.sha256, data.name, data.size, data.media_type)]
        case SkillLoaded() as data:
            return [Named("skill", data.sha256, data.name)]
        case ThreadCreated(config=Config(skills=skills)):
            return [_skill(skill) for skill in skills]
        case ThreadConfigured(patch=patch):
            return _patched(patch.get("skills"))
    return []


def _contents(change: FileChange, call: str) -> list[Named]:
    """Yield the content of a changed file before the change and after it, as far as there is one."""
    held = ("before", change.before), ("after", change.after)
    return [Named(kind, sha256, change.path, call=call) for kind, sha256 in held if sha256 is not None]


def _skill(skill: Skill) -> Named:
    return Named("skill", skill.sha256, skill.name)


def _patched(skills: JsonValue) -> list[Named]:
    """Return the skills of a configuration's patch.

    The patch is data of a client, and may be of a rejected record: nobody has checked it against the model. What does
    not look like a skill names nothing.
    """
    found = [skill for skill in skills if isinstance(skill, dict)] if isinstance(skills, list) else []
    return [
        Named("skill", sha256, str(skill.get("name")))
        for skill in found
        if isinstance(sha256 := skill.get("sha256"), str) and len(sha256) == HASH_CHARACTERS
    ]
