"""What requests about tool calls become: decisions, results of client tools, resolutions. Pure, like `accept`."""

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

EditProblem: TypeAlias = Callable[[str, Mapping[str, JsonValue]], Problem | None]
"""Why arguments cannot be those of a call of this tool, or cannot be checked."""


def decide_call(
    command: Command,
    call: str,
    request: DecideCall,
    facts: CallFacts | None,
    limits: AcceptLimits,
    edit_problem: EditProblem,
) -> Accepted | Problem:
    """`facts` are needed for edited arguments alone: the hash of a call is of its tool's name too."""
    by = command.principal.actor
    if request.decision == "deny":
        denied = ToolCallDenied(call=call, call_hash=request.call_hash, by=by, reason=request.reason or "")
        return one(command, denied, judged=True, kinds=OF_DECISIONS)
    edited, refusal = None, None
    if request.args is not None:
        if facts is None:
            return no_such_call(call)
        problem = too_large("Edited arguments", len(canonical_json(request.args)), limits.input_bytes_max)
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
    """Only for client tools: a customer's backend never speaks for an executor."""
    if facts is None:
        return no_such_call(call)
    if facts.claim is None or facts.pool != CLIENT_POOL:
        return Problem(CALL_NOT_OPEN, f"The call {call} is not one of a client tool that waits for its result.")
    problem = too_large("A result", len(canonical_json(request.result)), limits.result_bytes_max)
    if problem is not None:
        return problem
    finished = ToolCallFinished(
        call=call, attempt=facts.attempt, claim=facts.claim, outcome=request.outcome, result=request.result
    )
    # Another attempt is another question: the key of an answer to an earlier one is good for this one, too.
    of_attempt = replace(command, route=f"{command.route}/{facts.attempt}")
    return one(of_attempt, finished, judged=True)


def resolve_call(command: Command, call: str, request: ResolveCall, limits: AcceptLimits) -> Accepted | Problem:
    problem = too_large("A result", len(canonical_json(request.result)), limits.result_bytes_max)
    if problem is not None:
        return problem
    resolved = ToolCallResolved(
        call=call, attempt=request.attempt, decision=request.decision, result=request.result, note=request.note
    )
    return one(command, resolved, judged=True)


def no_such_call(call: str) -> Problem:
    return Problem(NOT_FOUND, f"The thread has no tool call {call}.")
