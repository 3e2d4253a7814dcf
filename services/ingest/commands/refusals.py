"""Explain why a command took no effect, beyond the fold's reason: what had been decided before, and by whom.

The views are asked once they hold the refused record. If they are too slow or away, the answer has the fold's reason
alone: an explanation is a courtesy, and its absence no reason to fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from schemas.canonical import canonical_json
from schemas.events import (
    Event,
    InputWithdrawn,
    PlanApproved,
    PlanRejected,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallFinished,
    ToolCallResolved,
)
from schemas.ids import ThreadKey
from services.ingest.commands.accepting.accept import Stored
from services.ingest.http.problems import ProblemError


class Decided(NamedTuple):
    """This says who decided what, and when."""

    by: str | None
    """The actor, such as `user:ann` or `policy:never`; None if time decided."""
    decision: str
    at: str | None
    reason: str | None

    def to_json(self) -> dict[str, JsonValue]:
        return self._asdict()


@dataclass(frozen=True, slots=True)
class CallStanding:
    """A tool call as the views show it."""

    call: str
    tool: str
    status: str
    call_hash: str
    """The hash in force: the last edit counts."""
    attempt: int
    approval: Decided | None
    """The decision about the call; None before it."""
    resolution: Decided | None
    """What a person decided about an unknown outcome; None if nobody did."""
    outcome: str | None = None
    settled_at: str | None = None
    result: JsonValue = None
    settled_by: Stored | None = None
    """The record that settled the call."""


@dataclass(frozen=True, slots=True)
class InputStanding:
    """An input as the views show it."""

    input: str
    status: str
    """One of queued, taken, withdrawn and discarded."""
    turn: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class PlanStanding:
    """A version of a plan as the views show it."""

    version: int
    status: str
    """One of waiting, in_force, rejected and superseded."""
    decided: Decided | None


class Standings(Protocol):
    """The views, as this module needs them. All methods raise ProblemError (views-unavailable)."""

    async def wait_for(self, partition: int, offset: int, timeout_seconds: float) -> bool:
        """Return whether the views hold the partition's records below the offset, after waiting as long as allowed."""
        ...

    async def call_standing(self, key: ThreadKey, call: str) -> CallStanding | None:
        """Return the call; None if the thread has no such call."""
        ...

    async def input_standing(self, key: ThreadKey, input_id: str) -> InputStanding | None:
        """Return the input; None if the thread has no such input."""
        ...

    async def plan_standing(self, key: ThreadKey, version: int) -> PlanStanding | None:
        """Return the version; None if the plan has no such version."""
        ...


class Explanation(NamedTuple):
    """What a refusal says beside the fold's reason."""

    more: Mapping[str, JsonValue]
    """Members of the problem."""
    sentence: str = ""
    """A sentence for the problem's detail."""


NO_EXPLANATION = Explanation({})


class Refusals:
    """Explains refusals from the views."""

    def __init__(self, standings: Standings, wait_seconds: float) -> None:
        self._standings = standings
        self._wait_seconds = wait_seconds

    async def explain(self, key: ThreadKey, event: Event, refused: Stored) -> Explanation | Stored:
        """Explain why the event took no effect. `refused` is its record, as the fold judged it.

        The result is another record if that one brought the same before: then this command has come true as well.
        """
        try:
            next_offset = refused.offset + 1
            if not key.ephemeral and not await self._standings.wait_for(
                refused.partition, next_offset, self._wait_seconds
            ):
                return NO_EXPLANATION
            match event:
                case ToolCallApproved() | ToolCallDenied() | ToolCallFinished() | ToolCallResolved():
                    call = await self._standings.call_standing(key, event.call)
                    return NO_EXPLANATION if call is None else explain_call(event, refused, call)
                case InputWithdrawn():
                    found = await self._standings.input_standing(key, event.input)
                    return NO_EXPLANATION if found is None else explain_input(found)
                case PlanApproved() | PlanRejected():
                    plan = await self._standings.plan_standing(key, event.plan_version)
                    return NO_EXPLANATION if plan is None else explain_plan(plan)
                case _:
                    return NO_EXPLANATION
        except ProblemError:
            return NO_EXPLANATION


def explain_call(event: Event, refused: Stored, call: CallStanding) -> Explanation | Stored:
    """Explain why a decision or a result about a call was refused; or return the record that brought the same
    result.
    """
    if isinstance(event, ToolCallFinished) and call.settled_by is not None and _is_same(event, call, refused):
        return call.settled_by
    more: dict[str, JsonValue] = {
        "call": {
            "call": call.call,
            "tool": call.tool,
            "status": call.status,
            "attempt": call.attempt,
            "call_hash": call.call_hash,
        }
    }
    is_decision = isinstance(event, ToolCallApproved | ToolCallDenied)
    decided = call.approval if is_decision else call.resolution
    sentences = []
    if decided is not None:
        more["decided"] = decided.to_json()
        by = "the time that was given for it" if decided.by is None else decided.by
        sentences.append(f"It was decided by {by}: {decided.decision}.")
    if call.settled_at is not None:
        more["recorded"] = {"outcome": call.outcome, "at": call.settled_at, "result": call.result}
        sentences.append(f"The call is settled: {call.outcome}.")
    elif is_decision and decided is None:
        sentences.append(f"The hash in force is {call.call_hash}.")
    return Explanation(more, " ".join(sentences))


def explain_input(found: InputStanding) -> Explanation:
    """Explain why an input could not be withdrawn."""
    more: dict[str, JsonValue] = {"input_status": found.status}
    if found.status != "taken":
        return Explanation(more, f"The input is {found.status}.")
    step = "" if found.step is None else f", step {found.step}"
    more |= {"turn": found.turn, "step": found.step}
    return Explanation(more, f"Turn {found.turn}{step} has taken it.")


def explain_plan(found: PlanStanding) -> Explanation:
    """Explain why a version of a plan could not be decided."""
    more: dict[str, JsonValue] = {"plan": {"version": found.version, "status": found.status}}
    if found.decided is None:
        return Explanation(more, f"The version is {found.status}, without an answer.")
    more["decided"] = found.decided.to_json()
    return Explanation(more, f"It was {found.decided.decision} by {found.decided.by}; it is {found.status}.")


def _is_same(event: ToolCallFinished, call: CallStanding, refused: Stored) -> bool:
    """Return whether the same result had settled the call, perhaps as the result of another attempt."""
    settled_by = call.settled_by
    if settled_by is None or settled_by.kind != refused.kind:
        return False
    if settled_by.data_hash == refused.data_hash:
        return True
    return call.outcome == event.outcome and canonical_json(call.result) == canonical_json(event.result)
