"""Histories of threads, for every test that needs some.

The functions at the top are what a well-informed actor would append: each takes the state that the actor has seen, and
fills in what the event has to carry (hashes, seqs, attempts). Given an older state, they give a stale actor's event.
`History` appends to one thread's log and folds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from schemas.canonical import call_hash, data_hash
from schemas.codec import Encoded, Record, decode, encode
from schemas.config import Config
from schemas.events import (
    AnswerItem,
    AnswerText,
    CallOutcome,
    CancelReason,
    Confirmed,
    ContentItem,
    Context,
    ContextCompacted,
    ContextCompactionRequested,
    EffectClass,
    Event,
    Failure,
    InputMode,
    InputSubmitted,
    InputWithdrawn,
    ProposedCall,
    StepFailed,
    StepFinished,
    StepStarted,
    TextItem,
    ThreadConfigured,
    ThreadCreated,
    ThreadDescribed,
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
    Usage,
)
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey, derive, derive_service_event
from schemas.state import NOTHING, Call, ThreadState, unknown_calls
from schemas.thread import Verdict, fold

KEY = ThreadKey(TenantId("acme"), ThreadId("t-1"))
CONFIG = Config(model="scripted:test")
USER = "user:ann"
RUNTIME = "service:runtime"
EXECUTOR = "service:tool-executor"
IMPORTER = "import:session"
NO_HASH = data_hash(b"")
START_MS = 1_790_000_000_000
"""Some day in 2026."""


# What well-informed actors append


def created(importing: bool = False, config: Config = CONFIG, **fields: object) -> ThreadCreated:
    return ThreadCreated(config=config, importing=importing, **fields)


def submitted(name: str, mode: InputMode = "queue", text: str = "hello", expected_turn: int | None = None) -> Event:
    items: tuple[ContentItem, ...] = (TextItem(text=text),)
    return InputSubmitted(input=name, items=items, mode=mode, expected_turn=expected_turn)


def turn_started(state: ThreadState, inputs: Sequence[str] | None = None, turn: int | None = None) -> TurnStarted:
    return TurnStarted(
        turn=turn or state.last_turn + 1,
        inputs=tuple(inputs) if inputs is not None else tuple([item.input for item in state.queue]),
        config=state.config_seq,
        base=state.base,
        agent_version="1",
    )


def step_started(
    state: ThreadState, inputs: Sequence[str] | None = None, owner: str = "A", attempt: int | None = None
) -> StepStarted:
    """The next step, or the next attempt of the step that is open or failed."""
    turn = state.turn
    assert turn is not None
    if turn.step is not None:
        step, next_attempt, taken = turn.step.step, turn.step.attempt + 1, turn.step.inputs
    else:
        steering = tuple([item.input for item in state.queue if item.mode == "steer"])
        step, next_attempt, taken = turn.steps + 1, 1, steering
    return StepStarted(
        turn=turn.turn,
        step=step,
        attempt=attempt or next_attempt,
        follows=turn.follows,
        inputs=tuple(inputs) if inputs is not None else taken,
        context=Context(confirmed_seq=state.seq, items=0, hash=NO_HASH),
        model="scripted:test",
        tools_hash=NO_HASH,
        owner=owner,
    )


def proposed(index: int, tool: str = "shell", args: Mapping[str, JsonValue] | None = None) -> ProposedCall:
    arguments = dict(args) if args is not None else {"command": f"run {index}"}
    return ProposedCall(index=index, tool=tool, args=arguments, call_hash=call_hash(tool, arguments))


def step_finished(
    state: ThreadState, text: str = "", calls: Sequence[ProposedCall] = (), started: str | None = None
) -> StepFinished:
    turn = state.turn
    assert turn is not None and turn.step is not None
    items: tuple[AnswerItem, ...] = (AnswerText(text=text),) if text else ()
    return StepFinished(
        turn=turn.turn,
        step=turn.step.step,
        attempt=turn.step.attempt,
        started=started or turn.step.starts[-1],
        items=items,
        calls=tuple(calls),
        stop_reason="tool_calls" if calls else "stop",
        usage=Usage(input_tokens=100, output_tokens=10),
    )


def step_failed(
    state: ThreadState, retriable: bool = True, handed_over: bool = False, kind: str = "overloaded"
) -> StepFailed:
    turn = state.turn
    assert turn is not None and turn.step is not None
    return StepFailed(
        turn=turn.turn,
        step=turn.step.step,
        attempt=turn.step.attempt,
        started=turn.step.starts[-1],
        error=Failure(kind=kind, message=f"the provider is {kind}"),
        retriable=retriable,
        handed_over=handed_over,
    )


def turn_ended(state: ThreadState, outcome: TurnOutcome = "completed") -> TurnEnded:
    turn = state.turn
    assert turn is not None
    return TurnEnded(
        turn=turn.turn,
        follows=turn.follows,
        outcome=outcome,
        unknown_calls=tuple([call.call for call in unknown_calls(state, turn.turn)]),
        confirmed=Confirmed(seq=state.seq, chain=state.chain),
    )


def cancel_requested(state: ThreadState, reason: CancelReason = "user", discard: bool = False) -> TurnCancelRequested:
    return TurnCancelRequested(turn=max(state.last_turn, 1), reason=reason, discard=discard)


def turn_recovered(state: ThreadState, owner: str = "B") -> TurnRecovered:
    return TurnRecovered(turn=max(state.last_turn, 1), owner=owner, found="a step without an answer")


def approval_requested(call: Call, expires_at_ms: int | None = None) -> ToolCallApprovalRequested:
    return ToolCallApprovalRequested(
        call=call.call, call_hash=call.call_hash, reason="policy", expires_at_ms=expires_at_ms
    )


def approved(call: Call, by: str = USER, **fields: object) -> ToolCallApproved:
    return ToolCallApproved(call=call.call, call_hash=call.call_hash, by=by, **fields)


def denied(call: Call, by: str = USER) -> ToolCallDenied:
    return ToolCallDenied(call=call.call, call_hash=call.call_hash, by=by, reason="not on a Friday")


def approval_expired(call: Call) -> ToolCallApprovalExpired:
    return ToolCallApprovalExpired(call=call.call, call_hash=call.call_hash)


def dispatched(
    call: Call,
    effect: EffectClass = "unsafe",
    last: bool = False,
    pool: str = "builtin",
    attempt: int | None = None,
    deadline_ms: int = START_MS + 3_600_000,
) -> ToolCallDispatched:
    return ToolCallDispatched(
        call=call.call,
        attempt=attempt or call.attempt + 1,
        call_hash=call.call_hash,
        tool=call.tool,
        pool=pool,
        args=call.args,
        effect=effect,
        last=last,
        deadline_ms=deadline_ms,
        timeout_ms=60_000,
        idempotency_key=f"key-{call.call}",
    )


def claimed(call: Call, executor: str = "E1") -> ToolCallStarted:
    return ToolCallStarted(call=call.call, attempt=max(call.attempt, 1), executor=executor, lease_seconds=30)


def claim_id(event: ToolCallStarted, key: ThreadKey = KEY) -> EventId:
    """The id that this claim's record has."""
    return derive_service_event(key, event.kind, event.call, event.attempt, event.executor)


