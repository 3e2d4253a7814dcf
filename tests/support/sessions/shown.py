"""Pieces of a session as short lines, for tests to compare."""

from collections.abc import Iterable

from services.importer.model import Call, Compaction, Discarded, Header, Input, Piece, Plan, Rollback, Step, Title, Turn


def shown(pieces: Iterable[Piece]) -> list[str]:
    lines: list[str] = []
    for piece in pieces:
        if isinstance(piece, Turn):
            asked = " + ".join([_text(given) for given in piece.inputs])
            end = f"{piece.outcome}, {piece.end_evidence}{', open' if piece.is_open else ''}"
            lines.append(f"turn {asked or '(no prompt)'}: {end}")
            lines.extend([f"  {_within(inner)}" for inner in piece.pieces])
        else:
            lines.append(_between(piece))
    return lines


def _between(piece: Header | Compaction | Plan | Rollback | Title | Discarded) -> str:
    match piece:
        case Header():
            parent = piece.parent
            since = "" if parent is None else f", {parent.kind} of {parent.source_id} at {parent.through}"
            shared = f", {piece.shared_turns} shared" if piece.shared_turns else ""
            return f"thread {piece.source_id}{since}{shared}"
        case Rollback():
            return f"rollback of {piece.turns}"
        case Title():
            return f"title {piece.title}"
        case Discarded():
            return f"discarded {_text(piece.input)}"
        case _:
            return _within(piece)


def _within(piece: Step | Compaction | Plan | Input) -> str:
    match piece:
        case Step():
            said = [f"“{item.text}”" for item in piece.items]
            error = [f"error {piece.error.kind}"] if piece.error is not None else []
            tokens = f" {piece.usage.input_tokens}+{piece.usage.output_tokens}" if piece.usage is not None else ""
            return " ".join(["step", *said, *[_call(call) for call in piece.calls], *error]) + tokens
        case Compaction():
            return f"compaction{' by a person' if piece.by_person else ''} “{piece.summary}”"
        case Plan():
            return "plan " + ", ".join([f"{task.id} {task.title} {task.status}" for task in piece.tasks])
        case Input():
            return f"steered “{_text(piece)}”"


def _call(call: Call) -> str:
    code = f" {call.exit_code}" if call.exit_code is not None else ""
    child = f" for {call.child}" if call.child is not None else ""
    return f"{call.tool}→{call.end}{code}{child}"


def _text(given: Input) -> str:
    return " ".join([item.text for item in given.items if item.type == "text"])
