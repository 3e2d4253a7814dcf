"""What came of it, from the log itself: folded from offset 0, held against the ledger and what clients were told."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.codec import Record, Unreadable, decode
from schemas.events import ToolCallDispatched, ToolCallResolved, TurnEnded
from schemas.ids import ThreadKey, idempotency_key
from schemas.state import NOTHING, ThreadState, is_active, unknown_calls
from schemas.thread import USER_PREFIX, Verdict, fold
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import TopicPartition
from tests.chaos.followers import Followed
from tests.chaos.ledger import CLASSES, PREFIX
from tests.chaos.load import Acknowledged

POLL_MS = 200
CERTAINLY_NOT = frozenset({"failed", "cancelled", "not_started", "denied", "expired", "timed_out", "abandoned"})
STORY_RECORDS_MAX = 200
DATA_CHARACTERS_MAX = 230


@dataclass(slots=True)
class Told:
    """One record, and what the fold made of it."""

    record: Record
    seq: int
    verdict: Verdict


@dataclass(slots=True)
class CallStory:
    effect: str
    executed: int = 0
    """Effects in the ledger."""
    agains: int = 0
    """How often a person had it run again."""
    attempts: int = 0
    was_unknown: bool = False
    denied_by_service: bool = False
    """An executor asked the downstream and says that it did not happen."""
    outcome: str | None = None


@dataclass(slots=True)
class ThreadStory:
    key: ThreadKey
    partition: int
    state: ThreadState = field(default_factory=lambda: NOTHING)
    told: list[Told] = field(default_factory=list)
    submitted: Counter[str] = field(default_factory=Counter)
    """Times that a submission took effect, by input."""
    fates: dict[str, str] = field(default_factory=dict)
    """What took an input out of the queue."""
    turns_ended: Counter[int] = field(default_factory=Counter)
    calls: dict[str, CallStory] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        before = self.state
        self.state, verdict = fold(before, record)
        self.told.append(Told(record, self.state.seq, verdict))
        if verdict.effect != "applied":
            return
        data = record.data
        left = {item.input for item in before.queue} - {item.input for item in self.state.queue}
        for name in left:
            self.fates[name] = record.kind
        for item in self.state.queue[len(before.queue) - len(left) :]:
            self.submitted[item.input] += 1
        match data:
            case TurnEnded():
                self.turns_ended[data.turn] += 1
            case ToolCallDispatched():
                self.calls[data.call].attempts = data.attempt
            case ToolCallResolved() if record.actor.startswith(USER_PREFIX):
                self.calls[data.call].agains += data.decision == "again"
            case ToolCallResolved(decision="failed"):
                self.calls[data.call].denied_by_service = True
            case _:
                pass
        for call in self.state.calls.values():
            if call.tool.startswith(PREFIX):
                story = self.calls.setdefault(call.call, CallStory(call.tool.removeprefix(PREFIX)))
                story.was_unknown = story.was_unknown or call.status == "unknown"
                story.outcome = call.outcome

    @property
    def is_open(self) -> bool:
        """It has something left to do, or somebody has to do something for it."""
        return is_active(self.state) or bool(unknown_calls(self.state))


async def read_log(log: KafkaLog, partitions: int) -> tuple[dict[ThreadKey, ThreadStory], dict[int, list[str]]]:
    """Every thread's story, and by partition the ids of its records in their order."""
    tps = [TopicPartition(THREAD_EVENTS.name, number) for number in range(partitions)]
    ends = await log.end_offsets(tps)
    stories: dict[ThreadKey, ThreadStory] = {}
    ids: dict[int, dict[int, str]] = defaultdict(dict)
    reader = await log.reader(dict.fromkeys(tps, 0))
    try:
        while any(reader.position(tp) < ends[tp] for tp in tps):
            for tp, records in await reader.poll(POLL_MS):
                for raw in records:
                    record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
                    if isinstance(record, Unreadable):
                        continue
                    ids[tp.partition][raw.offset] = record.id
                    story = stories.setdefault(record.key, ThreadStory(record.key, tp.partition))
                    story.take(record)
    finally:
        await reader.close()
    return stories, {number: [by.get(at, "") for at in range(max(by) + 1)] for number, by in ids.items() if by}


