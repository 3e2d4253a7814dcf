"""What the runtime decides, on every state that can be reached."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import encode
from schemas.config import Config
from schemas.events import Confirmed, Context, ContextCompactionRequested, TurnRecovered
from schemas.plan import is_busy
from schemas.state import ThreadState, is_active
from schemas.thread import fold
from schemas.tools import Catalog, CatalogSource, ToolSpec
from services.runtime.deciding import children
from services.runtime.deciding.compaction import is_asked_for
from services.runtime.deciding.decide import decide
from services.runtime.deciding.decisions import (
    Append,
    Calling,
    CallModel,
    ChildEnd,
    Decisions,
    LoadTranscript,
    LookAgain,
    Summarising,
    SummaryTries,
    World,
)
from services.runtime.deciding.limits import Limits
from services.runtime.deciding.own_tools import ENTRY
from tests.conftest import MACHINE_EXAMPLES
from tests.support.recorded import actors
from tests.support.recorded.deciding import LIMITS as ALLOWED
from tests.support.recorded.histories import (
    IMPORTER,
    KEY,
    NO_HASH,
    RUNTIME,
    START_MS,
    USER,
    History,
    approved,
    created,
    dispatched,
    proposed,
    submitted,
    turn_started,
)

ROUNDS_MAX = 40
"""More than what any state of these tests needs: each call takes a handful of events, and each turn a few."""


def rarely(moves: actors.Moves) -> actors.Moves:
    """What would end most walks early."""
    return lambda state: moves(state) if state.seq % 7 == 6 else []


def well_behaved(state: ThreadState) -> list[actors.Move]:
    move = actors.next_move(state)
    return [] if move is None else [move]


def submitting(state: ThreadState) -> list[actors.Move]:
    modes = ("queue", "steer", "interrupt")
    return [actors.Move(submitted(f"m{state.seq}", mode), USER) for mode in modes] if state.exists else []


MOVERS = (
    *[well_behaved] * 4,
    *[submitting] * 2,
    *[actors.runtime("A"), actors.runtime("B")] * 2,
    *[actors.executor("E"), actors.executor("F")] * 2,
    actors.client,
    rarely(actors.owner_of_settings),
    rarely(actors.planner),
    rarely(actors.closer),
    rarely(actors.importer),
)
Beginning = Callable[[History], object]


def nothing(history: History) -> None:
    """Not even the thread."""


def importing(history: History) -> None:
    """In a turn that the importer has opened."""
    history.apply(created(importing=True), IMPORTER)
    history.apply(submitted("i1"), IMPORTER)
    history.apply(turn_started(history.state), IMPORTER)


SPAWN = proposed(0, "spawn_thread", {"task": "count"})


def with_running_spawn(history: History) -> None:
    history.with_calls(SPAWN)
    history.apply(approved(history.only_call, by="policy:never"))
    history.apply(dispatched(history.only_call, "idempotent", last=True, pool="thread"))


BEGINNINGS: tuple[Beginning, ...] = (
    nothing,
    importing,
    lambda history: None,
    History.in_step,
    lambda history: history.with_calls(proposed(0), proposed(1, "read"), proposed(2, "A")),
    History.with_approved_call,
    lambda history: history.with_dispatched_call("idempotent", pool="client"),
    lambda history: history.with_running_call("idempotent"),
    lambda history: history.with_running_call("pure", last=True),
    History.with_unknown_call,
    lambda history: history.with_calls(SPAWN, proposed(1, "read"), SPAWN.model_copy(update={"index": 2})),
    with_running_spawn,
)
WALKS = st.lists(st.tuples(st.integers(0, len(MOVERS) - 1), st.integers(0, 60)), max_size=40)
CONFIGS = st.builds(
    Config,
    model=st.just("scripted:test"),
    approval=st.sampled_from(["never", "always", "on_effect"]),
    on_recovery=st.sampled_from(["resume", "interrupt"]),
    on_unknown=st.sampled_from(["wait", "end"]),
    one_turn_per_input=st.booleans(),
    tools=st.sampled_from([None, (), ("shell",)]),
)
TOOLS = st.lists(
    st.builds(
        ToolSpec,
        name=st.sampled_from(["shell", "A", "read"]),
        effect=st.sampled_from(["pure", "idempotent", "reconcilable", "unsafe"]),
        parallel=st.booleans(),
        max_attempts=st.integers(1, 2),
        timeout_seconds=st.sampled_from([0.0001, 1.0, 60.0]),
    ),
    max_size=3,
)
ENDS = st.sampled_from([None, ChildEnd("succeeded", "42"), ChildEnd("cancelled", "no")])
LATER = st.sampled_from([0, 60_000, 1_000_000, 4_000_000, 100_000_000_000])
LIMITS = st.builds(
    replace,
    st.just(ALLOWED),
    steps_per_turn=st.integers(1, 3),
    parallel_calls=st.integers(1, 2),
    calls_per_step=st.integers(1, 2),
    context_tokens=st.sampled_from([0, 50]),
)


@settings(max_examples=MACHINE_EXAMPLES)
@given(st.sampled_from(BEGINNINGS), WALKS, CONFIGS, TOOLS, LIMITS, LATER, st.booleans(), st.booleans(), st.data())
def test_decide_comes_to_rest(
    beginning: Beginning,
    walk: list[tuple[int, int]],
    config: Config,
    tools: list[ToolSpec],
    limits: Limits,
    later_ms: int,
    is_cold: bool,
    is_taken_over: bool,
    data: st.DataObject,
) -> None:
    """What it appends applies on the state it was decided on, and it never goes on for ever. An active thread that
    rests waits for something.
    """
    state = _asked_for_a_summary(_walk(beginning, walk, config), data)
    pools = ("builtin", data.draw(st.sampled_from(["client", "other"])))
    sources = {
        pool: CatalogSource(source=pool, pool=pool, tools=tuple(tools[place::2])) for place, pool in enumerate(pools)
    }
    sources["runtime"] = ENTRY
    spawned = children.child_of(KEY, children.Origin("1.1.0")).thread
    step = state.turn.step if state.turn is not None else None
    calling: Calling | Summarising | None = None
    if step is not None and data.draw(st.booleans()):
        started = data.draw(st.sampled_from([*step.starts, NO_HASH]))
        calling = Calling(state.last_turn, step.step, step.attempt, started)
    elif data.draw(st.booleans()):
        calling = Summarising(data.draw(st.sampled_from([1, state.compaction_seq])), state.base, state.seq, 1)
    covered = data.draw(st.sampled_from([0, 3]))
    tries = SummaryTries(
        data.draw(st.sampled_from([0, state.compaction_seq])),
        data.draw(st.integers(0, 3)),
        data.draw(st.booleans()),
        START_MS + 50_000 + data.draw(LATER),
    )
    world = World(
        owner=data.draw(st.sampled_from(["A", "C"])),
        agent_version="1",
        catalog=Catalog(sources),
        limits=limits,
        confirmed=Confirmed(seq=state.seq, chain=state.chain),
        context=lambda: None if is_cold else Context(confirmed_seq=state.seq, items=0, hash=NO_HASH),
        arguments_problem=lambda tool, args, malformed: "no" if malformed else None,
        calling=calling,
        tries=tries,
        summed_up=lambda _: None if is_cold else covered,
        taken_over=step.starts[-1] if step is not None and is_taken_over else None,
        ended=data.draw(ENDS),
        children={spawned: end} if (end := data.draw(ENDS)) is not None else {},
        children_read_ms=data.draw(st.sampled_from([0, START_MS + 50_000])),
    )
    now_ms = START_MS + 50_000 + later_ms
    rested, decisions = _rest(state, now_ms, world)
    _check_waits(rested, now_ms, world, decisions)


def _walk(beginning: Beginning, walk: list[tuple[int, int]], config: Config) -> ThreadState:
    history = History()
    if beginning not in {nothing, importing}:
        history.apply(created(config=config), USER)
    beginning(history)
    for mover, choice in walk:
        moves = MOVERS[mover](history.state)
        if moves:
            history.append(*moves[choice % len(moves)])
    return history.state


def _asked_for_a_summary(state: ThreadState, data: st.DataObject) -> ThreadState:
    """Where that may be."""
    if not data.draw(st.booleans()):
        return state
    made = encode(KEY, ContextCompactionRequested(), source="ingest/i", actor=RUNTIME, time_ms=START_MS + 50_000)
    folded = fold(state, made.record)
    return folded.state if folded.verdict.effect == "applied" else state


def _rest(state: ThreadState, now_ms: int, world: World) -> tuple[ThreadState, Decisions]:
    for _ in range(ROUNDS_MAX):
        decisions = decide(KEY, state, now_ms, world)
        appends = [decision for decision in decisions if isinstance(decision, Append)]
        if not appends:
            return state, decisions
        for append in appends:
            record = encode(KEY, append.event, source="runtime/a", actor=append.actor, time_ms=now_ms).record
            state, verdict = fold(state, record)
            assert verdict.effect == "applied", (append, verdict)
            if isinstance(append.event, TurnRecovered):
                world = World(**{name: getattr(world, name) for name in World.__slots__} | {"taken_over": None})
    raise AssertionError(f"{ROUNDS_MAX} rounds without rest: {decisions}")


def _check_waits(state: ThreadState, now_ms: int, world: World, decisions: Decisions) -> None:
    looks = [decision.at_ms for decision in decisions if isinstance(decision, LookAgain)]
    assert all(at_ms > now_ms for at_ms in looks)
    assert len(looks) <= 1
    if is_asked_for(state):
        waits = isinstance(world.calling, Summarising) or any(isinstance(each, LoadTranscript) for each in decisions)
        assert waits or looks or any(isinstance(each, CallModel) for each in decisions), decisions
        return
    if state.status == "importing" or state.turn is None:
        assert not looks or is_busy(state.plan)
        assert not any(not item.held for item in state.queue) or state.status in {"importing", "closed"}
        return
    assert is_active(state)
    turn = state.turn
    is_waiting = looks or any(isinstance(decision, CallModel | LoadTranscript) for decision in decisions)
    assert is_waiting, decisions
    if turn.step is not None and turn.step.status == "open" and turn.cancelling is None:
        is_asked = isinstance(world.calling, Calling) and world.calling.started in turn.step.starts
        assert is_asked or any(isinstance(decision, CallModel | LoadTranscript) for decision in decisions)
