"""Plans: propose a version, approve or reject one. They are read with the other lists of a thread.

Both answer once they were folded: a version is the next one or is refused, and its first answer counts.
"""

from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from schemas.events import PlanProposed
from services.ingest.commands.accepting import plans as accept_plans
from services.ingest.commands.accepting.accept import AcceptLimits, Command
from services.ingest.commands.commands import Commands
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import NOT_FOUND, VIEWS_BEHIND, VIEWS_UNAVAILABLE, Problem, ProblemError
from services.ingest.http.requests import DecidePlan, ProposePlan
from services.ingest.routes.parameters import CommandParameters, ThreadPart, VersionPart, command_of, run
from services.ingest.routes.threads import TO_A_THREAD


@dataclass(frozen=True, slots=True)
class PlanRoutes:
    """These operations propose plans and decide on them."""

    tag: ClassVar = "plans"

    commands: Commands
    limits: AcceptLimits
    known: KnownThreads
    views: ViewsAndFold

    @operation(
        "POST",
        "/v1/threads/{thread}/plan",
        "threads:write",
        summary="Propose a plan, or another version of it",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=TO_A_THREAD,
    )
    async def propose_plan(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, body: ProposePlan
    ) -> Response:
        """Propose tasks that depend on each other. Each task runs as a child thread once the tasks that it depends on
        have succeeded. The thread's `plan_approval` decides whether the version is in force at once or waits for a
        decision. It replaces a version that waits. Once it is in force, tasks that it keeps by their id continue, those
        that had failed or were cancelled start again, and the others are stopped. Without `version` it becomes the next
        one; with a `version` that another plan has taken meanwhile: 409.
        """
        command = command_of(caller, "plan", thread, parameters)
        tasks = accept_plans.plan_of(body, self.limits)
        if isinstance(tasks, Problem):
            raise ProblemError(tasks)
        version = body.version
        if version is None:
            await self.known.require(thread)
            await self.known.catch_up(thread)
            facts = await self.views.plan_facts(thread, command.event_id(PlanProposed))
            version = accept_plans.next_version(facts, tasks)
        return await run(self.commands, accept_plans.propose_plan(command, tasks, version), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/plan/{version}/decision",
        "tools:decide",
        summary="Approve or reject a version of the plan",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, NOT_FOUND),
    )
    async def decide_plan(
        self,
        caller: Principal,
        thread: ThreadPart,
        version: VersionPart,
        parameters: CommandParameters,
        body: DecidePlan,
    ) -> Response:
        """Needs the scope `tools:decide`. The first answer in the log counts, whoever gives it, and holds for this
        version only. A later answer gets 409 with `decided` {by, decision, at, reason} and `plan` {version, status}.
        The reason of a rejection is shown to the model that proposed the version.
        """
        command = command_of(caller, f"plan/{version}/decision", thread, parameters)
        await self._require_version(command, version)
        return await run(self.commands, accept_plans.decide_plan(command, version, body), parameters)

    async def _require_version(self, command: Command, version: int) -> None:
        """Raises ProblemError if the thread or the version does not exist. While the views cannot say whether the
        version does, the command is recorded, and the fold decides.
        """
        await self.known.require(command.key)
        try:
            if await self._last_version(command) >= version:
                return
            await self.known.catch_up(command.key)
            if await self._last_version(command) >= version:
                return
        except ProblemError as error:
            if error.problem.type in {VIEWS_UNAVAILABLE, VIEWS_BEHIND}:
                return
            raise
        raise ProblemError(accept_plans.no_such_version(version))

    async def _last_version(self, command: Command) -> int:
        facts = await self.views.plan_facts(command.key, command.event_id(PlanProposed))
        return facts.last_version
