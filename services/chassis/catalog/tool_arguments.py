"""Check a call's arguments against the tool's JSON Schema. The answer is written for the model, which may correct
itself.

Both sides are foreign: a model writes the arguments, and anybody may offer a tool. So the check is bounded in time:
library validators that compare each item with each, or try nested alternatives without end, are replaced or counted. A
schema that is broken lets everything pass, since the tool itself judges its arguments, too.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from schemas.canonical import canonical_json
from schemas.tools import ToolSpec

PROBLEMS_SHOWN_MAX: Final = 5
"""Problems that the model is shown. More would fill its context and not help it."""
PROBLEM_CHARACTERS_MAX: Final = 300
"""Characters of one problem: the library quotes the value, which may be long."""
PROBLEMS_FOUND_MAX: Final = 100
"""Problems after which the check stops."""
CHOICES_MAX: Final = 20_000
"""Times that one check may try the branches of an `anyOf` or `oneOf`. Nested ones double the number with each level."""
VALIDATORS_MAX: Final = 1_000
"""Compiled schemas that are kept. Beyond it all are forgotten: a process with so many tools changes them often."""

_Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError]]


class _Validator(Protocol):
    """What is used of a validator of the library."""

    def iter_errors(self, instance: object) -> Iterator[ValidationError]: ...


class _TooMuchError(Exception):
    pass


@dataclass(slots=True)
class _Compiled:
    validator: _Validator
    choices: "_Choices"


@dataclass(slots=True)
class _Choices:
    """Counts down over one check, and stops it at zero."""

    left: int = CHOICES_MAX

    def count(self, keyword: _Keyword) -> _Keyword:
        """Return the validator of a keyword so that each use of it counts."""

        def counting(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            self.left -= 1
            if self.left < 0:
                raise _TooMuchError
            yield from keyword(validator, wanted, instance, schema) or ()

        return counting


class Misfit(NamedTuple):
    """One thing that does not fit."""

    place: str
    """Where it is, such as `passengers[0].name`; empty for the arguments as a whole."""
    detail: str


class ArgumentCheck:
    """Compiles each schema once. A schema that is itself broken lets everything pass: the tool will judge."""

    def __init__(self) -> None:
        self._validators: dict[str, _Compiled | None] = {}

    def problem(self, tool: ToolSpec, args: Mapping[str, JsonValue], malformed: str | None = None) -> str | None:
        """Return a paragraph that says what does not fit and what to do now, or None if all fits.

        `malformed` is what the model wrote instead of a JSON object; None if it wrote one.
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
        left_out = len(errors) - PROBLEMS_SHOWN_MAX
        how_many = "many" if len(errors) >= PROBLEMS_FOUND_MAX else str(left_out)
        more = f"; and {how_many} more" if left_out > 0 else ""
        return (
            f"The arguments of this call of `{tool.name}` do not fit its schema, so it was not run: {shown}{more}. "
            f"{_expected(tool)} Correct them and call it again."
        )

    def misfits(self, tool: ToolSpec, args: Mapping[str, JsonValue]) -> list[Misfit]:
        """Return the first things that do not fit, in the order of their places."""
        compiled = self._compiled(tool)
        if compiled is None:
            return []
        compiled.choices.left = CHOICES_MAX
        try:
            found = list(islice(compiled.validator.iter_errors(dict(args)), PROBLEMS_FOUND_MAX))
        except Unresolvable:
            return []
        except (_TooMuchError, RecursionError):
            return [Misfit("", "they are too large, or nested too deep, to be checked against the schema")]
        errors = sorted(found, key=lambda error: (str(list(error.path)), error.message))
        return [Misfit(_place(error), _shortened(error.message)) for error in errors]

    def _compiled(self, tool: ToolSpec) -> _Compiled | None:
        key = tool.schema_hash
        if key not in self._validators:
            if len(self._validators) >= VALIDATORS_MAX:
                self._validators.clear()
            self._validators[key] = _compiled(tool.input_schema)
        return self._validators[key]


def schema_problem(schema: Mapping[str, JsonValue]) -> str | None:
    """Return why this is no usable JSON Schema, or None if it is one."""
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
    except SchemaError as error:
        return _shortened(error.message)
    return None


def _compiled(schema: Mapping[str, JsonValue]) -> _Compiled | None:
    if schema_problem(schema) is not None:
        return None
    base = validator_for(schema, default=Draft202012Validator)
    choices = _Choices()
    counted = {name: choices.count(base.VALIDATORS[name]) for name in ("anyOf", "oneOf") if name in base.VALIDATORS}
    changed = {**counted, "uniqueItems": _unique_items, "maxItems": _max_items}
    if "items" in base.VALIDATORS:
        changed["items"] = _unless_too_many(base.VALIDATORS["items"])
    validator_class = extend(base, changed)  # type: ignore[no-untyped-call]
    # With an empty registry a `$ref` to another place is never fetched: a schema must not make this process call out.
    return _Compiled(cast("_Validator", validator_class(schema, registry=Registry())), choices)


def _max_items(validator: Any, most: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Check `maxItems`. The library's message quotes the array, so much of it that the reason is cut off."""
    if validator.is_type(instance, "array") and len(instance) > most:
        yield ValidationError(f"has {len(instance)} items; {most} are allowed")


def _unless_too_many(items: _Keyword) -> _Keyword:
    """Return the check of items so that it skips an array with too many: `maxItems` has reported it, and that
    suffices.
    """

    def looking(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        most = schema.get("maxItems")
        if isinstance(instance, list) and isinstance(most, int) and len(instance) > most:
            return
        yield from items(validator, wanted, instance, schema) or ()

    return looking


def _unique_items(validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Check `uniqueItems` in one pass, by canonical JSON. The library compares each item with each other one."""
    if not wanted or not validator.is_type(instance, "array"):
        return
    seen: set[bytes] = set()
    for item in instance:
        canonical = canonical_json(item)
        if canonical in seen:
            yield ValidationError(f"{_shortened(repr(instance))} has non-unique elements")
            return
        seen.add(canonical)


def _described(misfit: Misfit) -> str:
    return f"`{misfit.place}`: {misfit.detail}" if misfit.place else misfit.detail


def _place(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".")


def _expected(tool: ToolSpec) -> str:
    """Return a sentence with the arguments that the tool takes, or an empty text if its schema lists none."""
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
