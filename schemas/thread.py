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
    effect: Effect
    reason: str | None = None


class Folded(NamedTuple):
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
    """The state after the record, and what the record came to. The state that is given stays as it is."""
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
    return Verdict("superseded", f"turn {turn} is being cancelled")


def next_chain(chain: str, record: Record) -> str:
    return sha256((chain + record.id + record.data_hash).encode()).hexdigest()


def _judge(s: ThreadState, record: Record) -> Verdict:
    if not record.actor.startswith(USER_PREFIX):
        return _judge_event(s, record)
    remembered = s.commands.get(record.id)
    if remembered is not None:
        return DUPLICATE if remembered == record.data_hash[:_HASH_REMEMBERED] else CONFLICT
    verdict = _judge_event(s, record)
    s.commands = _remember(s.commands, record.id, record.data_hash[:_HASH_REMEMBERED], REMEMBERED_COMMANDS)
    return verdict


def _judge_broken(s: ThreadState, record: Record, problem: Problem) -> Verdict:
    if problem.understood:
        return Verdict("rejected", f"undecodable: {problem.reason}")
    if record.kind not in s.ignored_types:
        s.ignored_types = (*s.ignored_types, record.kind)[-REMEMBERED_STARTS:]
    return Verdict("ignored", problem.reason)


def _judge_event(s: ThreadState, record: Record) -> Verdict:
    data = record.data
    if data is None:
        return _judge_broken(s, record, record.problem or NO_DATA)
    transition = TRANSITIONS[type(data)]
    if s.status == "none":
        return NO_THREAD if type(data) is not ThreadCreated else transition.handle(s, record, data)
    importer = record.actor.startswith(IMPORT_PREFIX)
    if s.status == "importing":
        if not (transition.while_importing == "anyone" or (transition.while_importing == "importer" and importer)):
            return Verdict("rejected", "the thread is being imported")
    elif importer and type(data) not in {ThreadCreated, ThreadImportStarted}:
        return Verdict("rejected", "no import is under way")
    if s.status == "closed" and not transition.after_close:
        return CLOSED
    return transition.handle(s, record, data)


# Threads


def _thread_created(s: ThreadState, r: Record, d: ThreadCreated) -> Verdict:
    if s.status != "none":
        return Verdict("superseded", "the thread exists")
    s.status = "importing" if d.importing else "active"
    s.created_ms = r.time_ms
    s.config, s.config_seq = d.config, s.seq
    s.title, s.labels, s.lineage = d.title, d.labels, d.lineage
    return APPLIED


def _import_started(s: ThreadState, r: Record, d: ThreadImportStarted) -> Verdict:
    if s.status == "importing":
        if s.import_source is None:
            s.import_source = d.source
            return APPLIED
        return DUPLICATE if s.import_source == d.source else Verdict("superseded", "another import is under way")
    if s.status != "active" or s.turn is not None or s.queue:
        return Verdict("rejected", "the thread is not idle")
    if s.live:
        return Verdict("rejected", "the thread has gone on since the last import")
    s.status, s.import_source = "importing", d.source
    return APPLIED


def _import_ended(s: ThreadState, r: Record, d: ThreadImportEnded) -> Verdict:
    if s.status != "importing":
        return Verdict("superseded", "no import is under way")
    if s.import_source not in {None, d.source}:
        return Verdict("superseded", "another import is under way")
    s.status = "active"
    _end_import(s, r)
    return APPLIED


def _end_import(s: ThreadState, r: Record) -> None:
    turn = s.turn
    if turn is not None:
        unfinished = unsettled_calls(s, turn.turn)
        s.calls = s.calls | {call.call: replace(call, status="unknown", effect="unsafe") for call in unfinished}
        _end_turn(s, turn, "interrupted", r.data_hash)
    s.queue = ()
    s.plan = plans.set_aside(s.plan)
    s.live, s.import_source = False, None
    _set_base(s)


def _configured(s: ThreadState, r: Record, d: ThreadConfigured) -> Verdict:
    before: JsonValue = s.config.model_dump(mode="json") if s.config is not None else {}
    patched = dumps(merge_patch(before, d.patch))
    if len(patched) > CONFIG_BYTES_MAX:
        return Verdict(
            "rejected", f"the patched configuration has {len(patched)} bytes; {CONFIG_BYTES_MAX} are allowed"
        )
    try:
        config = Config.model_validate_json(patched)
    except pydantic.ValidationError as error:
        return Verdict("rejected", f"the patched configuration is none: {first_error(error)}")
    s.config, s.config_seq = config, s.seq
    return APPLIED


