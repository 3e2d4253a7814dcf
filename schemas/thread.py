"""The fold: what each record of a thread comes to. The only place where control state changes.

Anyone may append; the position decides. In log order, the first record that fits takes effect; every other is a no-op
with a reason. The fold is total and deterministic: it reads nothing but the state and the record, and raises for
nothing. Each handler first asks whether the event fits, and answers with a no-op if it does not; only then it changes
the copy of the state that `fold` made for it.

    duplicate    the same event took effect before (or, for a client's command, was judged before)
    superseded   it would have fitted, but another took its place
    rejected     it never fitted
    ignored      not understood by this version

A service's event id is not remembered: what an event *needs* is what makes it count once. `TRANSITIONS` is the table;
tests and the event reference iterate it.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from json import dumps
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

import pydantic
from pydantic import JsonValue

from schemas import plan as plans
from schemas.codec import Problem, Record, first_error
from schemas.config import CONFIG_BYTES_MAX, Config, merge_patch
from schemas.events import (
    CONTEXT_TOO_LONG,
    POOLS_WITHOUT_EXECUTOR,
    ArtifactRecorded,
    ContextCompacted,
    ContextCompactionFailed,
    ContextCompactionRequested,
    Event,
    InputSubmitted,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    SkillLoaded,
    StepFailed,
    StepFinished,
    StepStarted,
    TaskUpdated,
    ThreadArchived,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadCreated,
    ThreadDescribed,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
    ThreadUnarchived,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnOutcome,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import call_id, parse_call_id
from schemas.state import (
    GRANTS_MAX,
    REMEMBERED_COMMANDS,
    REMEMBERED_INPUTS,
    REMEMBERED_STARTS,
    SKILLS_MAX,
    Call,
    CancelCause,
    Grant,
    LoadedSkill,
    QueuedInput,
    Settled,
    Step,
    ThreadState,
    Turn,
    make,
    replace,
    unsettled_calls,
    waits_for_others,
)
from schemas.tools import SPAWN_THREAD_TOOL, THREAD_POOL

Effect = Literal["applied", "duplicate", "superseded", "rejected", "ignored"]


class Verdict(NamedTuple):
    """What the fold decided about one record. `reason` is None exactly where the effect is `applied`."""

    effect: Effect
    reason: str | None = None


class Folded(NamedTuple):
    """The state after a record, and the verdict on it."""

    state: ThreadState
    verdict: Verdict


APPLIED = Verdict("applied")
DUPLICATE = Verdict("duplicate", "the same event took effect before")
CONFLICT = Verdict("rejected", "conflict: the same command id with other content")
CLOSING_ALREADY = Verdict("superseded", "the thread is closing already")
COMPACTING_ALREADY = Verdict("superseded", "a compaction is asked for already")
ARCHIVED_ALREADY = Verdict("superseded", "the thread is archived")
NOT_ARCHIVED = Verdict("superseded", "the thread is not archived")
CLOSING = Verdict("rejected", "the thread is closing")
CLOSED = Verdict("rejected", "the thread is closed")
NO_DATA = Problem(True, "the record has no data")
NO_THREAD = Verdict("rejected", "no such thread")

USER_PREFIX = "user:"
IMPORT_PREFIX = "import:"

_HASH_REMEMBERED = 16


def fold(state: ThreadState, record: Record) -> Folded:
    """Return the state after the record, and the verdict. The given state stays as it is."""
    after = ThreadState.__new__(ThreadState)
    after.__dict__ = state.__dict__.copy()
    after.seq = state.seq + 1
    after.offset = record.offset
    after.chain = next_chain(state.chain, record)
    verdict = _judge(after, record)
    if verdict.effect == "applied":
        after.updated_ms = record.time_ms
        if after.turn is not None:
            _account_waiting(after, after.turn, record.time_ms)
    return Folded(after, verdict)


def cancelling_already(turn: int) -> Verdict:
    """Return the verdict on a cancel of a turn that is being cancelled already. Ingest answers it like the first."""
    return Verdict("superseded", f"turn {turn} is being cancelled")


def next_chain(chain: str, record: Record) -> str:
    """Return the chain after the record: sha256 over the chain before, the record's id and the hash of its value. It
    covers every record, no-ops included, so a changed, missing or added record changes all chains after it.
    """
    return sha256((chain + record.id + record.data_hash).encode()).hexdigest()


def _judge(state: ThreadState, record: Record) -> Verdict:
    """Judge a record once. A client's command is remembered by its id, whatever its verdict was: sent again, it must
    not be judged by a state that has moved on. A service's event needs no memory, since what it requires makes it count
    once.
    """
    if not record.actor.startswith(USER_PREFIX):
        return _judge_event(state, record)
    remembered = state.commands.get(record.id)
    if remembered is not None:
        return DUPLICATE if remembered == record.data_hash[:_HASH_REMEMBERED] else CONFLICT
    verdict = _judge_event(state, record)
    state.commands = _remember(state.commands, record.id, record.data_hash[:_HASH_REMEMBERED], REMEMBERED_COMMANDS)
    return verdict


def _judge_broken(state: ThreadState, record: Record, problem: Problem) -> Verdict:
    """Judge a record whose data cannot be used. A broken record of a known type is rejected; a type that only a newer
    version knows is ignored, and remembered by name, so that operators see that readers are too old.
    """
    if problem.understood:
        return Verdict("rejected", f"undecodable: {problem.reason}")
    if record.kind not in state.ignored_types:
        state.ignored_types = (*state.ignored_types, record.kind)[-REMEMBERED_STARTS:]
    return Verdict("ignored", problem.reason)


def _judge_event(state: ThreadState, record: Record) -> Verdict:
    """Apply the rules that hold for all events (does the thread exist, is it being imported, is it closed), then the
    event's own handler.
    """
    data = record.data
    if data is None:
        return _judge_broken(state, record, record.problem or NO_DATA)
    transition = TRANSITIONS[type(data)]
    if state.status == "none":
        return NO_THREAD if type(data) is not ThreadCreated else transition.handle(state, record, data)
    importer = record.actor.startswith(IMPORT_PREFIX)
    if state.status == "importing":
        if not (transition.while_importing == "anyone" or (transition.while_importing == "importer" and importer)):
            return Verdict("rejected", "the thread is being imported")
    elif importer and type(data) not in {ThreadCreated, ThreadImportStarted}:
        return Verdict("rejected", "no import is under way")
    if state.status == "closed" and not transition.after_close:
        return CLOSED
    return transition.handle(state, record, data)


# Threads


def _thread_created(state: ThreadState, record: Record, event: ThreadCreated) -> Verdict:
    """The first creation counts. Later ones are races between two callers that derived the same id."""
    if state.status != "none":
        return Verdict("superseded", "the thread exists")
    state.status = "importing" if event.importing else "active"
    state.created_ms = record.time_ms
    state.config, state.config_seq = event.config, state.seq
    state.title, state.labels, state.lineage = event.title, event.labels, event.lineage
    return APPLIED


def _import_started(state: ThreadState, record: Record, event: ThreadImportStarted) -> Verdict:
    """An import may only write to a thread that is idle and has not gone on since the last import: otherwise recorded
    turns would mix with live ones. One import at a time; the same source may start again after a crash.
    """
    if state.status == "importing":
        if state.import_source is None:
            state.import_source = event.source
            return APPLIED
        return (
            DUPLICATE if state.import_source == event.source else Verdict("superseded", "another import is under way")
        )
    if state.status != "active" or state.turn is not None or state.queue:
        return Verdict("rejected", "the thread is not idle")
    if state.live:
        return Verdict("rejected", "the thread has gone on since the last import")
    state.status, state.import_source = "importing", event.source
    return APPLIED


def _import_ended(state: ThreadState, record: Record, event: ThreadImportEnded) -> Verdict:
    """Only the import that is under way ends itself. A late end of another source must not open the thread."""
    if state.status != "importing":
        return Verdict("superseded", "no import is under way")
    if state.import_source not in {None, event.source}:
        return Verdict("superseded", "another import is under way")
    state.status = "active"
    _end_import(state, record)
    return APPLIED


def _end_import(state: ThreadState, record: Record) -> None:
    """Leave the thread as the recorded session did, but with nothing under way: an unfinished turn is interrupted, its
    open calls are unknown and unsafe (nobody can say what they did elsewhere), waiting inputs are dropped and the
    recorded plan is not continued.
    """
    turn = state.turn
    if turn is not None:
        unfinished = unsettled_calls(state, turn.turn)
        state.calls = state.calls | {call.call: replace(call, status="unknown", effect="unsafe") for call in unfinished}
        _end_turn(state, turn, "interrupted", record.data_hash)
    state.queue = ()
    state.plan = plans.set_aside(state.plan)
    state.live, state.import_source = False, None
    _set_base(state)


def _configured(state: ThreadState, record: Record, event: ThreadConfigured) -> Verdict:
    """The patch is checked as a whole configuration, here and not only at the API: two patches that are valid alone can
    be invalid, or too large, one after the other.
    """
    before: JsonValue = state.config.model_dump(mode="json") if state.config is not None else {}
    patched = dumps(merge_patch(before, event.patch))
    if len(patched) > CONFIG_BYTES_MAX:
        return Verdict(
            "rejected", f"the patched configuration has {len(patched)} bytes; {CONFIG_BYTES_MAX} are allowed"
        )
    try:
        config = Config.model_validate_json(patched)
    except pydantic.ValidationError as error:
        return Verdict("rejected", f"the patched configuration is none: {first_error(error)}")
    state.config, state.config_seq = config, state.seq
    return APPLIED


def _described(state: ThreadState, record: Record, event: ThreadDescribed) -> Verdict:
    """Titles and labels are independent of everything else, so the last one wins."""
    if event.title is not None:
        state.title = event.title or None
    if event.labels is not None:
        state.labels = event.labels
    return APPLIED


def _archived(state: ThreadState, record: Record, event: ThreadArchived) -> Verdict:
    if state.archived:
        return ARCHIVED_ALREADY
    state.archived = True
    return APPLIED


def _unarchived(state: ThreadState, record: Record, event: ThreadUnarchived) -> Verdict:
    if not state.archived:
        return NOT_ARCHIVED
    state.archived = False
    return APPLIED


def _rewound(state: ThreadState, record: Record, event: ThreadRewound) -> Verdict:
    """Between turns only. The base moves, so a turn that was decided on the old context cannot start. Calls of later
    turns stay in the state while they are unknown, but leave the context.
    """
    if state.status not in {"active", "importing"}:
        return Verdict("rejected", f"the thread is {state.status}")
    if state.turn is not None:
        return Verdict("rejected", f"turn {state.turn.turn} is open")
    if event.to_turn > state.last_turn:
        return Verdict("rejected", f"there is no turn {event.to_turn}")
    _set_base(state)
    state.live = state.live or not record.actor.startswith(IMPORT_PREFIX)
    state.calls = {
        name: replace(call, rewound=call.rewound or call.turn > event.to_turn) for name, call in state.calls.items()
    }
    return APPLIED


def _close_requested(state: ThreadState, record: Record, event: ThreadCloseRequested) -> Verdict:
    """Closing drops what waits, cancels the open turn and ends an import. The thread is closed once its turn
    has ended.
    """
    if state.status in {"closing", "closed"}:
        return CLOSING_ALREADY
    if state.status == "importing":
        _end_import(state, record)
    state.status, state.queue, state.compaction_requested = "closing", (), False
    if state.turn is not None and state.turn.cancelling is None:
        _cancel(state, state.turn, "close", record.time_ms, discard=True)
    return APPLIED


def _closed(state: ThreadState, record: Record, event: ThreadClosed) -> Verdict:
    """The thread's owner closes it once its plan is finished. This is final: in a closing thread no plan version is
    approved and no task begins, so an owner whose view is old closes nothing over a running task.
    """
    if state.status == "closed":
        return DUPLICATE
    if state.status != "closing" or state.turn is not None:
        return Verdict("rejected", "the thread is not closing" if state.status != "closing" else "a turn is open")
    state.status = "closed"
    return APPLIED


# Inputs


def _input_submitted(state: ThreadState, record: Record, event: InputSubmitted) -> Verdict:
    """An input id counts once, whether it waits, was taken by the open turn, or left the queue before. Any input
    releases those that a recovery held back: somebody has looked. An interrupting input cancels the open turn in the
    same record, so that no step can start between the two.
    """
    in_turn = state.turn is not None and event.input in state.turn.inputs
    if event.input in state.inputs or in_turn or any(item.input == event.input for item in state.queue):
        return Verdict("duplicate", "this input id was submitted before")
    if state.status == "closing":
        return CLOSING
    if event.expected_turn is not None and (state.turn is None or state.turn.turn != event.expected_turn):
        return Verdict("rejected", f"turn {event.expected_turn} is not open")
    if event.mode == "steer" and event.call is not None:
        return Verdict("rejected", "a call that is asked for has a turn of its own")
    if event.mode == "reject" and (state.turn is not None or state.queue):
        return Verdict("rejected", "a turn is open" if state.turn is not None else "inputs are waiting")
    state.inputs = _remember(state.inputs, event.input, state.seq, REMEMBERED_INPUTS)
    released = tuple([replace(item, held=False) if item.held else item for item in state.queue])
    state.queue = (*released, QueuedInput(event.input, event.mode, state.seq, event.expected_turn, call=event.call))
    state.live = state.live or not record.actor.startswith(IMPORT_PREFIX)
    if event.mode == "interrupt" and state.turn is not None and state.turn.cancelling is None:
        _cancel(state, state.turn, "interrupt", record.time_ms, discard=False)
    return APPLIED


def _input_withdrawn(state: ThreadState, record: Record, event: InputWithdrawn) -> Verdict:
    """An input can be taken back while it waits. Afterwards a turn has it."""
    if all(item.input != event.input for item in state.queue):
        if event.input in state.inputs:
            return Verdict("superseded", "the input has left the queue")
        return Verdict("rejected", f"there is no input {event.input}")
    state.queue = tuple([item for item in state.queue if item.input != event.input])
    return APPLIED


# Turns


def _turn_started(state: ThreadState, record: Record, event: TurnStarted) -> Verdict:
    """The next turn starts if no turn is open, all its inputs still wait, and it was decided on the configuration and
    the context base in force. Two owners may both start it: equal starts are duplicates, and of different ones the
    first counts.
    """
    if event.turn <= state.last_turn:
        same = state.turn is not None and state.turn.turn == event.turn and state.turn.started_hash == record.data_hash
        return DUPLICATE if same else Verdict("superseded", f"turn {event.turn} has started")
    if event.turn != state.last_turn + 1 or state.turn is not None:
        return Verdict("rejected", f"turn {state.last_turn + 1} is next" if state.turn is None else "a turn is open")
    if state.status == "closing" or state.config is None:
        return CLOSING
    queued = {item.input: item for item in state.queue}
    if not event.inputs or len(set(event.inputs)) < len(event.inputs):
        return Verdict("rejected", "a turn takes one input or more, each once")
    if any(item not in queued for item in event.inputs):
        return Verdict("superseded", "an input has left the queue")
    if any(queued[item].held for item in event.inputs):
        return Verdict("rejected", "the queue is held until the next input")
    requested = queued[event.inputs[0]].call
    if len(event.inputs) > 1 and any(queued[item].call is not None for item in event.inputs):
        return Verdict("rejected", "a call that is asked for has a turn of its own")
    if event.config != state.config_seq or event.base != state.base:
        return Verdict("superseded", "the configuration or the base of the context has changed")
    taken = set(event.inputs)
    state.queue = tuple([item for item in state.queue if item.input not in taken])
    state.last_turn = event.turn
    state.turn = make(
        Turn,
        turn=event.turn,
        inputs=event.inputs,
        config=state.config,
        follows=record.data_hash,
        started_ms=record.time_ms,
        started_hash=record.data_hash,
        started_seq=state.seq,
        requested=requested,
    )
    state.calls = _without_settled(state.calls)
    state.live = state.live or not record.actor.startswith(IMPORT_PREFIX)
    return APPLIED


def _turn_cancel_requested(state: ThreadState, record: Record, event: TurnCancelRequested) -> Verdict:
    """The first cancel counts. A later one is answered as superseded, and cannot change the cause or whether steering
    inputs are discarded.
    """
    if state.turn is None or state.turn.turn != event.turn:
        if event.turn <= state.last_turn:
            return Verdict("superseded", f"turn {event.turn} has ended")
        return Verdict("rejected", f"there is no turn {event.turn}")
    if state.turn.cancelling is not None:
        return cancelling_already(event.turn)
    _cancel(state, state.turn, event.reason, record.time_ms, discard=event.discard)
    return APPLIED


def _turn_recovered(state: ThreadState, record: Record, event: TurnRecovered) -> Verdict:
    """An audit record: it changes nothing and counts as often as it comes."""
    if state.turn is None or state.turn.turn != event.turn:
        return Verdict("superseded", f"turn {event.turn} is not open")
    return APPLIED


def _turn_ended(state: ThreadState, record: Record, event: TurnEnded) -> Verdict:
    """A turn ends when its end follows the last answer that took effect, and nothing of it is left that could still
    have an effect unseen.
    """
    turn = state.turn
    if turn is None or turn.turn != event.turn:
        if event.turn == state.last_turn and state.last_turn_hash == record.data_hash:
            return DUPLICATE
        known = event.turn <= state.last_turn
        return Verdict("superseded" if known else "rejected", f"turn {event.turn} is not open")
    why = _why_not_ended(state, turn, event)
    if why is not None:
        return Verdict("superseded", why)
    _end_turn(state, turn, event.outcome, record.data_hash)
    return APPLIED


def _why_not_ended(state: ThreadState, turn: Turn, event: TurnEnded) -> str | None:
    """Return why the turn cannot end so, or None. Running and repeatable calls hold it up, and unknown ones have to be
    named: whoever ends the turn must have seen them. `follows` proves that no answer came in between, in a cancelled
    turn too: otherwise a second owner could end the turn, start the next one and lose a late answer that counted.
    """
    waiting = unsettled_calls(state, turn.turn)
    if any(call.status in {"running", "repeatable"} for call in waiting):
        return "a call is running or may run again"
    if {call.call for call in waiting if call.status == "unknown"} != set(event.unknown_calls):
        return "the unknown calls are others than those named"
    if turn.cancelling is not None and event.outcome == "completed":
        return "the turn is being cancelled"
    if event.follows != turn.follows:
        return "another answer took its place"
    if turn.cancelling is not None:
        return None
    if turn.step is not None and (turn.step.status == "open" or event.outcome == "completed"):
        return f"step {turn.step.step} is {turn.step.status}"
    if turn.steps == 0 and event.outcome == "completed":
        return "no step has finished"
    if any(call.status != "unknown" for call in waiting):
        return "a call is not settled"
    return None


def _end_turn(state: ThreadState, turn: Turn, outcome: TurnOutcome, data_hash: str) -> None:
    """Close the turn. Inputs that were meant for this turn alone leave the queue; unknown calls stay in the state until
    they are settled.
    """
    state.queue = tuple([item for item in state.queue if item.expected_turn != turn.turn])
    state.turn, state.last_outcome, state.last_turn_hash = None, outcome, data_hash
    state.calls = _without_settled(state.calls)


def _cancel(state: ThreadState, turn: Turn, cause: CancelCause, time_ms: int, *, discard: bool) -> None:
    """Begin to cancel the open turn: every call that is neither running nor unknown is settled at once, or becomes
    unknown if an earlier claim may have run. After a recovery, waiting inputs are held until another input comes, so
    that the turn after a crash loop is not started by a machine.
    """
    state.turn = replace(turn, cancelling=cause, cancelled_ms=time_ms)
    state.calls = state.calls | {
        call.call: replace(call, status="unknown") if call.may_have_run else _settled(call, "cancelled", None)
        for call in unsettled_calls(state, turn.turn)
        if call.status not in {"running", "unknown"}
    }
    if discard:
        state.queue = tuple([item for item in state.queue if item.mode != "steer"])
    if cause == "recovery":
        state.queue = tuple([replace(item, held=True) for item in state.queue])


# Steps


def _step_started(state: ThreadState, record: Record, event: StepStarted) -> Verdict:
    """A step starts when it follows the last answer that took effect and nothing holds the turn up. Another attempt of
    the same step lists the same inputs; every start stays valid for late answers, since the first answer wins.
    """
    turn = state.turn
    if turn is None or turn.turn != event.turn:
        return Verdict("superseded" if event.turn <= state.last_turn else "rejected", f"turn {event.turn} is not open")
    if turn.cancelling is not None:
        return Verdict("rejected", "the turn is being cancelled")
    step = turn.step
    if step is not None and step.step == event.step and event.attempt <= step.attempt:
        return DUPLICATE if record.data_hash in step.starts else Verdict("superseded", "this attempt has started")
    if event.step <= turn.steps:
        return Verdict("superseded", f"step {event.step} has finished")
    if event.follows != turn.follows:
        return Verdict("superseded", "another answer took its place")
    if _holds_up(state, turn):
        return Verdict("rejected", "a call is not settled")
    if step is None:
        return _first_attempt(state, record, event, turn)
    if event.step != step.step or event.attempt != step.attempt + 1:
        return Verdict("rejected", f"attempt {step.attempt + 1} of step {step.step} is next")
    if event.inputs != step.inputs:
        return Verdict("rejected", "another attempt must list the same inputs")
    again = replace(
        step,
        attempt=event.attempt,
        status="open",
        starts=(*step.starts, record.data_hash)[-REMEMBERED_STARTS:],
        owner=event.owner,
        started_ms=record.time_ms,
        retry_at_ms=None,
        handed_over=False,
    )
    state.turn = replace(turn, step=again)
    return APPLIED


def _holds_up(state: ThreadState, turn: Turn) -> bool:
    """Return whether a call has to be settled before the turn continues. In an imported session an unknown call does
    not hold the turn up: the recorded session continued without ever telling how the call ended.
    """
    importing = state.status == "importing"
    return any(not (importing and call.status == "unknown") for call in unsettled_calls(state, turn.turn))


def _first_attempt(state: ThreadState, record: Record, event: StepStarted, turn: Turn) -> Verdict:
    """The first attempt takes steering inputs out of the queue. A start whose inputs were withdrawn meanwhile does not
    fit; its owner decides again.
    """
    if event.step != turn.steps + 1 or event.attempt != 1:
        return Verdict("rejected", f"attempt 1 of step {turn.steps + 1} is next")
    steering = {item.input for item in state.queue if item.mode == "steer"}
    if len(set(event.inputs)) < len(event.inputs) or not steering.issuperset(event.inputs):
        return Verdict("superseded", "a steering input has left the queue")
    taken = set(event.inputs)
    state.queue = tuple([item for item in state.queue if item.input not in taken])
    step = make(
        Step,
        step=event.step,
        attempt=1,
        status="open",
        inputs=event.inputs,
        starts=(record.data_hash,),
        owner=event.owner,
        started_ms=record.time_ms,
        seq=state.seq,
    )
    state.turn = replace(turn, step=step)
    return APPLIED


def _find_open_step(state: ThreadState, turn: int, step: int) -> tuple[Turn, Step] | Verdict:
    """Return the turn and its open step, or the verdict on an event that speaks of another one."""
    if state.turn is None or state.turn.turn != turn:
        return Verdict("superseded" if turn <= state.last_turn else "rejected", f"turn {turn} is not open")
    if step <= state.turn.steps:
        return Verdict("superseded", f"step {step} has finished")
    if state.turn.step is None or state.turn.step.step != step:
        return Verdict("rejected", f"step {step} has not started")
    if state.turn.step.status != "open":
        return Verdict("superseded", f"step {step} has failed")
    return state.turn, state.turn.step


def _step_finished(state: ThreadState, record: Record, event: StepFinished) -> Verdict:
    """The first answer to any start of the step wins. Its data hash becomes what the next events must follow. Calls of
    an answer that comes while the turn is cancelled are recorded as cancelled, never run.
    """
    if state.turn is not None and state.turn.follows == record.data_hash:
        return DUPLICATE
    found = _find_open_step(state, event.turn, event.step)
    if isinstance(found, Verdict):
        return found
    turn, step = found
    if event.started not in step.starts:
        return Verdict("superseded", "it answers a start that did not take effect")
    if any(call.index != place for place, call in enumerate(event.calls)):
        return Verdict("rejected", "calls are numbered from 0 in their order")
    state.turn = replace(
        turn,
        follows=record.data_hash,
        steps=event.step,
        step=None,
        input_tokens=turn.input_tokens + event.usage.input_tokens,
        output_tokens=turn.output_tokens + event.usage.output_tokens,
    )
    state.context_tokens = event.usage.input_tokens + event.usage.output_tokens
    calls = _without_settled(state.calls)
    for proposed in event.calls:
        call = make(
            Call,
            call=call_id(event.turn, event.step, proposed.index),
            turn=event.turn,
            step=event.step,
            index=proposed.index,
            tool=proposed.tool,
            args=proposed.args,
            call_hash=proposed.call_hash,
            status="proposed",
            seq=state.seq,
            malformed=proposed.malformed,
        )
        calls[call.call] = call if turn.cancelling is None else _settled(call, "cancelled", record.id)
    state.calls = calls
    return APPLIED


def _step_failed(state: ThreadState, record: Record, event: StepFailed) -> Verdict:
    """Only the latest attempt can fail the step: an earlier attempt that fails late says nothing about the one under
    way. Handing over and a context that is too long do not count as failures of the model.
    """
    found = _find_open_step(state, event.turn, event.step)
    if isinstance(found, Verdict):
        return found
    turn, step = found
    if event.started != step.starts[-1]:
        return Verdict("superseded", "a later attempt has started")
    too_long = event.error.kind == CONTEXT_TOO_LONG
    failed = replace(
        step,
        status="failed",
        failures=step.failures + (0 if event.handed_over or too_long else 1),
        retriable=event.retriable,
        retry_at_ms=event.retry_at_ms,
        error=event.error.message,
        handed_over=event.handed_over,
        too_long_base=state.base if too_long else None,
    )
    state.turn = replace(turn, step=failed)
    return APPLIED


# Tool calls


def _find(state: ThreadState, call: str) -> Call | Verdict:
    """Return the call, or the verdict on an event about a call that the state does not have: it never existed, or it
    was settled and forgotten.
    """
    found = state.calls.get(call)
    if found is not None:
        return found
    parts = parse_call_id(call)
    if parts is None or parts.turn > state.last_turn:
        return Verdict("rejected", f"there is no call {call}")
    if state.turn is not None and state.turn.turn == parts.turn and parts.step >= state.turn.steps:
        return Verdict("rejected", f"there is no call {call}")
    return Verdict("superseded", f"the call {call} is settled, or never was")


def _find_unsettled(state: ThreadState, call: str, record: Record) -> Call | Verdict:
    """Return the call if it is not settled. The event that settled it is a duplicate, every other one came too late."""
    found = _find(state, call)
    if isinstance(found, Call) and found.settled:
        return DUPLICATE if found.settled_by == record.id else Verdict("superseded", f"the call is {found.outcome}")
    return found


def _approval_requested(state: ThreadState, record: Record, event: ToolCallApprovalRequested) -> Verdict:
    """Asking for approval does not decide. The hash binds the question to the arguments that people are shown."""
    call = _find_unsettled(state, event.call, record)
    if isinstance(call, Verdict):
        return call
    if call.call_hash != event.call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
    if call.status != "proposed":
        return Verdict("superseded", f"the call is {call.status}")
    _put(state, replace(call, status="waiting", expires_at_ms=event.expires_at_ms))
    return APPLIED


def _undecided(state: ThreadState, record: Record, call_name: str, call_hash: str) -> Call | Verdict:
    """Return the call if nobody has decided about it yet. The first decision counts; the verdict on a second one names
    who was first.
    """
    call = _find_unsettled(state, call_name, record)
    if isinstance(call, Verdict):
        return call
    if call.status not in {"proposed", "waiting"}:
        by = f", approved by {call.approved_by}" if call.approved_by else ""
        return Verdict("superseded", f"the call is {call.status}{by}")
    if call.call_hash != call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
    return call


def _approved(state: ThreadState, record: Record, event: ToolCallApproved) -> Verdict:
    """Approve the call, with other arguments if the approver edited them; from then on the edited hash is in force. A
    wider scope is remembered as a grant that the runtime uses for later calls.
    """
    call = _undecided(state, record, event.call, event.call_hash)
    if isinstance(call, Verdict):
        return call
    approved = replace(call, status="approved", approved_by=event.by, expires_at_ms=None)
    if event.edited is not None:
        approved = replace(approved, args=event.edited.args, call_hash=event.edited.call_hash, malformed=None)
    _put(state, approved)
    grant = Grant(None if event.tool else approved.call_hash, event.tool, event.by)
    if event.scope == "thread":
        state.grants = (*state.grants, grant)[-GRANTS_MAX:]
    elif event.scope == "turn" and state.turn is not None:
        state.turn = replace(state.turn, grants=(*state.turn.grants, grant)[-GRANTS_MAX:])
    return APPLIED


def _denied(state: ThreadState, record: Record, event: ToolCallDenied) -> Verdict:
    """A denial settles the call: it never runs."""
    call = _undecided(state, record, event.call, event.call_hash)
    if isinstance(call, Verdict):
        return call
    _put(state, _settled(call, "denied", record.id))
    return APPLIED


def _approval_expired(state: ThreadState, record: Record, event: ToolCallApprovalExpired) -> Verdict:
    """Time denies a call only while it waits for a person."""
    call = _undecided(state, record, event.call, event.call_hash)
    if isinstance(call, Verdict):
        return call
    if call.status != "waiting":
        return Verdict("rejected", "the call waits for nobody")
    _put(state, _settled(call, "expired", record.id))
    return APPLIED


def _dispatched(state: ThreadState, record: Record, event: ToolCallDispatched) -> Verdict:
    """Dispatch the next attempt of an approved or repeatable call, once: the attempt number makes a second owner's
    dispatch superseded. A turn that is being cancelled dispatches nothing. In pools without executors the dispatch is
    the claim.
    """
    call = _find_unsettled(state, event.call, record)
    if isinstance(call, Verdict):
        return call
    if event.attempt <= call.attempt:
        same = event.attempt == call.attempt and call.dispatch_hash == record.data_hash
        return DUPLICATE if same else Verdict("superseded", f"attempt {event.attempt} has been dispatched")
    if call.status not in {"approved", "repeatable"}:
        return Verdict("rejected", f"the call is {call.status}")
    if call.call_hash != event.call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
    if event.attempt != call.attempt + 1:
        return Verdict("rejected", f"attempt {call.attempt + 1} is next")
    if state.turn is None or state.turn.turn != call.turn or state.turn.cancelling is not None:
        return Verdict("rejected", "the call's turn is over or being cancelled")
    dispatched = replace(
        call,
        status="dispatched",
        attempt=event.attempt,
        dispatch_hash=record.data_hash,
        effect=event.effect,
        pool=event.pool,
        last=event.last,
        deadline_ms=event.deadline_ms,
        timeout_ms=event.timeout_ms,
        lease_seconds=None,
        executor=None,
    )
    if event.pool == THREAD_POOL and event.tool == SPAWN_THREAD_TOOL:
        state.turn = replace(state.turn, children=state.turn.children + 1)
    if event.pool in POOLS_WITHOUT_EXECUTOR:
        dispatched = replace(
            dispatched, status="running", claim=record.id, claim_attempt=event.attempt, claimed_ms=record.time_ms
        )
    _put(state, dispatched)
    return APPLIED


def _started(state: ThreadState, record: Record, event: ToolCallStarted) -> Verdict:
    """A claim. The first executor whose claim of the attempt is read wins; it runs the tool only after it has read its
    own claim back, so a call with side effects has one winner.
    """
    call = _find_unsettled(state, event.call, record)
    if isinstance(call, Verdict):
        return call
    if call.attempt != event.attempt:
        return Verdict(
            "superseded" if event.attempt < call.attempt else "rejected", f"attempt {call.attempt} is the last"
        )
    if call.status != "dispatched":
        if call.status == "running" and call.claim == record.id:
            return DUPLICATE
        return Verdict("superseded", f"the call is {call.status}")
    _put(
        state,
        replace(
            call,
            status="running",
            claim=record.id,
            claim_attempt=event.attempt,
            claimed_ms=record.time_ms,
            lease_seconds=event.lease_seconds,
            executor=event.executor,
        ),
    )
    return APPLIED


def _finished(state: ThreadState, record: Record, event: ToolCallFinished) -> Verdict:
    """A result counts under the claim in force. The result of a pure call counts for any attempt, the first one wins:
    running it twice does no harm. `not_started` is the executor's word that its claim had no effect.
    """
    call = _find_unsettled(state, event.call, record)
    if isinstance(call, Verdict):
        return call
    under_claim = call.claim == event.claim and call.claim_attempt == event.attempt
    if event.outcome == "not_started":
        if not under_claim:
            return Verdict("superseded", "it speaks of a claim that is not in force")
        return _claim_never_ran(state, record, call)
    first_pure = call.effect == "pure" and 0 < event.attempt <= call.attempt
    if not under_claim and not first_pure:
        return Verdict("superseded", "it speaks of a claim that is not in force")
    _put(state, _settled(call, event.outcome, record.id))
    return APPLIED


def _claim_never_ran(state: ThreadState, record: Record, call: Call) -> Verdict:
    """The executor that held the last claim reports that it did nothing under it: the claim no longer counts."""
    unclaimed = replace(call, claim=None)
    if call.status == "running":
        _put(state, _not_started(state, unclaimed, record.id))
        return APPLIED
    if call.lost_claims == 0:
        return Verdict("superseded", f"the call is {call.status}")
    unclaimed = replace(unclaimed, lost_claims=call.lost_claims - 1)
    _put(state, unclaimed if call.status == "dispatched" else _not_started(state, unclaimed, record.id))
    return APPLIED


def _lost(state: ThreadState, record: Record, event: ToolCallLost) -> Verdict:
    """A claim is lost when its lease is over without an end. It must name the claim in force: a lease that was judged
    by an old view must not take a fresh claim away.
    """
    call = _find_unsettled(state, event.call, record)
    if isinstance(call, Verdict):
        return call
    if call.attempt != event.attempt:
        return Verdict(
            "superseded" if event.attempt < call.attempt else "rejected", f"attempt {call.attempt} is the last"
        )
    if call.status == "dispatched" and event.claim is None:
        _put(state, _not_started(state, call, record.id))
        return APPLIED
    if call.status != "running":
        return Verdict("superseded", f"the call is {call.status}")
    if event.claim != call.claim:
        return Verdict("superseded", "another claim is in force")
    _put(state, _lost_claim(state, call, record.id))
    return APPLIED


def _resolved(state: ThreadState, record: Record, event: ToolCallResolved) -> Verdict:
    """Somebody who knows settles an unknown call, or allows it to run again. Running again needs the call's own turn,
    open and not being cancelled.
    """
    call = _find_unsettled(state, event.call, record)
    if isinstance(call, Verdict):
        return call
    if call.status != "unknown":
        return Verdict("superseded", f"the call is {call.status}")
    if call.attempt != event.attempt:
        return Verdict("superseded", f"attempt {call.attempt} is the last")
    if event.decision != "again":
        _put(state, _settled(call, event.decision, record.id))
        return APPLIED
    if state.turn is None or state.turn.turn != call.turn:
        return Verdict("rejected", f"turn {call.turn} is over: the call cannot run again in it")
    if state.turn.cancelling is not None:
        return Verdict("rejected", f"turn {call.turn} is being cancelled: the call cannot run again in it")
    _put(state, replace(call, status="repeatable", last=False))
    return APPLIED


def _is_cancelling(state: ThreadState, call: Call) -> bool:
    """Return whether nothing of the call's turn may start again, because the turn is being cancelled or is over."""
    return state.turn is None or state.turn.turn != call.turn or state.turn.cancelling is not None


