"""Calls and tokens of Codex, and lines that are not as they should be."""

import orjson

from services.importer.codex.turns import INSIDE_MAX
from services.importer.lines import Line
from services.importer.model import Call, Counts, Input, Step, Turn
from tests.support.sessions.codex_records import SESSION, Session, header_of, pieces_of, turns_of
from tests.support.sessions.shown import shown


def the_calls(session: Session) -> list[Call]:
    steps = [piece for turn in turns_of(session.pieces()) for piece in turn.pieces if isinstance(piece, Step)]
    return [call for step in steps for call in step.calls]


def test_commands_of_a_script_are_kept_beside_its_result() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.")
    session.item("custom_tool_call", call_id="c1", name="exec", input="await run()")
    session.completed({"type": "CommandExecution", "id": "exec-1", "command": ["false"], "exit_code": 1})
    added = {"/srv/a": {"type": "add", "content": "a"}}
    session.completed({"type": "FileChange", "id": "exec-2", "status": "completed", "changes": added})
    session.item("custom_tool_call_output", call_id="c1", output="Script completed\nOutput:\n")
    session.completed({"type": "CommandExecution", "id": "exec-3", "command": ["true"], "exit_code": 0})
    session.event("turn_aborted", turn_id="t1")
    session.completed({"type": "CommandExecution", "id": "exec-4", "exit_code": -1}, turn_id="t1")
    counts = Counts()
    session.pieces(counts)
    (call,) = the_calls(session)
    assert (call.tool, call.end, call.exit_code) == ("exec", "succeeded", None)
    assert call.args == {"input": "await run()"}
    assert call.whole is not None
    inside = [orjson.loads(line) for line in call.whole.content.splitlines()]
    assert [(command["id"], command.get("exit_code")) for command in inside] == [
        ("exec-1", 1),
        ("exec-2", None),
        ("exec-3", 0),
    ]
    assert [(change.path, change.after and change.after.content) for change in call.changes] == [("/srv/a", b"a")]
    assert counts.not_understood == {}


