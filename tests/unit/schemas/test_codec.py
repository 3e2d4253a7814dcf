import json
from hashlib import sha256

import pytest

from schemas.codec import Encoded, Problem, Record, Unreadable, decode, encode
from schemas.envelope import CONTENT_TYPE, HEADERS_BYTES_MAX, TIME_MS_MAX, format_time
from schemas.errors import LimitError, UnstorableTextError
from schemas.events import (
    ContextCompacted,
    InputSubmitted,
    StepFinished,
    ThreadArchived,
    ThreadConfigured,
    ThreadCreated,
    ToolCallFinished,
)
from schemas.ids import derive
from tests.support.recorded.histories import (
    CONFIG,
    EXECUTOR,
    KEY,
    START_MS,
    USER,
    History,
    plain_turn,
    read_back,
    submitted,
)

OFFSET = 7


def made(event, actor=EXECUTOR, **options) -> Encoded:
    return encode(KEY, event, source="tool_executor/e1", actor=actor, time_ms=START_MS, **options)


def result(value) -> ToolCallFinished:
    return ToolCallFinished(call="1.1.0", attempt=1, claim="c", outcome="succeeded", result=value)


def decoded(encoded: Encoded, value: bytes | None = None, **headers: bytes | None) -> Record:
    """Decode with other bytes (and their hash), or with other headers; None takes a header away."""
    bytes_ = encoded.value if value is None else value
    given = {name.replace("__", "-"): raw for name, raw in headers.items()}
    all_headers = dict(encoded.headers) | {"ce_datahash": sha256(bytes_).hexdigest().encode()} | given
    kept = tuple([(name, raw) for name, raw in all_headers.items() if raw is not None])
    record = decode(KEY.to_bytes(), kept, bytes_, OFFSET, START_MS + 5)
    assert isinstance(record, Record)
    return record


def problem(record: Record) -> str:
    assert record.data is None
    assert record.problem is not None and record.problem.understood
    return record.problem.reason


def test_what_was_encoded_is_read_back():
    for encoded in plain_turn(History()).encoded:
        record = read_back(KEY, encoded, OFFSET)
        assert record == encoded.record._replace(offset=OFFSET)


def test_cause_and_trace_are_read_back():
    encoded = made(result("x"), cause=derive("cause"), traceparent="00-aa-bb-01")
    assert read_back(KEY, encoded, OFFSET).cause == derive("cause")
    assert dict(encoded.headers)["traceparent"] == b"00-aa-bb-01"


def test_headers_are_those_of_the_kafka_binding_in_binary_mode():
    encoded = made(result("x"))
    assert {name: raw.decode() for name, raw in encoded.headers} == {
        "ce_specversion": "1.0",
        "ce_id": encoded.record.id,
        "ce_source": "tool_executor/e1",
        "ce_type": "dev.threadlog.tool_call.finished.v1",
        "ce_time": "2026-09-21T14:13:20.000Z",
        "content-type": "application/json",
        "ce_actor": "service:tool-executor",
        "ce_datahash": sha256(encoded.value).hexdigest(),
    }


def test_the_value_is_canonical():
    encoded = made(result({"b": 1, "a": [1.0, None, "é"]}))
    assert encoded.value.decode() == (
        '{"artifacts":[],"attempt":1,"call":"1.1.0","changes":[],"claim":"c","milliseconds":0,'
        '"outcome":"succeeded","result":{"a":[1,null,"é"],"b":1}}'
    )


def test_null_within_data_is_kept_and_absent_fields_are_not_written():
    encoded = made(ThreadConfigured(patch={"instructions": None}))
    assert encoded.value == b'{"patch":{"instructions":null}}'
    assert made(submitted("i")).value == b'{"input":"i","items":[{"text":"hello","type":"text"}],"mode":"queue"}'


def test_ids_of_services_are_derived_and_those_of_commands_given():
    assert made(result(1)).record.id == made(result(2)).record.id
    assert made(ThreadArchived(), USER, event_id=derive("drawn")).record.id == derive("drawn")


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\\\x00"])
def test_text_that_cannot_be_stored_is_not_encoded(text: str):
    with pytest.raises(UnstorableTextError):
        made(result({"deep": [text]}))


@pytest.mark.parametrize("value", [2**53, -(2**53), float("nan"), float("inf")])
def test_numbers_that_cannot_be_stored_are_not_encoded(value: float):
    with pytest.raises(UnstorableTextError):
        made(result([value]))


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nesting_has_a_limit_below_that_of_readers():
    encoded = made(result(nested(127)))
    assert read_back(KEY, encoded, OFFSET).data == encoded.record.data
    with pytest.raises(UnstorableTextError, match="nested deeper than 128"):
        made(result(nested(128)))


def test_a_picture_of_zero_is_no_zero():
    assert read_back(KEY, made(result("\\u0000")), OFFSET).data == result("\\u0000")
    assert read_back(KEY, made(result("NaN or Infinity")), OFFSET).data == result("NaN or Infinity")


