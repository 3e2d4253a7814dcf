"""The history: threads in which everything happens that can, mixed, with records in between that nobody can use.

Every thread is folded while it is made, so that its events carry the hashes and chains that they have to, and so that
what the views must say of each record is known from the start.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, get_args

from schemas.events import (
    EVENTS,
    ArtifactRecorded,
    ContextCompactionFailed,
    ContextCompactionRequested,
    Failure,
    InputWithdrawn,
    Lineage,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    SkillLoaded,
    Task,
    TaskUpdated,
    ThreadArchived,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadDescribed,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
    ThreadUnarchived,
)
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.thread import Effect
from tests.proof.bad_records import BAD_KINDS, NOT_DEAD, Appended, BadKind, Story
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    NO_HASH,
    RUNTIME,
    USER,
    History,
    approval_expired,
    approval_requested,
    approved,
    cancel_requested,
    claimed,
    compacted,
    created,
    denied,
    dispatched,
    finished,
    lost,
    plain_turn,
    proposed,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    troubled_turn,
    turn_ended,
    turn_recovered,
    turn_started,
)
from tests.support.recorded.walks import GO_ON, walk

TENANTS: Final = 7
OPEN_THREADS: Final = 300
"""Threads whose records are mixed with each other at any time."""
PLAIN_TURNS_MAX: Final = 6
WALK_MOVES: Final = 120
WILD_THREADS: Final = 0.2
"""The share of threads in which everybody does anything."""
TROUBLED_TURNS: Final = 0.15
FORKS: Final = 0.05
THREADS_WITH_BAD: Final = 0.15


@dataclass(slots=True)
class Expected:
    """What the views must come to."""

    records: int = 0
    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind and effect."""
    bad: Counter[BadKind] = field(default_factory=Counter)

    @property
    def dead_letters(self) -> int:
        return sum(count for kind, count in self.bad.items() if kind not in NOT_DEAD)

    def take(self, appended: list[Appended], story: History, bad: Mapping[int, BadKind]) -> list[Appended]:
        self.records += len(appended)
        for record, verdict in zip(story.records, story.verdicts, strict=True):
            self.effects[record.kind, verdict.effect] += 1
        self.bad.update(bad.values())
        return appended

    def missing(self) -> list[str]:
        """Events that never take effect, effects and bad records that do not occur."""
        in_effect = {kind for kind, effect in self.effects if effect == "applied"}
        effects = {effect for _, effect in self.effects}
        return [
            *[event.kind for event in EVENTS if event.kind not in in_effect],
            *[effect for effect in get_args(Effect) if effect not in effects],
            *[kind for kind in BAD_KINDS if kind not in self.bad],
        ]


def history(records: int, seed: int, expected: Expected) -> Iterator[Appended]:
    """At least so many records, the same ones for a seed. `expected` is filled as they are taken."""
    rng = random.Random(seed)
    threads = _threads(rng, records, expected)
    mixed = [thread[::-1] for thread in islice(threads, OPEN_THREADS)]
    while mixed:
        place = rng.randrange(len(mixed))
        yield mixed[place].pop()
        if mixed[place]:
            continue
        following = next(threads, None)
        if following is not None:
            mixed[place] = following[::-1]
        else:
            mixed[place] = mixed[-1]
            mixed.pop()


def _threads(rng: random.Random, records: int, expected: Expected) -> Iterator[list[Appended]]:
    """First one with every kind of event, one that was imported, and one for each kind of bad record."""
    first: list[Callable[[Story], object]] = [everything, imported]
    parents: dict[TenantId, Story] = {}
    number = 0
    while expected.records < records:
        key = ThreadKey(TenantId(f"tenant-{number % TENANTS}"), ThreadId(f"thread-{number}"))
        bad: dict[int, BadKind] = {}
        if 0 <= number - len(first) < len(BAD_KINDS):
            bad = {rng.randint(1, 10): BAD_KINDS[number - len(first)]}
        elif number >= len(first) and rng.random() < THREADS_WITH_BAD:
            bad = {rng.randint(1, 40): rng.choice(BAD_KINDS[:-1])}
        story = Story(key, bad)
        if number < len(first):
            first[number](story)
        else:
            _anything(rng, story, parents.get(key.tenant))
        parents[key.tenant] = story
        yield expected.take(story.end(), story, bad)
        number += 1


def _anything(rng: random.Random, log: Story, parent: Story | None) -> None:
    if rng.random() < WILD_THREADS:
        stale = (0, 0, 0, 1, 2, 3)
        walk(
            [(rng.randrange(2 * GO_ON), rng.randrange(48), rng.choice(stale)) for _ in range(WALK_MOVES)], log.key, log
        )
        return
    if parent is not None and rng.random() < FORKS:
        state = parent.state
        lineage = Lineage(kind="fork", parent=parent.key.thread, seq=state.seq, chain=state.chain)
        log.apply(created(lineage=lineage), USER)
    for _ in range(rng.randint(1, PLAIN_TURNS_MAX)):
        plain_turn(log, calls=rng.randint(0, 3), result="x" * rng.choice((20, 200, 800, 3_000)))
        if rng.random() < TROUBLED_TURNS:
            troubled_turn(log)


