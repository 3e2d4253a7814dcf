"""Sessions of Codex imported while they grow: whatever the snapshots, the thread comes to what the whole file gives."""

from pathlib import Path

import pytest

from schemas.events import ContextCompacted, StepFinished
from services.importer.lines import FileSource, Line
from tests.support.sessions.codex_records import Session, pieces_of
from tests.support.worlds.imports import ImportWorld, ThreadLog, ended_turns, shown, unknown

REDUCED = Path(__file__).resolve().parents[3] / "support" / "sessions" / "codex"


def imported(*snapshots: list[Line]) -> ThreadLog:
    world = ImportWorld()
    log: ThreadLog | None = None
    for number, lines in enumerate(snapshots):
        pieces = pieces_of(lines)
        if pieces:
            log = world.run(pieces, f"snapshot {number}")
    assert log is not None
    return log


def told(log: ThreadLog) -> tuple[object, ...]:
    return shown(log), ended_turns(log), unknown(log), tokens(log)


def tokens(log: ThreadLog) -> int:
    applied = [record.data for record, verdict, _ in log.records if verdict.effect == "applied"]
    return sum(data.usage.input_tokens for data in applied if isinstance(data, StepFinished | ContextCompacted))


@pytest.mark.parametrize("path", sorted(REDUCED.glob("*.jsonl")), ids=lambda path: path.name)
def test_a_snapshot_and_then_the_whole_session_come_to_the_whole_session(path: Path) -> None:
    lines = list(FileSource(path))
    whole = told(imported(lines))
    for end in range(1, len(lines)):
        assert told(imported(lines[:end], lines)) == whole, end


@pytest.mark.parametrize("path", sorted(REDUCED.glob("*.jsonl")), ids=lambda path: path.name)
def test_a_session_that_is_imported_record_by_record_comes_to_the_whole_session(path: Path) -> None:
    lines = list(FileSource(path))
    log = imported(*[lines[:end] for end in range(1, len(lines) + 1)])
    assert told(log) == told(imported(lines))
    ids = [record.id for record, _, _ in log.records]
    assert len(ids) == len(set(ids)), "no event has another one's id"


@pytest.mark.parametrize("path", sorted(REDUCED.glob("*.jsonl")), ids=lambda path: path.name)
def test_a_session_that_is_imported_twice_adds_nothing(path: Path) -> None:
    lines = list(FileSource(path))
    assert len(imported(lines, lines).records) == len(imported(lines).records)


def test_a_turn_that_had_no_answer_yet_and_gets_one_is_told_again() -> None:
    session = Session("0.36.0").prompt("Go.").context().event("agent_message", message="Yes.").tokens(10, 10)
    before = session.lines()
    session.item("message", role="assistant", content=[{"text": "Yes."}])
    log = imported(before, session.lines())
    assert ended_turns(log) == [("completed", 1)]
    assert tokens(log) == 10
