"""Recorded histories fold to recorded states, with recorded effects and contexts."""

import json

import pytest

from tests.golden.record import FOLDER, HISTORIES, folded, lines_of


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_recorded_history_folds_to_its_recorded_state(path):
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    assert folded(path.read_text()) == expected


@pytest.mark.parametrize("name", HISTORIES)
def test_what_is_recorded_is_what_would_be_appended_today(name: str):
    """Until the first release: encoding has not changed unawares. Afterwards, recorded histories stay as they are."""
    assert (FOLDER / f"{name}.jsonl").read_text() == lines_of(HISTORIES[name]())
