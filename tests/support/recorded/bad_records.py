"""A record of each class that no reader can use, made of a good one."""

from collections.abc import Mapping
from hashlib import sha256

from schemas.codec import Encoded
from schemas.envelope import Headers
from schemas.errors import Fault
from schemas.ids import ThreadKey
from services.chassis.log.port import Outgoing


def bad_records(key: ThreadKey, good: Encoded) -> Mapping[Fault, Outgoing]:
    """In the partition of the key. Those whose class is about the place or the database are not among them."""
    raw = key.to_bytes()

    def of(value: bytes | None = good.value, *, headers: Headers = good.headers, key: bytes = raw) -> Outgoing:
        return Outgoing(key, value, headers, good.record.time_ms)

    return {
        "bad_key": of(key=b"no slash"),
        "missing_header": of(headers=without(good.headers, "ce_time")),
        "duplicate_header": of(headers=(*good.headers, ("ce_id", b"another"))),
        "bad_header": of(headers=changed(good.headers, "ce_actor", b"root")),
        "no_value": of(None),
        "hash_mismatch": of(headers=changed(good.headers, "ce_datahash", b"0" * 64)),
        "not_json": hashed(of(good.value[:-1])),
        "wrong_shape": hashed(of(b'{"nothing":"of it"}')),
        "unstorable_text": hashed(of(b'{"input":"\\u0000"}')),
    }


def without(headers: Headers, name: str) -> Headers:
    return tuple(header for header in headers if header[0] != name)


def changed(headers: Headers, name: str, raw: bytes) -> Headers:
    return (*without(headers, name), (name, raw))


def hashed(record: Outgoing) -> Outgoing:
    """With the right hash, so that it is not for that reason that it cannot be used."""
    digest = sha256(record.value or b"").hexdigest().encode()
    return record._replace(headers=changed(record.headers, "ce_datahash", digest))
