"""What the happenings of a Claude Code session come to, one by one. Sessions are written here record by record."""

import base64
from pathlib import Path
from typing import Any

import pytest

from services.importer.claude_code import index as claude_code_index
from services.importer.claude_code import queue as claude_code_queue
from services.importer.claude_code.session import normalise
from services.importer.companions import FolderCompanions
from services.importer.lines import FileSource
from services.importer.model import Counts, Input, Origin, Plan, Step, Turn
from tests.support.sessions.claude_sessions import (
    SESSION,
    MadeCompanions,
    Script,
    calls_of,
    headers_of,
    lines_of,
    outline,
    pieces_of,
    texts,
    turns_of,
)

ANSWERED = "completed recorded"
UNANSWERED = "interrupted inferred"


def told(script: Script, counts: Counts | None = None) -> list[str]:
    """Without the first line, which is the main thread's header."""
    return outline(script.pieces(counts=counts))[1:]


def call_after(script: Script, **kept: Any) -> Any:
    script.prompt("Do it")
    script.call("call-1", "Bash", command="x")
    script.result("call-1", **kept)
    (call,) = calls_of(script.pieces())
    return call


# Branches


def test_a_branch_that_a_person_went_back_from_is_a_fork() -> None:
    script = Script()
    script.prompt("First")
    first = script.answer("One.")
    script.prompt("Left behind")
    script.answer("Two.")
    script.at(first).prompt("Another way")
    script.answer("Three.")
    pieces = script.pieces()
    assert outline(pieces) == [
        f"thread {SESSION}",
        f"turn ['First'] {ANSWERED}",
        "  step 'One.' 10+5",
        f"turn ['Another way'] {ANSWERED}",
        "  step 'Three.' 10+5",
        f"thread {SESSION}:u3 fork of {SESSION} at 1",
        f"turn ['Left behind'] {ANSWERED}",
        "  step 'Two.' 10+5",
    ]
    fork = headers_of(pieces)[1].parent
    assert fork is not None
    assert (fork.through, fork.is_copied) == (first, False)


def test_branches_hang_on_branches_and_on_the_beginning() -> None:
    script = Script()
    script.prompt("Never mind")
    script.at(None).prompt("First")
    first = script.answer("One.")
    script.prompt("Second")
    second = script.answer("Two.")
    script.prompt("Deep")
    script.at(second).prompt("Deeper")
    script.at(first).prompt("Last")
    assert [line for line in outline(script.pieces()) if not line.startswith("  ")] == [
        f"thread {SESSION}",
        f"turn ['First'] {ANSWERED}",
        f"turn ['Last'] {UNANSWERED} open",
        f"thread {SESSION}:u1 fork of {SESSION} at 0",
        f"turn ['Never mind'] {UNANSWERED} open",
        f"thread {SESSION}:u4 fork of {SESSION} at 1",
        f"turn ['Second'] {ANSWERED}",
        f"turn ['Deeper'] {UNANSWERED} open",
        f"thread {SESSION}:u6 fork of {SESSION}:u4 at 2",
        f"turn ['Deep'] {UNANSWERED} open",
    ]


def test_many_branches_of_one_place_are_each_told_whole() -> None:
    script = Script()
    script.prompt("First")
    first = script.answer("One.")
    ways = [script.at(first).prompt(f"Way {number}") for number in range(60)]
    for number, way in enumerate(ways):
        script.at(way).answer(f"Answer {number}")
    turns = turns_of(script.pieces())
    assert [texts(turn.inputs) for turn in turns[:2]] == [["First"], ["Way 59"]]
    assert sorted(texts(turn.inputs)[0] for turn in turns[2:]) == sorted(f"Way {number}" for number in range(59))
    for turn in turns[1:]:
        (step,) = turn.pieces
        assert isinstance(step, Step)
        assert [item.text for item in step.items] == [f"Answer {texts(turn.inputs)[0].removeprefix('Way ')}"]


def test_a_call_that_a_killed_session_left_hanging_stays_in_its_turn() -> None:
    script = Script()
    script.prompt("Run it")
    said = script.answer("Running.", message="m1", stop=None)
    script.call("call-1", message="m1", command="sleep 60")
    script.at(said).prompt("Go on")
    script.answer("Back.")
    assert told(script) == [
        f"turn ['Run it'] {UNANSWERED}",
        "  step 'Running.' 10+5",
        "    Bash unknown",
        f"turn ['Go on'] {ANSWERED}",
        "  step 'Back.' 10+5",
    ]


def test_the_chain_passes_through_records_of_every_kind() -> None:
    script = Script()
    script.prompt("First")
    script.add("attachment", attachment={"type": "date", "date": "2026-01-01"})
    script.add("progress", data={"type": "hook_progress"})
    script.answer("One.")
    script.add("system", subtype="turn_duration", durationMs=5)
    script.prompt("Second")
    counts = Counts()
    assert [line for line in told(script, counts) if line.startswith("thread")] == []
    assert counts.not_understood == {}


# Sub-agents within the file


def agent(script: Script, told_it: str, *, prefix: str) -> Script:
    return Script(version="1.0.98", sidechain=True, prefix=prefix, records=script.records)


