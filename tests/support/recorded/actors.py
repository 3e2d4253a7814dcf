"""Who appends to a thread, and what they might: every move that an actor could decide on in the state that it sees.

The state may be an old one: then the move is that of an actor who has not read on. `next_move` is what well-behaved
services and people do with the newest state, until nothing is left to do.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from schemas.events import (
    CONTEXT_TOO_LONG,
    ArtifactRecorded,
    ContextCompactionFailed,
    ContextCompactionRequested,
    Edited,
    EffectClass,
    Event,
    Failure,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    SkillLoaded,
    Task,
    TaskUpdated,
    ThreadArchived,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadDescribed,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
    ThreadUnarchived,
)
from schemas.plan import ready_tasks
from schemas.state import Call, ThreadState, unsettled_calls
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    NO_HASH,
    RUNTIME,
    USER,
    approval_expired,
    approval_requested,
    approved,
    cancel_requested,
    claim_id,
    claimed,
    compacted,
    created,
    denied,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_recovered,
    turn_started,
)

INPUTS = ("i1", "i2", "i3", "i4")
Decision = Literal["succeeded", "failed", "again", "abandoned"]
OTHER_ARGS = Edited(args={"command": "ls"}, call_hash=NO_HASH)


class Move(NamedTuple):
    event: Event
    actor: str


Moves = Callable[[ThreadState], list[Move]]


def client(state: ThreadState) -> list[Move]:
    """Whoever talks to the agent."""
    if not state.exists:
        return [Move(created(), USER)]
    events: list[Event] = [submitted(name) for name in INPUTS]
    events += [submitted("s1", "steer"), submitted("s2", "steer", expected_turn=max(state.last_turn, 1))]
    events += [submitted("r1", "reject"), submitted("n1", "interrupt")]
    events += [InputWithdrawn(input=item.input) for item in state.queue]
    return [Move(event, USER) for event in events]


def canceller(state: ThreadState) -> list[Move]:
    """Whoever wants the turn to end: a person, or a runtime that found a limit passed or an owner dead."""
    if state.last_turn == 0:
        return []
    by_people = [cancel_requested(state), cancel_requested(state, discard=True), submitted("n2", "interrupt")]
    by_runtimes = [cancel_requested(state, "limit"), cancel_requested(state, "recovery"), turn_recovered(state)]
    return [Move(event, USER) for event in by_people] + [Move(event, RUNTIME) for event in by_runtimes]


def watcher(state: ThreadState) -> list[Move]:
    """Whoever finds leases and deadlines passed."""
    return [Move(lost(call), RUNTIME) for call in state.calls.values() if call.status in {"dispatched", "running"}]


def person(state: ThreadState) -> list[Move]:
    """Who answers for calls: approves, denies, resolves; the customer's backend posts results."""
    return [Move(event, USER) for call in state.calls.values() for event in _answers(call)]


def _answers(call: Call) -> list[Event]:
    if call.status in {"proposed", "waiting"}:
        return [approved(call), approved(call, scope="turn"), approved(call, edited=OTHER_ARGS), denied(call)]
    if call.status == "unknown":
        decisions: tuple[Decision, ...] = ("again", "succeeded", "again", "failed", "abandoned")
        return [resolved(call, decision) for decision in decisions]
    if call.status == "running" and call.pool == "client":
        return [finished(call)]
    return []


def owner_of_settings(state: ThreadState) -> list[Move]:
    """Who configures, rewinds, compacts, closes and plans."""
    if not state.exists:
        return [Move(created(title="t"), USER)]
    events: list[Event] = [
        ThreadConfigured(patch={"instructions": f"be brief {state.seq % 3}"}),
        ThreadConfigured(patch={"model": None}),
        ThreadDescribed(title="other", labels={"a": "b"}),
        ThreadArchived(),
        ThreadUnarchived(),
        ThreadRewound(to_turn=max(state.last_turn - 1, 1)),
        ThreadRewound(to_turn=state.last_turn + 1),
        ContextCompactionRequested(base=state.base),
        ContextCompactionFailed(
            base=state.base,
            requested=max(state.compaction_seq, 1),
            error=Failure(kind="provider", message="no summary"),
        ),
        ArtifactRecorded(sha256=NO_HASH, size=1, media_type="text/plain"),
        PlanApproved(plan_version=max(state.plan.last_version, 1), by=USER),
        PlanRejected(plan_version=max(state.plan.last_version, 1), by=USER, reason="no"),
    ]
    return [Move(event, USER) for event in events]


def closer(state: ThreadState) -> list[Move]:
    return [Move(ThreadCloseRequested(), USER)] if state.exists else []


def planner(state: ThreadState) -> list[Move]:
    version = state.plan.last_version + 1
    events: list[Event] = [
        PlanProposed(plan_version=version, tasks=(Task(id="a", title="a"), Task(id="b", title="b", depends_on=("a",)))),
        PlanProposed(plan_version=version, tasks=(Task(id="b", title="b"), Task(id="c", title="c", depends_on=("b",)))),
        PlanProposed(plan_version=version, tasks=(Task(id="a", title="a", depends_on=("a",)),)),
        SkillLoaded(name="s", skill_version="1", sha256=NO_HASH),
    ]
    in_force = state.plan.in_force or 1
    events += [
        TaskUpdated(plan_version=in_force, task=task.id, status="running", child="t-2")
        for task in ready_tasks(state.plan)
    ]
    events += [TaskUpdated(plan_version=in_force, task=name, status="succeeded", result=1) for name in state.plan.tasks]
    return [Move(event, RUNTIME) for event in events]


