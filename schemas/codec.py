"""Records to events and back: the edge at which bytes become data, once.

What has a readable key and id has a seq in its thread, whatever is wrong with the rest: `decode` then returns a Record
that carries the problem instead of the data. What has not is Unreadable and belongs to no thread.
"""

import re
from hashlib import sha256
from typing import NamedTuple, TypeVar

import pydantic
import pydantic_core

from schemas.canonical import canonical_json, data_hash
from schemas.config import Frozen
from schemas.envelope import Envelope, Headers, from_headers, read_id, to_headers
from schemas.errors import DataError, DecodeError, HashMismatchError, HeaderError, LimitError
from schemas.events import BY_KIND, TYPE_PREFIX, Event, cloudevents_type, service_event_id
from schemas.ids import DataHash, EventId, ThreadKey, parse_key
from schemas.topics import RECORD_BYTES_MAX
from schemas.upcasters import UPCASTERS, Upcasters, upcast

_TYPE = re.compile(re.escape(TYPE_PREFIX) + r"([a-z_]+\.[a-z_]+)\.v([1-9][0-9]{0,3})", re.ASCII)
_KINDS: dict[str, tuple[str, int]] = {
    cloudevents_type(event): (event.kind, event.version) for event in BY_KIND.values()
}


class Problem(NamedTuple):
    """Why a record has no data."""

    understood: bool
    """False: a type or version that this reader does not know, kept and ignored. True: known, and broken."""
    reason: str


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
    """`event_id` is given for client commands and claims; a service's other ids are derived from what the event means.

    Raises LimitError above `bytes_max`, UnstorableTextError for what JSON cannot carry.
    """
    value = canonical_json(event.model_dump(mode="json", exclude_none=True))
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
    headers: Headers,
    value: bytes | None,
    offset: int,
    timestamp_ms: int = 0,
    upcasters: Upcasters = UPCASTERS,
) -> Record | Unreadable:
    """Never raises. `timestamp_ms` is the broker's, shown where the record's own time cannot be read."""
    by_name = dict(headers)
    try:
        key = parse_key(raw_key)
        event_id = read_id(by_name)
    except HeaderError as error:
        return Unreadable(offset, str(error))
    actual = DataHash(sha256(value or b"").hexdigest())
    try:
        envelope = from_headers(event_id, by_name)
    except HeaderError as error:
        kind = by_name.get("ce_type", b"").decode("utf-8", "replace")[:200]
        return Record(key, offset, event_id, kind, timestamp_ms, "", "", None, actual, None, Problem(True, str(error)))
    kind, data, problem = envelope.type, None, None
    try:
        kind, data = _decode_data(envelope, value, actual, upcasters)
        if data is None:
            problem = Problem(False, f"{envelope.type} is not known to this version of threadlog")
    except DecodeError as error:
        problem = Problem(True, str(error))
    return Record(
        key,
        offset,
        event_id,
        kind,
        envelope.time_ms,
        envelope.actor,
        envelope.source,
        envelope.cause,
        actual,
        data,
        problem,
    )


def _decode_data(
    envelope: Envelope, value: bytes | None, actual: DataHash, upcasters: Upcasters
) -> tuple[str, Event | None]:
    if value is None:
        raise DataError("the record has no value")
    if actual != envelope.data_hash:
        raise HashMismatchError(f"the value's sha256 is {actual}, its producer wrote {envelope.data_hash}")
    known = _KINDS.get(envelope.type)
    if known is not None:
        return known[0], _validate(BY_KIND[known[0]], value)
    match = _TYPE.fullmatch(envelope.type)
    model = BY_KIND.get(match[1]) if match else None
    if match is None or model is None or int(match[2]) > model.version:
        return envelope.type, None
    return match[1], _validate_old(model, match[1], int(match[2]), value, upcasters)


Model = TypeVar("Model", bound=Frozen)


def _validate(model: type[Event], value: bytes) -> Event:
    try:
        return model.model_validate_json(value)
    except pydantic.ValidationError as error:
        raise DataError(f"the data does not fit {model.kind} v{model.version}: {first_error(error)}") from None


def _validate_old(model: type[Event], kind: str, version: int, value: bytes, upcasters: Upcasters) -> Event:
    try:
        raw = pydantic_core.from_json(value)
        newest = upcast(kind, version, model.version, raw, upcasters)
        return model.model_validate_json(canonical_json(newest))  # type: ignore[arg-type]  # upcasters yield JSON
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the data does not fit {kind} v{version}: {str(error)[:200]}") from None


def first_error(error: pydantic.ValidationError) -> str:
    """The first complaint of a validation, with the place and without the input."""
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in detail["loc"]) or "the data"
    return f"{place}: {detail['msg']}"[:300]
