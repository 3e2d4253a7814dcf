"""A turn of a session as events: its inputs, its steps and what they called, its end."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from schemas.canonical import call_hash
from schemas.events import (
    AnswerItem,
    CallOutcome,
    Context,
    Event,
    FileChange,
    ProposedCall,
    StepFailed,
    StepFinished,
    StepStarted,
    TextItem,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
    Usage,
)
from schemas.ids import call_id, idempotency_key
from schemas.state import Turn as OpenTurn
from schemas.state import unknown_calls, unsettled_calls
from schemas.transcript import context_hash
from services.chassis.sanitize import sanitize_json, sanitize_text
from services.importer.model import Blob, Call, CallEnd, Compaction, Input, Origin, Plan, Step, Turn
from services.importer.threads.cutting import Cutter
from services.importer.threads.events import UNRECORDED, Ahead
from services.importer.threads.known import NAME_CHARACTERS_MAX, ORDINAL, child_mark

POOL = "import"
"""Pool of imported calls. No executor belongs to it, so nothing of them ever runs."""
LOST_INPUT = "[The session's file does not hold what began this turn.]"
"""The text of an input that the file has lost."""
NO_CONTEXT = Context(confirmed_seq=0, items=0, hash=context_hash([]))
"""What the model was shown is not recorded in a form that could be named."""
NO_TOOLS = context_hash([])
NO_USAGE = Usage()
FINISHED: dict[str, CallOutcome] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "timed_out": "timed_out",
    "cancelled": "cancelled",
}
"""Ends of calls that were seen, as outcomes of events."""


def tell_turn(ahead: Ahead, turn: Turn, names: tuple[str, ...]) -> None:
    """Make the events of a turn. `names` are the ids of the inputs that begin it. A turn that they have begun already
    is continued.
    """
    state = ahead.state
    number = state.turn.turn if state.turn is not None else state.last_turn + 1
    if state.turn is None and not _start(ahead, turn, names, number):
        return
    ahead.enter(number)
    _Steps(ahead, turn, number).run()
    _end(ahead, turn, number)
    ahead.enter(number)


def lose_calls(ahead: Ahead, origin: Origin) -> None:
    """Lose the calls that an import which died left open in the open turn: nobody knows their end, and it can be told
    later.
    """
    opened = ahead.state.turn
    for found in unsettled_calls(ahead.state, opened.turn) if opened is not None else ():
        call = Call(found.call, found.tool, {}, "unknown", origin, reason="an import ended before it told the end")
        _CallEvents(ahead, call, found.call).run()


def _start(ahead: Ahead, turn: Turn, names: tuple[str, ...], number: int) -> bool:
    """Submit the inputs and start the turn. Return False where it does not fit."""
    for name, sent in zip(names, turn.inputs or (_lost_input(turn),), strict=True):
        if all(item.input != name for item in ahead.state.queue) and ahead.submit(sent, "queue", name) is None:
            return False
    event = TurnStarted(
        turn=number,
        inputs=names,
        config=ahead.state.config_seq,
        base=ahead.state.base,
        agent_version=sanitize_text(f"{ahead.header.tool} {ahead.header.tool_version or ''}".strip()),
    )
    ordinal = f"{ORDINAL}{turn.first_ordinal}" if turn.first_ordinal is not None else ""
    return ahead.add(event, turn.origin, turn.started_ms, more=ordinal)


def _end(ahead: Ahead, turn: Turn, number: int) -> None:
    """End the turn as the session did, as far as the fold lets it."""
    opened = ahead.state.turn
    if opened is None:
        return
    outcome = fitting_outcome(turn.outcome, opened)
    inferred = turn.end_evidence == "inferred" or outcome != turn.outcome
    event = TurnEnded(
        turn=number,
        follows=opened.follows,
        outcome=outcome,
        reason=sanitize_text(turn.reason)[:1000] if turn.reason else None,
        unknown_calls=tuple([call.call for call in unknown_calls(ahead.state, number)]),
        confirmed=ahead.confirmed,
    )
    origin = Origin(turn.origin.line, "the end") if inferred else turn.origin
    ahead.add(event, origin, turn.ended_ms)


def _lost_input(turn: Turn) -> Input:
    """Return an input that says that the file has lost the real one: a turn needs one."""
    return Input(f"turn {turn.source_id}", (TextItem(text=LOST_INPUT),), turn.origin, turn.started_ms)


def fitting_outcome(outcome: TurnOutcome, turn: OpenTurn) -> TurnOutcome:
    """Return the outcome; a turn without an answer is interrupted, not completed."""
    unanswered = turn.steps == 0 or turn.step is not None
    return "interrupted" if outcome == "completed" and unanswered else outcome


@dataclass(slots=True)
class _Steps:
    """The steps of one turn and what lies between them. The log's own are passed over."""

    ahead: Ahead
    turn: Turn
    number: int
    steps: int = 0
    attempt: int = 0
    """Attempt of the step that failed last; 0 where none did."""
    steering: list[str] = field(default_factory=list)
    """Inputs that the next step takes."""

    def run(self) -> None:
        for piece in self.turn.pieces:
            match piece:
                case Step():
                    self._step(piece)
                case Input():
                    name = self.ahead.submit(piece, "steer")
                    if name is not None:
                        self.steering.append(name)
                case Compaction() | Plan():
                    self.ahead.between(piece)

    def _step(self, step: Step) -> None:
        """Start the step, and finish or fail it. Its calls follow in order."""
        ahead, number = self.ahead, self.steps + 1
        attempt = self.attempt + 1
        opened = ahead.state.turn
        if opened is None:
            return
        inputs = opened.step.inputs if opened.step is not None else self._waiting()
        started = StepStarted(
            turn=self.number,
            step=number,
            attempt=attempt,
            follows=opened.follows,
            inputs=inputs,
            context=NO_CONTEXT,
            model=sanitize_text(step.model or ahead.header.model or "unknown"),
            tools_hash=NO_TOOLS,
            owner=POOL,
        )
        if not ahead.add(started, step.origin, step.at_ms):
            return
        if step.error is not None:
            self._fail(step, number, attempt)
            return
        self._finish(step, number, attempt)
        self.steps, self.attempt = number, 0
        for index, call in enumerate(step.calls):
            _CallEvents(ahead, call, call_id(self.number, number, index)).run()

    def _waiting(self) -> tuple[str, ...]:
        """Return the steering inputs that are still queued: the step takes them."""
        queued = {item.input for item in self.ahead.state.queue if item.mode == "steer"}
        taken, self.steering = tuple([name for name in self.steering if name in queued]), []
        return taken

    def _starts(self) -> str:
        """Return the data hash of the step's latest start, which its end has to name."""
        opened = self.ahead.state.turn
        return opened.step.starts[-1] if opened is not None and opened.step is not None else "0" * 64

    def _fail(self, step: Step, number: int, attempt: int) -> None:
        assert step.error is not None
        event = StepFailed(
            turn=self.number,
            step=number,
            attempt=attempt,
            started=self._starts(),
            error=step.error.model_copy(update={"message": sanitize_text(step.error.message)[:4000]}),
            retriable=False,
        )
        self.ahead.add(event, step.origin, step.at_ms)
        self.attempt = attempt

    def _finish(self, step: Step, number: int, attempt: int) -> None:
        started = self._starts()

        def make(cutter: Cutter) -> Event:
            return StepFinished(
                turn=self.number,
                step=number,
                attempt=attempt,
                started=started,
                items=tuple([_answer(item, cutter) for item in step.items]),
                calls=tuple([_proposed(index, call, cutter) for index, call in enumerate(step.calls)]),
                stop_reason=sanitize_text(step.stop_reason or UNRECORDED),
                usage=step.usage or NO_USAGE,
                response_id=_named(step.response_id) if step.response_id is not None else None,
            )

        self.ahead.add_fitting(make, step.origin, step.at_ms)


