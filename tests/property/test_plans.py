"""A plan under every interleaving of what its tasks come to, replanning, answers, cancels and owners who lag behind."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import Limits as OwnLimits
from schemas.events import (
    Event,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    Task,
    TaskUpdated,
    ThreadCloseRequested,
    ThreadConfigured,
)
from schemas.plan import is_busy, proposer
from schemas.state import ThreadState, is_active
from schemas.tools import Catalog
from services.runtime.deciding.decide import decide
from services.runtime.deciding.decisions import Append, AppendTo, CallModel, Decisions, LookAgain, ReadChild
from services.runtime.deciding.own_tools import ENTRY
from tests.conftest import MACHINE_EXAMPLES
from tests.support.recorded.deciding import BUILTIN, idle, with_calls, world
from tests.support.recorded.histories import (
    KEY,
    RUNTIME,
    USER,
    History,
    cancel_requested,
    proposed,
    step_finished,
    submitted,
)

PARALLEL = 2
ROUNDS_MAX = 80
CATALOG = Catalog({"builtin": BUILTIN, "runtime": ENTRY})
GRAPHS: tuple[dict[str, str], ...] = (
    {"a": ""},
    {"a": "", "b": "a", "c": "b"},
    {"a": "", "b": "", "c": "", "d": "a b c"},
    {"b": "", "a": "b", "e": ""},
    {"c": "", "d": ""},
)
STOPS = frozenset({"turn.cancel_requested"})
Mover = Callable[[History, int], None]


def tasks(graph: dict[str, str]) -> tuple[Task, ...]:
    return tuple(Task(id=name, title=name, depends_on=tuple(needed.split())) for name, needed in graph.items())


def rest(history: History) -> Decisions:
    """The owner decides until it waits for something. What it appends has to fit."""
    for _ in range(ROUNDS_MAX):
        decisions = decide(KEY, history.state, history.now_ms, world(history, catalog=CATALOG))
        appends = [decision for decision in decisions if isinstance(decision, Append)]
        if not appends:
            return decisions
        for append in appends:
            history.apply(append.event, append.actor)
    raise AssertionError(f"no rest: {decisions}")


def owner(history: History, _choice: int) -> None:
    rest(history)


def owner_behind(history: History, choice: int) -> None:
    """Another owner, who has not read the last records: what it decides ahead comes to something, or to nothing."""
    read = len(history.encoded) - choice % 5
    behind = History()
    for made in history.encoded[: max(read, 1)]:
        behind.add(made)
    sent: list[Append] = []
    for _ in range(1 + choice % 7):
        decisions = decide(KEY, behind.state, history.now_ms, world(behind, catalog=CATALOG, owner="B"))
        ahead = [decision for decision in decisions if isinstance(decision, Append)]
        for append in ahead:
            behind.append(append.event, append.actor)
        sent.extend(ahead)
    for append in sent:
        history.append(append.event, append.actor)


def child(history: History, choice: int) -> None:
    """A child's owner tells how it ended; another one may have told it before."""
    begun = [standing for standing in history.state.plan.tasks.values() if standing.child is not None]
    if not begun:
        return
    standing = begun[choice % len(begun)]
    status = ("succeeded", "failed", "cancelled")[choice % 3]
    version = standing.begun_in or 1
    told = TaskUpdated(plan_version=version, task=standing.task.id, status=status, child=standing.child, result="x")
    history.append(told, RUNTIME)


def person(history: History, choice: int) -> None:
    version = history.state.plan.last_version
    moves: list[Event] = [
        PlanProposed(plan_version=version + 1, tasks=tasks(GRAPHS[choice % len(GRAPHS)])),
        PlanApproved(plan_version=max(1, version - choice % 2), by=USER),
        PlanRejected(plan_version=max(1, version - choice % 2), by=USER, reason="no"),
        ThreadConfigured(patch={"plan_approval": "never" if choice % 2 else "always"}),
    ]
    history.append(moves[choice % len(moves)], USER)


def model(history: History, choice: int) -> None:
    """It answers with another plan, or with text."""
    turn = history.state.turn
    if turn is None:
        history.append(submitted(f"m{history.state.seq}"), USER)
    elif turn.step is not None and turn.step.status == "open":
        graph = {"tasks": [task.model_dump(mode="json", exclude_none=True) for task in tasks(GRAPHS[choice % 5])]}
        history.append(step_finished(history.state, calls=[proposed(0, "update_plan", graph)] * (choice % 3 > 0)))


