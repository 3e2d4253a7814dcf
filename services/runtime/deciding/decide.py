"""What the runtime does next with a thread, from the folded state, the time and what this process knows. Pure.

`decide` returns either events to append, or what to wait for. The loop folds the events onto the state ahead and
decides again, until there is nothing to append. So a decision never looks further than one event ahead, every event is
decided on a state in which it fits, and no step of a turn needs a variable of its own: where a thread stands is in its
state.

The same state always gives the same decision. That is what makes a takeover safe: the next owner, or two owners that do
not know of each other yet, decide the same events, and their ids are derived from what they answer. The fold counts the
first of them.

A turn goes like this. It starts with the inputs that wait (`_without_turn`). Each step is started, asked of a model and
finished (`_advance_step`). Its calls are judged, dispatched and waited for (`calls`). Then comes the next step, until
the model makes no more calls (`_next_step`). Before each of these stand the reasons for which a turn ends early: a
cancel, a takeover that may not resume, a limit.
"""

from collections.abc import Sequence

from schemas.events import (
    StepStarted,
    ThreadClosed,
    ThreadCloseRequested,
    TurnCancelRequested,
    TurnOutcome,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import ThreadKey, derive_child_input
from schemas.state import Call, Step, ThreadState, Turn, unsettled_calls
from schemas.tools import tools_hash
from services.runtime.deciding import children, compaction, direct_calls, plans
from services.runtime.deciding.calls import advance_calls, end_running, end_turn, offered_tools
from services.runtime.deciding.decisions import (
    NOTHING_TO_DO,
    Append,
    Calling,
    CallModel,
    Decision,
    Decisions,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    World,
    joined,
)
from services.runtime.deciding.limits import Limits, narrowed


def decide(key: ThreadKey, state: ThreadState, now_ms: int, world: World) -> Decisions:
    """Return what to do next with the thread: events to append, or else everything to wait for.

    A thread's own end, its parent, its plan and its turn are independent of each other; `joined` orders them. A thread
    that is being imported belongs to the importer, so nothing is decided for it.
    """
    if state.status == "importing":
        return _drop(world)
    return joined(
        _end_life(key, state, now_ms, world.limits),
        children.tell_parent(key, state, world),
        plans.advance(key, state, now_ms, world.limits, world),
        _advance_turn(key, state, now_ms, world),
    )


def _end_life(key: ThreadKey, state: ThreadState, now_ms: int, limits: Limits) -> Decisions:
    """Close an ephemeral thread when its time is over, whatever it is doing: its topic will not keep its records."""
    if not key.ephemeral or state.status != "active":
        return NOTHING_TO_DO
    ends_at = state.created_ms + 1000 * limits.ephemeral_seconds
    if now_ms < ends_at:
        return [LookAgain(ends_at)]
    return [Append(ThreadCloseRequested(reason=f"an ephemeral thread lives {limits.ephemeral_seconds} s"))]


def _advance_turn(key: ThreadKey, state: ThreadState, now_ms: int, world: World) -> Decisions:
    """Move the open turn on, or begin one.

    The order is the order of urgency. A cancel comes before everything. A step that a gone owner left open has to be
    recovered before anybody answers it. A limit of time cancels before more is started, and a summary that was asked
    for comes before the model is asked anything else.
    """
    turn = state.turn
    if turn is None:
        if compaction.is_asked_for(state) and state.config is not None:
            return compaction.advance(state, now_ms, narrowed(world.limits, state.config), world)
        return [*_drop(world), *_without_turn(key, state, now_ms, world)]
    limits = narrowed(world.limits, turn.config)
    if turn.cancelling is not None:
        return [*_drop(world), *_end_cancelled(key, state, turn, now_ms, limits, world)]
    if turn.step is not None and turn.requested is None and _is_found_open(turn.step, world):
        return _recover(turn, turn.step, world)
    limit = _turn_limit(turn, now_ms, limits)
    if isinstance(limit, Append):
        return [limit]
    if compaction.is_asked_for(state):
        return [*compaction.advance(state, now_ms, limits, world), limit]
    if turn.step is not None:
        return _advance_step(state, turn, turn.step, now_ms, limits, world, limit)
    calls = [call for call in state.calls.values() if call.turn == turn.turn]
    if any(not call.settled for call in calls):
        return advance_calls(key, state, turn, calls, now_ms, limits, world, limit)
    return [*_drop(world), *_next_step(state, turn, calls, limits, world)]


def _drop(world: World) -> list[Decision]:
    """Give up the model call under way, if there is one: what is decided now makes its answer useless."""
    return [] if world.calling is None else [DropModelCall()]


# Between turns


def _without_turn(key: ThreadKey, state: ThreadState, now_ms: int, world: World) -> Decisions:
    """Start a turn with the inputs that wait, or close a thread that was waiting for its turn to end."""
    if state.status == "closing":
        return [Append(ThreadClosed())] if plans.is_over(state) else NOTHING_TO_DO
    if state.status != "active" or state.config is None:
        return NOTHING_TO_DO
    free = [item for item in state.queue if not item.held]
    if not free or world.is_ahead:
        # Another owner's answer may have ended the last turn. So the next one starts only once everything is read back,
        # and is asked with what took effect (ADR 20).
        return NOTHING_TO_DO
    if children.awaits_task(key, state):
        # A person may speak to a child as soon as its parent's thread names it, which is before it has its task. Where
        # the task never comes, because its parent has thought better of it, the child answers like any other thread.
        comes_by_ms = state.created_ms + 1000 * world.limits.deadline_grace_seconds
        if now_ms < comes_by_ms:
            return [LookAgain(comes_by_ms)]
    first = [item for item in free if item.mode == "interrupt"][:1]
    if state.last_turn == 0 and children.is_told(state):
        # The parent waits for the turn that takes the task. If it stops waiting, it cancels turn 1, so the task has to
        # be taken by turn 1, even if somebody told the child something urgent before.
        task = [item for item in free if item.input == derive_child_input(key)]
        first = task or first
        free = [*task, *[item for item in free if item not in task]]
    taken = [*first, *free][:1] if state.config.one_turn_per_input else direct_calls.taken_together(free)
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


def _end_cancelled(
    key: ThreadKey, state: ThreadState, turn: Turn, now_ms: int, limits: Limits, world: World
) -> Decisions:
    """End a cancelled turn, once nothing of it runs any more. Calls that are not running need no end of their own."""
    calls = unsettled_calls(state, turn.turn)
    running = [call for call in calls if call.status == "running"]
    if running:
        return end_running(key, state, turn, running, now_ms, limits, world)
    outcomes: dict[str, TurnOutcome] = {"limit": "failed", "recovery": "interrupted"}
    cause = turn.cancelling or "user"
    reason = "the turn's time is over" if cause == "limit" else f"cancelled: {cause}"
    return [end_turn(turn, calls, outcomes.get(cause, "aborted"), reason, world)]


def _turn_limit(turn: Turn, now_ms: int, limits: Limits) -> Append | LookAgain:
    """Return a cancel if the turn's time is over, otherwise when it will be. Time spent waiting does not count."""
    waited = turn.waited_ms
    if turn.waiting_since_ms is not None:
        waited += max(0, now_ms - turn.waiting_since_ms)
    ends_at = turn.started_ms + waited + 1000 * limits.turn_seconds
    if now_ms < ends_at:
        return LookAgain(ends_at)
    note = f"the turn worked for more than {limits.turn_seconds} s"
    return Append(TurnCancelRequested(turn=turn.turn, reason="limit", note=note))


def _is_found_open(step: Step, world: World) -> bool:
    """Whether the step was open when this process took the thread over, and nobody has started it again since."""
    return step.status == "open" and step.starts[-1] == world.taken_over and step.owner != world.owner


def _recover(turn: Turn, step: Step, world: World) -> Decisions:
    """Record the takeover. Then the step is tried again, or the turn is cancelled if its thread wants that.

    What the gone owner's model call did is unknown, and asking again costs tokens a second time: a thread may prefer to
    end (`on_recovery`).
    """
    found = f"step {step.step} open, attempt {step.attempt} by {step.owner}"
    recovered = Append(TurnRecovered(turn=turn.turn, owner=world.owner, found=found))
    if turn.config.on_recovery == "resume":
        return [recovered]
    return [recovered, Append(TurnCancelRequested(turn=turn.turn, reason="recovery", note=found))]


# Steps


def _advance_step(
    state: ThreadState, turn: Turn, step: Step, now_ms: int, limits: Limits, world: World, limit: LookAgain
) -> Decisions:
    """Answer an open step, or start a failed one again.

    An open step is answered by the owner that started it. If it has another owner, that one is gone or has lost the
    partition, and this process starts an attempt of its own. A failed step is tried again after a pause, unless its
    failure is final; a handed over step at once; and one whose context was too long on a shorter context.
    """
    if step.status == "open" and turn.requested is not None:
        return [*_drop(world), direct_calls.answer(turn, step, turn.requested)]
    if step.status == "open":
        if isinstance(world.calling, Calling) and world.calling.started in step.starts:
            return [limit]
        if step.owner == world.owner:
            return [*_drop(world), CallModel(Calling(turn.turn, step.step, step.attempt, step.starts[-1])), limit]
        return [*_drop(world), *_start_step(turn, step.step, step.attempt + 1, step.inputs, world)]
    if step.too_long_base is not None:
        if step.too_long_base == state.base:
            return [_make_room(state, turn, step, world)]
    elif not step.handed_over:
        if not step.retriable or step.failures >= limits.model_tries:
            return [end_turn(turn, (), "failed", step.error, world)]
        if step.retry_at_ms is not None and now_ms < step.retry_at_ms:
            return [LookAgain(min(step.retry_at_ms, limit.at_ms))]
    return [*_drop(world), *_start_step(turn, step.step, step.attempt + 1, step.inputs, world)]


def _make_room(state: ThreadState, turn: Turn, step: Step, world: World) -> Append:
    """Ask for a summary after the model refused the context as too long, once for each base of the context.

    If a summary arrives, the base changes and the step is tried on it. If none can, the turn ends.
    """
    if compaction.may_be_asked_for(state, turn):
        return compaction.request(state, turn)
    why = f"the context is too long for the model, and no summary could take its place: {step.error}"
    return end_turn(turn, (), "failed", why, world)


def _next_step(state: ThreadState, turn: Turn, calls: Sequence[Call], limits: Limits, world: World) -> Decisions:
    """Start the next step, or end the turn: the model has to answer results of its calls and inputs that steer it.

    The limits are looked at after that, so a turn that is finished anyway completes instead of failing by a limit.
    """
    if turn.requested is not None:
        return [direct_calls.end(turn, calls, world)] if turn.steps else _start_step(turn, 1, 1, (), world)
    steering = tuple(
        item.input for item in state.queue if item.mode == "steer" and item.expected_turn in {None, turn.turn}
    )
    called = any(call.step == turn.steps for call in calls)
    if turn.steps > 0 and not called and not steering:
        return [end_turn(turn, (), "completed", None, world)]
    if turn.steps >= limits.steps_per_turn:
        return [end_turn(turn, (), "failed", f"the turn has taken {turn.steps} steps, its limit", world)]
    tokens = turn.input_tokens + turn.output_tokens
    if 0 < limits.turn_tokens <= tokens:
        reason = f"the turn has used {tokens} tokens; {limits.turn_tokens} are its limit"
        return [end_turn(turn, (), "failed", reason, world)]
    if compaction.is_too_large(state, turn, limits):
        return [compaction.request(state, turn)]
    return _start_step(turn, turn.steps + 1, 1, steering, world)


def _start_step(turn: Turn, step: int, attempt: int, inputs: tuple[str, ...], world: World) -> Decisions:
    """Start an attempt of a step. Its event records what the model is asked with, so the answer can be judged later."""
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
                model=turn.config.model if turn.requested is None else direct_calls.MODEL,
                tools_hash=tools_hash(offered_tools(world.catalog, turn.config)),
                owner=world.owner,
            )
        )
    ]