def test_size_has_a_limit():
    fits = made(result("x" * 100))
    assert made(result("x" * 100), bytes_max=len(fits.value)).value == fits.value
    with pytest.raises(LimitError, match=r"a tool_call\.finished of \d+ bytes is over the record limit of 200"):
        made(result("x" * 100), bytes_max=200)
    with pytest.raises(LimitError):
        made(result("x" * 1_048_576))


@pytest.mark.parametrize(
    "key", [None, b"", b"acme", b"acme/", b"/t", b"acme/t/1", b"acme/\xff", b"-a/t", b"a" * 65 + b"/t"]
)
def test_without_a_key_a_record_is_in_no_thread(key: bytes | None):
    encoded = made(result(1))
    unreadable = decode(key, encoded.headers, encoded.value, OFFSET)
    assert isinstance(unreadable, Unreadable)
    assert unreadable.offset == OFFSET
    assert "tenant/thread" in unreadable.reason


@pytest.mark.parametrize("event_id", [None, b"", b"7", b"\xff", str(derive("x")).upper().encode()])
def test_without_an_id_a_record_is_in_no_thread(event_id: bytes | None):
    encoded = made(result(1))
    headers = [(name, event_id if name == "ce_id" else raw) for name, raw in encoded.headers]
    unreadable = decode(KEY.to_bytes(), headers, encoded.value, OFFSET)
    assert isinstance(unreadable, Unreadable)
    assert "ce_id" in unreadable.reason


@pytest.mark.parametrize("name", ["ce_specversion", "ce_source", "ce_type", "ce_time", "ce_actor", "ce_datahash"])
def test_a_missing_header_is_named(name: str):
    encoded = made(result(1))
    record = decoded(encoded, **{name: None})
    assert name in problem(record)
    assert (record.key, record.id, record.time_ms) == (KEY, encoded.record.id, START_MS + 5)


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("ce_specversion", b"0.3", "ce_specversion is b'0.3'"),
        ("ce_source", b"\xff", "not UTF-8"),
        ("ce_type", b"\xff\x00", "U+0000"),
        ("ce_type", b"\xff", "not UTF-8"),
        ("ce_time", b"yesterday", "ce_time b'yesterday'"),
        ("ce_time", b"2026-09-21T14:13:20", "with a zone"),
        ("ce_time", b"9999-12-31T23:59:59-23:59", "ce_time"),
        ("ce_actor", b"root", "ce_actor 'root'"),
        ("ce_actor", b"", "ce_actor ''"),
        ("ce_datahash", b"0" * 64, "the value's sha256 is"),
        ("ce_datahash", b"\xff", "not UTF-8"),
        ("ce_cause", b"\xff", "not UTF-8"),
        ("content__type", b"application/avro", "content-type b'application/avro'"),
        ("ce_source", b"x" * HEADERS_BYTES_MAX, f"more than {HEADERS_BYTES_MAX} bytes"),
    ],
)
def test_a_malformed_header_is_named(name: str, raw: bytes, reason: str):
    record = decoded(made(result(1)), **{name: raw})
    assert reason in problem(record)
    assert "\x00" not in record.kind


@pytest.mark.parametrize(("timestamp_ms", "shown_ms"), [(-1, 0), (2**62, TIME_MS_MAX), (START_MS, START_MS)])
def test_where_the_time_cannot_be_read_that_of_the_broker_is_shown(timestamp_ms: int, shown_ms: int):
    encoded = made(result(1))
    headers = [header for header in encoded.headers if header[0] != "ce_time"]
    record = decode(KEY.to_bytes(), headers, encoded.value, OFFSET, timestamp_ms)
    assert isinstance(record, Record)
    assert record.time_ms == shown_ms
    assert format_time(record.time_ms)


@pytest.mark.parametrize("name", ["ce_type", "ce_time", "ce_datahash", "content-type"])
def test_an_attribute_that_is_there_twice_is_refused_even_if_both_are_the_same(name: str):
    encoded = made(result(1))
    again = next(header for header in encoded.headers if header[0] == name)
    record = decode(KEY.to_bytes(), [*encoded.headers, again], encoded.value, OFFSET)
    assert isinstance(record, Record)
    assert name in problem(record)
    assert record.problem == Problem(True, f"the header {name} is there more than once", "duplicate_header")


def test_a_second_id_leaves_it_open_which_record_it_is():
    encoded = made(result(1))
    unreadable = decode(KEY.to_bytes(), [*encoded.headers, ("ce_id", b"x")], encoded.value, OFFSET)
    assert unreadable == Unreadable(OFFSET, "the header ce_id is there more than once", "duplicate_header")


def test_a_foreign_header_may_be_there_twice():
    encoded = made(result(1))
    record = decode(KEY.to_bytes(), [*encoded.headers, ("x-hop", b"1"), ("x-hop", b"2")], encoded.value, OFFSET)
    assert isinstance(record, Record)
    assert record.data == result(1)


