"""One file into the log: its threads in turn, each with what it shares found first, and looked at before it ends.

A file can be imported again at any time and adds what is missing: that is also how it goes on after a crash.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import JsonValue

from schemas.codec import Encoded
from schemas.config import Config
from schemas.errors import ThreadlogError
from schemas.events import Artifact, Lineage
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import ThreadState
from services.chassis.artifacts.store import ArtifactStore
from services.importer.model import Header, Parent
from services.importer.report import can_wait, note_without_parent
from services.importer.sessions import Reading
from services.importer.store import ImportStore
from services.importer.threads.events import EventLimits, Output
from services.importer.threads.known import Base, child_mark, thread_id
from services.importer.threads.thread_import import ORDINALS_END, File, Target, ThreadImport, can_take

TRIES_MAX = 3
"""How often a file is read again because somebody else changed its thread meanwhile."""
COPIES_MAX = 64
"""Forks of one session beside threads that continued live."""
DEPTH_MAX = 64
"""Forks of forks that are followed upwards."""
RECORDS_AT_ONCE = 256
"""Records of one append: enough to make its round trip cheap, few enough to hold little."""
BYTES_AT_ONCE = 512 * 1024
"""Bytes of one append, below the broker's limit on a batch."""
PIECES_PER_TURN_OF_THE_LOOP = 32
"""After so many pieces other tasks may run: a long file must not stop the heartbeats of its lease."""


class ChangedMeanwhileError(ThreadlogError):
    """The thread is not what the import has made of it, so it has to be looked at again."""

    retriable: ClassVar[bool] = True


class ParentMissingError(ThreadlogError):
    """The thread cannot be imported without its parent's turns, which its file does not hold."""

    def __init__(self, source_id: str, parent: Parent) -> None:
        super().__init__(note_without_parent(source_id, parent))
        self.parent = parent.source_id


@dataclass(frozen=True, slots=True)
class Imported:
    """This is the result for one thread of a file."""

    source_id: str
    thread: str
    created: bool
    appended: int
    """Number of events."""
    parent: str | None = None
    """The thread that it shares its first turns with, or works for."""
    not_fitting: dict[str, int] = field(default_factory=dict)
    """Kind → number of events that could not be made."""

    def to_json(self) -> dict[str, JsonValue]:
        fitting: dict[str, JsonValue] = dict(self.not_fitting)
        shown: dict[str, JsonValue] = {
            "source_id": self.source_id,
            "thread": self.thread,
            "created": self.created,
            "appended": self.appended,
            "parent": self.parent,
        }
        return shown | ({"not_fitting": fitting} if fitting else {})


@dataclass(slots=True)
class Outcome:
    """This is the result for one file."""

    threads: list[Imported] = field(default_factory=list)
    waits_for: str | None = None
    """The session without which this one cannot be imported. For a child it is the one that may tell its call."""


