"""Sessions of three versions, cut down to what matters, and the outline that each must come to."""

from pathlib import Path

import pytest

from services.importer.claude_code import index as claude_code_index
from services.importer.claude_code.session import normalise
from services.importer.companions import FolderCompanions
from services.importer.lines import FileSource
from services.importer.model import Counts, Discarded, Header, Piece, Turn
from tests.support.sessions.claude_sessions import FOLDER, outline, pieces_of

OUTLINES = FOLDER / "outlines.txt"
LEAVES = {"u7": "5e550001-0000-4000-8000-000000000000"}
FILES = sorted(FOLDER.glob("*.jsonl"))
WITHOUT_FORKS = [path for path in FILES if "fork" not in path.name and not path.name.startswith("1.0.98_05")]


def read(path: Path) -> list[Piece]:
    return list(normalise(FileSource(path), Counts(), companions=FolderCompanions(path, LEAVES)))


def expected() -> dict[str, list[str]]:
    outlines: dict[str, list[str]] = {}
    for line in OUTLINES.read_text().splitlines():
        if line.startswith("# "):
            lines = outlines[line[2:]] = []
        else:
            lines.append(line)
    return outlines


def test_every_session_has_its_outline() -> None:
    assert [path.name for path in FILES] == list(expected())


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_a_session_comes_to_its_outline(path: Path) -> None:
    assert outline(read(path)) == expected()[path.name]


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_it_does_not_matter_how_much_of_a_session_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(path)
    for held in (0, path.stat().st_size // 3, path.stat().st_size // 2):
        monkeypatch.setattr(claude_code_index, "HELD_BYTES_MAX", held)
        assert read(path) == whole


@pytest.mark.parametrize("path", WITHOUT_FORKS, ids=[path.name for path in WITHOUT_FORKS])
def test_a_session_cut_at_any_line_gives_a_prefix(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    whole = told(pieces_of(b"".join(lines)))
    for number in range(len(lines)):
        pieces = told(pieces_of(b"".join(lines[:number])))
        last = pieces.pop() if pieces and isinstance(pieces[-1], Turn) and pieces[-1].is_open else None
        assert pieces == whole[: len(pieces)]
        if isinstance(last, Turn):
            again = whole[len(pieces)]
            assert isinstance(again, Turn)
            assert (again.source_id, again.inputs) == (last.source_id, last.inputs)


def told(pieces: list[Piece]) -> list[Piece]:
    """What a longer snapshot must tell again. A queued prompt may still be taken."""
    return [piece for piece in pieces if not isinstance(piece, Header | Discarded)]