def test_absent_content_type_and_foreign_headers_do_no_harm():
    encoded = made(result(1))
    foreign = [(name, raw) for name, raw in encoded.headers if name != "content-type"] + [("x-proxy", b"\xff")]
    record = decode(KEY.to_bytes(), [*foreign, ("null", None)], encoded.value, OFFSET)
    assert isinstance(record, Record)
    assert record.data == result(1)
    assert decoded(encoded, content__type=CONTENT_TYPE + b"; charset=utf-8").data == result(1)


def test_altered_bytes_do_not_match_their_hash():
    encoded = made(result("true"))
    record = decode(KEY.to_bytes(), encoded.headers, encoded.value.replace(b"true", b"fals"), OFFSET)
    assert isinstance(record, Record)
    assert "sha256" in problem(record)
    assert record.kind == "tool_call.finished"
    assert record.data_hash != encoded.record.data_hash


def test_without_a_value_there_is_a_record_nevertheless():
    encoded = made(result(1))
    record = decode(KEY.to_bytes(), encoded.headers, None, OFFSET)
    assert isinstance(record, Record)
    assert problem(record) == "the record has no value"
    assert record.data_hash == sha256(b"").hexdigest()


VALID = made(result(1)).value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[]", "the data: Input should be an object"),
        (b"null", "the data: Input should be an object"),
        (VALID[:-1], "Invalid JSON"),
        (VALID[:-1] + b',"surprise":1}', "surprise: Extra inputs are not permitted"),
        (VALID.replace(b'"attempt":1', b'"attempt":"1"'), "attempt: Input should be a valid integer"),
        (VALID.replace(b'"attempt":1', b'"attempt":0'), "attempt: Input should be greater than or equal to 1"),
        (VALID.replace(b"1.1.0", b"1.1"), "call: String should match pattern"),
        (VALID.replace(b"1.1.0", b"1.1.0\\n"), "call: String should match pattern"),
        (VALID.replace(b'"result":1', b'"result":NaN'), "expected value"),
        (VALID.replace(b'"result":1', b'"result":[-Infinity]'), "invalid number"),
        (VALID.replace(b'"result":1', b'"result":"\\u0000"'), "U+0000"),
        (VALID.replace(b'"result":1', b'"result":{"\\\\\\u0000":1}'), "U+0000"),
        (VALID.replace(b'"result":1', b'"result":"\\ud800"'), "Invalid JSON"),
        (VALID.replace(b'"result":1', b'"result":' + b"[" * 300 + b"]" * 300), "recursion limit"),
    ],
)
def test_data_that_does_not_fit_is_explained(value: bytes, reason: str):
    record = decoded(made(result(1)), value)
    assert reason in problem(record)
    assert "tool_call.finished v1" in problem(record) or "U+0000" in reason
    assert record.kind == "tool_call.finished"
    assert record.actor == EXECUTOR


@pytest.mark.parametrize(
    "ce_type",
    [
        "dev.threadlog.tool_call.finished.v2",
        "dev.threadlog.tool_call.invented.v1",
        "dev.threadlog.tool_call.finished.v0",
        "com.example.order.placed",
        "",
    ],
)
def test_what_is_not_known_is_kept_and_ignored(ce_type: str):
    record = decoded(made(result(1)), ce_type=ce_type.encode())
    assert record.kind == ce_type
    assert record.data is None
    assert record.problem is not None and not record.problem.understood
    assert record.data_hash == sha256(VALID).hexdigest()


def test_unknown_types_are_hashed_too():
    assert "sha256" in problem(decoded(made(result(1)), ce_type=b"com.example.x", ce_datahash=b"0" * 64))


def test_strictness_is_that_of_json():
    """Lists are tuples, but nothing else is converted."""
    encoded = made(ContextCompacted(base=0, through_seq=3, summary="s"))
    assert decoded(encoded, encoded.value.replace(b'"through_seq":3', b'"through_seq":3.0')).data is None
    assert decoded(encoded, encoded.value.replace(b'"through_seq":3', b'"through_seq":true')).data is None


def test_defaults_may_be_absent():
    bare = json.dumps({"config": {"model": "m"}}).encode()
    assert decoded(made(ThreadCreated(config=CONFIG), USER), bare).data == ThreadCreated(config={"model": "m"})
    bare = json.dumps(
        {"turn": 1, "step": 1, "attempt": 1, "started": "0" * 64, "items": [], "stop_reason": "x"}
    ).encode()
    assert isinstance(decoded(made(StepFinished.model_validate_json(bare)), bare).data, StepFinished)


def test_items_are_told_apart_by_their_type():
    encoded = made(submitted("i"))
    assert "union_tag" not in problem(decoded(encoded, encoded.value.replace(b'"type":"text"', b'"type":"image"')))
    assert isinstance(read_back(KEY, encoded, OFFSET).data, InputSubmitted)
