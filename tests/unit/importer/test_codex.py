"""What the normaliser of Codex makes of reduced copies of genuine sessions, and of records that none of these shows."""

from pathlib import Path

import pytest

from services.importer.lines import FileSource, Line
from services.importer.model import Call, Compaction, Counts, Header, Input, Piece, Step, Turn
from tests.support.sessions.codex_records import SESSION, Session, pieces_of
from tests.support.sessions.shown import shown

REDUCED = Path(__file__).resolve().parents[2] / "support" / "sessions" / "codex"

EXPECTED = {
    "0.118_call-never-run.jsonl": [
        "thread 01a2280a-8c1f-7523-8b40-a7beb41e9f2e",
        "turn Run the command once.: completed, recorded",
        "  step “Let me run date.” exec_command→unknown",
        "  step “Finished after the broken stream.” 1210+40",
    ],
    "0.118_fork-by-copy.jsonl": [
        "thread 01a22812-c14a-7e90-ac0a-fbe894e0782d, fork of 01a22812-ba1a-74d1-83fe-28a76b6fc065 at None, 5 shared",
        "turn First question: list files.: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “Two files.” 1210+40",
        "turn Second question, to be rolled back.: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “This answer will be rolled back.” 1210+40",
        "rollback of 1",
        "turn Third question after the rollback.: completed, recorded",
        "  step “Answer three.” 1210+40",
        "turn Fourth question, interrupted.: aborted, recorded",
        "  step “Starting slowly.” exec_command→cancelled 1220+40",
        "compaction by a person “<instructions>\nSUMMARY: the user asked about files in a demo project.”",
        "turn Fifth question after compaction.: completed, recorded",
        "  step “Answer five.” 1210+40",
        "turn Question in the fork.: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “Answer in the fork.” 1210+40",
    ],
    "0.118_plan.jsonl": [
        "thread 01a2280a-4a56-7e12-9793-79340bde40cc",
        "turn Make a plan, then read hello.py.: completed, recorded",
        "  step update_plan→succeeded 1210+40",
        "  plan 1 Read hello.py running, 2 Report pending",
        "  step exec_command→succeeded 0 1210+40",
        "  step update_plan→succeeded 1210+40",
        "  plan 1 Read hello.py succeeded, 2 Report succeeded",
        "  step “Done: hello.py defines greet().” 1210+40",
    ],
    "0.171_failed.jsonl": [
        "thread 01a2280b-ce3c-7441-8dfb-75e5fec37503",
        "turn Please fail.: failed, recorded",
        "  step error other",
    ],
    "0.171_fork-by-reference.jsonl": [
        "thread 01a22812-dd58-77e2-87d3-fff19bf6cac8, fork of 01a22812-d584-7e83-9719-9c764c7c87ec at 75",
        "turn Question in the fork.: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “Answer in the fork.” 1210+40",
    ],
    "0.171_interrupt-compact-steer.jsonl": [
        "thread 01a22812-d584-7e83-9719-9c764c7c87ec",
        "turn First question: list files.: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “Two files.” 1210+40",
        "turn Second question, to be rolled back.: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “This answer will be rolled back.” 1210+40",
        "turn Third question after the rollback.: completed, recorded",
        "  step “Answer three.” 1210+40",
        "turn Fourth question, interrupted.: aborted, recorded",
        "  step “Starting slowly.” exec_command→cancelled 1220+40",
        "compaction by a person “SUMMARY: the user asked about files in a demo project.”",
        "turn Fifth question after compaction.: completed, recorded",
        "  step “Answer five.” 1210+40",
        "turn Sixth question, steered.: completed, recorded",
        "  step “Working on it.” exec_command→succeeded 0 1220+40",
        "  steered “A hint while you work.”",
        "  step “Took the hint into account.” 1210+40",
    ],
    "0.171_killed.jsonl": [
        "thread 01a2280b-cf37-7101-abd3-00d49bb8172e",
        "turn Run the slow command.: interrupted, inferred, open",
        "  step “Running a slow command.” exec_command→unknown 1220+40",
    ],
    "0.171_patch.jsonl": [
        "thread 01a2280b-58c1-79e2-9cae-de018fcfb58c",
        "turn Change the greeting to Hi.: completed, recorded",
        "  step “Editing hello.py.” apply_patch→succeeded 0 1220+40",
        "  step exec_command→succeeded 0 1210+40",
        "  step “Changed the greeting to Hi.” 1210+40",
    ],
    "0.171_subagent-child.jsonl": [
        "thread 01a22812-e7bb-78d1-a55a-c45683d7d188, child of 01a22812-e73a-7d20-a89b-7dcbf053a27e at None",
        "turn COUNT-LINES: count the lines of hello.py: completed, recorded",
        "  step exec_command→succeeded 0 1210+40",
        "  step “hello.py has 4 lines.” 1210+40",
    ],
    "0.171_subagent-parent.jsonl": [
        "thread 01a22812-e73a-7d20-a89b-7dcbf053a27e",
        "turn Delegate the counting to a helper.: completed, recorded",
        "  step multi_agent_v1.spawn_agent→succeeded for 01a22812-e7bb-78d1-a55a-c45683d7d188 1210+40",
        "  step multi_agent_v1.wait_agent→succeeded 1210+40",
        "  step “The helper counted 4 lines.” 1210+40",
    ],
    "0.29_bare-items.jsonl": [
        "thread b18d6e88-bc17-4bfe-a0f3-f8d89cdb446a",
        "turn List the files and run the check.: completed, inferred, open",
        "  step “I will list the files first.” shell→succeeded 0",
        "  step shell→failed 1",
        "  step “The listing worked; the check failed with exit code 1.”",
    ],
    "0.36_compaction.jsonl": [
        "thread 3676ebf6-3670-4f4d-bc4c-4154ca4ab8fa",
        "turn How many files are here?: interrupted, inferred, open",
        "  step “Looking around.” shell→succeeded 0 9000+60",
        "  compaction “SUMMARY: the user wants a count of files; ls showed hello.py and README.md.”",
    ],
    "0.36_failed.jsonl": [
        "thread 8e4c3703-f8a6-48f6-9f1c-b3da19594cbe",
        "turn Please fail.: failed, inferred, open",
    ],
    "0.36_killed-and-resumed.jsonl": [
        "thread 4839b702-25ad-4fe7-b6cc-0339e6f5374d",
        "turn Run the slow command.: interrupted, inferred",
        "  step “Running a slow command.”",
        "turn Go on after the crash.: completed, inferred, open",
        "  step shell→succeeded 0 1210+40",
        "  step “Picked up after the crash.” 1210+40",
    ],
    "0.36_parallel.jsonl": [
        "thread 7d93de97-cb99-4f50-88df-100fde8001c7",
        "turn Run two commands at once.: completed, inferred, open",
        "  step “Two commands at once.” shell→succeeded 0 shell→failed 3 1230+40",
        "  step “Both ran; the second exited 3.” 1210+40",
    ],
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_reduced_session(name: str) -> None:
    counts = Counts()
    assert shown(pieces_of(FileSource(REDUCED / name), counts)) == EXPECTED[name]
    assert (counts.bad_lines, counts.not_understood) == (0, {})


def test_every_reduced_session_is_read() -> None:
    assert {path.name for path in REDUCED.glob("*.jsonl")} == set(EXPECTED)


def turns_of(pieces: list[Piece]) -> list[Turn]:
    return [piece for piece in pieces if isinstance(piece, Turn)]


def the_turn(session: Session) -> Turn:
    (turn,) = turns_of(session.pieces())
    return turn


def the_calls(session: Session) -> list[Call]:
    steps = [piece for turn in turns_of(session.pieces()) for piece in turn.pieces if isinstance(piece, Step)]
    return [call for step in steps for call in step.calls]


def header_of(pieces: list[Piece]) -> Header:
    header = pieces[0]
    assert isinstance(header, Header)
    return header


# 0.80: envelopes, calls in the form of later versions, no records of turns


def test_a_request_ends_a_response_where_no_record_tells_of_turns() -> None:
    session = Session().prompt("Go.").context().answer("First.").call("c1").tokens(10, 10)
    session.output("c1", "Exit code: 3\nWall time: 0 seconds\nOutput:\nno\n").context().answer("Second.").tokens(30, 20)
    assert shown(session.pieces())[1:] == [
        "turn Go.: completed, inferred, open",
        "  step “First.” shell_command→failed 3 10+0",
        "  step “Second.” 20+0",
    ]


def test_a_call_that_a_broken_stream_left_is_unknown_though_the_turn_goes_on() -> None:
    session = Session().prompt("Go.").context().answer("Let me.").call("c1").context().answer("Done.").tokens(5, 5)
    assert shown(session.pieces())[1:] == [
        "turn Go.: completed, inferred, open",
        "  step “Let me.” shell_command→unknown",
        "  step “Done.” 5+0",
    ]


def test_a_rollback_takes_no_more_turns_than_there_are() -> None:
    session = Session().prompt("One.").answer("1").prompt("Two.").answer("2")
    session.event("thread_rolled_back", num_turns=1).event("thread_rolled_back", num_turns=7)
    session.event("thread_rolled_back", num_turns=1).prompt("Three.")
    assert shown(session.pieces())[1:] == [
        "turn One.: completed, inferred",
        "  step “1”",
        "turn Two.: completed, inferred",
        "  step “2”",
        "rollback of 1",
        "rollback of 1",
        "turn Three.: interrupted, inferred, open",
    ]


def test_a_copy_without_ids_is_told_by_how_fast_its_answers_came() -> None:
    session = Session().add("session_meta", {"id": "0b999999-2222-4333-8444-555555555555"})
    session.prompt("Old.").answer("Old answer.").prompt("Cut off.").prompt("New.").answer("New answer.")
    for record in session.records[2:8]:
        record["timestamp"] = "2026-11-29T16:00:01.000Z"
    header = header_of(session.pieces())
    assert header.parent is not None
    assert (header.parent.source_id, header.parent.is_copied) == ("0b999999-2222-4333-8444-555555555555", True)
    assert header.shared_turns == 1


def test_an_answer_without_its_tokens_is_not_complete_where_tokens_are_counted() -> None:
    session = Session().prompt("One.").context().answer("1").tokens(5, 5).prompt("Two.").context().answer("Half")
    assert [turn.outcome for turn in turns_of(session.pieces())] == ["completed", "interrupted"]


def test_compaction_after_an_answer_was_asked_for_by_a_person() -> None:
    session = Session().prompt("One.").answer("1").add("compacted", {"message": "In short."})
    assert shown(session.pieces())[1:] == [
        "turn One.: completed, inferred",
        "  step “1”",
        "compaction by a person “In short.”",
    ]


# Turns that records tell of


def test_compaction_before_the_prompt_of_its_turn_stands_before_the_turn() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").add("compacted", {"message": "In short."})
    session.prompt("Go on.").answer("Yes.").event("task_complete", turn_id="t1", last_agent_message="Yes.")
    assert shown(session.pieces())[1:] == [
        "compaction “In short.”",
        "turn Go on.: completed, recorded",
        "  step “Yes.”",
    ]


def test_a_compaction_without_a_summary_tells_what_the_context_kept() -> None:
    kept = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>x</environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Find it."}]},
        {"type": "compaction", "encrypted_content": "opaque"},
    ]  # fmt: skip
    session = Session("0.118.0").event("task_started", turn_id="t1")
    session.add("compacted", {"message": "", "replacement_history": kept}).event("task_complete", turn_id="t1")
    (compaction,) = [piece for piece in session.pieces() if isinstance(piece, Compaction)]
    assert compaction.summary == "user: Find it."
    assert compaction.origin.inferred is not None


