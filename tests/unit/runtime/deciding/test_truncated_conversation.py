"""A conversation in fewer characters."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.deciding.truncated_conversation import HEADING, PART_CHARACTERS_MIN, truncated


def user(text: str) -> dict[str, Any]:
    return {"kind": "message", "role": "user", "content": [{"type": "text", "text": text}]}


def gave(text: str) -> dict[str, Any]:
    return {"kind": "tool_result", "call": "1.1.0", "tool": "shell", "outcome": "succeeded", "content": text}


def test_what_tools_gave_is_cut_and_what_was_said_stays() -> None:
    told = truncated([user("Count them."), gave("a" * 5_000 + "b" * 5_000), gave("c" * 3_000), user("Go on.")], 2)
    begins, first, result, other, last = told.split("\n\n")
    assert (begins, first, last) == (HEADING, "The user said: Count them.", "The user said: Go on.")
    assert result.startswith("shell returned (succeeded): aaa") and result.endswith("bbb")
    assert "characters are left out" in result and "characters are left out" in other
    assert len(result) == len(other) < 13_000 // 8


def test_each_part_says_whose_it_is_and_thoughts_are_left_out() -> None:
    told = truncated(
        [
            {"kind": "summary", "text": "They began.", "through_seq": 3, "state": {"skills": [{"name": "review"}]}},
            {"kind": "message", "role": "assistant", "content": [{"type": "text", "text": "I look."}]},
            {"kind": "reasoning", "text": "hm"},
            {"kind": "tool_call", "call": "1.1.0", "tool": "shell", "args": {"command": "ls"}},
            {"kind": "tool_call", "call": "1.1.1", "tool": "shell", "args": {}, "malformed": "ls -"},
            {"kind": "resolution", "call": "1.1.0", "tool": "shell", "outcome": "failed", "content": "no disk"},
            user("x" * 10_000),
        ],
        1,
    )
    assert "Summary of the conversation up to here:\nThey began." in told and "review (None)" in told
    assert "You said: I look." in told
    assert 'You called shell with {"command": "ls"}\n\nYou called shell with ls -' in told
    assert "shell returned (failed): no disk" in told
    assert "hm" not in told


def test_where_cutting_is_not_enough_the_first_and_the_newest_are_left() -> None:
    told = truncated([user(f"{number} " + "x" * 500) for number in range(100)], 6)
    parts = told.split("\n\n")
    assert parts[1].startswith("The user said: 0 ") and parts[-1].startswith("The user said: 99 ")
    assert parts[2] == f"[{102 - len(parts)} parts are left out]"
    assert all(len(part) == PART_CHARACTERS_MIN for part in [parts[1], *parts[3:]])


@given(st.lists(st.text(max_size=2_000), max_size=60), st.integers(1, 7))
def test_it_has_about_so_many_halves(texts: list[str], halvings: int) -> None:
    whole = sum(len(f"The user said: {text}") for text in texts)
    told = truncated([user(text) for text in texts], halvings)
    assert len(told) <= (whole >> halvings) + PART_CHARACTERS_MIN + len(HEADING) + 100 + 2 * len(texts)


@pytest.mark.parametrize("halvings", [1, 6])
def test_what_is_short_stays_whole(halvings: int) -> None:
    assert truncated([user("hello")], halvings) == f"{HEADING}\n\nThe user said: hello"
    assert truncated([{"kind": "reasoning", "text": "hm"}], halvings) == HEADING