def runtime(owner: str) -> Moves:
    """One that believes it owns the thread. Two of them give other answers to the same question."""

    def moves(state: ThreadState) -> list[Move]:
        return [Move(event, RUNTIME) for event in _turn_events(state, owner) + _service_events(state)]

    return moves


def importer(state: ThreadState) -> list[Move]:
    if not state.exists:
        return [Move(created(importing=True), IMPORTER)]
    events: list[Event] = [ThreadImportStarted(source="s"), ThreadImportEnded(source="s")]
    events += [submitted(name) for name in (*INPUTS, "m1", "m2")]
    events += _turn_events(state, "importer")
    for call in state.calls.values():
        events += [approved(call), dispatched(call), claimed(call), finished(call), lost(call)]
    return [Move(event, IMPORTER) for event in events]


def _turn_events(state: ThreadState, owner: str) -> list[Event]:
    turn = state.turn
    if turn is None:
        return (
            [turn_started(state), turn_started(state, [item.input for item in state.queue[:1]])] if state.queue else []
        )
    events: list[Event] = [step_started(state, owner=owner)]
    if turn.step is not None:
        text = f"{owner} says"
        events += [
            step_finished(state, text),
            step_finished(state, calls=[proposed(0, owner), proposed(1, owner)]),
            step_finished(state, text, [proposed(0, "read", {"path": owner})], started=turn.step.starts[0]),
            step_failed(state),
            step_failed(state, retriable=False, handed_over=True),
            step_failed(state, retriable=False, kind=CONTEXT_TOO_LONG),
        ]
    return [*events, turn_ended(state), turn_ended(state, "interrupted" if turn.cancelling else "failed")]


def _service_events(state: ThreadState) -> list[Event]:
    events: list[Event] = [ThreadClosed()] if state.status == "closing" else []
    if state.turn is None:
        return [*events, submitted("child"), compacted(state)] if state.exists else events
    events += [compacted(state, max(state.turn.started_seq, state.base))]
    for call in unsettled_calls(state, state.turn.turn):
        match call.status:
            case "proposed":
                events += [approved(call, by="policy:never"), denied(call, by="policy:x"), approval_requested(call, 1)]
            case "waiting":
                events += [approval_expired(call)]
            case "approved" | "repeatable":
                effects = ("pure", "idempotent", "reconcilable", "unsafe")
                events += [dispatched(call, effect, last=call.attempt > 0) for effect in effects]
                events += [dispatched(call, pool="client")]
            case _:
                pass
    return events


def executor(name: str) -> Moves:
    """One incarnation. It speaks of its own claims, and of any pure call that it ran at once."""

    def moves(state: ThreadState) -> list[Move]:
        events: list[Event] = []
        for call in state.calls.values():
            if call.attempt == 0:
                continue
            mine = claim_id(claimed(call, name))
            if call.status == "dispatched":
                events += [claimed(call, name)]
            if call.claim == mine or call.effect == "pure":
                attempt = call.attempt if call.effect == "pure" else call.claim_attempt
                for outcome in ("succeeded", "failed", "timed_out", "cancelled", "not_started"):
                    events += [finished(call, outcome, claim=mine, attempt=attempt, result=name)]
                events += [lost(call, claim=mine)]
            if call.status == "unknown" and call.effect == "reconcilable":
                events += [resolved(call, "succeeded"), resolved(call, "again")]
        return [Move(event, EXECUTOR) for event in events]

    return moves


def next_move(
    state: ThreadState, steps_with_calls: int = 0, effect: EffectClass = "unsafe", owner: str = "well"
) -> Move | None:
    """What the well-behaved do next, with a model whose first answers of a turn have calls. None when the thread rests.

    Owners differ: in what their models answer, and in how many inputs they take.
    """
    if state.status == "importing":
        return Move(ThreadImportEnded(source=state.import_source or "s"), IMPORTER)
    if state.turn is not None:
        return _in_turn(state, steps_with_calls, effect, owner)
    if state.status == "closing":
        return Move(ThreadClosed(), RUNTIME)
    if state.status != "active":
        return None
    if state.compaction_requested:
        return Move(compacted(state), RUNTIME)
    free = [item.input for item in state.queue if not item.held]
    return Move(turn_started(state, free if owner == "B" else free[:1]), RUNTIME) if free else None


def _in_turn(state: ThreadState, steps_with_calls: int, effect: EffectClass, owner: str) -> Move:
    turn = state.turn
    assert turn is not None
    open_calls = unsettled_calls(state, turn.turn)
    for call in open_calls:
        if call.status == "running":
            return Move(finished(call, "cancelled" if turn.cancelling else "succeeded"), EXECUTOR)
    if turn.cancelling is not None:
        return Move(turn_ended(state, "aborted"), RUNTIME)
    for call in open_calls:
        match call.status:
            case "proposed":
                return Move(approval_requested(call), RUNTIME)
            case "waiting":
                return Move(approved(call), USER)
            case "approved" | "repeatable":
                return Move(dispatched(call, effect), RUNTIME)
            case "dispatched":
                return Move(claimed(call, "well-behaved"), EXECUTOR)
            case _:
                return Move(resolved(call), USER)
    if turn.step is not None and turn.step.status == "open":
        calls = [proposed(0, "shell", {"command": owner}), proposed(1)] if turn.steps < steps_with_calls else []
        return Move(step_finished(state, f"{owner} says", calls), RUNTIME)
    if turn.step is not None or turn.steps == 0 or any(call.turn == turn.turn for call in state.calls.values()):
        return Move(step_started(state, owner=owner), RUNTIME)
    return Move(turn_ended(state), RUNTIME)