def _described(s: ThreadState, r: Record, d: ThreadDescribed) -> Verdict:
    if d.title is not None:
        s.title = d.title or None
    if d.labels is not None:
        s.labels = d.labels
    return APPLIED


def _archived(s: ThreadState, r: Record, d: ThreadArchived) -> Verdict:
    if s.archived:
        return ARCHIVED_ALREADY
    s.archived = True
    return APPLIED


def _unarchived(s: ThreadState, r: Record, d: ThreadUnarchived) -> Verdict:
    if not s.archived:
        return NOT_ARCHIVED
    s.archived = False
    return APPLIED


def _rewound(s: ThreadState, r: Record, d: ThreadRewound) -> Verdict:
    if s.status not in {"active", "importing"}:
        return Verdict("rejected", f"the thread is {s.status}")
    if s.turn is not None:
        return Verdict("rejected", f"turn {s.turn.turn} is open")
    if d.to_turn > s.last_turn:
        return Verdict("rejected", f"there is no turn {d.to_turn}")
    _set_base(s)
    s.live = s.live or not r.actor.startswith(IMPORT_PREFIX)
    s.calls = {name: replace(call, rewound=call.rewound or call.turn > d.to_turn) for name, call in s.calls.items()}
    return APPLIED


def _close_requested(s: ThreadState, r: Record, d: ThreadCloseRequested) -> Verdict:
    if s.status in {"closing", "closed"}:
        return CLOSING_ALREADY
    if s.status == "importing":
        _end_import(s, r)
    s.status, s.queue, s.compaction_requested = "closing", (), False
    if s.turn is not None and s.turn.cancelling is None:
        _cancel(s, s.turn, "close", r.time_ms, discard=True)
    return APPLIED


def _closed(s: ThreadState, r: Record, d: ThreadClosed) -> Verdict:
    """Its owner says so once the plan has come to rest, and that is for good: nothing of a closing thread's plan is
    approved or begun, so an owner that lags behind closes nothing over a task that runs. What is recorded stands.
    """
    if s.status == "closed":
        return DUPLICATE
    if s.status != "closing" or s.turn is not None:
        return Verdict("rejected", "the thread is not closing" if s.status != "closing" else "a turn is open")
    s.status = "closed"
    return APPLIED


# Inputs


def _input_submitted(s: ThreadState, r: Record, d: InputSubmitted) -> Verdict:
    in_turn = s.turn is not None and d.input in s.turn.inputs
    if d.input in s.inputs or in_turn or any(item.input == d.input for item in s.queue):
        return Verdict("duplicate", "this input id was submitted before")
    if s.status == "closing":
        return CLOSING
    if d.expected_turn is not None and (s.turn is None or s.turn.turn != d.expected_turn):
        return Verdict("rejected", f"turn {d.expected_turn} is not open")
    if d.mode == "steer" and d.call is not None:
        return Verdict("rejected", "a call that is asked for has a turn of its own")
    if d.mode == "reject" and (s.turn is not None or s.queue):
        return Verdict("rejected", "a turn is open" if s.turn is not None else "inputs are waiting")
    s.inputs = _remember(s.inputs, d.input, s.seq, REMEMBERED_INPUTS)
    released = tuple([replace(item, held=False) if item.held else item for item in s.queue])
    s.queue = (*released, QueuedInput(d.input, d.mode, s.seq, d.expected_turn, call=d.call))
    s.live = s.live or not r.actor.startswith(IMPORT_PREFIX)
    if d.mode == "interrupt" and s.turn is not None and s.turn.cancelling is None:
        _cancel(s, s.turn, "interrupt", r.time_ms, discard=False)
    return APPLIED


def _input_withdrawn(s: ThreadState, r: Record, d: InputWithdrawn) -> Verdict:
    if all(item.input != d.input for item in s.queue):
        if d.input in s.inputs:
            return Verdict("superseded", "the input has left the queue")
        return Verdict("rejected", f"there is no input {d.input}")
    s.queue = tuple([item for item in s.queue if item.input != d.input])
    return APPLIED


# Turns