def everything(log: History) -> None:
    """One thread with every event that is no import, each in effect, and the four ways in which one is not."""
    log.apply(created(title="all of it", labels={"a": "b"}), USER)
    log.apply(ThreadDescribed(title="everything", labels={"a": "c"}), USER)
    log.apply(ThreadConfigured(patch={"instructions": "Be brief."}), USER)
    log.apply(ThreadArchived(), USER)
    log.apply(ThreadUnarchived(), USER)
    log.apply(submitted("i0"), USER)
    log.apply(InputWithdrawn(input="i0"), USER)
    log.apply(SkillLoaded(name="review", skill_version="1", sha256=NO_HASH), RUNTIME)
    log.apply(ArtifactRecorded(sha256=NO_HASH, size=0, media_type="text/plain", name="empty"), USER)
    _plans(log)
    plain_turn(log)
    _people(log)
    _fates(log)
    log.apply(ContextCompactionRequested(base=log.state.base), USER)
    failed = Failure(kind="provider", message="no summary")
    log.apply(ContextCompactionFailed(base=log.state.base, requested=log.state.compaction_seq, error=failed))
    log.apply(ContextCompactionRequested(base=log.state.base), USER)
    log.apply(compacted(log.state))
    plain_turn(log)
    log.apply(ThreadRewound(to_turn=log.state.last_turn - 1), USER)
    log.add(log.encoded[log.state.seq - 3])  # a retry that came late: superseded or rejected, like all of its turn
    log.apply(submitted("i9"), USER)
    log.add(log.encoded[-1])
    log.apply(turn_started(log.state))
    log.add(log.encoded[-1])
    log.apply(turn_recovered(log.state))
    log.apply(cancel_requested(log.state, discard=True), USER)
    log.apply(turn_ended(log.state, "aborted"))
    log.apply(ThreadCloseRequested(reason="done"), USER)
    log.apply(ThreadClosed())
    log.append(submitted("i10"), USER)


def _plans(log: History) -> None:
    first, second = Task(id="a", title="Look"), Task(id="b", title="Mend", depends_on=("a",))
    log.apply(PlanProposed(plan_version=1, tasks=(first,)))
    log.apply(PlanRejected(plan_version=1, by=USER, reason="too short"), USER)
    log.apply(PlanProposed(plan_version=2, tasks=(first, second)))
    log.apply(PlanApproved(plan_version=2, by=USER), USER)
    log.apply(TaskUpdated(plan_version=2, task="a", status="running", child="thread-0"))
    log.apply(TaskUpdated(plan_version=2, task="a", status="succeeded", result={"found": 1}))


def _people(log: History) -> None:
    """A turn in which a call is approved by a person, one denied, and one waits for too long."""
    log.apply(submitted("people"), USER)
    log.apply(turn_started(log.state))
    log.apply(step_started(log.state))
    log.apply(step_failed(log.state))
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "May I?", [proposed(index) for index in range(3)]))
    yes, no, late = log.state.calls
    for name in (yes, no, late):
        log.apply(approval_requested(log.call(name)))
    log.apply(approved(log.call(yes)), USER)
    log.apply(denied(log.call(no)), USER)
    log.append(approved(log.call(no)), USER)
    log.apply(approval_expired(log.call(late)))
    log.apply(dispatched(log.call(yes)))
    log.apply(claimed(log.call(yes)), EXECUTOR)
    log.append(claimed(log.call(yes), "E2"), EXECUTOR)
    log.apply(finished(log.call(yes)), EXECUTOR)
    _answer(log)


def _fates(log: History) -> None:
    """A turn whose call is lost with its executor, and settled by a person."""
    log.apply(submitted("fates"), USER)
    log.apply(turn_started(log.state))
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "I try.", [proposed(0)]))
    name = next(iter(log.state.calls))
    log.apply(approved(log.call(name), by="policy:never"), "policy:never")
    log.apply(dispatched(log.call(name)))
    log.apply(claimed(log.call(name)), EXECUTOR)
    log.apply(lost(log.call(name)))
    log.apply(resolved(log.call(name)), USER)
    _answer(log)


def _answer(log: History) -> None:
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "Done."))
    log.apply(turn_ended(log.state))


def imported(log: History) -> None:
    """A thread from elsewhere, which then goes on."""
    log.apply(created(importing=True), IMPORTER)
    log.apply(ThreadImportEnded(source="elsewhere"), IMPORTER)
    log.apply(ThreadImportStarted(source="elsewhere"), IMPORTER)
    log.apply(submitted("imported"), IMPORTER)
    log.apply(turn_started(log.state), IMPORTER)
    log.apply(step_started(log.state), IMPORTER)
    log.apply(step_finished(log.state, "Said before."), IMPORTER)
    log.apply(turn_ended(log.state), IMPORTER)
    log.apply(ThreadImportEnded(source="elsewhere", report={"records": 5}), IMPORTER)
    plain_turn(log)
