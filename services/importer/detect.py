"""Which tool wrote a file, or why it is no session. Judged by its beginning alone."""

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson

from services.importer.model import Tool

HEAD_BYTES = 1 << 20
"""How much of a file's beginning is looked at."""

Kind: TypeAlias = Literal["session", "index", "empty", "no session"]

_CODEX_TYPES = frozenset(
    {
        "session_meta", "turn_context", "response_item", "event_msg", "compacted", "world_state", "token_usage_record"
    }
)  # fmt: skip
_BARE_CODEX_TYPES = frozenset({"message", "reasoning", "function_call", "function_call_output", "local_shell_call"})
_CLAUDE_IDS = ("sessionId", "leafUuid", "parentUuid")
_LONG_CODEX = re.compile(rb'^\{"timestamp":"[^"]{1,64}",("ordinal":[0-9]+,)?"type":"session_meta"')
_LONG_CLAUDE = re.compile(rb'"(sessionId|leafUuid|parentUuid)":')


@dataclass(frozen=True, slots=True)
class Detected:
    """What a file is, judged by its beginning."""

    kind: Kind
    tool: Tool | None = None
    reason: str | None = None
    """Why it is not a session, as a clause."""


EMPTY = Detected("empty", None, "the file is empty")
CLAUDE = Detected("session", "claude-code")
CODEX = Detected("session", "codex")
CODEX_INDEX = Detected("index", "codex", "it lists the names of sessions")
PROMPTS = "it lists prompts of many sessions and holds none"


def detect(head: bytes) -> Detected:
    """Return what the file is. `head` is its first `HEAD_BYTES`, or all of it."""
    if not head.strip():
        return EMPTY if not head else Detected("no session", None, "it holds blank lines only")
    if b"\x00" in head:
        return Detected("no session", None, "it is no text: it holds zero bytes")
    objects = 0
    lines = head.split(b"\n")
    for raw in lines[:-1] if len(lines) > 1 else lines:
        record = _object(raw)
        if record is not None:
            objects += 1
            found = _recognise(record)
            if found is not None:
                return found
    return _by_long_line(head) or Detected(
        "no session",
        None,
        "it is no session of Claude Code or Codex" if objects else "no line of it is a JSON object",
    )


def wrong_tool(found: Detected, tool: Tool) -> str | None:
    """Return why a session cannot be imported as one of this tool, or None."""
    if found.tool is None or found.tool == tool:
        return None
    names = {"claude-code": "Claude Code", "codex": "Codex"}
    return f"it is of {names[found.tool]}: import it with `threadlog import {found.tool}`"


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _recognise(record: dict[str, Any]) -> Detected | None:
    """Return what a file with this record is, or None where other records have to decide. The order matters: Codex's
    wrapped records are the most specific.
    """
    kind = record.get("type")
    if isinstance(record.get("payload"), dict) and kind in _CODEX_TYPES:
        return CODEX
    if any(name in record for name in _CLAUDE_IDS) and isinstance(kind, str):
        return CLAUDE
    if record.keys() >= {"id", "thread_name", "updated_at"}:
        return CODEX_INDEX
    if record.keys() >= {"session_id", "ts", "text"}:
        return Detected("index", "codex", PROMPTS)
    if record.keys() >= {"display", "project", "timestamp"}:
        return Detected("index", "claude-code", PROMPTS)
    if record.get("record_type") == "state" or (record.keys() >= {"id", "timestamp", "instructions"}):
        return CODEX
    if kind in _BARE_CODEX_TYPES and "uuid" not in record and (kind != "message" or "content" in record):
        return CODEX
    return None


def _by_long_line(head: bytes) -> Detected | None:
    """Return what a file is whose first line is longer than the part that is looked at."""
    if _LONG_CODEX.match(head):
        return CODEX
    return CLAUDE if head.startswith(b"{") and _LONG_CLAUDE.search(head) else None