def test_sub_agents_within_the_file_are_child_threads_of_the_calls_that_gave_their_prompts() -> None:
    script = Script(version="1.0.98")
    script.prompt("Count twice")
    script.call("call-1", "Task", message="m1", prompt="Count A", description="a")
    script.call("call-2", "Task", message="m1", prompt="Count B", description="b")
    one, two = (agent(script, "", prefix=prefix) for prefix in "ab")
    b = two.prompt("Count B")
    a = one.prompt("Count A")
    two.call("call-b", command="wc b")
    one.call("call-a", command="wc a")
    two.result("call-b", "2")
    one.result("call-a", "1")
    two.answer("B has 2.")
    one.answer("A has 1.")
    script.result("call-2", "B has 2.")
    script.result("call-1", "A has 1.")
    script.answer("3 in all.")
    assert outline(script.pieces()) == [
        f"thread {SESSION}",
        f"turn ['Count twice'] {ANSWERED}",
        "  step '' 10+5",
        f"    Task succeeded by {SESSION}:{a}",
        f"    Task succeeded by {SESSION}:{b}",
        "  step '3 in all.' 10+5",
        f"thread {SESSION}:{b} child of {SESSION} at call-2",
        f"turn ['Count B'] {ANSWERED}",
        "  step '' 10+5",
        "    Bash succeeded",
        "  step 'B has 2.' 10+5",
        f"thread {SESSION}:{a} child of {SESSION} at call-1",
        f"turn ['Count A'] {ANSWERED}",
        "  step '' 10+5",
        "    Bash succeeded",
        "  step 'A has 1.' 10+5",
    ]


def test_a_warm_up_within_the_file_is_left_out_and_one_beside_it_counted() -> None:
    script = Script(version="1.0.98")
    script.prompt("Hello")
    warm_up = agent(script, "", prefix="w")
    warm_up.prompt("Warmup")
    warm_up.answer("Ready.")
    script.answer("Hi.")
    assert len(headers_of(script.pieces())) == 1
    alone = Script(sidechain=True, agent="a1")
    alone.prompt("Warmup")
    alone.answer("Ready.")
    counts = Counts()
    assert alone.pieces(counts=counts) == []
    assert counts.not_understood == {"warm-up agent": 1}


def test_a_transcript_of_a_sub_agent_is_a_child_whose_metadata_names_the_call() -> None:
    script = Script(sidechain=True, agent="a1")
    script.prompt("Count")
    script.answer("4 lines.")
    beside = MadeCompanions("agent-a1.jsonl")
    beside.add("agent-a1.meta.json", b'{"toolUseId":"call-1","description":"Count lines"}')
    (header,) = headers_of(script.pieces(beside))
    assert header.parent is not None
    assert (header.source_id, header.parent.source_id) == (f"{SESSION}:a1", SESSION)
    assert (header.parent.kind, header.parent.call, header.title) == ("child", "call-1", "Count lines")
    for meta in (b"[]", b"no json", None):
        beside = MadeCompanions("agent-a1.jsonl")
        if meta is not None:
            beside.add("agent-a1.meta.json", meta)
        (header,) = headers_of(script.pieces(beside))
        assert header.parent is not None
        assert header.parent.call is None


def test_internal_agents_are_counted() -> None:
    script = Script(sidechain=True, agent="acompact-1")
    script.prompt("Summarise")
    counts = Counts()
    assert script.pieces(counts=counts) == []
    assert counts.not_understood == {"internal agent": 1}


def test_an_agent_that_is_taken_up_again_goes_on_in_its_thread_and_one_that_nobody_called_has_no_call() -> None:
    script = Script(version="1.0.98")
    script.prompt("Hello")
    other = agent(script, "", prefix="o")
    other.agent = "a1"
    other.prompt("Count")
    other.answer("4.")
    other.at(None).prompt("Again")
    other.answer("Still 4.")
    script.compaction("Counting.")
    script.answer("Hi.")
    main, child = headers_of(script.pieces())
    assert child.parent is not None
    assert (child.source_id, child.parent.call, main.parent) == (f"{SESSION}:a1", None, None)
    assert [texts(turn.inputs) for turn in turns_of(script.pieces())] == [["Hello"], ["Count"], ["Again"]]


# Turns and their ends


@pytest.mark.parametrize(
    ("records", "end"),
    [
        ([], f"{UNANSWERED} open"),
        ([("answer", "Said.", None)], "completed inferred open"),
        ([("answer", "Said.", "end_turn")], ANSWERED),
        ([("answer", "Said.", "max_tokens")], ANSWERED),
        ([("answer", "Said.", "tool_use")], f"{UNANSWERED} open"),
        ([("call",)], f"{UNANSWERED} open"),
        ([("call",), ("result",)], f"{UNANSWERED} open"),
        ([("call",), ("interrupt",)], "aborted recorded"),
        ([("answer", "Said.", "end_turn"), ("interrupt",)], ANSWERED),
        ([("failed",)], "failed recorded"),
        ([("retried",)], f"{UNANSWERED} open"),
    ],
)
def test_how_a_turn_ends(records: list[tuple[Any, ...]], end: str) -> None:
    script = Script()
    script.prompt("Do it")
    for kind, *values in records:
        match kind:
            case "answer":
                script.answer(values[0], stop=values[1])
            case "call":
                script.call("call-1", command="x")
            case "result":
                script.result("call-1")
            case "interrupt":
                script.prompt([{"type": "text", "text": "[Request interrupted by user]"}])
            case "failed":
                script.answer("API Error: 500", body={"model": "<synthetic>"}, isApiErrorMessage=True, error="server")
            case "retried":
                script.add("system", subtype="api_error", error={"formatted": "Connection dropped"})
    assert told(script)[0] == f"turn ['Do it'] {end}"
    closed = end.removesuffix(" open")
    script.prompt("Next")
    assert told(script)[0] == f"turn ['Do it'] {closed}"


def test_the_end_of_a_turn_may_be_told_by_a_record_of_its_own() -> None:
    script = Script()
    script.prompt("Do it")
    script.add("system", subtype="turn_duration", durationMs=1)
    script.answer("Said.", stop=None)
    assert told(script)[0] == "turn ['Do it'] completed inferred open"
    script.add("system", subtype="turn_duration", durationMs=5)
    assert told(script)[0] == f"turn ['Do it'] {ANSWERED}"
    script.answer("And on.", stop=None)
    assert [line for line in told(script) if line.startswith("turn")] == [
        f"turn ['Do it'] {ANSWERED}",
        "turn [] completed inferred open",
    ]


