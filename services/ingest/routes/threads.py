"""Threads: create, describe, configure, archive, close, read, list."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from starlette.responses import Response

from schemas.canonical import unstorable
from services.chassis.clock import draw_id
from services.ingest.commands.accepting import accept
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.commands import Commands
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.http.answers import CommandAnswer, json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import Parameters, operation
from services.ingest.http.problems import (
    ARTIFACT_MISSING,
    ARTIFACTS_UNAVAILABLE,
    BAD_CURSOR,
    IDEMPOTENCY_CONFLICT,
    INVALID_REQUEST,
    LOG_UNAVAILABLE,
    NOT_APPLIED,
    OF_BODIES,
    OF_READS,
    THREAD_NOT_FOUND,
    TOO_MANY_APPENDS,
    VIEWS_BEHIND,
    ProblemError,
    no_such_thread,
)
from services.ingest.http.requests import CloseThread, CreateThread, PatchThread
from services.ingest.http.thread_answers import Status, ThreadAnswer, ThreadPage
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.reads.reads import Reads, ThreadFilter
from services.ingest.routes.parameters import (
    AtLeast,
    AtLeastParameter,
    CommandParameters,
    Cursor,
    Limit,
    PageSizes,
    ThreadPart,
    command_of,
    invalid,
    moment_of,
    run,
)

OF_COMMANDS = (
    VIEWS_BEHIND,
    *OF_BODIES,
    NOT_APPLIED,
    IDEMPOTENCY_CONFLICT,
    TOO_MANY_APPENDS,
    LOG_UNAVAILABLE,
    *OF_READS,
)
NAMING_ARTIFACTS = (ARTIFACT_MISSING, ARTIFACTS_UNAVAILABLE)
"""What a command may answer if an input or a configuration in it names artifacts."""
TO_A_THREAD = (THREAD_NOT_FOUND, *OF_COMMANDS)
"""What every command to an existing thread may answer."""


class ThreadsParameters(Parameters):
    cursor: Cursor = None
    limit: Limit = None
    archived: bool | None = None
    """Only archived threads, or only those that are not. Without it both."""
    status: Status | None = None
    """Only threads with this status."""
    updated_after: Annotated[
        str | None,
        Field(description="Only threads that changed after this time: RFC 3339, with a zone.", max_length=60),
    ] = None
    label: Annotated[
        list[str] | None, Field(description="`name:value`. Only threads that have all of these labels.", max_length=16)
    ] = None
    at_least: AtLeast = None


@dataclass(frozen=True, slots=True)
class ThreadRoutes:
    """These operations create, read, change and close threads."""

    tag: ClassVar = "threads"

    commands: Commands
    limits: AcceptLimits
    artifacts: NamedArtifacts
    known: KnownThreads
    views: ViewsAndFold
    reads: Reads
    at_least: AtLeastWaits
    pages: PageSizes

    @operation(
        "POST",
        "/v1/threads",
        "threads:write",
        summary="Create a thread, with its first input if there is one",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*OF_COMMANDS, *NAMING_ARTIFACTS),
    )
    async def create_thread(self, caller: Principal, parameters: CommandParameters, body: CreateThread) -> Response:
        """Create a thread. If the request has an `input`, the thread's first turn starts at once."""
        sent = parameters.key
        command = accept.create_command(caller, sent or draw_id(), keyed=sent is not None)
        sizes = await self.artifacts.sizes(caller.tenant, body.input, body.config)
        return await run(self.commands, accept.create_thread(command, body, self.limits, sizes), parameters)

    @operation(
        "PATCH",
        "/v1/threads/{thread}",
        "threads:write",
        summary="Describe, configure or archive a thread",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, *NAMING_ARTIFACTS),
    )
    async def patch_thread(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, body: PatchThread
    ) -> Response:
        """Change the title, the labels, the configuration, or whether the thread is archived. The configuration takes a
        merge patch (RFC 7396), which is in force from the next turn.
        """
        command = command_of(caller, "patch", thread, parameters)
        # The sizes are not needed: this checks that the skills of the configuration exist, and keeps them.
        await self.artifacts.sizes(caller.tenant, config=body.config)
        return await run(self.commands, accept.patch_thread(command, body, self.limits), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/close",
        "threads:write",
        summary="Close a thread for good",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=TO_A_THREAD,
        body_required=False,
    )
    async def close_thread(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, body: CloseThread
    ) -> Response:
        """Close the thread: it takes no new input and starts no new turn. The open turn is cancelled and the queue is
        discarded.
        """
        command = command_of(caller, "close", thread, parameters)
        return await run(self.commands, accept.close_thread(command, body), parameters)

    @operation(
        "GET",
        "/v1/threads/{thread}",
        "threads:read",
        summary="Read a thread",
        answer=ThreadAnswer,
        problems=(THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *OF_READS),
    )
    async def get_thread(self, _caller: Principal, thread: ThreadPart, parameters: AtLeastParameter) -> Response:
        """Read the thread's status, counters and configuration, and the thread that it was forked or created from."""
        await self.at_least.wait(parameters.at_least, thread)
        if thread.ephemeral:
            # The views do not hold ephemeral threads; they are read from the fold.
            return json_answer(await self.views.thread(thread))
        row = await self.reads.thread(thread)
        if row is None:
            # The views may lag behind the log: wait for what is in the log by now, then ask once more.
            await self.known.look_up(thread)
            row = await self.reads.thread(thread)
        if row is None:
            raise ProblemError(no_such_thread())
        return json_answer(row)

    @operation(
        "GET",
        "/v1/threads",
        "threads:read",
        summary="List threads, the newest first",
        answer=ThreadPage,
        problems=(BAD_CURSOR, INVALID_REQUEST, VIEWS_BEHIND, *OF_READS),
    )
    async def list_threads(self, caller: Principal, parameters: ThreadsParameters) -> Response:
        """Filters narrow the list; a page with a filter may be short or empty although more threads follow, so continue
        until `next_cursor` is null.
        """
        chosen = ThreadFilter(
            parameters.archived,
            parameters.status,
            moment_of("updated_after", parameters.updated_after),
            _labels(parameters.label),
        )
        await self.at_least.wait(parameters.at_least, None)
        limit = self.pages.limit(parameters.limit)
        page = await self.reads.threads(caller.tenant, chosen, parameters.cursor, limit)
        return json_answer(page.to_json())


def _labels(texts: list[str] | None) -> dict[str, str] | None:
    """Return the labels of a filter by name. A value may contain colons, a name may not.

    Raises ProblemError (invalid-request).
    """
    if texts is None:
        return None
    labels = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not name or not colon or unstorable(text) is not None:
            raise ProblemError(invalid("query.label", "must be name:value"))
        labels[name] = value
    return labels
