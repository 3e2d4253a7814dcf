"""A thread of Codex while its file is read: one turn is held, and what tells a record that came twice."""

from typing import Any, TypeAlias

from schemas.events import TurnOutcome, Usage
from services.importer.codex.forks import Ordinals, id_in, is_copy, parent_of
from services.importer.codex.records import injected_tag, milliseconds, plus, same, texts_of, usage_of, word
from services.importer.codex.turns import OpenCall, OpenInput, OpenStep, OpenTurn, times_of
from services.importer.model import Compaction, Counts, Header, Origin, Parent, Piece, Rollback

Payload: TypeAlias = dict[str, Any]


class CodexThread:
    """A thread as far as its records have been read. It holds one turn. Take its `pieces` from it."""

    def __init__(self, counts: Counts, name: str) -> None:
        self.counts = counts
        self.pieces: list[Piece] = []
        self.line = 0
        self.stamp: object = None
        self.ordinal: int | None = None
        """Ordinal of the record that is being read; `line` and `stamp` are its line and time."""
        self.previous: object = None
        self.ordinals = Ordinals()
        self.turn: OpenTurn | None = None
        self.id: str | None = None
        """The id that records other than the first tell."""
        self.has_tasks = False
        """Whether its version records where turns begin and end."""
        self.copied_turns = 0
        self.has_own_turns = False
        self._name = name
        self._meta: Payload | None = None
        self._meta_line = 1
        self._copied_from: str | None = None
        self._model: str | None = None
        self._first_model: str | None = None
        self._first_cwd: str | None = None
        self._is_begun = False
        self._turns_begun = 0
        self._turns_ended = 0
        self._live_turns = 0
        """Those that no rollback took out of the context."""
        self._over: set[str] = set()
        """Ids of turns that are over."""
        self._sources: set[str] = set()
        self._prompts: set[int] = set()
        """Hashes of the prompts of turns with ids."""
        self._call_ids: set[str] = set()
        self._totals: object = None
        self._pending: Usage | None = None
        """Tokens of a response whose items are still to come."""
        self._usage_by_records = False
        self._usage_is_counted = False

    # The thread

    def take_meta(self, meta: Payload) -> None:
        """Take the record that names the session. A second one, of another session, shows that turns were copied from
        there.
        """
        source = word(meta.get("id"))
        if source is None:
            self.counts.pass_over("session_meta without an id")
        elif self._meta is None:
            self._meta, self._meta_line = meta, self.line
        elif source != self._meta.get("id"):
            if self._is_begun or self.turn is not None:
                self.counts.pass_over("session_meta of another session")
            elif self._copied_from is None:
                self._copied_from = source

    def take_context(self, model: str | None, cwd: str | None) -> None:
        """Note that the next request is about to be made: what the model says from here is of another response."""
        self._model = model or self._model
        self._first_model = self._first_model or self._model
        self._first_cwd = self._first_cwd or cwd
        self.seal()
        if self.turn is not None:
            self.turn.requests += 1
            self.turn.last_input = None

    def begin(self) -> None:
        """Add the header, once."""
        if not self._is_begun:
            self._is_begun = True
            self.pieces.append(self.header(0))

    def header(self, shared_turns: int) -> Header:
        """Return the header. `shared_turns` is how many of the turns that follow are the parent's."""
        meta = self._meta or {}
        return Header(
            tool="codex",
            source_id=self._source(),
            origin=Origin(self._meta_line, None if self._meta is not None else "its first record is missing"),
            tool_version=word(meta.get("cli_version")),
            parent=self._parent(),
            model=self._first_model,
            cwd=word(meta.get("cwd")) or self._first_cwd,
            created_ms=milliseconds(meta.get("timestamp")),
            shared_turns=shared_turns,
        )

    def end(self) -> None:
        """End the file: the turn that is open may be continued in a longer snapshot."""
        for _ in range(self.ordinals.missing):
            self.counts.pass_over("a gap in the ordinals")
        self.counts.ordinals_end = self.ordinals.end
        self.close_without_record("", is_open=True)
        if self._meta is not None or self.id is not None:
            self.begin()

    def _source(self) -> str:
        return str(self._meta["id"]) if self._meta is not None else self.id or id_in(self._name)

    def _parent(self) -> Parent | None:
        return parent_of(self._meta or {}, self._copied_from)

    # Turns

    def open_turn(self, named: str | None, *, by_task: bool, inferred: str | None) -> OpenTurn:
        """Open a turn. `named` is the id that the file gives it; without one it is numbered."""
        self._turns_begun += 1
        source = named or f"turn/{self._turns_begun}"
        if source in self._sources:
            source = f"{source}/{self._turns_begun}"
        self._sources.add(source)
        self.turn = OpenTurn(source, named, self.line, self.stamp, self.ordinal, by_task, inferred)
        return self.turn

    def has_begun(self, named: str) -> bool:
        """Return whether the turn is open or over."""
        return named in self._over or (self.turn is not None and self.turn.id == named)

    def close_without_record(self, note: str, *, is_open: bool) -> None:
        """End the turn that is open, if there is one, and conclude its outcome."""
        turn = self.turn
        if turn is None:
            return
        outcome: TurnOutcome = "interrupted"
        why = ""
        if not turn.by_task or turn.error is not None:
            outcome, why = turn.conclude(self._usage_is_counted)
        inferred = ": ".join([text for text in (note, why) if text]) or "the file tells no end"
        self.close(turn, outcome, None, inferred, is_open=is_open, is_recorded=False)

    def close(
        self,
        turn: OpenTurn,
        outcome: TurnOutcome,
        reason: str | None,
        inferred: str | None,
        *,
        is_open: bool = False,
        is_recorded: bool = True,
    ) -> None:
        """End the turn. `is_recorded`: whether a record tells the end."""
        self.turn = None
        if turn.id is not None:
            self._over.add(turn.id)
        pending = self._take_pending()
        if pending is not None:
            turn.add_usage(pending, self.line, self.stamp)
        self.begin()
        self.pieces.extend(turn.take_first_compactions())
        if turn.is_nothing() or (is_open and turn.may_be_compaction()):
            return
        self._turns_ended += 1
        self._live_turns += 1
        self._note_copy(turn)
        self.pieces.append(
            turn.piece(
                outcome,
                "recorded" if is_recorded else "inferred",
                reason=reason,
                inferred=inferred,
                ended=self.stamp if is_recorded else turn.last_stamp or turn.stamp,
                is_open=is_open,
            )
        )

    def roll_back(self, turns: int) -> None:
        """Take the last turns out of the context."""
        self.close_without_record("rolled back after it", is_open=False)
        turns = min(turns, self._live_turns)
        if turns:
            self._live_turns -= turns
            self.pieces.append(Rollback(turns, Origin(self.line), milliseconds(self.stamp)))

    def _note_copy(self, turn: OpenTurn) -> None:
        """Count the turns up to the last one that is a copy."""
        parent = self._parent()
        if parent is None or not parent.is_copied or self.has_own_turns:
            return
        copied = is_copy(turn.id, self._source(), turn.stamp, turn.first_answer)
        if copied:
            self.copied_turns = self._turns_ended
        self.has_own_turns = copied is False

    # What the model says

    def seal(self) -> None:
        """Note that what the model says next is of another response."""
        if self.turn is not None and self.turn.step is not None:
            self.turn.step.is_sealed = True

    def model_speaks(self, named: str | None) -> OpenStep | None:
        """Return the step of what the model says; None for what belongs to a turn that is over."""
        turn = self.turn
        if turn is None:
            if named is not None and named in self._over:
                self.counts.pass_over("an answer after its turn")
                return None
            turn = self.open_turn(named, by_task=named is not None, inferred="its beginning is missing")
        step = turn.step
        if step is None or step.is_sealed or (step.is_answered and self.has_tasks):
            step = self._new_step(turn)
            step.usage = self._take_pending()
        turn.requests = 0
        turn.last_input = turn.error = None
        turn.last_stamp = self.stamp
        turn.first_answer = turn.first_answer or self.stamp
        return step

    def _new_step(self, turn: OpenTurn) -> OpenStep:
        turn.step = OpenStep(self.line, self.stamp, self._model)
        turn.pieces.append(turn.step)
        turn.has_steps = True
        return turn.step

    def call(
        self, item: Payload, named: str | None, tool: str, args: Payload, malformed: str | None = None
    ) -> OpenCall | None:
        """Add a call to the model's step. A call that the file repeats is counted and left out; another call with the
        same id gets a name of its own.
        """
        step = self.model_speaks(named)
        turn = self.turn
        if step is None or turn is None:
            return None
        step.has_items = True
        call_id = word(item.get("call_id")) or word(item.get("id")) or f"{turn.source_id}/call/{len(turn.calls) + 1}"
        source_id = call_id
        if call_id in self._call_ids:
            known = turn.calls.get(call_id)
            if known is not None and same((known.stamp, known.item_id, known.args), (self.stamp, item.get("id"), args)):
                self.counts.pass_over(f"{item.get('type')}, the second time")
                return None
            turn.calls_again += 1
            source_id = f"{turn.source_id}/{call_id}/{turn.calls_again}"
        self._call_ids.add(call_id)
        call = OpenCall(step, source_id, call_id, tool, args, malformed, self.line, self.stamp, item.get("id"))
        turn.calls[call_id] = call
        step.calls.append(call)
        return call

    def output(self, item: Payload) -> None:
        """Add the result of a call."""
        turn = self.turn
        call_id = word(item.get("call_id"))
        call = turn.calls.get(call_id) if turn is not None and call_id is not None else None
        if turn is None or call is None or call.output_line is not None:
            self.counts.pass_over(f"{item.get('type')} without its call")
            return
        call.take_output(item.get("output") if "output" in item else item.get("tools"), self.line, self.stamp)
        call.step.is_answered = True
        turn.last_stamp, turn.last_input = self.stamp, None

    def end_call(self, item: Payload, call_id: str | None, event: Payload, kind: str) -> None:
        """Add what is told of a call's end beside its output. A command that a script ran has no call of its own: it is
        kept with the script.
        """
        turn = self.turn
        call = turn.calls.get(call_id) if turn is not None and call_id is not None else None
        if call is not None:
            call.take_item(item)
            call.started_ms, call.ended_ms = times_of(event)
            return
        if call_id in self._call_ids or word(event.get("turn_id")) in self._over:
            return  # its turn is over, and had an end for it
        script = turn.script() if turn is not None and str(call_id).startswith("exec-") else None
        if script is not None:
            script.take_inside(item)
        else:
            self.counts.pass_over(f"{kind} without its call")

    def compact(self, message: str, response_id: object, history: object) -> None:
        """Add a summary. Where the file has none, what the context kept stands for it."""
        note = None
        if not message:
            message, note = _retained(history), "what the context kept, for want of a summary"
        at, at_ms = Origin(self.line, note), milliseconds(self.stamp)
        turn = self.turn
        if turn is not None and not turn.by_task and turn.conclude(self._usage_is_counted)[0] == "completed":
            self.close_without_record("compacted after it", is_open=False)
            turn = None
        if turn is None:
            self.begin()
            self.pieces.append(Compaction(message, at, at_ms, usage=self._take_pending()))
            return
        summary, usage = turn.take_back_summary(message, response_id)
        usage = plus(usage, self._take_pending())
        turn.pieces.append(Compaction(summary, at, at_ms, usage=usage))
        turn.step = turn.last_input = None
        turn.requests = 0
        turn.last_stamp = self.stamp

    # Tokens

    def count_totals(self, info: object) -> None:
        """Count the tokens of `token_count`, which comes before a response, after it, or both. Its totals show whether
        a response was counted before.
        """
        totals = info.get("total_token_usage") if type(info) is dict else None
        if type(info) is not dict or totals is None or same(totals, self._totals) or self._usage_by_records:
            self._totals = totals or self._totals
            if self.turn is not None and self.turn.step is not None and self.turn.step.has_items:
                self.turn.step.is_sealed = True
            return
        self._totals = totals
        usage = usage_of(info.get("last_token_usage"))
        if usage is None:
            return
        self._usage_is_counted = True
        step = self.turn.step if self.turn is not None else None
        if step is None or step.is_sealed:
            self._pending = plus(self._pending, usage)
            return
        step.usage = plus(step.usage, usage)
        step.is_sealed = step.has_items

    def count_response(self, record: Payload) -> None:
        """Count the tokens of `token_usage_record`, which comes after each response."""
        usage = usage_of(record.get("usage"))
        turn = self.turn
        named = word(record.get("turn_id"))
        if usage is None or turn is None or (named is not None and turn.id is not None and named != turn.id):
            self.counts.pass_over("token_usage_record without its turn")
            return
        self._usage_by_records = self._usage_is_counted = True
        step = turn.step
        if step is None or step.usage is not None:
            step = self._new_step(turn)
        step.usage, step.response_id, step.is_sealed = usage, word(record.get("response_id")), True

    def _take_pending(self) -> Usage | None:
        """Return the tokens of a response whose items were still to come, and forget them."""
        pending, self._pending = self._pending, None
        return pending

    # Prompts

    def prompt(
        self, texts: list[str], images: list[str], source_id: str | None, named: str | None, *, by_item: bool
    ) -> None:
        """Add a person's text, which both an event and an item may tell. `named` is the id of its turn. In a turn in
        which the model has spoken it is steering.
        """
        turn = self.turn
        last = turn.last_input if turn is not None else None
        if last is not None and last.is_twin(texts, images, by_item=by_item):
            last.merge(source_id, texts, images, by_item=by_item)
            return
        mark = hash((named, tuple(texts), tuple(images)))
        if named is not None and named in self._over and mark in self._prompts:
            self.counts.pass_over("a prompt, the second time")
            return
        turn = self._turn_for_prompt(turn, named)
        if named is not None:
            self._prompts.add(mark)
        given = OpenInput(source_id, texts, images, self.line, self.stamp, by_item, not by_item)
        turn.last_input = given
        turn.last_stamp = self.stamp
        if turn.has_steps:
            given.steers = True
            turn.pieces.append(given)
            self.seal()
        else:
            turn.inputs.append(given)

    def _turn_for_prompt(self, turn: OpenTurn | None, named: str | None) -> OpenTurn:
        """Return the turn that the prompt belongs to: the open one, or another one that begins with it."""
        if turn is not None:
            if turn.by_task and (named is None or turn.id is None or named == turn.id):
                return turn
            note = "no end before the next turn" if turn.by_task else "its end is the next prompt"
            self.close_without_record(note, is_open=False)
        inferred = "no record of its beginning" if self.has_tasks else None
        return self.open_turn(named, by_task=named is not None, inferred=inferred)


def _retained(history: object) -> str:
    """Return what the context kept after a compaction, as text."""
    kept: list[str] = []
    for item in history if type(history) is list else []:
        if type(item) is dict and item.get("role") in ("user", "assistant"):
            text = "\n".join(texts_of(item.get("content")))
            if text and injected_tag(text) is None:
                kept.append(f"{item['role']}: {text}")
    return "\n\n".join(kept)