def test_failed_requests_are_steps_that_failed() -> None:
    script = Script()
    script.prompt("Do it")
    script.add("system", subtype="api_error", error={"message": "Overloaded"})
    script.add("system", subtype="api_error")
    script.answer("Done.")
    script.add("system", subtype="api_error")
    counts = Counts()
    assert told(script, counts) == [
        f"turn ['Do it'] {ANSWERED}",
        "  step '' failed: Overloaded",
        "  step '' failed: no message",
        "  step 'Done.' 10+5",
    ]
    assert counts.not_understood == {"failed request outside a turn": 1}


def test_an_error_of_old_versions_is_told_by_its_text() -> None:
    script = Script(version="1.0.98")
    script.prompt("Do it")
    script.answer("API Error: 400", body={"model": "<synthetic>"})
    turn = turns_of(script.pieces())[0]
    assert (turn.outcome, turn.reason) == ("failed", "API Error: 400")


def test_what_no_model_said_and_says_nothing_is_left_out() -> None:
    script = Script()
    script.prompt("First")
    script.answer("One.")
    script.answer("No response requested.", body={"model": "<synthetic>"})
    script.prompt("Second")
    assert told(script)[:2] == [f"turn ['First'] {ANSWERED}", "  step 'One.' 10+5"]


def test_what_goes_on_after_an_answer_is_a_turn_of_its_own() -> None:
    script = Script()
    script.prompt("First")
    script.answer("One.")
    script.prompt("Stop hook feedback: run the tests", isMeta=True)
    script.answer("Ran them.")
    script.answer("And again.")
    first, second, third = turns_of(script.pieces())
    assert texts(second.inputs) == ["Stop hook feedback: run the tests"]
    assert second.inputs[0].origin.inferred == "written by the tool, not by a person"
    assert second.origin.inferred == "goes on after its turn had ended"
    assert third.inputs == ()
    assert first.outcome == third.outcome == "completed"


def test_an_answer_without_its_prompt_is_a_turn_without_inputs() -> None:
    script = Script()
    script.answer("Out of nowhere.")
    turn = one_turn(script)
    assert (turn.inputs, turn.origin) == ((), Origin(1, "its prompt is not recorded"))


def one_turn(script: Script) -> Turn:
    (turn,) = turns_of(script.pieces())
    return turn


# Messages


def test_a_message_of_several_lines_is_one_step_with_the_tokens_of_its_last() -> None:
    script = Script()
    script.prompt("Do it")
    script.answer(
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "Hm."},
        message="m1",
        body={"usage": {"output_tokens": 1}},
    )
    script.call("call-1", message="m1", command="a")
    script.result("call-1")
    script.answer(
        "Beside it.", message="m1", stop="tool_use",
        body={"usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5,
                        "output_tokens": 6, "output_tokens_details": {"thinking_tokens": 2}}},
    )  # fmt: skip
    script.answer("Done.", message="m2")
    first, second = one_turn(script).pieces
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert [item.text for item in first.items] == ["Hm.", "Beside it."]
    assert [call.end for call in first.calls] == ["succeeded"]
    assert (first.source_id, first.response_id, first.model) == ("u2", "m1", "claude-test-1")
    assert first.usage is not None
    assert first.usage.model_dump() == {
        "input_tokens": 12, "output_tokens": 6, "cached_tokens": 4, "reasoning_tokens": 2
    }  # fmt: skip


def test_results_find_their_calls_wherever_they_stand() -> None:
    script = Script()
    script.prompt("Do it")
    one = script.call("call-1", message="m1", command="a")
    two = script.call("call-2", message="m1", command="b")
    script.at(two).result("call-2", "second")
    script.prompt("Next")
    script.answer("Well.")
    script.at(one).result("call-1", "first")
    assert [texts(turn.inputs) for turn in turns_of(script.pieces())] == [["Do it"], ["Next"]]
    ends = [(call.source_id, call.end, call.result) for call in calls_of(script.pieces())]
    assert ends == [("call-1", "succeeded", "first"), ("call-2", "succeeded", "second")]


def test_a_result_before_its_call_and_one_without_a_call() -> None:
    script = Script()
    script.prompt("Do it")
    script.result("call-1", "early")
    script.result("call-9", "of nothing")
    script.call("call-1", command="a")
    script.result("call-1", "again")
    counts = Counts()
    (call,) = calls_of(script.pieces(counts=counts))
    assert call.result in {"early", "again"}
    assert counts.not_understood["result without a call"] == 1


def test_a_second_call_of_one_id_and_a_second_result_are_counted() -> None:
    script = Script()
    script.prompt("Do it")
    script.call("call-1", command="a")
    script.result("call-1", "done")
    script.result("call-1", "done again")
    script.call("call-1", command="b")
    counts = Counts()
    (call,) = calls_of(script.pieces(counts=counts))
    assert (call.args, call.result) == ({"command": "a"}, "done")
    assert counts.not_understood == {"second result": 1, "second call of one id": 1}


def test_calls_whose_arguments_are_no_object() -> None:
    script = Script()
    script.prompt("Do it")
    script.answer({"type": "tool_use", "name": "Bash", "input": "ls"}, {"type": "tool_use", "id": 7})
    first, second = calls_of(script.pieces())
    assert (first.args, first.malformed, first.source_id) == ({}, "ls", "u2:2:0")
    assert (second.tool, second.malformed) == ("unnamed", "None")


# What became of a call


def test_exit_codes_are_told_only_where_they_stand() -> None:
    assert call_after(Script(), content="fine").exit_code is None
    assert call_after(Script(), content="Exit code 3\nno", error=True).exit_code == 3
    assert call_after(Script(), content="no such file", error=True).exit_code is None


