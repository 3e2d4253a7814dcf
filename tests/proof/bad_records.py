"""Bad records: what nobody can read, understand or store, in the midst of a thread that goes on."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Literal, NamedTuple, assert_never, get_args

from schemas.codec import Encoded, Record, decode
from schemas.envelope import Headers
from schemas.events import TaskUpdated, ThreadDescribed
from schemas.ids import ThreadKey
from schemas.thread import Verdict
from tests.support.recorded.histories import USER, History, submitted

HUGE_BYTES: Final = 1_500_000

BadKind = Literal[
    "no key",
    "no id",
    "no value",
    "no JSON",
    "other fields",
    "another hash",
    "U+0000",
    "unknown type",
    "newer version",
    "wrong partition",
    "refused by Postgres",
    "huge",
]
BAD_KINDS: Final[tuple[BadKind, ...]] = get_args(BadKind)
NOT_DEAD: Final[frozenset[BadKind]] = frozenset({"unknown type", "newer version", "huge"})
"""What is not understood is kept and ignored, and what is huge is good; all the others are dead letters."""


class Appended(NamedTuple):
    """A record for the log."""

    key: bytes
    value: bytes | None
    headers: Headers
    time_ms: int
    is_astray: bool = False
    """It goes to a partition that is not that of its key."""


class Story(History):
    """A thread's log into which bad records come, while it is made: who appends after one has read it, like all else."""

    def __init__(self, key: ThreadKey, bad: Mapping[int, BadKind]) -> None:
        """`bad` by the number of records before it."""
        super().__init__(key)
        self.appended: list[Appended] = []
        self._bad = dict(bad)

    def add(self, made: Encoded) -> Verdict:
        verdict = self._take(made, made.value)
        self._come_between()
        return verdict

    def end(self) -> list[Appended]:
        while self._bad:
            self._append_bad(self._bad.pop(next(iter(self._bad))))
        return self.appended

    def _come_between(self) -> None:
        kind = self._bad.pop(len(self.appended), None)
        if kind is not None:
            self._append_bad(kind)

    def _take(self, made: Encoded, value: bytes | None) -> Verdict:
        self.appended.append(Appended(self.key.to_bytes(), value, made.headers, made.record.time_ms))
        return super().add(made)

    def _append_bad(self, kind: BadKind) -> None:
        good = self.make(ThreadDescribed(title=kind), USER)
        key, value, headers, time_ms = self.key.to_bytes(), good.value, good.headers, good.record.time_ms
        match kind:
            case "no key":
                self.appended.append(Appended(b"nobody", value, headers, time_ms))
                return
            case "no id":
                self.appended.append(Appended(key, value, _without(headers, "ce_id"), time_ms))
                return
            case "wrong partition":
                self.appended.append(Appended(key, value, headers, time_ms, is_astray=True))
                return
            case "no value":
                self._append_raw(None, headers, time_ms)
            case "no JSON":
                self._append_raw(b'{"title":', _hashed(headers, b'{"title":'), time_ms)
            case "other fields":
                self._append_raw(b'{"tilte":"x"}', _hashed(headers, b'{"tilte":"x"}'), time_ms)
            case "another hash":
                self._append_raw(b'{"title":"altered"}', headers, time_ms)
            case "U+0000":
                value = value.replace(b"0000", b"\\u0000")
                self._append_raw(value, _hashed(headers, value), time_ms)
            case "unknown type":
                self._append_raw(value, _with(headers, "ce_type", b"com.example.thing"), time_ms)
            case "newer version":
                self._append_raw(value, _with(headers, "ce_type", b"dev.threadlog.thread.described.v7"), time_ms)
            case "refused by Postgres":
                made = self.make(TaskUpdated(plan_version=1, task="a", status="running", result=8.5e307))
                value = made.value.replace(b"8.5e+307", b"8.5e+200000")
                self._append_raw(value, _hashed(made.headers, value), time_ms)
            case "huge":
                made = self.make(submitted(f"huge-{len(self.appended)}", text="short"), USER)
                value = made.value.replace(b"short", b"x" * HUGE_BYTES)
                self._append_raw(value, _hashed(made.headers, value), time_ms)
            case _:
                assert_never(kind)

    def _append_raw(self, value: bytes | None, headers: Headers, time_ms: int) -> None:
        record = decode(self.key.to_bytes(), headers, value, 0, time_ms)
        assert isinstance(record, Record), record
        self._take(Encoded(record, value or b"", headers), value)


def _with(headers: Headers, name: str, value: bytes) -> Headers:
    return tuple((dict(headers) | {name: value}).items())


def _without(headers: Headers, name: str) -> Headers:
    return tuple((each, value) for each, value in headers if each != name)


def _hashed(headers: Headers, value: bytes) -> Headers:
    return _with(headers, "ce_datahash", sha256(value).hexdigest().encode())
