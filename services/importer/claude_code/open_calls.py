"""What of a turn is known so far, while its records are read."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from schemas.events import AnswerItem, AnswerText, ContentItem, Failure, TurnOutcome, Usage
from services.importer.claude_code.records import Kind
from services.importer.claude_code.results import Result
from services.importer.model import Blob, Compaction, Evidence, Input, Origin

FINAL_STOPS = frozenset({"end_turn", "stop_sequence", "refusal", "max_tokens"})
"""Reasons of a response's end after which the model has nothing more to do."""


@dataclass(slots=True)
class OpenCall:
    """A call, as far as it is known."""

    source_id: str
    tool: str
    args: dict[str, JsonValue]
    line: int
    malformed: str | None
    session: str | None
    result: Result | None = None


@dataclass(slots=True)
class OpenStep:
    """A response of the model, as far as it is known."""

    source_id: str
    line: int
    at_ms: int | None = None
    items: list[AnswerItem] = field(default_factory=list)
    calls: list[OpenCall] = field(default_factory=list)
    usage: Usage | None = None
    response_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    error: Failure | None = None
    is_retried: bool = False
    """Whether the tool asks again by itself."""


@dataclass(slots=True)
class OpenInput:
    """An input, as far as it is known."""

    source_id: str
    kind: Kind
    items: tuple[ContentItem, ...]
    blobs: tuple[Blob, ...]
    line: int
    at_ms: int | None
    inferred: str | None = None
    steers: bool = False

    def close(self) -> Input:
        """Return the input as a piece."""
        return Input(self.source_id, self.items, Origin(self.line, self.inferred), self.at_ms, self.steers, self.blobs)


@dataclass(slots=True)
class OpenTurn:
    """A turn, as far as it is known."""

    source_id: str
    line: int
    started_ms: int | None
    inputs: list[OpenInput]
    inferred: str | None = None
    pieces: list[OpenStep | OpenInput | Compaction] = field(default_factory=list)
    steps: dict[str, OpenStep] = field(default_factory=dict)
    calls: dict[str, OpenCall] = field(default_factory=dict)
    last_step: OpenStep | None = None
    last_ms: int | None = None
    background: set[str] = field(default_factory=set)
    """Ids of background tasks whose end has not come."""
    aborted: str | None = None
    """Why the turn was cancelled; None where it was not."""
    is_told_over: bool = False
    """Whether the tool wrote that the turn is over."""

    @property
    def has_answer(self) -> bool:
        """Return whether the last message of the model is whole and asks for nothing."""
        last = self.last_step
        if last is None or last.calls or self.pieces[-1] is not last:
            return False
        if last.error is not None:
            return not last.is_retried
        is_final = self.is_told_over or last.stop_reason in FINAL_STOPS
        return is_final and any(isinstance(item, AnswerText) for item in last.items)

    @property
    def is_settled(self) -> bool:
        """Return whether nothing more is to come: the turn was cancelled, or has its answer and no background task."""
        return self.aborted is not None or (not self.background and self.has_answer)


def end_of(turn: OpenTurn) -> tuple[TurnOutcome, Evidence, str | None]:
    """Return the turn's outcome, whether the file tells it, and why. What the file does not tell is concluded from the
    last record.
    """
    last = turn.last_step
    if turn.aborted is not None:
        return "aborted", "recorded", turn.aborted
    if last is None:
        return "interrupted", "inferred", None
    if last.error is not None:
        if last.is_retried:
            return "interrupted", "inferred", last.error.message
        return "failed", "recorded", last.error.message
    if last.calls:
        denied = any(call.result is not None and call.result.decided_by == "user:local" for call in last.calls)
        refused = denied and any(call.result is not None and call.result.end == "denied" for call in last.calls)
        return ("aborted" if refused else "interrupted"), "inferred", None
    if isinstance(turn.pieces[-1], OpenInput):
        return "interrupted", "inferred", None
    if turn.is_told_over or last.stop_reason in FINAL_STOPS:
        return "completed", "recorded", None
    return ("completed" if last.stop_reason is None else "interrupted"), "inferred", None
