"""What operators read of the live windows: per tenant and step of one or more minutes, the cells of all partitions
merged.

The cells are counters by name (`schemas.other_topics.windows`). Everything that is shown comes from their sums. That
includes quantiles, because the bins of a sketch are counters like the others.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import asyncpg
import orjson

from schemas.envelope import TIME_MS_MAX
from schemas.other_topics.windows import (
    FAILURES,
    INPUTS,
    MINUTE_MS,
    OTHER,
    RESPONSES,
    TOKENS,
    TOOL_CALLS,
    TOOL_MS,
    TOOL_TIMES,
    TURN_TIMES,
    TURNS,
)
from services.chassis.sketch import quantiles
from services.ingest.commands.views import format_moment
from services.ingest.database import Database
from services.ingest.http.answers import Answer, Time
from services.ingest.http.problems import ProblemError
from services.ingest.reads.reads import decode_cursor, foreign_cursor, milliseconds_of, moment_at, page_of

HOURS_MAX: Final = 744
"""Hours that one request may cover: a month of 31 days."""
FailedWhat = Literal["turn", "step", "tool_call", "other"]
"""What failed. `other` counts failures beyond the limit of reasons."""


class FailureCount(Answer):
    """This counts how often something failed for one reason."""

    what: FailedWhat
    reason: str
    """For a turn, why it ended as failed; for a step, the kind of its error; for a tool call, failed, timed_out or
    lost.
    """
    count: int


class ToolCount(Answer):
    """Calls of one tool."""

    tool: str
    """The tool's name. `other` counts calls of tools beyond the limit of names."""
    calls: int
    """Calls that ran to an end."""
    seconds: float
    """Time that these calls ran, in total."""


class ModelCount(Answer):
    """This counts the responses of one model, and their tokens."""

    model: str
    responses: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int


class Durations(Answer):
    """The quantiles are seconds, with an error of one percent at most."""

    count: int
    p50: float
    p99: float


class Window(Answer):
    """What happened for one tenant in one step of time, by the time that the records carry."""

    tenant: str
    at: Time
    """Beginning of the step."""
    until: Time
    """End of the step."""
    inputs: int
    """Inputs that were accepted."""
    turns: dict[str, int]
    """Turns that ended, by outcome."""
    failures: list[FailureCount]
    tools: list[ToolCount]
    models: list[ModelCount]
    """Counts by model of the configuration. A response that came too late to be used counts, because it was paid
    for.
    """
    waiting: int
    """Calls that wait for a person's approval at the end of the step."""
    unknown: int
    """Calls whose outcome is unknown at the end of the step: they may or may not have run."""
    turn_seconds: Durations | None
    """Durations of turns that ended, without the time in which they waited for people or for child threads."""
    tool_seconds: Durations | None
    """Durations of calls that ran to an end."""


class WindowPage(Answer):
    """The steps, oldest first. A step in which nothing happened is left out: as many calls wait, or are unknown, as
    before.
    """

    data: list[Window]
    next_cursor: str | None


class WindowFilter(NamedTuple):
    """Which time and which tenant are shown. None: all tenants."""

    from_ms: int
    to_ms: int
    step_minutes: int
    tenant: str | None = None


class OpsWindows:
    """Reads the windows of all tenants."""

    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    async def page(self, chosen: WindowFilter, cursor: str | None, limit: int) -> bytes:
        """Return a page of whole steps: the time begins earlier and ends later if it would cut one. Raises
        ProblemError.
        """
        step_ms = chosen.step_minutes * MINUTE_MS
        from_ms = chosen.from_ms // step_ms * step_ms
        to_ms = min(-(-chosen.to_ms // step_ms) * step_ms, TIME_MS_MAX)
        after = (moment_at(from_ms), "") if cursor is None else _place(cursor)
        rows = await self._database.fetch_as_operator(
            self._sql["ops_windows"],
            *(moment_at(from_ms), moment_at(to_ms), chosen.step_minutes, chosen.tenant, *after, limit + 1),
        )
        page = page_of(rows, limit, lambda last: [milliseconds_of(last["at"]), last["tenant"]])
        return orjson.dumps({"data": [_shown(row) for row in page.rows], "next_cursor": page.next_cursor})


def _shown(row: asyncpg.Record) -> Mapping[str, object]:
    """Return a row's counters as the members of `Window`."""
    counts: dict[str, int] = {} if row["counts"] is None else orjson.loads(row["counts"])
    by_counter: dict[str, dict[str, int]] = {}
    for name, value in sorted(counts.items()):
        counter, _, rest = name.partition("/")
        by_counter.setdefault(counter, {})[rest] = value
    return {
        "tenant": row["tenant"],
        "at": format_moment(row["at"]),
        "until": format_moment(row["until"]),
        "inputs": by_counter.get(INPUTS, {}).get("", 0),
        "turns": by_counter.get(TURNS, {}),
        "failures": [_failure(name, count) for name, count in by_counter.get(FAILURES, {}).items()],
        "tools": [
            {"tool": tool, "calls": calls, "seconds": by_counter.get(TOOL_MS, {}).get(tool, 0) / 1000}
            for tool, calls in by_counter.get(TOOL_CALLS, {}).items()
        ],
        "models": [
            {"model": model, "responses": responses} | {name: by_counter.get(name, {}).get(model, 0) for name in TOKENS}
            for model, responses in by_counter.get(RESPONSES, {}).items()
        ],
        "waiting": row["waiting"],
        "unknown": row["unknown"],
        "turn_seconds": _durations(by_counter.get(TURN_TIMES, {})),
        "tool_seconds": _durations(by_counter.get(TOOL_TIMES, {})),
    }


def _failure(name: str, count: int) -> Mapping[str, object]:
    """Return the count of a counter's name, which is what failed and why."""
    what, _, reason = name.partition("/")
    return {"what": what, "reason": reason or OTHER, "count": count}


def _durations(bins: Mapping[str, int]) -> Mapping[str, object] | None:
    """Return the quantiles of a sketch's bins; None if nothing was measured."""
    found = quantiles(bins, (0.5, 0.99))
    if found is None:
        return None
    return {"count": sum(bins.values()), "p50": round(found[0] / 1000, 3), "p99": round(found[1] / 1000, 3)}


def _place(cursor: str) -> tuple[dt.datetime, str]:
    """Return the key of a cursor. Raises ProblemError (bad-cursor)."""
    at_ms, tenant = decode_cursor(cursor, (int, str))
    try:
        return moment_at(int(at_ms)), str(tenant)
    except OverflowError:
        raise ProblemError(foreign_cursor()) from None
