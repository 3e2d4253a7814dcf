"""What the runtime does next with a thread: pure, from the folded state, the time and what this process knows.

`decide` gives either events to append, or what to wait for. The loop folds the events onto the state ahead of their
reading back and decides again, until there is nothing to append: a decision therefore never looks further than one
event ahead, and every event is decided on a state in which it fits. The log stays the judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, assert_never

from pydantic import JsonValue

from schemas.config import Config
from schemas.events import (
    POOLS_WITHOUT_EXECUTOR,
    Confirmed,
    Context,
    Event,
    StepStarted,
    ThreadClosed,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallLost,
    TurnCancelRequested,
    TurnEnded,
    TurnOutcome,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import ThreadKey, idempotency_key
from schemas.state import Call, Step, ThreadState, Turn, unsettled_calls
from schemas.tools import Catalog, CatalogTool, ToolSpec, tools_hash
from services.runtime.limits import Limits, narrowed

RUNTIME = "service:runtime"


class Calling(NamedTuple):
    """The model call that this process has under way for a thread."""

    turn: int
    step: int
    attempt: int
    started: str
    """Data hash of the start that it answers."""


@dataclass(frozen=True, slots=True)
class World:
    """What a decision may know beside the state. Everything here is a value, or a pure function of values."""

    owner: str
    """This process: instance and incarnation."""
    agent_version: str
    catalog: Catalog
    limits: Limits
    confirmed: Confirmed
    """Seq and chain of the last record that was read back."""
    context: Callable[[], Context | None]
    """The context that the next step would be asked with; None while the transcript is not loaded."""
    arguments_problem: Callable[[ToolSpec, dict[str, JsonValue], str | None], str | None]
    """Why the arguments, or what the model wrote in their place, do not fit the tool's schema, in a paragraph for the
    model; None where they do."""
    is_ahead: bool = False
    """Whether the state holds own events that were not read back yet."""
    calling: Calling | None = None
    taken_over: str | None = None
    """Data hash of the start that this process found open when it took the thread over, until it has said so."""


class Append(NamedTuple):
    event: Event
    actor: str = RUNTIME


class CallModel(NamedTuple):
    calling: Calling


class DropModelCall(NamedTuple):
    """The answer is not wanted any more."""


class LoadTranscript(NamedTuple):
    """The context is needed and not in memory."""


class LookAgain(NamedTuple):
    at_ms: int


Decision: TypeAlias = Append | CallModel | DropModelCall | LoadTranscript | LookAgain
Decisions: TypeAlias = Sequence[Decision]

NOTHING_TO_DO: Decisions = ()


def decide(key: ThreadKey, state: ThreadState, now_ms: int, world: World) -> Decisions:
    if state.status == "importing":
        return _drop(world)
    turn = state.turn
    if turn is None:
        return [*_drop(world), *_without_turn(state, world)]
    limits = narrowed(world.limits, turn.config)
    if turn.cancelling is not None:
        return [*_drop(world), *_end_cancelled(state, turn, now_ms, limits, world)]
    if turn.step is not None and _is_found_open(turn.step, world):
        return _recover(turn, turn.step, world)
    limit = _turn_limit(turn, now_ms, limits)
    if isinstance(limit, Append):
        return [limit]
    if turn.step is not None:
        return _advance_step(turn, turn.step, now_ms, limits, world, limit)
    calls = [call for call in state.calls.values() if call.turn == turn.turn]
    if any(not call.settled for call in calls):
        return _advance_calls(key, state, turn, calls, now_ms, limits, world, limit)
    return [*_drop(world), *_next_step(state, turn, calls, limits, world)]


def offered_tools(catalog: Catalog, config: Config) -> tuple[ToolSpec, ...]:
    return catalog.specs(config.tools)


def _drop(world: World) -> list[Decision]:
    return [] if world.calling is None else [DropModelCall()]


# Between turns


def _without_turn(state: ThreadState, world: World) -> Decisions:
    if state.status == "closing":
        return [Append(ThreadClosed())]
    if state.status != "active" or state.config is None:
        return NOTHING_TO_DO
    free = [item for item in state.queue if not item.held]
    if not free or world.is_ahead:
        # Another owner's answer may have ended the last turn: the next one is asked with what took effect (ADR 20).
        return NOTHING_TO_DO
    interrupting = [item for item in free if item.mode == "interrupt"]
    taken = [*interrupting[:1], *free][:1] if state.config.one_turn_per_input else free
    return [
        Append(
            TurnStarted(
                turn=state.last_turn + 1,
                inputs=tuple(item.input for item in taken),
                config=state.config_seq,
                base=state.base,
                agent_version=world.agent_version,
            )
        )
    ]


# Ending


def _end(turn: Turn, calls: Sequence[Call], outcome: TurnOutcome, reason: str | None, world: World) -> Append:
    return Append(
        TurnEnded(
            turn=turn.turn,
            follows=turn.follows,
            outcome=outcome,
            reason=reason,
            unknown_calls=tuple(call.call for call in calls if call.status == "unknown"),
            confirmed=world.confirmed,
        )
    )


def _end_cancelled(state: ThreadState, turn: Turn, now_ms: int, limits: Limits, world: World) -> Decisions:
    calls = unsettled_calls(state, turn.turn)
    running = [call for call in calls if call.status == "running"]
    if not running:
        outcomes: dict[str, TurnOutcome] = {"limit": "failed", "recovery": "interrupted"}
        cause = turn.cancelling or "user"
        reason = "the turn's time is over" if cause == "limit" else f"cancelled: {cause}"
        return [_end(turn, calls, outcomes.get(cause, "aborted"), reason, world)]
    gone_at = turn.cancelled_ms + 1000 * limits.deadline_grace_seconds
    if now_ms < gone_at:
        return [LookAgain(gone_at)]
    return [Append(_give_up(call, "the turn was cancelled and no end came within the grace time")) for call in running]


def _give_up(call: Call, evidence: str) -> ToolCallLost:
    claim = call.claim if call.status == "running" else None
    return ToolCallLost(call=call.call, attempt=call.attempt, claim=claim, evidence=evidence)


def _turn_limit(turn: Turn, now_ms: int, limits: Limits) -> Append | LookAgain:
    """A cancel where the turn's time is over, else when it will be."""
    waited = turn.waited_ms
    if turn.waiting_since_ms is not None:
        waited += max(0, now_ms - turn.waiting_since_ms)
    ends_at = turn.started_ms + waited + 1000 * limits.turn_seconds
    if now_ms < ends_at:
        return LookAgain(ends_at)
    note = f"the turn worked for more than {limits.turn_seconds} s"
    return Append(TurnCancelRequested(turn=turn.turn, reason="limit", note=note))