def _not_started(state: ThreadState, call: Call, by: str) -> Call:
    """Return the call after an attempt that never ran: it may run again, is unknown because an earlier claim may have
    run, or is settled.
    """
    over = _is_cancelling(state, call)
    if not over and not call.last:
        return replace(call, status="repeatable")
    if call.may_have_run:
        return replace(call, status="unknown")
    return _settled(call, "cancelled" if over else "not_started", by)


def _lost_claim(state: ThreadState, call: Call, by: str) -> Call:
    """Return the call after a claimed attempt whose end nobody saw. Pure and idempotent calls run again if policy
    allows; anything else that may have run is unknown.
    """
    over = _is_cancelling(state, call)
    lost = call if call.effect == "pure" else replace(call, lost_claims=call.lost_claims + 1)
    if call.effect in {"pure", "idempotent"} and not over and not call.last:
        return replace(lost, status="repeatable")
    if lost.may_have_run:
        return replace(lost, status="unknown")
    return _settled(lost, "cancelled" if over else "failed", by)


def _settled(call: Call, outcome: Settled, by: str | None) -> Call:
    """Return the call as settled. The arguments leave the state: they are in history, and can be large."""
    return replace(call, status="settled", outcome=outcome, settled_by=by, args={}, malformed=None)


def _without_settled(calls: dict[str, Call]) -> dict[str, Call]:
    """Return the calls that still matter to the next step. Settled ones leave the state, which therefore does not grow
    with the thread.
    """
    return {name: call for name, call in calls.items() if call.status != "settled"}


