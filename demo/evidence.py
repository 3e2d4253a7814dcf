"""What the demo claims, each claim worked out from what happened. Pure: evidence in, findings out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from demo.findings import Finding
from demo.imported import TOOLS, GoneOn
from demo.repository import UnittestRun
from schemas.codec import Record
from schemas.events import (
    Event,
    InputSubmitted,
    StepFinished,
    StepStarted,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnEnded,
)
from schemas.thread import Effect

SECONDS_MAX: Final = 120.0
SECOND_PERSON: Final = "user:bob"

Checksums = Mapping[str, tuple[int, str]]
"""Rows and a checksum over all of their columns, by view."""
EventT = TypeVar("EventT", bound=Event)


class Logged(NamedTuple):
    """A record as the log has it, and what the fold makes of it."""

    seq: int
    record: Record
    effect: Effect


class Seen(NamedTuple):
    """A record as the watching client saw it."""

    seq: int
    id: str
    effect: str


@dataclass(frozen=True, slots=True)
class Kill:
    service: str
    step: int
    """In which the model was asked at that time."""


@dataclass(slots=True)
class Evidence:
    is_scripted: bool
    """Else a real model decided how the session went."""
    tests_before: UnittestRun
    tests_after: UnittestRun | None = None
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    """Connections of the watching client."""
    kills: list[Kill] = field(default_factory=list)
    """While a model answered."""
    interrupted: str | None = None
    """The idempotency key of the call in the midst of which the tool-executor was killed."""
    steering: str | None = None
    """The input by which a second person steered the turn."""
    approvals_listed: list[str] = field(default_factory=list)
    """The calls that the API listed as waiting, before the second person decided."""
    told_of_decisions: dict[str, str] = field(default_factory=dict)
    """Call → who decided first, as whoever came later was told."""
    unknown_listed: list[str] = field(default_factory=list)
    released: Sequence[str] = ()
    """The idempotency keys in the ledger of the releases, outside of all this."""
    log: Sequence[Logged] = ()
    shell_runs: Sequence[str] = ()
    """The idempotency keys that the script's shell commands wrote down."""
    views_before: Checksums = field(default_factory=dict)
    views_after: Checksums = field(default_factory=dict)
    gone_on: Sequence[GoneOn] = ()
    """Sessions that were recorded elsewhere."""
    verified: tuple[int, str] = (-1, "it was not asked")
    """Exit status of `threadlog verify --all`, and its last line."""
    seconds: float = 0.0

    def applied(self, kind: type[EventT]) -> list[EventT]:
        """What took effect, as the fold of the log has it."""
        return [data for _, data, _ in self.applied_at(kind)]

    def applied_at(self, kind: type[EventT]) -> list[tuple[int, EventT, str]]:
        """With its seq, and who did it."""
        return [
            (each.seq, each.record.data, each.record.actor)
            for each in self.log
            if each.effect == "applied" and isinstance(each.record.data, kind)
        ]


def findings(evidence: Evidence) -> list[Finding]:
    return [
        _turn(evidence),
        _tests(evidence),
        _seqs(evidence),
        _calls(evidence),
        _runtime(evidence),
        _executor(evidence),
        _steering(evidence),
        _approval(evidence),
        _unknown(evidence),
        _imports(evidence),
        _views(evidence),
        _verified(evidence),
        _seconds(evidence),
    ]


def _turn(evidence: Evidence) -> Finding:
    ends = evidence.applied(TurnEnded)
    told = ", ".join([f"{end.outcome}: {end.reason}" if end.reason else end.outcome for end in ends])
    found = f"{told or 'it never ended'}, {len(evidence.applied(StepFinished))} steps"
    return Finding("the turn completed", found, [end.outcome for end in ends] == ["completed"])


def _tests(evidence: Evidence) -> Finding:
    claim, before, after = "the repository's tests pass now", evidence.tests_before, evidence.tests_after
    if after is None:
        return Finding(claim, "they were not run", False)
    return Finding(claim, f"before: {before.summary}; now: {after.summary}", after.passed and not before.passed)


