"""Where turns of Codex begin and end, and what a person wrote, in records that no genuine session at hand shows."""

import json
from pathlib import Path
from typing import Any

from services.importer.lines import FileSource
from services.importer.model import Compaction, Counts
from tests.support.sessions.codex_records import SESSION, Session, header_of, pieces_of, turns_of
from tests.support.sessions.shown import shown

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


def test_compaction_after_an_answer_ends_the_turn() -> None:
    session = Session().prompt("One.").answer("1").add("compacted", {"message": "In short."})
    assert shown(session.pieces())[1:] == [
        "turn One.: completed, inferred",
        "  step “1”",
        "compaction “In short.”",
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
    (given,) = turns_of(session.pieces())[0].inputs
    assert [item.text for item in given.items if item.type == "text"] == ["What is it?", "https://images.example/1.png"]
    assert [(blob.media_type, blob.content) for blob in given.blobs] == [("image/png", b"hi")]


def test_a_prompt_of_an_event_alone_and_one_of_an_item_alone() -> None:
    session = Session().event("user_message", message="By an event.").answer("1").user_item("By an item.")
    assert [line for line in shown(session.pieces()) if line.startswith("turn")] == [
        "turn By an event.: completed, inferred",
        "turn By an item.: interrupted, inferred, open",
    ]


def test_a_third_session_that_a_copy_names_is_no_parent() -> None:
    session = Session().add("session_meta", {"id": "parent"}).add("session_meta", {"id": "grandparent"})
    session.add("session_meta", {"id": SESSION}).prompt("Go.")
    header = header_of(session.pieces())
    assert header.parent is not None
    assert header.parent.source_id == "parent"


def test_a_fork_by_reference_whose_base_tells_no_ordinal() -> None:
    meta: dict[str, Any] = {"forked_from_id": "parent", "history_base": {"thread_id": "parent"}}
    told: list[dict[str, Any]] = [{"forked_from_ordinal_exclusive": 7}, {}]
    assert [Session(**meta, **more).pieces()[0] for more in told] == [
        Session(history_base={"thread_id": "parent", "end_ordinal_exclusive": through}).pieces()[0]
        for through in (7, None)
    ]


def test_turns_of_a_copy_that_nothing_tells_from_its_own_are_its_own() -> None:
    session = Session(forked_from_id="parent").prompt("Old.").answer("Old answer.").prompt("Cut off.")
    assert header_of(session.pieces()).shared_turns == 0
    session = Session(forked_from_id="parent").prompt("Cut off.")
    assert header_of(session.pieces()).shared_turns == 0


def test_the_beginning_of_a_turn_the_second_time_begins_none() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").event("task_started", turn_id="t1")
    session.answer("Yes.").event("task_complete", turn_id="t1", last_agent_message="Yes.")
    counts = Counts()
    session.event("task_started", turn_id="t1")
    assert shown(session.pieces(counts))[1:] == ["turn Go.: completed, recorded", "  step “Yes.”"]
    assert counts.not_understood == {"event_msg task_started, the second time": 2}


def test_what_belongs_to_a_turn_that_is_over_is_counted() -> None:
    passed: dict[str, Any] = {"internal_chat_message_metadata_passthrough": {"turn_id": "t1"}}
    session = Session("0.171.0").event("task_started", turn_id="t1").user_item("Go.", **passed)
    session.event("task_complete", turn_id="t1", last_agent_message="Yes.")
    session.item("reasoning", summary=[], **passed).call("c1", **passed).user_item("Go.", **passed)
    session.item("message", role="assistant", content=[{"text": "x"}], **passed)
    session.item("web_search_call", **passed).item("image_generation_call", **passed)
    session.completed({"type": "AgentMessage", "content": [{"text": "x"}]}, turn_id="t1")
    counts = Counts()
    assert shown(session.pieces(counts))[1:] == ["turn Go.: completed, recorded"]
    assert counts.not_understood == {"an answer after its turn": 6, "a prompt, the second time": 1}


def test_a_prompt_of_another_turn_begins_another_turn() -> None:
    def passed(turn: str) -> dict[str, dict[str, str]]:
        return {"internal_chat_message_metadata_passthrough": {"turn_id": turn}}

    session = Session("0.171.0").event("task_started", turn_id="t1").user_item("One.", **passed("t1"))
    session.user_item("Two.", **passed("t2")).user_item("Late.", **passed("t1"))
    turns = turns_of(session.pieces())
    assert shown(turns) == [
        "turn One.: interrupted, inferred",
        "turn Two.: interrupted, inferred",
        "turn Late.: interrupted, inferred, open",
    ]
    assert [turn.source_id for turn in turns] == ["t1", "t2", "t1/3"]


def test_a_message_that_says_nothing_is_none() -> None:
    session = Session().prompt("Go.").item("message", role="assistant", content=[])
    session.item("message", role="assistant", content=None).item("message", role="user", content=[])
    session.item("message", role="assistant", content=["x", {}, {"text": 1}]).item("message", role="user", content=None)
    session.event("agent_message").event("agent_reasoning").event("user_message").event("thread_name_updated")
    session.completed({"type": "UserMessage", "content": None}).completed({"type": "Reasoning"})
    session.item("message", role="user", content=["x"]).completed({"type": "AgentMessage"}).context()
    session.add("event_msg", {"type": "user_message", "message": "x", "kind": "environment_context"})
    assert shown(session.pieces())[1:] == ["turn Go.: interrupted, inferred, open"]


def test_a_message_that_is_a_plain_text() -> None:
    session = Session().item("message", role="user", content="Go.").item("message", role="assistant", content="Yes.")
    assert shown(session.pieces())[1:] == ["turn Go.: completed, inferred, open", "  step “Yes.”"]


def test_an_event_before_its_item_is_the_same_prompt() -> None:
    session = Session().event("user_message", message="Go.").user_item("Go.", id="m1")
    (turn,) = turns_of(session.pieces())
    assert [given.source_id for given in turn.inputs] == ["m1"]


def test_an_address_that_holds_no_bytes_stays_a_text() -> None:
    session = Session().event("user_message", message="", images=["data:image/png;base64,!"], local_images=["/a.png"])
    assert shown(session.pieces())[1] == "turn data:image/png;base64,! /a.png: interrupted, inferred, open"


def test_thoughts_are_there_once_and_without_a_summary_not_at_all() -> None:
    session = Session().prompt("Go.").event("agent_reasoning", text="Hm.")
    session.item("reasoning", summary=[{"type": "summary_text", "text": "Hm."}], encrypted_content="opaque")
    session.item("reasoning", summary=[], encrypted_content="opaque").item("reasoning", content=[{"text": "Raw."}])
    assert shown(session.pieces())[1:] == ["turn Go.: interrupted, inferred, open", "  step “Hm.” “Raw.”"]


def test_what_the_model_says_twice_it_said_twice() -> None:
    session = Session().prompt("Go.").answer("Yes.").answer("Yes.")
    assert shown(session.pieces())[2:] == ["  step “Yes.” “Yes.”"]


def test_an_error_outside_of_turns_is_none_of_theirs() -> None:
    assert shown(Session("0.118.0").event("error", message="no").prompt("Go.").pieces())[1:] == [
        "turn Go.: interrupted, inferred, open"
    ]


def test_a_time_that_is_none_is_left_out() -> None:
    session = Session().prompt("Go.")
    for number, stamp in enumerate([1, "soon", "1969-01-01T00:00:00Z"]):
        session.records[number]["timestamp"] = stamp
    session.records[0]["payload"]["timestamp"] = "2026-11-29T16:00:00.5"
    pieces = session.pieces()
    (turn,) = turns_of(pieces)
    assert (turn.started_ms, turn.inputs[0].at_ms) == (None, None)
    assert header_of(pieces).created_ms == 1795968000500


def test_the_notice_of_a_compaction_is_no_answer() -> None:
    session = Session("0.36.0").prompt("Go.").add("compacted", {"message": "In short."})
    session.event("agent_message", message="Compact task completed").event("agent_message", message="Mine.")
    assert shown(session.pieces())[1:] == [
        "turn Go.: interrupted, inferred, open",
        "  compaction “In short.”",
        "  step “Mine.”",
    ]


def test_an_answer_that_is_no_summary_stays_when_the_context_is_compacted() -> None:
    session = Session("0.118.0").event("task_started", turn_id="t1").prompt("Go.").answer("Half an answer.")
    session.add("compacted", {"message": "In short.", "compaction_response_id": "r9"})
    assert shown(session.pieces())[2:] == ["  step “Half an answer.”", "  compaction “In short.”"]


def test_a_compaction_between_turns_of_a_file_that_lost_their_ends() -> None:
    session = Session("0.118.0").add("compacted", {"message": "In short."}).add("compacted", {"message": ""})
    assert shown(session.pieces())[1:] == ["compaction “In short.”", "compaction “”"]


def test_a_turn_that_is_over_without_an_answer_failed() -> None:
    session = Session("0.118.0").context().event("task_started", turn_id="t1").prompt("Go.").call("c1")
    session.output("c1", "x").event("task_complete", turn_id="t1", last_agent_message=None)
    assert shown(session.pieces())[1:] == ["turn Go.: failed, recorded", "  step shell_command→failed"]


def test_prompts_that_have_the_same_place_in_a_thread_and_its_fork_have_names_of_their_own() -> None:
    first, second = [
        turns_of(Session().prompt("One.").answer("1").prompt(text).pieces()) for text in ("Mine.", "Theirs.")
    ]
    assert first[0].inputs == second[0].inputs
    assert first[1].inputs[0].source_id != second[1].inputs[0].source_id


def test_lines_of_a_file_that_are_not_as_they_should_be(tmp_path: Path) -> None:
    texts = ["a\u2028b\u0085c", "x" * 2_000_000, "lone \ud800 half", "zero \x00 byte"]
    session = Session()
    for text in texts:
        session.prompt(text)
    # Half of a pair is there as an escape; what splits lines elsewhere is there as it is.
    raw = [json.dumps(record, ensure_ascii=index in {5, 6}).encode() for index, record in enumerate(session.records)]
    foreign = [b"", b"\xff\xfe", b"[1]", b'{"type":"user","uuid":"u","message":{}}', b"\r"]
    torn = raw[-1][:-20]
    path = tmp_path / f"rollout-{SESSION}.jsonl"
    path.write_bytes(b"\n".join([*raw[:3], *foreign, *raw[3:-1], torn]))
    counts = Counts()
    turns = turns_of(pieces_of(FileSource(path), counts))
    shown_texts = [item.text for turn in turns for one in turn.inputs for item in one.items if item.type == "text"]
    assert shown_texts == [*texts[:2], "lone \ufffd half", texts[3]]
    assert counts.bad_lines == 3
    assert counts.not_understood == {"user": 1}