def _turn_started(s: ThreadState, r: Record, d: TurnStarted) -> Verdict:
    if d.turn <= s.last_turn:
        same = s.turn is not None and s.turn.turn == d.turn and s.turn.started_hash == r.data_hash
        return DUPLICATE if same else Verdict("superseded", f"turn {d.turn} has started")
    if d.turn != s.last_turn + 1 or s.turn is not None:
        return Verdict("rejected", f"turn {s.last_turn + 1} is next" if s.turn is None else "a turn is open")
    if s.status == "closing" or s.config is None:
        return CLOSING
    queued = {item.input: item for item in s.queue}
    if not d.inputs or len(set(d.inputs)) < len(d.inputs):
        return Verdict("rejected", "a turn takes one input or more, each once")
    if any(item not in queued for item in d.inputs):
        return Verdict("superseded", "an input has left the queue")
    if any(queued[item].held for item in d.inputs):
        return Verdict("rejected", "the queue is held until the next input")
    requested = queued[d.inputs[0]].call
    if len(d.inputs) > 1 and any(queued[item].call is not None for item in d.inputs):
        return Verdict("rejected", "a call that is asked for has a turn of its own")
    if d.config != s.config_seq or d.base != s.base:
        return Verdict("superseded", "the configuration or the base of the context has changed")
    taken = set(d.inputs)
    s.queue = tuple([item for item in s.queue if item.input not in taken])
    s.last_turn = d.turn
    s.turn = make(
        Turn,
        turn=d.turn,
        inputs=d.inputs,
        config=s.config,
        follows=r.data_hash,
        started_ms=r.time_ms,
        started_hash=r.data_hash,
        started_seq=s.seq,
        requested=requested,
    )
    s.calls = _without_settled(s.calls)
    s.live = s.live or not r.actor.startswith(IMPORT_PREFIX)
    return APPLIED


def _turn_cancel_requested(s: ThreadState, r: Record, d: TurnCancelRequested) -> Verdict:
    if s.turn is None or s.turn.turn != d.turn:
        if d.turn <= s.last_turn:
            return Verdict("superseded", f"turn {d.turn} has ended")
        return Verdict("rejected", f"there is no turn {d.turn}")
    if s.turn.cancelling is not None:
        return cancelling_already(d.turn)
    _cancel(s, s.turn, d.reason, r.time_ms, discard=d.discard)
    return APPLIED


def _turn_recovered(s: ThreadState, r: Record, d: TurnRecovered) -> Verdict:
    if s.turn is None or s.turn.turn != d.turn:
        return Verdict("superseded", f"turn {d.turn} is not open")
    return APPLIED


def _turn_ended(s: ThreadState, r: Record, d: TurnEnded) -> Verdict:
    turn = s.turn
    if turn is None or turn.turn != d.turn:
        if d.turn == s.last_turn and s.last_turn_hash == r.data_hash:
            return DUPLICATE
        known = d.turn <= s.last_turn
        return Verdict("superseded" if known else "rejected", f"turn {d.turn} is not open")
    why = _why_not_ended(s, turn, d)
    if why is not None:
        return Verdict("superseded", why)
    _end_turn(s, turn, d.outcome, r.data_hash)
    return APPLIED


def _why_not_ended(s: ThreadState, turn: Turn, d: TurnEnded) -> str | None:
    waiting = unsettled_calls(s, turn.turn)
    if any(call.status in {"running", "repeatable"} for call in waiting):
        return "a call is running or may run again"
    if {call.call for call in waiting if call.status == "unknown"} != set(d.unknown_calls):
        return "the unknown calls are others than those named"
    if turn.cancelling is not None and d.outcome == "completed":
        return "the turn is being cancelled"
    if d.follows != turn.follows:
        return "another answer took its place"
    if turn.cancelling is not None:
        return None
    if turn.step is not None and (turn.step.status == "open" or d.outcome == "completed"):
        return f"step {turn.step.step} is {turn.step.status}"
    if turn.steps == 0 and d.outcome == "completed":
        return "no step has finished"
    if any(call.status != "unknown" for call in waiting):
        return "a call is not settled"
    return None


def _end_turn(s: ThreadState, turn: Turn, outcome: TurnOutcome, data_hash: str) -> None:
    s.queue = tuple([item for item in s.queue if item.expected_turn != turn.turn])
    s.turn, s.last_outcome, s.last_turn_hash = None, outcome, data_hash
    s.calls = _without_settled(s.calls)


