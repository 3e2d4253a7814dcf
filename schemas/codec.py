"""Records to events and back: the edge at which bytes become data, once.

What has a readable key and id has a seq in its thread, whatever is wrong with the rest: `decode` then returns a Record
that carries the problem instead of the data. What has not is Unreadable and belongs to no thread.
"""

import re
from collections.abc import Collection
from hashlib import sha256
from typing import NamedTuple

import pydantic
import pydantic_core

from schemas.canonical import canonical_model, data_hash
from schemas.envelope import ATTRIBUTES, TIME_MS_MAX, Envelope, Headers, from_headers, read_id, to_headers
from schemas.errors import (
    DataError,
    DecodeError,
    Fault,
    HashMismatchError,
    HeaderError,
    LimitError,
    UnstorableTextError,
)
from schemas.events import BY_KIND, TYPE_PREFIX, Event, cloudevents_type, service_event_id
from schemas.ids import DataHash, EventId, ThreadKey, parse_key
from schemas.topics import RECORD_BYTES_MAX
from schemas.upcasters import UPCASTERS, Data, Upcasters, upcast

_TYPE = re.compile(re.escape(TYPE_PREFIX) + r"([a-z_]+\.[a-z_]+)\.v([1-9][0-9]{0,3})", re.ASCII)
_NEWEST: dict[str, type[Event]] = {cloudevents_type(event): event for event in BY_KIND.values()}
_ZERO = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""U+0000 in JSON; not its picture, a backslash and six letters."""


class Problem(NamedTuple):
    """Why a record has no data."""

    understood: bool
    """False: a type or version that this reader does not know, kept and ignored. True: known, and broken."""
    reason: str
    fault: Fault = "wrong_shape"
    """Class of the fault, where the record is broken."""


class Record(NamedTuple):
    """One record of a thread, decoded: what the fold is fed."""

    key: ThreadKey
    offset: int
    """-1 for a service's own record that it has not read back."""
    id: EventId
    kind: str
    """`tool_call.finished`; the whole CloudEvents type where it is not ours."""
    time_ms: int
    actor: str
    source: str
    cause: str | None
    data_hash: DataHash
    """sha256 of the value's bytes as they are, whatever the header says."""
    data: Event | None
    problem: Problem | None = None


class Unreadable(NamedTuple):
    """A record without a readable key or id: it is in no thread and goes to the dead letters."""

    offset: int
    reason: str
    fault: Fault = "bad_header"


class Encoded(NamedTuple):
    """A record to append, and what the fold will make of it once it is read back."""

    record: Record
    value: bytes
    headers: Headers


def encode(
    key: ThreadKey,
    event: Event,
    *,
    source: str,
    actor: str,
    time_ms: int,
    event_id: EventId | None = None,
    cause: str | None = None,
    traceparent: str | None = None,
    bytes_max: int = RECORD_BYTES_MAX,
) -> Encoded:
    """Return the record to append. `event_id` is given for client commands and claims; a service's other ids are
    derived from what the event means. Raises LimitError above `bytes_max`, UnstorableTextError for what JSON or
    Postgres cannot carry.
    """
    value = canonical_model(event)
    if _holds_zero(value):
        raise UnstorableTextError(f"a {event.kind} whose text holds U+0000, for which Postgres has no place")
    if len(value) > bytes_max:
        raise LimitError(f"a {event.kind} of {len(value)} bytes is over the record limit of {bytes_max}")
    envelope = Envelope(
        event_id or service_event_id(key, event),
        cloudevents_type(type(event)),
        source,
        time_ms,
        actor,
        data_hash(value),
        cause,
        traceparent,
    )
    record = Record(key, -1, envelope.id, event.kind, time_ms, actor, source, cause, envelope.data_hash, event)
    return Encoded(record, value, to_headers(envelope))