def _put(state: ThreadState, call: Call) -> None:
    """Put the call into a new dict: states share theirs."""
    state.calls = {**state.calls, call.call: call}


# Context and plans


def _compaction_requested(state: ThreadState, record: Record, event: ContextCompactionRequested) -> Verdict:
    """A summary is asked for between steps. A runtime names the base and turn it measured, so that two runtimes that
    saw the same large context ask once; after a failed summary it does not ask again in the same turn. People may ask
    at any time.
    """
    if state.status != "active":
        return Verdict("rejected", f"the thread is {state.status}")
    if state.compaction_requested:
        return COMPACTING_ALREADY
    if event.turn > 0 and (event.base, event.turn) != (state.base, state.last_turn):
        return Verdict("superseded", "the context is another one than that which was too large")
    if event.turn > 0 and state.compaction_failed_turn == event.turn:
        return Verdict("superseded", "a summary was asked for in this turn, and failed")
    if _has_open_step(state):
        return Verdict("rejected", "a step is open; ask between steps")
    state.compaction_requested, state.compaction_seq = True, state.seq
    return APPLIED


def _compaction_failed(state: ThreadState, record: Record, event: ContextCompactionFailed) -> Verdict:
    """The request is answered by its own failure only: a late failure of an earlier request must not end the
    next one.
    """
    if not state.compaction_requested or event.base != state.base or event.requested != state.compaction_seq:
        return Verdict("superseded", "it speaks of a request that is not in force")
    state.compaction_requested, state.compaction_failed_turn = False, state.last_turn
    return APPLIED


