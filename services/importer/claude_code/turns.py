"""The second reading: one thread's records in the order of the file, made into turns.

A prompt begins a turn; the next one ends it, if nothing told its end before. A turn is *settled* once the model's last
message is whole and nothing that would wake it again is under way; what goes on after that is a turn of its own, so
that the turns of a file are a prefix of those of a longer one, but for the one that is open at its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from schemas.events import AnswerReasoning, AnswerText, Failure, TextItem
from services.importer.claude_code.index import Index
from services.importer.claude_code.open_calls import OpenCall, OpenInput, OpenStep, OpenTurn, end_of
from services.importer.claude_code.records import (
    INTERRUPTED,
    SYNTHETIC_MODEL,
    Kind,
    content_items,
    content_of,
    copied_from,
    first_text,
    milliseconds,
    task_of_notice,
    text_of,
    usage_of,
)
from services.importer.claude_code.results import Result, Tasks, result_of
from services.importer.companions import Companions
from services.importer.lines import Record
from services.importer.model import (
    Call,
    Compaction,
    Counts,
    Discarded,
    Input,
    Origin,
    Piece,
    Plan,
    Step,
    Turn,
)

MESSAGE_MAX = 2_000
"""Characters of an error that are kept with its turn."""
NO_RESULT = "the session holds no result of it"
UNANSWERED = "neither an answer nor a prompt followed it"
BY_PROMPT = "end by the next prompt"
BY_FILE = "end by the end of the file"
BY_TOOL = "written by the tool, not by a person"
GOES_ON = "goes on after its turn had ended"


@dataclass(slots=True)
class Scene:
    """All threads of one file share this."""

    index: Index
    counts: Counts
    companions: Companions
    taken: set[int] = field(default_factory=set)
    """Hashes of the ids of calls: a second call of one id is none."""


class ThreadReader:
    """`feed` takes the thread's records one by one. What it returns is whole and will not change."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._turn: OpenTurn | None = None
        self._waiting: list[OpenInput] = []
        """What may become an input: commands, and what the tool wrote while no turn was open."""
        self._boundary: tuple[int, int | None, bool] | None = None
        self._tasks = Tasks()
        self.turns = 0
        """How many have begun so far."""

    def feed(self, kind: int, line: int, record: Record) -> list[Piece]:
        """Return the pieces that the record completes. `kind` is a `Kind`, as a number."""
        out: list[Piece] = []
        handle = self._handlers.get(kind)
        if handle is not None:
            handle(self, line, record, out)
        return out

    def finish(self) -> list[Piece]:
        """Return what is left at the end of the file."""
        out: list[Piece] = []
        out.extend(Discarded(item.close(), UNANSWERED) for item in self._waiting if item.kind is not Kind.META)
        self._close(BY_FILE, out)
        return out

    # Inputs

    def _prompt(self, line: int, record: Record, out: list[Piece]) -> None:
        """Begin a turn with a person's words."""
        commands = [item for item in self._waiting if item.kind is not Kind.META] if self._waiting else []
        self._begin([*commands, self._input(Kind.PROMPT, line, record)], out)

    def _command(self, line: int, record: Record, _out: list[Piece]) -> None:
        """Keep a slash command: it is an input if the model answers it."""
        self._waiting.append(self._input(Kind.COMMAND, line, record))

    def _shell(self, line: int, record: Record, _out: list[Piece]) -> None:
        """Keep a command that the person ran beside the conversation: the model sees it with the next prompt."""
        self._waiting.append(self._input(Kind.SHELL, line, record))

    def _notice(self, line: int, record: Record, out: list[Piece]) -> None:
        """Take the end of a background task, which may continue its turn."""
        item = self._input(Kind.NOTICE, line, record)
        turn = self._steer(item, out)
        text = item.items[0].text if item.items and isinstance(item.items[0], TextItem) else ""
        turn.background.discard(task_of_notice(text) or "")

    def _steering(self, line: int, record: Record, out: list[Piece]) -> None:
        self._steer(self._input(Kind.STEERING, line, record), out)

    def _input(self, kind: Kind, line: int, record: Record) -> OpenInput:
        content = content_items(content_of(record), self._scene.counts)
        name = self._name(line, record)
        by_tool = BY_TOOL if kind in {Kind.META, Kind.NOTICE} else None
        return OpenInput(name, kind, content.items, content.blobs, line, milliseconds(record), by_tool)

    def _begin(self, inputs: list[OpenInput], out: list[Piece], *, inferred: str | None = None) -> OpenTurn:
        """Open a turn, and end the one before it."""
        self._close(BY_PROMPT, out)
        self._waiting = []
        last = inputs[-1]
        self.turns += 1
        self._turn = OpenTurn(last.source_id, last.line, last.at_ms, inputs, inferred, last_ms=last.at_ms)
        return self._turn

    def _steer(self, item: OpenInput, out: list[Piece]) -> OpenTurn:
        """Add an input to the open turn."""
        turn = self._turn
        if turn is None or turn.is_settled:
            return self._begin([item], out)
        item.steers = True
        turn.pieces.append(item)
        return turn

    def _from_tool(self, line: int, record: Record, _out: list[Piece]) -> None:
        item = self._input(Kind.META, line, record)
        before = self._waiting[-1] if self._waiting else None
        turn = self._turn
        if before is not None and before.kind is Kind.COMMAND:
            _add(before, item)
        elif turn is None or turn.is_settled:
            self._waiting.append(item)
        elif turn.pieces or not turn.inputs:
            item.steers = True
            turn.pieces.append(item)
        else:
            _add(turn.inputs[-1], item)

    def _done_locally(self, _line: int, record: Record, _out: list[Piece]) -> None:
        if first_text(content_of(record)).lstrip().startswith("<local-command-std"):
            place = next((n for n in range(len(self._waiting)) if self._waiting[-1 - n].kind is Kind.COMMAND), None)
            if place is not None:
                del self._waiting[-1 - place]

    def _interruption(self, _line: int, record: Record, _out: list[Piece]) -> None:
        self._interrupt(first_text(content_of(record)), milliseconds(record))

    def _interrupt(self, text: str, at_ms: int | None) -> None:
        turn = self._turn
        if turn is not None and not turn.has_answer and turn.aborted is None:
            turn.aborted = text.strip()
            turn.last_ms = at_ms or turn.last_ms

    # The model

    def _answer(self, line: int, record: Record, out: list[Piece]) -> None:
        """Add a part of a response. The lines of one message have the same id."""
        message = record.get("message")
        message = message if isinstance(message, dict) else {"content": message}
        response = text_of(message, "id")
        turn = self._turn
        step = turn.steps.get(response) if turn is not None and response is not None else None
        if turn is None or step is None:
            name = self._name(line, record)
            turn = self._turn_to_answer(name, line, record, out)
            step = OpenStep(name, line)
            turn.is_told_over = False
            turn.steps[response or name] = turn.last_step = step
            turn.pieces.append(step)
        step.at_ms = turn.last_ms = milliseconds(record) or turn.last_ms
        step.stop_reason = text_of(message, "stop_reason") or step.stop_reason
        model = text_of(message, "model")
        if model != SYNTHETIC_MODEL:
            step.model, step.response_id = model or step.model, response
            step.usage = usage_of(message) or step.usage
        content = message.get("content")
        if record.get("isApiErrorMessage") is True or (model == SYNTHETIC_MODEL and _is_api_error(content)):
            kind = text_of(record, "error")
            kind = kind if kind and kind != "unknown" else "api_error"
            step.error = Failure(kind=kind, message=first_text(content)[:MESSAGE_MAX])
        else:
            self._blocks(turn, step, content, line, record)

    def _name(self, line: int, record: Record) -> str:
        return text_of(record, "uuid") or f"{self._scene.index.session}:{line}"

    def _turn_to_answer(self, name: str, line: int, record: Record, out: list[Piece]) -> OpenTurn:
        """Return the open turn, or the one that begins with this answer."""
        turn = self._turn
        commands = [item for item in self._waiting if item.kind is not Kind.META]
        if turn is not None and not turn.is_settled and not any(item.kind is Kind.COMMAND for item in commands):
            for item in self._waiting:
                item.steers = True
                turn.pieces.append(item)
            self._waiting = []
            return turn
        inputs = commands or self._waiting
        if inputs:
            return self._begin(inputs, out, inferred=None if commands else GOES_ON)
        self._close(BY_PROMPT, out)
        self.turns += 1
        self._turn = OpenTurn(name, line, milliseconds(record), [], GOES_ON if turn else "its prompt is not recorded")
        return self._turn

    def _blocks(self, turn: OpenTurn, step: OpenStep, content: Any, line: int, record: Record) -> None:
        if isinstance(content, str):
            step.items.append(AnswerText(text=content))
        for place, block in enumerate(content if isinstance(content, list) else ()):
            kind = text_of(block, "type") if isinstance(block, dict) else None
            if kind == "text" and isinstance(text := block.get("text"), str):
                if text:
                    step.items.append(AnswerText(text=text))
            elif kind in {"thinking", "redacted_thinking"}:
                if (thought := text_of(block, "thinking")) is not None:
                    step.items.append(AnswerReasoning(text=thought))
            elif kind == "tool_use":
                self._call(turn, step, block, f"{step.source_id}:{line}:{place}", line, record)
            else:
                self._scene.counts.pass_over(f"block {(kind or 'without a type')[:60]}")

    def _call(self, turn: OpenTurn, step: OpenStep, block: Record, name: str, line: int, record: Record) -> None:
        """Add a call. A second call with the same id is not one."""
        name = text_of(block, "id") or name
        if hash(name) in self._scene.taken:
            self._scene.counts.pass_over("second call of one id")
            return
        self._scene.taken.add(hash(name))
        args = block.get("input")
        malformed = None if isinstance(args, dict) else str(args)
        session = copied_from(record) or self._scene.index.session
        tool = text_of(block, "name") or "unnamed"
        call = OpenCall(name, tool, args if isinstance(args, dict) else {}, line, malformed, session)
        step.calls.append(call)
        turn.calls[name] = call

    def _results(self, line: int, record: Record, out: list[Piece]) -> None:
        """Give results to their calls."""
        turn = self._turn
        said = False
        for block in content_of(record):
            if not isinstance(block, dict) or block.get("type") != "tool_result":
                said = True
                continue
            name = block.get("tool_use_id")
            call = turn.calls.get(name) if turn is not None and isinstance(name, str) else None
            if turn is not None and call is not None and call.result is None:
                result = call.result = result_of(record, block, line, self._scene.counts, self._scene.companions)
                if result.ended_ms is not None and result.ended_ms > (turn.last_ms or 0):
                    turn.last_ms = result.ended_ms
                if result.task is not None:
                    turn.background.add(result.task)
        if said:
            self._said_beside(line, record, out)

    def _said_beside(self, line: int, record: Record, out: list[Piece]) -> None:
        """Take what is in the same record as the results: the word of an interruption, or of a person."""
        item = self._input(Kind.STEERING, line, record)
        texts = [part for part in item.items if isinstance(part, TextItem)]
        marks = [part.text for part in texts if part.text.startswith(INTERRUPTED)]
        if marks:
            self._interrupt(marks[0], item.at_ms)
        item.items = tuple(part for part in texts if not part.text.startswith(INTERRUPTED))
        if item.items or item.blobs:
            self._steer(item, out)

    def _failed_request(self, line: int, record: Record, _out: list[Piece]) -> None:
        """Add a request that failed."""
        turn = self._turn
        if turn is None or turn.is_settled:
            self._scene.counts.pass_over("failed request outside a turn")
            return
        error = record.get("error")
        error = error if isinstance(error, dict) else {}
        message = text_of(error, "formatted") or text_of(error, "message") or text_of(record, "content") or "no message"
        step = OpenStep(self._name(line, record), line, milliseconds(record), is_retried=True)
        step.error = Failure(kind="api_error", message=message[:MESSAGE_MAX])
        turn.pieces.append(step)
        turn.last_step = step
        turn.last_ms = step.at_ms or turn.last_ms

    def _bound(self, line: int, record: Record, _out: list[Piece]) -> None:
        details = record.get("compactMetadata")
        manual = isinstance(details, dict) and details.get("trigger") == "manual"
        self._boundary = (line, milliseconds(record), manual)

    def _compact(self, line: int, record: Record, out: list[Piece]) -> None:
        """Add the summary of a compaction."""
        first, at_ms, manual = self._boundary or (line, milliseconds(record), False)
        self._boundary = None
        summary = "".join(
            item.text
            for item in content_items(content_of(record), self._scene.counts).items
            if isinstance(item, TextItem)
        )
        piece = Compaction(summary, Origin(first), at_ms, manual)
        turn = self._turn
        if turn is not None and not turn.is_settled and not manual:
            turn.pieces.append(piece)
            return
        self._close(BY_PROMPT, out)
        out.append(piece)

    # The end of a turn

    def _told_over(self, _line: int, record: Record, _out: list[Piece]) -> None:
        turn = self._turn
        if turn is not None and turn.pieces and turn.pieces[-1] is turn.last_step:
            turn.is_told_over = True
            turn.last_ms = max(turn.last_ms or 0, milliseconds(record) or 0) or None

    def _close(self, by: str, out: list[Piece]) -> None:
        """End the open turn. `by` says what ended it, where no record does."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        outcome, evidence, reason = end_of(turn)
        inferred = [text for text in (turn.inferred, by if evidence == "inferred" else None) if text is not None]
        pieces: list[Step | Compaction | Plan | Input] = []
        for piece in turn.pieces:
            if isinstance(piece, OpenStep):
                self._close_step(piece, pieces)
            else:
                pieces.append(piece.close() if isinstance(piece, OpenInput) else piece)
        out.append(
            Turn(
                source_id=turn.source_id,
                inputs=tuple(item.close() for item in turn.inputs),
                pieces=tuple(pieces),
                outcome=outcome,
                end_evidence=evidence,
                origin=Origin(turn.line, "; ".join(inferred) or None),
                reason=reason,
                started_ms=turn.started_ms,
                ended_ms=turn.last_ms,
                is_open=by == BY_FILE and not turn.is_settled,
            )
        )

    def _close_step(self, step: OpenStep, pieces: list[Step | Compaction | Plan | Input]) -> None:
        calls = [self._close_call(call) for call in step.calls]
        pieces.append(
            Step(
                source_id=step.source_id,
                origin=Origin(step.line),
                items=tuple(step.items),
                calls=tuple(calls),
                usage=step.usage,
                response_id=step.response_id,
                model=step.model,
                stop_reason=step.stop_reason,
                at_ms=step.at_ms,
                error=step.error,
            )
        )
        for call in step.calls:
            result = call.result
            if result is not None and result.end == "succeeded":
                tasks = self._tasks.after(call.tool, call.args, result.kept)
                if tasks is not None:
                    of_text = "one task for the plan's text" if call.tool == "ExitPlanMode" else None
                    pieces.append(Plan(tasks, Origin(result.origin.line, of_text), result.ended_ms))

    def _close_call(self, call: OpenCall) -> Call:
        if call.result is None:
            call.result = self._late_result(call.source_id)
        result = call.result or Result("unknown", Origin(call.line), reason=NO_RESULT)
        child = self._scene.index.children.get(call.source_id)
        if result.agent is not None:
            child = f"{call.session}:{result.agent}"
        return Call(
            source_id=call.source_id,
            tool=call.tool,
            args=call.args,
            end=result.end,
            origin=Origin(call.line),
            end_origin=result.origin if call.result is not None else None,
            malformed=call.malformed,
            result=result.shown,
            blobs=result.blobs,
            whole=result.whole,
            exit_code=result.exit_code,
            approval=result.approval,
            decided_by=result.decided_by,
            reason=result.reason,
            ended_ms=result.ended_ms,
            changes=result.changes,
            child=child,
        )

    def _late_result(self, call: str) -> Result | None:
        """Return the result that came after the call's turn, or None."""
        line, record = self._scene.index.late.get(call, (0, {}))
        content = content_of(record)
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        block = next((block for block in blocks if block.get("tool_use_id") == call), None)
        return result_of(record, block, line, self._scene.counts, self._scene.companions) if block is not None else None

    _handlers: ClassVar[dict[int, Callable[["ThreadReader", int, Record, list[Piece]], None]]] = {
        Kind.PROMPT: _prompt,
        Kind.COMMAND: _command,
        Kind.LOCAL: _done_locally,
        Kind.SHELL: _shell,
        Kind.META: _from_tool,
        Kind.NOTICE: _notice,
        Kind.SUMMARY: _compact,
        Kind.INTERRUPTION: _interruption,
        Kind.RESULT: _results,
        Kind.ANSWER: _answer,
        Kind.BOUNDARY: _bound,
        Kind.FAILED_REQUEST: _failed_request,
        Kind.STEERING: _steering,
        Kind.TURN_END: _told_over,
    }


def _add(item: OpenInput, more: OpenInput) -> None:
    item.items += more.items
    item.blobs += more.blobs


def _is_api_error(content: Any) -> bool:
    return first_text(content).startswith("API Error")
