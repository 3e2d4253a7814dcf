import json
from enum import StrEnum
from hashlib import sha256
from typing import get_args

import pytest
import rfc8785
from pydantic import BaseModel

from schemas import canonical
from schemas.canonical import DEPTH_MAX, call_hash, canonical_json, canonical_model, data_hash, unstorable
from schemas.errors import UnstorableTextError
from schemas.events import EVENTS, ThreadConfigured


class Name(StrEnum):
    FIRST = "first"


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


@pytest.mark.parametrize(
    "value",
    [
        *[chr(code) for code in (*range(32), 0x7F, 0x80, 0x2028, 0xE000, 0xFFFF)],
        {"\ufb33": 1, "\U0001f600": 2},
        [[None, True, False, -1, "", {}, []]],
        2**53 - 1,
        1.0,
        [0.5],
        {"a": {"b": -0.0}},
        Name.FIRST,
        [Name.FIRST],
        {Name.FIRST: 1},
    ],
)
def test_a_model_is_written_as_its_fields_are(value):
    event = ThreadConfigured.model_construct(patch={"value": value, "none": None})
    expected = rfc8785.dumps(event.model_dump(mode="json", exclude_none=True))
    assert canonical_model(event) == expected
    assert canonical_json({"patch": {"value": value, "none": None}}) == expected


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, 2**53, 2**70, [-(2**53)], 1e17])
def test_what_a_model_cannot_carry_exactly(value):
    with pytest.raises(UnstorableTextError, match="JSON cannot carry"):
        canonical_model(ThreadConfigured.model_construct(patch={"value": value}))


def test_a_model_that_nests_deep_is_written_all_the_same():
    for depth in (20, 22, 23, 24, 25, 26, 60):
        patch = {"value": nested(depth, 7)}
        assert canonical_model(ThreadConfigured(patch=patch)) == canonical_json({"patch": patch})
    with pytest.raises(UnstorableTextError, match="nested deeper than 128"):
        canonical_model(ThreadConfigured.model_construct(patch={"value": nested(127, 7)}))


def test_models_of_events_have_no_form_of_their_own():
    """They are written by their fields, without asking pydantic."""
    seen: set[type[BaseModel]] = set()
    waiting: list[object] = list(EVENTS)
    while waiting:
        found = waiting.pop()
        waiting.extend(get_args(found))
        if isinstance(found, type) and issubclass(found, BaseModel) and found not in seen:
            seen.add(found)
            decorators = found.__pydantic_decorators__
            assert not (decorators.field_serializers or decorators.model_serializers or decorators.computed_fields)
            assert found.model_config.get("extra") == "forbid" and not found.__private_attributes__
            for field in found.model_fields.values():
                assert field.serialization_alias is None and not field.exclude
                assert field.metadata == [] or not any("erialize" in type(item).__name__ for item in field.metadata)
                waiting.append(field.annotation)
    assert len(seen) > len(EVENTS) + 10


def nested(depth: int, other: float = 0.5) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value, "b": other}
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


def test_what_is_no_model_is_not_written_as_one():
    with pytest.raises(TypeError):
        canonical._fields(object())