@dataclass(slots=True)
class Judgement:
    """Counts, and for each that must be zero and is not, what is wrong with which thread."""

    inputs: dict[str, int]
    turns: dict[str, int]
    calls: dict[str, dict[str, int]]
    clients: dict[str, int]
    faulted: dict[ThreadKey, list[str]]
    outcomes: Mapping[str, int]


def judge(
    stories: Mapping[ThreadKey, ThreadStory],
    ids: Mapping[int, Sequence[str]],
    ledger: Mapping[str, int],
    acknowledged: Iterable[Acknowledged],
    followed: Iterable[Followed],
) -> Judgement:
    faulted: dict[ThreadKey, list[str]] = defaultdict(list)
    inputs = _judge_inputs(stories, ids, list(acknowledged), faulted)
    turns = _judge_turns(stories, faulted)
    calls = _judge_calls(stories, ledger, faulted)
    clients = _judge_clients(stories, list(followed), faulted)
    outcomes = Counter(
        str(told.record.data.outcome)
        for story in stories.values()
        for told in story.told
        if told.verdict.effect == "applied" and isinstance(told.record.data, TurnEnded)
    )
    return Judgement(inputs, turns, calls, clients, dict(faulted), outcomes)


def _judge_inputs(
    stories: Mapping[ThreadKey, ThreadStory],
    ids: Mapping[int, Sequence[str]],
    acknowledged: Sequence[Acknowledged],
    faulted: dict[ThreadKey, list[str]],
) -> dict[str, int]:
    lost = 0
    for note in acknowledged:
        problem = _what_is_lost(stories.get(note.key), ids, note)
        if problem is not None:
            lost += 1
            faulted[note.key].append(f"input {note.input} ({note.mode}) was acknowledged, but {problem}")
    return {"acknowledged": len(acknowledged), "lost": lost}


def _what_is_lost(story: ThreadStory | None, ids: Mapping[int, Sequence[str]], note: Acknowledged) -> str | None:
    partition = ids.get(note.partition, ())
    if note.offset >= len(partition) or partition[note.offset] != note.event_id:
        return f"its record is not at {note.partition}/{note.offset}"
    if story is None:
        return "there is no such thread"
    if note.is_undecided and not story.submitted[note.input]:
        return None
    if story.submitted[note.input] != 1:
        return f"it took effect {story.submitted[note.input]} times"
    is_queued = any(item.input == note.input for item in story.state.queue)
    if note.input not in story.fates and not is_queued:
        return "it left the queue without a trace"
    return None


def _judge_turns(stories: Mapping[ThreadKey, ThreadStory], faulted: dict[ThreadKey, list[str]]) -> dict[str, int]:
    ended = ended_twice = still_open = 0
    for story in stories.values():
        ended += len(story.turns_ended)
        twice = [turn for turn, times in story.turns_ended.items() if times > 1]
        ended_twice += len(twice)
        if twice:
            faulted[story.key].append(f"turns {twice} ended twice")
        if len(story.turns_ended) + (story.state.turn is not None) != story.state.last_turn:
            faulted[story.key].append(f"{story.state.last_turn} turns, of which {sorted(story.turns_ended)} ended")
            ended_twice += 1
        if story.is_open:
            still_open += 1
            faulted[story.key].append(f"still open: {_what_is_open(story.state)}")
    return {"ended": ended, "ended_twice": ended_twice, "open": still_open}


def _what_is_open(state: ThreadState) -> str:
    calls = [f"{call.call} {call.tool} {call.status}" for call in state.calls.values() if not call.settled]
    step = None if state.turn is None or state.turn.step is None else state.turn.step.status
    queue = [item.input for item in state.queue]
    turn = None if state.turn is None else f"{state.turn.turn} (cancelling: {state.turn.cancelling})"
    return f"{state.status}, turn {turn}, step {step}, calls {calls}, queue {queue}"


