"""A turn of Codex while its records come: what is said twice, by an event and by an item, is held once."""

from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Any, Literal

import orjson
from pydantic import JsonValue

from schemas.events import AnswerItem, AnswerReasoning, AnswerText, Failure, TextItem, TurnOutcome, Usage
from services.chassis.sanitize import sanitize_json
from services.importer.codex.calls import End, changes_of, child_of, end_of_output, whole_of
from services.importer.codex.records import count, image_of, milliseconds, word
from services.importer.model import Blob, Call, CallEnd, Change, Compaction, Evidence, Input, Origin, Plan, PlanTask
from services.importer.model import Step as StepPiece
from services.importer.model import Turn as TurnPiece

INSIDE_MAX = 1000
"""Commands of one script that are kept."""
TWINS_MAX = 100
"""Texts, and running calls, among which the second telling of something is searched. Both tellings are close to each
other.
"""
_NOT_KEPT_INSIDE = frozenset({"parsed_cmd", "process_id"})
_PLAN_STATUS: dict[str | None, Literal["pending", "running", "succeeded"]] = {
    "pending": "pending",
    "in_progress": "running",
    "completed": "succeeded",
}
_ITEM_ENDS: dict[str | None, CallEnd] = {"failed": "failed", "declined": "denied"}


@dataclass(slots=True)
class Said:
    """The model says this, or thinks it."""

    kind: Literal["text", "reasoning"]
    text: str
    by_item: bool
    by_event: bool


@dataclass(slots=True)
class OpenCall:
    """A call, as far as it is known."""

    step: "OpenStep"
    source_id: str
    call_id: str
    tool: str
    args: dict[str, JsonValue]
    malformed: str | None
    line: int
    stamp: object
    item_id: object
    output: Any = None
    output_line: int | None = None
    output_stamp: object = None
    item: dict[str, Any] | None = None
    """What an item or event tells of its end, beside the output."""
    started_ms: int | None = None
    ended_ms: int | None = None
    settled: End | None = None
    """The end, where its own record tells it and no output follows."""
    whole: Blob | None = None
    changes: tuple[Change, ...] = ()
    child: str | None = None
    inside: list[JsonValue] = field(default_factory=list)
    """Commands that ran in it and have no call of their own."""

    @property
    def has_ended(self) -> bool:
        """Return whether its end is known."""
        return self.output_line is not None or self.settled is not None

    def piece(self) -> Call:
        end = self._end()
        item_code = self.item.get("exit_code") if self.item is not None else None
        code = end.exit_code if end.exit_code is not None else item_code
        return Call(
            source_id=self.source_id,
            tool=self.tool,
            args=self.args,
            end=end.end,
            origin=Origin(self.line),
            end_origin=None if self.output_line is None else Origin(self.output_line),
            malformed=self.malformed,
            result=self.output,
            whole=self._whole(),
            exit_code=code if type(code) is int else None,
            approval="denied" if end.end == "denied" else "unrecorded",
            reason=end.reason,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms if self.ended_ms is not None else milliseconds(self.output_stamp),
            changes=self.changes,
            child=self.child or (child_of(self.output) if self.tool.endswith("spawn_agent") else None),
        )

    def _end(self) -> End:
        """Return how it ended: its output decides, and an item where the output says nothing."""
        if self.output_line is None:
            return self.settled or End("unknown", None, "no result of it is recorded")
        end = end_of_output(self.tool, self.output)
        told = _ITEM_ENDS.get(word(self.item.get("status"))) if self.item is not None else None
        if told is None or end.end != "succeeded" or end.exit_code is not None:
            return end
        return End(told)

    def _whole(self) -> Blob | None:
        """Return what the file keeps beyond what the model was shown."""
        if self.whole is not None or not self.inside:
            return self.whole
        lines = b"".join(orjson.dumps(command) + b"\n" for command in self.inside)
        return Blob(lines, "application/x-ndjson", "commands.jsonl")

    def take_item(self, item: dict[str, Any]) -> None:
        """Take what `item_completed`, or an event of its end, tells."""
        self.item = item
        printed = item.get("aggregated_output")
        if printed is not None:
            self.whole = whole_of(printed, self.output)
        if item.get("status") == "completed" or item.get("success") is True:
            self.changes = changes_of(item.get("changes"))
        receivers = item.get("receiver_thread_ids")
        if type(receivers) is list and receivers and item.get("tool") == "spawn_agent":
            self.child = word(receivers[0])

    def take_inside(self, item: dict[str, Any]) -> None:
        """Take a command that ran in it. The model was shown no result of its own, so it is kept beside the
        script's.
        """
        if len(self.inside) < INSIDE_MAX:
            self.inside.append(sanitize_json({name: item[name] for name in item if name not in _NOT_KEPT_INSIDE}))
            if item.get("status") == "completed":
                self.changes += changes_of(item.get("changes"))

    def take_output(self, output: Any, line: int, stamp: object) -> None:
        self.output, self.output_line, self.output_stamp = output, line, stamp
        if self.item is not None:
            self.whole = whole_of(self.item.get("aggregated_output"), output)


