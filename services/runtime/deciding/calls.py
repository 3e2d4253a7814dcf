"""What the runtime does next with the calls of an open turn. Pure.

A call is proposed by a model, judged (`_judge_proposal`), perhaps approved by a person, and dispatched. From then on
whoever claims it is responsible: an executor, the customer's backend, or the runtime itself for tools in the pool
`thread` (`own_tools`). The runtime waits until the call is settled. It gives up on a claimant that says nothing after
the deadline and its grace time; the fold then decides by the tool's effect whether the call may run again or is
unknown.

The calls of one step go on next to each other, each with one event at a time. Their order matters only for calls that
may not run in parallel: such a call waits until every earlier one is settled.
"""

from collections.abc import Sequence
from typing import assert_never

from schemas.config import Config
from schemas.events import (
    POOLS_WITHOUT_EXECUTOR,
    SkillLoaded,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallLost,
    TurnEnded,
    TurnOutcome,
)
from schemas.ids import ThreadKey, idempotency_key
from schemas.state import Call, ThreadState, Turn
from schemas.tools import Catalog, CatalogTool, ToolSpec
from services.runtime.deciding import skills
from services.runtime.deciding.decisions import NOTHING_TO_DO, Append, Decisions, LookAgain, World, joined
from services.runtime.deciding.limits import Limits
from services.runtime.deciding.own_tools import own_tool, own_tool_of


def offered_tools(catalog: Catalog, config: Config) -> tuple[ToolSpec, ...]:
    """Return the tools that a thread's model may call, as the catalog is now."""
    return skills.without_loader([spec for spec in catalog.specs(config.tools) if not spec.on_request], config)


def end_turn(turn: Turn, calls: Sequence[Call], outcome: TurnOutcome, reason: str | None, world: World) -> Append:
    """End the turn. The event names the calls that are unknown: they stay open for people to settle."""
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


def give_up(call: Call, evidence: str) -> ToolCallLost:
    """Give up on whoever should run the call. It names the claim, so that it does not count against a later one."""
    claim = call.claim if call.status == "running" else None
    return ToolCallLost(call=call.call, attempt=call.attempt, claim=claim, evidence=evidence)


def end_running(
    key: ThreadKey, state: ThreadState, turn: Turn, calls: Sequence[Call], now_ms: int, limits: Limits, world: World
) -> Decisions:
    """Wait for the running calls of a turn that is being cancelled, each for its grace time.

    Executors follow the thread and see the cancel themselves, so nothing is sent to them here.
    """
    gone_at = turn.cancelled_ms + 1000 * limits.deadline_grace_seconds
    decided: list[Decisions] = []
    for call in calls:
        own = own_tool_of(call)
        if own is not None:
            decided.append(own.advance(key, state, turn, call, now_ms, limits, world))
        elif now_ms < gone_at:
            decided.append([LookAgain(gone_at)])
        else:
            evidence = "the turn was cancelled and no end came within the grace time"
            decided.append([Append(give_up(call, evidence))])
    return together(decided)


def together(decided: Sequence[Decisions]) -> Decisions:
    """Join what was decided about several calls: all their events, or else everything that they wait for.

    Unlike `joined`, this takes the events of all calls at once. They change different calls, so each still fits after
    the others.
    """
    appends = [decision for part in decided for decision in part if isinstance(decision, Append)]
    loaded = [append for append in appends if isinstance(append.event, SkillLoaded)]
    if len(loaded) > 1:  # several calls may load the same skill; one record is enough
        others = [append for append in appends if append not in loaded]
        appends = [*(append for place, append in enumerate(loaded) if append not in loaded[:place]), *others]
    return appends or joined(*decided)


def advance_calls(
    key: ThreadKey,
    state: ThreadState,
    turn: Turn,
    calls: Sequence[Call],
    now_ms: int,
    limits: Limits,
    world: World,
    limit: LookAgain,
) -> Decisions:
    """Return one event for each call that can go on, or else what the calls wait for and when to look again.

    `parallel_calls` counts the calls that somebody works on. Calls that wait for an approval or are unknown take no
    place: they may wait for days.
    """
    decided: list[Decisions] = [[limit]]
    busy = sum(call.status in {"dispatched", "running"} for call in calls)
    earlier_open = False
    for call in sorted(calls, key=lambda call: call.index):
        free = busy < limits.parallel_calls
        in_order = not earlier_open
        of_call = _advance_call(key, state, turn, call, now_ms, limits, world, may_dispatch=free, in_order=in_order)
        decided.append(of_call)
        busy += any(isinstance(each, Append) and isinstance(each.event, ToolCallDispatched) for each in of_call)
        earlier_open = earlier_open or (not call.settled and not _runs_beside(call, world))
    going_on = together(decided)
    if any(isinstance(decision, Append) for decision in going_on):
        return going_on
    if turn.config.on_unknown == "end" and all(call.settled or call.status == "unknown" for call in calls):
        asked_until = max(_asked_until_ms(call, limits) for call in calls if not call.settled)
        if now_ms >= asked_until:
            # Nothing runs any more, and only people can say what the unknown calls did. The thread asked not to wait.
            return [end_turn(turn, calls, "failed", "what a call did is not known", world)]
        return joined(going_on, [LookAgain(asked_until)])
    return going_on


def _asked_until_ms(call: Call, limits: Limits) -> int:
    """Return until when the runtime waits for an executor to ask the downstream system about an unknown call.

    0 if the tool cannot be asked (its effect is not `reconcilable`).
    """
    if call.effect != "reconcilable":
        return 0
    run_ms = 1000 * (call.lease_seconds or 0) + call.timeout_ms
    return call.claimed_ms + run_ms + 1000 * limits.deadline_grace_seconds


