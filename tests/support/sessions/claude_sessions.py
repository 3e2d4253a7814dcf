"""Sessions of Claude Code for tests: written record by record, read into pieces, and told in a few words."""

import copy
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from services.importer.claude_code.session import normalise
from services.importer.companions import Companions, NoCompanions
from services.importer.lines import Line, read_lines, read_some
from services.importer.model import Blob, Call, Counts, Header, Input, Piece, Step, Turn

FOLDER = Path(__file__).parent / "claude"
SESSION = "5e550000-0000-4000-8000-000000000001"


class Bytes:
    """A session's file in memory, as a source."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[Line]:
        return read_lines(io.BytesIO(self._content))

    def some(self, wanted: bytearray) -> Iterator[Line]:
        return read_some(io.BytesIO(self._content), wanted)


class MadeCompanions(NoCompanions):
    def __init__(self, name: str = "session.jsonl", leaves: dict[str, str] | None = None, **files: bytes) -> None:
        super().__init__(name)
        self._leaves = leaves or {}
        self._files = files
        self.asked: list[str] = []

    def add(self, name: str, content: bytes) -> None:
        self._files[name] = content

    def get(self, relative: str) -> Blob | None:
        self.asked.append(relative)
        content = self._files.get(relative)
        return Blob(content, "text/plain", relative.rsplit("/", 1)[-1]) if content is not None else None

    def session_with_leaf(self, uuid: str) -> str | None:
        return self._leaves.get(uuid)


def pieces_of(content: bytes, companions: Companions | None = None, counts: Counts | None = None) -> list[Piece]:
    return list(normalise(Bytes(content), counts or Counts(), companions=companions or NoCompanions()))


def turns_of(pieces: Iterable[Piece]) -> list[Turn]:
    return [piece for piece in pieces if isinstance(piece, Turn)]


def headers_of(pieces: Iterable[Piece]) -> list[Header]:
    return [piece for piece in pieces if isinstance(piece, Header)]


def calls_of(pieces: Iterable[Piece]) -> list[Call]:
    return [call for turn in turns_of(pieces) for step in turn.pieces if isinstance(step, Step) for call in step.calls]


def texts(inputs: Sequence[Input]) -> list[str]:
    return ["".join(getattr(item, "text", "") for item in one.items) for one in inputs]


def lines_of(records: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


@dataclass
class Script:
    """Writes records as the tool does: each names the one before it. `at` goes back to an earlier record."""

    version: str = "2.1.0"
    session: str = SESSION
    records: list[dict[str, Any]] = field(default_factory=list)
    leaf: str | None = None
    sidechain: bool = False
    agent: str | None = None
    prefix: str = "u"

    def add(self, kind: str, **values: Any) -> str:
        number = len(self.records) + 1
        uuid = f"{self.prefix}{number}"
        record = {
            "parentUuid": self.leaf,
            "isSidechain": self.sidechain,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z",
            "cwd": "/srv/user/demo",
            "sessionId": self.session,
            "version": self.version,
        }
        if self.agent is not None:
            record["agentId"] = self.agent
        self.records.append(record | values)
        self.leaf = uuid
        return uuid

    def at(self, uuid: str | None) -> "Script":
        self.leaf = uuid
        return self

    def line(self, kind: str, **values: Any) -> None:
        """A record outside the chain."""
        self.records.append({"type": kind, "sessionId": self.session} | values)

    def prompt(self, content: Any, **values: Any) -> str:
        return self.add("user", message={"role": "user", "content": content}, **values)

    def answer(self, *blocks: Any, message: str | None = None, stop: str | None = "end_turn", **values: Any) -> str:
        """A text is a block of text; so that a message takes several lines, name it."""
        content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
        body = {
            "id": message or f"msg_{len(self.records)}",
            "role": "assistant",
            "model": "claude-test-1",
            "content": content,
            "stop_reason": stop,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        return self.add("assistant", message=body | values.pop("body", {}), **values)

    def call(self, name: str, tool: str = "Bash", message: str | None = None, **args: Any) -> str:
        block = {"type": "tool_use", "id": name, "name": tool, "input": args}
        return self.answer(block, message=message, stop="tool_use")

    def result(self, name: str, content: Any = "done", *, error: bool = False, kept: Any = None, **values: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": name, "content": content, "is_error": error}
        if kept is not None:
            values["toolUseResult"] = kept
        return self.add("user", message={"role": "user", "content": [block]}, **values)

    def compaction(self, summary: str, trigger: str = "auto") -> str:
        leaf, self.leaf = self.leaf, None
        self.add("system", subtype="compact_boundary", logicalParentUuid=leaf, compactMetadata={"trigger": trigger})
        return self.prompt(summary, isCompactSummary=True, isVisibleInTranscriptOnly=True)

    def pieces(self, companions: Companions | None = None, counts: Counts | None = None) -> list[Piece]:
        return pieces_of(lines_of(self.records), companions, counts)

    def copy(self) -> "Script":
        return copy.deepcopy(self)


def outline(pieces: Iterable[Piece]) -> list[str]:
    """Each piece in a line or two, with what matters of it."""
    told: list[str] = []
    for piece in pieces:
        match piece:
            case Header():
                parent = ""
                if piece.parent is not None:
                    place = piece.parent.call if piece.parent.kind == "child" else piece.parent.turns
                    parent = f" {piece.parent.kind} of {piece.parent.source_id} at {place}"
                told.append(
                    f"thread {piece.source_id}{parent}" + (f", {piece.shared_turns} shared" * bool(piece.shared_turns))
                )
            case Turn():
                told.append(
                    f"turn {texts(piece.inputs)} {piece.outcome} {piece.end_evidence}" + " open" * piece.is_open
                )
                told += [f"  {line}" for part in piece.pieces for line in _told_part(part)]
            case _:
                told += _told_part(piece)
    return told


def _told_part(piece: Any) -> list[str]:
    match piece:
        case Step():
            said = " ".join(item.text for item in piece.items)
            tokens = f" {piece.usage.input_tokens}+{piece.usage.output_tokens}" if piece.usage is not None else ""
            failed = f" failed: {piece.error.message}" if piece.error is not None else ""
            return [f"step {said!r}{tokens}{failed}", *(f"  {_told_call(call)}" for call in piece.calls)]
        case Input():
            return [f"steered {texts([piece])}"]
    name = type(piece).__name__.lower()
    match name:
        case "plan":
            return [f"plan {[(task.title, task.status) for task in piece.tasks]}"]
        case "compaction":
            return [f"compaction {piece.summary!r}" + " by a person" * piece.by_person]
        case "title":
            return [f"title {piece.title}"]
        case "discarded":
            return [f"discarded {texts([piece.input])}: {piece.reason}"]
    return [name]


def _told_call(call: Call) -> str:
    more = [f"exit {call.exit_code}" if call.exit_code is not None else "", call.decided_by or ""]
    more += [f"by {call.child}" if call.child else "", f"whole {len(call.whole.content)}" if call.whole else ""]
    more += [_told_change(change) for change in call.changes]
    return " ".join(part for part in [call.tool, call.end, *more] if part)


def _told_change(change: Any) -> str:
    before, after = (blob and blob.content.decode() for blob in (change.before, change.after))
    return f"{change.path} {before!r} -> {after!r}"
