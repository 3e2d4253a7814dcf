"""Every genuine session of Claude Code must come to what the README beside it tells."""

from collections.abc import Iterator

import pytest

from services.importer.claude_code.session import normalise
from services.importer.companions import FolderCompanions
from services.importer.lines import FileSource
from services.importer.model import Counts, Input, Piece, Step, Title, Turn
from tests.support.sessions.claude_sessions import calls_of, headers_of, texts, turns_of
from tests.support.sessions.readme import FOLDER, Told, needs_sessions, told

SESSIONS = told("claude")
WARM_UPS = [session.file for session in SESSIONS if "--warmup-" in session.file]
RESUMED_LEAF = {"7b53b0f6-530e-4069-bcf2-1e48a2d319e1": "41cdd287-d806-42e3-99b0-c42921f47ccf"}
CALL_ENDS = {
    "ok": "succeeded",
    "ERROR": "failed",
    "UNFINISHED": "unknown",
    "ERROR/interrupted": "unknown",
    "ERROR/user-rejected": "cancelled",
    "ERROR/permission-rule": "denied",
}
TURN_ENDS = {
    "2.0.65_07_kill9.jsonl": ["interrupted"],
    "2.0.65_07b_kill9-resume.jsonl": ["interrupted", "completed"],
    "2.0.65_07c_sigint.jsonl": ["interrupted"],
    "2.0.65_12_api-error.jsonl": ["failed"],
    "2.1.332_07_kill9.jsonl": ["interrupted"],
    "2.1.332_07b_kill9-resume.jsonl": ["interrupted", "completed"],
    "2.1.332_07c_sigint.jsonl": ["aborted"],
}
"""Of the files in which not every turn is completed."""
PARENTS = {
    "1.0.98_05_resume.jsonl": ("fork", "41cdd287", 1),
    "2.0.65_06_fork.jsonl": ("fork", "a7c72924", 2),
    "2.1.332_06_fork.jsonl": ("fork", "602c0673", 2),
    "2.0.65_08_subagent--agent-a58020f.jsonl": ("child", "61032386", None),
    "2.1.332_08_subagent--agent-af3ac73746f9a5642.jsonl": ("child", "7150e27b", None),
}
LONGER = [
    ("2.0.65_02_bash-fail.jsonl", "2.0.65_05_resume.jsonl"),
    ("2.0.65_07_kill9.jsonl", "2.0.65_07b_kill9-resume.jsonl"),
    ("2.0.65_09_compact.jsonl", "2.0.65_09b_compact-cmd.jsonl"),
    ("2.0.65_09b_compact-cmd.jsonl", "2.0.65_09c_compact-after.jsonl"),
    ("2.1.332_02_bash-fail.jsonl", "2.1.332_05_resume.jsonl"),
    ("2.1.332_07_kill9.jsonl", "2.1.332_07b_kill9-resume.jsonl"),
    ("2.1.332_09_compact.jsonl", "2.1.332_09b_compact-cmd.jsonl"),
    ("2.1.332_09b_compact-cmd.jsonl", "2.1.332_09c_compact-after.jsonl"),
]

pytestmark = needs_sessions


def read(file: str) -> tuple[list[Piece], Counts]:
    path = FOLDER / "claude" / file
    counts = Counts()
    return list(normalise(FileSource(path), counts, companions=FolderCompanions(path, RESUMED_LEAF))), counts


@pytest.mark.parametrize("session", SESSIONS, ids=[session.file for session in SESSIONS])
def test_a_session_comes_to_what_its_readme_tells(session: Told) -> None:
    pieces, counts = read(session.file)
    assert (counts.records, counts.bad_lines) == (session.records, 0)
    if session.file in WARM_UPS:
        assert pieces == []
        assert counts.not_understood == {"warm-up agent": 1}
        return
    assert counts.not_understood == {}
    turns, calls = turns_of(pieces), calls_of(pieces)
    assert [texts(turn.inputs) for turn in turns] == [[prompt] for prompt, _ in session.turns]
    assert [turn.outcome for turn in turns] == TURN_ENDS.get(session.file, ["completed"] * len(turns))
    assert [(call.tool, call.end) for call in calls] == [(tool, CALL_ENDS[end]) for tool, end in session.calls]
    assert all((call.end == "unknown") == (call.reason is not None and call.ended_ms is None) for call in calls)
    if session.records:
        (header,) = headers_of(pieces)
        assert header.tool_version == session.file.partition("_")[0]
        assert header.source_id[:8] in session.ids
        parent = header.parent
        told_parent = (parent.kind, parent.source_id[:8], parent.turns) if parent is not None else None
        assert told_parent == PARENTS.get(session.file)
        assert header.shared_turns == (PARENTS[session.file][2] or 0 if parent is not None else 0)
    else:
        assert pieces == []