@pytest.mark.parametrize(
    ("values", "end", "approval", "by"),
    [
        ({"permissionDecision": {"decision": "accept", "source": "config", "reasonType": "mode"}},
         "succeeded", "approved", "policy:mode"),
        ({"permissionDecision": {"decision": "accept", "source": "user_temporary"}},
         "succeeded", "approved", "user:local"),
        ({"permissionDecision": {"decision": "accept"}}, "succeeded", "approved", None),
        ({"permissionDecision": {"decision": "later"}}, "succeeded", "unrecorded", None),
        ({"permissionDecision": {"decision": "reject", "source": "user_abort"}, "error": True},
         "denied", "denied", "user:local"),
        ({"toolDenialKind": "permission-rule", "error": True}, "denied", "denied", "policy:permission-rule"),
        ({"toolDenialKind": "interrupted", "error": True}, "unknown", "unrecorded", None),
        ({"toolDenialKind": "user-rejected", "error": True}, "cancelled", "unrecorded", None),
        ({"content": "The user doesn't want to proceed. To tell you how, the user said:\nno", "error": True},
         "denied", "denied", "user:local"),
        ({"content": "The user doesn't want to proceed", "error": True}, "cancelled", "unrecorded", None),
        ({"content": "[Request interrupted by user for tool use]", "error": True}, "cancelled", "unrecorded", None),
        ({"content": "Command timed out after 2m", "error": True}, "timed_out", "unrecorded", None),
        ({"kept": {"stdout": "half", "interrupted": True}}, "cancelled", "unrecorded", None),
        ({"content": "plain failure", "error": True}, "failed", "unrecorded", None),
    ],
)  # fmt: skip
def test_what_became_of_a_call(values: dict[str, Any], end: str, approval: str, by: str | None) -> None:
    call = call_after(Script(), **values)
    assert (call.end, call.approval, call.decided_by) == (end, approval, by)
    assert call.started_ms is None
    assert (call.reason is None) == (end in {"succeeded", "failed"} or "kept" in values)


def test_a_turn_whose_last_call_a_person_denied_is_aborted() -> None:
    script = Script()
    call_after(script, content="x", error=True, permissionDecision={"decision": "reject", "source": "user_abort"})
    assert one_turn(script).outcome == "aborted"


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        ({"type": "create", "filePath": "/d/a.txt", "content": "new", "structuredPatch": []},
         "/d/a.txt None -> 'new'"),
        ({"type": "update", "filePath": "/d/a", "content": "new", "structuredPatch": [], "originalFile": "old"},
         "/d/a 'old' -> 'new'"),
        ({"type": "update", "filePath": "/d/a", "content": "new", "structuredPatch": [], "originalFile": None},
         "/d/a None -> None"),
        ({"filePath": "/d/a", "oldString": "o", "newString": "0", "originalFile": "old", "structuredPatch": []},
         "/d/a 'old' -> '0ld'"),
        ({"filePath": "/d/a", "oldString": "o", "newString": "0", "originalFile": "oo", "structuredPatch": [],
          "replaceAll": True}, "/d/a 'oo' -> '00'"),
        ({"filePath": "/d/a", "oldString": "o", "newString": "0", "originalFile": "oo", "structuredPatch": []},
         "/d/a None -> None"),
        ({"filePath": "/d/a", "oldString": "o", "newString": "0", "originalFile": "old", "structuredPatch": [],
          "userModified": True}, "/d/a None -> None"),
        ({"filePath": "/d/a", "oldString": "x", "newString": "0", "originalFile": "old", "structuredPatch": []},
         "/d/a None -> None"),
        ({"filePath": "/d/a", "edits": [{"old_string": "a", "new_string": "b"}, {"old_string": "b", "new_string": "c"}],
          "originalFileContents": "a", "structuredPatch": []}, "/d/a 'a' -> 'c'"),
        ({"filePath": "/d/a", "edits": ["?"], "originalFileContents": "a", "structuredPatch": []}, "/d/a None -> None"),
        ({"notebook_path": "/d/n", "original_file": "1", "updated_file": "2"}, "/d/n '1' -> '2'"),
        ({"structuredPatch": []}, None),
        ({"filePath": "/d/a"}, None),
    ],
)  # fmt: skip
def test_files_that_a_call_changed(kept: dict[str, Any], change: str | None) -> None:
    script = Script()
    call_after(script, kept=kept)
    line = next(line for line in told(script) if "Bash" in line)
    assert line == "    Bash succeeded" + (f" {change}" if change else "")


def test_the_whole_of_an_output_comes_from_beside_the_session() -> None:
    shown = "<persisted-output>\nOutput too large (9KB). Full output saved to: /h/p/s/tool-results/b1.txt\n\n1\n..."
    kept = {"stdout": "1\n2\n3", "persistedOutputPath": "C:\\h\\tool-results\\b1.txt"}
    beside = MadeCompanions()
    beside.add("tool-results/b1.txt", b"1\n2\n3\n4")
    for values in ({"kept": kept}, {"content": shown}):
        script = Script()
        call_after(script, **values)
        (call,) = calls_of(script.pieces(beside))
        assert call.whole is not None
        assert call.whole.content == b"1\n2\n3\n4"
        (call,) = calls_of(script.pieces())
        assert (call.whole and call.whole.content) == (b"1\n2\n3" if "kept" in values else None)


