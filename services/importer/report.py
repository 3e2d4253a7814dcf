"""What an import found in each file: the report, the same with and without `--dry-run`."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import JsonValue

from schemas.events import Usage
from services.importer.model import Call, Compaction, Counts, Discarded, Header, Input, Parent, Piece, Step, Title, Turn


@dataclass(slots=True)
class ThreadReport:
    """What a file has of one thread."""

    source_id: str
    parent: Parent | None = None
    title: str | None = None
    turns: list[JsonValue] = field(default_factory=list)
    calls: list[JsonValue] = field(default_factory=list)
    unfinished: int = 0
    """Calls of which the file cannot say whether they ran."""
    inputs: int = 0
    artifacts: int = 0
    """Images, whole outputs and versions of files in it."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Kind of tokens → how many."""
    is_empty: bool = True
    """Whether the file says nothing of the thread but a title."""

    def take(self, piece: Piece) -> None:
        """Count a piece of the thread."""
        self.is_empty = self.is_empty and isinstance(piece, Title)
        match piece:
            case Title():
                self.title = piece.title
            case Discarded():
                self._input(piece.input)
            case Turn():
                self._turn(piece)
            case Compaction():
                self._compaction(piece)
            case _:
                pass

    def _turn(self, turn: Turn) -> None:
        steps = [piece for piece in turn.pieces if isinstance(piece, Step)]
        self.turns.append({"outcome": turn.outcome, "end_evidence": turn.end_evidence, "steps": len(steps)})
        for sent in turn.inputs:
            self._input(sent)
        for piece in turn.pieces:
            if isinstance(piece, Input):
                self._input(piece)
            elif isinstance(piece, Compaction) and piece.usage is not None:
                self._count(piece.usage)
        for step in steps:
            if step.usage is not None:
                self._count(step.usage)
            for call in step.calls:
                self._call(call)

    def _compaction(self, piece: Compaction) -> None:
        """Count a compaction between turns. Where the session calls it a turn, it is listed with the turns."""
        if piece.is_turn:
            self.turns.append({"outcome": "completed", "end_evidence": "recorded", "steps": 0})
        if piece.usage is not None:
            self._count(piece.usage)

    def _input(self, sent: Input) -> None:
        self.inputs += 1
        self.artifacts += len(sent.blobs)

    def _call(self, call: Call) -> None:
        self.calls.append({"tool": call.tool, "outcome": call.end})
        self.unfinished += call.end == "unknown" and call.end_origin is None
        self.artifacts += len(call.blobs) + (call.whole is not None)
        self.artifacts += sum((change.before is not None) + (change.after is not None) for change in call.changes)

    def _count(self, usage: Usage) -> None:
        counted: dict[str, int] = usage.model_dump()
        for name, tokens in counted.items():
            self.tokens[name] = self.tokens.get(name, 0) + tokens

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "source_id": self.source_id,
            "parent": self.parent.source_id if self.parent is not None else None,
            "title": self.title,
            "turns": self.turns,
            "calls": self.calls,
            "unfinished": self.unfinished,
            "inputs": self.inputs,
            "artifacts": self.artifacts,
            "tokens": dict(self.tokens),
        }


@dataclass(slots=True)
class FileReport:
    """What one file has, and what was done with it. `problem` and `notes` are there only where there is something to
    say.
    """

    file: str
    counts: Counts = field(default_factory=Counts)
    tool_version: str | None = None
    threads: list[ThreadReport] = field(default_factory=list)
    problem: str | None = None
    """Why the file, or what is left of it, was not imported."""
    notes: list[str] = field(default_factory=list)

    def take(self, piece: Piece) -> None:
        """Count a piece. A header begins another thread."""
        if isinstance(piece, Header):
            self.tool_version = self.tool_version or piece.tool_version
            self.threads.append(ThreadReport(piece.source_id, piece.parent, piece.title))
        else:
            self.threads[-1].take(piece)

    def to_json(self) -> dict[str, JsonValue]:
        not_understood: dict[str, JsonValue] = dict(sorted(self.counts.not_understood.items()))
        report: dict[str, JsonValue] = {
            "file": self.file,
            "tool_version": self.tool_version,
            "threads": [thread.to_json() for thread in self.threads],
            "records": self.counts.records,
            "not_understood": not_understood,
            "bad_lines": self.counts.bad_lines,
        }
        if self.problem is not None:
            report["problem"] = self.problem
        if self.notes:
            report["notes"] = list(self.notes)
        return report


def can_wait(parent: Parent) -> bool:
    """Return whether a thread cannot be imported without its parent, because its first turns are nowhere else."""
    return parent.kind == "fork" and not parent.is_copied


def note_without_parent(source_id: str, parent: Parent) -> str:
    """Return what becomes of a thread whose parent is not among the files and was not imported before, or not as far as
    where the thread begins.
    """
    if can_wait(parent):
        return (
            f"{source_id}: its first turns are in the session {parent.source_id}, which was not imported so far: "
            "import that one, and it is taken up from there"
        )
    what = "imported whole" if parent.kind == "fork" else "imported by itself"
    return f"{source_id}: its parent {parent.source_id} is not here, so it is {what}"


def note_parents(reports: Iterable[FileReport]) -> None:
    """Add the notes about parents that an import of these files would make if none had come before."""
    reports = list(reports)
    there: set[str] = set()
    waiting: dict[str, list[str]] = {}
    come: list[str] = []
    for thread in [thread for report in reports for thread in report.threads if not thread.is_empty]:
        if thread.parent is not None and can_wait(thread.parent):
            waiting.setdefault(thread.parent.source_id, []).append(thread.source_id)
        else:
            come.append(thread.source_id)
    while come:
        name = come.pop()
        there.add(name)
        come += waiting.pop(name, [])
    for report in reports:
        for thread in report.threads:
            if thread.parent is not None and thread.parent.source_id not in there:
                report.notes.append(note_without_parent(thread.source_id, thread.parent))
