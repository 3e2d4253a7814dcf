"""Forks and sub-agents of Codex, imported beside their parents: on a log and a store in memory."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from schemas.codec import Encoded
from schemas.events import Artifact, StepFinished
from schemas.ids import ThreadKey, call_id
from schemas.state import ThreadState
from services.importer.import_file import Importer, Outcome
from services.importer.known import Known, Place
from services.importer.sessions import ReadLimits, reading, scan
from services.importer.store import FoundCall
from services.importer.walk import find_files
from tests.support.import_world import CONFIG, TENANT, ImportWorld, ThreadLog, ended_turns
from tests.support.memory_artifacts import MemoryArtifacts
from tests.support.sessions.codex_records import Session

REDUCED = Path(__file__).resolve().parents[2] / "support" / "sessions" / "codex"
PARENT = "0b111111-2222-4333-8444-555555555555"


@dataclass
class Store:
    world: ImportWorld = field(default_factory=ImportWorld)

    async def state(self, key: ThreadKey) -> ThreadState:
        return self.world.log(key).state

    async def known(self, key: ThreadKey) -> Known:
        return self.world.log(key).known()

    async def call(self, key: ThreadKey, source_id: str) -> FoundCall | None:
        for record, _, after in self.world.log(key).records:
            data = record.data
            for call in data.calls if isinstance(data, StepFinished) else ():
                if call.provider_id == source_id and isinstance(data, StepFinished):
                    return FoundCall(call_id(data.turn, data.step, call.index), Place(after.seq, after.chain))
        return None

    async def append(self, key: ThreadKey, records: Sequence[Encoded]) -> None:
        for record in records:
            verdict = self.world.log(key).append(record.record)
            assert verdict.effect == "applied", (record.record, verdict)


@dataclass
class Family:
    store: Store = field(default_factory=Store)
    importer: Importer = field(init=False)

    def __post_init__(self) -> None:
        self.importer = Importer(TENANT, self.store, MemoryArtifacts(), CONFIG)

    async def take(self, path: Path, *, last_try: bool = False) -> Outcome:
        found = scan(find_files([path], "codex"), "codex")
        _, outcome = await self.importer.run(
            lambda: reading(found.files[0], "codex", found, ReadLimits()), raw_of(path), last_try=last_try
        )
        return outcome

    def log(self, outcome: Outcome) -> ThreadLog:
        (thread,) = outcome.threads
        (log,) = [log for key, log in self.store.world.threads.items() if key.thread == thread.thread]
        return log


def raw_of(path: Path) -> Artifact:
    raw = path.read_bytes()
    return Artifact(sha256=sha256(raw).hexdigest(), size=len(raw), media_type="application/x-ndjson")


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
