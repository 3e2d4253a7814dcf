"""The CloudEvents 1.0 attributes of a record, in the Kafka binding's binary mode: every attribute is a header."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from schemas.errors import Fault, HeaderError
from schemas.ids import DataHash, EventId, parse_event_id

Headers = tuple[tuple[str, bytes], ...]

SPECVERSION = b"1.0"
CONTENT_TYPE = b"application/json"
ACTORS = frozenset({"user", "service", "policy", "import"})
"""Who may have appended a record: the first part of `actor`."""
HEADERS_BYTES_MAX = 8_192
"""Limit on all header values together. They go into states and rows."""

SECONDS_CACHED = 64
"""Seconds whose text is remembered: the events of one decision, or of a turn, come within few."""

_SPECVERSION_HEADER = ("ce_specversion", SPECVERSION)
_CONTENT_TYPE_HEADER = ("content-type", CONTENT_TYPE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
TIME_MS_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
TIME_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
ATTRIBUTES = (
    *("ce_specversion", "ce_id", "content-type", "ce_source", "ce_type", "ce_time", "ce_actor", "ce_datahash"),
    *("ce_cause", "traceparent"),
)


class Envelope(NamedTuple):
    """The attributes of one record."""

    id: EventId
    type: str
    """CloudEvents type, such as `dev.threadlog.turn.ended.v1`."""
    source: str
    """Service and instance, such as `runtime/host-1`."""
    time_ms: int
    """When the producer wrote it, in milliseconds since 1970. Informative: no rule of the fold compares two clocks."""
    actor: str
    """`user:…`, `service:…`, `policy:…` or `import:…`."""
    data_hash: DataHash
    """sha256 of the value, as the producer wrote it."""
    cause: str | None = None
    """Id of the event that led to this one."""
    traceparent: str | None = None
    """W3C trace context of the work that led to it."""


def format_time(time_ms: int) -> str:
    """Return the time as RFC 3339 writes it, in UTC with milliseconds."""
    second, millisecond = divmod(time_ms, 1_000)
    return f"{_format_second(second)}.{millisecond:03}Z"


@lru_cache(maxsize=SECONDS_CACHED)
def _format_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat(timespec="seconds").removesuffix("+00:00")


def parse_time(text: str) -> int:
    """Return milliseconds since 1970. Raises ValueError for what is not RFC 3339 with a zone, in UTC's years 1
    to 9999.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs a zone")
    time_ms = (moment - _EPOCH) // _MILLISECOND
    if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX:
        raise ValueError("a time that UTC has no year for")
    return time_ms


def to_headers(envelope: Envelope) -> Headers:
    """Return the headers in a fixed order, so that the same event always has the same bytes."""
    event_id, kind, source, time_ms, actor, data_hash, cause, traceparent = envelope
    headers: Headers = (
        _SPECVERSION_HEADER,
        ("ce_id", event_id.encode()),
        ("ce_source", source.encode()),
        ("ce_type", kind.encode()),
        ("ce_time", format_time(time_ms).encode()),
        _CONTENT_TYPE_HEADER,
        ("ce_actor", actor.encode()),
        ("ce_datahash", data_hash.encode()),
    )
    if cause is not None:
        headers = (*headers, ("ce_cause", cause.encode()))
    if traceparent is not None:
        headers = (*headers, ("traceparent", traceparent.encode()))
    return headers


def read_id(headers: dict[str, bytes]) -> EventId:
    """Return the event id. Raises HeaderError where there is no readable one: such a record has no seq in any
    thread.
    """
    raw = headers.get("ce_id")
    if raw is None:
        raise HeaderError("the header ce_id is missing", "missing_header")
    event_id = parse_event_id(raw.decode("ascii", "replace"))
    if event_id is None:
        raise HeaderError(f"the header ce_id {raw[:60]!r} is not a UUID in lower case")
    return event_id


def from_headers(event_id: EventId, headers: dict[str, bytes]) -> Envelope:
    """Return the attributes. Raises HeaderError, which names the attribute, when one is missing or malformed."""
    if headers.get("ce_specversion") != SPECVERSION:
        fault: Fault = "bad_header" if "ce_specversion" in headers else "missing_header"
        raise HeaderError(f"ce_specversion is {headers.get('ce_specversion')!r}, this reader knows 1.0", fault)
    if not headers.get("content-type", CONTENT_TYPE).startswith(CONTENT_TYPE):
        raise HeaderError(f"the content-type {headers['content-type'][:60]!r} is not application/json")
    values = b"".join(headers.values())
    if len(values) > HEADERS_BYTES_MAX or b"\x00" in values:
        raise HeaderError(f"the headers hold U+0000, or more than {HEADERS_BYTES_MAX} bytes")
    try:
        # One by one: in a loop it takes twice as long, and every record that is read comes by here.
        source = headers["ce_source"].decode()
        kind = headers["ce_type"].decode()
        time = headers["ce_time"].decode()
        actor = headers["ce_actor"].decode()
        data_hash = headers["ce_datahash"].decode()
        cause = raw.decode() if (raw := headers.get("ce_cause")) else None
        traceparent = raw.decode() if (raw := headers.get("traceparent")) else None
        time_ms = parse_time(time)
    except KeyError as missing:
        raise HeaderError(f"the header {missing.args[0]} is missing", "missing_header") from None
    except UnicodeDecodeError:
        raise HeaderError("a header is not UTF-8") from None
    except ValueError:
        raise HeaderError(f"ce_time {headers['ce_time'][:60]!r} is not an RFC 3339 time with a zone") from None
    if actor.partition(":")[0] not in ACTORS:
        raise HeaderError(f"ce_actor {actor[:60]!r} is neither user:…, service:…, policy:… nor import:…")
    return Envelope(event_id, kind, source, time_ms, actor, DataHash(data_hash), cause, traceparent)
