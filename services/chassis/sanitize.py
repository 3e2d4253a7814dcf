"""Make text and JSON from models and tools fit for the log: replace, visibly, what JSON or Postgres cannot store
exactly.

Models and tools cannot be told to try again, so their output is mended. A client can, so the same input from a client
is refused: `schemas.canonical.unstorable`.
"""

import re
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from schemas.canonical import is_exact, is_unicode

DEPTH_MAX: Final = 64
"""Levels of JSON that are kept. Deeper values would exhaust the stack of parsers that read them back."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def sanitize_text(text: str) -> str:
    """Return the text with U+0000 as its picture, U+2400, and lone surrogates as U+FFFD."""
    # These questions take a sixth of the time of the expression, and almost every text passes them.
    if "\x00" not in text and (text.isascii() or is_unicode(text)):
        return text
    return _UNSTORABLE.sub(lambda match: "\u2400" if match[0] == "\x00" else "\ufffd", text)


def sanitize_json(value: object, depth: int = 0) -> JsonValue:
    """Return the value as JSON. Numbers that JSON cannot store exactly become text, and so do values of other types.

    A value that is nested too deep becomes a text that says so.
    """
    if isinstance(value, str):
        return sanitize_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if is_exact(value) else str(value)
    if depth >= DEPTH_MAX:
        return "[nested too deep]"
    if isinstance(value, dict | Mapping):
        return {sanitize_text(str(name)): sanitize_json(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize_json(item, depth + 1) for item in value]
    return sanitize_text(str(value))