def test_a_turn_that_nothing_is_left_of_is_no_turn() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").event("task_complete", turn_id="t1")
    assert shown(session.pieces()) == [f"thread {SESSION}"]


def test_an_error_after_which_the_model_answered_did_not_fail_the_turn() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").event("error", message="busy")
    session.answer("Yes.").event("task_complete", turn_id="t1", last_agent_message="Yes.")
    assert shown(session.pieces())[1:] == ["turn Go.: completed, recorded", "  step “Yes.”"]


def test_an_error_before_the_file_ends_failed_the_turn() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.")
    session.event("error", message="no", codex_error_info={"http_connection_failed": {}})
    assert shown(session.pieces())[1:] == ["turn Go.: failed, inferred, open", "  step error http_connection_failed"]


def test_the_end_of_another_turn_ends_none() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t2").prompt("Go.")
    session.event("task_complete", turn_id="t1").event("turn_aborted", turn_id="t1")
    counts = Counts()
    assert shown(session.pieces(counts))[1:] == ["turn Go.: interrupted, inferred, open"]
    assert counts.not_understood == {
        "event_msg task_complete without its turn": 1,
        "event_msg turn_aborted without its turn": 1,
    }


def test_a_turn_that_lost_its_beginning_is_there_all_the_same() -> None:
    session = Session("0.118.0").answer("And so on.").event("task_complete", turn_id="t1", last_agent_message="x")
    assert shown(session.pieces())[1:] == ["turn (no prompt): completed, recorded", "  step “And so on.”"]


