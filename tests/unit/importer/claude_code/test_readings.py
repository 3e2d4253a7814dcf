"""A session is gone through more than once: what of it is held, what is read again, and what if it changed meanwhile."""

from collections.abc import Iterator

import pytest

from services.importer.claude_code import index as claude_code_index
from services.importer.claude_code.session import normalise
from services.importer.lines import Line
from services.importer.model import Counts, Parent, Piece, Title
from tests.support.sessions.claude_sessions import (
    SESSION,
    Bytes,
    MadeCompanions,
    Script,
    headers_of,
    lines_of,
    texts,
    turns_of,
)


@pytest.fixture
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code_index, "HELD_BYTES_MAX", 0)


class Changing(Bytes):
    """A file that is another one after its first reading."""

    def __init__(self, before: bytes, after: bytes) -> None:
        super().__init__(before)
        self._after = after

    def some(self, wanted: bytearray) -> Iterator[Line]:
        return Bytes(self._after).some(wanted)


def prompts_of(source: Changing) -> list[str]:
    pieces: list[Piece] = list(normalise(source, Counts(), companions=MadeCompanions()))
    return [text for turn in turns_of(pieces) for text in texts(turn.inputs)]


def one_prompt() -> Script:
    script = Script()
    script.prompt("First")
    return script


def test_a_session_that_is_held_is_not_read_again() -> None:
    assert prompts_of(Changing(lines_of(one_prompt().records), b"")) == ["First"]


@pytest.mark.usefixtures("nothing_held")
def test_one_that_is_too_long_to_be_held_is() -> None:
    assert prompts_of(Changing(lines_of(one_prompt().records), b"")) == []


@pytest.mark.usefixtures("nothing_held")
def test_lines_that_come_between_two_readings_are_left_alone() -> None:
    script = one_prompt()
    before = lines_of(script.records)
    script.prompt("Second")
    assert prompts_of(Changing(before, lines_of(script.records))) == ["First"]


@pytest.mark.usefixtures("nothing_held")
@pytest.mark.parametrize("gone", [{2}, {3}, {2, 3}, {0, 1, 2, 3, 4}])
def test_lines_that_are_gone_in_a_later_reading_are_no_trouble(gone: set[int]) -> None:
    script = Script()
    script.prompt("First")
    first = script.answer("One.")
    for text in ("Left", "Left too", "Last"):
        script.at(first).prompt(text)
    whole = script.records
    later = b"".join(b"?\n" if place in gone else lines_of([record]) for place, record in enumerate(whole))
    told = ((0, "First"), (4, "Last"), (2, "Left"), (3, "Left too"))
    assert prompts_of(Changing(lines_of(whole), later)) == [text for place, text in told if place not in gone]


@pytest.mark.parametrize("held", [0, 8 << 20])
def test_a_fork_hangs_on_a_record_that_says_nothing_else(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code_index, "HELD_BYTES_MAX", held)
    script = Script()
    script.prompt("First")
    script.answer("One.")
    hook = script.add("progress", data={"type": "hook_progress"})
    script.prompt("Left")
    script.at(hook).prompt("Taken")
    assert headers_of(script.pieces())[1].parent == Parent(SESSION, "fork", 1, hook)


@pytest.mark.parametrize("held", [0, 8 << 20])
def test_a_child_begins_with_a_record_that_says_nothing_else(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code_index, "HELD_BYTES_MAX", held)
    script = Script()
    script.prompt("First")
    script.call("call-1", "Task", prompt="Look")
    child = Script(sidechain=True, prefix="s", records=script.records)
    child.add("progress", version="2.1.1", cwd="/of/child")
    child.prompt("Look")
    header = headers_of(script.pieces())[1]
    assert (header.tool_version, header.cwd, header.origin.line) == ("2.1.1", "/of/child", 3)


@pytest.mark.usefixtures("nothing_held")
def test_a_title_that_has_become_something_else_is_none() -> None:
    script = one_prompt()
    script.line("custom-title", customTitle="Mine")
    before = lines_of(script.records)
    assert [piece.title for piece in script.pieces() if isinstance(piece, Title)] == ["Mine"]
    changing = Changing(before, before.replace(b"custom-title", b"other"))
    assert not any(isinstance(piece, Title) for piece in normalise(changing, Counts(), companions=MadeCompanions()))