@dataclass(slots=True)
class OpenStep:
    """A response of the model, as far as it is known."""

    line: int
    stamp: object
    model: str | None
    said: list[Said] = field(default_factory=list)
    calls: list[OpenCall] = field(default_factory=list)
    usage: Usage | None = None
    response_id: str | None = None
    is_sealed: bool = False
    """Whether its response is over: what the model says next is of another one."""
    is_answered: bool = False
    """Whether a result of one of its calls has come."""
    has_items: bool = False
    """Whether items tell of it, and not events alone."""

    def say(self, kind: Literal["text", "reasoning"], text: str, *, by_item: bool) -> None:
        """Add a text, unless its other telling is there already."""
        for said in self.said[-TWINS_MAX:]:
            if said.kind == kind and said.text == text and not (said.by_item if by_item else said.by_event):
                said.by_item, said.by_event = said.by_item or by_item, said.by_event or not by_item
                break
        else:
            self.said.append(Said(kind, text, by_item, not by_item))
        self.has_items = self.has_items or by_item

    def text(self) -> str:
        return "\n".join([said.text for said in self.said if said.kind == "text"])

    def ends_turn(self) -> bool:
        """Return whether it is an answer after which the model had nothing more to do."""
        return not self.calls and any(said.kind == "text" and said.by_item for said in self.said)

    def piece(self, source_id: str) -> StepPiece:
        items: tuple[AnswerItem, ...] = tuple(
            [
                AnswerText(text=said.text) if said.kind == "text" else AnswerReasoning(text=said.text)
                for said in self.said
            ]
        )
        return StepPiece(
            source_id=source_id,
            origin=Origin(self.line, None if self.has_items else "its events alone are there, and no item"),
            items=items,
            calls=tuple([call.piece() for call in self.calls]),
            usage=self.usage,
            response_id=self.response_id,
            model=self.model,
            at_ms=milliseconds(self.stamp),
        )


@dataclass(slots=True)
class OpenInput:
    """An input, as far as it is known."""

    source_id: str | None
    texts: list[str]
    images: list[str]
    line: int
    stamp: object
    by_item: bool
    by_event: bool
    steers: bool = False

    def is_twin(self, texts: list[str], images: list[str], *, by_item: bool) -> bool:
        """Return whether this is the other telling of the same input: one by an event, one by an item."""
        if self.by_item if by_item else self.by_event:
            return False
        mine, other = "\n".join(self.texts), "\n".join(texts)
        return mine == other or bool((self.images or images) and (mine in other or other in mine))

    def merge(self, source_id: str | None, texts: list[str], images: list[str], *, by_item: bool) -> None:
        """Merge the other telling. An item's id and words are the better ones."""
        self.source_id = self.source_id or source_id
        if by_item:
            self.source_id = source_id or self.source_id
            self.texts, self.images = texts or self.texts, images or self.images
        self.by_item, self.by_event = self.by_item or by_item, self.by_event or not by_item

    def piece(self, number: int, turn: "OpenTurn") -> Input:
        """Return the input. `number` is its place among those of its turn."""
        source_id = f"{turn.source_id}/input/{number}"
        if turn.id is None:
            # Its place alone would name another prompt in a fork, whose own turns take the place of its parent's.
            content = "\x00".join([*self.texts, *self.images]).encode(errors="replace")
            source_id = f"{source_id}/{sha256(content).hexdigest()[:16]}"
        texts, blobs = list(self.texts), []
        for image in self.images:
            blob = image_of(image)
            if blob is None:
                texts.append(image)
            else:
                blobs.append(blob)
        return Input(
            source_id=self.source_id or source_id,
            items=tuple([TextItem(text=text) for text in texts]),
            origin=Origin(self.line),
            at_ms=milliseconds(self.stamp),
            steers=self.steers,
            blobs=tuple(blobs),
        )