@pytest.mark.parametrize(
    ("session", "companion"),
    [
        ("p/s1.jsonl", "p/s1/tool-results/b1.txt"),
        ("p/s1.jsonl", "p/s1--tool-results-b1.txt"),
        ("p/s1/subagents/agent-a1.jsonl", "p/s1/tool-results/b1.txt"),
        ("p/s1--agent-a1.jsonl", "p/s1--tool-results-b1.txt"),
    ],
)
def test_where_whole_outputs_lie(tmp_path: Path, session: str, companion: str) -> None:
    script = Script()
    call_after(script, kept={"persistedOutputPath": "/elsewhere/tool-results/b1.txt"})
    for name, content in ((session, lines_of(script.records)), (companion, b"whole")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    path = tmp_path / session
    pieces = normalise(FileSource(path), Counts(), companions=FolderCompanions(path, {}))
    assert [call.whole and call.whole.content for call in calls_of(pieces)] == [b"whole"]


def test_images_are_kept_beside_what_was_shown() -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    call = call_after(Script(), content=[{"type": "text", "text": "see"}, image])
    assert call.result == [{"type": "text", "text": "see"}, {"type": "image", "media_type": "image/png", "size": 4}]
    assert [(blob.content, blob.media_type) for blob in call.blobs] == [(b"\x89PNG", "image/png")]
    script = Script()
    script.prompt([image, {"type": "text", "text": "What is it?"}])
    (item,) = one_turn(script).inputs
    assert (texts([item]), [blob.content for blob in item.blobs]) == (["What is it?"], [b"\x89PNG"])
    plain = {"type": "document", "title": "a.txt", "source": {"type": "text", "media_type": "text/plain", "data": "A"}}
    call = call_after(Script(), content=[plain, {"type": "image", "source": {"type": "url", "url": "x"}}])
    assert [(blob.content, blob.name) for blob in call.blobs] == [(b"A", "a.txt")]
    assert call_after(Script(), content={"odd": 1}).result == [{"odd": 1}]
    broken = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%"}}
    script = Script()
    script.prompt([broken, "And this?", {"type": "strange"}, 5])
    counts = Counts()
    assert told(script, counts)[0].startswith("turn ['And this?']")
    assert counts.not_understood == {"block image": 1, "block strange": 1, "block without a type": 1}


# What came while the tool was at work


def queued(script: Script, text: str) -> None:
    script.line("queue-operation", operation="enqueue", content=text, timestamp="2026-01-01T00:00:30.000Z")


def test_a_queued_prompt_that_the_open_turn_takes_steers_it() -> None:
    script = Script()
    script.prompt("Do it")
    script.call("call-1", command="x")
    queued(script, "But quietly")
    script.result("call-1")
    script.line("queue-operation", operation="remove", content="But quietly")
    script.add("attachment", attachment={"type": "queued_command", "prompt": "But quietly", "commandMode": "prompt"})
    script.answer("Done quietly.")
    assert told(script) == [
        f"turn ['Do it'] {ANSWERED}",
        "  step '' 10+5",
        "    Bash succeeded",
        "  steered ['But quietly']",
        "  step 'Done quietly.' 10+5",
    ]


def test_what_left_the_queue_for_nowhere_is_discarded() -> None:
    script = Script()
    script.prompt("Do it")
    for text in ("Taken back", "Edited", "Kept", "<task-notification>late</task-notification>"):
        queued(script, text)
    script.line("queue-operation", operation="remove", content="Taken back")
    script.answer("Done.")
    script.line("queue-operation", operation="dequeue")
    script.prompt("Edited")
    script.answer("Well.")
    counts = Counts()
    assert [line for line in told(script, counts) if line.startswith("discarded")] == [
        "discarded ['Taken back']: it was taken out of the queue",
        "discarded ['Kept']: the session ended before it was taken",
    ]
    assert counts.not_understood == {"notice that came too late": 1}


def test_operations_of_the_queue_that_say_nothing() -> None:
    script = Script()
    script.prompt("Do it")
    script.line("queue-operation", operation="enqueue")
    script.line("queue-operation", operation="shuffle")
    assert told(script) == [f"turn ['Do it'] {UNANSWERED} open"]


def test_a_queued_prompt_alone_makes_a_thread() -> None:
    script = Script()
    queued(script, "Do it")
    assert outline(script.pieces()) == [
        f"thread {SESSION}",
        "discarded ['Do it']: the session ended before it was taken",
    ]


@pytest.mark.parametrize("operation", ["dequeue", "remove", "popAll"])
def test_a_queued_prompt_is_not_told_twice(operation: str) -> None:
    script = Script()
    queued(script, "Do it ")
    script.line("queue-operation", operation=operation)
    script.prompt("Do it")
    assert told(script) == [f"turn ['Do it'] {UNANSWERED} open"]


def test_the_queue_of_another_session_is_not_this_one() -> None:
    script = Script()
    script.prompt("Do it")
    script.answer("Done.")
    script.line("queue-operation", operation="enqueue", content="Elsewhere", sessionId="another")
    assert told(script) == [f"turn ['Do it'] {ANSWERED}", "  step 'Done.' 10+5"]


def launch(script: Script, **kept: Any) -> None:
    script.prompt("Delegate it")
    script.call("call-1", "Agent", prompt="Count")
    script.result("call-1", "launched", kept=kept)
    script.answer("It is under way.")


def test_a_turn_is_open_while_what_it_left_in_the_background_goes_on() -> None:
    for kept in ({"isAsync": True, "status": "async_launched", "agentId": "a1"}, {"backgroundTaskId": "a1"}):
        script = Script()
        launch(script, **kept)
        assert told(script)[0] == f"turn ['Delegate it'] {ANSWERED} open"
        script.prompt("<task-notification><task-id>a1</task-id> finished</task-notification>")
        script.answer("It has 4 lines.")
        assert told(script)[0] == f"turn ['Delegate it'] {ANSWERED}"
        assert len(turns_of(script.pieces())) == 1
        assert [call.child for call in calls_of(script.pieces())] == [f"{SESSION}:a1" if "agentId" in kept else None]


def test_a_notice_that_comes_after_the_turn_begins_one() -> None:
    script = Script()
    script.prompt("Hello")
    script.answer("Hi.")
    script.add("attachment", attachment={"type": "queued_command", "prompt": "x", "commandMode": "task-notification"})
    script.answer("Noted.")
    script.add("attachment", attachment={"type": "queued_command", "prompt": "y", "origin": {"kind": "peer"}})
    turns = turns_of(script.pieces())
    assert [texts(turn.inputs) for turn in turns] == [["Hello"], ["x"], ["y"]]
    assert turns[2].inputs[0].origin.inferred == "written by the tool, not by a person"


# Commands and what the tool writes


def command(script: Script, name: str, arguments: str = "") -> None:
    script.prompt(f"<command-name>{name}</command-name>\n<command-args>{arguments}</command-args>")


def test_a_command_that_the_tool_does_by_itself_is_no_input() -> None:
    script = Script()
    queued(script, "/model opus")
    script.line("queue-operation", operation="dequeue")
    script.prompt("Caveat: The messages below were generated by the user while", isMeta=True)
    command(script, "/model", "opus")
    script.prompt("<local-command-stdout>Set model to opus</local-command-stdout>")
    script.prompt("<local-command-stdout>Again</local-command-stdout>")
    assert script.pieces() == []
    script.prompt("Hello")
    script.answer("Hi.")
    assert told(script) == [f"turn ['Hello'] {ANSWERED}", "  step 'Hi.' 10+5"]


def test_a_command_that_the_model_answers_is_an_input_with_what_it_stands_for() -> None:
    script = Script()
    script.prompt("Hello")
    script.answer("Hi.")
    command(script, "/review", "main")
    script.prompt("Review the branch named main.", isMeta=True)
    script.answer("It is fine.")
    _, turn = turns_of(script.pieces())
    assert len(turn.inputs) == 1
    assert [item.type for item in turn.inputs[0].items] == ["text", "text"]
    assert texts(turn.inputs)[0].endswith("Review the branch named main.")


def test_a_command_that_nothing_answered_is_discarded() -> None:
    script = Script()
    command(script, "/review")
    (line,) = told(script)
    assert line.endswith(": neither an answer nor a prompt followed it")


def test_commands_of_the_shell_go_with_the_next_prompt() -> None:
    script = Script()
    script.prompt("<bash-input>ls</bash-input>")
    script.prompt("<bash-stdout>a.txt</bash-stdout>")
    assert [line.rpartition(":")[2] for line in told(script)] == [" neither an answer nor a prompt followed it"] * 2
    script.prompt("What is it?")
    turn = one_turn(script)
    assert texts(turn.inputs) == ["<bash-input>ls</bash-input>", "<bash-stdout>a.txt</bash-stdout>", "What is it?"]
    assert turn.source_id == "u3"


def test_what_the_tool_writes_for_the_model_goes_where_it_stands() -> None:
    script = Script()
    script.prompt("Look")
    script.prompt("[Image: source: /d/a.png]", isMeta=True)
    script.prompt("<system-reminder>Today is Monday</system-reminder>", isMeta=True)
    script.call("call-1", "Skill", skill="count")
    script.result("call-1", "Launching skill: count")
    script.prompt("# How to count", isMeta=True)
    script.answer("Counted.")
    turn = one_turn(script)
    assert texts(turn.inputs) == ["Look[Image: source: /d/a.png]"]
    assert [texts([piece]) for piece in turn.pieces if isinstance(piece, Input)] == [["# How to count"]]


def test_what_a_person_says_beside_a_result_is_not_lost() -> None:
    script = Script()
    script.prompt("Do it")
    script.call("call-1", command="x")
    result = {"type": "tool_result", "tool_use_id": "call-1", "content": "done"}
    script.prompt([result, {"type": "text", "text": "And the other one"}])
    script.prompt([result, {"type": "text", "text": "[Request interrupted by user]"}])
    script.prompt([result, {"type": "text", "text": "[Request interrupted by user]"}, "No, this one"])
    turn, after = turns_of(script.pieces())
    assert texts(after.inputs) == ["No, this one"]
    assert [texts([piece]) for piece in turn.pieces if isinstance(piece, Input)] == [["And the other one"]]
    assert turn.outcome == "aborted"


def test_words_after_a_mark_are_a_prompt() -> None:
    script = Script()
    script.prompt([{"type": "text", "text": "[Request interrupted by user]"}, {"type": "text", "text": "Go on"}])
    script.prompt([{"type": "text", "text": "<bash-input>ls</bash-input>"}, {"type": "text", "text": "<bash-stdout>"}])
    assert len(turns_of(script.pieces())) == 1


def test_a_record_without_words_is_counted() -> None:
    script = Script()
    for content in (None, "", " ", [], [5], 7):
        script.prompt(content)
    script.prompt("Shown to the person alone", isVisibleInTranscriptOnly=True)
    script.add("user", message="Words all the same", sessionId=None)
    script.add("assistant", message="An answer all the same")
    counts = Counts()
    assert told(script, counts) == [
        "turn ['Words all the same'] completed inferred open",
        "  step 'An answer all the same'",
    ]
    assert counts.not_understood == {"user without words": 6}


def test_a_shell_command_while_the_model_works_steers_it() -> None:
    script = Script()
    script.prompt("Do it")
    script.call("call-1", command="x")
    script.prompt("<bash-input>ls</bash-input>")
    script.result("call-1")
    script.answer("Done.", {"type": "text", "text": ""}, {"type": "server_tool_use"}, 5)
    assert [texts([piece]) for piece in one_turn(script).pieces if isinstance(piece, Input)] == [
        ["<bash-input>ls</bash-input>"]
    ]


def test_more_than_the_limits_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code_queue, "QUEUE_MAX", 1)
    monkeypatch.setattr(claude_code_index, "LATE_RESULTS_MAX", 0)
    script = Script()
    script.prompt("Do it")
    script.call("call-1", command="x")
    queued(script, "One")
    queued(script, "Two")
    script.prompt("Next")
    script.result("call-1")
    counts = Counts()
    assert [call.end for call in calls_of(script.pieces(counts=counts))] == ["unknown"]
    assert counts.not_understood == {"queued input beyond the limit": 1, "late result": 1}


