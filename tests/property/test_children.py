"""A parent, its child and its grandchild under every interleaving of their owners, two of each thread at once: records
that are late, owners that crash with events under way, views that lag behind. Pure: `decide` and the fold, no loop.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import Encoded, Record, encode
from schemas.config import Config
from schemas.events import (
    AnswerText,
    Event,
    InputWithdrawn,
    StepFinished,
    ThreadCreated,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
    service_event_id,
)
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.thread import Verdict, fold
from schemas.tools import Catalog
from services.runtime.deciding import children
from services.runtime.deciding.children import Origin, child_of
from services.runtime.deciding.decide import decide
from services.runtime.deciding.decisions import (
    Append,
    AppendTo,
    Calling,
    CallModel,
    ChildEnd,
    DropModelCall,
    ReadChild,
)
from services.runtime.deciding.own_tools import ENTRY
from tests.conftest import MACHINE_EXAMPLES
from tests.support.recorded.deciding import BUILTIN, LIMITS, world
from tests.support.recorded.histories import (
    KEY,
    RUNTIME,
    START_MS,
    USER,
    History,
    created,
    proposed,
    step_finished,
    submitted,
)

CHILD = child_of(KEY, Origin("1.1.0"))
GRANDCHILD = child_of(CHILD, Origin("1.1.0"))
FAMILY = (KEY, CHILD, GRANDCHILD)
CATALOG = Catalog({"builtin": BUILTIN, "runtime": ENTRY})
PATIENT = replace(LIMITS, deadline_grace_seconds=10**6, turn_seconds=10**9, client_tool_seconds=10**8)
"""A parent that waits for as long as its children take: then none outlives its parent's turn."""
SPAWN = proposed(0, "spawn_thread", {"task": "count"})
ROUNDS_MAX = 60
DECISIONS_MAX = 20


@dataclass
class Log:
    """Of one thread."""

    records: list[Record] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    states: list[ThreadState] = field(default_factory=lambda: [NOTHING])

    def add(self, record: Record) -> None:
        placed = record._replace(offset=len(self.records))
        state, verdict = fold(self.states[-1], placed)
        self.records.append(placed)
        self.verdicts.append(verdict)
        self.states.append(state)

    @property
    def state(self) -> ThreadState:
        return self.states[-1]

    def applied(self, event: type[Event]) -> list[Event]:
        pairs = zip(self.records, self.verdicts, strict=True)
        return [r.data for r, v in pairs if isinstance(r.data, event) and v.effect == "applied"]

    def answer(self, turn: int, step: int) -> str:
        """By the records, as a transcript has it."""
        for event in self.applied(StepFinished):
            assert isinstance(event, StepFinished)
            if (event.turn, event.step) == (turn, step):
                return "".join(item.text for item in event.items if isinstance(item, AnswerText))
        return ""

    def end(self, key: ThreadKey, upto: int) -> ChildEnd | None:
        """As views that know the first records say."""
        for place in range(min(upto, len(self.records))):
            before, after = self.states[place : place + 2]
            end = children.own_end(key, before, after, self.records[place], self.answer)
            if end is not None and self.verdicts[place].effect == "applied":
                return end
        return None


@dataclass
class Owner:
    """One of those that believe that they own the thread."""

    name: str
    key: ThreadKey
    read: int = 0
    pending: list[Record] = field(default_factory=list)
    calling: Calling | None = None
    taken_over: str | None = None
    is_met: bool = False
    ended: ChildEnd | None = None
    ends: dict[str, ChildEnd] = field(default_factory=dict)
    read_ms: int = 0
    sent: set[tuple[ThreadKey, str]] = field(default_factory=set)