def _cancel(s: ThreadState, turn: Turn, cause: CancelCause, time_ms: int, *, discard: bool) -> None:
    """The open turn is being cancelled: from here every call that is neither running nor unknown is settled."""
    s.turn = replace(turn, cancelling=cause, cancelled_ms=time_ms)
    s.calls = s.calls | {
        call.call: replace(call, status="unknown") if call.may_have_run else _settled(call, "cancelled", None)
        for call in unsettled_calls(s, turn.turn)
        if call.status not in {"running", "unknown"}
    }
    if discard:
        s.queue = tuple([item for item in s.queue if item.mode != "steer"])
    if cause == "recovery":
        s.queue = tuple([replace(item, held=True) for item in s.queue])


# Steps


def _step_started(s: ThreadState, r: Record, d: StepStarted) -> Verdict:
    turn = s.turn
    if turn is None or turn.turn != d.turn:
        return Verdict("superseded" if d.turn <= s.last_turn else "rejected", f"turn {d.turn} is not open")
    if turn.cancelling is not None:
        return Verdict("rejected", "the turn is being cancelled")
    step = turn.step
    if step is not None and step.step == d.step and d.attempt <= step.attempt:
        return DUPLICATE if r.data_hash in step.starts else Verdict("superseded", "this attempt has started")
    if d.step <= turn.steps:
        return Verdict("superseded", f"step {d.step} has finished")
    if d.follows != turn.follows:
        return Verdict("superseded", "another answer took its place")
    if _holds_up(s, turn):
        return Verdict("rejected", "a call is not settled")
    if step is None:
        return _first_attempt(s, r, d, turn)
    if d.step != step.step or d.attempt != step.attempt + 1:
        return Verdict("rejected", f"attempt {step.attempt + 1} of step {step.step} is next")
    if d.inputs != step.inputs:
        return Verdict("rejected", "another attempt must list the same inputs")
    again = replace(
        step,
        attempt=d.attempt,
        status="open",
        starts=(*step.starts, r.data_hash)[-REMEMBERED_STARTS:],
        owner=d.owner,
        started_ms=r.time_ms,
        retry_at_ms=None,
        handed_over=False,
    )
    s.turn = replace(turn, step=again)
    return APPLIED


def _holds_up(s: ThreadState, turn: Turn) -> bool:
    """Whether a call has to be settled before the turn goes on. A session that was recorded elsewhere may have gone on
    without ever telling what a call came to.
    """
    importing = s.status == "importing"
    return any(not (importing and call.status == "unknown") for call in unsettled_calls(s, turn.turn))


def _first_attempt(s: ThreadState, r: Record, d: StepStarted, turn: Turn) -> Verdict:
    if d.step != turn.steps + 1 or d.attempt != 1:
        return Verdict("rejected", f"attempt 1 of step {turn.steps + 1} is next")
    steering = {item.input for item in s.queue if item.mode == "steer"}
    if len(set(d.inputs)) < len(d.inputs) or not steering.issuperset(d.inputs):
        return Verdict("superseded", "a steering input has left the queue")
    taken = set(d.inputs)
    s.queue = tuple([item for item in s.queue if item.input not in taken])
    step = make(
        Step,
        step=d.step,
        attempt=1,
        status="open",
        inputs=d.inputs,
        starts=(r.data_hash,),
        owner=d.owner,
        started_ms=r.time_ms,
        seq=s.seq,
    )
    s.turn = replace(turn, step=step)
    return APPLIED


def _find_open_step(s: ThreadState, turn: int, step: int) -> tuple[Turn, Step] | Verdict:
    if s.turn is None or s.turn.turn != turn:
        return Verdict("superseded" if turn <= s.last_turn else "rejected", f"turn {turn} is not open")
    if step <= s.turn.steps:
        return Verdict("superseded", f"step {step} has finished")
    if s.turn.step is None or s.turn.step.step != step:
        return Verdict("rejected", f"step {step} has not started")
    if s.turn.step.status != "open":
        return Verdict("superseded", f"step {step} has failed")
    return s.turn, s.turn.step