def test_a_long_way_back_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code_index, "BACK_MAX", 1)
    script = Script()
    script.prompt("First")
    first = script.answer("One.")
    script.prompt("Second")
    script.answer("Two.")
    script.at(first).compaction("First was asked.")
    script.answer("Three.")
    assert {text for turn in turns_of(script.pieces()) for text in texts(turn.inputs)} == {"First", "Second"}
    other = Script(session="another", prefix="x", records=script.records, leaf=script.leaf)
    other.prompt("Theirs")
    other.prompt("And theirs")
    assert headers_of(script.pieces())[0].source_id == SESSION


# Compaction


def test_two_compactions_within_a_turn() -> None:
    script = Script()
    script.prompt("Long work")
    script.call("call-1", command="a")
    script.result("call-1")
    script.compaction("So far: a.")
    script.call("call-2", command="b")
    script.result("call-2")
    script.compaction("So far: a and b.")
    script.answer("Done.")
    assert told(script) == [
        f"turn ['Long work'] {ANSWERED}",
        "  step '' 10+5",
        "    Bash succeeded",
        "  compaction 'So far: a.'",
        "  step '' 10+5",
        "    Bash succeeded",
        "  compaction 'So far: a and b.'",
        "  step 'Done.' 10+5",
    ]


def test_a_compaction_between_turns_and_one_that_lost_its_boundary() -> None:
    script = Script()
    script.prompt("First")
    script.answer("One.")
    script.compaction("One was said.", "manual")
    script.prompt("Second")
    script.answer("Two.")
    script.prompt("Both were said.", isCompactSummary=True)
    assert [line for line in told(script) if not line.startswith("  ")] == [
        f"turn ['First'] {ANSWERED}",
        "compaction 'One was said.' by a person",
        f"turn ['Second'] {ANSWERED}",
        "compaction 'Both were said.'",
    ]