# Prompts


def test_what_codex_adds_in_a_persons_place_is_no_prompt() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1")
    for text in (
        "<environment_context>\n<cwd>/work</cwd>\n</environment_context>",
        "# AGENTS.md instructions for /work\n\nBe brief.",
        "<permissions instructions>\nNone.\n</permissions instructions>",
        "<turn_aborted>\nInterrupted.\n</turn_aborted>",
        '<subagent_notification>\n{"agent_path":"x"}\n</subagent_notification>',
    ):
        session.user_item(text)
    session.item("message", role="developer", content=[{"type": "input_text", "text": "Be brief."}])
    session.prompt("Go.")
    counts = Counts()
    assert shown(session.pieces(counts))[1:] == ["turn Go.: interrupted, inferred, open"]
    assert counts.not_understood == {}


def test_a_person_may_write_what_looks_as_if_codex_had_added_it() -> None:
    text = "<environment_context>mine</environment_context>"
    assert shown(Session().prompt(text).pieces())[1:] == [f"turn {text}: interrupted, inferred, open"]


def test_an_unknown_tag_without_an_event_is_counted() -> None:
    counts = Counts()
    session = Session().user_item("<novelty>\nnew\n</novelty>").prompt("Go.")
    assert shown(session.pieces(counts))[1:] == ["turn Go.: interrupted, inferred, open"]
    assert counts.not_understood == {"response_item message in <novelty>": 1}


