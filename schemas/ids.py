"""Ids: how they are written, read and derived.

A service's event id is uuid5 of what the event *means*, so that a retry, or a second owner, appends the same id and
counts once. A client command's id is uuid5 of its idempotency key and all that scopes it.
"""

import re
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, NamedTuple, NewType
from uuid import NAMESPACE_DNS, uuid5

from schemas.errors import HeaderError

if TYPE_CHECKING:
    from hashlib import _Hash

TenantId = NewType("TenantId", str)
ThreadId = NewType("ThreadId", str)
EventId = NewType("EventId", str)
"""Text form of a UUID, lower case, 36 characters."""
InputId = NewType("InputId", str)
CallId = NewType("CallId", str)
"""`turn.step.index`, such as `3.1.0`: turn and step from 1, index from 0."""
DataHash = NewType("DataHash", str)
"""sha256 of a record's value, 64 lower-case hex characters."""

NAMESPACE_THREADLOG = uuid5(NAMESPACE_DNS, "threadlog.dev")
_NAMESPACE = NAMESPACE_THREADLOG.bytes
_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}

EPHEMERAL_PREFIX = "e-"
"""Begins the ids of threads that leave no history. The id says on which topic the thread is."""

KEYS_CACHED = 4_096
"""Parsed keys that a process remembers; a thread's records come close together."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_CALL = re.compile(r"([1-9][0-9]{0,8})\.([1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})", re.ASCII)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
CALL_PATTERN = r"^[1-9][0-9]{0,8}\.[1-9][0-9]{0,8}\.(0|[1-9][0-9]{0,8})$"
"""The same form as a JSON Schema pattern."""


class ThreadKey(NamedTuple):
    """Tenant and thread: the record key `tenant/thread`, and the whole of isolation."""

    tenant: TenantId
    thread: ThreadId

    def __str__(self) -> str:
        return f"{self.tenant}/{self.thread}"

    def to_bytes(self) -> bytes:
        return f"{self.tenant}/{self.thread}".encode()

    @property
    def ephemeral(self) -> bool:
        return self.thread.startswith(EPHEMERAL_PREFIX)


class CallParts(NamedTuple):
    turn: int
    step: int
    place: int


def is_name(text: str) -> bool:
    """Return whether the text can name a tenant or a thread: 1 to 64 letters, digits, `.`, `_` or `-`, beginning with a
    letter or a digit.
    """
    return _NAME.fullmatch(text) is not None


@lru_cache(maxsize=KEYS_CACHED)
def parse_key(raw: bytes | None) -> ThreadKey:
    """Return the thread that a record key names. Raises HeaderError if the bytes are not `tenant/thread`."""
    if raw is None:
        raise HeaderError("the record has no key; a key is tenant/thread", "no_key")
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise HeaderError("the key is not ASCII; a key is tenant/thread", "bad_key") from None
    tenant, slash, thread = text.partition("/")
    if not slash or not is_name(tenant) or not is_name(thread):
        raise HeaderError(f"the key {text[:140]!r} is not tenant/thread", "bad_key")
    return ThreadKey(TenantId(tenant), ThreadId(thread))


def call_id(turn: int, step: int, index: int) -> CallId:
    """Return the name of a call, `turn.step.index`."""
    return CallId(f"{turn}.{step}.{index}")


def parse_call_id(call: str) -> CallParts | None:
    """Return the parts of a call's name, or None for a text that names no call."""
    match = _CALL.fullmatch(call)
    return CallParts(int(match[1]), int(match[2]), int(match[3])) if match else None


def parse_event_id(text: str) -> EventId | None:
    """Return the id, or None if the text is not a UUID in its canonical lower-case form."""
    return EventId(text) if _UUID.fullmatch(text) else None


def derive(*parts: str | int) -> EventId:
    """Return the uuid5 of the parts, joined so that no two lists of parts give the same name."""
    return _as_uuid5(sha1(_NAMESPACE + _joined(parts).encode(), usedforsecurity=False).hexdigest())


def _joined(parts: tuple[str | int, ...]) -> str:
    return "\x1f".join([f"{len(text)}:{text}" for text in map(str, parts)])


def derive_service_event(key: ThreadKey, kind: str, *meaning: str | int) -> EventId:
    """Return the id of a service's event, from the thread, the kind and what it is about (turn, step, call, attempt …).
    Whoever means the same event derives the same id.
    """
    hashed = _beginning(key.tenant, key.thread, kind).copy()
    if meaning:
        hashed.update(f"\x1f{_joined(meaning)}".encode())
    return _as_uuid5(hashed.hexdigest())


@lru_cache(maxsize=KEYS_CACHED)
def _beginning(tenant: TenantId, thread: ThreadId, kind: str) -> "_Hash":
    """Return the hash over the part of a name that all events of one thread and kind share. A thread has many of a
    kind, so it is computed once.
    """
    return sha1(_NAMESPACE + _joined(("event", tenant, thread, kind)).encode(), usedforsecurity=False)


def derive_command(tenant: str, principal: str, route: str, thread: str, idempotency_key: str, kind: str) -> EventId:
    """Return the id of a client command's event. It contains tenant, principal and route, so equal keys of two clients
    never meet.
    """
    return derive("command", tenant, principal, route, thread, idempotency_key, kind)


def derive_thread(tenant: str, principal: str, route: str, idempotency_key: str) -> ThreadId:
    """Return the id of the thread that a command with an Idempotency-Key creates."""
    return ThreadId(derive("thread", tenant, principal, route, idempotency_key))


def derive_child(parent: ThreadKey, origin: str) -> ThreadId:
    """Return the id of a child thread, by what of its parent it works for. The child of an ephemeral thread is
    ephemeral.
    """
    child = derive("child", parent.tenant, parent.thread, origin)
    return ThreadId(f"{EPHEMERAL_PREFIX}{child}" if parent.ephemeral else child)


def derive_child_input(child: ThreadKey) -> InputId:
    """Return the id of the input that a child thread begins with."""
    return InputId(derive("child input", child.tenant, child.thread))


def idempotency_key(key: ThreadKey, call: str) -> str:
    """Return the key by which a tool recognises a call that it has seen. It is the same for every attempt of
    the call.
    """
    return derive("idempotency", key.tenant, key.thread, call)


def _as_uuid5(text: str) -> EventId:
    """`str(uuid5(…, name))` by the SHA-1 of both, without the object between: in a third of its time."""
    return EventId(f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANTS[text[16]]}{text[17:20]}-{text[20:32]}")
