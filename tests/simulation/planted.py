"""Faults for the simulation to find: each takes one rule out of the source, as text, before it is imported.

`python -m tests.simulation.planted NAME` plays seeds on the source with that fault, in a process of its own, until one
fails; its exit status is 0 where one did. Without a name it lists them. It begins with the fault's own first seed, which
for rare ones lies closely before one that is known to find it; `--first N` begins anywhere else.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

SEEDS_MAX = 2_000
PLAY = ("tests.simulation.session", "play")


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    module: str
    old: str
    """Stands in the module's source exactly once."""
    new: str
    also: tuple[tuple[str, str], ...] = ()
    """Where the rule stands in more than one place."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Of the plan: what the fault needs to be seen soon. A seed may draw all of it by itself."""
    first: int = 0
    """From where to look. The seeds before find nothing, each time the same, and would make `make test` slow; `make proof`
    begins anywhere.
    """

    def changes(self) -> tuple[tuple[str, str], ...]:
        return ((self.old, self.new), *self.also)


FOLD = "schemas.thread"
CLAIM = "services.tool_executor.claiming.claim"
FOLD_LOOP = "services.chassis.following.fold_loop"
LEASES = "services.tool_executor.executing.leases"
STATE = "schemas.state"
LIVE = "services.ingest.streams.live"
WATCH = "services.ingest.streams.watch"
TABLES = "tests.support.memory.tables"
VIEWS_TWIN = "tests.support.memory.views"
CONNECTION_TWIN = "tests.support.memory.connection"
APPLY = "services.projector.applying.apply"
LOOP = "services.projector.loop"
EFFECTS = "services.projector.applying.effects"
SWAP = "services.projector.rebuilding.swap"
WINDOWS = "services.projector.windows.windows"
WINDOWS_TWIN = "tests.support.memory.windows"
PLANS_FOLD = "schemas.plan"
PLANS = "services.runtime.deciding.plans"
CHILDREN = "services.runtime.deciding.children"
CONTEXTS_READ = "services.chassis.threads.contexts"
FORKS = "services.ingest.commands.forks"
FORKS = "services.ingest.commands.forks"
EXISTENCE = "services.ingest.commands.existence"
OUTPUT_STORE = "services.tool_executor.executing.output_store"
CARE = "services.chassis.artifacts.care"

SLOW_LOG = {"fetch_seconds_max": 1, "append_seconds_max": 0.2}
TWO_RUNTIMES = SLOW_LOG | {"zombie_runtime": True, "acts": 5, "approval": "never", "threads": 3}
STALE_RUNTIMES = TWO_RUNTIMES | {
    "hasty": True,
    "seconds": 12,
    "moves_every": 0.3,
    "model_trouble": 0.2,
    "append_trouble": 0.04,
}
TWO_EXECUTORS = SLOW_LOG | {"zombie_executor": True, "approval": "never"}
RACING = TWO_RUNTIMES | {
    "zombie_executor": True,
    "hasty": True,
    "seconds": 25,
    "tool_seconds": (1, 5, 5),
    "tool_trouble": 0.3,
    "lease_seconds": 2,
}

REFUSING = {"refused": 0.05, "moves_every": 0.3, "database_seconds_max": 0.1}
RELAYING = {"moves_every": 0.3, "append_seconds_max": 0.2, "projectors": 2, "append_trouble": 0.04, "view_commands": 2}
REBUILDING = {"view_commands": 5, "moves_every": 0.3, "database_seconds_max": 0.1, "append_seconds_max": 0.2}
FAMILIES = {
    "spawns": 0.3,
    "plans": 0.2,
    "moves_every": 0.3,
    "append_trouble": 0.04,
    "model_trouble": 0.2,
    "approval": "never",
    "hasty": True,
    "zombie_runtime": True,
    "runtimes": 2,
    "partitions": 2,
    "seconds": 12,
    "acts": 5,
    "tool_seconds": (1, 5, 5),
}
LAGGING_FAMILIES = (
    FAMILIES
    | SLOW_LOG
    | {
        "plans": 0.5,
        "spawns": 0.0,
        "forks": 0.0,
        "threads": 3,
        "moves_every": 2,
        "model_trouble": 0,
        "append_trouble": 0,
        "outputs": 0,
        "refused": 0,
        "view_commands": 0,
        "database_seconds_max": 0,
    }
)
"""Two runtimes that live on, and read what the other wrote late."""
BRANCHING = {
    "forks": 0.5,
    "context_tokens": 60,
    "moves_every": 0.3,
    "append_trouble": 0.04,
    "model_trouble": 0.2,
    "hasty": True,
    "zombie_runtime": True,
    "runtimes": 2,
    "partitions": 2,
    "seconds": 12,
    "acts": 5,
    "threads": 2,
}
KEEPING = {"outputs": 1.0, "moves_every": 0.3, "approval": "never", "tool_trouble": 0.3}
COLLECTING = KEEPING | {
    "collects": 12,
    "seconds": 25,
    "threads": 3,
    "acts": 5,
    "database_seconds_max": 0.1,
    "moves_every": 0.8,
    "tool_seconds": (0, 0.2, 1),
}
COUNTING = {"rollups": 2, "partitions": 2, "moves_every": 0.3, "view_commands": 5, "append_seconds_max": 0.2}

