"""What must hold after each run, by name."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from schemas.canonical import call_hash
from schemas.codec import Record
from schemas.events import (
    InputSubmitted,
    InputWithdrawn,
    StepStarted,
    ThreadCloseRequested,
    ToolCallApproved,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.thread import Verdict
from services.projector.verification.chains import Contexts
from services.runtime.deciding.own_tools import OWN_TOOLS
from tests.simulation.clients import Clients, Command, Watcher
from tests.simulation.contexts import inherited_by
from tests.simulation.model import SeededModel
from tests.simulation.processes import IngestProcess
from tests.simulation.world import CLIENT_TOOL, SimulationWorld
from tests.support.worlds.services import ExecutorProcess, Judged, RuntimeProcess


class Broken(NamedTuple):
    what: str
    thread: ThreadKey | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What there is to look at, once all rests."""

    world: SimulationWorld
    model: SeededModel
    clients: Clients
    watchers: list[Watcher]
    cut_off: set[str]
    """Owners of processes that were killed, stood still, or ended because the log refused them."""
    stood_still: set[str]
    collects: bool
    """Whether the artifact store was collected."""

    @property
    def threads(self) -> dict[ThreadKey, Judged]:
        return self.world.judged()

    def is_set_aside(self, key: ThreadKey) -> bool:
        """By the projector: the database refuses a record of it."""
        return any(self.world.is_refused(record.id) for record, _, _ in self.threads[key].records)


Check: TypeAlias = Callable[[Run], Iterator[Broken]]
CHECKS: dict[str, Check] = {}


def invariant(check: Check) -> Check:
    CHECKS[check.__name__.replace("_", " ")] = check
    return check


class ViolationError(AssertionError):
    def __init__(self, name: str, broken: Broken) -> None:
        super().__init__(f"{name}: {broken.what}")
        self.thread = broken.thread


def check_all(run: Run) -> None:
    """Raises ViolationError for the first that does not hold."""
    for name, check in CHECKS.items():
        for broken in check(run):
            raise ViolationError(name, broken)


# Inputs and commands


@invariant
def no_acknowledged_input_is_lost(run: Run) -> Iterator[Broken]:
    """In the log, applied at most once; one that applied leaves the queue exactly once, for a reason that its sender
    can have wanted.
    """
    for command in run.clients.commands:
        if command.thread is None or not command.path.endswith("/inputs"):
            continue
        for answer in command.answers:
            if answer.status not in {200, 202}:
                continue
            submitted = [
                verdict
                for record, verdict, _ in run.threads[command.thread].records
                if isinstance(record.data, InputSubmitted) and record.data.input == answer.body["input"]
            ]
            if not submitted:
                yield Broken(f"{command} was answered {answer.status} and is not in the log", command.thread)
            if sum(verdict.effect == "applied" for verdict in submitted) > 1:
                yield Broken(f"{command} was submitted twice", command.thread)
    for key, thread in run.threads.items():
        for event in thread.applied(InputSubmitted):
            yield from _leaves_once(key, thread, event)


def _leaves_once(key: ThreadKey, thread: Judged, event: InputSubmitted) -> Iterator[Broken]:
    left: list[str] = []
    before = NOTHING
    for record, _, state in thread.records:
        if _queues(before, event.input) and not _queues(state, event.input):
            left.append(_why_left(record, event))
        before = state
    if len(left) != 1 or not left[0]:
        yield Broken(f"input {event.input} ({event.mode}) left the queue {len(left)} times: {left}", key)


def _queues(state: ThreadState, input_id: str) -> bool:
    return any(item.input == input_id for item in state.queue)


def _why_left(record: Record, event: InputSubmitted) -> str:
    """Empty where nobody can have wanted it."""
    data = record.data
    if isinstance(data, TurnStarted | StepStarted):
        return "it is taken" if event.input in data.inputs else ""
    if isinstance(data, InputWithdrawn):
        return "it is withdrawn" if event.input == data.input else ""
    if isinstance(data, ThreadCloseRequested):
        return "the thread closes"
    if isinstance(data, TurnCancelRequested):
        return "its sender wants it discarded" if data.discard and event.mode == "steer" else ""
    if isinstance(data, TurnEnded):
        return "its turn is over" if event.expected_turn == data.turn else ""
    return ""


@invariant
def answers_are_true(run: Run) -> Iterator[Broken]:
    """What was acknowledged is in the log, and took the effect that was told; the same key gets the same answer."""
    for command in run.clients.commands:
        for answer in command.answers:
            for broken in _untrue(run, command, answer.status, answer.body):
                yield Broken(f"{command} was answered {answer.status} {answer.body}, but {broken}", command.thread)
        told = [
            answer.body["events"]
            for answer in command.answers
            # Once it is judged, a result that somebody else had posted before is answered by that one's record.
            if answer.status in {200, 202} and not (answer.body.get("undecided") and command.path.endswith("/result"))
        ]
        if len({tuple(event["id"] for event in events) for events in told}) > 1:
            yield Broken(f"{command} was answered in different ways: {told}", command.thread)
    for command, problem in run.clients.problems:
        yield Broken(f"{command}: {problem}", command.thread)


