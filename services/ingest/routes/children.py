"""Child threads: begin one for a person or a backend. They are listed with the other lists of a thread."""

from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from services.chassis.clock import draw_id
from services.ingest.commands.accepting import children as accept_children
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.accepting.lineage import ForkPoint
from services.ingest.commands.commands import Commands
from services.ingest.commands.forks import ForkAt, Forks
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import CHILD_TOO_DEEP, NOT_FORKABLE, STATE_OUT_OF_REACH, THREAD_CLOSING
from services.ingest.http.requests import CreateChild
from services.ingest.routes.parameters import CommandParameters, ThreadPart, run
from services.ingest.routes.threads import NAMING_ARTIFACTS, TO_A_THREAD


@dataclass(frozen=True, slots=True)
class ChildRoutes:
    """Child threads that people and backends create."""

    tag: ClassVar = "threads"

    commands: Commands
    limits: AcceptLimits
    artifacts: NamedArtifacts
    forks: Forks
    depth_max: int
    """How many parents a thread may have above it."""

    @operation(
        "POST",
        "/v1/threads/{thread}/children",
        "threads:write",
        summary="Create a child thread",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, *NAMING_ARTIFACTS, NOT_FORKABLE, CHILD_TOO_DEEP, THREAD_CLOSING, STATE_OUT_OF_REACH),
        body_required=False,
    )
    async def create_child(
        self, caller: Principal, parent: ThreadPart, parameters: CommandParameters, body: CreateChild
    ) -> Response:
        """Create a thread below this one, with the configuration that is in force here, patched by `config`. The child
        begins empty: unlike a fork, it inherits nothing that was said. No tool call waits for its end, unlike for
        children that a model creates with the tool `spawn_thread`.
        """
        sent = parameters.key
        command = accept_children.child_command(caller, parent, sent or draw_id(), keyed=sent is not None)

        async def attempt(point: ForkPoint) -> Response:
            sizes = await self.artifacts.sizes(caller.tenant, body.input, body.config)
            accepted = accept_children.create_child(command, body, point, self.limits, self.depth_max, sizes)
            return await run(self.commands, accepted, parameters)

        # A child begins with the configuration that its parent has now, which is what a fork of the parent would read.
        return await self.forks.run_at(parent, command, ForkAt(), attempt)
