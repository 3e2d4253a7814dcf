"""Forking, rewinding and compacting a thread."""

from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from services.chassis.clock import draw_id
from services.ingest.commands.accepting import lineage as accept_lineage
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.commands import Commands
from services.ingest.commands.forks import ForkAt, Forks
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.http.answers import CommandAnswer, ForkAnswer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import FORK_POINT, NOT_FORKABLE, STATE_OUT_OF_REACH
from services.ingest.http.requests import CompactThread, ForkThread, RewindThread
from services.ingest.routes.parameters import CommandParameters, ThreadPart, command_of, run
from services.ingest.routes.threads import NAMING_ARTIFACTS, TO_A_THREAD

FORKING = """
A thread that begins with what this one had come to at a record or the end of a turn, by reference: nothing is copied,
and usage and effects of what it inherits stay this thread's. It takes the configuration that was in force there, and
neither queue, plan nor approvals. A fork of an open turn has what is settled of it; `fork` in the answer says at which
seq it was made and why. The thread may be closed or archived, and may be a fork itself.
"""
REWINDING = """
Turns after `to_turn` leave the context. They stay in history, and can be forked from; the next turn goes on counting
from the last that there was. Where a turn is open: 409.
"""
COMPACTING = """
A summary by the thread's model takes the place of what was said so far, before anything else is asked of it; history
stays whole. A second request changes nothing while one stands. Where the model gives no summary in a few tries, the
thread goes on as it was, with `context.compaction_failed` among its events. Where a step is open: 409.
"""


@dataclass(frozen=True, slots=True)
class LineageRoutes:
    tag: ClassVar = "threads"

    commands: Commands
    limits: AcceptLimits
    artifacts: NamedArtifacts
    forks: Forks

    @operation(
        "POST",
        "/v1/threads/{thread}/fork",
        "threads:write",
        summary="Fork a thread",
        description=FORKING,
        answer=ForkAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, *NAMING_ARTIFACTS, NOT_FORKABLE, FORK_POINT, STATE_OUT_OF_REACH),
        body_required=False,
    )
    async def fork_thread(
        self, caller: Principal, parent: ThreadPart, parameters: CommandParameters, body: ForkThread
    ) -> Response:
        sent = parameters.key
        command = accept_lineage.fork_command(caller, parent, sent or draw_id(), keyed=sent is not None)
        at = ForkAt() if body.at is None else ForkAt(body.at.seq, body.at.turn)
        point = await self.forks.point(parent, command, at)
        sizes = await self.artifacts.sizes(caller.tenant, body.input, body.config)
        accepted = accept_lineage.fork_thread(command, body, point, self.limits, sizes)
        return await run(self.commands, accepted, parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/rewind",
        "threads:write",
        summary="Go back to an earlier turn",
        description=REWINDING,
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=TO_A_THREAD,
    )
    async def rewind_thread(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, body: RewindThread
    ) -> Response:
        command = command_of(caller, "rewind", thread, parameters)
        return await run(self.commands, accept_lineage.rewind_thread(command, body), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/compact",
        "threads:write",
        summary="Ask for a summary in place of the conversation so far",
        description=COMPACTING,
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=TO_A_THREAD,
        body_required=False,
    )
    async def compact_thread(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, _body: CompactThread
    ) -> Response:
        command = command_of(caller, "compact", thread, parameters)
        return await run(self.commands, accept_lineage.compact_thread(command), parameters)
