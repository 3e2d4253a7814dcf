"""Inputs and the turns that take them: submit, withdraw, cancel; and what became of a command."""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from services.ingest.commands.accepting import accept
from services.ingest.dependencies import dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.problems import (
    ARTIFACT_MISSING,
    ARTIFACTS_UNAVAILABLE,
    NOT_FOUND,
    QUEUE_FULL,
    THREAD_CLOSING,
    Problem,
    ProblemError,
)
from services.ingest.http.requests import CancelTurn, SubmitInput, WithdrawInput
from services.ingest.routes.parameters import command_of, number_of, read_body, run, sizes_of_named
from services.ingest.routes.threads import TO_A_THREAD

router = APIRouter(tags=["inputs"])

_INPUT = re.compile(r"[!-~]{1,200}")

MODES = """
`queue` waits for the next turn. `steer` is taken by the open turn before its next step; without one it starts a turn.
`interrupt` cancels the open turn and starts the next. `reject` is refused with 409 while a turn is open or inputs wait.
With `expected_turn`, which needs `steer`, it is refused with 409 unless that turn is open. The last two answer once
they were folded. A thread that is closing takes none: 409. `GET …/inputs` shows which turn and step took each.
"""


@router.post(
    "/v1/threads/{thread}/inputs",
    summary="Submit an input",
    description=MODES,
    responses=openapi.answers(
        CommandAnswer, (200, 202), (*TO_A_THREAD, THREAD_CLOSING, QUEUE_FULL, ARTIFACT_MISSING, ARTIFACTS_UNAVAILABLE)
    ),
    openapi_extra=openapi.command(SubmitInput),
)
async def submit_input(request: Request) -> Response:
    command = await command_of(request, "inputs")
    wanted = await read_body(request, SubmitInput)
    sizes = await sizes_of_named(request, command.key.tenant, wanted)
    return await run(request, accept.submit_input(command, wanted, dependencies(request).limits, sizes))


@router.post(
    "/v1/threads/{thread}/inputs/{input}/withdraw",
    summary="Take an input back that no turn has taken",
    description="Where it has left the queue: 409 with `input_status` and, once it was taken, the `turn` and `step`.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND)),
    openapi_extra=openapi.command(WithdrawInput, required=False),
)
async def withdraw_input(request: Request) -> Response:
    input_id = request.path_params["input"]
    command = await command_of(request, f"inputs/{input_id}/withdraw")
    await read_body(request, WithdrawInput, optional=True)
    if _INPUT.fullmatch(input_id) is None:
        raise ProblemError(Problem(NOT_FOUND, "The thread has no such input."))
    return await run(request, accept.withdraw_input(command, input_id))


@router.post(
    "/v1/threads/{thread}/turns/{turn}/cancel",
    summary="Cancel an open turn",
    description="The model call is dropped, waiting approvals are settled, running tools are stopped; what had "
    "finished stays. Untaken steering inputs stay queued unless `discard` is set. A second cancel changes nothing and "
    "is answered as the first, with the effect `superseded`; a turn that has ended cannot be cancelled: 409.",
    responses=openapi.answers(CommandAnswer, (200, 202), TO_A_THREAD),
    openapi_extra=openapi.command(CancelTurn, required=False),
)
async def cancel_turn(request: Request) -> Response:
    turn = number_of(request, "turn")
    command = await command_of(request, f"turns/{turn}/cancel")
    wanted = await read_body(request, CancelTurn, optional=True)
    return await run(request, accept.cancel_turn(command, turn, wanted))
