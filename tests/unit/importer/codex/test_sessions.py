"""Every genuine session of Codex, against what the README beside it tells."""

import pytest

from services.importer.codex.session import normalise
from services.importer.companions import NoCompanions
from services.importer.lines import FileSource
from services.importer.model import (
    Call,
    Compaction,
    Counts,
    Header,
    Input,
    Piece,
    Plan,
    Rollback,
    Step,
    Turn,
)
from services.importer.report import FileReport
from tests.support.sessions.codex_records import turns_of
from tests.support.sessions.readme import Told, needs_sessions, told

pytestmark = needs_sessions

SESSIONS = [file for file in told("codex") if "session_index" not in file.file]
NO_RECORD = {
    "0.36.0_06c_break-fatal.jsonl": ["failed"],
    "0.36.0_06d_http-error.jsonl": ["failed"],
    "0.29.0_07_kill9.jsonl": ["interrupted"],
    "0.36.0_07_kill9.jsonl": ["interrupted"],
    "0.36.0_07b_kill9-resume.jsonl": ["interrupted", "completed"],
    "0.36.0_10_compaction.jsonl": ["interrupted"],
}
"""What must be concluded where the file has no record of a turn's end; in all others the turns are completed."""


def read(file: Told) -> tuple[list[Piece], Counts]:
    counts = Counts()
    return list(normalise(FileSource(file.path), counts, companions=NoCompanions(file.file))), counts


def calls_of(pieces: list[Piece]) -> list[Call]:
    steps = [piece for turn in turns_of(pieces) for piece in turn.pieces if isinstance(piece, Step)]
    return [call for step in steps for call in step.calls]


def prompt_of(turn: Turn) -> str:
    given = [*turn.inputs, *[piece for piece in turn.pieces if isinstance(piece, Input)]]
    return " ++ ".join([item.text for one in given for item in one.items if item.type == "text"])


def outcome_of(call: Call) -> str:
    """In the README's words."""
    if call.exit_code is not None and call.end in {"succeeded", "failed"}:
        return str(call.exit_code)
    if call.end == "failed":
        return "unsupported" if str(call.reason).startswith("unsupported") else "error"
    return {"succeeded": "ok(no code)", "cancelled": "aborted", "unknown": "UNFINISHED"}[call.end]


def end_of(file: Told, number: int, prompt: str, end: str) -> tuple[str, str]:
    if end.startswith("no end"):
        return NO_RECORD.get(file.file, ["completed"] * 9)[number], "inferred"
    if end.startswith("OPEN"):
        return "interrupted", "inferred"
    if end.startswith("ABORTED"):
        return "aborted", "recorded"
    return ("failed" if end.startswith("FAILED") or "null" in end else "completed"), "recorded"


def test_there_is_a_session_of_every_version_that_the_folder_has() -> None:
    assert len(SESSIONS) >= 50


@pytest.mark.parametrize("file", SESSIONS, ids=lambda file: file.file)
def test_a_session_holds_what_the_readme_tells(file: Told) -> None:
    pieces, counts = read(file)
    assert (counts.records, counts.bad_lines, counts.not_understood) == (file.records, 0, {})
    header = pieces[0]
    assert isinstance(header, Header)
    assert [piece for piece in pieces if isinstance(piece, Header)] == [header]
    assert header.source_id == file.ids
    kind, _, parent = file.parent.partition(" ")
    if kind == "-":
        assert header.parent is None
    else:
        assert header.parent is not None
        assert header.parent.source_id == parent
        assert header.parent.kind == {"forked_from": "fork", "parent_thread": "child"}[kind]
    expected = [(prompt, end) for prompt, end in file.turns if prompt != "(none)"]
    turns = turns_of(pieces)
    assert [prompt_of(turn) for turn in turns] == [prompt for prompt, _ in expected]
    assert [(turn.outcome, turn.end_evidence) for turn in turns] == [
        end_of(file, number, *turn) for number, turn in enumerate(expected)
    ]
    assert [turn.is_open for turn in turns[:-1]] == [False] * (len(turns) - 1)
    assert turns[-1].is_open == (turns[-1].end_evidence == "inferred")
    calls = calls_of(pieces)
    assert [(call.tool, outcome_of(call)) for call in calls] == list(file.calls)
    assert len([call for call in calls if call.end == "unknown"]) == file.unfinished
    by_person = [piece for piece in pieces if isinstance(piece, Compaction)]
    assert len(by_person) == len(file.turns) - len(expected)
    assert all(piece.by_person for piece in by_person)
    within = [piece for turn in turns for piece in turn.pieces if isinstance(piece, Compaction)]
    assert len(by_person) + len(within) == file.also.count("compacted")
    report = FileReport(file.file)
    for piece in pieces:
        report.take(piece)
    assert len(report.threads[0].turns) == len(file.turns)
    rollbacks = [piece.turns for piece in pieces if isinstance(piece, Rollback)]
    assert rollbacks == ([1] if "thread_rolled_back(1)" in file.also else [])