def _is_found_open(step: Step, world: World) -> bool:
    return step.status == "open" and step.starts[-1] == world.taken_over and step.owner != world.owner


def _recover(turn: Turn, step: Step, world: World) -> Decisions:
    found = f"step {step.step} open, attempt {step.attempt} by {step.owner}"
    recovered = Append(TurnRecovered(turn=turn.turn, owner=world.owner, found=found))
    if turn.config.on_recovery == "resume":
        return [recovered]
    return [recovered, Append(TurnCancelRequested(turn=turn.turn, reason="recovery", note=found))]


# Steps


def _advance_step(turn: Turn, step: Step, now_ms: int, limits: Limits, world: World, limit: LookAgain) -> Decisions:
    if step.status == "open":
        if world.calling is not None and world.calling.started in step.starts:
            return [limit]
        if step.owner == world.owner:
            return [*_drop(world), CallModel(Calling(turn.turn, step.step, step.attempt, step.starts[-1])), limit]
        return [*_drop(world), *_start_step(turn, step.step, step.attempt + 1, step.inputs, world)]
    if not step.handed_over:
        if not step.retriable or step.failures >= limits.model_tries:
            return [_end(turn, (), "failed", step.error, world)]
        if step.retry_at_ms is not None and now_ms < step.retry_at_ms:
            return [LookAgain(min(step.retry_at_ms, limit.at_ms))]
    return [*_drop(world), *_start_step(turn, step.step, step.attempt + 1, step.inputs, world)]


