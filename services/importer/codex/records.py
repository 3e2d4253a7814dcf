"""What single records of Codex say, in the forms of its versions. Nothing here remembers the record before."""

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.events import Usage
from services.importer.model import Blob

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TOKENS_MAX = 2**53 - 1

INJECTED_TAGS = frozenset(
    {
        "apps_instructions",
        "codex_internal_context",
        "collaboration_mode",
        "environment_context",
        "environments_instructions",
        "goal_context",
        "hook_prompt",
        "model_switch",
        "multi_agent_mode",
        "permissions instructions",
        "personality_spec",
        "plugins_instructions",
        "realtime_conversation",
        "recommended_plugins",
        "skill",
        "skills_instructions",
        "subagent_notification",
        "tools",
        "turn_aborted",
        "user_action",
        "user_instructions",
        "user_shell_command",
    }
)
"""Tags of what Codex tells the model in a user's place."""
_INJECTED_PREFIXES = ("# AGENTS.md instructions",)
_ENCLOSED = re.compile(r"<([A-Za-z][^<>\n]{0,80})>.*</[^<>\n]{1,81}>\s*\Z", re.DOTALL)
_IMAGE_TAGS = re.compile(r"</?image( [^<>]*)?>\Z")
_DATA_URL = re.compile(r"data:([A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+);base64,")


def milliseconds(timestamp: object) -> int | None:
    """Return milliseconds since 1970 for a time as RFC 3339 writes it, or None."""
    if type(timestamp) is not str:
        return None
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    since = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
    return since if since >= 0 else None


def count(value: object) -> int | None:
    """Return a number of tokens or milliseconds, or None where it is not one."""
    return value if type(value) is int and 0 <= value <= _TOKENS_MAX else None


def word(value: object) -> str | None:
    """Return a text that may be an id or a name, or None."""
    return value if type(value) is str and value else None


def same(one: object, other: object) -> bool:
    """Return whether two values of records are equal. Values that are nested too deep to compare are not."""
    try:
        return one == other
    except RecursionError:
        return False


def usage_of(counted: object) -> Usage | None:
    """Return the tokens that a record counts, or None."""
    if type(counted) is not dict:
        return None
    return Usage(
        input_tokens=count(counted.get("input_tokens")) or 0,
        output_tokens=count(counted.get("output_tokens")) or 0,
        cached_tokens=count(counted.get("cached_input_tokens")) or 0,
        reasoning_tokens=count(counted.get("reasoning_output_tokens")) or 0,
    )


def plus(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the sum of two counts, either of which may be missing."""
    if one is None or other is None:
        return one or other
    return Usage(
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )


def texts_of(content: object) -> list[str]:
    """Return the texts of a message's content, whatever its parts are called (`input_text`, `output_text`, `text`,
    `Text`).
    """
    if type(content) is str:
        return [content] if content else []
    if type(content) is not list:
        return []
    found: list[str] = []
    for part in content:
        if type(part) is dict:
            text = part.get("text")
            if type(text) is str and text:
                found.append(text)
    return found


def said_by_user(content: list[Any], kinds: object) -> tuple[list[str], list[str]]:
    """Return the texts and the addresses of images that a person gave. `kinds` says what each part is, where the
    version records it.
    """
    texts: list[str] = []
    images: list[str] = []
    told = kinds if type(kinds) is list and len(kinds) == len(content) else [None] * len(content)
    for part, kind in zip(content, told, strict=True):
        if type(part) is not dict or (type(kind) is str and kind != "unknown" and not kind.startswith("user.")):
            continue
        text, image = part.get("text"), part.get("image_url")
        if type(text) is str and text and _IMAGE_TAGS.match(text) is None:
            texts.append(text)
        elif type(image) is str:
            images.append(image)
    return texts, images


def injected_tag(text: str) -> str | None:
    """Return the tag that encloses a whole message, or the heading that Codex gives to instructions, or None."""
    for prefix in _INJECTED_PREFIXES:
        if text.startswith(prefix):
            return prefix
    if not text.startswith("<"):
        return None
    enclosed = _ENCLOSED.match(text)
    return enclosed[1] if enclosed is not None else None


def is_known_injection(tag: str) -> bool:
    """Return whether Codex is known to write such messages itself."""
    return tag in INJECTED_TAGS or tag in _INJECTED_PREFIXES


def image_of(url: str) -> Blob | None:
    """Return the bytes of a `data:` address, or None."""
    head = _DATA_URL.match(url)
    if head is None:
        return None
    try:
        content = base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error:
        return None
    return Blob(content, head[1])
