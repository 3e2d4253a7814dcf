"""What follows from a downstream's answer about an unknown `reconcilable` call: pure.

The downstream is asked by the call's idempotency key: at once, and again later while its answer is inconclusive.

    done        believed at any time: the call succeeded
    not_done    believed only when no executor can still be working on the call. The one that was declared lost may be
                about to do it, and then a second run would do it twice. Then the call runs again, or has failed if its
                turn is over or it has no attempt left
    unknown     asked again after growing pauses, and left to people in the end
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from schemas.events import ToolCallResolved
from schemas.state import Call, ThreadState, unknown_calls
from services.chassis.backoff import backoff_seconds
from services.chassis.sanitize import sanitize_json, sanitize_text
from services.tool_executor.claiming.claim import is_cancelling
from services.tool_executor.output import INLINE_BYTES_MAX, structured_result, text_result

NOTE_CHARACTERS_MAX: Final = 1_000
"""A note is for people who look at the call; a hook that prints a whole page must not fill the record with it."""
SHOWN_CHARACTERS_MAX: Final = 100
FIRST_SECONDS: Final = 2.0
"""A downstream that was restarted can mostly answer after a moment."""
MOST_SECONDS: Final = 300.0
TRIES: Final = 10
"""The nine pauses between ten answers are 810 s in all: a downstream has a quarter of an hour to come back."""

Status: TypeAlias = Literal["done", "not_done", "unknown"]


@dataclass(frozen=True, slots=True)
class ReconcileLimits:
    grace_seconds: float
    """Time after a call's lease and timeout during which `not_done` is not believed yet."""
    lease_seconds: int
    """The lease of a call whose record does not name one."""
    first_seconds: float = FIRST_SECONDS
    """The pause before the second question. It doubles with each further one."""
    most_seconds: float = MOST_SECONDS
    """The longest pause."""
    tries: int = TRIES
    """Inconclusive answers after which the call is left to people."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a downstream says about a call."""

    status: Status
    result: JsonValue = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class AskAgain:
    at_ms: int
    is_try: bool
    """Whether the answer was inconclusive, which counts towards the limit of tries."""


@dataclass(frozen=True, slots=True)
class LeaveToPeople:
    note: str


Step: TypeAlias = ToolCallResolved | AskAgain | LeaveToPeople


def unknown_reconcilable(state: ThreadState, pool: str) -> list[Call]:
    """Return the calls that an executor of this pool should ask about."""
    if state.status == "importing":
        return []
    return [call for call in unknown_calls(state) if call.effect == "reconcilable" and call.pool == pool]


def answer_of(said: object) -> Answer:
    """Return the answer in what a hook said. Anything that does not fit is `unknown`, with the reason as its note."""
    if not isinstance(said, Mapping):
        return Answer("unknown", note=f"the answer is no JSON object: {_shown(said)}")
    note = said.get("note")
    words = sanitize_text(note)[:NOTE_CHARACTERS_MAX] if isinstance(note, str) else None
    match said.get("status"):
        case "done":
            return Answer("done", _tool_result(said.get("result")), words)
        case "not_done":
            return Answer("not_done", note=words)
        case "unknown":
            return Answer("unknown", note=words)
        case other:
            return Answer("unknown", note=f"its `status` is {_shown(other)}, not done, not_done or unknown")


def over_at_ms(call: Call, limits: ReconcileLimits) -> int:
    """Return the time after which no executor can be working on the call.

    The worst case is a claim that was read back at the very end of its lease and a tool that then used its whole
    timeout. The grace is for killing it, and for clocks that differ.
    """
    lease_ms = 1000 * (call.lease_seconds or limits.lease_seconds)
    return call.claimed_ms + lease_ms + call.timeout_ms + int(1000 * limits.grace_seconds)


def next_step(
    state: ThreadState,
    call: Call,
    answer: Answer,
    asked_ms: int,
    now_ms: int,
    asked: int,
    tries: int,
    limits: ReconcileLimits,
) -> Step:
    """Return what to do after this answer.

    `asked_ms` is when the answer was asked for: a slow answer describes that moment, not the present. `asked` counts
    the questions so far, this one included. `tries` counts the inconclusive answers before this one.
    """
    again_at_ms = now_ms + delay_ms(limits, asked)
    match answer.status:
        case "done":
            return _resolved(call, "succeeded", "the downstream says that it was done", answer)
        case "not_done" if asked_ms < over_at_ms(call, limits):
            return AskAgain(max(now_ms, min(again_at_ms, over_at_ms(call, limits))), is_try=False)
        case "not_done":
            why_not = why_not_again(state, call)
            if why_not is None:
                return _resolved(call, "again", "the downstream says that it was not done", answer)
            return _resolved(call, "failed", f"the downstream says that it was not done; {why_not}", answer)
        case _:
            if tries + 1 >= limits.tries:
                return LeaveToPeople(answer.note or "the downstream cannot say")
            return AskAgain(again_at_ms, is_try=True)


def why_not_again(state: ThreadState, call: Call) -> str | None:
    """Return why the call must not run again, or None if it may."""
    if is_cancelling(state, call):
        return "it does not run again, since its turn is over or being cancelled"
    return "it was its last attempt" if call.last else None


def delay_ms(limits: ReconcileLimits, asked: int) -> int:
    """Return the pause after the downstream has been asked so often."""
    return int(1000 * backoff_seconds(asked, limits.first_seconds, limits.most_seconds))


def _resolved(
    call: Call, decision: Literal["succeeded", "failed", "again"], what: str, answer: Answer
) -> ToolCallResolved:
    note = what if answer.note is None else f"{what}: {answer.note}"
    return ToolCallResolved(call=call.call, attempt=call.attempt, decision=decision, result=answer.result, note=note)


def _tool_result(result: object) -> JsonValue:
    """Return the result in the form of tool results, shortened as they are. One that has that form stays as it is."""
    if result is None:
        return None
    if isinstance(result, str):
        return text_result(result)
    storable = sanitize_json(result)
    if isinstance(storable, dict) and isinstance(storable.get("content"), list) and _fits(storable):
        return storable
    return structured_result([], storable)


def _fits(value: JsonValue) -> bool:
    return len(json.dumps(value, ensure_ascii=False).encode()) <= INLINE_BYTES_MAX


def _shown(value: object) -> str:
    return sanitize_text(repr(value))[:SHOWN_CHARACTERS_MAX]
