"""What a turn did to files: shown as a diff, and put back."""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from collections.abc import Sequence

import orjson
from fastapi import APIRouter
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import ThreadKey
from services.chassis.artifacts.store import ArtifactsUnavailableError
from services.ingest.dependencies import Dependencies, authorized, dependencies
from services.ingest.files import turn_diff as file_history
from services.ingest.files.turn_diff import FileDiff, NetChange, RecordedChange, net_changes
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer, DiffAnswer
from services.ingest.http.problems import (
    ARTIFACTS_UNAVAILABLE,
    CATALOG_NOT_LOADED,
    FILES_CHANGED_SINCE,
    NOT_FOUND,
    NOTHING_TO_RESTORE,
    QUEUE_FULL,
    THREAD_CLOSING,
    THREAD_NOT_FOUND,
    TOOL_NOT_IN_CATALOG,
    VIEWS_BEHIND,
    Problem,
    ProblemError,
)
from services.ingest.http.requests import RestoreFiles
from services.ingest.routes.parameters import (
    JSON,
    command_of,
    number_of,
    read_body,
    reader_of,
    run,
    store_unavailable,
    thread_key,
)
from services.ingest.routes.threads import TO_A_THREAD

router = APIRouter(tags=["file history"])

DIFF = "text/x-diff"
DIFFING = """
What the built-in tools that change files (`write_file`, `apply_patch`, `restore_files`) made of each file, from before
its first change in the turn to after its last. What commands changed was not recorded. With `Accept: text/x-diff` it is
the diff alone, which `git apply` takes. Its size is bounded; what was left out is marked.
"""
RESTORING = """
Each file gets what it held before the turn, and its permissions; one that the turn created is deleted. It is a recorded
tool call in a turn of its own, approved by who asks, which asks no model. Where a turn is open or inputs wait: 409.
Where a later recorded change touched one of the files: 409 with `files`. What was changed unrecorded, the call itself
finds: it then fails with a list, and no file has changed. Needs the scopes `threads:write` and `tools:decide`.
"""


@router.get(
    "/v1/threads/{thread}/turns/{turn}/diff",
    summary="Show what a turn did to files",
    description=DIFFING,
    responses=openapi.answers(
        DiffAnswer,
        (200,),
        (THREAD_NOT_FOUND, NOT_FOUND, VIEWS_BEHIND, ARTIFACTS_UNAVAILABLE, *openapi.OF_READS),
        content={DIFF: {"schema": {"type": "string"}}},
    ),
)
async def get_diff(request: Request) -> Response:
    found, principal = await reader_of(request)
    key = thread_key(principal.tenant, request.path_params["thread"])
    turn = number_of(request, "turn")
    net = net_changes(await _changes(found, key, turn))
    try:
        diffs = await found.diffs.of(key.tenant, net)
    except ArtifactsUnavailableError as error:
        raise ProblemError(store_unavailable(error)) from error
    if DIFF in request.headers.get("accept", ""):
        text = "".join(diff.text for diff in diffs)
        return Response(text, media_type=DIFF, headers={"x-content-type-options": "nosniff"})
    return Response(orjson.dumps(_body(key, turn, net, diffs)), media_type=JSON)


@router.post(
    "/v1/threads/{thread}/turns/{turn}/restore",
    summary="Put the files back that a turn changed",
    description=RESTORING,
    responses=openapi.answers(
        CommandAnswer,
        (200, 202),
        (
            *TO_A_THREAD,
            NOT_FOUND,
            THREAD_CLOSING,
            QUEUE_FULL,
            FILES_CHANGED_SINCE,
            NOTHING_TO_RESTORE,
            TOOL_NOT_IN_CATALOG,
            CATALOG_NOT_LOADED,
        ),
    ),
    openapi_extra=openapi.command(RestoreFiles, required=False),
)
async def restore_files(request: Request) -> Response:
    turn = number_of(request, "turn")
    await authorized(request, "tools:decide")
    command = await command_of(request, f"turns/{turn}/restore")
    await read_body(request, RestoreFiles, optional=True)
    found = dependencies(request)
    net = net_changes(await _changes(found, command.key, turn))
    latest = await found.file_histories.latest(command.key, [one.path for one in net]) if net else {}
    refusal = found.tools.problem_of_name(file_history.RESTORE_TOOL)
    return await run(request, file_history.restore(command, turn, net, latest, refusal))


async def _changes(found: Dependencies, key: ThreadKey, turn: int) -> list[RecordedChange]:
    """All that were in the log when the request came. Raises ProblemError."""
    await found.known.require_viewed(key)
    await found.known.catch_up(key)
    changes = await found.file_histories.of_turn(key, turn)
    if changes is None:
        raise ProblemError(Problem(NOT_FOUND, f"The thread has no turn {turn}."))
    return changes


def _body(key: ThreadKey, turn: int, net: Sequence[NetChange], diffs: Sequence[FileDiff]) -> dict[str, JsonValue]:
    files: list[JsonValue] = [
        {
            "path": one.path,
            "status": one.status,
            "before": one.before,
            "after": one.after,
            "mode": one.mode,
            "calls": list(one.calls),
            "binary": diff.binary,
            "cut": diff.cut,
            "missing": diff.missing,
            "diff": diff.text,
        }
        for one, diff in zip(net, diffs, strict=True)
    ]
    return {"thread": key.thread, "turn": turn, "files": files}