def _seqs(evidence: Evidence) -> Finding:
    logged = [(each.seq, str(each.record.id), str(each.effect)) for each in evidence.log]
    seen = [tuple(each) for each in evidence.seen]
    found = f"{len(seen)} records for seq 1 to {len(logged)}, over {evidence.connections} connections"
    holds: bool | None = seen == logged and bool(logged)
    if holds and evidence.connections < 2:
        holds = _not_brought_about(evidence)
    return Finding("the client saw every seq once", found, holds)


def _calls(evidence: Evidence) -> Finding:
    tools = {data.call: data.tool for data in evidence.applied(ToolCallDispatched)}
    starts = Counter([data.call for data in evidence.applied(ToolCallStarted)])
    ends = Counter([data.call for data in evidence.applied(ToolCallFinished)])
    settled = Counter([data.call for data in evidence.applied(ToolCallResolved)])
    lost = [data.call for data in evidence.applied(ToolCallLost)]
    found = f"{len(tools)} calls: {starts.total()} started, {ends.total()} finished, {len(lost)} lost"
    holds = bool(tools) and starts == ends + settled == dict.fromkeys(tools, 1) and lost == list(settled)
    holds = holds and set(lost) <= {_interrupted_call(evidence)}
    if evidence.is_scripted:
        runs, shells = evidence.shell_runs, list(tools.values()).count("shell")
        found += f"; {len(runs)} marks left by {shells} shell commands"
        holds = holds and len(runs) == len(set(runs)) == shells > 0
    return Finding("each call was executed once", found, holds)


def _runtime(evidence: Evidence) -> Finding:
    claim = "the runtime died while a model answered"
    step = _killed_in(evidence, "runtime")
    if step is None:
        return Finding(claim, "the turn was too short for it", _not_brought_about(evidence))
    attempts = [data.attempt for data in evidence.applied(StepStarted) if data.step == step]
    answers = [data.attempt for data in evidence.applied(StepFinished) if data.step == step]
    found = f"step {step}: {len(attempts)} attempts, answered by {' and '.join([f'no. {each}' for each in answers])}"
    if attempts == answers == [1]:  # the answer was out before the signal was in
        return Finding(claim, found, _not_brought_about(evidence))
    return Finding(claim, found, len(attempts) == 2 and answers == [2])


def _executor(evidence: Evidence) -> Finding:
    claim = "the tool-executor died between two calls"
    step = _killed_in(evidence, "tool-executor")
    if step is None:
        return Finding(claim, "the turn was too short for it", _not_brought_about(evidence))
    before, after = set[str](), set[str]()
    interrupted = _interrupted_call(evidence)
    for data in evidence.applied(ToolCallStarted):
        (before if _step_of(data.call) < step else after).add(data.executor)
        if data.call == interrupted:
            break  # which the next one did not survive either
    if not after:
        return Finding(claim, f"in step {step}, and no call came after it", _not_brought_about(evidence))
    found = f"step {step}: calls before it were run by {' and '.join(before)}, later ones by {' and '.join(after)}"
    return Finding(claim, found, len(before) == len(after) == 1 and before.isdisjoint(after))


def _steering(evidence: Evidence) -> Finding:
    claim = "the open turn was steered"
    if evidence.steering is None:
        return Finding(claim, "the turn was too short for it", _not_brought_about(evidence))
    said_at = [seq for seq, data, _ in evidence.applied_at(InputSubmitted) if data.input == evidence.steering]
    steps = [(seq, data) for seq, data, _ in evidence.applied_at(StepStarted) if data.attempt == 1]
    taken = [(seq, data) for seq, data in steps if evidence.steering in data.inputs]
    if said_at and not taken and steps and steps[-1][0] < said_at[0]:
        return Finding(claim, "it was said in the turn's last step", _not_brought_about(evidence))
    if not said_at or len(taken) != 1:
        return Finding(claim, f"{len(said_at)} times said, {len(taken)} times taken", False)
    at, step = taken[0]
    between = [data.step for seq, data in steps if said_at[0] < seq < at]
    found = f"submitted at seq {said_at[0]}, taken at seq {at} by turn {step.turn}, step {step.step}"
    return Finding(claim, found, said_at[0] < at and not between)


