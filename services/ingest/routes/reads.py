"""Lists of a thread and of a tenant, and what became of a command."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import asyncpg
from starlette.responses import Response

from schemas.ids import ThreadKey, parse_event_id
from services.ingest.commands.existence import KnownThreads
from services.ingest.commands.tools import Tools
from services.ingest.http.answers import CommandRecord, json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import (
    BAD_CURSOR,
    NOT_FOUND,
    OF_READS,
    THREAD_NOT_FOUND,
    VIEWS_BEHIND,
    Problem,
    ProblemError,
)
from services.ingest.http.thread_answers import ChildPage, InputPage, ItemPage, PlanPage
from services.ingest.http.turn_answers import ApprovalPage, StepPage, ToolCallPage, TurnPage, UnknownCallPage
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.reads.reads import (
    APPROVALS,
    CHILDREN,
    INPUTS,
    ITEMS,
    PLAN,
    STEPS,
    TOOL_CALLS,
    TURNS,
    UNKNOWN_CALLS,
    List,
    Reads,
)
from services.ingest.routes.parameters import (
    AtLeastParameter,
    EventPart,
    PageParameters,
    PageSizes,
    ThreadPageParameters,
    ThreadPart,
    thread_key,
)

OF_A_THREAD = (THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *OF_READS)

More: TypeAlias = Callable[[asyncpg.Record], Mapping[str, object]]
"""Returns what an entry shows beside its row."""


@dataclass(frozen=True, slots=True)
class ReadRoutes:
    """Lists that are read from the views, and the effect of a command."""

    tag: ClassVar = "reads"

    known: KnownThreads
    reads: Reads
    tools: Tools
    at_least: AtLeastWaits
    pages: PageSizes

    @operation(
        "GET",
        "/v1/threads/{thread}/inputs",
        "threads:read",
        summary="List inputs, and which turn and step took them",
        answer=InputPage,
        problems=OF_A_THREAD,
    )
    async def list_inputs(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """Inputs that a turn took at its start have no step. `dropped` names the event that removed an input from the
        queue before it reached a model.
        """
        return await self._page(INPUTS, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/items",
        "threads:read",
        summary="List what was said: messages, reasoning, calls, results",
        answer=ItemPage,
        problems=OF_A_THREAD,
    )
    async def list_items(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """Items that a rewind or a compaction has removed from the context stay in the list, with the seq that removed
        them.
        """
        return await self._page(ITEMS, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/turns",
        "threads:read",
        summary="List the thread's turns",
        answer=TurnPage,
        problems=OF_A_THREAD,
    )
    async def list_turns(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """Each turn has its status, its outcome, the inputs that it took, and the tokens that it used."""
        return await self._page(TURNS, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/steps",
        "threads:read",
        summary="List the model calls of the thread's turns",
        answer=StepPage,
        problems=OF_A_THREAD,
    )
    async def list_steps(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """Each step has its attempts, its last error, and the tokens that the provider counted."""
        return await self._page(STEPS, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/tool-calls",
        "threads:read",
        summary="List the thread's tool calls, with their results",
        answer=ToolCallPage,
        problems=OF_A_THREAD,
    )
    async def list_tool_calls(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """Each call has its arguments, its approval, its attempts and its result."""
        return await self._page(TOOL_CALLS, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/children",
        "threads:read",
        summary="List the thread's child threads, in the order of their ids",
        answer=ChildPage,
        problems=OF_A_THREAD,
    )
    async def list_children(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """`parent_call` or `parent_task` names what the child works for; both are null if a person or a backend created
        it. The parent of a fork is in `GET /v1/threads/{thread}`.
        """
        return await self._page(CHILDREN, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/plan",
        "threads:read",
        summary="List the versions of the thread's plan, the newest first",
        answer=PlanPage,
        problems=OF_A_THREAD,
    )
    async def get_plan(self, caller: Principal, thread: ThreadPart, parameters: PageParameters) -> Response:
        """Each version has who proposed it, who decided on it, when and why, and its tasks. A version that came in
        force has the status, the child thread and the result of each task. At most one version is `in_force`, and at
        most one is `waiting`.
        """
        return await self._page(PLAN, caller, thread, parameters)

    @operation(
        "GET",
        "/v1/approvals",
        "threads:read",
        summary="List calls that wait for a person's approval",
        answer=ApprovalPage,
        problems=OF_A_THREAD,
    )
    async def list_approvals(self, caller: Principal, parameters: ThreadPageParameters) -> Response:
        """The list covers all threads of the tenant, or one thread. Answer a call with `POST
        …/tool-calls/{call}/decision` and its `call_hash`, through any instance and from any client; the first answer in
        the log counts.
        """
        key = None if parameters.thread is None else thread_key(caller.tenant, parameters.thread)
        # A call that waits was not dispatched yet, so no record names its effect class: the operator's policy does.
        return await self._page(
            APPROVALS, caller, key, parameters, lambda row: {"effect": self.tools.effect(row["tool"])}
        )

    @operation(
        "GET",
        "/v1/unknown-calls",
        "threads:read",
        summary="List calls that may or may not have run",
        answer=UnknownCallPage,
        problems=OF_A_THREAD,
    )
    async def list_unknown_calls(self, caller: Principal, parameters: ThreadPageParameters) -> Response:
        """The list covers all threads of the tenant, or one thread. Settle a call with `POST
        …/tool-calls/{call}/resolution` and its `attempt`. `again` is possible while `turn_status` is `open`.
        """
        key = None if parameters.thread is None else thread_key(caller.tenant, parameters.thread)
        return await self._page(UNKNOWN_CALLS, caller, key, parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}/commands/{event_id}",
        "threads:read",
        summary="Read the effect of a command",
        answer=CommandRecord,
        problems=(*OF_A_THREAD, NOT_FOUND),
    )
    async def get_command(
        self, _caller: Principal, thread: ThreadPart, event_id: EventPart, parameters: AtLeastParameter
    ) -> Response:
        """Find the command by the id of its event, which the command's answer contains. The answer is 404 until the
        views hold the event.
        """
        await self.at_least.wait(parameters.at_least, thread)
        await self.known.require_viewed(thread)
        parsed = parse_event_id(event_id)
        record = None if parsed is None else await self.reads.command(thread, parsed)
        if record is None:
            raise ProblemError(Problem(NOT_FOUND, "The views hold no command with this id in the thread."))
        return json_answer(record)

    async def _page(
        self,
        listed: List,
        caller: Principal,
        key: ThreadKey | None,
        parameters: PageParameters | ThreadPageParameters,
        more: More | None = None,
    ) -> Response:
        """Answer a page of a thread or, without a key, of all threads of the tenant."""
        await self.at_least.wait(parameters.at_least, key)
        thread = None if key is None else key.thread
        limit = self.pages.limit(parameters.limit)
        page = await self.reads.page(listed, caller.tenant, thread, parameters.cursor, limit)
        if key is not None and not page.rows:
            # Only an empty page needs this: a row is proof enough that the thread exists.
            await self.known.require_viewed(key)
        return json_answer(page.to_json(more))