def test_files_that_a_call_added_or_deleted_are_there_with_their_contents() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.")
    session.item("custom_tool_call", call_id="c1", name="apply_patch", input="*** Begin Patch")
    session.completed(
        {
            "type": "FileChange",
            "id": "c1",
            "status": "completed",
            "changes": {
                "/srv/new": {"type": "add", "content": "n"},
                "/srv/old": {"type": "delete", "content": "o"},
                "/srv/same": {"type": "update", "unified_diff": "@@"},
            },
        }
    )
    session.item("custom_tool_call_output", call_id="c1", output="Exit code: 0\nOutput:\n")
    (call,) = the_calls(session)
    assert [(c.path, c.before and c.before.content, c.after and c.after.content) for c in call.changes] == [
        ("/srv/new", None, b"n"),
        ("/srv/old", b"o", None),
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


# Tokens


def test_tokens_that_come_before_what_they_were_for() -> None:
    session = Session("0.36.0").prompt("Go.").context().event("agent_message", message="Yes.").tokens(10, 10)
    session.item("message", role="assistant", content=[{"text": "Yes."}]).context().tokens(15, 5).call("c1", "shell")
    assert shown(session.pieces())[2:] == ["  step “Yes.” 10+0", "  step shell→unknown 5+0"]


def test_totals_that_did_not_grow_count_nothing() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").event("token_count", info=None)
    session.answer("Yes.").tokens(10, 10).tokens(10, 10).tokens(10, 0).event("token_count", info={})
    assert shown(session.pieces())[2:] == ["  step “Yes.” 10+0"]


def test_tokens_of_a_response_that_left_nothing_are_counted_all_the_same() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").tokens(10, 10).tokens(15, 5)
    assert shown(session.pieces())[2:] == ["  step 15+0"]
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").answer("Yes.").tokens(10, 10)
    session.tokens(15, 5)
    assert shown(session.pieces())[2:] == ["  step “Yes.” 10+0", "  step 5+0"]
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").answer("Yes.").context()
    session.tokens(15, 5)
    assert shown(session.pieces())[2:] == ["  step “Yes.” 5+0"]


def test_tokens_that_are_no_numbers_are_none() -> None:
    info = {"total_token_usage": {"input_tokens": "x"}, "last_token_usage": {"input_tokens": "x", "output_tokens": -1}}
    session = Session().prompt("Go.").context().answer("Yes.").event("token_count", info=info)
    assert shown(session.pieces())[2:] == ["  step “Yes.” 0+0"]
    session.event("token_count", info={"total_token_usage": 1, "last_token_usage": 2})
    assert shown(session.pieces())[2:] == ["  step “Yes.” 0+0"]


def test_a_record_of_a_response_is_counted_and_its_totals_are_not() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.")
    session.add("token_usage_record", {"usage": {"input_tokens": 3}, "response_id": "r1"}).answer("Yes.")
    session.add("token_usage_record", {"usage": {"input_tokens": 7}, "response_id": "r2"}).tokens(10, 7)
    session.add("token_usage_record", {"usage": {"input_tokens": 9}, "response_id": "r3"})
    (turn,) = turns_of(session.pieces())
    steps = [piece for piece in turn.pieces if isinstance(piece, Step)]
    assert [(step.response_id, step.usage and step.usage.input_tokens) for step in steps] == [
        ("r1", 3),
        ("r2", 7),
        ("r3", 9),
    ]


# Calls, oddly


def test_a_plan_that_no_call_wrote_is_none() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.")
    session.call("c1", "update_plan", '{"plan": [{"step": "a"}]}')
    session.call("c2", "update_plan", '{"plan": 1}').output("c2", "Plan updated")
    session.call("c3", "update_plan", '{"plan": [1]}').output("c3", "Plan updated")
    session.call("c4", "update_plan", '{"plan": [{"step": "a"}]}').output("c4", "failed to parse function arguments")
    session.call("c5", "update_plan", '{"plan": [{"step": "a", "status": []}]}').output("c5", "Plan updated")
    assert [line for line in shown(session.pieces()) if "plan 1" in line] == ["  plan 1 a pending"]


def test_a_call_without_an_id_and_a_name() -> None:
    session = Session().prompt("Go.").item("function_call").item("custom_tool_call", id="i1", input="x")
    session.item("function_call", name="look", namespace="mcp__srv__", arguments=1).item("local_shell_call", action=1)
    assert [(call.source_id, call.tool, call.args) for call in the_calls(session)] == [
        ("turn/1/call/1", "unnamed", {}),
        ("i1", "unnamed", {"input": "x"}),
        ("turn/1/call/3", "mcp__srv__look", {}),
        ("turn/1/call/4", "local_shell", {}),
    ]


def test_an_event_of_a_calls_end_tells_what_an_item_does() -> None:
    session = (
        Session("0.80.0")
        .prompt("Go.")
        .call("c1")
        .event("exec_command_end", call_id="c1", aggregated_output="a long output", exit_code=0)
    )
    session.output("c1", "Exit code: 0\nOutput:\na…t").event("exec_command_end", call_id="c1", aggregated_output="b")
    session.prompt("Next.").event("exec_command_end", call_id="c1", aggregated_output="late")
    (call,) = the_calls(session)
    assert call.whole is None
    assert (call.exit_code, call.end) == (0, "succeeded")


def test_a_result_the_second_time_and_one_after_its_turn_are_counted() -> None:
    session = Session().prompt("One.").call("c1").output("c1", "Exit code: 0\n").output("c1", "Exit code: 1\n")
    session.call("c2").prompt("Two.").output("c2", "Exit code: 0\n")
    counts = Counts()
    session.pieces(counts)
    assert [call.end for call in the_calls(session)] == ["succeeded", "unknown"]
    assert counts.not_understood == {"function_call_output without its call": 2}


def test_a_script_keeps_so_many_of_its_commands_and_no_more() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.")
    session.item("custom_tool_call", call_id="c1", name="exec", input="")
    for number in range(INSIDE_MAX + 2):
        session.completed({"type": "CommandExecution", "id": f"exec-{number}"})
    (call,) = the_calls(session)
    assert call.whole is not None
    assert call.whole.content.count(b"\n") == INSIDE_MAX


def test_a_child_is_named_by_the_record_of_the_calls_end() -> None:
    session = Session("0.171.0").event("task_started", turn_id="t1").prompt("Go.").call("c1", "spawn_agent")
    session.completed(
        {"type": "CollabAgentToolCall", "id": "c1", "tool": "spawn_agent", "receiver_thread_ids": ["child"]}
    )
    session.output("c1", '{"task_name":"count"}')
    assert [call.child for call in the_calls(session)] == ["child"]


def test_duplicates_that_are_nested_too_deep_are_no_trouble() -> None:
    deep: dict[str, object] = {}
    for _ in range(2_000):
        deep = {"a": deep}
    again: dict[str, object] = {}
    for _ in range(2_000):
        again = {"a": again}
    session = Session().prompt("Go.")
    lines = [*session.lines(), *[Line(9, {"type": "event_msg", "payload": inner}) for inner in (deep, again)]]
    counts = Counts()
    assert shown(pieces_of(lines, counts))[1:] == ["turn Go.: interrupted, inferred, open"]
    assert counts.not_understood == {"event_msg without a type": 2}


def test_a_call_that_is_told_twice_in_one_turn_is_one_call() -> None:
    session = Session().prompt("Go.").call("c1").output("c1", "Exit code: 0\n").call("c1")
    session.records[5]["timestamp"] = session.records[3]["timestamp"]
    counts = Counts()
    session.pieces(counts)
    assert len(the_calls(session)) == 1
    assert counts.not_understood == {"function_call, the second time": 1}


def test_a_command_of_no_script_is_counted() -> None:
    session = Session("0.171.0").completed({"type": "CommandExecution", "id": "exec-1"})
    session.event("task_started", turn_id="t1").prompt("Go.").completed({"type": "CommandExecution", "id": "exec-2"})
    counts = Counts()
    session.pieces(counts)
    assert counts.not_understood == {"event_msg item_completed CommandExecution without its call": 2}
