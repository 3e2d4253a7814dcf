"""What a turn did to files: shown as a diff, and put back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import ThreadKey
from services.chassis.artifacts.store import ArtifactsUnavailableError
from services.ingest.commands.commands import Commands
from services.ingest.commands.existence import KnownThreads
from services.ingest.commands.tools import Tools
from services.ingest.files import turn_diff
from services.ingest.files.named_artifacts import store_unavailable
from services.ingest.files.recorded_changes import Diffs, FileHistories
from services.ingest.files.turn_diff import FileDiff, NetChange, RecordedChange, net_changes
from services.ingest.http.answers import ChangedFile, CommandAnswer, DiffAnswer, json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import (
    ARTIFACTS_UNAVAILABLE,
    CATALOG_NOT_LOADED,
    FILES_CHANGED_SINCE,
    NOT_FOUND,
    NOTHING_TO_RESTORE,
    OF_READS,
    QUEUE_FULL,
    THREAD_CLOSING,
    THREAD_NOT_FOUND,
    TOOL_NOT_IN_CATALOG,
    VIEWS_BEHIND,
    Problem,
    ProblemError,
)
from services.ingest.http.requests import RestoreFiles
from services.ingest.routes.parameters import CommandParameters, ThreadPart, TurnPart, command_of, run
from services.ingest.routes.threads import TO_A_THREAD

DIFF: Final = "text/x-diff"


@dataclass(frozen=True, slots=True)
class FileHistoryRoutes:
    """What turns did to files."""

    tag: ClassVar = "file history"

    commands: Commands
    known: KnownThreads
    tools: Tools
    histories: FileHistories
    diffs: Diffs

    @operation(
        "GET",
        "/v1/threads/{thread}/turns/{turn}/diff",
        "threads:read",
        summary="Show what a turn did to files",
        answer=DiffAnswer,
        problems=(THREAD_NOT_FOUND, NOT_FOUND, VIEWS_BEHIND, ARTIFACTS_UNAVAILABLE, *OF_READS),
        content={DIFF: {"schema": {"type": "string"}}},
    )
    async def get_diff(self, _caller: Principal, thread: ThreadPart, turn: TurnPart, request: Request) -> Response:
        """Compare each file before its first change in the turn with the file after its last change, for changes by the
        built-in tools (`write_file`, `apply_patch`, `restore_files`). Changes by commands are not recorded. With
        `Accept: text/x-diff` the answer is the diff alone, which `git apply` accepts. The size is bounded; what was
        left out is marked.
        """
        net = net_changes(await self._changes(thread, turn))
        try:
            diffs = await self.diffs.of(thread.tenant, net)
        except ArtifactsUnavailableError as error:
            raise ProblemError(store_unavailable(error)) from error
        if DIFF in request.headers.get("accept", ""):
            text = "".join(diff.text for diff in diffs)
            return Response(text, media_type=DIFF, headers={"x-content-type-options": "nosniff"})
        return json_answer(_answer(thread, turn, net, diffs))

    @operation(
        "POST",
        "/v1/threads/{thread}/turns/{turn}/restore",
        "tools:decide",
        "threads:write",
        summary="Restore the files that a turn changed",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(
            *TO_A_THREAD,
            NOT_FOUND,
            THREAD_CLOSING,
            QUEUE_FULL,
            FILES_CHANGED_SINCE,
            NOTHING_TO_RESTORE,
            TOOL_NOT_IN_CATALOG,
            CATALOG_NOT_LOADED,
        ),
        body_required=False,
    )
    async def restore_files(
        self, caller: Principal, thread: ThreadPart, turn: TurnPart, parameters: CommandParameters, _body: RestoreFiles
    ) -> Response:
        """Needs the scopes `threads:write` and `tools:decide`. Each file gets the content and the permissions that it
        had before the turn; a file that the turn created is deleted. This is a recorded tool call in a turn of its own,
        approved by the caller, and asks no model. While a turn is open or inputs wait: 409. If a later recorded change
        touched one of the files: 409 with `files`. If a file was changed without a record, the call itself fails with a
        list, and changes no file.
        """
        command = command_of(caller, f"turns/{turn}/restore", thread, parameters)
        # What the views do not show yet, the tool finds: it compares each file with what the call expects.
        net = net_changes(await self._changes(thread, turn))
        latest = await self.histories.latest(thread, [one.path for one in net]) if net else {}
        refusal = self.tools.problem_of_name(turn_diff.RESTORE_TOOL)
        return await run(self.commands, turn_diff.restore(command, turn, net, latest, refusal), parameters)

    async def _changes(self, key: ThreadKey, turn: int) -> list[RecordedChange]:
        """Return all changes of the turn that were in the log when the request came.

        Raises ProblemError: thread-not-found, not-found if there is no such turn, views-behind.
        """
        await self.known.require_viewed(key)
        await self.known.catch_up(key)
        changes = await self.histories.of_turn(key, turn)
        if changes is None:
            raise ProblemError(Problem(NOT_FOUND, f"The thread has no turn {turn}."))
        return changes


def _answer(key: ThreadKey, turn: int, net: Sequence[NetChange], diffs: Sequence[FileDiff]) -> DiffAnswer:
    files = [
        ChangedFile(
            path=one.path,
            status=one.status,
            before=one.before,
            after=one.after,
            mode=one.mode,
            calls=list(one.calls),
            binary=diff.binary,
            cut=diff.cut,
            missing=diff.missing,
            diff=diff.text,
        )
        for one, diff in zip(net, diffs, strict=True)
    ]
    return DiffAnswer(thread=key.thread, turn=turn, files=files)