def _compacted(state: ThreadState, record: Record, event: ContextCompacted) -> Verdict:
    """A summary replaces what stands between the base and itself. It counts only for the base that it summarised, so a
    rewind in between makes it superseded.
    """
    if state.status not in {"active", "importing"}:
        return Verdict("rejected", f"the thread is {state.status}")
    if event.base != state.base:
        return Verdict("superseded", "the base of the context has changed")
    if event.through_seq >= state.seq or event.through_seq < state.base:
        return Verdict("rejected", "a summary stands for items since the base and before itself")
    if _has_open_step(state) or (state.turn is not None and _holds_up(state, state.turn)):
        return Verdict("rejected", "a step is open, or a call not settled")
    _set_base(state)
    state.compaction_requested = False
    state.live = state.live or not record.actor.startswith(IMPORT_PREFIX)
    return APPLIED


def _set_base(state: ThreadState) -> None:
    """Begin another context with this record. What was measured of the last one no longer holds."""
    state.base, state.context_tokens, state.compaction_failed_turn = state.seq, 0, None


def _has_open_step(state: ThreadState) -> bool:
    """Return whether a step is under way. A failed step is a boundary, too: where the context was too long for the
    model, a summary lets it try again.
    """
    return state.turn is not None and state.turn.step is not None and state.turn.step.status == "open"


