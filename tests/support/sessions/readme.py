"""Genuine sessions and what each holds, read from the README beside them. They lie outside the project: a test that
needs them is skipped, with its reason, where they are absent.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("THREADLOG_SESSION_FIXTURES", PROJECT / ".." / "shared" / "fixtures" / "sessions"))
README = FOLDER / "README.md"

needs_sessions = pytest.mark.skipif(
    not README.is_file(), reason=f"no recorded sessions in {FOLDER}; THREADLOG_SESSION_FIXTURES names their folder"
)

_FILE = re.compile(r"- `(?P<file>[^`]+\.jsonl)` \(\d+ B\) · (?P<records>\d+) rec · (?P<ids>[^·]*) ·(?P<parent>[^·]*)$")
_TURN = re.compile(r'"(?P<prompt>[^"]*)" \[(?P<end>.*?)\](?:; (?=")|$)')


@dataclass(frozen=True)
class Told:
    """What the README tells of one file."""

    file: str
    path: Path
    records: int
    ids: str
    """As it writes them: an id, or beginnings of ids with the number of their records."""
    parent: str
    expected: str
    """What the script behind it played, in prose."""
    turns: tuple[tuple[str, str], ...]
    """Prompt and how it ended, in the README's words."""
    calls: tuple[tuple[str, str], ...]
    """Tool and outcome, in the README's words."""
    unfinished: int
    also: str


def told(tool: str) -> list[Told]:
    """`tool`: the folder, `codex` or `claude`. Only files that are there; none without the README."""
    if not README.is_file():
        return []
    found: list[Told] = []
    lines = README.read_text().splitlines()
    for number, line in enumerate(lines):
        match = _FILE.match(line.rstrip())
        if match is None or not (FOLDER / tool / match["file"]).is_file():
            continue
        notes: dict[str, str] = {}
        for note in lines[number + 1 :]:
            if not note.startswith("  - "):
                break
            name, _, text = note[4:].partition(": ")
            notes[name] = text
        calls, _, unfinished = notes.get("calls", "none · unfinished 0").partition(" · unfinished ")
        found.append(
            Told(
                file=match["file"],
                path=FOLDER / tool / match["file"],
                records=int(match["records"]),
                ids=match["ids"].strip(),
                parent=match["parent"].strip(),
                expected=notes.get("expected", ""),
                turns=tuple([(turn["prompt"], turn["end"]) for turn in _TURN.finditer(notes.get("turns", ""))]),
                calls=tuple([_call(call) for call in calls.split(", ")] if calls != "none" else []),
                unfinished=int(unfinished or 0),
                also=notes.get("also", ""),
            )
        )
    return found


def _call(text: str) -> tuple[str, str]:
    tool, _, outcome = text.partition("→")
    return tool, outcome
