"""GET /v1/threads/{id}/events: a thread's records as a stream of server-sent events, or as a page of JSON."""

from fastapi import APIRouter
from pydantic import BaseModel, JsonValue
from starlette.requests import Request
from starlette.responses import Response

from services.chassis.threads.states import StatesUnavailableError
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.problems import (
    BAD_CURSOR,
    INVALID_REQUEST,
    OVERLOADED,
    THREAD_NOT_FOUND,
    VIEWS_BEHIND,
    VIEWS_UNAVAILABLE,
    Problem,
    ProblemError,
)
from services.ingest.routes.parameters import thread_key, wait_at_least
from services.ingest.settings import IngestSettings
from services.ingest.streams.event_stream import EventStream, StreamOptions
from services.ingest.streams.frames import fact_json
from services.ingest.streams.history import EventPage
from services.ingest.streams.live import BehindError, CursorError, TooManyWatchesError
from services.ingest.streams.watch import WatchCutError

EVENT_STREAM = "text/event-stream"
SEQ_MAX = 2**53 - 1

DESCRIPTION = """
With `Accept: text/event-stream`, server-sent events: first the thread's records after the cursor, then what comes.
Each fact has its seq as `id`, its type as `event`, and as `data` the record with what the fold made of it: its
`effect`, and the `reason` where that is not `applied`, so that a lost race explains itself. `delta` and `tool_output`
are live only and carry no id. `cut` is the last event of a stream that the server ends; its `after` is
the cursor to come back with.

Otherwise a page: `{"events": [...], "next_after": n, "end": bool}`; `end` says that the views hold nothing later yet.
"""


def _parameters() -> list[JsonValue]:
    def parameter(place: str, name: str, schema: dict[str, JsonValue], description: str) -> JsonValue:
        required = place == "path"
        return {"in": place, "name": name, "required": required, "schema": schema, "description": description}

    seq: dict[str, JsonValue] = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX, "default": 0}
    return [
        parameter("path", "thread", {"type": "string"}, "Id of the thread."),
        parameter("query", "after", seq, "The cursor: the seq of the last record that is already here."),
        parameter("header", "Last-Event-ID", seq, "The same, as browsers send it; it goes before `after`."),
        parameter("query", "until", {"enum": ["turn_end"]}, "Close the stream after the next turn.ended that applied."),
        parameter(
            "query",
            "effects",
            {"enum": ["all", "applied"], "default": "all"},
            "Show every record, or leave out those that took no effect.",
        ),
        parameter(
            "query",
            "at_least",
            {"type": "string", "maxLength": 60},
            "Wait until the views hold this: `partition:offset` of a command's answer, or a seq of the thread.",
        ),
        parameter("query", "limit", {"type": "integer", "minimum": 1}, "Events of a page, up to a limit."),
    ]


class EventsPage(BaseModel):
    events: list[dict[str, JsonValue]]
    next_after: int
    """Cursor of the next page."""
    end: bool
    """Whether the views held nothing later."""


def _responses() -> dict[int | str, dict[str, object]]:
    problems = (BAD_CURSOR, THREAD_NOT_FOUND, INVALID_REQUEST, VIEWS_BEHIND, *openapi.OF_READS)
    described = openapi.answers(EventsPage, (200,), problems)
    described[200]["description"] = "The stream, or a page."
    described[200]["content"] = {EVENT_STREAM: {"schema": {"type": "string"}}}
    return described


router = APIRouter(tags=["events"])


@router.get(
    "/v1/threads/{thread}/events",  # noqa: FAST003 - parsed by hand, see below
    summary="Follow or page through a thread's events",
    description=DESCRIPTION,
    responses=_responses(),
    # FastAPI's own parsing would cost more than everything else before the first event.
    openapi_extra={"parameters": _parameters()},
)
async def events(request: Request) -> Response:
    principal = await authorized(request, "threads:read")
    deps = dependencies(request)
    key = thread_key(principal.tenant, request.path_params["thread"])
    query = request.query_params
    after = _cursor(request.headers.get("last-event-id") or query.get("after"))
    applied_only = _choice(query.get("effects"), "effects", "all", "applied") == "applied"
    until_turn_end = _choice(query.get("until"), "until", "turn_end") is not None
    limit = _limit(query.get("limit"), deps.settings)
    await wait_at_least(deps, query.get("at_least"), key)
    await deps.known.require(key)
    try:
        if EVENT_STREAM not in request.headers.get("accept", ""):
            await deps.known.require_viewed(key)
            return _page(await deps.watches.history.page_of(key, after, limit, applied_only=applied_only))
        watch = await deps.watches.watch(key, after)
        try:
            # The first look comes before the headers, so that what it raises has a status.
            first = await watch.next(0)
        except BaseException:
            watch.close()
            raise
    except (CursorError, StatesUnavailableError, BehindError, TooManyWatchesError, WatchCutError) as error:
        raise ProblemError(_problem(error)) from error
    options = StreamOptions(deps.settings.ingest_stream_heartbeat_seconds, deps.settings.ingest_stream_send_seconds)
    return EventStream(watch, first, options, applied_only=applied_only, until_turn_end=until_turn_end)


def _page(page: EventPage) -> Response:
    tail = f'],"next_after":{page.next_after},"end":{"true" if page.is_end else "false"}}}'
    body = b'{"events":[' + b",".join([fact_json(record) for record in page.records]) + tail.encode()
    return Response(body, media_type="application/json")


def _problem(error: Exception) -> Problem:
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
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= SEQ_MAX):
        raise ProblemError(Problem(BAD_CURSOR, f"A cursor is the seq of a record, 0 or more, not {text[:60]!r}."))
    return int(text)


def _limit(text: str | None, settings: IngestSettings) -> int:
    if text is None:
        return settings.ingest_page_default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= settings.ingest_page_max):
        raise _invalid("limit", f"a number from 1 to {settings.ingest_page_max}", text)
    return int(text)


def _choice(text: str | None, name: str, *choices: str) -> str | None:
    if text is not None and text not in choices:
        raise _invalid(name, f"{' or '.join(map(repr, choices))}, or left out", text)
    return text


def _invalid(name: str, expected: str, text: str) -> ProblemError:
    errors: JsonValue = [{"place": f"query.{name}", "detail": f"must be {expected}"}]
    return ProblemError(
        Problem(INVALID_REQUEST, f"{name} is {text[:60]!r}; it must be {expected}.", {"errors": errors})
    )