def _plan_proposed(state: ThreadState, record: Record, event: PlanProposed) -> Verdict:
    """Versions are numbered without gaps. A version that a call proposes needs that call to run: its result will report
    what became of the version, and of one version only.
    """
    if event.plan_version != state.plan.last_version + 1:
        known = event.plan_version <= state.plan.last_version
        return Verdict("superseded" if known else "rejected", f"version {state.plan.last_version + 1} is next")
    if state.status == "closing":
        return CLOSING
    problem = plans.graph_problem(event.tasks)
    if problem is not None:
        return Verdict("rejected", problem)
    if event.call is not None and state.status != "importing":
        call = state.calls.get(event.call)
        if call is None or call.status != "running":
            return Verdict("superseded", "the call does not run any more")
        if event.call in state.plan.proposals:
            return Verdict("superseded", f"the call has proposed version {state.plan.proposals[event.call]}")
    state.plan = plans.propose(state.plan, event.plan_version, event.tasks, event.call)
    state.live = state.live or not record.actor.startswith(IMPORT_PREFIX)
    return APPLIED


def _plan_approved(state: ThreadState, record: Record, event: PlanApproved) -> Verdict:
    """The version that waits comes into force, unless the thread is closing: an approved plan would begin tasks."""
    if state.plan.waiting != event.plan_version:
        return Verdict("superseded", f"version {event.plan_version} does not wait for an answer")
    if state.status == "closing":
        return CLOSING
    state.plan = plans.approve(state.plan, record.time_ms)
    return APPLIED