@pytest.mark.parametrize("file", SESSIONS, ids=lambda file: file.file)
def test_every_source_id_is_there_once(file: Told) -> None:
    pieces, _ = read(file)
    turns = turns_of(pieces)
    within = [piece for turn in turns for piece in turn.pieces]
    ids = [turn.source_id for turn in turns]
    ids += [given.source_id for turn in turns for given in turn.inputs]
    ids += [piece.source_id for piece in within if isinstance(piece, Step | Input)]
    ids += [call.source_id for call in calls_of(pieces)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        (f"{version}_{one}", f"{version}_{other}")
        for version in ("0.36.0", "0.118.0", "0.171.0")
        for one, other in (
            ("02_shell-fail.jsonl", "05_resume.jsonl"),
            ("07_kill9.jsonl", "07b_kill9-resume.jsonl"),
        )
    ],
)
def test_a_longer_snapshot_adds_to_what_a_shorter_one_gave(shorter: str, longer: str) -> None:
    files = {file.file: file for file in SESSIONS}
    before, _ = read(files[shorter])
    after, _ = read(files[longer])
    assert len(after) == len(before) + 1
    assert after[: len(before) - 1] == before[:-1]
    last, same = before[-1], after[len(before) - 1]
    assert isinstance(last, Turn)
    assert isinstance(same, Turn)
    assert (same.source_id, same.inputs, same.pieces, same.outcome) == (
        last.source_id,
        last.inputs,
        last.pieces,
        last.outcome,
    )


@pytest.mark.parametrize("file", SESSIONS, ids=lambda file: file.file)
def test_what_any_beginning_of_a_session_gives_is_the_beginning_of_what_all_of_it_gives(file: Told) -> None:
    """But for what is still open: the last turn, and what the header learns from the first one."""
    lines = list(FileSource(file.path))
    whole, _ = read(file)
    for end in range(1, len(lines)):
        pieces = list(normalise(lines[:end], Counts(), companions=NoCompanions(file.file)))
        settled = [piece for piece in pieces if not isinstance(piece, Header) and not getattr(piece, "is_open", False)]
        assert settled == [piece for piece in whole if not isinstance(piece, Header)][: len(settled)]


def test_a_fork_by_copy_tells_how_many_turns_are_its_parents() -> None:
    pieces, _ = read(_named("0.118.0_21_appserver-fork.jsonl"))
    header = pieces[0]
    assert isinstance(header, Header)
    assert header.parent is not None
    assert (header.parent.is_copied, header.shared_turns) == (True, 5)


@pytest.mark.parametrize(
    ("fork", "parent", "shared"),
    [
        ("0.171.0_09_fork.jsonl", "0.171.0_05_resume.jsonl", 2),
        ("0.171.0_21_appserver-fork.jsonl", "0.171.0_20_appserver-interrupt-compact-steer.jsonl", 5),
    ],
)
def test_a_fork_by_reference_finds_its_place_in_its_parent(fork: str, parent: str, shared: int) -> None:
    header = read(_named(fork))[0][0]
    assert isinstance(header, Header)
    assert header.parent is not None
    assert header.parent.through is not None
    assert (header.parent.is_copied, header.shared_turns) == (False, 0)
    through = int(header.parent.through)
    turns = turns_of(read(_named(parent))[0])
    assert len([turn for turn in turns if turn.first_ordinal is not None and turn.first_ordinal < through]) == shared


@pytest.mark.parametrize("version", ["0.118.0", "0.171.0"])
def test_a_child_is_named_by_the_call_that_began_it(version: str) -> None:
    spawn = calls_of(read(_named(f"{version}_22_subagent-parent.jsonl"))[0])[0]
    header = read(_named(f"{version}_23_subagent-child.jsonl"))[0][0]
    assert isinstance(header, Header)
    assert spawn.child == header.source_id


def test_tokens_are_counted_once() -> None:
    """The same script was played to each version, with the same tokens."""
    for version in ("0.36.0", "0.118.0", "0.171.0"):
        assert tokens_of(f"{version}_02_shell-fail.jsonl") == (3640, 120)
        assert tokens_of(f"{version}_05_resume.jsonl") == (6060, 200)
    for version in ("0.118.0", "0.171.0"):
        assert tokens_of(f"{version}_10_compaction.jsonl") == (12300, 180)


def tokens_of(name: str) -> tuple[int, int]:
    pieces, _ = read(_named(name))
    within = [piece for turn in turns_of(pieces) for piece in turn.pieces]
    counted = [piece.usage for piece in within if isinstance(piece, Step | Compaction) and piece.usage is not None]
    return sum(usage.input_tokens for usage in counted), sum(usage.output_tokens for usage in counted)


def test_a_report_counts_the_tokens_of_summaries_too() -> None:
    for version in ("0.118.0", "0.171.0"):
        report = FileReport("file")
        for piece in read(_named(f"{version}_10_compaction.jsonl"))[0]:
            report.take(piece)
        assert report.threads[0].tokens["input_tokens"] == 12300


def test_a_plan_is_there_as_each_call_wrote_it() -> None:
    turn = turns_of(read(_named("0.118.0_04_plan.jsonl"))[0])[0]
    plans = [[task.status for task in piece.tasks] for piece in turn.pieces if isinstance(piece, Plan)]
    assert plans == [["running", "pending"], ["succeeded", "succeeded"]]


def test_more_of_an_output_than_the_model_was_shown_is_kept() -> None:
    call = calls_of(read(_named("0.171.0_08_large-output.jsonl"))[0])[0]
    assert call.whole is not None
    assert len(call.whole.content) == 65536
    assert isinstance(call.result, str)
    assert len(call.result) < 65536


def test_a_file_that_a_patch_added_is_there_with_its_content() -> None:
    call = calls_of(read(_named("0.171.0_03_patch.jsonl"))[0])[0]
    [change] = call.changes
    assert change.path.endswith("/03_patch/notes.txt")
    assert change.after is not None and change.after.content == b"greeting changed\n"


def _named(name: str) -> Told:
    return next(file for file in SESSIONS if file.file == name)