RULES = (
    Planted(
        "commands-not-remembered",
        FOLD,
        """    if remembered is not None:
        return DUPLICATE if""",
        """    if remembered not in {None, record.data_hash[:_HASH_REMEMBERED]}:
        return DUPLICATE if""",
        choices={"idempotent": False, "ack_lost": 0.1},
    ),
    Planted(
        "edited-arguments-not-run",
        FOLD,
        """args=event.edited.args, call_hash=event.edited.call_hash, malformed=None)""",
        """call_hash=event.edited.call_hash, malformed=None)""",
        choices={"approval": "always"},
    ),
    Planted(
        "unseen-answer",
        FOLD,
        """    if event.follows != turn.follows:
        return "another answer took its place"
""",
        "",
        choices=STALE_RUNTIMES,
        first=1_148,
    ),
    Planted(
        "answer-to-another-start",
        FOLD,
        """    if event.started not in step.starts:
        return Verdict("superseded", "it answers a start that did not take effect")
""",
        "",
        choices=TWO_RUNTIMES,
    ),
    Planted(
        "second-claim",
        FOLD,
        """    if call.status != "dispatched":
        if call.status == "running" and call.claim == record.id:
            return DUPLICATE
""",
        """    if call.status not in {"dispatched", "running"}:
""",
        choices=TWO_EXECUTORS,
    ),
    Planted(
        "lost-against-a-fresh-claim",
        FOLD,
        """    if event.claim != call.claim:
        return Verdict("superseded", "another claim is in force")
""",
        "",
        choices=RACING,
        first=59,
    ),
    Planted(
        "approval-not-bound-to-its-hash",
        FOLD,
        """        return Verdict("superseded", f"the call is {call.status}{by}")
    if call.call_hash != call_hash:
        return Verdict("superseded", "the call is another one: its hash differs")
""",
        """        return Verdict("superseded", f"the call is {call.status}{by}")
""",
        choices=TWO_RUNTIMES | {"approval": "on_effect"},
    ),
    Planted(
        "second-opinion",
        FOLD,
        """    if call.attempt != event.attempt:
        return Verdict("superseded", f"attempt {call.attempt} is the last")
    if event.decision""",
        "    if event.decision",
        choices=RACING,
        first=70,
    ),
    Planted(
        "completed-though-cancelled",
        FOLD,
        """    if turn.cancelling is not None and event.outcome == "completed":
        return "the turn is being cancelled"
""",
        "",
        choices=TWO_RUNTIMES | {"fetch_seconds_max": 0.2},
        first=113,
    ),
    Planted(
        "settings-just-before",
        FOLD,
        """    if event.config != state.config_seq or event.base != state.base:
""",
        """    if event.base != state.base:
""",
        choices={"hasty": True},
    ),
    Planted(
        "unknown-cancelled",
        FOLD,
        """        if call.status not in {"running", "unknown"}
    }""",
        """        if call.status != "unknown"
    }""",
        first=111,
    ),
    Planted(
        "may-have-run-and-cancel",
        FOLD,
        """replace(call, status="unknown") if call.may_have_run else _settled(call, "cancelled", None)""",
        """_settled(call, "cancelled", None)""",
        choices=RACING,
    ),
    Planted(
        "blind-retry-of-unsafe",
        FOLD,
        """    if call.effect in {"pure", "idempotent"} and not over and not call.last:""",
        """    if not over and not call.last:""",
        choices={"tool_trouble": 0.3},
    ),
    Planted(
        "steering-dropped-on-abort",
        FOLD,
        """    state.queue = tuple([item for item in state.queue if item.expected_turn != turn.turn])
    state.turn, state.last_outcome""",
        """    state.queue = tuple([item for item in state.queue if item.mode != "steer" or outcome == "completed"])
    state.turn, state.last_outcome""",
    ),
)

