"""Imports on a log in memory: what `services.importer` appends, folded, and read back as its store would."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.codec import Encoded, Record
from schemas.config import Config
from schemas.events import Artifact, Event, ThreadImportEnded, ThreadRewound, TurnEnded, TurnStarted, service_event_id
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.state import NOTHING, ThreadState, unknown_calls
from schemas.thread import Verdict, fold
from schemas.transcript import Transcript, transcript_changes
from services.importer.model import Header, Piece
from services.importer.threads.events import EventLimits, Output
from services.importer.threads.known import (
    Base,
    Known,
    Place,
    RecentRow,
    RewindRow,
    TurnRow,
    known_turns,
    recent_ids,
    thread_id,
)
from services.importer.threads.thread_import import File, Target, ThreadImport, can_take, last_turn_of, ordinals_end_of

TENANT = TenantId("acme")
RAW = Artifact(sha256="0" * 64, size=1, media_type="application/x-ndjson", name="s.jsonl")
CONFIG = Config(model="scripted")


@dataclass
class ThreadLog:
    """The records of one thread, and what they came to."""

    key: ThreadKey
    records: list[tuple[Record, Verdict, ThreadState]] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)

    @property
    def state(self) -> ThreadState:
        return self.records[-1][2] if self.records else NOTHING

    def append(self, record: Record) -> Verdict:
        after, verdict = fold(self.state, record._replace(offset=len(self.records)))
        self.records.append((record, verdict, after))
        return verdict

    def transcript(self) -> Transcript:
        transcript, before = Transcript(), NOTHING
        for record, verdict, after in self.records:
            transcript.apply(transcript_changes(before, after, record, verdict))
            before = after
        return transcript

    def known(self) -> Known:
        turns: dict[int, TurnRow] = {}
        rewinds, recent, last, ordinals_end = [], [], None, 0
        applied = [(record, after) for record, verdict, after in self.records if verdict.effect == "applied"]
        for record, after in applied:
            match record.data:
                case TurnStarted() as data:
                    turns[data.turn] = TurnRow(data.turn, data.inputs, after.seq, Place(), record.source)
                case ThreadRewound(to_turn=to_turn):
                    rewinds.append(RewindRow(after.seq, to_turn, record.source))
                case ThreadImportEnded() as data if after.seq == self.state.base:
                    last, ordinals_end = last_turn_of(data), ordinals_end_of(data)
                case _:
                    pass
            recent.append(RecentRow(after.seq, record.id, record.kind))
            if after.turn is not None:
                tokens = after.turn.input_tokens, after.turn.output_tokens
                turns[after.last_turn] = turns[after.last_turn]._replace(tokens=tokens)
            if after.turn is None and after.last_turn in turns and turns[after.last_turn].end.seq == 0:
                turns[after.last_turn] = turns[after.last_turn]._replace(end=Place(after.seq, after.chain))
        rows = list(turns.values())
        known = known_turns(rows, rewinds)
        return Known(self.state, known, recent_ids(rows, rewinds, recent), last, ordinals_end)


@dataclass
class ImportWorld:
    threads: dict[ThreadKey, ThreadLog] = field(default_factory=dict)
    limits: EventLimits = field(default_factory=EventLimits)

    def log(self, key: ThreadKey) -> ThreadLog:
        return self.threads.setdefault(key, ThreadLog(key))

    def key_of(self, header: Header, copy: int = 0) -> ThreadKey:
        return ThreadKey(TENANT, ThreadId(thread_id(TENANT, header.tool, header.source_id, copy)))

    def base(self, key: ThreadKey) -> Base:
        known = self.log(key).known()
        lineage, own = known.state.lineage, tuple([(key, turn) for turn in known.turns])
        if lineage is not None:
            own = self.base(ThreadKey(TENANT, ThreadId(lineage.parent))).through(lineage) + own
        return Base(key, own, is_live=known.state.live)

    def target(self, header: Header) -> Target:
        base: Base | None = None
        if header.parent is not None and header.parent.kind == "fork":
            parent = ThreadKey(TENANT, ThreadId(thread_id(TENANT, header.tool, header.parent.source_id)))
            base = self.base(parent) if self.log(parent).state.exists else None
        copy = 0
        while not can_take(self.log(self.key_of(header, copy)).state):
            base = self.base(self.key_of(header, copy))
            copy += 1
        key = self.key_of(header, copy)
        return Target(key, self.log(key).known(), CONFIG, base)

    def begin(self, pieces: Sequence[Piece], name: str = "a") -> tuple[ThreadImport, Iterable[Output]]:
        header = pieces[0]
        assert isinstance(header, Header)
        file = File(f"codex/{header.source_id}@{name}", "codex.1", RAW, {"file": name})
        work = ThreadImport(header, self.target(header), file, self.limits)

        def outputs() -> Iterable[Output]:
            for piece in pieces[1:]:
                yield from work.take(piece)
            yield from work.end()
            yield from work.ended()

        return work, outputs()

    def run(self, pieces: Sequence[Piece], name: str = "a", stop_after: int | None = None) -> ThreadLog:
        """Import the pieces, or so much of what has to be appended. Everything that is appended takes effect."""
        work, outputs = self.begin(pieces, name)
        log = self.log(work.target.key)
        before = len(log.records)
        for count, output in enumerate(outputs):
            if stop_after is not None and count >= stop_after:
                return log
            if isinstance(output, Encoded):
                verdict = log.append(output.record)
                assert verdict.effect == "applied", (output.record, verdict)
            else:
                log.stored.append(output.artifact.sha256)
        assert not work.ahead.unfit.kinds, work.ahead.unfit.kinds
        assert len(log.records) == before or work.ahead.state.seq == log.state.seq
        return log

    def live(self, log: ThreadLog, *events: Event) -> None:
        for event in events:
            self.append(log, event, "user:alice")

    def append(self, log: ThreadLog, event: Event, actor: str = "service:runtime") -> Verdict:
        from schemas.codec import encode

        event_id = derive("test", str(len(log.records)), event.kind) if actor.startswith("user:") else None
        encoded = encode(log.key, event, source="test", actor=actor, time_ms=1, event_id=event_id)
        return log.append(encoded.record)


def shown(log: ThreadLog) -> list[tuple[str, object]]:
    """What the context of the thread holds, without numbers that depend on how it came about."""
    items: list[tuple[str, object]] = []
    for item in log.transcript().context():
        content = {name: value for name, value in item.content.items() if name not in {"call", "through_seq", "state"}}
        items.append((item.kind, content))
    return items


def ended_turns(log: ThreadLog) -> list[object]:
    """Outcome and number of steps of the turns that are not replaced, in order."""
    kept = {turn.turn for turn in log.known().turns}
    return [
        (record.data.outcome, steps_of(log, record.data.turn))
        for record, verdict, _ in log.records
        if isinstance(record.data, TurnEnded) and verdict.effect == "applied" and record.data.turn in kept
    ]


def steps_of(log: ThreadLog, turn: int) -> int:
    return sum(
        record.kind == "step.finished" and getattr(record.data, "turn", 0) == turn and verdict.effect == "applied"
        for record, verdict, _ in log.records
    )


def unknown(log: ThreadLog) -> int:
    return len(unknown_calls(log.state))


__all__ = ["CONFIG", "TENANT", "ImportWorld", "ThreadLog", "ended_turns", "service_event_id", "shown", "unknown"]
