"""Inputs and the turns that take them: submit, withdraw, cancel."""

import re
from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from services.ingest.commands.accepting import accept
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.commands import Commands
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import operation
from services.ingest.http.problems import NOT_FOUND, QUEUE_FULL, THREAD_CLOSING, Problem, ProblemError
from services.ingest.http.requests import CancelTurn, SubmitInput, WithdrawInput
from services.ingest.routes.parameters import CommandParameters, InputPart, ThreadPart, TurnPart, command_of, run
from services.ingest.routes.threads import NAMING_ARTIFACTS, TO_A_THREAD

_INPUT = re.compile(r"[!-~]{1,200}")
"""Ids of inputs are visible ASCII. Anything else names no input, and is not worth a record in the log."""


@dataclass(frozen=True, slots=True)
class InputRoutes:
    """Inputs, and the turns that take them."""

    tag: ClassVar = "inputs"

    commands: Commands
    limits: AcceptLimits
    artifacts: NamedArtifacts

    @operation(
        "POST",
        "/v1/threads/{thread}/inputs",
        "threads:write",
        summary="Submit an input",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, THREAD_CLOSING, QUEUE_FULL, *NAMING_ARTIFACTS),
    )
    async def submit_input(
        self, caller: Principal, thread: ThreadPart, parameters: CommandParameters, body: SubmitInput
    ) -> Response:
        """Submit what a person says to the thread. The `mode` decides when a turn takes it:

        - `queue` waits for the next turn.
        - `steer` is taken by the open turn before its next step. Without an open turn it starts one. With
          `expected_turn` it is refused with 409 unless that turn is open.
        - `interrupt` cancels the open turn and starts the next.
        - `reject` is refused with 409 while a turn is open or inputs wait.

        `reject`, and `steer` with `expected_turn`, are answered once their effect is known. A thread that is closing
        takes no input: 409. `GET …/inputs` shows which turn and step took each input.
        """
        command = command_of(caller, "inputs", thread, parameters)
        sizes = await self.artifacts.sizes(caller.tenant, body)
        return await run(self.commands, accept.submit_input(command, body, self.limits, sizes), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/inputs/{input}/withdraw",
        "threads:write",
        summary="Withdraw an input that no turn has taken",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, NOT_FOUND),
        body_required=False,
    )
    async def withdraw_input(
        self,
        caller: Principal,
        thread: ThreadPart,
        input_id: InputPart,
        parameters: CommandParameters,
        _body: WithdrawInput,
    ) -> Response:
        """Remove an input from the queue. If it has left the queue: 409 with `input_status` and, once a turn has taken
        it, with `turn` and `step`.
        """
        command = command_of(caller, f"inputs/{input_id}/withdraw", thread, parameters)
        if _INPUT.fullmatch(input_id) is None:
            raise ProblemError(Problem(NOT_FOUND, "The thread has no such input."))
        return await run(self.commands, accept.withdraw_input(command, input_id), parameters)

    @operation(
        "POST",
        "/v1/threads/{thread}/turns/{turn}/cancel",
        "threads:write",
        summary="Cancel an open turn",
        answer=CommandAnswer,
        statuses=(200, 202),
        problems=(*TO_A_THREAD, NOT_FOUND),
        body_required=False,
    )
    async def cancel_turn(
        self, caller: Principal, thread: ThreadPart, turn: TurnPart, parameters: CommandParameters, body: CancelTurn
    ) -> Response:
        """Drop the model call, settle waiting approvals, and stop running tools. What had finished stays. Steering
        inputs that no step has taken stay queued unless `discard` is set. A second cancel changes nothing and gets the
        same answer as the first, with the effect `superseded`. A turn that has ended cannot be cancelled: 409.
        """
        command = command_of(caller, f"turns/{turn}/cancel", thread, parameters)
        return await run(self.commands, accept.cancel_turn(command, turn, body), parameters)