class Family:
    """Its logs, its owners, and what is on its way to each log."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.logs = {key: Log() for key in FAMILY}
        self.owners = [Owner(name, key) for key in FAMILY for name in ("A", "B")]
        self.under_way: dict[tuple[str, ThreadKey, ThreadKey], deque[Record]] = {}
        self.views = dict.fromkeys(FAMILY, 0)
        self.lives = 0
        for event in (created(config=Config(model="m")), submitted("i1")):
            self.logs[KEY].add(self.make(KEY, event, USER).record)

    def make(self, key: ThreadKey, event: Event, actor: str = RUNTIME) -> Encoded:
        self.now_ms += 10
        event_id = service_event_id(key, event)
        return encode(key, event, source="runtime/x", actor=actor, time_ms=self.now_ms, event_id=event_id)

    def send(self, owner: Owner, key: ThreadKey, record: Record) -> None:
        self.under_way.setdefault((owner.name, owner.key, key), deque()).append(record)

    # Moves

    def deliver(self, choice: int) -> None:
        """Some of what is on its way from one owner to one log, in its order."""
        lines = [line for line in self.under_way.items() if line[1]]
        if lines:
            (_, _, key), line = lines[choice % len(lines)]
            for _ in range(1 + choice % 3):
                if line:
                    self.logs[key].add(line.popleft())

    def read(self, choice: int) -> None:
        owner = self.owners[choice % len(self.owners)]
        self.read_on(owner, 1 + choice // len(self.owners) % 4)

    def read_on(self, owner: Owner, records: int) -> None:
        log = self.logs[owner.key]
        for _ in range(records):
            if owner.read == len(log.records):
                return
            record, verdict = log.records[owner.read], log.verdicts[owner.read]
            before, after = log.states[owner.read : owner.read + 2]
            owner.read += 1
            if verdict.effect == "applied":
                owner.ended = children.own_end(owner.key, before, after, record, log.answer) or owner.ended
            if owner.pending and (owner.pending[0].id, owner.pending[0].data_hash) == (record.id, record.data_hash):
                del owner.pending[0]

    def act(self, choice: int) -> None:
        self.decide_of(self.owners[choice % len(self.owners)])

    def decide_of(self, owner: Owner, first: Event | None = None) -> None:
        if owner.read == 0:
            return
        self._meet(owner)
        state = self.logs[owner.key].states[owner.read]
        confirmed = state
        for record in owner.pending:
            state = fold(state, record).state
        events = [] if first is None else [first]
        for _ in range(DECISIONS_MAX):
            for event in events:
                record = self.make(owner.key, event).record
                after, verdict = fold(state, record)
                if verdict.effect != "applied":
                    assert event is first, (event, verdict)
                    continue
                state = after
                owner.pending.append(record)
                self.send(owner, owner.key, record)
                if event.kind == "turn.recovered":
                    owner.taken_over = None
            decisions = list(decide(owner.key, state, self.now_ms, self._world(owner, confirmed)))
            if any(isinstance(each, DropModelCall) for each in decisions):
                owner.calling = None
            owner.calling = next((each.calling for each in decisions if isinstance(each, CallModel)), owner.calling)
            events = [each.event for each in decisions if isinstance(each, Append)]
            if not events:
                break
        else:
            raise AssertionError("no rest")
        for each in decisions:
            if isinstance(each, AppendTo) and (each.key, service_event_id(each.key, each.event)) not in owner.sent:
                assert not owner.pending or isinstance(each.event, ToolCallFinished)
                owner.sent.add((each.key, service_event_id(each.key, each.event)))
                self.send(owner, each.key, self.make(each.key, each.event).record)
        for each in decisions:
            if isinstance(each, ReadChild):
                end = self.logs[each.key].end(each.key, self.views[each.key])
                owner.read_ms = self.now_ms
                if end is not None:
                    owner.ends[each.key.thread] = end
                    self.decide_of(owner)

    def _meet(self, owner: Owner) -> None:
        if not owner.is_met:
            owner.is_met = True
            turn = self.logs[owner.key].states[owner.read].turn
            is_open = turn is not None and turn.step is not None and turn.step.status == "open"
            owner.taken_over = turn.step.starts[-1] if is_open else None  # type: ignore[union-attr]  # open

    def _world(self, owner: Owner, confirmed: ThreadState) -> object:
        history = History(state=confirmed)
        return world(
            history,
            owner=owner.name,
            catalog=CATALOG,
            limits=PATIENT,
            is_ahead=bool(owner.pending),
            calling=owner.calling,
            taken_over=owner.taken_over,
            ended=owner.ended,
            children=owner.ends,
            children_read_ms=owner.read_ms,
        )

    def answer(self, choice: int) -> None:
        """A model, to one of those who asked it: with a child in each first step but the last generation's."""
        asking = [owner for owner in self.owners if owner.calling is not None]
        if not asking:
            return
        owner = asking[choice % len(asking)]
        calling, owner.calling = owner.calling, None
        state = self.logs[owner.key].states[owner.read]
        for record in owner.pending:
            state = fold(state, record).state
        if calling is None or state.turn is None or state.turn.step is None:
            return
        delegates = calling.step == 1 and owner.key != GRANDCHILD
        answer = step_finished(state, "" if delegates else f"42 by {owner.name}", [SPAWN] if delegates else [])
        told = {"turn": calling.turn, "step": calling.step, "attempt": calling.attempt, "started": calling.started}
        self.decide_of(owner, answer.model_copy(update=told))

    def crash(self, choice: int) -> None:
        """What was sent may still arrive; another one takes its place, and reads on where the views are."""
        place = choice % len(self.owners)
        self.lives += 1
        old = self.owners[place]
        self.owners[place] = Owner(f"{old.name[0]}{self.lives}", old.key, read=self.views[old.key])

    def lose(self, choice: int) -> None:
        """All that is on its way from an owner that is gone."""
        alive = {(owner.name, owner.key) for owner in self.owners}
        for (name, key, _), line in self.under_way.items():
            if (name, key) not in alive and choice % 2:
                line.clear()

    def outage(self, choice: int) -> None:
        """All owners of a thread are gone with what they had under way, and the views know the whole thread."""
        place = choice % len(FAMILY)
        self.look(place)
        for number in (2 * place, 2 * place + 1):
            self.crash(number)
        self.lose(1)

    def look(self, choice: int) -> None:
        key = FAMILY[choice % len(FAMILY)]
        self.views[key] = len(self.logs[key].records)

    def wait(self, choice: int) -> None:
        self.now_ms += 1_000 * (1 + choice % 20)

    def cancel(self, choice: int) -> None:
        if choice % 4 == 0:
            self.logs[KEY].add(self.make(KEY, TurnCancelRequested(turn=1, reason="user"), RUNTIME).record)

    # The end

    def settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            for line in list(self.under_way.items()):
                for record in line[1]:
                    self.logs[line[0][2]].add(record)
                line[1].clear()
            for key in FAMILY:
                self.views[key] = len(self.logs[key].records)
            self.wait(19)
            # From here each thread has one owner, as in the end it has.
            for owner in self.owners[::2]:
                self.read_on(owner, 10_000)
                owner.pending = []
                self.decide_of(owner)
            self.answer(0)
            self.owners[1::2] = [Owner("none", key) for key in FAMILY]
            if self.logs[KEY].state.turn is None and not self.logs[KEY].state.queue and not self._under_way():
                return
        raise AssertionError([log.state for log in self.logs.values()])

    def _under_way(self) -> bool:
        return any(self.under_way.values())

    def check(self) -> None:
        """At any time."""
        for key, log in self.logs.items():
            assert len(log.applied(ThreadCreated)) <= 1 and len(log.applied(TurnStarted)) <= 1, key
            assert len(log.applied(ToolCallFinished)) <= 1
            stops = [place for place, record in enumerate(log.records) if _is_stop(record)]
            for record, verdict in (
                zip(log.records[min(stops) :], log.verdicts[min(stops) :], strict=True) if stops else ()
            ):
                if verdict.effect == "applied":
                    assert not isinstance(record.data, TurnStarted), "it begins after it was stopped"
                    assert not isinstance(record.data, TurnEnded) or record.data.outcome == "aborted", "it goes on"
        for parent, born in ((KEY, CHILD), (CHILD, GRANDCHILD)):
            if self.logs[parent].state.last_turn == 1 and self.logs[parent].state.turn is None:
                assert self.logs[born].state.turn is None and not self.logs[born].state.queue, "it outlives its parent"


