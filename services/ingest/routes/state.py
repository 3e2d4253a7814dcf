"""GET /v1/threads/{id}/state: what the thread had come to at a seq."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from starlette.responses import Response

from services.ingest.commands.existence import KnownThreads
from services.ingest.http.answers import json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import Parameters, operation
from services.ingest.http.problems import (
    BAD_CURSOR,
    LOG_UNAVAILABLE,
    OF_READS,
    STATE_OUT_OF_REACH,
    THREAD_NOT_FOUND,
    VIEWS_BEHIND,
    ProblemError,
)
from services.ingest.http.thread_answers import StateAnswer
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.reads.state_at import StatesAt, beyond, to_json
from services.ingest.routes.parameters import AtLeast, ThreadPart
from services.ingest.streams.history import SEQ_MAX


class StateParameters(Parameters):
    at: Annotated[
        int | None, Field(description="A seq of the thread; 0 is before its first record.", ge=0, le=SEQ_MAX)
    ] = None
    at_least: AtLeast = None


@dataclass(frozen=True, slots=True)
class StateRoutes:
    """The folded state of a thread."""

    tag: ClassVar = "reads"

    known: KnownThreads
    states: StatesAt
    at_least: AtLeastWaits

    @operation(
        "GET",
        "/v1/threads/{thread}/state",
        "threads:read",
        summary="Read the thread's state at one of its records",
        answer=StateAnswer,
        problems=(THREAD_NOT_FOUND, BAD_CURSOR, STATE_OUT_OF_REACH, VIEWS_BEHIND, LOG_UNAVAILABLE, *OF_READS),
    )
    async def get_state(self, _caller: Principal, thread: ThreadPart, parameters: StateParameters) -> Response:
        """Read the folded control state after the record at `at`, and the items that a model was shown of the thread by
        then. Both are the same that a fold of the log gives. Without `at`, read the newest state. An earlier state is
        folded on request, within limits.
        """
        await self.at_least.wait(parameters.at_least, thread)
        await self.known.require_viewed(thread)
        state = await self.states.state(thread, parameters.at)
        if state is None:
            # The record may be in the log and not in the views yet: wait for the views, then ask once more.
            await self.known.catch_up(thread)
            state = await self.states.state(thread, parameters.at)
        if state is None:
            raise ProblemError(beyond(thread, parameters.at or 0))
        return json_answer(to_json(thread, state))