@dataclass(slots=True)
class Importer:
    """An importer takes the files of one job into the threads of one tenant."""

    tenant: TenantId
    store: ImportStore
    artifacts: ArtifactStore
    config: Config
    limits: EventLimits = field(default_factory=EventLimits)
    imported: list[str] = field(default_factory=list)
    """Sessions whose threads exist now."""
    ordinals: dict[ThreadKey, int] = field(default_factory=dict)
    """Thread → where the ordinals of the files that were read end."""

    async def run(self, read: Callable[[], Reading], raw: Artifact, *, last_try: bool) -> tuple[Reading, Outcome]:
        """Import one file and return its reading and outcome. With `last_try` a thread whose parent does not exist is
        imported without it, where that is possible. Raises what the store and the artifact store raise, and
        ChangedMeanwhileError.
        """
        for number in range(TRIES_MAX):
            reading = read()
            try:
                outcome = await self._run(reading, raw, last_try=last_try)
                self.imported.extend([thread.source_id for thread in outcome.threads])
                return reading, outcome
            except ChangedMeanwhileError:
                if number + 1 == TRIES_MAX:
                    raise
        raise AssertionError("the last try ends it")

    async def _run(self, reading: Reading, raw: Artifact, *, last_try: bool) -> Outcome:
        outcome = Outcome()
        work: _Work | None = None
        skips = False
        for number, piece in enumerate(reading.pieces(), start=1):
            if number % PIECES_PER_TURN_OF_THE_LOOP == 0:
                await asyncio.sleep(0)
            if isinstance(piece, Header):
                if work is not None:
                    outcome.threads.append(await work.end())
                work = None
                try:
                    work = await self._begin(piece, reading, raw, last_try=last_try)
                except ParentMissingError as missing:
                    outcome.waits_for = missing.parent
                    reading.report.notes.append(str(missing))
                skips = work is None
                if skips and not last_try:
                    return outcome
            elif work is not None:
                await work.take(work.thread.take(piece))
        if work is not None:
            outcome.threads.append(await work.end())
            key = work.thread.target.key
            self.ordinals[key] = max(self.ordinals.get(key, 0), reading.report.counts.ordinals_end)
        return outcome

    async def _begin(self, header: Header, reading: Reading, raw: Artifact, *, last_try: bool) -> "_Work":
        target = await self._target(header, reading, last_try=last_try)
        file = File(
            source=f"{header.tool}/{header.source_id}@{raw.sha256[:16]}",
            normaliser=reading.normaliser,
            raw=raw,
            report={
                "file": reading.report.file.rpartition("/")[2],
                "tool": header.tool,
                "tool_version": header.tool_version,
                "normaliser": reading.normaliser,
                "sha256": raw.sha256,
            },
        )
        return _Work(ThreadImport(header, target, file, self.limits), self.store, self.artifacts, reading)

    # Where a thread goes

    async def _target(self, header: Header, reading: Reading, *, last_try: bool) -> Target:
        """Return where a thread of the file goes: into its own thread; beside it as a fork, where that one continued
        live; below its parent, where it is a fork or a child. Raises ParentMissingError where it has to wait.
        """
        base, lineage, shared = None, None, None
        key = self._key(header, header.source_id)
        own = await self.store.known(key)
        if header.parent is not None:
            parent = self._key(header, header.parent.source_id)
            state = await self.store.state(parent)
            if not state.exists:
                if not last_try or can_wait(header.parent):
                    raise ParentMissingError(header.source_id, header.parent)
                reading.report.notes.append(note_without_parent(header.source_id, header.parent))
            elif header.parent.kind == "fork":
                base = await self._base(parent)
                shared = None if header.parent.is_copied else _shared(base, header)
                if not own.state.exists and _is_short(base, header.parent):
                    raise ParentMissingError(header.source_id, header.parent)
            elif not own.state.exists:
                may_come = not last_try and len(reading.report.threads) == 1
                lineage = await self._child(header, state, may_come=may_come)
        for copy in range(1, COPIES_MAX):
            if can_take(own.state):
                break
            base, shared = await self._base(key), None
            key = self._key(header, header.source_id, copy)
            own = await self.store.known(key)
        if base is not None and base.key != key and base.is_live:
            note = f"{header.source_id}: it has gone on live since it was imported; what is new becomes a fork of it"
            reading.report.notes.append(note)
        return Target(key, own, self.config, base, shared, lineage)

    def _key(self, header: Header, source_id: str, copy: int = 0) -> ThreadKey:
        return ThreadKey(self.tenant, ThreadId(thread_id(self.tenant, header.tool, source_id, copy)))

    async def _base(self, key: ThreadKey, depth: int = DEPTH_MAX) -> Base:
        """Return a thread's turns with those that it shares, for a fork of it."""
        known = await self.store.known(key)
        lineage = known.state.lineage
        own = tuple([(key, turn) for turn in known.turns])
        if lineage is not None and lineage.kind == "fork" and depth > 0:
            above = await self._base(ThreadKey(self.tenant, ThreadId(lineage.parent)), depth - 1)
            own = above.through(lineage) + own
        end = max(known.ordinals_end, self.ordinals.get(key, 0))
        return Base(key, own, lineage.depth if lineage is not None else 0, is_live=known.state.live, ordinals_end=end)

    async def _child(self, header: Header, parent: ThreadState, *, may_come: bool) -> Lineage:
        """Return the lineage of a child. With `may_come` its call may be told in a file that is imported later. The
        parent that is named may have given the work to another child or, if it continued live, in a fork beside it; so
        all copies are searched.
        """
        assert header.parent is not None
        threads = [self._key(header, header.parent.source_id)]
        for copy in range(1, COPIES_MAX):
            key = self._key(header, header.parent.source_id, copy)
            if not (await self.store.state(key)).exists:
                break
            threads.append(key)
        found = await self.store.call(threads, header.parent.call, child_mark(header.source_id))
        if found is not None:
            return Lineage(
                kind="child",
                parent=found.thread,
                seq=found.place.seq,
                chain=found.place.chain,
                call=found.call,
                depth=found.depth + 1,
            )
        if may_come:
            raise ParentMissingError(header.source_id, header.parent)
        depth = parent.lineage.depth if parent.lineage is not None else 0
        return Lineage(
            kind="child", parent=threads[0].thread, seq=parent.seq, chain=parent.chain, call=None, depth=depth + 1
        )