def _step_finished(s: ThreadState, r: Record, d: StepFinished) -> Verdict:
    if s.turn is not None and s.turn.follows == r.data_hash:
        return DUPLICATE
    found = _find_open_step(s, d.turn, d.step)
    if isinstance(found, Verdict):
        return found
    turn, step = found
    if d.started not in step.starts:
        return Verdict("superseded", "it answers a start that did not take effect")
    if any(call.index != place for place, call in enumerate(d.calls)):
        return Verdict("rejected", "calls are numbered from 0 in their order")
    s.turn = replace(
        turn,
        follows=r.data_hash,
        steps=d.step,
        step=None,
        input_tokens=turn.input_tokens + d.usage.input_tokens,
        output_tokens=turn.output_tokens + d.usage.output_tokens,
    )
    s.context_tokens = d.usage.input_tokens + d.usage.output_tokens
    calls = _without_settled(s.calls)
    for proposed in d.calls:
        call = make(
            Call,
            call=call_id(d.turn, d.step, proposed.index),
            turn=d.turn,
            step=d.step,
            index=proposed.index,
            tool=proposed.tool,
            args=proposed.args,
            call_hash=proposed.call_hash,
            status="proposed",
            seq=s.seq,
            malformed=proposed.malformed,
        )
        calls[call.call] = call if turn.cancelling is None else _settled(call, "cancelled", r.id)
    s.calls = calls
    return APPLIED


def _step_failed(s: ThreadState, r: Record, d: StepFailed) -> Verdict:
    found = _find_open_step(s, d.turn, d.step)
    if isinstance(found, Verdict):
        return found
    turn, step = found
    if d.started != step.starts[-1]:
        return Verdict("superseded", "a later attempt has started")
    too_long = d.error.kind == CONTEXT_TOO_LONG
    failed = replace(
        step,
        status="failed",
        failures=step.failures + (0 if d.handed_over or too_long else 1),
        retriable=d.retriable,
        retry_at_ms=d.retry_at_ms,
        error=d.error.message,
        handed_over=d.handed_over,
        too_long_base=s.base if too_long else None,
    )
    s.turn = replace(turn, step=failed)
    return APPLIED


# Tool calls


def _find(s: ThreadState, call: str) -> Call | Verdict:
    found = s.calls.get(call)
    if found is not None:
        return found
    parts = parse_call_id(call)
    if parts is None or parts.turn > s.last_turn:
        return Verdict("rejected", f"there is no call {call}")
    if s.turn is not None and s.turn.turn == parts.turn and parts.step >= s.turn.steps:
        return Verdict("rejected", f"there is no call {call}")
    return Verdict("superseded", f"the call {call} is settled, or never was")


def _find_unsettled(s: ThreadState, call: str, r: Record) -> Call | Verdict:
    found = _find(s, call)
    if isinstance(found, Call) and found.settled:
        return DUPLICATE if found.settled_by == r.id else Verdict("superseded", f"the call is {found.outcome}")
    return found


def _approval_requested(s: ThreadState, r: Record, d: ToolCallApprovalRequested) -> Verdict:
    call = _find_unsettled(s, d.call, r)
    if isinstance(call, Verdict):
        return call
    if call.call_hash != d.call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
    if call.status != "proposed":
        return Verdict("superseded", f"the call is {call.status}")
    _put(s, replace(call, status="waiting", expires_at_ms=d.expires_at_ms))
    return APPLIED


def _undecided(s: ThreadState, r: Record, call_name: str, call_hash: str) -> Call | Verdict:
    call = _find_unsettled(s, call_name, r)
    if isinstance(call, Verdict):
        return call
    if call.status not in {"proposed", "waiting"}:
        by = f", approved by {call.approved_by}" if call.approved_by else ""
        return Verdict("superseded", f"the call is {call.status}{by}")
    if call.call_hash != call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
    return call


def _approved(s: ThreadState, r: Record, d: ToolCallApproved) -> Verdict:
    call = _undecided(s, r, d.call, d.call_hash)
    if isinstance(call, Verdict):
        return call
    approved = replace(call, status="approved", approved_by=d.by, expires_at_ms=None)
    if d.edited is not None:
        approved = replace(approved, args=d.edited.args, call_hash=d.edited.call_hash, malformed=None)
    _put(s, approved)
    grant = Grant(None if d.tool else approved.call_hash, d.tool, d.by)
    if d.scope == "thread":
        s.grants = (*s.grants, grant)[-GRANTS_MAX:]
    elif d.scope == "turn" and s.turn is not None:
        s.turn = replace(s.turn, grants=(*s.turn.grants, grant)[-GRANTS_MAX:])
    return APPLIED


def _denied(s: ThreadState, r: Record, d: ToolCallDenied) -> Verdict:
    call = _undecided(s, r, d.call, d.call_hash)
    if isinstance(call, Verdict):
        return call
    _put(s, _settled(call, "denied", r.id))
    return APPLIED


def _approval_expired(s: ThreadState, r: Record, d: ToolCallApprovalExpired) -> Verdict:
    call = _undecided(s, r, d.call, d.call_hash)
    if isinstance(call, Verdict):
        return call
    if call.status != "waiting":
        return Verdict("rejected", "the call waits for nobody")
    _put(s, _settled(call, "expired", r.id))
    return APPLIED