@pytest.mark.parametrize(("shorter", "longer"), LONGER)
def test_a_longer_snapshot_adds_only_what_is_new(shorter: str, longer: str) -> None:
    before, after = read(shorter)[0], read(longer)[0]
    assert after[: len(before) - 1] == before[:-1]
    last, again = before[-1], after[len(before) - 1]
    if not (isinstance(last, Turn) and last.is_open):
        assert last == again
        return
    assert isinstance(again, Turn)
    assert (again.source_id, again.inputs, again.started_ms) == (last.source_id, last.inputs, last.started_ms)
    assert again.outcome == last.outcome
    assert [step.source_id for step in steps(again)] == [step.source_id for step in steps(last)]


def steps(turn: Turn) -> Iterator[Step]:
    return (piece for piece in turn.pieces if isinstance(piece, Step))


def test_copies_keep_the_names_of_what_they_copy() -> None:
    for original, copy in [
        ("1.0.98_02_bash-fail.jsonl", "1.0.98_05_resume.jsonl"),
        ("2.0.65_05_resume.jsonl", "2.0.65_06_fork.jsonl"),
        ("2.1.332_05_resume.jsonl", "2.1.332_06_fork.jsonl"),
    ]:
        first, second = turns_of(read(original)[0]), turns_of(read(copy)[0])
        assert [names(turn) for turn in first] == [names(turn) for turn in second[: len(first)]]
        assert len(second) == len(first) + 1


def names(turn: Turn) -> list[str]:
    return [
        turn.source_id,
        *(step.source_id for step in steps(turn)),
        *(c.source_id for s in steps(turn) for c in s.calls),
    ]


def test_a_sub_agent_and_the_call_that_it_works_for_name_each_other() -> None:
    for parent, child in [
        ("2.0.65_08_subagent.jsonl", "2.0.65_08_subagent--agent-a58020f.jsonl"),
        ("2.1.332_08_subagent.jsonl", "2.1.332_08_subagent--agent-af3ac73746f9a5642.jsonl"),
    ]:
        (call,) = calls_of(read(parent)[0])
        (header,) = headers_of(read(child)[0])
        assert call.child == header.source_id
        assert header.parent is not None
        assert header.parent.call in {None, call.source_id}
    assert header.parent.call == call.source_id, "its metadata names the call"


def test_the_end_of_a_background_agent_steers_the_turn_that_launched_it() -> None:
    (turn,) = turns_of(read("2.1.332_08_subagent.jsonl")[0])
    notice, answer = turn.pieces[-2:]
    assert isinstance(notice, Input)
    assert notice.steers
    assert texts([notice])[0].startswith("<task-notification>")
    assert isinstance(answer, Step)


def test_whole_outputs_exit_codes_and_files_are_kept() -> None:
    (call,) = calls_of(read("2.1.332_13_large-output.jsonl")[0])
    assert call.whole is not None
    assert len(call.whole.content) == 198_894
    assert [call.exit_code for call in calls_of(read("2.1.332_04_parallel.jsonl")[0])] == [None, 3, None]
    changes = [call.changes for call in calls_of(read("2.1.332_03_edit.jsonl")[0])]
    assert [len(change) for change in changes] == [0, 1, 1, 0]
    edited, created = changes[1][0], changes[2][0]
    assert edited.before is not None
    assert edited.after is not None
    assert b"Hello, " in edited.before.content
    assert b"Hi, {name}" in edited.after.content
    assert created.before is None and created.path.endswith("/03_edit/notes.txt")


def test_decisions_are_told_only_where_they_were_recorded() -> None:
    (denied,) = calls_of(read("2.1.332_15_deny.jsonl")[0])
    assert (denied.approval, denied.decided_by) == ("denied", "policy:rule:cliArg")
    assert {call.approval for call in calls_of(read("2.0.65_02_bash-fail.jsonl")[0])} == {"unrecorded"}
    assert {call.approval for call in calls_of(read("2.1.332_02_bash-fail.jsonl")[0])} == {"approved"}
    assert all(call.started_ms is None for call in calls_of(read("2.1.332_02_bash-fail.jsonl")[0]))


def test_tokens_are_counted_once_for_a_message_of_several_lines() -> None:
    pieces, _ = read("2.1.332_04_parallel.jsonl")
    first, second = (step for turn in turns_of(pieces) for step in steps(turn))
    assert len(first.calls) == 3
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.cached_tokens, first.usage.output_tokens) == (2000, 500, 40)
    assert first.response_id == "msg_5df2f4dce6a84fbf90db9e01"
    assert second.usage is not None


def test_a_resumed_copy_has_the_title_that_was_made_for_it() -> None:
    (title,) = (piece for piece in read("1.0.98_05_resume.jsonl")[0] if isinstance(piece, Title))
    assert title.title.startswith("Invalid API key")