def _approval(evidence: Evidence) -> Finding:
    claim = "a call waited for a person's approval"
    asked = {data.call: seq for seq, data, _ in evidence.applied_at(ToolCallApprovalRequested)}
    if not asked:
        return Finding(claim, "no call needed one", _not_brought_about(evidence))
    approved = {data.call: (seq, data.by, actor) for seq, data, actor in evidence.applied_at(ToolCallApproved)}
    dispatched = {data.call: seq for seq, data, _ in evidence.applied_at(ToolCallDispatched)}
    told, holds = [], asked.keys() <= set(evidence.approvals_listed)
    for call, asked_at in asked.items():
        at, by, actor = approved.get(call, (0, "nobody", ""))
        told.append(f"{call} approved by {by}; who came later was told so")
        holds = holds and by == actor == evidence.told_of_decisions.get(call) == SECOND_PERSON
        holds = holds and asked_at < at < dispatched.get(call, 0)
    return Finding(claim, "; ".join(told), holds)


def _unknown(evidence: Evidence) -> Finding:
    claim = "an unknown outcome was settled by a person"
    call = _interrupted_call(evidence)
    if call is None:
        return Finding(claim, "no call was interrupted", _not_brought_about(evidence))
    lost = [data.call for data in evidence.applied(ToolCallLost)]
    settled = [(data, actor) for _, data, actor in evidence.applied_at(ToolCallResolved) if data.call == call]
    effects = list(evidence.released).count(str(evidence.interrupted))
    told = ", ".join([f"{data.decision} by {actor}" for data, actor in settled])
    found = f"{call} was lost in its midst; settled as {told or 'nothing'}; {effects} such release in the ledger"
    holds = lost.count(call) == evidence.unknown_listed.count(call) == effects == 1
    holds = holds and [(data.decision, actor) for data, actor in settled] == [("succeeded", SECOND_PERSON)]
    return Finding(claim, found, holds)


def _interrupted_call(evidence: Evidence) -> str | None:
    dispatched = evidence.applied(ToolCallDispatched)
    return next((data.call for data in dispatched if data.idempotency_key == evidence.interrupted), None)


def _imports(evidence: Evidence) -> Finding:
    found = [f"{each.tool}: {each.turns} turn, then {each.outcome}" for each in evidence.gone_on]
    holds = len(evidence.gone_on) == len(TOOLS) and all(
        each.turns > 0 and each.calls > 0 and each.outcome == "completed" and each.answer for each in evidence.gone_on
    )
    return Finding("imported sessions were continued", "; ".join(found) or "none was", holds)


def _verified(evidence: Evidence) -> Finding:
    status, last_line = evidence.verified
    return Finding("threadlog verify --all", last_line[:100] or "it said nothing", status == 0)


def _views(evidence: Evidence) -> Finding:
    before, after = evidence.views_before, evidence.views_after
    rows = sum(count for count, _ in before.values())
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    found = f"{len(before)} views, {rows} rows"
    if different:
        found += f"; different: {', '.join(different)}"
    return Finding("dropped and rebuilt, the views are equal", found, rows > 0 and not different)


def _seconds(evidence: Evidence) -> Finding:
    if not evidence.is_scripted:
        return Finding("seconds", f"{evidence.seconds:.1f}, most of them the model's", None)
    found = f"{evidence.seconds:.1f} of {SECONDS_MAX:.0f}"
    return Finding("seconds", found, evidence.seconds < SECONDS_MAX)


def _killed_in(evidence: Evidence, service: str) -> int | None:
    return next((kill.step for kill in evidence.kills if kill.service == service), None)


def _not_brought_about(evidence: Evidence) -> bool | None:
    """The script makes it happen; a real model may do without it."""
    return False if evidence.is_scripted else None


def _step_of(call: str) -> int:
    return int(call.split(".")[1])
