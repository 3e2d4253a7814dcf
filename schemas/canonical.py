"""Canonical JSON: RFC 8785, so that the same data has the same bytes and the same hash whoever writes it.

The standard library's encoder agrees with RFC 8785 except in two places: it writes floats as Python does, and sorts
names by code points instead of UTF-16 code units. Text in which either could matter goes through the full encoder.
"""

import json
import re
from hashlib import sha256

import rfc8785
from pydantic import JsonValue

from schemas.errors import UnstorableTextError
from schemas.ids import DataHash

INTEGER_MAX = 2**53 - 1
"""RFC 7493: larger integers do not survive every JSON reader."""

_MAY_DIFFER = re.compile(r"[0-9][.eE][0-9+-]|[\ue000-\uffff\U00010000-\U0010ffff]|NaN|Infinity|[0-9]{16}")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, check_circular=False).encode


def canonical_json(value: JsonValue) -> bytes:
    """Raises UnstorableTextError for what JSON cannot carry exactly: lone surrogates, NaN, integers beyond 2^53."""
    text = _encode(value)
    try:
        if _MAY_DIFFER.search(text) is None:
            return text.encode()
        return rfc8785.dumps(value)
    except (UnicodeEncodeError, rfc8785.CanonicalizationError) as error:
        raise UnstorableTextError(f"JSON cannot carry this exactly: {error}") from error


def data_hash(value: bytes) -> DataHash:
    return DataHash(sha256(value).hexdigest())


def call_hash(tool: str, args: dict[str, JsonValue]) -> str:
    """What an approval is bound to: the hash of the tool's name and arguments."""
    return sha256(canonical_json({"args": args, "tool": tool})).hexdigest()


def unstorable(value: JsonValue) -> str | None:
    """Why Postgres or JSON could not carry the value exactly, or None where they can.

    U+0000 has no place in Postgres text, a lone surrogate none in UTF-8, and an integer beyond 2^53 is rounded by half
    of the world's JSON readers.
    """
    match value:
        case str():
            if "\x00" in value:
                return "text holds U+0000"
            return None if _is_unicode(value) else "text holds a lone surrogate"
        case bool() | None:
            return None
        case int():
            return None if -INTEGER_MAX <= value <= INTEGER_MAX else "an integer beyond 2^53; write it as a string"
        case float():
            return None if value - value == 0 else "a number that is not finite"
        case list():
            return next((reason for item in value if (reason := unstorable(item))), None)
        case dict():
            return next(
                (reason for name, item in value.items() if (reason := unstorable(name) or unstorable(item))), None
            )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