def test_the_parts_of_a_message_tell_which_a_person_wrote() -> None:
    content = [{"type": "input_text", "text": "Added."}, {"type": "input_text", "text": "Mine."}]
    session = Session("0.171.0").event("task_started", turn_id="t1")
    session.item(
        "message",
        role="user",
        content=content,
        internal_chat_message_metadata_passthrough={"turn_id": "t1", "content_item_kinds": ["hooks.x", "user.text"]},
    )
    assert shown(session.pieces())[1:] == ["turn Mine.: interrupted, inferred, open"]


def test_the_same_prompt_twice_is_two_prompts() -> None:
    session = Session().prompt("Continue.").answer("1").prompt("Continue.").answer("2")
    assert [line for line in shown(session.pieces()) if line.startswith("turn")] == [
        "turn Continue.: completed, inferred",
        "turn Continue.: completed, inferred, open",
    ]


def test_an_image_is_kept_as_its_bytes() -> None:
    content = [
        {"type": "input_text", "text": "<image>"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
        {"type": "input_text", "text": "</image>"},
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "https://images.example/1.png"},
    ]
    session = Session().item("message", role="user", content=content)
    session.event("user_message", message="What is it?", images=["data:image/png;base64,aGk="])
    (given,) = the_turn(session).inputs
    assert [item.text for item in given.items if item.type == "text"] == ["What is it?", "https://images.example/1.png"]
    assert [(blob.media_type, blob.content) for blob in given.blobs] == [("image/png", b"hi")]


def test_a_prompt_of_an_event_alone_and_one_of_an_item_alone() -> None:
    session = Session().event("user_message", message="By an event.").answer("1").user_item("By an item.")
    assert [line for line in shown(session.pieces()) if line.startswith("turn")] == [
        "turn By an event.: completed, inferred",
        "turn By an item.: interrupted, inferred, open",
    ]


# Calls