def _plan_rejected(state: ThreadState, record: Record, event: PlanRejected) -> Verdict:
    """The version that waits is answered, and what was in force stays in force."""
    if state.plan.waiting != event.plan_version:
        return Verdict("superseded", f"version {event.plan_version} does not wait for an answer")
    state.plan = plans.reject(state.plan, event.reason)
    return APPLIED


def _task_updated(state: ThreadState, record: Record, event: TaskUpdated) -> Verdict:
    """A task moves under the version in force. A child's own end counts under any version: the child was begun,
    whatever became of the version that began it.
    """
    if state.plan.in_force != event.plan_version and not plans.is_of_child(state.plan, event.task, event.child):
        return Verdict("superseded", f"version {event.plan_version} is not in force")
    if state.status == "closing" and event.status == "running":
        return CLOSING
    waits = plans.waits_for(state.plan, event.task) if event.status == "running" and state.status != "importing" else ()
    if waits:
        # Another owner's plan has the same version, and other tasks: that of an answer that did not take effect.
        return Verdict("superseded", f"task {event.task!r} waits for {', '.join(waits)}")
    updated = plans.update_task(
        state.plan, event.task, event.status, event.child, event.result, event.plan_version, record.time_ms
    )
    if isinstance(updated, str):
        return Verdict("superseded", updated)
    state.plan = updated
    return APPLIED


