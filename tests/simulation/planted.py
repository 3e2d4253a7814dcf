"""Faults for the simulation to find: each takes one rule out of the source, as text, before it is imported.

`python -m tests.simulation.planted NAME` plays seeds on the source with that fault, in a process of its own, until one
fails; its exit status is 0 where one did. Without a name it lists them.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

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

    def changes(self) -> tuple[tuple[str, str], ...]:
        return ((self.old, self.new), *self.also)


FOLD = "schemas.thread"
CLAIM = "services.tool_executor.claim"
EXECUTOR = "services.tool_executor.loop"
FOLD_LOOP = "services.chassis.fold_loop"

RULES = (
    Planted(
        "unseen-answer",
        FOLD,
        """    if d.follows != turn.follows:
        return "another answer took its place"
""",
        "",
    ),
    Planted(
        "step-after-another-answer",
        FOLD,
        """    if d.follows != turn.follows:
        return Verdict("superseded", "another answer took its place")
""",
        "",
    ),
    Planted(
        "answer-to-another-start",
        FOLD,
        """    if d.started not in step.starts:
        return Verdict("superseded", "it answers a start that did not take effect")
""",
        "",
    ),
    Planted(
        "second-claim",
        FOLD,
        """    if call.status != "dispatched":
        if call.status == "running" and call.claim == r.id:
            return DUPLICATE
""",
        """    if call.status not in {"dispatched", "running"}:
""",
    ),
    Planted(
        "lost-against-a-fresh-claim",
        FOLD,
        """    if d.claim != call.claim:
        return Verdict("superseded", "another claim is in force")
""",
        "",
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
    ),
    Planted(
        "second-opinion",
        FOLD,
        """    if call.attempt != d.attempt:
        return Verdict("superseded", f"attempt {call.attempt} is the last")
    if d.decision""",
        "    if d.decision",
    ),
    Planted(
        "held-queue",
        FOLD,
        """    if any(queued[item].held for item in d.inputs):
        return Verdict("rejected", "the queue is held until the next input")
""",
        "",
    ),
    Planted(
        "retry-that-forgets",
        FOLD,
        """    if d.inputs != step.inputs:
        return Verdict("rejected", "another attempt must list the same inputs")
""",
        "",
    ),
    Planted(
        "completed-though-cancelled",
        FOLD,
        """        return "the turn is being cancelled" if d.outcome == "completed" else None
""",
        """        return None
""",
    ),
    Planted(
        "settings-just-before",
        FOLD,
        """    if d.config != s.config_seq or d.base != s.base:
""",
        """    if d.base != s.base:
""",
    ),
    Planted(
        "result-for-another-claim",
        FOLD,
        """    if not under_claim and not first_pure:
        return Verdict("superseded", "it speaks of a claim that is not in force")
""",
        "",
    ),
    Planted(
        "unknown-cancelled",
        FOLD,
        """        if call.status not in {"running", "unknown"}
    }""",
        """        if call.status != "unknown"
    }""",
    ),
    Planted(
        "may-have-run-and-cancel",
        FOLD,
        """replace(call, status="unknown") if call.may_have_run else _settled(call, "cancelled", None)""",
        """_settled(call, "cancelled", None)""",
    ),
    Planted(
        "blind-retry-of-unsafe",
        FOLD,
        """    if call.effect in {"pure", "idempotent"} and not over and not call.last:""",
        """    if not over and not call.last:""",
    ),
    Planted(
        "steering-dropped-on-abort",
        FOLD,
        """    s.queue = tuple([item for item in s.queue if item.expected_turn != turn.turn])
    s.turn, s.last_outcome""",
        """    s.queue = tuple([item for item in s.queue if item.mode != "steer" or outcome == "completed"])
    s.turn, s.last_outcome""",
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
    ),
    Planted(
        "active-state-evicted",
        FOLD_LOOP,
        """            if stored_whole and not is_active(held.state) and self._follower.may_evict(held):
""",
        """            if stored_whole and self._follower.may_evict(held):
""",
        # An active state is not even looked at: that has to go too.
        ((" and not is_active(held.state)]", "]"),),
    ),
    Planted(
        "position-that-went-back-trusted",
        FOLD_LOOP,
        """            if stored.next_offset >= partition.relied_on:
""",
        """            if stored.next_offset >= 0:
""",
    ),
)

PLANTED = (*RULES, *SERVICES)


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


def find(fault: Planted, seeds_max: int) -> tuple[int, Exception] | None:
    """The first seed that fails, and how."""
    plant(fault)
    play: Callable[[int], object] = getattr(importlib.import_module(PLAY[0]), PLAY[1])
    for seed in range(seeds_max):
        try:
            play(seed)
        except Exception as error:  # noqa: BLE001  # whatever the fault leads to, it was noticed
            return seed, error
    return None


def main() -> int:
    faults = {fault.name: fault for fault in PLANTED}
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("name", nargs="?", choices=faults)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX)
    asked = parser.parse_args()
    if asked.name is None:
        print(*faults, sep="\n")
        return 0
    started = time.monotonic()
    found = find(faults[asked.name], asked.seeds)
    seconds = time.monotonic() - started
    if found is None:
        print(f"{asked.name}: not found in {asked.seeds} seeds, {seconds:.0f} s")
        return 1
    seed, error = found
    print(f"{asked.name}: found by seed {seed}, {seconds:.1f} s: {str(error)[:600]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
