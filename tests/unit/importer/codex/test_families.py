"""Forks and sub-agents of Codex, imported beside their parents: on a log and a store in memory."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from schemas.events import StepFinished
from schemas.ids import call_id
from tests.support.sessions.codex_records import Session
from tests.support.sessions.import_family import Family
from tests.support.worlds.imports import ThreadLog, ended_turns

REDUCED = Path(__file__).resolve().parents[3] / "support" / "sessions" / "codex"
PARENT = "0b111111-2222-4333-8444-555555555555"


def written(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join([json.dumps(record) + "\n" for record in records]))
    return path


async def test_a_fork_by_reference_waits_for_its_parent_and_then_shares_its_turns() -> None:
    family = Family()
    fork = REDUCED / "0.171_fork-by-reference.jsonl"
    for last_try in (False, True):
        outcome = await family.take(fork, last_try=last_try)
        assert (outcome.waits_for, outcome.threads) == ("01a22812-d584-7e83-9719-9c764c7c87ec", [])
    parent = family.log(await family.take(REDUCED / "0.171_interrupt-compact-steer.jsonl"))
    outcome = await family.take(fork)
    log = family.log(outcome)
    fifth = parent.known().turns[4]
    lineage = log.state.lineage
    assert lineage is not None
    assert (lineage.kind, lineage.parent, lineage.seq) == ("fork", parent.key.thread, fifth.end.seq)
    assert ended_turns(log) == [("completed", 2)]
    assert (await family.take(fork)).threads[0].appended == 0


async def test_a_sub_agent_is_the_child_of_the_call_that_began_it() -> None:
    family = Family()
    parent = family.log(await family.take(REDUCED / "0.171_subagent-parent.jsonl"))
    child = family.log(await family.take(REDUCED / "0.171_subagent-child.jsonl"))
    lineage = child.state.lineage
    assert lineage is not None
    assert (lineage.kind, lineage.parent, lineage.depth) == ("child", parent.key.thread, 1)
    assert lineage.call == call_id(1, 1, 0)


async def test_a_sub_agent_that_is_imported_later_is_the_child_of_its_call_too() -> None:
    family = Family()
    parent = family.log(await family.take(REDUCED / "0.171_subagent-parent.jsonl"))
    family.begin()
    lineage = family.log(await family.take(REDUCED / "0.171_subagent-child.jsonl")).state.lineage
    assert lineage is not None
    assert (lineage.parent, lineage.call) == (parent.key.thread, call_id(1, 1, 0))


async def test_a_sub_agent_waits_within_its_import_for_the_call_that_began_it(tmp_path: Path) -> None:
    """An earlier snapshot of its parent was imported before."""
    family, whole = Family(), REDUCED / "0.171_subagent-parent.jsonl"
    lines = whole.read_bytes().splitlines(keepends=True)
    spawns = next(number for number, line in enumerate(lines) if b"spawn_agent" in line)
    early = tmp_path / "early.jsonl"
    early.write_bytes(b"".join(lines[:spawns]))
    await family.take(early)
    child = REDUCED / "0.171_subagent-child.jsonl"
    assert (await family.take(child)).waits_for == "01a22812-e73a-7d20-a89b-7dcbf053a27e"
    parent = family.log(await family.take(whole))
    lineage = family.log(await family.take(child)).state.lineage
    assert lineage is not None
    assert (lineage.parent, lineage.call) == (parent.key.thread, call_id(2, 1, 0)), "as the turn is told again"


async def test_a_sub_agent_without_a_call_is_a_child_all_the_same(tmp_path: Path) -> None:
    family, lines = Family(), (REDUCED / "0.171_subagent-parent.jsonl").read_bytes().splitlines(keepends=True)
    early = tmp_path / "early.jsonl"
    early.write_bytes(b"".join([line for line in lines if b"spawn_agent" not in line]))
    parent = family.log(await family.take(early))
    lineage = family.log(await family.take(REDUCED / "0.171_subagent-child.jsonl", last_try=True)).state.lineage
    assert lineage is not None
    assert (lineage.kind, lineage.parent, lineage.call) == ("child", parent.key.thread, None)


async def test_a_fork_by_reference_waits_for_as_much_of_its_parent_as_it_shares(tmp_path: Path) -> None:
    family, whole = Family(), REDUCED / "0.171_interrupt-compact-steer.jsonl"
    early = tmp_path / "early.jsonl"
    early.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:40]))
    await family.take(early)
    fork = REDUCED / "0.171_fork-by-reference.jsonl"
    family.begin()
    for last_try in (False, True):
        outcome = await family.take(fork, last_try=last_try)
        assert (outcome.waits_for, outcome.threads) == ("01a22812-d584-7e83-9719-9c764c7c87ec", [])
    parent = family.log(await family.take(whole))
    family.begin()
    lineage = family.log(await family.take(fork)).state.lineage
    assert lineage is not None
    assert lineage.seq == parent.known().turns[4].end.seq


async def test_tokens_of_a_copy_count_in_its_parent_whichever_comes_first(tmp_path: Path) -> None:
    parent = Session(id=PARENT)
    for number, prompt in enumerate(["One.", "Two."], start=1):
        a_conversation(parent, prompt).tokens(10 * number, 10)
    fork = Session().add("session_meta", parent.records[0]["payload"])
    fork.records += [{**record, "timestamp": fork.records[1]["timestamp"]} for record in parent.records[1:]]
    a_conversation(fork, "Three, in the fork.").tokens(30, 10)
    a_conversation(parent, "Three, in the parent.").tokens(30, 10)
    family = Family()
    whole = family.log(await family.take(written(tmp_path / "b.jsonl", fork.records), last_try=True))
    above = family.log(await family.take(written(tmp_path / "a.jsonl", parent.records)))
    assert whole.state.lineage is None
    assert ended_turns(whole) == [("completed", 1)] * 3
    assert (used(above), used(whole)) == ([10, 10, 10], [0, 0, 10])


def used(log: ThreadLog) -> list[int]:
    applied = [record.data for record, verdict, _ in log.records if verdict.effect == "applied"]
    return [data.usage.input_tokens for data in applied if isinstance(data, StepFinished)]


def a_conversation(session: Session, *prompts: str) -> Session:
    for prompt in prompts:
        session.prompt(prompt).answer(f"Answer to {prompt}")
    return session


async def test_a_fork_by_copy_without_ids_shares_what_it_copied_and_no_more(tmp_path: Path) -> None:
    """The parent went on in the place in which the fork did."""
    parent = a_conversation(Session(id=PARENT), "One.", "Two.", "Three, in the parent.")
    fork = Session().add("session_meta", parent.records[0]["payload"])
    fork.records += [{**record, "timestamp": fork.records[1]["timestamp"]} for record in parent.records[1:9]]
    a_conversation(fork, "Three, in the fork.")
    family = Family()
    above = family.log(await family.take(written(tmp_path / "a.jsonl", parent.records)))
    log = family.log(await family.take(written(tmp_path / "b.jsonl", fork.records)))
    lineage = log.state.lineage
    assert lineage is not None
    assert (lineage.parent, lineage.seq) == (above.key.thread, above.known().turns[1].end.seq)
    assert ended_turns(log) == [("completed", 1)]


async def test_a_fork_by_copy_without_its_parent_is_imported_whole() -> None:
    family = Family()
    fork = REDUCED / "0.118_fork-by-copy.jsonl"
    outcome = await family.take(fork)
    assert (outcome.waits_for, outcome.threads) == ("01a22812-ba1a-74d1-83fe-28a76b6fc065", [])
    log = family.log(await family.take(fork, last_try=True))
    assert log.state.lineage is None
    steps = [("completed", 2), ("completed", 2), ("completed", 1), ("aborted", 1), ("completed", 1), ("completed", 2)]
    assert ended_turns(log) == steps
