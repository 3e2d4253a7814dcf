import pytest

from schemas.tools import ToolSpec
from services.chassis.catalog import tool_arguments
from services.chassis.catalog.tool_arguments import ArgumentCheck, schema_problem

SHELL = ToolSpec(
    name="shell",
    input_schema={
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": ["number", "null"]},
            "options": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
            "any": True,
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


@pytest.fixture
def check() -> ArgumentCheck:
    return ArgumentCheck()


def test_what_fits(check):
    assert check.problem(SHELL, {"command": "ls", "timeout": None}) is None


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, ["`shell`", "'command' is a required property", "`command` (string) required", "Correct them"]),
        ({"command": 5}, ["`command`: 5 is not of type 'string'"]),
        ({"command": "ls", "colour": 1}, ["'colour' was unexpected"]),
        ({"command": "ls", "options": [{}, {"name": 3}]}, ["`options[1].name`: 3 is not of type"]),
        ({"command": "x" * 5, "timeout": "y" * 1_000}, ["…"]),
    ],
)
def test_what_does_not_fit_is_said_in_one_paragraph(check, args, words):
    problem = check.problem(SHELL, args)
    assert "\n" not in problem
    for word in words:
        assert word in problem


def test_many_problems_are_counted(check):
    tool = ToolSpec(name="x", input_schema={"type": "object", "additionalProperties": {"type": "string"}})
    problem = check.problem(tool, {f"p{n}": n for n in range(9)})
    assert "; and 4 more." in problem


def test_of_very_many_problems_some_are_looked_for(check):
    tool = ToolSpec(name="x", input_schema={"type": "object", "additionalProperties": {"type": "string"}})
    problem = check.problem(tool, {f"p{n}": n for n in range(5_000)})
    assert "is not of type 'string'; and many more." in problem


def test_an_array_with_too_many_items_is_not_looked_into(check):
    few = {"type": "array", "maxItems": 2, "items": {"type": "string"}}
    tool = ToolSpec(name="x", input_schema={"type": "object", "properties": {"a": few}})
    assert [misfit.detail for misfit in check.misfits(tool, {"a": [1, 2, 3]})] == ["has 3 items; 2 are allowed"]
    assert [misfit.place for misfit in check.misfits(tool, {"a": ["1", 2]})] == ["a[1]"]
    assert not check.misfits(tool, {"a": ["1", "2"]})
    assert [misfit.detail for misfit in check.misfits(tool, {"a": "no array"})] == ["'no array' is not of type 'array'"]


SET = ToolSpec(name="x", input_schema={"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})


@pytest.mark.parametrize(
    ("items", "fit"),
    [
        ([], True),
        ([1, "1", True, None, [1], {"n": 1}], True),
        ([{"n": 1, "m": 2}, {"m": 2, "n": 1}], False),
        ([1, 1.0], False),
        ([0, False], True),
        ("no array", False),
    ],
)
def test_items_of_a_set_are_different(check, items, fit):
    assert (check.problem(SET, {"a": items}) is None) is fit


def test_a_large_set_is_checked_soon(check):
    """Comparing each item with each would stop the whole service for an hour."""
    assert check.problem(SET, {"a": [{"n": n} for n in range(30_000)]}) is None


def filter_in(levels):
    """As of a query language: each level is tried against three alternatives, below each of which are three."""
    inner = {"kind": "leaf"}
    for _ in range(levels):
        inner = {"kind": "not", "of": [inner]}
    return {"filter": inner}


def one_of(kind):
    of = {"type": "array", "items": {"$ref": "#/$defs/filter"}}
    return {"type": "object", "properties": {"kind": {"const": kind}, "of": of}, "required": ["kind", "of"]}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_below_each_other_are_tried_within_a_limit(check, keyword, monkeypatch):
    monkeypatch.setattr(tool_arguments, "CHOICES_MAX", 500)
    leaf = {"type": "object", "properties": {"kind": {"const": "leaf"}}, "required": ["kind"]}
    schema = {
        "$defs": {"filter": {keyword: [one_of("and"), one_of("or"), one_of("not"), leaf]}},
        "type": "object",
        "properties": {"filter": {"$ref": "#/$defs/filter"}},
    }
    tool = ToolSpec(name="find", input_schema=schema)
    assert check.problem(tool, filter_in(4)) is None
    assert "nested too deep" in check.problem(tool, filter_in(40))
    assert check.problem(tool, filter_in(4)) is None, "the limit is of one check"


def test_what_is_no_json_object(check):
    problem = check.problem(SHELL, {}, malformed='{"command": "ls')
    assert "not a JSON object" in problem
    assert '{"command": "ls' in problem
    assert "It takes no arguments." in check.problem(ToolSpec(name="x"), {}, malformed="nonsense")


def test_a_broken_schema_lets_everything_pass(check):
    assert check.problem(ToolSpec(name="x", input_schema={"type": "nonsense"}), {"a": 1}) is None
    assert "nonsense" in schema_problem({"type": "nonsense"})
    assert schema_problem({"type": "object"}) is None


def test_a_reference_to_elsewhere_is_not_fetched(check):
    tool = ToolSpec(name="x", input_schema={"$ref": "https://example.com/schema.json"})
    assert check.problem(tool, {"a": 1}) is None


def test_schemas_are_compiled_once_and_not_kept_for_ever(check, monkeypatch):
    monkeypatch.setattr(tool_arguments, "VALIDATORS_MAX", 2)
    for number in range(5):
        schema = {"type": "object", "maxProperties": number}
        assert (check.problem(ToolSpec(name="x", input_schema=schema), {"a": 1}) is None) == (number >= 1)
        assert len(check._validators) <= 2


def test_a_schema_that_names_no_properties_lists_none(check):
    tool = ToolSpec(name="x", input_schema={"type": "object", "maxProperties": 0})
    assert "It takes" not in check.problem(tool, {"a": 1})