def test_commands_of_a_script_are_kept_beside_its_result() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.")
    session.item("custom_tool_call", call_id="c1", name="exec", input="await run()")
    session.completed({"type": "CommandExecution", "id": "exec-1", "command": ["false"], "exit_code": 1})
    session.item("custom_tool_call_output", call_id="c1", output="Script completed\nOutput:\n")
    session.completed({"type": "CommandExecution", "id": "exec-2", "command": ["true"], "exit_code": 0})
    counts = Counts()
    (turn,) = turns_of(session.pieces(counts))
    (call,) = the_calls(session)
    assert (call.tool, call.end, call.exit_code) == ("exec", "succeeded", None)
    assert call.args == {"input": "await run()"}
    assert call.whole is not None
    assert call.whole.content == b'{"type":"CommandExecution","id":"exec-1","command":["false"],"exit_code":1}\n'
    assert counts.not_understood == {"event_msg item_completed CommandExecution without its call": 1}
    assert turn.is_open


def test_files_that_a_call_added_or_deleted_are_there_with_their_contents() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.")
    session.item("custom_tool_call", call_id="c1", name="apply_patch", input="*** Begin Patch")
    session.completed(
        {
            "type": "FileChange",
            "id": "c1",
            "status": "completed",
            "changes": {
                "/work/new": {"type": "add", "content": "n"},
                "/work/old": {"type": "delete", "content": "o"},
                "/work/same": {"type": "update", "unified_diff": "@@"},
            },
        }
    )
    session.item("custom_tool_call_output", call_id="c1", output="Exit code: 0\nOutput:\n")
    (call,) = the_calls(session)
    assert [(c.path, c.before and c.before.content, c.after and c.after.content) for c in call.changes] == [
        ("/work/new", None, b"n"),
        ("/work/old", b"o", None),
    ]


def test_what_an_item_tells_of_an_end_counts_where_the_output_tells_nothing() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.").call("c1", "mcp__srv__look")
    session.completed({"type": "McpToolCall", "id": "c1", "status": "failed"}, started_at_ms=5, completed_at_ms=9)
    session.output("c1", "nothing there").call("c2", "mcp__srv__look")
    session.completed({"type": "McpToolCall", "id": "c2", "status": "declined"}).output("c2", "no")
    failed, declined = the_calls(session)
    assert (failed.end, failed.started_ms, failed.ended_ms) == ("failed", 5, 9)
    assert (declined.end, declined.approval) == ("denied", "denied")


def test_a_call_that_the_provider_ran_has_its_end_in_its_own_record() -> None:
    session = Session().prompt("Go.")
    session.item("web_search_call", status="completed", action={"type": "search", "query": "q"})
    session.item("image_generation_call", id="i1", status="failed").item("web_search_call", status="in_progress")
    session.item("image_generation_call", id="i2", status="completed", result="aGk=")
    assert [(call.tool, call.end) for call in the_calls(session)] == [
        ("web_search", "succeeded"),
        ("image_generation", "failed"),
        ("web_search", "unknown"),
        ("image_generation", "succeeded"),
    ]
    assert the_calls(session)[0].args == {"type": "search", "query": "q"}
    assert the_calls(session)[3].whole is not None


def test_arguments_that_are_no_object_are_kept_as_they_were_written() -> None:
    session = Session().prompt("Go.").call("c1", arguments='{"command": ').call("c2", arguments="[1]")
    assert [(call.args, call.malformed) for call in the_calls(session)] == [({}, '{"command": '), ({}, "[1]")]


def test_other_kinds_of_calls() -> None:
    session = Session().prompt("Go.")
    session.item("local_shell_call", call_id="c1", action={"type": "exec", "command": ["ls"]}).output("c1", "x")
    session.item("tool_search_call", call_id="c2", arguments={"query": "q"})
    session.item("tool_search_output", call_id="c2", tools=[{"name": "n"}])
    shell, search = the_calls(session)
    assert (shell.tool, shell.args) == ("local_shell", {"type": "exec", "command": ["ls"]})
    assert (search.tool, search.args, search.result) == ("tool_search", {"query": "q"}, [{"name": "n"}])


def test_an_id_that_two_calls_have_names_two_calls() -> None:
    session = Session().prompt("One.").call("call_1").output("call_1", "Exit code: 0\n").call("call_1")
    session.output("call_1", "Exit code: 1\n").prompt("Two.").call("call_1").output("call_1", "Exit code: 2\n")
    calls = the_calls(session)
    assert [call.exit_code for call in calls] == [0, 1, 2]
    assert len({call.source_id for call in calls}) == 3


# Lines that are not as they should be