def test_a_compaction_that_names_an_older_record_follows_the_prompt_all_the_same() -> None:
    script = Script()
    script.prompt("First")
    first = script.answer("One.")
    script.prompt("Second")
    script.at(first).compaction("First and second were asked.")
    script.answer("Two.")
    assert [line for line in told(script) if line.startswith(("thread", "turn"))] == [
        f"turn ['First'] {ANSWERED}",
        f"turn ['Second'] {ANSWERED}",
    ]


def test_a_summary_that_follows_nothing_goes_on_with_the_session() -> None:
    script = Script(version="1.0.30")
    script.prompt("First")
    script.answer("One.")
    script.at(None).prompt("First was asked.", isCompactSummary=True)
    script.answer("Ready.")
    script.prompt("Second")
    script.at(None).answer("Two.")
    counts = Counts()
    assert [line for line in told(script, counts) if not line.startswith("  ")] == [
        f"turn ['First'] {ANSWERED}",
        "compaction 'First was asked.'",
        f"turn [] {ANSWERED}",
        f"turn ['Second'] {ANSWERED}",
    ]
    assert counts.not_understood == {}


# Plans and titles


def plans(script: Script) -> list[list[tuple[str, str]]]:
    found = [piece for turn in turns_of(script.pieces()) for piece in turn.pieces if isinstance(piece, Plan)]
    return [[(task.title, task.status) for task in plan.tasks] for plan in found]


def use(script: Script, tool: str, kept: Any = None, *, error: bool = False, **args: Any) -> None:
    name = f"call-{len(script.records)}"
    script.call(name, tool, **args)
    script.result(name, error=error, kept=kept)


def test_a_todo_list_is_a_plan_each_time_it_was_written() -> None:
    script = Script()
    script.prompt("Plan")
    use(
        script, "TodoWrite", todos=[{"content": "A", "status": "in_progress"}, {"content": "B", "status": "pending"}, 5]
    )
    use(script, "TodoWrite", {"newTodos": [{"content": "A", "status": "completed", "id": "x"}]}, todos=[])
    use(script, "TodoWrite", todos=[{"content": "C", "status": "pending"}], error=True)
    assert plans(script) == [[("A", "running"), ("B", "pending")], [("A", "succeeded")]]


def test_tasks_and_plans_of_later_versions() -> None:
    script = Script()
    script.prompt("Plan")
    use(script, "TaskCreate", {"task": {"id": "1", "subject": "A"}}, subject="A")
    use(script, "TaskCreate", {"task": {"id": 2, "subject": "B"}})
    use(script, "TaskCreate", {"task": {}}, subject="C")
    use(script, "TaskUpdate", {}, taskId="1", status="completed", subject="A!")
    use(script, "TaskUpdate", {}, taskId="9", status="completed")
    use(script, "TaskUpdate", {}, taskId="2", status="deleted")
    use(script, "ExitPlanMode", {}, plan="\n## Rename it\n- first\n")
    use(script, "ExitPlanMode", {})
    assert plans(script) == [
        [("A", "pending")],
        [("A", "pending"), ("B", "pending")],
        [("A!", "succeeded"), ("B", "pending")],
        [("A!", "succeeded")],
        [("Rename it", "pending")],
    ]


def test_titles_by_who_gave_them() -> None:
    script = Script()
    script.records.append({"type": "summary", "summary": "Of another session", "leafUuid": "elsewhere"})
    script.records.append({"type": "summary", "summary": "Of its end", "leafUuid": "u4"})
    script.prompt("First")
    script.answer("One.")
    script.line("ai-title", aiTitle="Made")
    script.line("ai-title", aiTitle="Made")
    script.line("custom-title", customTitle="Given")
    script.line("ai-title", aiTitle="Made again")
    assert [line for line in told(script) if line.startswith("title")] == [
        "title Of its end",
        "title Made",
        "title Given",
    ]


# Copies