SERVICES = (
    Planted(
        "claim-not-read-back",
        CLAIM,
        """    if call.status == "dispatched":
        return "wait"
    if call.status != "running" or call.claim != attempt.claim:
        return "forget"
""",
        "",
        choices=TWO_EXECUTORS,
    ),
    Planted(
        "active-state-evicted",
        STATE,
        """        state.turn is not None
        or state.status == "closing"
""",
        """        state.status == "closing"
""",
    ),
    Planted(
        "position-that-went-back-trusted",
        FOLD_LOOP,
        """            if stored.next_offset >= partition.relied_on:
""",
        """            if stored.next_offset >= 0:
""",
        choices={"acts": 5, "seconds": 12, "moves_every": 0.3},
        first=20,
    ),
    Planted(
        "heartbeats-not-read-to-their-end",
        LEASES,
        """        elif self._is_read_since(watch.partition, over_at):
""",
        """        elif watch is not None:
""",
        choices=RACING,
        first=466,
    ),
    Planted(
        "position-before-rows",
        TABLES,
        """                self._set(positions, span.partition, at)
""",
        """                self._set(positions, span.partition, at)
            self.journal.committed(self._undo)
            self._undo = []
""",
    ),
    Planted(
        "fence-left-out",
        TABLES,
        """    return at is not None and (at.owner_epoch, at.next_offset) == (span.owner_epoch, span.from_offset)
""",
        """    return at is not None
""",
        choices={"projectors": 2},
    ),
    Planted(
        "watch-with-a-gap",
        LIVE,
        """        if thread.next_offset < ring.begin(thread.partition):
            await self._catch_up(thread)
""",
        "",
    ),
    Planted(
        "watch-that-repeats",
        WATCH,
        """        self._index = thread.index_after(after) if after + 1 >= thread.first_seq else None
""",
        """        self._index = thread.first_index if after + 1 >= thread.first_seq else None
""",
    ),
)

VIEWS = (
    Planted(
        "half-of-a-refused-batch-lost",
        APPLY,
        """        parts = _halves(chunk)
""",
        """        parts = _halves(chunk)[:1]
""",
        choices=REFUSING,
    ),
    Planted(
        "batch-folded-onto-one-that-was-refused",
        APPLY,
        """        if not await self.settle():
            batch = await self._fold(chunk.items)
""",
        """        await self.settle()
""",
        choices=REFUSING,
    ),
    Planted(
        "dead-letters-after-the-commit",
        APPLY,
        """        if batch.dead:
            await self._publish(batch.dead)
        spans""",
        """        spans""",
        also=(
            (
                """        self._remember(batch.kept)
        self._count(""",
                """        self._remember(batch.kept)
        if batch.dead:
            await self._publish(batch.dead)
        self._count(""",
            ),
        ),
        choices=REFUSING,
        first=85,
    ),
    Planted(
        "items-that-stand-still-shown",
        VIEWS_TWIN,
        """    if state is None or state.quarantined is not None:
""",
        """    if state is None:
""",
        choices=REFUSING,
    ),
    Planted(
        "effects-stored-as-told-before-they-are",
        EFFECTS,
        """{p: held.relay.published for p, held in""",
        """{p: held.relay.committed for p, held in""",
        choices=RELAYING,
        first=145,
    ),
    Planted(
        "effects-with-a-gap",
        EFFECTS,
        """        if to_offset <= end or from_offset > end:
""",
        """        if to_offset <= end:
""",
        choices=RELAYING,
        first=90,
    ),
    Planted(
        "effects-begin-at-the-end",
        EFFECTS,
        """            position = await self._after_the_last_effect(partition)
""",
        """            position = held.claimed_to
""",
        choices=RELAYING,
        first=36,
    ),
    Planted(
        "swap-behind-the-live-generation",
        SWAP,
        """                targets = {tp: max(end, stored.get(tp.partition, 0)) for tp, end in ends.items()}
""",
        """                targets = filling.positions()
""",
        choices=REBUILDING,
    ),
    Planted(
        "swap-beside-a-writer",
        CONNECTION_TWIN,
        """        self.session.lock_positions(made.generation)
""",
        "",
        choices=REBUILDING,
    ),
    Planted(
        "claim-in-a-generation-that-was-swapped",
        LOOP,
        """        if held != live:
""",
        """        if held.number > live.number:
""",
        choices=REBUILDING,
        first=247,
    ),
    Planted(
        "dead-letters-of-a-swap-not-told",
        SWAP,
        """publish_from=stored)""",
        """publish_from=None)""",
        choices=REBUILDING | {"refused": 0.2},
        first=68,
    ),
    Planted(
        "cells-of-before-counted-on",
        WINDOWS,
        """        self._cells.clear()
""",
        "",
        choices=COUNTING,
        first=206,
    ),
    Planted(
        "what-comes-twice-counted-twice",
        WINDOWS,
        """            elif effect.offset < position.source_offset:
""",
        """            elif effect.offset < 0:
""",
        # By the position and by the cell: without one of them the other still knows.
        also=(("    if effect.offset <= cell.counted_to:\n", "    if effect.offset < 0:\n"),),
        choices=COUNTING,
        first=18,
    ),
    Planted(
        "counted-from-what-was-under-way",
        WINDOWS,
        """            if offset > (due_next := max(position.next_offset, self._begins.get(partition, 0))):
""",
        """            if position.next_offset >= 0 and offset > (due_next := max(position.next_offset, 0)):
""",
        choices=COUNTING,
        first=104,
    ),
    Planted(
        "overtaken-worker-writes",
        WINDOWS_TWIN,
        """                raise OvertakenError("another worker counts these partitions")
""",
        """                pass
""",
        choices=COUNTING,
        first=29,
    ),
)