def _named(response: str) -> str:
    """Return the id, cut to what an index takes."""
    return sanitize_text(response)[:NAME_CHARACTERS_MAX]


def _answer(item: AnswerItem, cutter: Cutter) -> AnswerItem:
    """Return the item with its text cut, and without what Postgres cannot store."""
    text = cutter.cut(sanitize_text(item.text))
    if text is item.text and item.provider is None:
        return item
    provider = item.provider
    kept = sanitize_json(provider) if provider is not None else None
    return item.model_copy(update={"text": text, "provider": kept if isinstance(kept, dict) else None})


def _proposed(index: int, call: Call, cutter: Cutter) -> ProposedCall:
    tool, args = sanitize_text(call.tool), cutter.cut_json(sanitize_json(call.args))
    assert isinstance(args, dict)
    malformed = cutter.cut(sanitize_text(call.malformed)) if call.malformed is not None else None
    return ProposedCall(
        index=index,
        tool=tool,
        args=args,
        call_hash=call_hash(tool, args),
        provider_id=sanitize_text(call.source_id),
        malformed=malformed,
    )


@dataclass(slots=True)
class _CallEvents:
    """What became of one call. It is dispatched to a pool that no executor has."""

    ahead: Ahead
    call: Call
    name: str

    def run(self) -> None:
        """Make the call's events, unless it is settled or unknown already."""
        found = self.ahead.state.calls.get(self.name)
        if found is None or found.settled or found.status == "unknown":
            return
        call, ahead = self.call, self.ahead
        if call.end == "denied":
            by = sanitize_text(call.decided_by or UNRECORDED)
            reason = sanitize_text(call.reason or _text_of(call.result) or "no reason was recorded")[:4000]
            event = ToolCallDenied(call=self.name, call_hash=found.call_hash, by=by, reason=reason)
            ahead.add(event, call.end_origin or call.origin, call.ended_ms)
            return
        approved = ToolCallApproved(
            call=self.name, call_hash=found.call_hash, by=sanitize_text(call.decided_by or UNRECORDED)
        )
        ahead.add(approved, call.origin, call.started_ms)
        more = child_mark(call.child) if call.child is not None else ""
        ahead.add(self._dispatched(found.call_hash, found.args), call.origin, call.started_ms, more=more)
        self._settle(call.end)

    def _dispatched(self, hash_in_force: str, args: dict[str, JsonValue]) -> ToolCallDispatched:
        return ToolCallDispatched(
            call=self.name,
            attempt=1,
            call_hash=hash_in_force,
            tool=sanitize_text(self.call.tool),
            pool=POOL,
            args=args,
            effect="unsafe",
            last=True,
            deadline_ms=0,
            timeout_ms=1,
            idempotency_key=idempotency_key(self.ahead.key, self.name),
        )

    def _settle(self, end: CallEnd) -> None:
        """Make the end of the call. An end that nobody recorded is a loss: the call is unknown."""
        ahead, call = self.ahead, self.call
        outcome = FINISHED.get(end)
        running = ahead.state.calls.get(self.name)
        if running is None or running.claim is None:
            return
        claim = running.claim
        if outcome is None:
            evidence = sanitize_text(call.reason or "the session does not tell what came of it")[:1000]
            event = ToolCallLost(call=self.name, attempt=1, claim=claim, evidence=evidence)
            ahead.add(event, call.end_origin or call.origin, call.ended_ms)
            return
        started, ended = call.started_ms, call.ended_ms
        took = max(0, ended - started) if started is not None and ended is not None else 0

        def make(cutter: Cutter) -> Event:
            if call.whole is not None:
                cutter.keep(call.whole)
            for blob in call.blobs:
                cutter.keep(blob)
            changes = tuple([_change(change.path, change.before, change.after, cutter) for change in call.changes])
            short = replace_limit(cutter, ahead.limits.result_bytes_max)
            result = short.cut_json(sanitize_json(call.result))
            return ToolCallFinished(
                call=self.name,
                attempt=1,
                claim=claim,
                outcome=outcome,
                result=result,
                changes=changes,
                artifacts=tuple(cutter.artifacts),
                milliseconds=took,
            )

        ahead.add_fitting(make, call.end_origin or call.origin, ended)


def replace_limit(cutter: Cutter, text_bytes_max: int) -> Cutter:
    """Return a cutter that collects into the same lists and cuts shorter."""
    return Cutter(min(cutter.text_bytes_max, text_bytes_max), cutter.blobs, cutter.artifacts)


def _change(path: str, before: Blob | None, after: Blob | None, cutter: Cutter) -> FileChange:
    return FileChange(
        path=sanitize_text(path),
        before=cutter.keep(before).sha256 if before is not None else None,
        after=cutter.keep(after).sha256 if after is not None else None,
    )


def _text_of(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