def _runs_beside(call: Call, world: World) -> bool:
    """Whether other calls of its step may run at the same time."""
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
) -> Decisions:
    """Move one call on. `may_dispatch` says that a place is free, `in_order` that no earlier call has to come first."""
    match call.status:
        case "proposed":
            return [_judge_proposal(state, turn, call, now_ms, limits, world)]
        case "waiting":
            if call.expires_at_ms is None:
                return NOTHING_TO_DO
            if now_ms < call.expires_at_ms:
                return [LookAgain(call.expires_at_ms)]
            return [Append(ToolCallApprovalExpired(call=call.call, call_hash=call.call_hash))]
        case "approved" | "repeatable":
            if not may_dispatch or not (in_order or _runs_beside(call, world)):
                return NOTHING_TO_DO
            recorded = skills.to_record(state, turn, call) if skills.is_loader(world.catalog, call.tool) else None
            return [_dispatch(key, call, now_ms, limits, world) if recorded is None else Append(recorded)]
        case "dispatched":
            if now_ms < call.deadline_ms:
                return [LookAgain(call.deadline_ms)]
            return [Append(give_up(call, "nobody claimed it within its deadline"))]
        case "running":
            own = own_tool_of(call)
            if own is not None:
                return own.advance(key, state, turn, call, now_ms, limits, world)
            gone_at = _deadline_ms(call) + 1000 * limits.deadline_grace_seconds
            if now_ms < gone_at:
                return [LookAgain(gone_at)]
            return [Append(give_up(call, "no end within the deadline and its grace time"))]
        case "unknown" | "settled":
            return NOTHING_TO_DO
        case _:
            assert_never(call.status)


def _deadline_ms(call: Call) -> int:
    """Return when the call has to be over. One that was claimed late still gets the whole time of its tool."""
    return max(call.deadline_ms, call.claimed_ms + call.timeout_ms)


def _judge_proposal(state: ThreadState, turn: Turn, call: Call, now_ms: int, limits: Limits, world: World) -> Append:
    """Deny the call, approve it, or ask a person.

    A refusal comes first: nobody is asked to approve what cannot run. Then the first rule that applies counts: a
    requested call is approved by whoever requested it, a grant was given in advance, a tool's own policy is stricter or
    looser than the thread's. Each event names the rule as its actor, so a thread shows by what a call was let through.
    """
    refusal = _why_refused(state, turn, call, limits, world)
    if refusal is not None:
        by, reason = refusal
        return Append(ToolCallDenied(call=call.call, call_hash=call.call_hash, by=by, reason=reason), by)
    if turn.requested is not None:
        approved = ToolCallApproved(call=call.call, call_hash=call.call_hash, by=turn.requested.by)
        return Append(approved, "policy:requested")
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


def _why_refused(state: ThreadState, turn: Turn, call: Call, limits: Limits, world: World) -> tuple[str, str] | None:
    """Return the policy that refuses the call and the reason, in words that help the model to do better; None if the
    call is fine.
    """
    if call.index >= limits.calls_per_step:
        return "policy:limits", f"A step may call {limits.calls_per_step} tools at most. Call fewer at once."
    offered = world.catalog.specs() if turn.requested is not None else offered_tools(world.catalog, turn.config)
    tool = next((tool for tool in offered if tool.name == call.tool), None)
    if tool is None:
        names = ", ".join(tool.name for tool in offered) or "none"
        return "policy:catalog", f"There is no tool named {call.tool[:100]!r}. The tools are: {names}."
    complaint = world.arguments_problem(tool, call.args, call.malformed)
    if complaint is not None:
        return "policy:arguments", complaint
    if skills.is_loader(world.catalog, call.tool):
        return skills.why_refused(turn, call)
    own = own_tool(world.catalog.find(call.tool))
    return None if own is None else own.why_refused(state, turn, call, limits, world)


def _dispatch(key: ThreadKey, call: Call, now_ms: int, limits: Limits, world: World) -> Append:
    """Dispatch the call to the pool of its tool, with a deadline for the claim and the work together.

    A pool without executors is a person's or a backend's: it may be away for a day, and needs no claim in time.
    """
    tool = world.catalog.find(call.tool)
    if tool is None:
        # The tool left the catalog after the call was approved. Nobody can claim the call, and no other event settles
        # an approved call, so it is dispatched with a deadline that is over at once.
        return Append(_dispatched(key, call, now_ms, _gone(call)))
    wait_seconds = limits.client_tool_seconds if tool.pool in POOLS_WITHOUT_EXECUTOR else limits.dispatch_wait_seconds
    return Append(_dispatched(key, call, now_ms + 1000 * wait_seconds + _timeout_ms(tool), tool))


def _gone(call: Call) -> CatalogTool:
    """Return a stand-in for a tool that left the catalog; one attempt, so the call is not dispatched again."""
    spec = ToolSpec(name="gone", effect=call.effect, max_attempts=1)
    return CatalogTool(spec.model_copy(update={"name": call.tool}), call.pool or "gone", "gone")


def _timeout_ms(tool: CatalogTool) -> int:
    return max(1, int(1000 * tool.spec.timeout_seconds))


def _dispatched(key: ThreadKey, call: Call, deadline_ms: int, tool: CatalogTool) -> ToolCallDispatched:
    """Return the event of the next attempt. Its idempotency key is the same for all attempts of a call."""
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
    """Return who approved this call in advance; None if nobody did. The turn's grants come before the thread's."""
    for grant in (*turn.grants, *state.grants):
        if grant.tool == call.tool or (grant.call_hash is not None and grant.call_hash == call.call_hash):
            return grant.by
    return None