def _is_stop(record: Record) -> bool:
    data = record.data
    return isinstance(data, InputWithdrawn) or (isinstance(data, TurnCancelRequested) and data.reason == "parent")


MOVES: tuple[Callable[[Family, int], None], ...] = (
    *[Family.deliver] * 4,
    *[Family.read] * 4,
    *[Family.act] * 4,
    *[Family.answer] * 2,
    *[Family.crash] * 2,
    Family.lose,
    Family.outage,
    Family.look,
    Family.wait,
    Family.cancel,
)
WALKS = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 95)), max_size=80)


@settings(max_examples=MACHINE_EXAMPLES)
@given(st.integers(0, 12), WALKS)
def test_a_family_comes_to_its_end(rounds: int, walk: list[tuple[Callable[[Family, int], None], int]]) -> None:
    """`rounds` go well before the walk begins, so that it begins anywhere on the way."""
    family = Family()
    for turn in range(rounds):
        for move in (Family.act, Family.deliver, Family.read, Family.answer):
            for place in range(0, 6, 2):
                move(family, place + 12 * (turn % 3))
    for move, choice in walk:
        move(family, choice)
        family.check()
    family.settle()
    family.check()
    parent, child, grandchild = family.logs.values()
    [ended] = parent.applied(TurnEnded)
    assert isinstance(ended, TurnEnded)
    cancelled = parent.applied(TurnCancelRequested)
    assert ended.outcome == ("aborted" if cancelled else "completed")
    for above, below in ((parent, child), (child, grandchild)):
        for event in above.applied(ToolCallFinished):
            assert isinstance(event, ToolCallFinished)
            assert below.state.exists
            if below.state.last_outcome == "completed":
                assert event.outcome == "succeeded" and "42" in str(event.result)
            else:
                assert event.outcome == "cancelled" and (below.applied(TurnEnded) or below.applied(InputWithdrawn))
    if not cancelled:
        assert grandchild.state.last_outcome == "completed"