BETWEEN_THREADS = (
    Planted(
        "task-cancelled-that-runs-by-now",
        PLANS_FOLD,
        """    if state.child is not None and child != state.child and (child is not None or status == "cancelled"):
""",
        """    if state.child is not None and child not in {None, state.child}:
""",
        choices=LAGGING_FAMILIES,
        first=12,
    ),
    Planted(
        "child-begun-before-its-call-is-read-back",
        CHILDREN,
        """    if not world.is_ahead:
        waiting.extend(begin(""",
        """    if call.claimed_ms:
        waiting.extend(begin(""",
        choices=FAMILIES,
    ),
    Planted(
        "ends-not-looked-up",
        CHILDREN,
        """    if now_ms >= look_ms:
        waiting.append(read(child))
""",
        """    if now_ms >= look_ms:
""",
        choices=FAMILIES,
    ),
    Planted(
        "children-not-told-to-stop",
        CHILDREN,
        """    if not world.is_ahead:
        waiting.extend(stop(child))
""",
        "",
        choices=FAMILIES,
        first=38,
    ),
    Planted(
        "task-begun-before-it-is-read-back",
        PLANS,
        """        if not world.is_ahead:
            decisions.extend(_begin(key""",
        """        if standing.child:
            decisions.extend(_begin(key""",
        choices=FAMILIES,
    ),
    Planted(
        "task-begun-before-those-that-it-needs",
        PLANS,
        """    return ready_tasks(plan)[: max(0""",
        """    pending = [each.task for each in plan.tasks.values() if each.status == "pending"]
    return (ready_tasks(plan) and pending[::-1])[: max(0""",
        choices=FAMILIES,
    ),
    Planted(
        "child-named-before-it-is-there",
        CHILDREN,
        """    return (child, derive_service_event(child, ThreadCreated.kind)) in world.stored
""",
        """    return world.stored is not None
""",
        choices=FAMILIES,
    ),
    Planted(
        "thread-missing-where-the-views-lag",
        EXISTENCE,
        """            await self.catch_up(key)
            row = await""",
        """            row = await""",
        choices=FAMILIES,
    ),
    Planted(
        "fork-refused-where-its-twin-was-faster",
        FORKS,
        """            if error.problem.type is not IDEMPOTENCY_CONFLICT:
                raise
""",
        """            raise
""",
        choices=FAMILIES,
        first=1_528,
    ),
    Planted(
        "plan-over-before-its-tasks",
        PLANS,
        """(version == plan.in_force and is_busy(plan)):
""",
        """(version == plan.in_force and ready_tasks(plan)):
""",
        choices=FAMILIES,
    ),
)

