"""Text and JSON from models and tools, made fit for the log: what JSON or Postgres cannot carry exactly is replaced, so
that it shows. (From clients the same is refused: `schemas.canonical.unstorable`.)
"""

import re
from collections.abc import Mapping

from pydantic import JsonValue

from schemas.canonical import is_exact, is_unicode

DEPTH_MAX = 64

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def sanitize_text(text: str) -> str:
    """U+0000 becomes its picture, U+2400; a lone surrogate U+FFFD."""
    # Asked so, a text is looked through in a sixth of the time that the expression takes.
    if "\x00" not in text and (text.isascii() or is_unicode(text)):
        return text
    return _UNSTORABLE.sub(lambda match: "\u2400" if match[0] == "\x00" else "\ufffd", text)


def sanitize_json(value: object, depth: int = 0) -> JsonValue:
    """Numbers that JSON does not carry exactly become text; so does what is no JSON, or nested too deep."""
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
