"""Hypothesis strategies for the kernel: JSON, any event with any fields, any record."""

from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pydantic
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import JsonValue
from pydantic.fields import FieldInfo

from schemas.canonical import EXPONENT_MIN, INTEGER_MAX, data_hash
from schemas.codec import Problem, Record
from schemas.events import BY_KIND, EVENTS, Event
from schemas.ids import CALL_PATTERN, EventId, derive
from tests.support.recorded.histories import EXECUTOR, IMPORTER, KEY, RUNTIME, START_MS, USER

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
NAMES = st.sampled_from(["i1", "i2", "a", "b"])
HASHES = st.sampled_from([data_hash(name) for name in (b"", b"1", b"2")])
CALLS = st.sampled_from(["1.1.0", "1.1.1", "1.2.0", "2.1.0", "9.9.9"])
SMALL = st.integers(1, 4)
ACTORS = st.sampled_from([USER, RUNTIME, EXECUTOR, IMPORTER, "policy:never"])


def json_values(leaves: int = 10) -> SearchStrategy[JsonValue]:
    """JSON that the log can carry."""
    floats = st.floats(-INTEGER_MAX, INTEGER_MAX) | st.floats(EXPONENT_MIN, allow_infinity=False)
    numbers = st.integers(-INTEGER_MAX, INTEGER_MAX) | floats
    return st.recursive(
        st.none() | st.booleans() | numbers | TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
        max_leaves=leaves,
    )


@cache
def events_of(kind: str) -> SearchStrategy[Event]:
    """Events of one kind, their fields drawn from few values, so that some of them fit a state."""
    return _models(BY_KIND[kind])


def any_events() -> SearchStrategy[Event]:
    return st.sampled_from(EVENTS).flatmap(lambda event: events_of(event.kind))


@st.composite
def any_records(draw: st.DrawFn, events: SearchStrategy[Event] | None = None) -> Record:
    """A record of any kind, by anybody, sometimes undecodable."""
    event = draw(events or any_events())
    name = draw(HASHES)
    problem = draw(st.none() | st.builds(Problem, st.booleans(), st.just("broken"))) if draw(st.booleans()) else None
    return Record(
        key=KEY,
        offset=draw(st.integers(0, 1_000)),
        id=EventId(derive("fuzz", draw(SMALL))),
        kind=event.kind if problem is None else draw(NAMES),
        time_ms=START_MS + draw(st.integers(-1_000, 1_000)),
        actor=draw(ACTORS),
        source="fuzz",
        cause=None,
        data_hash=name,
        data=event if problem is None else None,
        problem=problem,
    )


def _models(model: type[pydantic.BaseModel]) -> SearchStrategy:
    fields = model.model_fields
    return st.builds(model, **{name: _values(field.annotation, field.metadata) for name, field in fields.items()})


def _values(annotation: object, metadata: Sequence[object]) -> SearchStrategy:
    if annotation is JsonValue:
        return json_values(4)
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            annotated = [*metadata, *arguments[1:]]
            return _values(arguments[0], [*annotated, *[inner for field in annotated for inner in _constraints(field)]])
        case origin if origin in {Union, UnionType}:
            return st.one_of([_values(argument, metadata) for argument in arguments])
        case origin if origin is Literal:
            return st.sampled_from(arguments)
        case origin if origin is tuple:
            return st.lists(_values(arguments[0], ()), max_size=3).map(tuple)
        case origin if origin is dict:
            return st.dictionaries(TEXT, _values(arguments[1], ()), max_size=3)
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return SMALL
    if annotation is str:
        return _strings(metadata)
    assert isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel), annotation
    return _models(annotation)


def _strings(metadata: Sequence[object]) -> SearchStrategy[str]:
    patterns = [pattern for item in metadata if (pattern := getattr(item, "pattern", None))]
    if patterns:
        return CALLS if patterns == [CALL_PATTERN] else HASHES
    return NAMES if metadata else TEXT


def _constraints(field: object) -> Sequence[object]:
    return field.metadata if isinstance(field, FieldInfo) else ()
