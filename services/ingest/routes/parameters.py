"""What operations declare in their signatures: the parts of paths, and the parameters that several operations share.

A part that cannot name anything is answered with 404, like one that names nothing: a client cannot tell the two apart,
and neither can somebody who tries the ids of other tenants.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple, TypeVar
from uuid import UUID

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from starlette.responses import Response

from schemas.envelope import parse_time
from schemas.ids import TenantId, ThreadId, ThreadKey, is_name, parse_call_id, parse_event_id
from services.chassis.clock import draw_id
from services.ingest.commands.accepting.accept import Accepted, Command
from services.ingest.commands.commands import Commands
from services.ingest.http.auth import Principal
from services.ingest.http.body import checked_key
from services.ingest.http.operation import HEADER, Parameters, PathPart
from services.ingest.http.problems import INVALID_REQUEST, NOT_FOUND, Problem, ProblemError, no_such_thread

HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
"""A sha256 in hexadecimal digits. Upper case is refused: it would be a second name of the same artifact."""
DIGITS_MAX: Final = 15
"""Digits of a number in a path: every such number is exact in a client that has only floating-point numbers."""

TimeUnit = Literal["hours", "days"]
UNIT_MS: Mapping[TimeUnit, int] = {"hours": 3_600_000, "days": 86_400_000}
"""Milliseconds of a unit."""
Value = TypeVar("Value")


# Parts of paths


def thread_key(tenant: TenantId, thread: str) -> ThreadKey:
    """Raises ProblemError (thread-not-found) if the text cannot name a thread."""
    if not is_name(thread):
        raise ProblemError(no_such_thread())
    return ThreadKey(tenant, ThreadId(thread))


def no_such_import() -> Problem:
    """Return the same for an import that never existed and for one of another tenant."""
    return Problem(NOT_FOUND, "There is no such import.")


def _call(_tenant: TenantId, text: str) -> str:
    """Raises ProblemError (not-found)."""
    if parse_call_id(text) is None:
        raise ProblemError(Problem(NOT_FOUND, "A tool call is named turn.step.index, such as 3.1.0."))
    return text


def _import(_tenant: TenantId, text: str) -> UUID:
    """Raises ProblemError (not-found)."""
    parsed = parse_event_id(text)
    if parsed is None:
        raise ProblemError(no_such_import())
    return UUID(parsed)


def _sha256(_tenant: TenantId, text: str) -> str:
    """Raises ProblemError (invalid-request): a client that computes a hash wrongly should see that it did."""
    if HASH.fullmatch(text) is None:
        raise ProblemError(invalid("path.sha256", "must be 64 lower-case hexadecimal digits"))
    return text


def _text(_tenant: TenantId, text: str) -> str:
    """Return the text as it is, for parts that the operation looks up or checks itself."""
    return text


def _number(name: str) -> Callable[[TenantId, str], int]:
    """Return the reader of a number from 1. `name` is what its problem calls it."""

    def read(_tenant: TenantId, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and int(text) > 0):
            raise ProblemError(Problem(NOT_FOUND, f"A {name} is a number from 1."))
        return int(text)

    return read


ThreadPart = Annotated[ThreadKey, PathPart(thread_key, "Id of the thread.")]
InputPart = Annotated[str, PathPart(_text, "Id of the input.")]
TurnPart = Annotated[int, PathPart(_number("turn"), "Number of the turn, from 1.")]
VersionPart = Annotated[int, PathPart(_number("version"), "Number of the plan's version, from 1.")]
CallPart = Annotated[str, PathPart(_call, "Id of the tool call: turn.step.index, such as `3.1.0`.")]
EventPart = Annotated[str, PathPart(_text, "Id of the command's event.")]
ImportPart = Annotated[UUID, PathPart(_import, "Id of the import.")]
ArtifactPart = Annotated[str, PathPart(_sha256, "sha256 of the artifact: 64 lower-case hexadecimal digits.")]


# Commands


KEY_SCHEMA: Final[JsonSchemaValue] = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}

Key = Annotated[
    str | None,
    HEADER,
    AfterValidator(checked_key),
    WithJsonSchema(KEY_SCHEMA),
    Field(alias="Idempotency-Key", description="The same key and body count once and get the same answer."),
]


class KeyParameter(Parameters):
    """The parameter of a request that can be sent again but has no effect to wait for."""

    key: Key = None


class CommandParameters(Parameters):
    """Every command to a thread has these parameters."""

    wait: Annotated[
        Literal["applied"] | None,
        WithJsonSchema({"enum": ["applied"]}),
        Field(description="Answer once the effect of the command is known; answer 409 if it had none."),
    ] = None
    key: Key = None


def command_of(caller: Principal, route: str, key: ThreadKey, parameters: CommandParameters) -> Command:
    """Return the command of a request to a thread. Without a key of the client it gets one that nobody else has."""
    sent = parameters.key
    return Command(caller, route, key, sent or draw_id(), sent is not None)


async def run(commands: Commands, accepted: Accepted | Problem, parameters: CommandParameters) -> Response:
    """Record an accepted command and answer it. Raises ProblemError."""
    if isinstance(accepted, Problem):
        raise ProblemError(accepted)
    return await commands.run(accepted, wait=parameters.wait is not None)


# Reads


Cursor = Annotated[str | None, Field(description="`next_cursor` of the previous page.", max_length=2_000)]
Limit = Annotated[int | None, Field(description="Number of entries of a page.", ge=1, le=1_000)]
AT_LEAST_MEANS: Final = (
    "Wait until the views hold this: `partition:offset` of a command's answer, or a seq of the thread."
)
AtLeast = Annotated[str | None, Field(description=AT_LEAST_MEANS, max_length=60)]
ThreadName = Annotated[str | None, Field(description="Only entries of this thread.", max_length=200)]


class AtLeastParameter(Parameters):
    """The parameter of a read that has one entry."""

    at_least: AtLeast = None


class PageParameters(Parameters):
    """The parameters of a list of one thread."""

    cursor: Cursor = None
    limit: Limit = None
    at_least: AtLeast = None


class ThreadPageParameters(Parameters):
    """The parameters of a list of a tenant that can be narrowed to one thread."""

    thread: ThreadName = None
    cursor: Cursor = None
    limit: Limit = None
    at_least: AtLeast = None


class PageSizes(NamedTuple):
    """Entries of a page: if the client asks for no number, and at most."""

    default: int
    most: int

    def limit(self, wanted: int | None) -> int:
        """Return the entries of the page. More than `most` become `most`: the cursor leads to the rest."""
        return min(wanted or self.default, self.most)


def moment_of(name: str, text: str | None) -> int | None:
    """Milliseconds since 1970. Raises ProblemError (invalid-request), which names the parameter."""
    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        wanted = "an RFC 3339 time with a zone, such as 2026-01-31T12:00:00Z"
        raise ProblemError(invalid(f"query.{name}", f"must be {wanted}")) from None


def require_range(from_ms: int, to_ms: int, most: int, unit: TimeUnit) -> None:
    """Raises ProblemError (invalid-request) if the range is empty, begins before 1970, or is longer than `most`."""
    if 0 <= from_ms < to_ms <= from_ms + most * UNIT_MS[unit]:
        return
    wanted = f"must be before `to`, after 1970, and by {most} {unit} at most"
    raise ProblemError(invalid("query.from", wanted))


def invalid(place: str, detail: str) -> Problem:
    """Return the problem of one parameter that has the wrong form."""
    errors: JsonValue = [{"place": place, "detail": detail}]
    return Problem(INVALID_REQUEST, f"{place} {detail}.", {"errors": errors})
