"""What passes on `thread-progress`: signs of life between two facts. May be lost, repeated or late; changes nothing.

The key is the thread's, the header `kind` says what it is, so that a reader skips what it does not want undecoded.
"""

from typing import Annotated, Literal

import pydantic
from pydantic import Field, TypeAdapter

from schemas.config import Frozen
from schemas.envelope import Headers
from schemas.events import Call, Id, Positive

KIND_HEADER = "kind"

ProgressKind = Literal["delta", "tool_output", "heartbeat", "quarantine"]


class Delta(Frozen):
    """A piece of the answer that a model is giving, text or reasoning."""

    kind: Literal["delta"] = "delta"
    turn: Positive
    step: Positive
    attempt: Positive
    text: str | None = None
    reasoning: str | None = None


class ToolOutput(Frozen):
    kind: Literal["tool_output"] = "tool_output"
    call: Call
    attempt: Positive
    text: str


class Heartbeat(Frozen):
    """A running call's executor is alive."""

    kind: Literal["heartbeat"] = "heartbeat"
    call: Call
    attempt: Positive
    claim: Id


class Quarantine(Frozen):
    """The sender could not fold or decide this thread and leaves it alone until it has read it anew. Repeated for as
    long as that lasts.
    """

    kind: Literal["quarantine"] = "quarantine"
    reason: str
    by: str | None = None
    """Service and instance."""
    since_ms: int | None = None


Progress = Annotated[Delta | ToolOutput | Heartbeat | Quarantine, Field(discriminator="kind")]

_PROGRESS: TypeAdapter[Progress] = TypeAdapter(Progress)
_HEADERS: dict[str, Headers] = {
    kind: ((KIND_HEADER, kind.encode()),) for kind in ("delta", "tool_output", "heartbeat", "quarantine")
}


def encode_progress(progress: Progress) -> tuple[bytes, Headers]:
    """Value and headers."""
    return progress.model_dump_json(exclude_none=True).encode(), _HEADERS[progress.kind]


def progress_kind(headers: Headers) -> str | None:
    """None where the record does not say."""
    for name, value in headers:
        if name == KIND_HEADER:
            return value.decode("ascii", "replace")
    return None


def decode_progress(value: bytes | None) -> Progress | None:
    """None for what is not one of ours: nothing depends on it."""
    if value is None:
        return None
    try:
        return _PROGRESS.validate_json(value)
    except pydantic.ValidationError:
        return None