def _next_step(state: ThreadState, turn: Turn, calls: Sequence[Call], limits: Limits, world: World) -> Decisions:
    steering = tuple(
        item.input for item in state.queue if item.mode == "steer" and item.expected_turn in {None, turn.turn}
    )
    called = any(call.step == turn.steps for call in calls)
    if turn.steps > 0 and not called and not steering:
        return [_end(turn, (), "completed", None, world)]
    if turn.steps >= limits.steps_per_turn:
        return [_end(turn, (), "failed", f"the turn has taken {turn.steps} steps, its limit", world)]
    return _start_step(turn, turn.steps + 1, 1, steering, world)


def _start_step(turn: Turn, step: int, attempt: int, inputs: tuple[str, ...], world: World) -> Decisions:
    context = world.context()
    if context is None:
        return [LoadTranscript()]
    return [
        Append(
            StepStarted(
                turn=turn.turn,
                step=step,
                attempt=attempt,
                follows=turn.follows,
                inputs=inputs,
                context=context,
                model=turn.config.model,
                tools_hash=tools_hash(offered_tools(world.catalog, turn.config)),
                owner=world.owner,
            )
        )
    ]


# Calls


def _advance_calls(
    key: ThreadKey,
    state: ThreadState,
    turn: Turn,
    calls: Sequence[Call],
    now_ms: int,
    limits: Limits,
    world: World,
    limit: LookAgain,
) -> Decisions:
    """One event for each call that can go on, else when to look again."""
    appends: list[Decision] = []
    looks = [limit.at_ms]
    busy = sum(call.status in {"dispatched", "running"} for call in calls)
    earlier_open = False
    for call in sorted(calls, key=lambda call: call.index):
        free = busy < limits.parallel_calls
        in_order = not earlier_open
        decision = _advance_call(key, state, turn, call, now_ms, limits, world, may_dispatch=free, in_order=in_order)
        if isinstance(decision, LookAgain):
            looks.append(decision.at_ms)
        elif decision is not None:
            appends.append(decision)
            busy += isinstance(decision.event, ToolCallDispatched)
        earlier_open = earlier_open or (not call.settled and not _runs_beside(call, world))
    if appends:
        return appends
    if turn.config.on_unknown == "end" and all(call.settled or call.status == "unknown" for call in calls):
        asked_until = max(_asked_until_ms(call, limits) for call in calls if not call.settled)
        if now_ms >= asked_until:
            return [_end(turn, calls, "failed", "what a call did is not known", world)]
        looks.append(asked_until)
    return [LookAgain(min(looks))]


def _asked_until_ms(call: Call, limits: Limits) -> int:
    """Until when the downstream of an unknown call is asked first, where there is one to ask."""
    if call.effect != "reconcilable":
        return 0
    run_ms = 1000 * (call.lease_seconds or 0) + call.timeout_ms
    return call.claimed_ms + run_ms + 1000 * limits.deadline_grace_seconds


def _runs_beside(call: Call, world: World) -> bool:
    """Whether other calls of its step may run beside it."""
    tool = world.catalog.find(call.tool)
    return tool is not None and (tool.spec.effect == "pure" or tool.spec.parallel)


def _advance_call(
    key: ThreadKey,
    state: ThreadState,
    turn: Turn,
    call: Call,
    now_ms: int,
    limits: Limits,
    world: World,
    *,
    may_dispatch: bool,
    in_order: bool,
) -> Append | LookAgain | None:
    match call.status:
        case "proposed":
            return _judge_proposal(state, turn, call, now_ms, limits, world)
        case "waiting":
            if call.expires_at_ms is None:
                return None
            if now_ms < call.expires_at_ms:
                return LookAgain(call.expires_at_ms)
            return Append(ToolCallApprovalExpired(call=call.call, call_hash=call.call_hash))
        case "approved" | "repeatable":
            if not may_dispatch or not (in_order or _runs_beside(call, world)):
                return None
            return _dispatch(key, call, now_ms, limits, world)
        case "dispatched":
            if now_ms < call.deadline_ms:
                return LookAgain(call.deadline_ms)
            return Append(_give_up(call, "nobody claimed it within its deadline"))
        case "running":
            gone_at = _deadline_ms(call) + 1000 * limits.deadline_grace_seconds
            if now_ms < gone_at:
                return LookAgain(gone_at)
            return Append(_give_up(call, "no end within the deadline and its grace time"))
        case "unknown" | "settled":
            return None
        case _:
            assert_never(call.status)