def _untrue(run: Run, command: Command, status: int, body: dict[str, Any]) -> Iterator[str]:
    if command.path.endswith("/fork") and body.get("type", "").rpartition("/")[2] in {"fork-point", "not-forkable"}:
        return  # people name places by what they saw, or guess them
    if command.path.endswith("/fork") and status == 404:
        tenant, parent = command.who.partition("/")[0], command.path.split("/")[3]
        if run.is_set_aside(ThreadKey(TenantId(tenant), ThreadId(parent))):
            return  # the database refuses its first record
    if status == 409 and body.get("type", "").endswith("call-not-open"):
        return  # somebody else was earlier
    if command.thread is not None and run.is_set_aside(command.thread):
        if status == 404 and ("tool-calls" in command.path or "/plan/" in command.path):
            return  # neither the state knows of it any more nor a view
        if status == 422 and command.path.endswith("/plan"):
            return  # the views do not hold which version it had proposed
    if status not in {200, 202, 409}:
        yield "nothing was wrong with it"
        return
    key = command.thread or ThreadKey(command.who.partition("/")[0], body["thread"])  # type: ignore[arg-type]  # names
    by_id: dict[str, tuple[Record, Verdict]] = {}
    for record, verdict, _ in run.threads[key].records:
        by_id.setdefault(record.id, (record, verdict))
    for event in body.get("events", ()):
        found = by_id.get(event["id"])
        if found is None:
            yield f"{event['id']} is not in the log"
        elif event.get("effect") not in {None, found[1].effect}:
            yield f"{event['id']} was {found[1].effect}"


# Turns and calls


