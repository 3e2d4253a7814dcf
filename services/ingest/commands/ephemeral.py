"""Ephemeral threads: the API reads them from the fold, as of the log's end, because no view holds them.

They are on a topic of their own, live for an hour at most and leave no history.
"""

from collections.abc import Sequence
from typing import Protocol

import orjson
from pydantic import JsonValue

from schemas.ids import EventId, ThreadKey
from schemas.state import Call, ThreadState
from services.chassis.threads.states import StatesUnavailableError
from services.ingest.commands.accepting.accept import CallFacts, Stored
from services.ingest.commands.accepting.plans import PlanFacts
from services.ingest.commands.commands import FoundCommands
from services.ingest.commands.existence import ThreadRow
from services.ingest.commands.refusals import CallStanding, InputStanding, PlanStanding
from services.ingest.commands.views import CommandViews, format_ms
from services.ingest.http.problems import VIEWS_BEHIND, Problem, ProblemError, no_such_thread
from services.ingest.streams.live import BehindError
from services.ingest.streams.watched_thread import FoldEndedError


class NewestStates(Protocol):
    """The live reader, as far as this module needs it."""

    async def newest(self, key: ThreadKey) -> ThreadState:
        """Return the thread's state as of the log's end; NOTHING if there is no such thread.

        Raises StatesUnavailableError, BehindError, FoldEndedError.
        """
        ...


class ViewsAndFold:
    """Answers questions about ephemeral threads from the fold, and questions about all others from the views.

    Implements `existence.ThreadRows`, `commands.EarlierCommands` and `refusals.Standings`, so that commands need not
    know the difference.
    """

    def __init__(self, views: CommandViews, states: NewestStates) -> None:
        self._views = views
        self._states = states

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        return await self._views.wait_for(partition, offset, timeout_seconds)

    async def reached(self, partition: int | None, value: int, key: ThreadKey | None, timeout_seconds: float) -> bool:
        """Return whether the position can be read; an ephemeral thread is always read at the log's end."""
        if key is not None and key.ephemeral:
            return True
        return await self._views.reached(partition, value, key, timeout_seconds)

    async def thread_row(self, key: ThreadKey, partition: int) -> ThreadRow:
        if not key.ephemeral:
            return await self._views.thread_row(key, partition)
        state = await self._state(key)
        is_closing = state.status in {"closing", "closed"}
        return ThreadRow(state.offset + 1, state.offset, state.exists, len(state.queue), state.seq, is_closing)

    async def find(self, key: ThreadKey, partition: int, ids: Sequence[EventId]) -> FoundCommands:
        """Find earlier tries of a command. For an ephemeral thread the fold recognises them later: it remembers a
        thread's last commands.
        """
        return FoundCommands({}, None) if key.ephemeral else await self._views.find(key, partition, ids)

    async def find_after(
        self, key: ThreadKey, event_id: EventId, partition: int, offset: int, timeout_seconds: float
    ) -> Stored | None:
        if key.ephemeral:
            return None
        return await self._views.find_after(key, event_id, partition, offset, timeout_seconds)

    async def call_facts(self, key: ThreadKey, call: str) -> CallFacts | None:
        if not key.ephemeral:
            return await self._views.call_facts(key, call)
        found = await self._call(key, call)
        return None if found is None else CallFacts(found.tool, found.attempt, found.pool or None, found.claim)

    async def call_standing(self, key: ThreadKey, call: str) -> CallStanding | None:
        if not key.ephemeral:
            return await self._views.call_standing(key, call)
        found = await self._call(key, call)
        if found is None:
            return None
        return CallStanding(
            call, found.tool, found.status, found.call_hash, found.attempt, None, None, outcome=found.outcome
        )

    async def plan_facts(self, key: ThreadKey, event_id: EventId) -> PlanFacts:
        if not key.ephemeral:
            return await self._views.plan_facts(key, event_id)
        state = await self._state(key)
        return PlanFacts(state.plan.last_version, None, state.commands.get(event_id))

    async def plan_standing(self, key: ThreadKey, version: int) -> PlanStanding | None:
        if not key.ephemeral:
            return await self._views.plan_standing(key, version)
        plan = (await self._state(key)).plan
        rejected = "rejected" if plan.last_version == version and plan.last_answer == "rejected" else "superseded"
        status = {plan.waiting: "waiting", plan.in_force: "in_force"}.get(version, rejected)
        return PlanStanding(version, status, None)

    async def input_standing(self, key: ThreadKey, input_id: str) -> InputStanding | None:
        if not key.ephemeral:
            return await self._views.input_standing(key, input_id)
        queued = any(item.input == input_id for item in (await self._state(key)).queue)
        return InputStanding(input_id, "queued", None, None) if queued else None

    async def thread(self, key: ThreadKey) -> bytes:
        """Return an ephemeral thread as JSON, in the form of a thread's row. Raises ProblemError (thread-not-found)."""
        state = await self._state(key)
        if not state.exists:
            raise ProblemError(no_such_thread())
        return orjson.dumps(thread_shown(key, state))

    async def _call(self, key: ThreadKey, call: str) -> Call | None:
        return (await self._state(key)).calls.get(call)

    async def _state(self, key: ThreadKey) -> ThreadState:
        """Return the folded state. Raises ProblemError (views-behind) if the fold cannot reach the log's end now."""
        try:
            return await self._states.newest(key)
        except (StatesUnavailableError, BehindError, FoldEndedError) as error:
            raise ProblemError(Problem(VIEWS_BEHIND, f"The thread cannot be read now: {error}. Try again.")) from error


def thread_shown(key: ThreadKey, state: ThreadState) -> dict[str, JsonValue]:
    """Return the members of `GET /v1/threads/{thread}`, which have the names of the view's columns."""
    statuses = [call.status for call in state.calls.values()]
    lineage = state.lineage
    return {
        "thread": key.thread,
        "status": state.status,
        "title": state.title or None,
        "labels": dict(state.labels),
        "archived": state.archived,
        "created_at": format_ms(state.created_ms),
        "updated_at": format_ms(state.updated_ms),
        "seq": state.seq,
        "turn": None if state.turn is None else state.turn.turn,
        "last_turn": state.last_turn,
        "last_outcome": state.last_outcome,
        "queued": len(state.queue),
        "waiting_calls": statuses.count("waiting"),
        "unknown_calls": statuses.count("unknown"),
        "config": None if state.config is None else state.config.model_dump(mode="json"),
        "config_seq": state.config_seq,
        "lineage_kind": None if lineage is None else lineage.kind,
        "parent": None if lineage is None else lineage.parent,
        "parent_seq": None if lineage is None else lineage.seq,
        "parent_call": None if lineage is None else lineage.call,
        "parent_plan_version": None if lineage is None else lineage.plan_version,
        "parent_task": None if lineage is None else lineage.task,
        "depth": 0 if lineage is None else lineage.depth,
        "plan_version": state.plan.in_force,
    }
