"""GET /v1/threads/{id}/events: a thread's records as a stream of server-sent events, or as a page of JSON.

One path serves both, by the header Accept, so that a client that has lost its stream can page through what it missed
with the same cursor.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, JsonValue, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from starlette.requests import Request
from starlette.responses import Response

from services.chassis.threads.states import StatesUnavailableError
from services.ingest.commands.existence import KnownThreads
from services.ingest.http.answers import json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import HEADER, Parameters, operation
from services.ingest.http.problems import (
    BAD_CURSOR,
    INVALID_REQUEST,
    OF_READS,
    OVERLOADED,
    THREAD_NOT_FOUND,
    VIEWS_BEHIND,
    VIEWS_UNAVAILABLE,
    Problem,
    ProblemError,
)
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.routes.parameters import AT_LEAST_MEANS, PageSizes, ThreadPart, invalid
from services.ingest.streams.event_stream import EventStream, StreamOptions
from services.ingest.streams.frames import fact_json
from services.ingest.streams.history import EventPage
from services.ingest.streams.live import BehindError, CursorError, TooManyWatchesError, Watches
from services.ingest.streams.watch import WatchCutError

EVENT_STREAM: Final = "text/event-stream"
SEQ_MAX: Final = 2**53 - 1
"""The largest number that is exact in clients that have only floating-point numbers."""


_SEQ: JsonSchemaValue = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
_BEGINNING: Final[dict[str, JsonValue]] = {"default": 0}


class EventsParameters(Parameters):
    """Positions and the limit are read by hand: a wrong position is answered with bad-cursor, and `Last-Event-ID`,
    which browsers send by themselves, takes the place of `after`, whatever that is.
    """

    after: Annotated[
        str | None,
        WithJsonSchema(_SEQ),
        Field(description="The cursor: the seq of the last record that you have.", json_schema_extra=_BEGINNING),
    ] = None
    last_event_id: Annotated[
        str | None,
        HEADER,
        WithJsonSchema(_SEQ),
        Field(
            alias="Last-Event-ID",
            description="The same, as browsers send it; it takes precedence over `after`.",
            json_schema_extra=_BEGINNING,
        ),
    ] = None
    until: Annotated[
        Literal["turn_end"] | None,
        WithJsonSchema({"enum": ["turn_end"]}),
        Field(description="Close the stream after the next turn.ended that applied."),
    ] = None
    effects: Annotated[
        Literal["all", "applied"],
        WithJsonSchema({"enum": ["all", "applied"]}),
        Field(description="Show every record, or only those that took effect."),
    ] = "all"
    at_least: Annotated[
        str | None,
        WithJsonSchema({"type": "string", "maxLength": 60}),
        Field(description=AT_LEAST_MEANS),
    ] = None
    limit: Annotated[
        str | None,
        WithJsonSchema({"type": "integer", "minimum": 1}),
        Field(description="Events of a page, up to a limit."),
    ] = None


class EventsPage(BaseModel):
    events: list[dict[str, JsonValue]]
    next_after: int
    """The cursor of the next page."""
    end: bool
    """Whether the views hold no later event yet."""


@dataclass(frozen=True, slots=True)
class EventRoutes:
    """The records of a thread. It needs the views only for pages; a stream of a thread in use goes on without them."""

    tag: ClassVar = "events"

    known: KnownThreads
    watches: Watches
    at_least: AtLeastWaits
    pages: PageSizes
    options: StreamOptions

    @operation(
        "GET",
        "/v1/threads/{thread}/events",
        "threads:read",
        summary="Follow or page through a thread's events",
        answer=EventsPage,
        problems=(BAD_CURSOR, THREAD_NOT_FOUND, INVALID_REQUEST, VIEWS_BEHIND, *OF_READS),
        content={EVENT_STREAM: {"schema": {"type": "string"}}},
    )
    async def events(
        self, _caller: Principal, thread: ThreadPart, parameters: EventsParameters, request: Request
    ) -> Response:
        """With `Accept: text/event-stream` the answer is a stream of server-sent events: first the thread's records
        after the cursor, then every new record. Each record has its seq as `id`, its type as `event`, and as `data` the
        record itself with its `effect`. Unless the effect is `applied`, the `reason` explains why, such as a lost race.
        `delta` and `tool_output` are only sent live and have no id. `cut` is the last event of a stream that the server
        ends; its `after` is the cursor to continue with.

        Otherwise the answer is a page: `{"events": [...], "next_after": n, "end": bool}`. `end` is true if the views
        hold no later record yet.
        """
        after = _cursor(parameters.last_event_id or parameters.after)
        limit = _limit(parameters.limit, self.pages)
        applied_only = parameters.effects == "applied"
        await self.at_least.wait(parameters.at_least, thread)
        await self.known.require(thread)
        try:
            if EVENT_STREAM not in request.headers.get("accept", ""):
                await self.known.require_viewed(thread)
                page = await self.watches.history.page_of(thread, after, limit, applied_only=applied_only)
                return json_answer(_page_json(page))
            watch = await self.watches.watch(thread, after)
            try:
                # The first look comes before the headers, so that an error that it raises still has a status.
                first = await watch.next(0)
            except BaseException:
                watch.close()
                raise
        except (CursorError, StatesUnavailableError, BehindError, TooManyWatchesError, WatchCutError) as error:
            raise ProblemError(_problem(error)) from error
        until_turn_end = parameters.until is not None
        return EventStream(watch, first, self.options, applied_only=applied_only, until_turn_end=until_turn_end)


def _page_json(page: EventPage) -> bytes:
    """The records are JSON already; parsing them to write an `EventsPage` would cost most of the request's time."""
    tail = f'],"next_after":{page.next_after},"end":{"true" if page.is_end else "false"}}}'
    return b'{"events":[' + b",".join([fact_json(record) for record in page.records]) + tail.encode()


def _problem(error: Exception) -> Problem:
    """Return the problem of a stream or page that cannot begin. Once it has begun, an error ends it with `cut`."""
    match error:
        case CursorError():
            return Problem(BAD_CURSOR, f"{error}.")
        case TooManyWatchesError():
            return Problem(OVERLOADED, f"{error}.")
        case StatesUnavailableError():
            return Problem(VIEWS_UNAVAILABLE, "The database cannot be asked.")
        case _:
            return Problem(VIEWS_BEHIND, f"{error}.")


def _cursor(text: str | None) -> int:
    """Return the seq of a cursor; 0 is before the first record. Raises ProblemError (bad-cursor)."""
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= SEQ_MAX):
        raise ProblemError(Problem(BAD_CURSOR, f"A cursor is the seq of a record, 0 or more, not {text[:60]!r}."))
    return int(text)


def _limit(text: str | None, pages: PageSizes) -> int:
    """Unlike other lists, a limit that is too large is refused here. Raises ProblemError (invalid-request)."""
    if text is None:
        return pages.default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= pages.most):
        raise ProblemError(invalid("query.limit", f"must be a number from 1 to {pages.most}"))
    return int(text)
