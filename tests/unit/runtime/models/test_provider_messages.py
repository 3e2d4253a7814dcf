"""What providers are told of forks and of summaries."""

import re
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart, UserPromptPart

from services.runtime.models.provider_messages import to_messages


def call(name: str, provider_id: str | None = None) -> dict[str, Any]:
    given = {} if provider_id is None else {"provider_id": provider_id}
    return {"kind": "tool_call", "call": name, "tool": "shell", "args": {}, **given}


def result(name: str) -> dict[str, Any]:
    return {"kind": "tool_result", "call": name, "tool": "shell", "outcome": "succeeded", "content": name}


def ids(messages: list[ModelMessage]) -> tuple[list[str], dict[str, object]]:
    parts = [part for message in messages for part in message.parts]
    calls = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    return calls, {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}


@pytest.mark.parametrize(
    "given",
    [
        (None, None, None),
        ("call_0", "call_0", "call_0"),
        ("call_1_1_0", None, None),
        (None, "call_1_1_0", "call_1_1_0"),
        ("call_1_1_0", "call_1_1_0", "call_1_1_0"),
    ],
)
def test_calls_of_a_fork_and_of_its_parents_have_ids_of_their_own(given: tuple[str | None, ...]) -> None:
    parent = "b31d7c7e-3d1c-4a52-8b5a-6a5ab4a64a3d"
    names = [f"{parent}-and-more-of-it/1.1.0", f"{parent}/1.1.0", "1.1.0"]
    items = [item for name, own in zip(names, given, strict=True) for item in (call(name, own), result(name))]
    calls, results = ids(to_messages(items, None))
    assert len(set(calls)) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", each) for each in calls)
    assert [results[each] for each in calls] == names


def test_an_id_that_was_made_is_not_that_of_another_call() -> None:
    made, _ = ids(to_messages([call("t 1/1.1.0")], None))
    calls, _ = ids(to_messages([call("2.1.0", made[0]), call("2.1.1", "call_t 1"), call("t 1/1.1.0", made[0])], None))
    assert len(set(calls)) == 3


def test_a_summary_is_told_with_what_goes_on_beside_it() -> None:
    state: dict[str, Any] = {
        "plan": {"version": 2, "tasks": [{"id": "a", "title": "look", "status": "running"}]},
        "unknown_calls": [{"call": "1.1.0", "tool": "shell"}],
        "skills": [{"name": "review", "version": "1.0.0"}, {"name": "deploy", "version": "2"}],
    }
    [message] = to_messages([{"kind": "summary", "text": "They began.", "through_seq": 4, "state": state}], None)
    [part] = message.parts
    assert isinstance(part, UserPromptPart)
    assert "They began." in str(part.content)
    assert "- a: look (running)" in str(part.content)
    assert "not known whether they ran: shell" in str(part.content)
    assert str(part.content).endswith("load_skill shows what one says again: review (1.0.0), deploy (2)")
    [plain] = to_messages([{"kind": "summary", "text": "They began.", "through_seq": 4}], None)
    assert str(plain.parts[0].content).endswith("They began.")  # type: ignore[union-attr]  # a prompt