def _judge_calls(
    stories: Mapping[ThreadKey, ThreadStory], ledger: Mapping[str, int], faulted: dict[ThreadKey, list[str]]
) -> dict[str, dict[str, int]]:
    names = ("executed", "doubled", "unknown", "falsely_unknown", "falsely_certain")
    counted: dict[str, dict[str, int]] = {effect: dict.fromkeys(names, 0) for effect in CLASSES}
    for story in stories.values():
        for name, call in story.calls.items():
            effects = call.executed = ledger.get(idempotency_key(story.key, name), 0)
            count = counted[call.effect]
            count["executed"] += effects > 0
            count["unknown"] += call.was_unknown
            count["falsely_unknown"] += call.was_unknown and not effects
            if effects > 1 + call.agains:
                count["doubled"] += 1
                if call.effect != "pure":
                    faulted[story.key].append(f"call {name} ({call.effect}) has {effects} lines in the ledger")
            if _is_falsely_certain(call):
                count["falsely_certain"] += 1
                faulted[story.key].append(
                    f"call {name} ({call.effect}) is {call.outcome}, was {'' if call.was_unknown else 'never '}unknown, "
                    f"and has {effects} lines in the ledger"
                )
    return counted


def _is_falsely_certain(call: CallStory) -> bool:
    """The log says that it happened, and it did not; or that it did not, and it did. Of a pure call only the first can
    be wrong: that one of its attempts wrote something is what makes it no pure one, and nobody is told.
    """
    if call.outcome == "succeeded":
        return not call.executed
    is_certain = not call.was_unknown or call.denied_by_service
    return call.outcome in CERTAINLY_NOT and is_certain and call.effect != "pure" and call.executed > 0


def _judge_clients(
    stories: Mapping[ThreadKey, ThreadStory], followed: Sequence[Followed], faulted: dict[ThreadKey, list[str]]
) -> dict[str, int]:
    """A record that differs from the log's at this seq counts as a gap: the one that is there was not seen."""
    gaps = repeats = 0
    for seen in followed:
        told = stories[seen.key].told if seen.key in stories else []
        missed = seen.gaps
        for at, (event_id, effect) in enumerate(zip(seen.ids, seen.effects, strict=True)):
            if event_id and (at >= len(told) or (told[at].record.id, told[at].verdict.effect) != (event_id, effect)):
                missed += 1
                faulted[seen.key].append(f"a client saw another record with seq {at + 1}: {event_id} {effect}")
        if len(seen.ids) < len(told):
            missed += 1
            faulted[seen.key].append(f"a client saw {len(seen.ids)} of {len(told)} records")
        gaps += missed
        repeats += seen.repeats
        if seen.gaps or seen.repeats:
            faulted[seen.key].append(f"a client saw {seen.gaps} gaps and {seen.repeats} repeats")
        if seen.refusals:
            faulted[seen.key].append(f"a client that followed was refused: {seen.refusals[:3]}")
    return {"gaps": gaps, "repeats": repeats}


def story_of(story: ThreadStory) -> list[str]:
    """Its last records as lines."""
    skipped = len(story.told) - STORY_RECORDS_MAX
    lines = [f"  … {skipped} records before"] if skipped > 0 else []
    for told in story.told[-STORY_RECORDS_MAX:]:
        record = told.record
        verdict = told.verdict.effect + (f" ({told.verdict.reason})" if told.verdict.reason else "")
        data = "" if record.data is None else record.data.model_dump_json(exclude_none=True)[:DATA_CHARACTERS_MAX]
        lines.append(
            f"  {told.seq:>4} @{record.offset:<5} {record.time_ms % 10_000_000} {record.source:<16} {record.kind:<28} "
            f"{verdict}  {data}"
        )
    return lines