def finished(
    call: Call,
    outcome: CallOutcome | Literal["not_started"] = "succeeded",
    claim: str | None = None,
    attempt: int | None = None,
    result: JsonValue = "done",
) -> ToolCallFinished:
    return ToolCallFinished(
        call=call.call,
        attempt=attempt or max(call.claim_attempt, 1),
        claim=claim or call.claim or "none",
        outcome=outcome,
        result=result,
        milliseconds=12,
    )


def lost(call: Call, claim: str | None = None) -> ToolCallLost:
    """By an observer that saw the call as it is here, or that names another claim."""
    seen = claim or (call.claim if call.status == "running" else None)
    return ToolCallLost(call=call.call, attempt=max(call.attempt, 1), claim=seen, evidence="no heartbeat for its lease")


def resolved(
    call: Call, decision: Literal["succeeded", "failed", "again", "abandoned"] = "succeeded"
) -> ToolCallResolved:
    return ToolCallResolved(call=call.call, attempt=call.attempt, decision=decision, note="looked at the ledger")


def compacted(state: ThreadState, through_seq: int | None = None) -> ContextCompacted:
    return ContextCompacted(base=state.base, through_seq=through_seq or state.seq, summary="they said hello")


# One thread's log


@dataclass
class History:
    """A thread's log as tests write it, folded as it grows. Other threads of the partition leave gaps in the offsets."""

    key: ThreadKey = KEY
    state: ThreadState = field(default_factory=lambda: NOTHING)
    records: list[Record] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    states: list[ThreadState] = field(default_factory=list)
    """As of the beginning, and after each record."""
    now_ms: int = START_MS
    drawn: int = 0

    def __post_init__(self) -> None:
        self.states = [self.state]

    def fork(self) -> "History":
        """The same thread as one actor sees it, who goes on alone: what it appends there it may append here later."""
        return History(self.key, self.state, now_ms=self.now_ms, drawn=self.drawn + 1_000)

    def make(self, event: Event, actor: str = RUNTIME, event_id: EventId | None = None) -> Encoded:
        """A record that is decided now and may be appended later. A client's command gets an id of its own."""
        self.now_ms += 1_000
        if event_id is None and actor.startswith("user:"):
            self.drawn += 1
            event_id = derive("drawn by tests", self.drawn)
        source = f"{actor.partition(':')[2]}/test"
        return encode(self.key, event, source=source, actor=actor, time_ms=self.now_ms, event_id=event_id)

    def add(self, made: Encoded) -> Verdict:
        record = made.record._replace(offset=self.state.offset + 3)
        self.state, verdict = fold(self.state, record)
        self.records.append(record)
        self.encoded.append(made)
        self.verdicts.append(verdict)
        self.states.append(self.state)
        return verdict

    def append(self, event: Event, actor: str = RUNTIME, event_id: EventId | None = None) -> Verdict:
        return self.add(self.make(event, actor, event_id))

    def apply(self, event: Event, actor: str = RUNTIME, event_id: EventId | None = None) -> Encoded:
        """Append what has to take effect."""
        made = self.make(event, actor, event_id)
        verdict = self.add(made)
        assert verdict.effect == "applied", verdict
        return made

    def after(self, made: Encoded) -> ThreadState:
        """What the actor that made this record expects of it; the log stays as it is."""
        return fold(self.state, made.record).state

    def call(self, call: str) -> Call:
        return self.state.calls[call]

    @property
    def only_call(self) -> Call:
        (call,) = self.state.calls.values()
        return call

    # Shortcuts to where many tests begin

    def idle(self) -> "History":
        self.apply(created(), USER)
        return self

    def in_turn(self, name: str = "i1") -> "History":
        """A turn is open, before its first step."""
        if not self.state.exists:
            self.idle()
        self.apply(submitted(name), USER)
        self.apply(turn_started(self.state))
        return self

    def in_step(self) -> "History":
        self.in_turn()
        self.apply(step_started(self.state))
        return self

    def with_calls(self, *calls: ProposedCall) -> "History":
        """The open turn's first step proposed these, or one."""
        self.in_step()
        self.apply(step_finished(self.state, calls=calls or (proposed(0),)))
        return self

    def with_approved_call(self) -> "History":
        self.with_calls()
        self.apply(approved(self.only_call, by="policy:never"))
        return self

    def with_dispatched_call(
        self, effect: EffectClass = "unsafe", last: bool = False, pool: str = "builtin"
    ) -> "History":
        self.with_approved_call()
        self.apply(dispatched(self.only_call, effect, last, pool))
        return self

    def with_running_call(self, effect: EffectClass = "unsafe", last: bool = False) -> "History":
        self.with_dispatched_call(effect, last)
        self.apply(claimed(self.only_call), EXECUTOR)
        return self

    def with_unknown_call(self, last: bool = False) -> "History":
        self.with_running_call("unsafe", last)
        self.apply(lost(self.only_call))
        assert self.only_call.status == "unknown"
        return self

    def ended_turn(self, outcome: TurnOutcome = "completed") -> "History":
        """One more turn that answers with text, or ends otherwise after its first step failed."""
        self.in_turn(f"i{self.state.last_turn + 1}")
        self.apply(step_started(self.state))
        self.apply(step_finished(self.state, "fine") if outcome == "completed" else step_failed(self.state))
        self.apply(turn_ended(self.state, outcome))
        return self