def decode(
    raw_key: bytes | None,
    headers: Collection[tuple[str, bytes | None]],
    value: bytes | None,
    offset: int,
    timestamp_ms: int = 0,
    upcasters: Upcasters = UPCASTERS,
) -> Record | Unreadable:
    """Return the record that the bytes are, with its data or with the problem; never raises. `timestamp_ms` is the
    broker's and stands in where the record's own time cannot be read.
    """
    by_name = {name: raw for name, raw in headers if raw is not None}
    try:
        key = parse_key(raw_key)
        if len(by_name) != len(headers):
            _refuse_duplicates(headers, "ce_id")
        event_id = read_id(by_name)
    except HeaderError as error:
        return Unreadable(offset, str(error), error.fault)
    actual = DataHash(sha256(value or b"").hexdigest())
    try:
        if len(by_name) != len(headers):
            _refuse_duplicates(headers, *ATTRIBUTES)
        envelope = from_headers(event_id, by_name)
    except HeaderError as error:
        kind = by_name.get("ce_type", b"")[:200].decode("utf-8", "replace").replace("\x00", "\ufffd")
        time_ms = min(max(timestamp_ms, 0), TIME_MS_MAX)
        why = Problem(True, str(error), error.fault)
        return Record(key, offset, event_id, kind, time_ms, "", "", None, actual, None, why)
    model, version = _find_model(envelope.type)
    kind = model.kind if model is not None else envelope.type
    data, problem = None, None
    try:
        checked = _check_value(value, actual, envelope.data_hash)
        if model is None:
            problem = Problem(False, f"{envelope.type} is not known to this version of threadlog")
        else:
            data = _read_data(model, version, checked, upcasters)
    except DecodeError as error:
        problem = Problem(True, str(error), error.fault)
    _, _, source, time_ms, actor, _, cause, _ = envelope
    return Record(key, offset, event_id, kind, time_ms, actor, source, cause, actual, data, problem)


def _refuse_duplicates(headers: Collection[tuple[str, bytes | None]], *names: str) -> None:
    """Raise HeaderError if a header that counts is there twice: readers could differ in which one they take."""
    for name in names:
        if sum(header == name for header, _ in headers) > 1:
            raise HeaderError(f"the header {name} is there more than once", "duplicate_header")


def _find_model(ce_type: str) -> tuple[type[Event] | None, int]:
    """Return the model that understands this type, now or by upcasting, and the version of the data."""
    newest = _NEWEST.get(ce_type)
    if newest is not None:
        return newest, newest.version
    match = _TYPE.fullmatch(ce_type)
    model = BY_KIND.get(match[1]) if match else None
    version = int(match[2]) if match else 0
    return (model, version) if model is not None and version < model.version else (None, version)


def _check_value(value: bytes | None, actual: DataHash, written: DataHash) -> bytes:
    """Return the value if it is there, is what its producer hashed, and can be stored. The hash is compared before
    anything is parsed: a record that was changed on its way is not trusted in any part.
    """
    if value is None:
        raise DataError("the record has no value", "no_value")
    if actual != written:
        raise HashMismatchError(f"the value's sha256 is {actual}, its producer wrote {written[:64]!r}")
    if _holds_zero(value):
        raise DataError("text in the data holds U+0000, for which Postgres has no place", "unstorable_text")
    return value


def _holds_zero(value: bytes) -> bool:
    """Return whether the JSON contains the character U+0000. The cheap search is nearly always enough."""
    return b"\\u0000" in value and _ZERO.search(value) is not None


def _read_data(model: type[Event], version: int, value: bytes, upcasters: Upcasters) -> Event:
    """Return the event, upcast to the newest version. Raises DataError for everything else, whatever the bytes are."""
    if b"NaN" in value or b"Infinity" in value:
        _require_numbers(model, version, value)
    try:
        if version < model.version:
            value = pydantic_core.to_json(upcast(model.kind, version, model.version, _read_object(value), upcasters))
        return model.model_validate_json(value)
    except pydantic.ValidationError as error:
        is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        fault: Fault = "wrong_shape" if is_json else "not_json"
        raise DataError(f"the data does not fit {model.kind} v{version}: {first_error(error)}", fault) from None
    except Exception as error:  # noqa: BLE001  # upcasters work on data that nothing has validated
        raise DataError(f"the data is no {model.kind} v{version}: {str(error)[:200]}") from None


def _require_numbers(model: type[Event], version: int, value: bytes) -> None:
    try:
        pydantic_core.from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise DataError(f"the data is no {model.kind} v{version}: {str(error)[:200]}", "not_json") from None


def _read_object(value: bytes) -> Data:
    data = pydantic_core.from_json(value)
    if not isinstance(data, dict):
        raise TypeError("it is no JSON object")
    return data


def first_error(error: pydantic.ValidationError) -> str:
    """The first complaint of a validation, with the place and without the input."""
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in detail["loc"]) or "the data"
    return f"{place}: {detail['msg']}"[:300]