def _recorded(state: ThreadState, record: Record, event: ArtifactRecorded) -> Verdict:
    """An artifact is history only."""
    return APPLIED


def _skill_loaded(state: ThreadState, record: Record, event: SkillLoaded) -> Verdict:
    """The state remembers the last loaded version of each skill, so that a new owner restores it into the workspace."""
    skill = LoadedSkill(event.skill_version, event.sha256)
    if state.skills.get(event.name) == skill:
        return Verdict("duplicate", "this version of the skill is loaded")
    known = event.name in state.skills
    state.skills = (
        {**state.skills, event.name: skill} if known else _remember(state.skills, event.name, skill, SKILLS_MAX)
    )
    return APPLIED


def _account_waiting(state: ThreadState, turn: Turn, time_ms: int) -> None:
    """Add up the time in which the turn waits for people or other threads. It does not count against the turn's
    limit.
    """
    waits = waits_for_others(state)
    if waits and turn.waiting_since_ms is None:
        state.turn = replace(turn, waiting_since_ms=time_ms)
    elif not waits and turn.waiting_since_ms is not None:
        waited = max(0, time_ms - turn.waiting_since_ms)
        state.turn = replace(turn, waiting_since_ms=None, waited_ms=turn.waited_ms + waited)


Value = TypeVar("Value")


