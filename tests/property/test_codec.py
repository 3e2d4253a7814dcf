import json

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import canonical_json, canonical_model, unstorable
from schemas.codec import Record, Unreadable, decode, encode
from schemas.errors import UnstorableTextError
from schemas.events import Event, ToolCallFinished
from schemas.ids import derive
from tests.support.recorded.histories import KEY, START_MS, USER
from tests.support.recorded.strategies import any_events, json_values

ANY_NAMES = st.text(max_size=5)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_NAMES, inner, max_size=4),
    max_leaves=20,
)
HEADERS = st.dictionaries(
    st.sampled_from(["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_actor", "content-type", "x"]),
    st.none() | st.binary(max_size=20) | st.sampled_from([b"1.0", b"user:a", derive("x").encode()]),
)


@given(json_values(20))
def test_canonical_json_is_rfc_8785(value):
    written = canonical_json(value)
    assert written == rfc8785.dumps(value)
    assert canonical_json(json.loads(written)) == written
    assert unstorable(value) is None


@given(ANY_JSON)
def test_json_is_written_exactly_or_refused(value):
    why = unstorable(value)
    try:
        written = canonical_json(value)
    except UnstorableTextError:
        assert why is not None
    else:
        assert json.loads(written) == value
        assert why in {None, "text holds U+0000"}


@given(any_events())
def test_a_model_is_written_as_its_fields_are(event: Event):
    assert canonical_model(event) == canonical_json(event.model_dump(mode="json", exclude_none=True))


@given(ANY_JSON)
def test_any_json_in_a_model_is_written_as_its_fields_are_or_refused(value):
    event = ToolCallFinished.model_construct(call="1.1.1", attempt=1, claim="c", outcome="succeeded", result=value)
    try:
        written = canonical_json(event.model_dump(mode="json", exclude_none=True))
    except UnstorableTextError:
        with pytest.raises(UnstorableTextError):
            canonical_model(event)
    else:
        assert canonical_model(event) == written


@given(any_events())
def test_every_event_is_read_back_as_it_was_written(event: Event):
    encoded = encode(KEY, event, source="t", actor=USER, time_ms=START_MS, event_id=derive("x"), cause="c")
    record = decode(KEY.to_bytes(), encoded.headers, encoded.value, 3)
    assert record == encoded.record._replace(offset=3)


@given(st.none() | st.binary(max_size=9) | st.just(b"a/b"), HEADERS, st.none() | st.binary(max_size=50), any_events())
def test_anything_is_read_without_an_exception(key: bytes | None, headers, value: bytes | None, event: Event):
    assert isinstance(decode(key, tuple(headers.items()), value, 0), Record | Unreadable)
    encoded = encode(KEY, event, source="t", actor=USER, time_ms=START_MS)
    mixed = dict(encoded.headers) | headers
    assert isinstance(decode(KEY.to_bytes(), tuple(mixed.items()), value, 0), Record | Unreadable)
    assert isinstance(decode(KEY.to_bytes(), tuple(mixed.items()), encoded.value, 0), Record | Unreadable)