def test_a_fork_by_the_tool_names_its_parent_and_what_it_shares() -> None:
    for mark in ("requestSessionId", "forkedFrom"):
        script = Script()
        value: Any = "parent" if mark == "requestSessionId" else {"sessionId": "parent", "messageUuid": "u2"}
        script.prompt("First")
        script.answer("One.", **{mark: value})
        script.prompt("Second")
        script.answer("Two.", **{mark: value})
        script.prompt("Third")
        script.answer("Three.")
        (header,) = headers_of(script.pieces())
        assert header.parent is not None
        assert (header.parent.source_id, header.parent.turns, header.parent.through) == ("parent", 2, "u4")
        assert (header.parent.is_copied, header.shared_turns) == (True, 2)


def test_a_resumed_copy_of_old_versions_is_found_by_the_leaf_that_its_summary_names() -> None:
    script = Script(version="1.0.98")
    script.records.append({"type": "summary", "summary": "Greeting", "leafUuid": "u3"})
    script.prompt("First")
    script.answer("One.")
    script.prompt("Second")
    (alone,) = headers_of(script.pieces())
    assert alone.parent is None
    (header,) = headers_of(script.pieces(MadeCompanions(leaves={"u3": "parent"})))
    assert header.parent is not None
    assert (header.parent.source_id, header.parent.turns, header.shared_turns) == ("parent", 1, 1)


def test_a_session_that_goes_on_from_another_file_shares_all_of_it() -> None:
    for compacted in (False, True):
        script = Script(leaf="elsewhere")
        if compacted:
            script.compaction("What was before.")
        script.prompt("Go on")
        (alone,) = headers_of(script.pieces())
        assert alone.parent is None
        (header,) = headers_of(script.pieces(MadeCompanions(leaves={"elsewhere": "parent"})))
        assert header.parent is not None
        assert (header.parent.source_id, header.parent.turns, header.parent.through) == ("parent", None, "elsewhere")
        assert (header.parent.is_copied, header.shared_turns) == (False, 0)


# Damage


def test_damage_is_counted_and_nothing_is_lost_with_it() -> None:
    script = Script()
    script.prompt("First")
    script.answer("One.")
    script.records.append(script.records[-1])
    script.at("gone").prompt("Second")
    script.answer("Two.")
    script.records.append({"type": "response_item", "payload": {}})
    script.records.append({"nothing": 1})
    script.records.append({"type": "user", "message": {"role": "user", "content": "Third"}, "sessionId": SESSION})
    counts = Counts()
    pieces = pieces_of(lines_of(script.records) + b'not json\n[1]\n{"torn', None, counts)
    assert [texts(turn.inputs) for turn in turns_of(pieces)] == [["First"], ["Second"], ["Third"]]
    assert (counts.records, counts.bad_lines) == (8, 3)
    assert counts.not_understood == {
        "duplicate uuid": 1,
        "parent not in the file": 1,
        "response_item": 1,
        "without a type": 1,
    }


def test_cycles_end() -> None:
    script = Script()
    script.at("u3").prompt("First")
    script.answer("One.")
    script.prompt("Second")
    script.at("u4").prompt("Itself")
    counts = Counts()
    prompts = {text for turn in turns_of(script.pieces(counts=counts)) for text in texts(turn.inputs)}
    assert prompts == {"First", "Second", "Itself"}
    assert counts.not_understood["cycle"] == 1


def test_lines_of_another_session_are_left_out() -> None:
    script = Script()
    script.prompt("First")
    script.answer("One.")
    other = Script(session="another", prefix="x", records=script.records)
    other.at("elsewhere").prompt("Not mine")
    other.answer("Nor this.")
    script.prompt("Second")
    script.answer("Two.")
    other.answer("Or that.")
    counts = Counts()
    assert [texts(turn.inputs) for turn in turns_of(script.pieces(counts=counts))] == [["First"], ["Second"]]
    assert counts.not_understood["another session"] == 3


def test_the_name_of_the_file_tells_whose_it_is() -> None:
    script = Script(session="mine")
    script.prompt("First")
    for _ in range(3):
        script.session = "other"
        script.answer("One.")
    (header,) = headers_of(script.pieces(MadeCompanions("mine.jsonl")))
    assert header.source_id == "mine"


def test_a_file_of_no_session_gives_nothing() -> None:
    counts = Counts()
    assert pieces_of(b'{"type":"summary","summary":"x","leafUuid":"u"}\n\n{"type":"mode"}\n', None, counts) == []
    assert (counts.records, counts.not_understood) == (2, {})


def test_counts_that_are_none_are_zero() -> None:
    script = Script()
    script.answer("x", body={"usage": {"input_tokens": True, "output_tokens": "9", "cache_read_input_tokens": -1}})
    script.answer("y", body={"usage": {"input_tokens": 2**60, "output_tokens": 2**60, "output_tokens_details": 5}})
    script.answer("z", body={"usage": [1]})
    usages = [step.usage for turn in turns_of(script.pieces()) for step in turn.pieces if isinstance(step, Step)]
    assert [usage and (usage.input_tokens, usage.output_tokens) for usage in usages] == [
        (0, 0),
        (2**53 - 1, 2**53 - 1),
        None,
    ]


@pytest.mark.parametrize("stamp", [None, 5, "yesterday", "2026-01-01T00:00:00", "9999-99-99T00:00:00.000Z", "", "1"])
def test_times_that_are_none_are_absent(stamp: Any) -> None:
    script = Script()
    script.prompt("First", timestamp=stamp)
    turn = one_turn(script)
    assert (turn.started_ms, turn.ended_ms) == (None, None)


def test_times() -> None:
    script = Script()
    script.prompt("First", timestamp="2026-01-01T00:00:01.250Z")
    script.answer("One.", timestamp="2026-01-01T01:00:01+01:00")
    turn = one_turn(script)
    assert turn.started_ms is not None
    assert (turn.ended_ms, turn.started_ms) == (turn.started_ms - 250, 1_767_225_601_250)