def rare(history: History, choice: int) -> None:
    if choice % 4 == 0:
        history.append(cancel_requested(history.state) if history.state.turn is not None else submitted("i9"), USER)
    elif choice % 16 == 1:
        history.append(ThreadCloseRequested(), USER)
    else:
        history.now_ms += 20_000 * (choice % 3)


MOVERS: tuple[Mover, ...] = (owner, owner, owner, owner_behind, child, child, child, person, person, model, rare)
WALKS = st.lists(st.tuples(st.sampled_from(MOVERS), st.integers(0, 239)), max_size=30)


def begun(approval: str, of_call: bool) -> History:
    config = {"plan_approval": approval, "limits": OwnLimits(parallel_tasks=PARALLEL)}
    if not of_call:
        history = idle(**config)
        history.apply(PlanProposed(plan_version=1, tasks=tasks(GRAPHS[2])), USER)
        return history
    graph = {"tasks": [task.model_dump(mode="json", exclude_none=True) for task in tasks(GRAPHS[1])]}
    return with_calls(proposed(0, "update_plan", graph), **config)


@settings(max_examples=MACHINE_EXAMPLES)
@given(st.sampled_from(["never", "always"]), st.booleans(), WALKS)
def test_a_plan_comes_to_its_end(approval: str, of_call: bool, walk: list[tuple[Mover, int]]) -> None:
    history = begun(approval, of_call)
    for mover, choice in walk:
        mover(history, choice)
        check(history.state)
    for _ in range(ROUNDS_MAX):
        decisions = rest(history)
        check_rest(history, decisions)
        if not goes_on(history):
            break
    state = history.state
    assert not is_busy(state.plan)
    assert state.plan.waiting is None
    assert state.turn is None
    assert not is_active(state)


def goes_on(history: History) -> bool:
    """Everybody does what is waited for, once. Whether anything was."""
    plan = history.state.plan
    if plan.waiting is not None:
        history.apply(PlanApproved(plan_version=plan.waiting, by=USER), USER)
        return True
    for name, standing in plan.tasks.items():
        if standing.status == "running":
            ended = TaskUpdated(
                plan_version=standing.begun_in or 0, task=name, status="succeeded", child=standing.child, result="ok"
            )
            history.apply(ended, RUNTIME)
            return True
    turn = history.state.turn
    if turn is not None and turn.step is not None:
        history.apply(step_finished(history.state, "done"))
        return True
    return False


def check(state: ThreadState) -> None:
    plan = state.plan
    assert state.status != "closed" or not is_busy(plan)
    running = [standing for standing in plan.tasks.values() if standing.status == "running"]
    assert len(running) <= PARALLEL
    for standing in running:
        assert standing.child is not None
        if standing.begun_in == plan.in_force:
            assert all(plan.tasks[needed].status == "succeeded" for needed in standing.task.depends_on)


def check_rest(history: History, decisions: Decisions) -> None:
    """Nobody is forgotten: what is unfinished is begun, waits for somebody, or is told to stop."""
    state, plan = history.state, history.state.plan
    begun_children = {decision.key.thread for decision in decisions if isinstance(decision, AppendTo)}
    running = {standing.child for standing in plan.tasks.values() if standing.status == "running"}
    assert running <= begun_children
    if running:
        assert any(isinstance(decision, LookAgain) for decision in decisions)
    pending = [standing for standing in plan.tasks.values() if standing.status == "pending"]
    assert not plan.recorded
    assert running or not pending
    call = proposer(plan, plan.in_force)
    is_cancelled = state.turn is None or state.turn.cancelling is not None
    if state.status == "closing" or (call is not None and is_cancelled):
        stopped = {each.key.thread for each in decisions if isinstance(each, AppendTo) and each.event.kind in STOPS}
        assert not pending
        assert running <= stopped
    for name, version in plan.proposals.items():
        standing_call = state.calls.get(name)
        if standing_call is not None and standing_call.status == "running":
            assert version == plan.waiting or (version == plan.in_force and is_busy(plan))
    open_step = state.turn is not None and state.turn.step is not None and state.turn.step.status == "open"
    assert open_step <= any(isinstance(decision, CallModel) for decision in decisions)
    assert all(isinstance(decision, AppendTo | LookAgain | ReadChild | CallModel) for decision in decisions), decisions
