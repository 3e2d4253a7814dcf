"""The pieces of a session as a thread's events, made by folding ahead.

Every event is folded as it is made, onto the state that the thread will then have, and what an event has to refer to
(the answer it follows, the claim it speaks of) is read from that state. So an import can be taken up anywhere: events
that the log has are passed over by their ids, and the next one fits onto what is there.

What a session does not tell is not made up: approvals are `unrecorded`, there is no claim of an executor, and the
context that the model was shown is not named. A call whose end nobody recorded is `lost`, and so unknown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pydantic import JsonValue

from schemas.codec import Encoded, encode
from schemas.config import Config
from schemas.errors import LimitError, UnstorableTextError
from schemas.events import (
    Artifact,
    ArtifactItem,
    ArtifactRecorded,
    Confirmed,
    ContentItem,
    Context,
    ContextCompacted,
    Event,
    InputSubmitted,
    Lineage,
    PlanApproved,
    PlanProposed,
    Task,
    TaskStatus,
    TaskUpdated,
    TextItem,
    ThreadCreated,
    ThreadDescribed,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
    ToolCallFinished,
    Usage,
    service_event_id,
)
from schemas.ids import EventId, ThreadKey, derive_service_event
from schemas.plan import MOVES
from schemas.state import ThreadState
from schemas.thread import fold
from schemas.transcript import context_hash
from services.chassis.sanitize import sanitize_text
from services.importer.model import (
    Blob,
    Compaction,
    Discarded,
    Header,
    Input,
    Origin,
    Plan,
    PlanTask,
    Rollback,
)
from services.importer.threads.cutting import Cutter
from services.importer.threads.known import IN_PLACE, NAME_CHARACTERS_MAX, again, input_id, plain

POOL = "import"
"""Pool of imported calls. No executor belongs to it, so nothing of them ever runs."""
UNRECORDED = "unrecorded"
"""Stands for a person or policy that the session does not name."""
LOST_INPUT = "[The session's file does not hold what began this turn.]"
NO_CONTEXT = Context(confirmed_seq=0, items=0, hash=context_hash([]))
"""What the model was shown is not recorded in a form that could be named."""
NO_TOOLS = ""
TITLE_CHARACTERS_MAX = 200
"""Titles from files are cut after so many."""
SHRINKING = (32_768, 4_096, 512)
"""Bytes of a text in an event that is too large for a record, tried in this order."""

Between: TypeAlias = Compaction | Plan | Rollback | Discarded
"""What lies between turns, or within one."""


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Limits on what an event contains."""

    text_bytes_max: int = 262_144
    """Longest text of an event in bytes; a longer one becomes an artifact, and shows head and tail."""
    result_bytes_max: int = 32_768
    """Longest result of a tool in its event, in bytes; a longer one shows head and tail."""
    record_bytes_max: int = 1_048_576


@dataclass(frozen=True, slots=True)
class Store:
    """These bytes have to be in the artifact store before the events that follow are appended."""

    blob: Blob
    artifact: Artifact


Output: TypeAlias = Encoded | Store


@dataclass(slots=True)
class Unfit:
    """A piece that fits nowhere is left out, and counted by kind."""

    kinds: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1


