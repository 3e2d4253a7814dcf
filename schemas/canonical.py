"""Canonical JSON: RFC 8785, so that the same data has the same bytes and the same hash whoever writes it.

orjson agrees with RFC 8785 except in three places: it writes floats as Python does, sorts names by code points instead
of UTF-16 code units, and writes numbers that are none as null. Values in which any of these could matter go through the
full encoder.
"""

import json
from hashlib import sha256
from math import inf
from types import NoneType
from typing import Any

import orjson
import rfc8785
from pydantic import BaseModel, JsonValue

from schemas.errors import UnstorableTextError
from schemas.ids import DataHash

INTEGER_MAX = 2**53 - 1
"""RFC 7493: larger integers do not survive every JSON reader."""
EXPONENT_MIN = 1e21
"""From here RFC 8785 writes floats with an exponent. Smaller ones, where they are whole, it writes as integers, and as
integers they are read back.
"""
DEPTH_MAX = 100
"""Lists and objects within each other that a client, a model or a tool may put into an event."""
RECORD_DEPTH_MAX = 128
"""Lists and objects within each other that a whole event may have. Readers give up at 200."""

SIMPLE_DEPTH_MAX = 24
"""Lists and objects within each other, in one field of a model, that are written without a closer look. An event whose
fields stay below it is far below `RECORD_DEPTH_MAX`.
"""

_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_ATOMS = frozenset({str, bool, NoneType})
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, check_circular=False).encode


def canonical_json(value: JsonValue) -> bytes:
    """Return the value as RFC 8785 writes it. Raises UnstorableTextError for what JSON cannot carry exactly: lone
    surrogates, NaN, integers beyond 2^53, and nesting beyond `RECORD_DEPTH_MAX`.
    """
    try:
        return _write_plain(value) if _is_plain(value, RECORD_DEPTH_MAX) else rfc8785.dumps(value)
    except (UnicodeEncodeError, rfc8785.CanonicalizationError) as error:
        raise UnstorableTextError(f"JSON cannot carry this exactly: {error}") from error


def canonical_model(model: BaseModel) -> bytes:
    """Return `canonical_json` of the model's fields that are not None, in a fraction of the time, because nothing is
    copied.
    """
    try:
        return orjson.dumps(model, default=_fields, option=_OPTIONS)
    except orjson.JSONEncodeError:
        # As Python objects: as JSON, names would lose their lone surrogates, where they have to be refused.
        return canonical_json(model.model_dump(exclude_none=True))


def _fields(value: object) -> dict[str, Any]:
    """Return a model's fields for orjson, which asks for what it does not know. Raises TypeError where orjson would
    write them differently from RFC 8785.
    """
    if not _is_model(type(value)):
        raise TypeError
    fields = {}
    for name, item in value.__dict__.items():
        if item is not None:
            fields[name] = item
            kind = type(item)
            if kind is not str and kind is not int and not _is_simple(item, kind, SIMPLE_DEPTH_MAX):
                raise TypeError
    return fields


def _is_model(kind: type) -> bool:
    """Return `issubclass(kind, BaseModel)`, in a fifth of its time."""
    return hasattr(kind, "__pydantic_fields__")


def _is_simple(value: Any, kind: type, depth: int) -> bool:
    """Return whether orjson writes the value as RFC 8785 does, by a quick look: rare values are answered with no.
    orjson itself refuses large integers.
    """
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or not name.isascii():
                return False
            kind = type(item)
            if kind is not str and (depth == 0 or not _is_simple(item, kind, depth - 1)):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:
            kind = type(item)
            if kind is not str and (depth == 0 or not _is_simple(item, kind, depth - 1)):
                return False
        return True
    return kind is int or kind in _ATOMS or _is_model(kind)


def _write_plain(value: JsonValue) -> bytes:
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except orjson.JSONEncodeError:
        # A lone surrogate, which this does not take either, or a subclass of a type of JSON's.
        return _encode(value).encode()


def _is_plain(value: JsonValue, depth: int) -> bool:
    """Return whether orjson writes the value as RFC 8785 does, by a whole look."""
    if value is None or isinstance(value, str | bool):
        return True
    if isinstance(value, int | float):
        if not is_exact(value):
            raise UnstorableTextError(f"JSON cannot carry the number {value} exactly; write it as a string")
        return isinstance(value, int)
    if depth == 0:
        raise UnstorableTextError(f"JSON nested deeper than {RECORD_DEPTH_MAX} is not readable everywhere")
    plain = True
    if isinstance(value, dict):
        for name, item in value.items():
            # Code points sort as UTF-16 does, up to where surrogates begin.
            if not name.isascii() and max(name) >= "\ud800":
                plain = False
            if type(item) not in _ATOMS and not _is_plain(item, depth - 1):
                plain = False
    else:
        for item in value:
            if type(item) not in _ATOMS and not _is_plain(item, depth - 1):
                plain = False
    return plain


def data_hash(value: bytes) -> DataHash:
    return DataHash(sha256(value).hexdigest())


def call_hash(tool: str, args: dict[str, JsonValue]) -> str:
    """Return what an approval is bound to: the hash of the tool's name and arguments."""
    return sha256(canonical_json({"args": args, "tool": tool})).hexdigest()


def is_exact(number: float) -> bool:
    """Return whether every reader of JSON gets the number as it is."""
    if isinstance(number, int):
        return abs(number) <= INTEGER_MAX
    return abs(number) <= INTEGER_MAX or EXPONENT_MIN <= abs(number) < inf


def unstorable(value: JsonValue, depth: int = DEPTH_MAX) -> str | None:
    """Return why Postgres or JSON could not carry the value exactly, or None. U+0000 has no place in Postgres text, a
    lone surrogate none in UTF-8, and half of the world's JSON readers round an integer beyond 2^53.
    """
    match value:
        case str():
            if "\x00" in value:
                return "text holds U+0000"
            return None if is_unicode(value) else "text holds a lone surrogate"
        case bool() | None:
            return None
        case int() | float():
            return None if is_exact(value) else "a number beyond 2^53, or not finite; write it as a string"
    if depth == 0:
        return f"lists and objects nested deeper than {DEPTH_MAX}"
    parts = value if isinstance(value, list) else [*value, *value.values()]
    return next((reason for part in parts if (reason := unstorable(part, depth - 1))), None)


def is_unicode(text: str) -> bool:
    """Return whether the text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