def _dispatched(s: ThreadState, r: Record, d: ToolCallDispatched) -> Verdict:
    call = _find_unsettled(s, d.call, r)
    if isinstance(call, Verdict):
        return call
    if d.attempt <= call.attempt:
        same = d.attempt == call.attempt and call.dispatch_hash == r.data_hash
        return DUPLICATE if same else Verdict("superseded", f"attempt {d.attempt} has been dispatched")
    if call.status not in {"approved", "repeatable"}:
        return Verdict("rejected", f"the call is {call.status}")
    if call.call_hash != d.call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
    if d.attempt != call.attempt + 1:
        return Verdict("rejected", f"attempt {call.attempt + 1} is next")
    if s.turn is None or s.turn.turn != call.turn or s.turn.cancelling is not None:
        return Verdict("rejected", "the call's turn is over or being cancelled")
    dispatched = replace(
        call,
        status="dispatched",
        attempt=d.attempt,
        dispatch_hash=r.data_hash,
        effect=d.effect,
        pool=d.pool,
        last=d.last,
        deadline_ms=d.deadline_ms,
        timeout_ms=d.timeout_ms,
        lease_seconds=None,
        executor=None,
    )
    if d.pool == THREAD_POOL and d.tool == SPAWN_THREAD_TOOL:
        s.turn = replace(s.turn, children=s.turn.children + 1)
    if d.pool in POOLS_WITHOUT_EXECUTOR:
        dispatched = replace(dispatched, status="running", claim=r.id, claim_attempt=d.attempt, claimed_ms=r.time_ms)
    _put(s, dispatched)
    return APPLIED


def _started(s: ThreadState, r: Record, d: ToolCallStarted) -> Verdict:
    call = _find_unsettled(s, d.call, r)
    if isinstance(call, Verdict):
        return call
    if call.attempt != d.attempt:
        return Verdict("superseded" if d.attempt < call.attempt else "rejected", f"attempt {call.attempt} is the last")
    if call.status != "dispatched":
        if call.status == "running" and call.claim == r.id:
            return DUPLICATE
        return Verdict("superseded", f"the call is {call.status}")
    _put(
        s,
        replace(
            call,
            status="running",
            claim=r.id,
            claim_attempt=d.attempt,
            claimed_ms=r.time_ms,
            lease_seconds=d.lease_seconds,
            executor=d.executor,
        ),
    )
    return APPLIED


def _finished(s: ThreadState, r: Record, d: ToolCallFinished) -> Verdict:
    call = _find_unsettled(s, d.call, r)
    if isinstance(call, Verdict):
        return call
    under_claim = call.claim == d.claim and call.claim_attempt == d.attempt
    if d.outcome == "not_started":
        if not under_claim:
            return Verdict("superseded", "it speaks of a claim that is not in force")
        return _claim_never_ran(s, r, call)
    first_pure = call.effect == "pure" and 0 < d.attempt <= call.attempt
    if not under_claim and not first_pure:
        return Verdict("superseded", "it speaks of a claim that is not in force")
    _put(s, _settled(call, d.outcome, r.id))
    return APPLIED


def _claim_never_ran(s: ThreadState, r: Record, call: Call) -> Verdict:
    """The executor that held the last claim says that it did nothing under it: the claim counts no more."""
    unclaimed = replace(call, claim=None)
    if call.status == "running":
        _put(s, _not_started(s, unclaimed, r.id))
        return APPLIED
    if call.lost_claims == 0:
        return Verdict("superseded", f"the call is {call.status}")
    unclaimed = replace(unclaimed, lost_claims=call.lost_claims - 1)
    _put(s, unclaimed if call.status == "dispatched" else _not_started(s, unclaimed, r.id))
    return APPLIED


def _lost(s: ThreadState, r: Record, d: ToolCallLost) -> Verdict:
    call = _find_unsettled(s, d.call, r)
    if isinstance(call, Verdict):
        return call
    if call.attempt != d.attempt:
        return Verdict("superseded" if d.attempt < call.attempt else "rejected", f"attempt {call.attempt} is the last")
    if call.status == "dispatched" and d.claim is None:
        _put(s, _not_started(s, call, r.id))
        return APPLIED
    if call.status != "running":
        return Verdict("superseded", f"the call is {call.status}")
    if d.claim != call.claim:
        return Verdict("superseded", "another claim is in force")
    _put(s, _lost_claim(s, call, r.id))
    return APPLIED


