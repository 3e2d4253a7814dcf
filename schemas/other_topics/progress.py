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


class Delta(Frozen):
    """A piece of the answer that a model is giving, text or reasoning."""

    kind: Literal["delta"] = "delta"
    turn: Positive
    step: Positive
    attempt: Positive
    text: str | None = None
    """A piece of the answer's text."""
    reasoning: str | None = None
    """A piece of the model's reasoning."""


class ToolOutput(Frozen):
    kind: Literal["tool_output"] = "tool_output"
    call: Call
    attempt: Positive
    text: str
    """What the tool wrote since the last record."""


class Heartbeat(Frozen):
    """A running call's executor is alive."""

    kind: Literal["heartbeat"] = "heartbeat"
    call: Call
    attempt: Positive
    claim: Id
    """Event id of the claim that is alive."""


class Quarantine(Frozen):
    """The sender could not fold or decide this thread and leaves it alone until it has read it anew. Repeated for as
    long as that lasts.
    """

    kind: Literal["quarantine"] = "quarantine"
    reason: str
    by: str | None = None
    """Service and instance that set the thread aside."""
    since_ms: int | None = None
    """Since when, in milliseconds since 1970."""


Progress = Annotated[Delta | ToolOutput | Heartbeat | Quarantine, Field(discriminator="kind")]

_PROGRESS: TypeAdapter[Progress] = TypeAdapter(Progress)
_HEADERS: dict[str, Headers] = {
    kind: ((KIND_HEADER, kind.encode()),) for kind in ("delta", "tool_output", "heartbeat", "quarantine")
}


def encode_progress(progress: Progress) -> tuple[bytes, Headers]:
    """Return value and headers."""
    return progress.model_dump_json(exclude_none=True).encode(), _HEADERS[progress.kind]


def progress_kind(headers: Headers) -> str | None:
    """Return what the record is, or None where it does not say."""
    for name, value in headers:
        if name == KIND_HEADER:
            return value.decode("ascii", "replace")
    return None


def decode_progress(value: bytes | None) -> Progress | None:
    """Return the progress, or None for a value that is not one: nothing depends on it."""
    if value is None:
        return None
    try:
        return _PROGRESS.validate_json(value)
    except pydantic.ValidationError:
        return None
