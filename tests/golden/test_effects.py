"""The effect of a record, as it is published: its schema, an example, and the page that describes it."""

import json
import re

import jsonschema

from reference import events as reference
from schemas.canonical import canonical_json
from schemas.other_topics.effects import EffectRow, ThreadEffect, decode_effect, encode_effect
from schemas.other_topics.windows import FAILURES, INPUTS, RESPONSES, TIMES, TOKENS, TOOL_CALLS, TOOL_MS, TURNS

FOLDER = reference.ROOT / "schemas" / "json" / "thread-effects"
PAGE = (reference.ROOT / "docs" / "effects.md").read_text()


def test_the_schema_is_that_of_the_model():
    written = (FOLDER / "effect.v1.schema.json").read_text()
    assert written == reference.effect_schema(), "run python -m reference.events"


def test_the_example_is_what_is_published():
    example = json.loads((FOLDER / "effect.v1.example.json").read_text())
    schema = json.loads((FOLDER / "effect.v1.schema.json").read_text())
    jsonschema.validate(example, schema, jsonschema.Draft202012Validator)
    given = {name: example.get(name) for name in EffectRow._fields}
    made = encode_effect(EffectRow(**given | {"facts": json.dumps(example["facts"]).encode()}))
    assert made.value == canonical_json(example)
    assert decode_effect(made.value) == ThreadEffect.model_validate(example)
    assert dict(made.headers)["ce_id"] == b"7-48213"


def test_the_page_names_every_field_and_every_counter():
    described = set(re.findall(r"`([a-z_]+)(?:/[A-Z]+|/[a-z_]+/[A-Z]+)?`", PAGE))
    assert set(ThreadEffect.model_fields) <= described
    counters = {INPUTS, TURNS, FAILURES, TOOL_CALLS, TOOL_MS, RESPONSES, *TOKENS, *TIMES}
    assert counters <= described
