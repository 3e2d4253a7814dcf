import json
from hashlib import sha256

import pytest

from schemas.canonical import DEPTH_MAX, call_hash, canonical_json, data_hash, unstorable
from schemas.errors import UnstorableTextError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({"b": 1, "a": [True, False]}, '{"a":[true,false],"b":1}'),
        ('é\u2028\x7f\x1f\n"\\/', '"é\u2028\x7f\\u001f\\n\\"\\\\/"'),
        ([1.0, -0.0, 1e21, 1e-7, 0.1, 9007199254740991], "[1,0,1e+21,1e-7,0.1,9007199254740991]"),
        ({"\ufb33": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\ufb33":1}'),
        ({"deep": [{"\ufb33": 1, "\U0001f600": 2}]}, '{"deep":[{"\U0001f600":2,"\ufb33":1}]}'),
        ({"\ud7ff": 1, "é": 2, "": 3}, '{"":3,"é":2,"\ud7ff":1}'),
        ("1.5 \U0001f600 NaN", '"1.5 \U0001f600 NaN"'),
    ],
)
def test_canonical_form(value, text: str):
    assert canonical_json(value).decode() == text


@pytest.mark.parametrize(
    "value", ["\ud800", {"\udfff": 1}, {"a": ["\ud800"]}, 2**53, -(2**53), 1e17, float("nan"), [float("inf")]]
)
def test_what_json_cannot_carry_exactly(value):
    with pytest.raises(UnstorableTextError, match="JSON cannot carry"):
        canonical_json(value)
    assert unstorable(value) is not None


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value, "b": 0.5}
    return value


def test_nesting():
    assert canonical_json(nested(128))
    for depth in (129, 100_000):
        with pytest.raises(UnstorableTextError, match="nested deeper than 128"):
            canonical_json(nested(depth))
    assert unstorable(nested(DEPTH_MAX)) is None
    assert unstorable(nested(DEPTH_MAX + 1)) == "lists and objects nested deeper than 100"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("fine \U0001f600", None),
        ([None, True, 1, 1.5, {"a": []}], None),
        (2**53 - 1, None),
        ("\x00", "text holds U+0000"),
        ({"\x00": 1}, "text holds U+0000"),
        ({"a": {"b": ["\ud800"]}}, "text holds a lone surrogate"),
        ([2**53], "a number beyond 2^53, or not finite; write it as a string"),
        (2.0**53, "a number beyond 2^53, or not finite; write it as a string"),
        (-9.99e20, "a number beyond 2^53, or not finite; write it as a string"),
        (-1e21, None),
        (float("-inf"), "a number beyond 2^53, or not finite; write it as a string"),
    ],
)
def test_what_cannot_be_stored(value, reason: str | None):
    assert unstorable(value) == reason


def test_hashes():
    assert data_hash(b"x") == sha256(b"x").hexdigest()
    assert call_hash("shell", {"b": 1, "a": 2}) == call_hash("shell", {"a": 2, "b": 1})
    assert call_hash("shell", {}) != call_hash("read", {})
    assert (
        call_hash("t", {"a": 1})
        == sha256(json.dumps({"args": {"a": 1}, "tool": "t"}, separators=(",", ":")).encode()).hexdigest()
    )
