"""Records that cannot be read or stored: the row of each, and its record on the dead-letter topic.

Every part that is kept of such a record is bounded, because nobody has checked it. Texts are made storable, so that a
dead letter is never refused for what made the record one.
"""

from typing import NamedTuple

from schemas.errors import Fault
from schemas.ids import ThreadKey
from services.chassis.log.port import Incoming, Outgoing
from services.projector.projections.changes import json_bytes

COLUMNS = (
    *("topic", "partition", "offset", "tenant", "thread", "seq", "reason", "at", "key", "headers", "value"),
    *("value_bytes", "fault"),
)
VALUE_BYTES_MAX = 256 * 1024
"""What is kept of the value of a record that cannot be read or stored. The record itself stays on its topic."""
HEADERS_MAX = 32
HEADER_BYTES_MAX = 1_024
KEY_BYTES_MAX = 1_024
REASON_CHARACTERS_MAX = 1_000


class DeadLetter(NamedTuple):
    """A record that cannot be read or stored. `key` is None if not even the key can be read, `seq` if it has none."""

    incoming: Incoming
    reason: str
    fault: Fault
    key: ThreadKey | None = None
    seq: int | None = None


def dead_letter_row(dead: DeadLetter, bytes_max: int) -> tuple[object, ...]:
    """Return the row in the order of `COLUMNS`. The value is cut after `bytes_max` bytes; `value_bytes` has its
    length.
    """
    incoming, reason, fault, key, seq = dead
    value = incoming.value
    return (
        incoming.topic,
        incoming.partition,
        incoming.offset,
        None if key is None else key.tenant,
        None if key is None else key.thread,
        seq,
        _storable(reason),
        incoming.timestamp_ms,
        None if incoming.key is None else incoming.key[:KEY_BYTES_MAX],
        json_bytes([(_storable(name), _text(raw)) for name, raw in _headers(incoming)]),
        None if value is None else value[:bytes_max],
        0 if value is None else len(value),
        fault,
    )


def dead_letter_record(dead: DeadLetter, bytes_max: int) -> Outgoing:
    """Return the record for the dead-letter topic: its key, value and headers up to the limits, its position, the
    reason.

    A crash may publish it twice; consumers remove duplicates by the position.
    """
    incoming = dead.incoming
    about = (
        ("threadlog_topic", incoming.topic.encode()),
        ("threadlog_partition", str(incoming.partition).encode()),
        ("threadlog_offset", str(incoming.offset).encode()),
        ("threadlog_reason", _storable(dead.reason).encode("utf-8", "replace")),
        ("threadlog_fault", dead.fault.encode()),
        ("threadlog_value_bytes", str(len(incoming.value or b"")).encode()),
    )
    key = (incoming.key or b"")[:KEY_BYTES_MAX]
    value = None if incoming.value is None else incoming.value[:bytes_max]
    return Outgoing(key, value, (*_headers(incoming), *about), incoming.timestamp_ms)


def _headers(incoming: Incoming) -> tuple[tuple[str, bytes], ...]:
    """Return the first headers, each cut at the limit."""
    return tuple([(name[:HEADER_BYTES_MAX], raw[:HEADER_BYTES_MAX]) for name, raw in incoming.headers[:HEADERS_MAX]])


def _text(raw: bytes) -> str:
    return _storable(raw.decode("utf-8", "replace"))


def _storable(text: str) -> str:
    """Return the text as a database takes it: U+0000 becomes its picture, and the text is cut at the limit."""
    return text.replace("\x00", "\u2400")[:REASON_CHARACTERS_MAX]
