"""The fold under fire: actors with stale views, late and repeated records, in any order.

Each machine is a thread's log to which some actors append. An actor decides on a state that the log had some records
ago; what it decides is appended at once, or kept and appended later, or twice. After every record all of `Checked`
must hold; at the end the log is folded again in other ways, and well-behaved services bring the thread to rest.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from schemas.codec import Encoded
from schemas.events import EffectClass
from schemas.state import CallStatus
from tests.conftest import MACHINE_EXAMPLES
from tests.property.checked import Checked
from tests.support.recorded import actors
from tests.support.recorded.actors import Move, Moves
from tests.support.recorded.histories import RUNTIME, USER, created, submitted

STEPS = 40
STALE_MAX = 8
AHEAD_MAX = 4
EFFECTS: st.SearchStrategy[EffectClass] = st.sampled_from(["unsafe", "idempotent", "pure", "reconcilable"])
STATUSES: st.SearchStrategy[CallStatus] = st.sampled_from(
    ["proposed", "waiting", "approved", "dispatched", "running", "repeatable", "unknown"]
)
REACHED_WITHIN = 16
PICK = st.integers(0, 47)
MIX = st.lists(st.booleans(), min_size=2, max_size=2 * AHEAD_MAX)


class Machine(RuleBasedStateMachine):
    ROLES: tuple[Moves, ...]

    def __init__(self) -> None:
        super().__init__()
        self.log = Checked()
        self.late: list[Encoded] = []
        self.inputs = 0

    def _move(self, role: int, pick: int, stale: int) -> Encoded | None:
        view = self.log.states[max(0, len(self.log.states) - 1 - stale)]
        moves = self.ROLES[role % len(self.ROLES)](view)
        return self.log.make(*moves[pick % len(moves)]) if moves else None

    @rule(role=st.integers(0, 7), pick=PICK, stale=st.integers(0, STALE_MAX))
    def act(self, role: int, pick: int, stale: int) -> None:
        made = self._move(role, pick, stale)
        if made is not None:
            self.log.add(made)

    @rule(role=st.integers(0, 7), pick=PICK)
    def decide_and_wait(self, role: int, pick: int) -> None:
        made = self._move(role, pick, 0)
        if made is not None:
            self.late.append(made)

    @rule(which=st.integers(0, 7))
    def append_late(self, which: int) -> None:
        if self.late:
            self.log.add(self.late.pop(which % len(self.late)))

    @rule(which=st.integers(0, 15))
    def append_again(self, which: int) -> None:
        if self.log.encoded:
            self.log.add(self.log.encoded[-1 - which % len(self.log.encoded)])

    @rule(role=st.integers(0, 7), picks=st.lists(PICK, min_size=2, max_size=AHEAD_MAX), stale=st.integers(0, 3))
    def decide_ahead(self, role: int, picks: list[int], stale: int) -> None:
        """A batch: each event decided on what its writer expects of the ones before."""
        ahead = self.log.fork_of(max(0, len(self.log.states) - 1 - stale))
        for pick in picks:
            moves = self.ROLES[role % len(self.ROLES)](ahead.state)
            if moves:
                ahead.append(*moves[pick % len(moves)])
        for made in ahead.encoded:
            self.log.add(made)

    @rule(counts=st.tuples(st.integers(1, AHEAD_MAX), st.integers(1, AHEAD_MAX)), stale=st.integers(0, 2), mix=MIX)
    def two_owners(self, counts: tuple[int, int], stale: int, mix: list[bool]) -> None:
        """Both believe that they own the thread and decide ahead; B has read less. Their batches mix in the log."""
        views = [len(self.log.states) - 1, max(0, len(self.log.states) - 1 - stale)]
        batches = [self._ahead(view, owner, count) for view, owner, count in zip(views, "AB", counts, strict=True)]
        for from_b in mix:
            batch = batches[from_b] or batches[not from_b]
            if batch:
                self.log.add(batch.pop(0))

    def _ahead(self, view: int, owner: str, count: int) -> list[Encoded]:
        ahead = self.log.fork_of(view)
        for _ in range(count):
            move = actors.next_move(ahead.state, steps_with_calls=1, owner=owner)
            if move is None or move.actor != RUNTIME:
                break
            ahead.append(*move)
        return ahead.encoded

    @rule(count=st.integers(1, 6), effect=EFFECTS)
    def go_on(self, count: int, effect: EffectClass) -> None:
        """What the well-behaved do, so that runs get somewhere."""
        for _ in range(count):
            move = actors.next_move(self.log.state, steps_with_calls=2, effect=effect)
            if move is not None:
                self.log.append(*move)

    @rule(status=STATUSES, effect=EFFECTS)
    def go_on_until(self, status: CallStatus, effect: EffectClass) -> None:
        """Until some call has the status: where records cross is where races are."""
        for _ in range(REACHED_WITHIN):
            statuses = [call.status for call in self.log.state.calls.values()]
            if status in statuses:
                return
            losing = actors.watcher(self.log.state) if status in {"unknown", "repeatable"} else []
            move = actors.next_move(self.log.state, steps_with_calls=2, effect=effect)
            if move is None:
                self.inputs += 1
                move = Move(submitted(f"r{self.inputs}"), USER)
            if self.log.append(*(losing[0] if losing and "running" in statuses else move)).effect != "applied":
                return

    def teardown(self) -> None:
        if not self.log.failed:
            self.log.check_in_other_ways()
            self.log.bring_to_rest()


class Races(Machine):
    """Two clients, two runtimes with different answers, two executors."""

    ROLES = (
        actors.client,
        actors.person,
        actors.watcher,
        actors.canceller,
        actors.runtime("A"),
        actors.runtime("B"),
        actors.executor("E1"),
        actors.executor("E2"),
    )

    @initialize()
    def begin(self) -> None:
        self.log.append(created(), USER)


class Imports(Machine):
    """A thread that importers, clients and a runtime write to, from nothing."""

    ROLES = (
        actors.importer,
        actors.importer,
        actors.client,
        actors.person,
        actors.canceller,
        actors.runtime("A"),
        actors.executor("E1"),
        actors.closer,
    )


class Contexts(Machine):
    """Rewinds, compactions, settings and plans between turns."""

    ROLES = (
        actors.owner_of_settings,
        actors.owner_of_settings,
        actors.runtime("A"),
        actors.runtime("B"),
        actors.client,
        actors.person,
        actors.canceller,
        actors.planner,
    )

    @initialize()
    def begin(self) -> None:
        self.log.append(created(), USER)


def _case(machine: type[Machine]) -> type:
    machine.TestCase.settings = settings(max_examples=MACHINE_EXAMPLES, stateful_step_count=STEPS)
    return machine.TestCase


TestRaces = _case(Races)
TestImports = _case(Imports)
TestContexts = _case(Contexts)