def test_a_record_that_comes_twice_counts_once() -> None:
    session = Session().prompt("Go.").answer("Yes.").call("c1").output("c1", "Exit code: 0\n")
    lines = [line for line in session.lines() for _ in range(2)]
    counts = Counts()
    assert shown(pieces_of(lines, counts)) == shown(session.pieces())
    assert counts.records == len(lines)
    assert sum(counts.not_understood.values()) == len(lines) // 2


def test_an_ordinal_that_comes_twice_counts_once_and_a_gap_is_counted() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.").answer("Yes.")
    for number, record in enumerate(session.records):
        record["ordinal"] = number
    lines = session.lines()
    counts = Counts()
    assert shown(pieces_of([*lines, lines[2], lines[3]], counts)) == shown(session.pieces())
    assert sum(counts.not_understood.values()) == 2
    counts = Counts()
    late = [*lines[:3], lines[5], lines[4]]
    assert shown(pieces_of(late, counts))[1:] == ["turn Go.: interrupted, inferred, open", "  step “Yes.”"]
    assert counts.not_understood == {"a gap in the ordinals": 1}


def test_lines_that_are_no_record_are_counted() -> None:
    session = Session().prompt("Go.")
    foreign: list[dict[str, object]] = [
        {"type": "user", "uuid": "u", "message": {}},
        {"type": ["x"], "payload": {}},
        {"payload": {}},
        {"type": "novelty", "payload": {}},
        {"type": "event_msg", "payload": {"type": "novelty"}},
        {"type": "event_msg", "payload": {}},
        {"type": "event_msg", "payload": {"type": "item_completed"}},
        {"type": "event_msg", "payload": {"type": "item_completed", "item": {"type": "Novelty"}}},
        {"type": "event_msg", "payload": {"type": "thread_rolled_back"}},
        {"type": "response_item", "payload": {"type": "novelty"}},
        {"type": "response_item", "payload": {}},
        {"type": "response_item", "payload": {"type": "message", "role": "novelty", "content": []}},
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "nobody"}},
        {"type": "session_meta", "payload": {"id": "another"}},
        {"type": "session_meta", "payload": {}},
        {"type": "token_usage_record", "payload": {}},
    ]
    lines = [*session.lines(), *[Line(number, record) for number, record in enumerate(foreign, 4)], Line(99, None)]
    counts = Counts()
    assert shown(pieces_of(lines, counts))[1:] == ["turn Go.: interrupted, inferred, open"]
    assert counts.bad_lines == 1
    assert sum(counts.not_understood.values()) == len(foreign)


def test_without_its_first_record_a_thread_is_named_by_others_or_by_its_file() -> None:
    lines = Session().prompt("Go.").lines()[1:]
    name = f"rollout-2026-11-29T16-00-48-{SESSION}.jsonl"
    assert header_of(pieces_of(lines, name=name)).source_id == SESSION
    assert header_of(pieces_of(lines, name="folder/mine.jsonl")).source_id == "mine"
    session = Session("0.171.0").completed({"type": "AgentMessage", "content": [{"text": "x"}]}, thread_id="t")
    assert header_of(pieces_of(session.lines()[1:])).source_id == "t"


def test_a_file_without_records_is_no_thread() -> None:
    assert pieces_of([]) == []
    assert pieces_of([Line(1, None)]) == []


def test_a_name_that_a_thread_was_given_is_its_title() -> None:
    session = Session("0.171.0").event("thread_name_updated", thread_id=SESSION, thread_name="Mine")
    assert shown(session.pieces()) == [f"thread {SESSION}", "title Mine"]


def test_names_of_inputs_and_steps_do_not_depend_on_where_their_lines_stand() -> None:
    """So that copies in a fork, and longer snapshots, name the same."""
    session = Session().prompt("One.").answer("1").prompt("Two.").answer("2")
    moved = [Line(line.number + 7, line.record) for line in session.lines()]
    names = [_names(turn) for turn in turns_of(session.pieces())]
    assert names == [_names(turn) for turn in turns_of(pieces_of(moved))]


def _names(turn: Turn) -> list[str]:
    within = [piece.source_id for piece in turn.pieces if isinstance(piece, Step | Input)]
    return [turn.source_id, *[given.source_id for given in turn.inputs], *within]
