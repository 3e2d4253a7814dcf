"""GET /v1/usage: what a tenant has used, by day and model."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import Field
from starlette.responses import Response

from services.chassis.clock import Clock
from services.ingest.commands.existence import KnownThreads
from services.ingest.http.answers import UsagePage, json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import Parameters, operation
from services.ingest.http.problems import BAD_CURSOR, OF_READS, THREAD_NOT_FOUND, VIEWS_BEHIND
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.reads.reads import Reads, UsageFilter
from services.ingest.routes.parameters import (
    UNIT_MS,
    AtLeast,
    Cursor,
    Limit,
    PageSizes,
    ThreadName,
    moment_of,
    require_range,
    thread_key,
)

DAYS_DEFAULT: Final = 30
"""Days that are shown if the client names no beginning: about what a bill covers."""


class UsageParameters(Parameters):
    thread: ThreadName = None
    begin: Annotated[
        str | None,
        Field(alias="from", description="Begin: RFC 3339, with a zone [default: 30 days before `to`].", max_length=60),
    ] = None
    end: Annotated[
        str | None, Field(alias="to", description="End: RFC 3339, with a zone [default: now].", max_length=60)
    ] = None
    cursor: Cursor = None
    limit: Limit = None
    at_least: AtLeast = None


@dataclass(frozen=True, slots=True)
class UsageRoutes:
    """These operations show the token usage of a tenant."""

    tag: ClassVar = "reads"

    reads: Reads
    known: KnownThreads
    at_least: AtLeastWaits
    pages: PageSizes
    clock: Clock
    days_max: int
    """Days of one request."""

    @operation(
        "GET",
        "/v1/usage",
        "threads:read",
        summary="Read token usage, by day and model",
        answer=UsagePage,
        problems=(THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *OF_READS),
    )
    async def list_usage(self, caller: Principal, parameters: UsageParameters) -> Response:
        """Tokens as the providers counted them, each response once. If a thread is a copy of another, a response counts
        for the thread that recorded it first. Responses that lost a race count too, since they were paid for. Days are
        days of UTC. A rebuild of the views does not change the numbers.
        """
        key = None if parameters.thread is None else thread_key(caller.tenant, parameters.thread)
        from_ms, to_ms = self._range(moment_of("from", parameters.begin), moment_of("to", parameters.end))
        await self.at_least.wait(parameters.at_least, key)
        chosen = UsageFilter(from_ms, to_ms, None if key is None else key.thread)
        limit = self.pages.limit(parameters.limit)
        page = await self.reads.usage(caller.tenant, chosen, parameters.cursor, limit)
        if key is not None and not page.rows:
            await self.known.require_viewed(key)
        return json_answer(page.to_json())

    def _range(self, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
        """Return begin and end in milliseconds since 1970. Raises ProblemError (invalid-request)."""
        if to_ms is None:
            to_ms = self.clock.now_ms()
        if from_ms is None:
            from_ms = max(0, to_ms - DAYS_DEFAULT * UNIT_MS["days"])
        require_range(from_ms, to_ms, self.days_max, "days")
        return from_ms, to_ms