def _is_short(base: Base, parent: Parent) -> bool:
    """Return whether what was imported of the parent is an earlier snapshot that ends before the fork begins."""
    through = parent.through
    return not parent.is_copied and through is not None and through.isdecimal() and 0 < base.ordinals_end < int(through)


def _shared(base: Base, header: Header) -> int:
    """Return how many of the parent's turns a fork shares that names their end by an ordinal or by their number."""
    parent = header.parent
    assert parent is not None
    if parent.turns is not None:
        return min(parent.turns, len(base.turns))
    if parent.through is None or not parent.through.isdecimal():
        return len(base.turns)
    end = int(parent.through)
    return sum(turn.first_ordinal is not None and turn.first_ordinal < end for _, turn in base.turns)


@dataclass(slots=True)
class _Work:
    """One thread under way: its events and artifacts, stored and appended in batches. Artifacts are stored before the
    batch that names them is appended.
    """

    thread: ThreadImport
    store: ImportStore
    artifacts: ArtifactStore
    reading: Reading
    batch: list[Encoded] = field(default_factory=list)
    bytes: int = 0
    appended: int = 0

    async def take(self, outputs: Iterator[Output]) -> None:
        for output in outputs:
            if isinstance(output, Encoded):
                self.batch.append(output)
                self.bytes += len(output.value)
                if len(self.batch) >= RECORDS_AT_ONCE or self.bytes >= BYTES_AT_ONCE:
                    await self._flush()
            else:
                kept = output.artifact
                tenant = self.thread.target.key.tenant
                await self.artifacts.put(tenant, kept.sha256, output.blob.content, kept.media_type)

    async def end(self) -> Imported:
        """Append what is left, check that nobody else wrote to the thread, and only then append the end of the import:
        until then the thread is importing, nothing in it is decided, and a wrong result can still be mended.
        """
        work = self.thread
        await self.take(work.end())
        await self._flush()
        if self.appended:
            # While it is being imported nothing is decided; what did not come out as expected can still be mended.
            state = await self.store.state(work.target.key)
            if state.seq != work.ahead.state.seq or state.chain != work.ahead.state.chain:
                raise ChangedMeanwhileError(f"somebody else appended to {work.target.key}")
        work.file = replace(work.file, report={**work.file.report, **self._counts()})
        await self.take(work.ended())
        await self._flush()
        target, state = work.target, work.ahead.state
        lineage = state.lineage if self.appended else target.own.state.lineage
        exists = bool(self.appended) or target.own.state.exists
        shown = target.key if exists or target.base is None else target.base.key
        return Imported(
            work.header.source_id,
            shown.thread,
            bool(self.appended) and not target.own.state.exists,
            self.appended,
            lineage.parent if lineage is not None else None,
            dict(work.ahead.unfit.kinds),
        )

    def _counts(self) -> dict[str, JsonValue]:
        """Return what the end of the import reports of the file."""
        counts = self.reading.report.counts
        not_understood: dict[str, JsonValue] = dict(counts.not_understood)
        told: dict[str, JsonValue] = {"records": counts.records, "bad_lines": counts.bad_lines}
        if counts.ordinals_end:
            told[ORDINALS_END] = counts.ordinals_end
        return {**told, "not_understood": not_understood}

    async def _flush(self) -> None:
        if self.batch:
            batch, self.batch, self.bytes = self.batch, [], 0
            await self.store.append(self.thread.target.key, batch)
            self.appended += len(batch)