def _resolved(s: ThreadState, r: Record, d: ToolCallResolved) -> Verdict:
    call = _find_unsettled(s, d.call, r)
    if isinstance(call, Verdict):
        return call
    if call.status != "unknown":
        return Verdict("superseded", f"the call is {call.status}")
    if call.attempt != d.attempt:
        return Verdict("superseded", f"attempt {call.attempt} is the last")
    if d.decision != "again":
        _put(s, _settled(call, d.decision, r.id))
        return APPLIED
    if s.turn is None or s.turn.turn != call.turn:
        return Verdict("rejected", f"turn {call.turn} is over: the call cannot run again in it")
    if s.turn.cancelling is not None:
        return Verdict("rejected", f"turn {call.turn} is being cancelled: the call cannot run again in it")
    _put(s, replace(call, status="repeatable", last=False))
    return APPLIED


def _is_cancelling(s: ThreadState, call: Call) -> bool:
    """Whether nothing of the call's turn may start again: it is being cancelled, or over."""
    return s.turn is None or s.turn.turn != call.turn or s.turn.cancelling is not None


def _not_started(s: ThreadState, call: Call, by: str) -> Call:
    """After an attempt that never ran."""
    over = _is_cancelling(s, call)
    if not over and not call.last:
        return replace(call, status="repeatable")
    if call.may_have_run:
        return replace(call, status="unknown")
    return _settled(call, "cancelled" if over else "not_started", by)


def _lost_claim(s: ThreadState, call: Call, by: str) -> Call:
    """After a claimed attempt whose end nobody saw."""
    over = _is_cancelling(s, call)
    lost = call if call.effect == "pure" else replace(call, lost_claims=call.lost_claims + 1)
    if call.effect in {"pure", "idempotent"} and not over and not call.last:
        return replace(lost, status="repeatable")
    if lost.may_have_run:
        return replace(lost, status="unknown")
    return _settled(lost, "cancelled" if over else "failed", by)


def _settled(call: Call, outcome: Settled, by: str | None) -> Call:
    return replace(call, status="settled", outcome=outcome, settled_by=by, args={}, malformed=None)


def _without_settled(calls: dict[str, Call]) -> dict[str, Call]:
    return {name: call for name, call in calls.items() if call.status != "settled"}


def _put(s: ThreadState, call: Call) -> None:
    s.calls = {**s.calls, call.call: call}


# Context and plans


def _compaction_requested(s: ThreadState, r: Record, d: ContextCompactionRequested) -> Verdict:
    if s.status != "active":
        return Verdict("rejected", f"the thread is {s.status}")
    if s.compaction_requested:
        return COMPACTING_ALREADY
    if d.turn > 0 and (d.base, d.turn) != (s.base, s.last_turn):
        return Verdict("superseded", "the context is another one than that which was too large")
    if d.turn > 0 and s.compaction_failed_turn == d.turn:
        return Verdict("superseded", "a summary was asked for in this turn, and failed")
    if _has_open_step(s):
        return Verdict("rejected", "a step is open; ask between steps")
    s.compaction_requested, s.compaction_seq = True, s.seq
    return APPLIED


def _compaction_failed(s: ThreadState, r: Record, d: ContextCompactionFailed) -> Verdict:
    if not s.compaction_requested or d.base != s.base or d.requested != s.compaction_seq:
        return Verdict("superseded", "it speaks of a request that is not in force")
    s.compaction_requested, s.compaction_failed_turn = False, s.last_turn
    return APPLIED


def _compacted(s: ThreadState, r: Record, d: ContextCompacted) -> Verdict:
    if s.status not in {"active", "importing"}:
        return Verdict("rejected", f"the thread is {s.status}")
    if d.base != s.base:
        return Verdict("superseded", "the base of the context has changed")
    if d.through_seq >= s.seq or d.through_seq < s.base:
        return Verdict("rejected", "a summary stands for items since the base and before itself")
    if _has_open_step(s) or (s.turn is not None and _holds_up(s, s.turn)):
        return Verdict("rejected", "a step is open, or a call not settled")
    _set_base(s)
    s.compaction_requested = False
    s.live = s.live or not r.actor.startswith(IMPORT_PREFIX)
    return APPLIED


