"""Files of several sessions imported one by one: on a log and a store in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from schemas.codec import Encoded
from schemas.events import Artifact, StepFinished, ToolCallDispatched
from schemas.ids import ThreadKey, call_id
from schemas.state import ThreadState
from services.importer.import_file import Importer, Outcome
from services.importer.model import Tool
from services.importer.sessions import ReadLimits, reading, scan
from services.importer.source_files import find_files
from services.importer.store import FoundCall
from services.importer.threads.known import Known, Place
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.worlds.imports import CONFIG, TENANT, ImportWorld, ThreadLog


@dataclass
class Store:
    world: ImportWorld = field(default_factory=ImportWorld)

    async def state(self, key: ThreadKey) -> ThreadState:
        return self.world.log(key).state

    async def known(self, key: ThreadKey) -> Known:
        return self.world.log(key).known()

    async def call(self, threads: Sequence[ThreadKey], source_id: str | None, mark: str) -> FoundCall | None:
        family = list(threads)
        for key in family:
            found = _call_in(self.world.log(key), source_id, mark)
            if found is not None:
                return found
            family += [other for other, log in self.world.threads.items() if _works_for(log, key)]
        return None

    async def append(self, key: ThreadKey, records: Sequence[Encoded]) -> None:
        for record in records:
            verdict = self.world.log(key).append(record.record)
            assert verdict.effect == "applied", (record.record, verdict)


def _call_in(log: ThreadLog, source_id: str | None, mark: str) -> FoundCall | None:
    depth = log.state.lineage.depth if log.state.lineage is not None else 0
    marked = {
        record.data.call
        for record, _, _ in log.records
        if isinstance(record.data, ToolCallDispatched) and record.source.endswith(mark)
    }
    for record, _, after in reversed(log.records):
        data = record.data
        for call in data.calls if isinstance(data, StepFinished) else ():
            name = call_id(data.turn, data.step, call.index)
            if name in marked or (source_id is not None and call.provider_id == source_id):
                return FoundCall(log.key.thread, depth, name, Place(after.seq, after.chain))
    return None


def _works_for(log: ThreadLog, key: ThreadKey) -> bool:
    lineage = log.state.lineage
    return lineage is not None and lineage.kind == "child" and lineage.parent == key.thread


@dataclass
class Family:
    tool: Tool = "codex"
    store: Store = field(default_factory=Store)
    importer: Importer = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Another import, which knows nothing of those before but what they have appended."""
        self.importer = Importer(TENANT, self.store, MemoryArtifacts(), CONFIG)

    async def take(self, path: Path, *, last_try: bool = False) -> Outcome:
        found = scan(find_files([path], self.tool), self.tool)
        _, outcome = await self.importer.run(
            lambda: reading(found.files[0], self.tool, found, ReadLimits()), raw_of(path), last_try=last_try
        )
        return outcome

    def log(self, outcome: Outcome) -> ThreadLog:
        (thread,) = outcome.threads
        (log,) = [log for key, log in self.store.world.threads.items() if key.thread == thread.thread]
        return log


def raw_of(path: Path) -> Artifact:
    raw = path.read_bytes()
    return Artifact(sha256=sha256(raw).hexdigest(), size=len(raw), media_type="application/x-ndjson")
