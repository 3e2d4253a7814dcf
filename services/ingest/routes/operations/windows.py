"""Operators see here what happened, per tenant and minute."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from pydantic import Field
from starlette.responses import Response

from schemas.ids import NAME_PATTERN
from services.chassis.clock import Clock
from services.ingest.http.answers import json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import Parameters, operation
from services.ingest.http.problems import BAD_CURSOR, OF_READS
from services.ingest.operations.windows import OpsWindows, WindowFilter, WindowPage
from services.ingest.routes.parameters import UNIT_MS, Cursor, Limit, PageSizes, moment_of, require_range

DAY_MINUTES: Final = 1_440
"""Minutes of the longest entry: a day. Longer ones are sums of days, which clients can add up."""


class WindowsParameters(Parameters):
    """The range of time, and how it is divided into entries."""

    cursor: Cursor = None
    limit: Limit = None
    begin: Annotated[
        str | None,
        Field(alias="from", description="Begin: RFC 3339, with a zone [default: an hour before `to`].", max_length=60),
    ] = None
    end: Annotated[
        str | None, Field(alias="to", description="End: RFC 3339, with a zone [default: now].", max_length=60)
    ] = None
    tenant: Annotated[str | None, Field(description="Only this tenant.", pattern=NAME_PATTERN)] = None
    step_minutes: Annotated[int, Field(description="Minutes that one entry covers.", ge=1, le=DAY_MINUTES)] = 1


@dataclass(frozen=True, slots=True)
class WindowRoutes:
    """Live counts of all tenants."""

    tag: ClassVar = "ops"

    windows: OpsWindows
    pages: PageSizes
    clock: Clock
    hours_max: int
    """Hours of one request."""

    @operation(
        "GET",
        "/v1/ops/windows",
        "ops",
        summary="Count what happened, per tenant and minute",
        answer=WindowPage,
        problems=(BAD_CURSOR, *OF_READS),
    )
    async def list_windows(self, _caller: Principal, parameters: WindowsParameters) -> Response:
        """Needs the scope `ops`. For all tenants, in event time: inputs, turns, failures, tool calls, tokens, waiting
        and unknown calls, durations. The counts are a few seconds behind; a late record is added to its own minute.
        """
        to_ms = moment_of("to", parameters.end)
        if to_ms is None:
            to_ms = self.clock.now_ms()
        from_ms = moment_of("from", parameters.begin)
        if from_ms is None:
            from_ms = to_ms - UNIT_MS["hours"]
        require_range(from_ms, to_ms, self.hours_max, "hours")
        chosen = WindowFilter(from_ms, to_ms, parameters.step_minutes, parameters.tenant)
        limit = self.pages.limit(parameters.limit)
        return json_answer(await self.windows.page(chosen, parameters.cursor, limit))
