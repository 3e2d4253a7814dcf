"""These operations fork, rewind and compact a thread."""

from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from services.chassis.clock import draw_id
from services.ingest.commands.accepting import lineage as accept_lineage
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.accepting.lineage import ForkPoint
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


@dataclass(frozen=True, slots=True)
class LineageRoutes:
    """Forks, and changes of a thread's context."""

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
        answer=ForkAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, *NAMING_ARTIFACTS, NOT_FORKABLE, FORK_POINT, STATE_OUT_OF_REACH),
        body_required=False,
    )
    async def fork_thread(
        self, caller: Principal, parent: ThreadPart, parameters: CommandParameters, body: ForkThread
    ) -> Response:
        """Create a thread that begins with the context of this one at a record or at the end of a turn. The context is
        inherited by reference: nothing is copied, and the usage and effects of what it inherits still belong to this
        thread. The fork has the configuration that was in force there, and no queue, plan or approvals. A fork of an
        open turn contains what is settled of it; `fork` in the answer says at which seq it was made, and why. The
        thread may be closed or archived, and may be a fork itself.
        """
        sent = parameters.key
        command = accept_lineage.fork_command(caller, parent, sent or draw_id(), keyed=sent is not None)
        at = ForkAt() if body.at is None else ForkAt(body.at.seq, body.at.turn)

        async def attempt(point: ForkPoint) -> Response:
            sizes = await self.artifacts.sizes(caller.tenant, body.input, body.config)
            accepted = accept_lineage.fork_thread(command, body, point, self.limits, sizes)
            return await run(self.commands, accepted, parameters)

        return await self.forks.run_at(parent, command, at, attempt)

    @operation(
        "POST",
        "/v1/threads/{thread}/rewind",
        "threads:write",
        summary="Go back to an earlier turn",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=TO_A_THREAD,
    )
    async def rewind_thread(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, body: RewindThread
    ) -> Response:
        """Remove the turns after `to_turn` from the context. They stay in the history and can be forked from; the
        numbers of later turns continue after the last turn. While a turn is open: 409.
        """
        command = command_of(caller, "rewind", thread, parameters)
        return await run(self.commands, accept_lineage.rewind_thread(command, body), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/compact",
        "threads:write",
        summary="Replace the conversation so far by a summary",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=TO_A_THREAD,
        body_required=False,
    )
    async def compact_thread(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, _body: CompactThread
    ) -> Response:
        """Replace the conversation so far by a summary of the thread's model, before the model is asked anything else.
        The history stays complete. A second request changes nothing while the first waits. If the model gives no
        summary in a few tries, the thread continues unchanged, with `context.compaction_failed` among its events. While
        a step is open: 409.
        """
        command = command_of(caller, "compact", thread, parameters)
        return await run(self.commands, accept_lineage.compact_thread(command), parameters)
