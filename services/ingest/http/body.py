"""Request bodies: read with limits on size and time, parsed and validated once.

A body that the log or the database could not keep exactly is refused, since the same bytes have to come back to every
reader. Checking each value would cost more than parsing the body, so the raw bytes are scanned once for anything that
could be such a value; only a body with something suspicious in it is parsed a second time, to find out what it is.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import pydantic
from pydantic import JsonValue
from starlette.requests import Request

from schemas.canonical import unstorable
from schemas.config import Frozen
from services.ingest.http.problems import (
    INVALID_REQUEST,
    MALFORMED_JSON,
    MALFORMED_KEY,
    TOO_LARGE,
    UNSTORABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    ProblemError,
)

ERRORS_SHOWN_MAX = 10
"""Errors of one body that an answer names. A body of many small mistakes must not become a large answer."""

_SUSPICIOUS = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|[0-9]{16}|[0-9][eE]|NaN|Infinity")
"""An escaped U+0000 or surrogate, a long number, one with an exponent, or a word that only looks like JSON."""
_KEY = re.compile(r"[!-~]{1,200}")
"""An Idempotency-Key: visible ASCII, which every client and proxy passes on unchanged."""

Model = TypeVar("Model", bound=Frozen)


def checked_key(key: str | None) -> str | None:
    """Return the key as it is; None if the request has none. Raises ProblemError (malformed-idempotency-key)."""
    if key is not None and _KEY.fullmatch(key) is None:
        raise ProblemError(
            Problem(MALFORMED_KEY, "The header Idempotency-Key is not 1 to 200 visible ASCII characters.")
        )
    return key


async def read_body(
    request: Request, model: type[Model], *, bytes_max: int, timeout_seconds: float, optional: bool = False
) -> Model:
    """Read the body as its model. If it is `optional`, no body means the same as an empty object.

    Raises ProblemError: too-large, unsupported-media-type, malformed-json if it does not arrive in time or is not JSON,
    unstorable, invalid-request.
    """
    raw = await _read(request, bytes_max, timeout_seconds)
    if not raw and optional:
        return model()
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        # This also keeps web pages of other origins out: a browser asks the service before it sends JSON to it.
        raise ProblemError(Problem(UNSUPPORTED_MEDIA_TYPE, _wrong_media_type(media_type)))
    return parse(raw, model)


def parse(raw: bytes, model: type[Model]) -> Model:
    """Return the body as its model. Raises ProblemError: malformed-json, unstorable, invalid-request."""
    if _SUSPICIOUS.search(raw) is not None:
        _refuse_unstorable(raw)
    try:
        return model.model_validate_json(raw)
    except pydantic.ValidationError as error:
        _refuse_invalid(error)


def is_declared_larger(request: Request, bytes_max: int) -> bool:
    """Return whether the header Content-Length announces more than `bytes_max`. It may have any number of digits, and
    Python refuses to read more than 4,300 of them as a number.
    """
    declared = request.headers.get("content-length", "").lstrip("0")
    if not declared.isascii() or not declared.isdecimal():
        return False
    return len(declared) > len(str(bytes_max)) or int(declared) > bytes_max


async def _read(request: Request, bytes_max: int, timeout_seconds: float) -> bytes:
    # A body that announces that it is too large is refused before any of it is read.
    if is_declared_larger(request, bytes_max):
        raise ProblemError(_oversize(bytes_max))
    chunks: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ProblemError(
                        Problem(MALFORMED_JSON, "The connection ended before the whole body had arrived.")
                    )
                chunk: bytes = message.get("body", b"")
                size_bytes += len(chunk)
                if size_bytes > bytes_max:
                    raise ProblemError(_oversize(bytes_max))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        detail = f"The body did not arrive within {timeout_seconds:g} seconds."
        raise ProblemError(Problem(MALFORMED_JSON, detail)) from None


def _wrong_media_type(media_type: str) -> str:
    said = f"Content-Type {media_type[:100]}" if media_type else "no Content-Type"
    return f"The request has {said}; send application/json."


def _oversize(bytes_max: int) -> Problem:
    return Problem(TOO_LARGE, f"The request body is larger than the limit of {bytes_max} bytes.")


def _refuse_unstorable(raw: bytes) -> None:
    """Raises ProblemError if the suspicion was right; a long number may also be part of a text, which is fine."""
    try:
        value: JsonValue = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return  # It is not JSON. The model says so, too, and names the place.
    reason = unstorable(value)
    if reason is not None:
        raise ProblemError(Problem(UNSTORABLE, f"The body holds {reason.removeprefix('text holds ')}."))


def _refuse_constant(name: str) -> NoReturn:
    raise ProblemError(Problem(MALFORMED_JSON, f"{name} is not JSON."))


def _refuse_invalid(error: pydantic.ValidationError) -> NoReturn:
    # The input is left out of the answer: it can be large, and the client has it.
    details = error.errors(include_url=False, include_input=False, include_context=False)
    if details[0]["type"] == "json_invalid":
        raise ProblemError(Problem(MALFORMED_JSON, f"{details[0]['msg']}."))
    raise ProblemError(invalid_request(details))


def invalid_request(details: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the problem of a body or of parameters, from pydantic's errors. The first one becomes the detail."""
    errors: list[JsonValue] = [
        {"place": ".".join(str(part) for part in detail["loc"]) or "body", "detail": _said(detail)}
        for detail in details[:ERRORS_SHOWN_MAX]
    ]
    first = details[0]
    place = ".".join(str(part) for part in first["loc"]) or "the body"
    return Problem(INVALID_REQUEST, f"{place}: {_said(first)}."[:500], {"errors": errors})


def _said(detail: Mapping[str, Any]) -> str:
    """Remove the prefix of pydantic from messages of our own validators, which are complete already."""
    return str(detail["msg"]).removeprefix("Value error, ")
