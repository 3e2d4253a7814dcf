"""A thread's log that checks, after every record, what must always hold of the fold."""

from dataclasses import dataclass, field, replace

from schemas.codec import Encoded, Record
from schemas.events import (
    ContextCompacted,
    StepFinished,
    StepStarted,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadCreated,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import call_id
from schemas.state import Call, ThreadState, dump_state, load_state
from schemas.thread import Verdict, fold, next_chain
from schemas.transcript import Item, Transcript, transcript_changes
from tests.support.recorded.actors import next_move
from tests.support.recorded.histories import History, fold_all

EFFECTS = {"applied", "duplicate", "superseded", "rejected", "ignored"}
AUDITS = {"turn.recovered", "artifact.recorded", "skill.loaded"}
"""Kinds that change no state, and take effect as often as they come."""
OF_ANYONE = {"thread.described", "thread.archived", "thread.unarchived", "thread.close_requested", "artifact.recorded"}
"""Kinds that may be anybody's while a thread is imported."""
RESTS_WITHIN = 400


@dataclass
class Said:
    """What took effect, as far as later events refer to it: kept beside the fold, to judge it by."""

    config_seq: int = 0
    base: int = 0
    follows: str = ""
    """Data hash of the open turn's last answer, before that of its start."""
    starts: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """Data hashes of the starts of each step."""
    inputs: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    """That each step took."""
    taken: set[str] = field(default_factory=set)
    hashes: dict[str, str] = field(default_factory=dict)
    """Hash in force of each call."""
    attempts: dict[str, int] = field(default_factory=dict)
    claims: dict[str, set[str]] = field(default_factory=dict)
    """Ids of the claims of each call that won."""


@dataclass
class Checked(History):
    transcript: Transcript = field(default_factory=Transcript)
    outcomes: dict[str, str | None] = field(default_factory=dict)
    """How calls ended."""
    claims: dict[tuple[str, int], str] = field(default_factory=dict)
    """Who won each attempt."""
    may_not_run: set[str] = field(default_factory=set)
    """Calls that were claimed, are neither pure nor idempotent, and that nobody said may run again."""
    may_have_run: dict[str, set[str | None]] = field(default_factory=dict)
    """Claims of each call that were lost, not pure, and of which nobody said that nothing was done under them."""
    ended: set[int] = field(default_factory=set)
    said: Said = field(default_factory=Said)
    failed: bool = False
    """A check has failed; those at the end would only hide it."""

    def fork_of(self, place: int) -> History:
        return History(self.key, self.states[place], now_ms=self.now_ms, drawn=self.drawn + 1_000 * len(self.states))

    def add(self, made: Encoded) -> Verdict:
        self.failed = True
        before, dumped = self.state, dump_state(self.state)
        verdict = super().add(made)
        after, record = self.state, self.records[-1]
        assert dump_state(before) == dumped, "the state that was given has changed"
        self._check_bookkeeping(before, after, record, verdict)
        self._check_turns(before, after, record, verdict)
        self._check_calls(before, after)
        self._check_runs(before, record, verdict)
        if verdict.effect == "applied":
            self._check_references(before, record)
        self._check_duplicate(after, record)
        dumped = dump_state(after)
        loaded = load_state(dumped)
        assert loaded == after
        assert dump_state(loaded) == dumped, "the order of what is remembered is lost"
        self.transcript.apply(transcript_changes(before, after, record, verdict))
        self._check_transcript(record, verdict)
        self.failed = False
        return verdict

    def _check_bookkeeping(self, before: ThreadState, after: ThreadState, record: Record, verdict: Verdict) -> None:
        assert verdict.effect in EFFECTS
        assert (verdict.reason is None) == (verdict.effect == "applied"), verdict
        assert after.seq == before.seq + 1 == len(self.records)
        assert after.chain == next_chain(before.chain, record) != before.chain
        assert after.offset == record.offset
        if verdict.effect != "applied":
            assert _without_bookkeeping(after) == _without_bookkeeping(before)

    def _check_turns(self, before: ThreadState, after: ThreadState, record: Record, verdict: Verdict) -> None:
        assert after.last_turn - before.last_turn in {0, 1}
        if after.turn is not None:
            assert after.turn.turn == after.last_turn
            assert after.turn.turn not in self.ended, "a finished turn does not open again"
            assert before.turn is None or before.turn.turn == after.turn.turn
            assert before.turn is None or before.turn.cancelling in {None, after.turn.cancelling}
        if before.turn is not None and after.turn is None:
            self.ended.add(before.turn.turn)
            assert before.turn.cancelling is None or after.last_outcome != "completed"
        if before.status == "closed":
            assert after.status == "closed"
        if verdict.effect == "applied" and not isinstance(record.data, ThreadCreated | ThreadImportStarted):
            is_importers = record.actor.startswith("import:")
            assert is_importers == (before.status == "importing") or record.kind in OF_ANYONE
        if before.status == "importing" and after.status != "importing":
            assert (after.queue, after.turn) == ((), None), "what was imported starts nothing"
        if before.turn is not None and before.turn.cancelling and verdict.effect == "applied":
            assert not isinstance(record.data, StepStarted | ToolCallDispatched | ToolCallStarted)
        if isinstance(record.data, TurnEnded) and verdict.effect == "applied":
            assert not [call for call in after.calls.values() if call.status != "unknown"], "calls are left behind"
        assert len({item.input for item in after.queue}) == len(after.queue)
        open_turn = after.turn.turn if after.turn is not None else None
        assert all(item.expected_turn in {None, open_turn} for item in after.queue)

    def _check_calls(self, before: ThreadState, after: ThreadState) -> None:
        for name, call in after.calls.items():
            assert name == call.call
            assert call.settled == (call.outcome is not None)
            if name in self.outcomes:
                assert self.outcomes[name] == call.outcome, "a call has one result"
            elif call.settled:
                self.outcomes[name] = call.outcome
            if call.status == "running" and call.claim is not None:
                assert self.claims.setdefault((name, call.attempt), call.claim) == call.claim, "a claim has one winner"
            assert call.turn <= after.last_turn
            assert not call.settled or call.args == {}
        for name, call in before.calls.items():
            assert call.settled or name in after.calls, "only settled calls leave the state"

    def _check_runs(self, before: ThreadState, record: Record, verdict: Verdict) -> None:
        """Nothing with side effects runs twice without somebody having said that it may."""
        if verdict.effect != "applied":
            return
        match record.data:
            case ToolCallLost(call=name, claim=claim) if claim is not None and before.calls[name].effect != "pure":
                self.may_have_run.setdefault(name, set()).add(claim)
            case ToolCallFinished(call=name, claim=claim, outcome="not_started"):
                self.may_have_run.get(name, set()).discard(claim)
            case _:
                pass
        for name, call in self.state.calls.items():
            if call.outcome in {"cancelled", "not_started"} and not before.calls.get(name, call).settled:
                seen = isinstance(record.data, ToolCallFinished) and record.data.outcome == "cancelled"
                assert seen or not self.may_have_run.get(name), "what may have run is unknown"
        match record.data:
            case ToolCallStarted(call=name):
                self._claimed(before.calls[name], before.calls[name].effect)
            case ToolCallDispatched(call=name, pool="client" | "thread", effect=effect):
                self._claimed(before.calls[name], effect)
            case ToolCallFinished(call=name, outcome="not_started") | ToolCallResolved(call=name, decision="again"):
                self.may_not_run.discard(name)

    def _claimed(self, call: Call, effect: str) -> None:
        assert call.call not in self.may_not_run, "it may have run"
        if effect in {"reconcilable", "unsafe"}:
            self.may_not_run.add(call.call)

    def _check_references(self, before: ThreadState, record: Record) -> None:
        """Whoever refers to another event means the one that took effect."""
        said, seq = self.said, self.state.seq
        match record.data:
            case ThreadCreated() | ThreadConfigured():
                said.config_seq = seq
            case ThreadRewound() | ContextCompacted() | ThreadImportEnded():
                said.base = seq
            case ThreadCloseRequested() if before.status == "importing":
                said.base = seq
            case TurnStarted() as data:
                assert (data.config, data.base) == (said.config_seq, said.base)
                assert said.taken.isdisjoint(data.inputs), "an input is taken once"
                assert not any(item.held for item in before.queue if item.input in data.inputs)
                said.taken.update(data.inputs)
                said.follows = record.data_hash
            case StepStarted() as data:
                assert data.follows == said.follows
                started = said.starts.setdefault((data.turn, data.step), [])
                assert data.attempt == len(started) + 1
                if not started:
                    assert said.taken.isdisjoint(data.inputs), "an input is taken once"
                    said.taken.update(data.inputs)
                assert said.inputs.setdefault((data.turn, data.step), data.inputs) == data.inputs
                started.append(record.data_hash)
            case StepFinished() as data:
                assert data.started in said.starts[data.turn, data.step]
                said.follows = record.data_hash
                said.hashes.update({call_id(data.turn, data.step, call.index): call.call_hash for call in data.calls})
            case TurnEnded() as data:
                assert before.turn is not None
                assert before.turn.cancelling is not None or data.follows == said.follows
            case (
                ToolCallApprovalRequested(call=call, call_hash=call_hash)
                | ToolCallDenied(call=call, call_hash=call_hash)
            ):
                assert call_hash == said.hashes[call]
            case ToolCallApproved() as data:
                assert data.call_hash == said.hashes[data.call]
                said.hashes[data.call] = data.edited.call_hash if data.edited is not None else data.call_hash
            case ToolCallDispatched() as data:
                assert data.call_hash == said.hashes[data.call]
                assert data.attempt == said.attempts.get(data.call, 0) + 1
                said.attempts[data.call] = data.attempt
                if data.pool == "client":
                    said.claims.setdefault(data.call, set()).add(record.id)
            case ToolCallStarted() as data:
                assert data.attempt == said.attempts[data.call]
                said.claims.setdefault(data.call, set()).add(record.id)
            case ToolCallFinished() as data:
                assert before.calls[data.call].effect == "pure" or data.claim in said.claims[data.call]
            case ToolCallLost() as data:
                assert data.attempt == said.attempts[data.call]
                running = before.calls[data.call].status == "running"
                assert running == (data.claim is not None)
                assert not running or data.claim in said.claims[data.call]
            case ToolCallResolved() as data:
                assert data.attempt == said.attempts.get(data.call, 0)
            case _:
                pass

    def _check_duplicate(self, after: ThreadState, record: Record) -> None:
        again, verdict = fold(after, record)
        is_audit = record.kind in AUDITS
        assert is_audit or verdict.effect != "applied"
        assert _without_bookkeeping(again) == _without_bookkeeping(after)

    def _check_transcript(self, record: Record, verdict: Verdict) -> None:
        if not (isinstance(record.data, StepStarted) and verdict.effect == "applied"):
            return
        shown = self.transcript.context()
        check_context(shown)
        assert self.state.turn is not None
        taken = {item.input for item in shown if item.input is not None and item.turn == self.state.turn.turn}
        if not any(item.kind == "summary" for item in shown):
            assert taken >= {*self.state.turn.inputs, *record.data.inputs}

    def check_in_other_ways(self) -> None:
        """Folding in any batching is equal, also over stored states; the fold of a prefix is a prefix of the fold; the
        transcript is the same when it is built from nothing.
        """
        state, verdicts = fold_all(self.states[0], self.records)
        assert (state, verdicts) == (self.state, self.verdicts)
        half = len(self.records) // 2
        first, first_verdicts = fold_all(self.states[0], self.records[:half])
        assert (first, first_verdicts) == (self.states[half], self.verdicts[:half])
        rest, _ = fold_all(load_state(dump_state(first)), self.records[half:])
        assert rest == self.state
        transcript = Transcript()
        for place, record in enumerate(self.records):
            before, after = self.states[place : place + 2]
            transcript.apply(transcript_changes(before, after, record, self.verdicts[place]))
        assert transcript == self.transcript

    def bring_to_rest(self) -> None:
        """Well-behaved services and people finish whatever there is, and each of their events takes effect."""
        for _ in range(RESTS_WITHIN):
            move = next_move(self.state)
            if move is None:
                break
            verdict = self.append(*move)
            assert verdict.effect == "applied", (move, verdict)
        else:
            raise AssertionError("the thread does not come to rest")
        assert self.state.turn is None
        assert all(item.held for item in self.state.queue)
        assert self.state.status in {"none", "active", "closed"}
        self._check_all_results()

    def _check_all_results(self) -> None:
        """In history every call has exactly one result, and at most one resolution after an unknown end."""
        calls = [item.call for item in self.transcript.items if item.kind == "tool_call"]
        results = [item.call for item in self.transcript.items if item.kind == "tool_result"]
        resolutions = [item.call for item in self.transcript.items if item.kind == "resolution"]
        assert sorted(map(str, results)) == sorted(map(str, calls))
        assert len(set(resolutions)) == len(resolutions)
        assert set(resolutions) <= set(calls)


def check_context(shown: list[Item]) -> None:
    """What a model sees: each call with one result after it, and a summary only at its head."""
    calls = [item.call for item in shown if item.kind == "tool_call"]
    results = [item.call for item in shown if item.kind == "tool_result"]
    assert sorted(map(str, results)) == sorted(map(str, calls))
    assert len(set(calls)) == len(calls)
    seen: set[str | None] = set()
    for place, item in enumerate(shown):
        assert (item.kind == "summary") <= (place == 0)
        assert item.place is not None
        if item.kind == "tool_call":
            seen.add(item.call)
        assert item.kind != "tool_result" or item.call in seen


def _without_bookkeeping(state: ThreadState) -> ThreadState:
    return replace(state, seq=0, chain="", offset=0, updated_ms=0, commands={}, ignored_types=())