CONTEXTS = (
    Planted(
        "fork-shows-what-came-later",
        VIEWS_TWIN,
        """        if row.get("place", seq + 1) <= seq and row""",
        """        if "place" in row and row""",
        choices=BRANCHING,
    ),
    Planted(
        "fork-of-a-fork-without-the-first",
        CONTEXTS_READ,
        """        levels.append((thread, items))
""",
        """        levels[:] = [(thread, items)] if not levels else levels
""",
        choices=BRANCHING,
        first=26,
    ),
    Planted(
        "fork-amid-a-step",
        FORKS,
        """        return ForkPoint(parent, found.seq,""",
        """        return ForkPoint(parent, found.asked,""",
        choices=BRANCHING,
    ),
    Planted(
        "fork-elsewhere-when-asked-again",
        FORKS,
        """        made_at = await self._made_at(parent, command) if command.keyed else None
""",
        """        made_at = None
""",
        choices=BRANCHING,
        first=90,
    ),
)

ARTIFACTS = (
    Planted(
        "artifact-named-though-it-was-not-kept",
        OUTPUT_STORE,
        """                    await self._put(tenant, attachment)
                    kept.append(attachment)
""",
        """                    kept.append(attachment)
                    await self._put(tenant, attachment)
""",
        choices=KEEPING,
    ),
    Planted(
        "output-lost-without-a-word",
        OUTPUT_STORE,
        """, *(_not_kept(one) for one in lost)]""",
        """]""",
        choices=KEEPING,
    ),
    Planted(
        "deleted-without-lying-aside",
        CARE,
        """                    await store.set_aside(listed.tenant, listed.sha256)
""",
        """                    await store.set_aside(listed.tenant, listed.sha256)
                    await store.delete_aside(listed.tenant, listed.sha256)
""",
        choices=COLLECTING,
        first=110,
    ),
    Planted(
        "deleted-though-it-is-named-by-now",
        CARE,
        """            if listed.sha256 in named:
                done.taken_back += 1
""",
        """            if not named.isdisjoint(()):
                done.taken_back += 1
""",
        choices=COLLECTING,
        first=183,
    ),
    Planted(
        "collected-whatever-is-named",
        CARE,
        """            if listed.sha256 in named:
                done.taken_back += 1
""",
        """            if not named.isdisjoint(()):
                done.taken_back += 1
""",
        also=(("            if listed.sha256 not in named:\n", "            if named.isdisjoint(()):\n"),),
        choices=COLLECTING,
    ),
    Planted(
        "nothing-is-ever-deleted",
        CARE,
        """            if not dry_run:
                await store.delete_aside(""",
        """            if dry_run:
                await store.delete_aside(""",
        choices=COLLECTING,
    ),
)

PLANTED = (*RULES, *SERVICES, *VIEWS, *BETWEEN_THREADS, *CONTEXTS, *ARTIFACTS)


class _Loader(SourceFileLoader):
    def __init__(self, fault: Planted, path: str) -> None:
        super().__init__(fault.module, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        """From the source, whatever is cached."""
        source = self.get_data(self.path).decode()
        for old, new in self._fault.changes():
            found = source.count(old)
            if found != 1:
                raise LookupError(f"{self._fault.name}: a text of it stands {found} times in {fullname}")
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, fault: Planted) -> None:
        self._fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._fault.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(self._fault, spec.origin)
        return spec


def plant(fault: Planted) -> None:
    """For what this process imports from now on."""
    if fault.module in sys.modules:
        raise RuntimeError(f"{fault.module} is imported already")
    sys.meta_path.insert(0, _Finder(fault))


def find(fault: Planted, first: int, seeds_max: int) -> tuple[int, Exception] | None:
    """The first seed that fails, and how."""
    plant(fault)
    play: Callable[..., object] = getattr(importlib.import_module(PLAY[0]), PLAY[1])
    for seed in range(first, first + seeds_max):
        try:
            play(seed, **fault.choices)
        except Exception as error:  # noqa: BLE001  # whatever the fault leads to, it was noticed
            return seed, error
    return None


def main() -> int:
    faults = {fault.name: fault for fault in PLANTED}
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("name", nargs="?", choices=faults)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    parser.add_argument("--first", type=int, help="the first seed; the fault has one of its own")
    asked = parser.parse_args()
    if asked.name is None:
        print(*faults, sep="\n")
        return 0
    fault = faults[asked.name]
    first = fault.first if asked.first is None else asked.first
    found = find(fault, first, asked.seeds)
    seconds = time.process_time()
    if found is None:
        print(f"{asked.name}: not found in {asked.seeds} seeds from {first} on, {seconds:.0f} s of CPU")
        return 1
    seed, error = found
    print(f"{asked.name}: found by seed {seed}, {seconds:.1f} s of CPU: {str(error).splitlines()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