@dataclass(slots=True)
class OpenTurn:
    """A turn, as far as it is known."""

    source_id: str
    id: str | None
    line: int
    stamp: object
    ordinal: int | None
    by_task: bool
    """Whether records tell where it begins and ends. Then a prompt within it is steering."""
    inferred: str | None = None
    inputs: list[OpenInput] = field(default_factory=list)
    pieces: list[OpenStep | Compaction | OpenInput] = field(default_factory=list)
    calls: dict[str, OpenCall] = field(default_factory=dict)
    last_input: OpenInput | None = None
    """The last input, as long as its second telling may still come."""
    step: OpenStep | None = None
    has_steps: bool = False
    first_answer: object = None
    """Time at which the model first said something."""
    last_stamp: object = None
    requests: int = 0
    """Requests to the model since it last answered."""
    error: Failure | None = None
    error_line: int = 0
    calls_again: int = 0
    """Calls whose id another one had before."""

    def fail(self, error: Failure, line: int) -> None:
        """Note the error of a request."""
        self.error, self.error_line = error, line

    def is_nothing(self) -> bool:
        """Return whether nothing happened in it."""
        return not self.inputs and not self.pieces and self.error is None

    def may_be_compaction(self) -> bool:
        """Return whether it may turn out to be only a summary: it has no prompt, and one response without calls."""
        return self.by_task and not self.inputs and not self.calls and len(self.pieces) == 1 and self.error is None

    def take_first_compactions(self) -> list[Compaction]:
        """Return the summaries before its prompt: one for lack of room, or one that a person asked for and that is all
        of the turn.
        """
        found: list[Compaction] = []
        asked = self.inputs[0].line if self.inputs else None
        is_all = asked is None and all(isinstance(piece, Compaction) for piece in self.pieces)
        while self.pieces:
            first = self.pieces[0]
            if not isinstance(first, Compaction) or (asked is not None and first.origin.line > asked):
                break
            found.append(replace(first, by_person=is_all, is_turn=is_all and not found))
            self.pieces.pop(0)
        return found

    def script(self) -> OpenCall | None:
        """Return the call in which a command without a call of its own ran: one that still runs, otherwise the last
        one.
        """
        last = list(islice(reversed(self.calls.values()), TWINS_MAX))
        return next((call for call in last if not call.has_ended), last[0] if last else None)

    def last_step(self) -> OpenStep | None:
        return next((piece for piece in reversed(self.pieces) if isinstance(piece, OpenStep)), None)

    def take_back_summary(self, message: str, response_id: object) -> tuple[str, Usage | None]:
        """Return the summary and its tokens. A summary is also there as an answer of the model: that step leaves the
        turn.
        """
        step = self.step
        if step is None or step.calls or not self.pieces or self.pieces[-1] is not step:
            return message, None
        text = step.text()
        is_summary = response_id == step.response_id if type(response_id) is str and step.response_id else False
        if not is_summary and (not text or not message.endswith(text)):
            return message, None
        self.pieces.pop()
        self.step = None
        self.has_steps = self.last_step() is not None
        return text or message, step.usage

    def conclude(self, usage_is_counted: bool) -> tuple[TurnOutcome, str]:
        """Return what became of the turn, and why that is concluded, where no record tells."""
        step = self.last_step()
        if self.error is not None:
            return "failed", "an error was its last record"
        if self.requests > 1 and not (step is not None and step.ends_turn()):
            return "failed", "it was asked again and again, and no answer came"
        if step is None or not step.ends_turn() or self.pieces[-1] is not step:
            return "interrupted", "no answer is its last record"
        if usage_is_counted and step.usage is None:
            return "interrupted", "its answer is not complete"
        return "completed", "an answer is its last record"

    def piece(
        self,
        outcome: TurnOutcome,
        evidence: Evidence,
        *,
        reason: str | None,
        inferred: str | None,
        ended: object,
        is_open: bool,
    ) -> TurnPiece:
        pieces: list[StepPiece | Compaction | Plan | Input] = []
        steps = given = 0
        for piece in self.pieces:
            if isinstance(piece, OpenStep):
                steps += 1
                pieces.append(piece.piece(f"{self.source_id}/step/{steps}"))
                pieces.extend(_plans(piece))
            elif isinstance(piece, OpenInput):
                given += 1
                pieces.append(piece.piece(len(self.inputs) + given, self))
            else:
                pieces.append(piece)
        if self.error is not None:
            at = Origin(self.error_line, "the request that failed has no record of its own")
            source_id = f"{self.source_id}/step/{steps + 1}"
            pieces.append(StepPiece(source_id, at, error=self.error, at_ms=milliseconds(ended)))
        notes = [note for note in (self.inferred, inferred) if note is not None]
        return TurnPiece(
            source_id=self.source_id,
            inputs=tuple([given.piece(number, self) for number, given in enumerate(self.inputs, 1)]),
            pieces=tuple(pieces),
            outcome=outcome,
            end_evidence=evidence,
            origin=Origin(self.line, "; ".join(notes) or None),
            reason=reason,
            started_ms=milliseconds(self.stamp),
            ended_ms=milliseconds(ended),
            first_ordinal=self.ordinal,
            is_open=is_open,
        )

    def add_usage(self, usage: Usage, line: int, stamp: object) -> None:
        """Add the tokens of a response that left nothing else."""
        step = self.last_step()
        if step is None or step.usage is not None:
            step = OpenStep(line, stamp, None)
            self.pieces.append(step)
        step.usage = usage


def _plans(step: OpenStep) -> list[Plan]:
    """Return the plans that its calls wrote, in order."""
    found: list[Plan] = []
    for call in step.calls:
        if call.tool.rpartition(".")[2] != "update_plan" or call.output_line is None:
            continue
        steps = call.args.get("plan")
        if type(steps) is not list or end_of_output(call.tool, call.output).end != "succeeded":
            continue
        tasks = [
            PlanTask(str(number), str(task.get("step") or ""), _PLAN_STATUS.get(word(task.get("status")), "pending"))
            for number, task in enumerate(steps, 1)
            if isinstance(task, dict)
        ]
        if tasks:
            found.append(Plan(tuple(tasks), Origin(call.line), milliseconds(call.output_stamp)))
    return found


def times_of(event: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return when an item of a turn began and ended."""
    return count(event.get("started_at_ms")), count(event.get("completed_at_ms"))
