"""Do a call's arguments fit the tool's schema? The answer is written for the model, which may correct itself."""

import json
from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import validator_for
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from schemas.tools import ToolSpec

PROBLEMS_SHOWN_MAX = 5
PROBLEM_CHARACTERS_MAX = 300
VALIDATORS_MAX = 1_000


class _Validator(Protocol):
    def iter_errors(self, instance: object) -> "list[ValidationError]": ...


class Misfit(NamedTuple):
    place: str
    """Such as `passengers[0].name`; empty for the arguments as a whole."""
    detail: str


class ArgumentCheck:
    """Compiles each schema once. A schema that is itself broken lets everything pass: the tool will judge."""

    def __init__(self) -> None:
        self._validators: dict[str, _Validator | None] = {}

    def problem(self, tool: ToolSpec, args: Mapping[str, JsonValue], malformed: str | None = None) -> str | None:
        """One paragraph that says what does not fit and what to do now, or None.

        `malformed` is what the model wrote where that is no JSON object.
        """
        if malformed is not None:
            return (
                f"The arguments of this call of `{tool.name}` are not a JSON object, so it was not run. You wrote: "
                f"{_shortened(malformed)} {_expected(tool)} Call it again with the arguments as one JSON object."
            )
        errors = self.misfits(tool, args)
        if not errors:
            return None
        shown = "; ".join(_described(error) for error in errors[:PROBLEMS_SHOWN_MAX])
        more = f"; and {len(errors) - PROBLEMS_SHOWN_MAX} more" if len(errors) > PROBLEMS_SHOWN_MAX else ""
        return (
            f"The arguments of this call of `{tool.name}` do not fit its schema, so it was not run: {shown}{more}. "
            f"{_expected(tool)} Correct them and call it again."
        )

    def misfits(self, tool: ToolSpec, args: Mapping[str, JsonValue]) -> list[Misfit]:
        validator = self._validator(tool)
        if validator is None:
            return []
        try:
            errors = sorted(validator.iter_errors(dict(args)), key=lambda error: (str(list(error.path)), error.message))
        except Unresolvable:
            return []
        return [Misfit(_place(error), _shortened(error.message)) for error in errors]

    def _validator(self, tool: ToolSpec) -> _Validator | None:
        key = tool.schema_hash
        if key not in self._validators:
            if len(self._validators) >= VALIDATORS_MAX:
                self._validators.clear()
            self._validators[key] = _compiled(tool.input_schema)
        return self._validators[key]


def schema_problem(schema: Mapping[str, JsonValue]) -> str | None:
    """Why this is no usable JSON Schema, or None."""
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
    except SchemaError as error:
        return _shortened(error.message)
    return None


def _compiled(schema: Mapping[str, JsonValue]) -> _Validator | None:
    if schema_problem(schema) is not None:
        return None
    validator_class = validator_for(schema, default=Draft202012Validator)
    # An empty registry: a `$ref` to elsewhere is never fetched.
    return cast("_Validator", validator_class(schema, registry=Registry()))


def _described(misfit: Misfit) -> str:
    return f"`{misfit.place}`: {misfit.detail}" if misfit.place else misfit.detail


def _place(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".")


def _expected(tool: ToolSpec) -> str:
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "It takes no arguments." if properties == {} else ""
    required = tool.input_schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    listed = ", ".join(
        f"`{name}`{_type_of(schema)}{' required' if name in needed else ''}" for name, schema in properties.items()
    )
    return f"It takes: {_shortened(listed, 4 * PROBLEM_CHARACTERS_MAX)}."


def _type_of(schema: JsonValue) -> str:
    named = schema.get("type") if isinstance(schema, dict) else None
    return f" ({named})" if isinstance(named, str) else f" ({json.dumps(named)})" if named is not None else ""


def _shortened(text: str, characters_max: int = PROBLEM_CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