def _deadline_ms(call: Call) -> int:
    """A call that was claimed late may still run for as long as its tool may."""
    return max(call.deadline_ms, call.claimed_ms + call.timeout_ms)


def _judge_proposal(state: ThreadState, turn: Turn, call: Call, now_ms: int, limits: Limits, world: World) -> Append:
    refusal = _why_refused(turn, call, limits, world)
    if refusal is not None:
        by, reason = refusal
        return Append(ToolCallDenied(call=call.call, call_hash=call.call_hash, by=by, reason=reason), by)
    granted_by = _granted(state, turn, call)
    if granted_by is not None:
        return Append(ToolCallApproved(call=call.call, call_hash=call.call_hash, by=granted_by), "policy:grant")
    own = turn.config.tool_policies.get(call.tool)
    policy = (own.approval if own is not None else None) or turn.config.approval
    tool = world.catalog.find(call.tool)
    if policy == "never" or (policy == "on_effect" and tool is not None and tool.spec.effect == "pure"):
        by = f"policy:{policy}"
        return Append(ToolCallApproved(call=call.call, call_hash=call.call_hash, by=by), by)
    return Append(
        ToolCallApprovalRequested(
            call=call.call,
            call_hash=call.call_hash,
            reason=f"the approval policy for {call.tool} is {policy}",
            expires_at_ms=now_ms + 1000 * limits.approval_seconds,
        )
    )


def _why_refused(turn: Turn, call: Call, limits: Limits, world: World) -> tuple[str, str] | None:
    """The policy that refuses the call, and why, in words that help the model to do better."""
    if call.index >= limits.calls_per_step:
        return "policy:limits", f"A step may call {limits.calls_per_step} tools at most. Call fewer at once."
    offered = offered_tools(world.catalog, turn.config)
    tool = next((tool for tool in offered if tool.name == call.tool), None)
    if tool is None:
        names = ", ".join(tool.name for tool in offered) or "none"
        return "policy:catalog", f"There is no tool named {call.tool[:100]!r}. The tools are: {names}."
    complaint = world.arguments_problem(tool, call.args, call.malformed)
    return None if complaint is None else ("policy:arguments", complaint)


def _dispatch(key: ThreadKey, call: Call, now_ms: int, limits: Limits, world: World) -> Append:
    tool = world.catalog.find(call.tool)
    if tool is None:
        # The tool left the catalog after the call was approved: nobody is there to claim it, and no other event settles
        # an approved call. So its deadline is over at once.
        return Append(_dispatched(key, call, now_ms, _gone(call)))
    wait_seconds = limits.client_tool_seconds if tool.pool in POOLS_WITHOUT_EXECUTOR else limits.dispatch_wait_seconds
    return Append(_dispatched(key, call, now_ms + 1000 * wait_seconds + _timeout_ms(tool), tool))


def _gone(call: Call) -> CatalogTool:
    spec = ToolSpec(name="gone", effect=call.effect, max_attempts=1)
    return CatalogTool(spec.model_copy(update={"name": call.tool}), call.pool or "gone", "gone")


def _timeout_ms(tool: CatalogTool) -> int:
    return max(1, int(1000 * tool.spec.timeout_seconds))


def _dispatched(key: ThreadKey, call: Call, deadline_ms: int, tool: CatalogTool) -> ToolCallDispatched:
    attempt = call.attempt + 1
    return ToolCallDispatched(
        call=call.call,
        attempt=attempt,
        call_hash=call.call_hash,
        tool=call.tool,
        pool=tool.pool,
        args=call.args,
        effect=tool.spec.effect,
        last=attempt >= tool.spec.max_attempts,
        deadline_ms=deadline_ms,
        timeout_ms=_timeout_ms(tool),
        idempotency_key=idempotency_key(key, call.call),
    )


def _granted(state: ThreadState, turn: Turn, call: Call) -> str | None:
    """Who approved this call in advance, if anybody did."""
    for grant in (*turn.grants, *state.grants):
        if grant.tool == call.tool or (grant.call_hash is not None and grant.call_hash == call.call_hash):
            return grant.by
    return None