def _remember(memory: dict[str, Value], name: str, value: Value, most: int) -> dict[str, Value]:
    """Return the memory with one more entry and, if it is full, without its oldest. Dicts keep insertion order."""
    if len(memory) < most:
        return {**memory, name: value}
    kept = dict(memory)
    del kept[next(iter(kept))]
    kept[name] = value
    return kept


# The table

Handler: TypeAlias = Callable[[ThreadState, Record, Event], Verdict]


class Transition(NamedTuple):
    """A row of the table: which handler judges an event, and when it is asked at all."""

    handle: Handler
    by: str
    """Who appends it."""
    while_importing: Literal["nobody", "importer", "anyone"] = "nobody"
    """Whose it may be while the thread is being imported."""
    after_close: bool = False
    """Whether it may still fit once the thread is closed."""


E = TypeVar("E", bound=Event)


def _row(
    handle: Callable[[ThreadState, Record, E], Verdict],
    by: str,
    while_importing: Literal["nobody", "importer", "anyone"] = "nobody",
    *,
    after_close: bool = False,
) -> Transition:
    return Transition(cast("Handler", handle), by, while_importing, after_close)


TRANSITIONS: Mapping[type[Event], Transition] = {
    ThreadCreated: _row(_thread_created, "ingest, runtime, importer", "anyone", after_close=True),
    ThreadImportStarted: _row(_import_started, "importer", "importer"),
    ThreadImportEnded: _row(_import_ended, "importer", "importer"),
    ThreadConfigured: _row(_configured, "ingest"),
    ThreadDescribed: _row(_described, "ingest", "anyone"),
    ThreadArchived: _row(_archived, "ingest", "anyone"),
    ThreadUnarchived: _row(_unarchived, "ingest", "anyone"),
    ThreadRewound: _row(_rewound, "ingest, importer", "importer"),
    ThreadCloseRequested: _row(_close_requested, "ingest", "anyone"),
    ThreadClosed: _row(_closed, "runtime", after_close=True),
    InputSubmitted: _row(_input_submitted, "ingest, runtime, importer", "importer"),
    InputWithdrawn: _row(_input_withdrawn, "ingest"),
    TurnStarted: _row(_turn_started, "runtime, importer", "importer"),
    TurnCancelRequested: _row(_turn_cancel_requested, "ingest, runtime", "importer"),
    TurnRecovered: _row(_turn_recovered, "runtime"),
    TurnEnded: _row(_turn_ended, "runtime, importer", "importer"),
    StepStarted: _row(_step_started, "runtime, importer", "importer"),
    StepFinished: _row(_step_finished, "runtime, importer", "importer"),
    StepFailed: _row(_step_failed, "runtime, importer", "importer"),
    ToolCallApprovalRequested: _row(_approval_requested, "runtime, importer", "importer"),
    ToolCallApproved: _row(_approved, "ingest, runtime, importer", "importer"),
    ToolCallDenied: _row(_denied, "ingest, runtime, importer", "importer"),
    ToolCallApprovalExpired: _row(_approval_expired, "runtime", "importer"),
    ToolCallDispatched: _row(_dispatched, "runtime, importer", "importer"),
    ToolCallStarted: _row(_started, "tool_executor, importer", "importer"),
    ToolCallFinished: _row(_finished, "tool_executor, ingest, runtime, importer", "importer", after_close=True),
    ToolCallLost: _row(_lost, "tool_executor, runtime, importer", "importer"),
    ToolCallResolved: _row(_resolved, "ingest, tool_executor", after_close=True),
    ContextCompactionRequested: _row(_compaction_requested, "ingest, runtime"),
    ContextCompacted: _row(_compacted, "runtime, importer", "importer"),
    ContextCompactionFailed: _row(_compaction_failed, "runtime"),
    PlanProposed: _row(_plan_proposed, "ingest, runtime, importer", "importer"),
    PlanApproved: _row(_plan_approved, "ingest, runtime, importer", "importer"),
    PlanRejected: _row(_plan_rejected, "ingest, runtime", "importer"),
    TaskUpdated: _row(_task_updated, "runtime, importer", "importer"),
    ArtifactRecorded: _row(_recorded, "ingest, importer", "anyone", after_close=True),
    SkillLoaded: _row(_skill_loaded, "runtime"),
}
