"""What the live operations windows count: names of counters, and how an effect is counted. Pure.

A window's cell is a bag of counters by name, so that cells of several partitions or minutes are merged by adding what
has the same name. Where a name holds one that others chose (a tool, a model, a reason) that comes last.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from schemas.other_topics.effects import Facts, ThreadEffect

MINUTE_MS: Final = 60_000
OTHER: Final = "other"
"""Stands for the names beyond a cell's limit."""

INPUTS: Final = "inputs"
TURNS: Final = "turns"
FAILURES: Final = "failures"
TOOL_CALLS: Final = "tool_calls"
TOOL_MS: Final = "tool_ms"
RESPONSES: Final = "responses"
TOKENS: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
TURN_TIMES: Final = "turn_times"
TOOL_TIMES: Final = "tool_times"
TIMES: Final = (TURN_TIMES, TOOL_TIMES)
"""Counters of a sketch's bins: how many turns, and how many calls, took how long."""

FAILED_CALLS: Final = frozenset({"failed", "timed_out"})


class Counted(NamedTuple):
    """An effect adds this to a counter."""

    counter: str
    name: str
    """Empty for a counter without one."""
    value: int


class Took(NamedTuple):
    """A turn or call took so long; the sketch of that name counts it."""

    times: str
    milliseconds: int


def counted(effect: ThreadEffect) -> Iterator[Counted | Took]:
    """Yield what one effect adds, apart from how many calls wait or are unknown: those are sums over a thread, not
    events of a minute.
    """
    facts = effect.facts
    if effect.effect == "applied" and effect.type == "tool_call.lost":
        yield Counted(FAILURES, "tool_call/lost", 1)
    if facts is None:
        return
    if facts.inputs:
        yield Counted(INPUTS, "", facts.inputs)
    if facts.turn_ms is not None:
        yield from _of_turn(facts, facts.turn_ms)
    if facts.error_kind is not None:
        yield Counted(FAILURES, f"step/{facts.error_kind}", 1)
    if facts.tool_ms is not None:
        yield from _of_call(facts, facts.tool_ms)
    if facts.input_tokens is not None:
        model = facts.model or OTHER
        yield Counted(RESPONSES, model, 1)
        for name in TOKENS:
            tokens = getattr(facts, name)
            if tokens:
                yield Counted(name, model, tokens)


def is_counted(effect: ThreadEffect) -> bool:
    """Return whether the effect changes any window. Most records do not, and are skipped undecoded further."""
    facts = effect.facts
    return (facts is not None and bool(facts.waiting or facts.unknown)) or next(counted(effect), None) is not None


def _of_turn(facts: Facts, turn_ms: int) -> Iterator[Counted | Took]:
    yield Counted(TURNS, facts.outcome or OTHER, 1)
    if facts.outcome == "failed":
        yield Counted(FAILURES, f"turn/{facts.reason or OTHER}", 1)
    yield Took(TURN_TIMES, turn_ms - (facts.waited_ms or 0))


def _of_call(facts: Facts, tool_ms: int) -> Iterator[Counted | Took]:
    tool = facts.tool or OTHER
    yield Counted(TOOL_CALLS, tool, 1)
    yield Counted(TOOL_MS, tool, tool_ms)
    if facts.outcome in FAILED_CALLS:
        yield Counted(FAILURES, f"tool_call/{facts.outcome}", 1)
    yield Took(TOOL_TIMES, tool_ms)
