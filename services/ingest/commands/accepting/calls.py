"""Turn a request about a tool call into events: a decision, the result of a client tool, or a resolution. Pure, like
`accept`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from pydantic import JsonValue

from schemas.canonical import call_hash, canonical_json
from schemas.events import Edited, Event, ToolCallApproved, ToolCallDenied, ToolCallFinished, ToolCallResolved
from schemas.tools import CLIENT_POOL
from services.ingest.commands.accepting.accept import Accepted, AcceptLimits, CallFacts, Command, one, too_large
from services.ingest.http.problems import CALL_NOT_OPEN, NOT_FOUND, Problem
from services.ingest.http.requests import DecideCall, PostResult, ResolveCall

OF_DECISIONS = frozenset[type[Event]]({ToolCallApproved, ToolCallDenied})
"""Events that a decision about a call may become."""

EditProblem: TypeAlias = Callable[[str, Mapping[str, JsonValue]], Problem | None]
"""Returns why arguments do not fit a tool, or why that cannot be checked now."""


def decide_call(
    command: Command,
    call: str,
    request: DecideCall,
    facts: CallFacts | None,
    limits: AcceptLimits,
    edit_problem: EditProblem,
) -> Accepted | Problem:
    """Accept that a call is approved or denied. `facts` are needed for edited arguments alone: the call's hash covers
    the tool's name.

    The request names the hash of the call that the person saw. If the call has another one by now, the fold refuses the
    decision.
    """
    by = command.principal.actor
    if request.decision == "deny":
        denied = ToolCallDenied(call=call, call_hash=request.call_hash, by=by, reason=request.reason or "")
        return one(command, denied, judged=True, kinds=OF_DECISIONS)
    edited, refusal = None, None
    if request.args is not None:
        if facts is None:
            return no_such_call(call)
        problem = too_large("The edited argument list", len(canonical_json(request.args)), limits.input_bytes_max)
        if problem is not None:
            return problem
        refusal = edit_problem(facts.tool, request.args)
        edited = Edited(args=request.args, call_hash=call_hash(facts.tool, request.args))
    approved = ToolCallApproved(
        call=call, call_hash=request.call_hash, by=by, scope=request.scope, tool=request.tool, edited=edited
    )
    return replace(one(command, approved, judged=True, kinds=OF_DECISIONS), refusal=refusal)


def post_result(
    command: Command, call: str, request: PostResult, facts: CallFacts | None, limits: AcceptLimits
) -> Accepted | Problem:
    """Accept the result of a client tool. Calls in other pools are refused: a customer's backend never speaks for an
    executor.
    """
    if facts is None:
        return no_such_call(call)
    if facts.claim is None or facts.pool != CLIENT_POOL:
        return Problem(CALL_NOT_OPEN, f"The call {call} is not one of a client tool that waits for its result.")
    problem = too_large("The result", len(canonical_json(request.result)), limits.result_bytes_max)
    if problem is not None:
        return problem
    finished = ToolCallFinished(
        call=call, attempt=facts.attempt, claim=facts.claim, outcome=request.outcome, result=request.result
    )
    # Another attempt is another question: the key of an answer to an earlier one is good for this one, too.
    of_attempt = replace(command, route=f"{command.route}/{facts.attempt}")
    return one(of_attempt, finished, judged=True)


def resolve_call(command: Command, call: str, request: ResolveCall, limits: AcceptLimits) -> Accepted | Problem:
    """Accept what a person decided about a call whose outcome is unknown: run it again, or take this result."""
    problem = too_large("The result", len(canonical_json(request.result)), limits.result_bytes_max)
    if problem is not None:
        return problem
    resolved = ToolCallResolved(
        call=call, attempt=request.attempt, decision=request.decision, result=request.result, note=request.note
    )
    return one(command, resolved, judged=True)


def no_such_call(call: str) -> Problem:
    """Return the problem of a call that the thread does not have."""
    return Problem(NOT_FOUND, f"The thread has no tool call {call}.")