@invariant
def each_turn_ends_once(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        started = [event.turn for event in thread.applied(TurnStarted)]
        ended = [event.turn for event in thread.applied(TurnEnded)]
        if not started == ended == list(range(1, len(started) + 1)):
            yield Broken(f"started: {started}, ended: {ended}", key)


NO_EFFECT = frozenset({"pure", CLIENT_TOOL.name, *OWN_TOOLS})


class CallLife(NamedTuple):
    tool: str
    outcome: str | None
    was_unknown: bool


def _calls(thread: Judged) -> dict[str, CallLife]:
    lives: dict[str, CallLife] = {}
    for _, _, state in thread.records:
        for name, call in state.calls.items():
            life = lives.get(name)
            was_unknown = call.status == "unknown" or (life is not None and life.was_unknown)
            lives[name] = CallLife(call.tool, call.outcome, was_unknown)
    return lives


@invariant
def unsafe_effects_happen_once(run: Run) -> Iterator[Broken]:
    """Unless a person said: run it again. Of what the downstream was asked about the same holds, but for an executor
    that stood still at the worst moment for longer than everybody waits: no clock can know of that.
    """
    effects = run.world.ledger.effects()
    for key, thread in run.threads.items():
        again = Counter(
            record.data.call
            for record, verdict, _ in thread.records
            if isinstance(record.data, ToolCallResolved)
            and record.data.decision == "again"
            and verdict.effect == "applied"
            and record.actor.startswith("user:")
        )
        for name, life in _calls(thread).items():
            count = effects.get((str(key), name), 0)
            runs = run.world.ledger.of(str(key), name)
            if life.tool == "reconcilable" and any(each.executor in run.stood_still for each in runs):
                continue
            if life.tool in {"unsafe", "reconcilable"} and count > 1 + again[name]:
                yield Broken(f"call {name}, {life.tool}, was done {count} times", key)


@invariant
def effects_are_in_the_log(run: Run) -> Iterator[Broken]:
    """As succeeded, or unknown until somebody said what it was; never as not run. And what succeeded was done."""
    effects = run.world.ledger.effects()
    for key, thread in run.threads.items():
        lives = _calls(thread)
        for name, life in lives.items():
            count = effects.get((str(key), name), 0)
            if life.outcome is None:
                yield Broken(f"call {name} is never settled", key)
            if life.outcome == "succeeded" and life.tool not in NO_EFFECT and not count:
                yield Broken(f"call {name} succeeded, and was not done", key)
            if count and life.outcome != "succeeded" and not _may_be_said(run, key, thread, name, life):
                yield Broken(f"call {name} was done, and is {life.outcome}", key)
        for run_ in run.world.ledger.runs:
            if run_.thread == str(key) and run_.call not in lives:
                yield Broken(f"call {run_.call} was run, and is in no state", key)


def _may_be_said(run: Run, key: ThreadKey, thread: Judged, name: str, life: CallLife) -> bool:
    """Whether somebody may have settled a call that was done in another way: a person, who can err, or the downstream,
    who said so before an executor that had stood still did it after all.
    """
    by_service = any(
        isinstance(record.data, ToolCallResolved)
        and record.data.call == name
        and record.data.decision == "failed"
        and verdict.effect == "applied"
        and not record.actor.startswith("user:")
        for record, verdict, _ in thread.records
    )
    stood_still = any(each.executor in run.stood_still for each in run.world.ledger.of(str(key), name))
    return life.was_unknown and (stood_still or not by_service)


@invariant
def not_started_means_not_run(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        claims = {
            record.id: record.data.executor
            for record, verdict, _ in thread.records
            if isinstance(record.data, ToolCallStarted) and verdict.effect == "applied"
        }
        for event in thread.applied(ToolCallFinished):
            if event.outcome == "not_started":
                for run_ in run.world.ledger.of(str(key), event.call):
                    if run_.attempt == event.attempt and run_.executor == claims.get(event.claim):
                        yield Broken(f"call {event.call} was not started by {run_.executor}, which ran it", key)


@invariant
def unknown_only_where_something_was_cut_off(run: Run) -> Iterator[Broken]:
    """A call is unknown only after its executor was killed or stood still, or killed the tool midway: not because it was
    told to stop.
    """
    for key, thread in run.threads.items():
        was_unknown = {name for name, life in _calls(thread).items() if life.was_unknown}
        cut_off = {event.call for event in thread.applied(ToolCallStarted) if event.executor in run.cut_off}
        killed = {each.call for each in run.world.ledger.runs if each.thread == str(key) and each.cancelled}
        lost = {event.call for event in thread.applied(ToolCallLost)}
        for name in sorted(was_unknown - lost):
            yield Broken(f"call {name} was unknown, and never lost", key)
        for name in sorted(was_unknown - cut_off - killed):
            yield Broken(f"call {name} was unknown, and nothing was cut off", key)


@invariant
def what_runs_was_approved(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        approved: dict[str, set[str]] = {}
        for event in thread.applied(ToolCallApproved):
            in_force = event.edited.call_hash if event.edited is not None else event.call_hash
            approved.setdefault(event.call, set()).add(in_force)
        for run_ in run.world.ledger.runs:
            if run_.thread != str(key):
                continue
            if call_hash(run_.tool, dict(run_.args)) not in approved.get(run_.call, ()):
                yield Broken(f"call {run_.call} ran with {run_.args}, which nobody approved", key)


@invariant
def models_are_asked_whole_conversations(run: Run) -> Iterator[Broken]:
    for problem in run.model.problems:
        yield Broken(problem)


# Readers


@invariant
def every_reader_derives_the_same(run: Run) -> Iterator[Broken]:
    """Seq, chain and all else of the states that processes hold, or held when they were killed."""
    for process in run.world.processes:
        if not process.is_up:
            continue
        for key, state in _held(process):
            if state.seq and state != run.threads[key].records[state.seq - 1][2]:
                yield Broken(f"{process.owner} holds another state at #{state.seq}", key)


def _held(process: object) -> Iterator[tuple[ThreadKey, ThreadState]]:
    if isinstance(process, RuntimeProcess | ExecutorProcess):
        for partition in process.loop.partitions.values():
            for key, held in partition.threads.items():
                yield key, held.state
    elif isinstance(process, IngestProcess):
        yield from process.held_states().items()


@invariant
def records_name_what_the_thread_had_come_to(run: Run) -> Iterator[Broken]:
    """By which an altered log is found: the chain that the end of a turn confirms, the context that a step is asked with."""
    for key, judged in run.threads.items():
        contexts, before = Contexts(key), NOTHING
        contexts.inherited = inherited_by(run.threads, key, judged.state.lineage)
        for record, verdict, after in judged.records:
            contexts.take(record, verdict, before, after)
            before = after
            if isinstance(record.data, TurnEnded):
                seq, chain = record.data.confirmed.seq, record.data.confirmed.chain
                confirmed = NOTHING if seq == 0 else judged.records[seq - 1][2]
                if seq >= after.seq or confirmed.chain != chain:
                    yield Broken(f"the end of a turn at #{after.seq} confirms another chain at #{seq}", key)
        for finding in contexts.findings:
            yield Broken(finding.what, key)


@invariant
def nothing_is_set_aside(run: Run) -> Iterator[Broken]:
    for process in run.world.processes:
        if process.is_alive and process.is_up and isinstance(process, RuntimeProcess | ExecutorProcess):
            for partition in process.loop.partitions.values():
                for key, held in partition.threads.items():
                    if held.quarantined is not None:
                        yield Broken(f"{process.owner} has set it aside: {held.quarantined}", key)


@invariant
def places_are_given_back(run: Run) -> Iterator[Broken]:
    for process in run.world.alive(ExecutorProcess):
        if process.is_up and process.executor.slots.taken:
            yield Broken(f"{process.owner} holds places of calls that ended")


# Clients


@invariant
def clients_see_every_seq_once(run: Run) -> Iterator[Broken]:
    for watcher in run.watchers:
        for problem in watcher.problems:
            yield Broken(f"{watcher.name}: {problem}", watcher.key)
        records = run.threads[watcher.key].records
        if watcher.seq != len(records):
            yield Broken(f"{watcher.name} has seen {watcher.seq} of {len(records)}", watcher.key)
        for seq, event_id, effect, reason in watcher.seen:
            record, verdict, _ = records[seq - 1]
            if (event_id, effect, reason) != (record.id, verdict.effect, verdict.reason):
                yield Broken(
                    f"{watcher.name} saw #{seq} as {event_id} {effect}, not {record.id} {verdict}", watcher.key
                )