def _set_base(s: ThreadState) -> None:
    """From here the context is another one: what was measured of the last says nothing of it."""
    s.base, s.context_tokens, s.compaction_failed_turn = s.seq, 0, None


def _has_open_step(s: ThreadState) -> bool:
    """A failed step is a boundary, too: where the context was too long for the model, a summary lets it try again."""
    return s.turn is not None and s.turn.step is not None and s.turn.step.status == "open"


def _plan_proposed(s: ThreadState, r: Record, d: PlanProposed) -> Verdict:
    if d.plan_version != s.plan.last_version + 1:
        known = d.plan_version <= s.plan.last_version
        return Verdict("superseded" if known else "rejected", f"version {s.plan.last_version + 1} is next")
    if s.status == "closing":
        return CLOSING
    problem = plans.graph_problem(d.tasks)
    if problem is not None:
        return Verdict("rejected", problem)
    if d.call is not None and s.status != "importing":
        call = s.calls.get(d.call)
        if call is None or call.status != "running":
            return Verdict("superseded", "the call does not run any more")
        if d.call in s.plan.proposals:
            return Verdict("superseded", f"the call has proposed version {s.plan.proposals[d.call]}")
    s.plan = plans.propose(s.plan, d.plan_version, d.tasks, d.call)
    s.live = s.live or not r.actor.startswith(IMPORT_PREFIX)
    return APPLIED


def _plan_approved(s: ThreadState, r: Record, d: PlanApproved) -> Verdict:
    if s.plan.waiting != d.plan_version:
        return Verdict("superseded", f"version {d.plan_version} does not wait for an answer")
    if s.status == "closing":
        return CLOSING
    s.plan = plans.approve(s.plan, r.time_ms)
    return APPLIED


def _plan_rejected(s: ThreadState, r: Record, d: PlanRejected) -> Verdict:
    if s.plan.waiting != d.plan_version:
        return Verdict("superseded", f"version {d.plan_version} does not wait for an answer")
    s.plan = plans.reject(s.plan, d.reason)
    return APPLIED


def _task_updated(s: ThreadState, r: Record, d: TaskUpdated) -> Verdict:
    if s.plan.in_force != d.plan_version and not plans.is_of_child(s.plan, d.task, d.child):
        return Verdict("superseded", f"version {d.plan_version} is not in force")
    if s.status == "closing" and d.status == "running":
        return CLOSING
    waits = plans.waits_for(s.plan, d.task) if d.status == "running" and s.status != "importing" else ()
    if waits:
        # Another owner's plan has the same version, and other tasks: that of an answer that did not take effect.
        return Verdict("superseded", f"task {d.task!r} waits for {', '.join(waits)}")
    updated = plans.update_task(s.plan, d.task, d.status, d.child, d.result, d.plan_version, r.time_ms)
    if isinstance(updated, str):
        return Verdict("superseded", updated)
    s.plan = updated
    return APPLIED


def _recorded(s: ThreadState, r: Record, d: ArtifactRecorded) -> Verdict:
    return APPLIED


def _skill_loaded(s: ThreadState, r: Record, d: SkillLoaded) -> Verdict:
    skill = LoadedSkill(d.skill_version, d.sha256)
    if s.skills.get(d.name) == skill:
        return Verdict("duplicate", "this version of the skill is loaded")
    known = d.name in s.skills
    s.skills = {**s.skills, d.name: skill} if known else _remember(s.skills, d.name, skill, SKILLS_MAX)
    return APPLIED


def _account_waiting(s: ThreadState, turn: Turn, time_ms: int) -> None:
    """Keep the turn's time spent waiting for people and for other threads, which does not count against its limit."""
    waits = waits_for_others(s)
    if waits and turn.waiting_since_ms is None:
        s.turn = replace(turn, waiting_since_ms=time_ms)
    elif not waits and turn.waiting_since_ms is not None:
        waited = max(0, time_ms - turn.waiting_since_ms)
        s.turn = replace(turn, waiting_since_ms=None, waited_ms=turn.waited_ms + waited)


Value = TypeVar("Value")


def _remember(memory: dict[str, Value], name: str, value: Value, most: int) -> dict[str, Value]:
    """The memory with one more entry, without its oldest where it is full. Dicts keep the order of insertion."""
    if len(memory) < most:
        return {**memory, name: value}
    kept = dict(memory)
    del kept[next(iter(kept))]
    kept[name] = value
    return kept


# The table

Handler: TypeAlias = Callable[[ThreadState, Record, Event], Verdict]


class Transition(NamedTuple):
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
