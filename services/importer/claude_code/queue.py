"""What a person typed while the tool was at work, and what became of it.

The session tells when something joined the queue and when it left it; a record of its own then shows where it went,
mostly in the same words. What left for nowhere is given as discarded.
"""

import re
from dataclasses import dataclass

from schemas.events import TextItem
from services.importer.claude_code.records import Kind, content_of, first_text, milliseconds, text_of
from services.importer.lines import Record
from services.importer.model import Counts, Discarded, Input, Origin, Piece

QUEUE_MAX = 1_000
"""Inputs that wait at once; more are counted and left out."""
REMOVED = "it was taken out of the queue"
NOT_TAKEN = "the session ended before it was taken"
NOTICE = "<task-notification>"
"""Begins what a background task reports. Nobody typed it."""

_SPEAKING = frozenset({Kind.PROMPT, Kind.COMMAND, Kind.STEERING, Kind.NOTICE, Kind.SHELL})
_COMMAND = re.compile(r"<command-name>([^<]{1,200})</command-name>")
_ARGUMENTS = re.compile(r"<command-args>(.*)</command-args>", re.DOTALL)


@dataclass(slots=True)
class _Queued:
    """An input that a person typed while the tool was at work."""

    text: str
    input: Input
    left: str | None = None
    """How it left the queue: `dequeue` or `remove`."""


class Queue:
    """What waits while the tool is at work, as the session tells it."""

    def __init__(self, session: str, counts: Counts) -> None:
        self._session = session
        self._counts = counts
        self._queued: list[_Queued] = []

    def operate(self, line: int, record: Record, session: str | None) -> None:
        """Take a record that changes the queue. `session` is the file's own; records of another one are not of this
        queue.
        """
        if session is not None and text_of(record, "sessionId") not in {session, None}:
            return
        content = first_text(record.get("content"))
        match record.get("operation"):
            case "enqueue":
                if len(self._queued) >= QUEUE_MAX:
                    self._counts.pass_over("queued input beyond the limit")
                elif content:
                    text = (TextItem(text=content),)
                    sent = Input(f"{self._session}:{line}", text, Origin(line), milliseconds(record))
                    self._queued.append(_Queued(content.strip(), sent))
            case "dequeue" | "remove" as left:
                waiting = [item for item in self._queued if item.left is None]
                same = [item for item in waiting if content and item.text == content.strip()]
                for item in (same or waiting)[:1]:
                    item.left = left
            case "popAll":
                for item in self._queued:
                    item.left = item.left or "remove"

    def take(self, kind: int, record: Record) -> list[Piece]:
        """Take a record in which something from the queue may have arrived. Return what the queue lost before."""
        if not self._queued or kind not in _SPEAKING:
            return []
        text = first_text(content_of(record)).strip()
        if kind == Kind.COMMAND:
            text = _typed(text)
        arrived = [item for item in self._queued if item.text == text or (item.left and item.text in text)]
        if not arrived and kind in {Kind.PROMPT, Kind.COMMAND}:
            arrived = [item for item in self._queued if item.left == "dequeue"][:1]
        self._queued = [item for item in self._queued if item not in arrived]
        if kind != Kind.PROMPT:
            return []
        lost = [item for item in self._queued if item.left is not None]
        self._queued = [item for item in self._queued if item.left is None]
        return [Discarded(item.input, REMOVED) for item in lost if not item.text.startswith(NOTICE)]

    def finish(self) -> list[Piece]:
        """Return what was never taken, at the end of the file."""
        pieces: list[Piece] = []
        for item in self._queued:
            if item.text.startswith(NOTICE):
                self._counts.pass_over("notice that came too late")
            else:
                pieces.append(Discarded(item.input, REMOVED if item.left == "remove" else NOT_TAKEN))
        return pieces


def _typed(text: str) -> str:
    """Return a slash command as it was typed."""
    name, arguments = _COMMAND.search(text), _ARGUMENTS.search(text)
    words = [found[1].strip() for found in (name, arguments) if found is not None]
    return " ".join(word for word in words if word)
