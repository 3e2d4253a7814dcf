"""What the normaliser of Codex makes of reduced copies of genuine sessions."""

from pathlib import Path

import pytest

from services.importer.lines import FileSource
from services.importer.model import Counts
from tests.support.sessions.codex_records import pieces_of
from tests.support.sessions.shown import shown

REDUCED = Path(__file__).resolve().parents[3] / "support" / "sessions" / "codex"

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