def plain_turn(history: History, calls: int = 2, result: JsonValue = "x" * 800) -> History:
    """One whole turn as it mostly goes: an answer with calls, their runs, an answer with text. 16 records with the
    thread's creation and two calls.
    """
    if not history.state.exists:
        history.apply(created(), USER)
    turn = history.state.last_turn + 1
    history.apply(submitted(f"i{turn}", text="Make the tests pass."), USER)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "Let me look.", [proposed(index) for index in range(calls)]))
    names = list(history.state.calls)
    for name in names:
        history.apply(approved(history.call(name), by="policy:never"), "policy:never")
        history.apply(dispatched(history.call(name)))
        history.apply(claimed(history.call(name)), EXECUTOR)
        history.apply(finished(history.call(name), result=result), EXECUTOR)
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "They pass now."))
    history.apply(turn_ended(history.state))
    return history


def troubled_turn(log: History) -> History:
    """People change their minds and are asked, a model fails, an executor dies, an owner too."""
    turn = log.state.last_turn + 1
    log.apply(ThreadConfigured(patch={"instructions": f"be brief {turn}"}), USER)
    log.apply(ThreadDescribed(title=f"turn {turn}"), USER)
    log.apply(submitted(f"i{turn}a"), USER)
    log.apply(submitted(f"i{turn}b"), USER)
    log.apply(InputWithdrawn(input=f"i{turn}b"), USER)
    log.apply(turn_started(log.state))
    log.apply(step_started(log.state))
    log.apply(step_failed(log.state))
    log.apply(submitted(f"i{turn}c", "steer"), USER)
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, calls=[proposed(0)]))
    name = next(reversed(log.state.calls))
    log.apply(approval_requested(log.call(name)))
    log.apply(approved(log.call(name)), USER)
    log.apply(dispatched(log.call(name), "idempotent"))
    log.apply(claimed(log.call(name)), EXECUTOR)
    log.apply(lost(log.call(name)))
    log.apply(turn_recovered(log.state))
    log.apply(dispatched(log.call(name), "idempotent"))
    log.apply(claimed(log.call(name), "E2"), EXECUTOR)
    log.apply(finished(log.call(name), "failed"), EXECUTOR)
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "It fails."))
    log.apply(turn_ended(log.state))
    log.apply(ContextCompactionRequested(base=log.state.base), USER)
    log.apply(compacted(log.state))
    return log


def read_back(key: ThreadKey, made: Encoded, offset: int) -> Record:
    """The record as a reader decodes it."""
    record = decode(key.to_bytes(), made.headers, made.value, offset, made.record.time_ms)
    assert isinstance(record, Record) and record.problem is None, record
    return record


def fold_all(state: ThreadState, records: Iterable[Record]) -> tuple[ThreadState, list[Verdict]]:
    verdicts = []
    for record in records:
        state, verdict = fold(state, record)
        verdicts.append(verdict)
    return state, verdicts