@dataclass(slots=True)
class Ahead:
    """This makes a thread's events. `state` is what the thread will be once all of `out` has taken effect."""

    key: ThreadKey
    header: Header
    normaliser: str
    """Part of the source of every event, such as `codex.3`."""
    state: ThreadState
    recent: frozenset[str]
    """Ids of events that the log has. They are not made again."""
    limits: EventLimits = EventLimits()
    out: list[Output] = field(default_factory=list)
    """What was made and not taken yet: records, and artifacts that have to be stored before them."""
    unfit: Unfit = field(default_factory=Unfit)
    last_ms: int = 0
    """Time of the last event that had one. Events without a time take it."""
    scope: int = 0
    """The session's last turn that the thread has. Pieces without a name of their own are counted from it."""
    marks: int = 0
    """How many such pieces came since then."""
    confirmed: Confirmed = field(init=False)
    """What was read of the thread. Others may append to it meanwhile, so nothing that is folded ahead is confirmed."""
    _session: str = field(init=False)
    """What the source of every event begins with."""

    def __post_init__(self) -> None:
        self.confirmed = Confirmed(seq=self.state.seq, chain=self.state.chain)
        self._session = f"importer/{self.normaliser}/{plain(self.header.source_id)}"

    # Emitting

    def take(self) -> Iterator[Output]:
        """Yield what was made since the last call."""
        made, self.out = self.out, []
        yield from made

    def has(self, event_id: EventId) -> bool:
        """Return whether the log has the event."""
        return event_id in self.recent

    def add(
        self, event: Event, origin: Origin, at_ms: int | None, event_id: EventId | None = None, more: str = ""
    ) -> bool:
        """Make the event if the log does not have it, and fold it. Return whether it is in the log, or will be."""
        event_id = event_id or service_event_id(self.key, event)
        if event_id in self.recent:
            return True
        if at_ms is not None and at_ms >= 0:
            self.last_ms = at_ms
        try:
            encoded = encode(
                self.key,
                event,
                source=self._source(origin, more),
                actor=f"import:{self.header.tool}",
                time_ms=self.last_ms,
                event_id=event_id,
                bytes_max=self.limits.record_bytes_max,
            )
        except UnstorableTextError:
            self.unfit.count(event.kind)
            return False
        folded = fold(self.state, encoded.record)
        if folded.verdict.effect != "applied":
            self.unfit.count(event.kind)
            return False
        self.state = folded.state
        self.out.append(encoded)
        return True

    def _source(self, origin: Origin, more: str) -> str:
        return f"{self._session}:{origin.line}{';inferred' if origin.inferred is not None else ''}{more}"

    def _store(self, cutter: Cutter) -> None:
        self.out.extend([Store(blob, kept) for blob, kept in zip(cutter.blobs, cutter.artifacts, strict=True)])

    def add_fitting(self, make: Callable[[Cutter], Event], origin: Origin, at_ms: int | None) -> bool:
        """Add what `make` makes, with texts as long as a record allows. What it cut off is stored before, and is named
        by the event or by an event of its own.
        """
        for text_bytes_max in (self.limits.text_bytes_max, *SHRINKING):
            cutter = Cutter(text_bytes_max)
            event = make(cutter)
            event_id = service_event_id(self.key, event)
            if event_id in self.recent:
                return True
            mark = len(self.out)
            if cutter.blobs:
                self._store(cutter)
                self._name_artifacts(event, cutter, origin)
            try:
                if self.add(event, origin, at_ms, event_id):
                    return True
            except LimitError:
                del self.out[mark:]
                continue
            del self.out[mark:]
            return False
        self.unfit.count(f"{event.kind} too large")
        return False

    def _name_artifacts(self, event: Event, cutter: Cutter, origin: Origin) -> None:
        """Record the artifacts before the event that speaks of them, where that event has no place for them: what no
        event names is collected.
        """
        if isinstance(event, ToolCallFinished | InputSubmitted):
            return
        for kept in cutter.artifacts:
            self.record_artifact(kept, origin)

    def record_artifact(self, artifact: Artifact, origin: Origin) -> None:
        name = artifact.name
        self.add(
            ArtifactRecorded(
                sha256=artifact.sha256,
                size=artifact.size,
                media_type=artifact.media_type,
                name=sanitize_text(name)[:NAME_CHARACTERS_MAX] if name is not None else None,
            ),
            origin,
            None,
        )

    # The thread

    def create(self, config: Config, lineage: Lineage | None, title: str | None) -> None:
        header = self.header
        at_ms = header.created_ms or 0
        event = ThreadCreated(
            config=config,
            title=shown_title(title) if title else None,
            labels=labels_of(header),
            lineage=lineage,
            importing=True,
        )
        self.add(event, header.origin, at_ms)

    def begin(self, source: str, report: dict[str, JsonValue]) -> None:
        event = ThreadImportStarted(source=source, report=report)
        self.add(event, self.header.origin, None, self._id_of_import(event))

    def end(self, source: str, report: dict[str, JsonValue], origin: Origin) -> None:
        event = ThreadImportEnded(source=source, report=report)
        self.add(event, origin, None, self._id_of_import(event))

    def _id_of_import(self, event: ThreadImportStarted | ThreadImportEnded) -> EventId:
        """Return an id for this import only: an import of the same file may return after another one."""
        return derive_service_event(self.key, event.kind, event.source, self.state.seq)

    def describe(self, title: str, origin: Origin) -> None:
        shown = shown_title(title)
        if shown and shown != self.state.title:
            event = ThreadDescribed(title=shown)
            self.add(event, origin, None, derive_service_event(self.key, event.kind, self.state.seq))

    def rewind(self, to_turn: int, origin: Origin, at_ms: int | None, in_place: int | None = None) -> None:
        """Take the turns after `to_turn` out of the context. `in_place` is the first of the turns that the following
        ones tell again.
        """
        event = ThreadRewound(to_turn=to_turn)
        if in_place is None:
            self.add(event, origin, at_ms, self._mark(event.kind))
            return
        # A turn is put aside once, but many may be told in turn after the same one.
        event_id = derive_service_event(self.key, event.kind, "in place", in_place)
        self.add(event, origin, at_ms, event_id, f"{IN_PLACE}{in_place}")

    def _mark(self, kind: str) -> EventId:
        """Return an id for something that has no name of its own: its number since the last turn, or within the open
        one.
        """
        self.marks += 1
        return derive_service_event(self.key, kind, self.scope, self.state.turn is not None, self.marks)

    def enter(self, turn: int) -> None:
        """Count what has no name from this turn on."""
        self.scope, self.marks = turn, 0

    # Between turns

    def between(self, piece: Between) -> None:
        """Make the events of a piece that lies between turns or within one."""
        match piece:
            case Compaction():
                self._compact(piece)
            case Plan():
                self._plan(piece)
            case Discarded():
                self.submit(piece.input, "queue")
            case Rollback():
                raise TypeError("the turns that a rollback takes back are known to whoever keeps their order")

    def _compact(self, piece: Compaction) -> None:
        mark = self._mark(ContextCompacted.kind)
        if self.has(mark):
            return
        cutter = Cutter(self.limits.text_bytes_max)
        summary = cutter.cut(sanitize_text(piece.summary))
        self._store(cutter)
        for kept in cutter.artifacts:
            self.record_artifact(kept, piece.origin)
        event = ContextCompacted(
            base=self.state.base, through_seq=self.state.seq, summary=summary, usage=piece.usage or Usage()
        )
        self.add(event, piece.origin, piece.at_ms, mark)

    def _plan(self, piece: Plan) -> None:
        """Propose the list as a version, unless the one in force has the same tasks, and move its tasks to where the
        list says.
        """
        tasks = _distinct(piece.tasks)
        mark = self._mark(PlanProposed.kind)
        wanted = tuple([Task(id=task.id, title=task.title) for task in tasks])
        if not self.has(mark) and not self._is_in_force(wanted):
            version = self.state.plan.last_version + 1
            if not self.add(PlanProposed(plan_version=version, tasks=wanted), piece.origin, piece.at_ms, mark):
                return
        if self.state.plan.waiting is not None:
            event = PlanApproved(plan_version=self.state.plan.waiting, by=UNRECORDED)
            self.add(event, piece.origin, piece.at_ms)
        if self._is_in_force(wanted):
            for task in tasks:
                self._move(task, piece)

    def _is_in_force(self, wanted: tuple[Task, ...]) -> bool:
        plan = self.state.plan
        return plan.in_force is not None and tuple([state.task for state in plan.tasks.values()]) == wanted

    def _move(self, task: PlanTask, piece: Plan) -> None:
        version = self.state.plan.in_force
        there = self.state.plan.tasks.get(task.id)
        if there is None or version is None:
            return
        steps: tuple[TaskStatus, ...] = (task.status,)
        if task.status == "succeeded" and there.status == "pending":
            steps = ("running", "succeeded")
        for status in steps:
            now = self.state.plan.tasks[task.id].status
            if status in MOVES[now]:
                self.add(TaskUpdated(plan_version=version, task=task.id, status=status), piece.origin, piece.at_ms)

    def submit(self, sent: Input, mode: Literal["queue", "steer"], name: str | None = None) -> str | None:
        """Submit an input. Return the id under which it waits, or None where it could not be submitted."""
        name = name or self.name_for(input_id(self.header.tool, sent.source_id))

        def make(cutter: Cutter) -> Event:
            return InputSubmitted(input=name, items=self._content(sent, cutter), mode=mode)

        return name if self.add_fitting(make, sent.origin, sent.at_ms) else None

    def _content(self, sent: Input, cutter: Cutter) -> tuple[ContentItem, ...]:
        items: list[ContentItem] = []
        for item in sent.items:
            if isinstance(item, TextItem):
                items.append(TextItem(text=cutter.cut(sanitize_text(item.text))))
            else:
                items.append(item)
        for blob in sent.blobs:
            kept = cutter.keep(blob)
            items.append(
                ArtifactItem(sha256=kept.sha256, size=kept.size, media_type=kept.media_type, name=_name_of(blob))
            )
        return tuple(items)

    def name_for(self, name: str) -> str:
        """Return the id of an input: another one than before where it is told again."""
        state = self.state
        if name not in state.inputs or any(item.input == name for item in state.queue):
            return name
        if derive_service_event(self.key, InputSubmitted.kind, name) in self.recent:
            return name
        return again(name, state.turn.turn if state.turn is not None else state.last_turn + 1)


def _name_of(blob: Blob) -> str | None:
    return sanitize_text(blob.name)[:NAME_CHARACTERS_MAX] if blob.name is not None else None


def _distinct(tasks: tuple[PlanTask, ...]) -> list[PlanTask]:
    found: dict[str, PlanTask] = {}
    for task in tasks:
        name = sanitize_text(task.id)[:NAME_CHARACTERS_MAX] or "task"
        found[name] = replace(task, id=name, title=sanitize_text(task.title))
    return list(found.values())


def shown_title(title: str) -> str:
    return " ".join(sanitize_text(title).split())[:TITLE_CHARACTERS_MAX]


def labels_of(header: Header) -> dict[str, str]:
    labels = {"imported-from": header.tool, "session": sanitize_text(header.source_id)[:NAME_CHARACTERS_MAX]}
    if header.cwd:
        labels["cwd"] = sanitize_text(header.cwd)[:NAME_CHARACTERS_MAX]
    return labels
