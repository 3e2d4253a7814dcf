"""Tool calls: decide on one that waits for approval, post a client tool's result, settle one that is unknown.

All of them answer once they were folded: the first in the log counts, the others learn that it was.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from starlette.responses import Response

from services.ingest.commands.accepting import calls as accept_calls
from services.ingest.commands.accepting.accept import Accepted, AcceptLimits, CallFacts, Command
from services.ingest.commands.commands import Commands
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads
from services.ingest.commands.tools import Tools
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import (
    ARGUMENTS_DO_NOT_FIT,
    CALL_NOT_OPEN,
    CATALOG_NOT_LOADED,
    NOT_FOUND,
    TOOL_NOT_IN_CATALOG,
    VIEWS_BEHIND,
    VIEWS_UNAVAILABLE,
    ProblemError,
)
from services.ingest.http.requests import DecideCall, PostResult, ResolveCall
from services.ingest.routes.parameters import CallPart, CommandParameters, ThreadPart, command_of, run
from services.ingest.routes.threads import TO_A_THREAD


@dataclass(frozen=True, slots=True)
class ToolCallRoutes:
    """Decisions, results and resolutions of tool calls."""

    tag: ClassVar = "tool calls"

    commands: Commands
    limits: AcceptLimits
    known: KnownThreads
    views: ViewsAndFold
    tools: Tools

    @operation(
        "POST",
        "/v1/threads/{thread}/tool-calls/{call}/decision",
        "tools:decide",
        summary="Approve or deny a tool call",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, NOT_FOUND, TOOL_NOT_IN_CATALOG, ARGUMENTS_DO_NOT_FIT, CATALOG_NOT_LOADED),
    )
    async def decide_call(
        self, caller: Principal, thread: ThreadPart, call: CallPart, parameters: CommandParameters, body: DecideCall
    ) -> Response:
        """Needs the scope `tools:decide`. The decision is bound to the hash of the call that was looked at. The first
        answer in the log counts, whoever gives it. A later answer gets 409 with `decided` {by, decision, at, reason},
        with `call` as it is now, and with `recorded` {outcome, at, result} once the call is settled. Edited `args` have
        to fit the tool's schema.
        """
        command = command_of(caller, f"tool-calls/{call}/decision", thread, parameters)
        if body.args is not None:
            facts = await self._facts(command, call)
        else:
            facts = None
            await self._require_call(command, call)
        accepted = accept_calls.decide_call(command, call, body, facts, self.limits, self.tools.problem_of_edit)
        refusal = None if body.tool is None else self.tools.problem_of_name(body.tool)
        if isinstance(accepted, Accepted) and refusal is not None:
            accepted = replace(accepted, refusal=refusal)
        return await run(self.commands, accepted, parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/tool-calls/{call}/result",
        "threads:write",
        summary="Post the result of a client tool's call",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, NOT_FOUND, CALL_NOT_OPEN),
    )
    async def post_result(
        self, caller: Principal, thread: ThreadPart, call: CallPart, parameters: CommandParameters, body: PostResult
    ) -> Response:
        """Answer a call of a tool of the pool `client`, which runs in your backend. The first result counts: sending it
        again gets the same answer, and a different result gets 409 with `recorded` {outcome, at, result}.
        """
        command = command_of(caller, f"tool-calls/{call}/result", thread, parameters)
        # The result has to name the claim that is in force, not one that a later dispatch has replaced. Whoever follows
        # the thread may have seen that dispatch before the views hold it, so the views are waited for.
        await self.known.require(thread)
        await self.known.catch_up(thread)
        facts = await self.views.call_facts(thread, call)
        return await run(self.commands, accept_calls.post_result(command, call, body, facts, self.limits), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/tool-calls/{call}/resolution",
        "tools:decide",
        summary="Settle a call that may or may not have run",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, NOT_FOUND),
    )
    async def resolve_call(
        self, caller: Principal, thread: ThreadPart, call: CallPart, parameters: CommandParameters, body: ResolveCall
    ) -> Response:
        """Needs the scope `tools:decide`. Say that the call succeeded or failed, and with which result; or run it
        `again`, while its turn is open; or give it up (`abandoned`). The resolution is bound to the attempt that was
        looked at. A later answer gets 409 with `decided` {by, decision, at, reason}, with `call` as it is now, and with
        `recorded` {outcome, at, result} once the call is settled.
        """
        command = command_of(caller, f"tool-calls/{call}/resolution", thread, parameters)
        await self._require_call(command, call)
        return await run(self.commands, accept_calls.resolve_call(command, call, body, self.limits), parameters)

    async def _require_call(self, command: Command, call: str) -> None:
        """Raises ProblemError if the thread or the call does not exist. While the views cannot say whether the call
        does, the command is recorded, and the fold decides.
        """
        await self.known.require(command.key)
        try:
            facts = await self._facts(command, call)
        except ProblemError as error:
            if error.problem.type in {VIEWS_UNAVAILABLE, VIEWS_BEHIND}:
                return
            raise
        if facts is None:
            raise ProblemError(accept_calls.no_such_call(call))

    async def _facts(self, command: Command, call: str) -> CallFacts | None:
        """Return what the views know about the call. If they lack it, they may lag behind: wait for them once."""
        await self.known.require(command.key)
        facts = await self.views.call_facts(command.key, call)
        if facts is not None:
            return facts
        await self.known.catch_up(command.key)
        return await self.views.call_facts(command.key, call)
