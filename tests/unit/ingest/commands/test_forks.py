"""How the place of a fork is found: what is looked up, what is waited for, and what is refused."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from pydantic import JsonValue
from starlette.responses import Response

from schemas.config import Config
from schemas.ids import EventId, TenantId, ThreadId, ThreadKey
from services.chassis.threads.contexts import PARENTS_MAX
from services.ingest.commands.accepting.accept import Command, conflict
from services.ingest.commands.accepting.lineage import ForkPoint, fork_command
from services.ingest.commands.existence import KnownThreads
from services.ingest.commands.forks import ForkAt, Forks, FoundPoint, MadeFork
from services.ingest.http.problems import Problem, ProblemError, no_such_thread
from tests.unit.ingest.commands.accepting.test_accept import ANN

PARENT = ThreadKey(TenantId("acme"), ThreadId("t-1"))
CONFIG: JsonValue = {"model": "now"}
NEWEST = ForkAt()
FOUND = FoundPoint(20, None, "active", 0, 1, CONFIG, 0, True, 20, None, 20, "c")


class Rows:
    def __init__(
        self, *found: FoundPoint | None, made: MadeFork | None = None, configs: Sequence[JsonValue] = ()
    ) -> None:
        self.found = list(found)
        self.made = made
        self.configs = configs
        self.asked: list[ForkAt] = []

    async def fork_point(self, _: ThreadKey, at: ForkAt) -> FoundPoint | None:
        self.asked.append(at)
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]

    async def fork_configs(self, _: ThreadKey, __: int, most: int) -> Sequence[JsonValue]:
        return self.configs[:most]

    async def fork_made(self, _: ThreadKey, __: EventId) -> MadeFork | None:
        return self.made


class Known:
    def __init__(self) -> None:
        self.caught_up: list[str] = []

    async def require(self, _: ThreadKey) -> None: ...

    async def catch_up(self, key: ThreadKey) -> None:
        self.caught_up.append(key.thread)


def command(*, keyed: bool = False) -> Command:
    return fork_command(ANN, PARENT, "k", keyed=keyed)


def forks(rows: Rows, known: Known | None = None, most: int = 3) -> Forks:
    return Forks(rows, cast("KnownThreads", known or Known()), most)


async def refused(rows: Rows, at: ForkAt = NEWEST, parent: ThreadKey = PARENT) -> tuple[str, str]:
    with pytest.raises(ProblemError) as raised:
        await forks(rows).point(parent, command(), at)
    return raised.value.problem.type.slug, raised.value.problem.detail


async def test_the_newest_is_that_of_the_log_and_a_seq_that_is_there_is_not_waited_for() -> None:
    known, rows = Known(), Rows(FOUND)
    point = await forks(rows, known).point(PARENT, command(), ForkAt())
    assert (point.seq, point.asked, known.caught_up) == (20, None, ["t-1"])
    known = Known()
    point = await forks(rows, known).point(PARENT, command(), ForkAt(seq=20))
    assert (point.seq, point.asked, known.caught_up) == (20, 20, [])


async def test_a_seq_that_the_views_do_not_have_yet_is_waited_for() -> None:
    known, rows = Known(), Rows(FOUND, FOUND._replace(newest=21, asked=21, seq=21))
    assert (await forks(rows, known).point(PARENT, command(), ForkAt(seq=21))).seq == 21
    assert known.caught_up == ["t-1"]
    assert (await forks(Rows(None, FOUND)).point(PARENT, command(), ForkAt(seq=20))).seq == 20


async def test_a_command_that_comes_again_gets_the_seq_that_it_got() -> None:
    known, rows = Known(), Rows(FOUND._replace(seq=7, forks=PARENTS_MAX, status="importing"), made=MadeFork("t-1", 7))
    point = await forks(rows, known).point(PARENT, command(keyed=True), ForkAt(seq=9))
    assert (point.seq, point.asked, rows.asked) == (7, 9, [ForkAt(seq=7), ForkAt(seq=9)])
    assert known.caught_up == [command().key.thread]
    rows = Rows(FOUND, made=MadeFork("another", 7))
    assert (await forks(rows).point(PARENT, command(keyed=True), ForkAt())).seq == 20


async def test_a_try_that_another_one_was_faster_than_is_made_again_at_its_place() -> None:
    rows, tried = Rows(FOUND), []

    async def attempt(point: ForkPoint) -> Response:
        tried.append(point.seq)
        if len(tried) == 1:
            rows.made, rows.found = MadeFork("t-1", 7), [FOUND._replace(seq=7)]
            raise ProblemError(conflict())
        return Response("made")

    answer = await forks(rows).run_at(PARENT, command(keyed=True), NEWEST, attempt)
    assert (tried, answer.body) == ([20, 7], b"made")


@pytest.mark.parametrize(("problem", "tries"), [(conflict(), 2), (no_such_thread(), 1)])
async def test_what_is_wrong_at_any_place_is_refused(problem: Problem, tries: int) -> None:
    tried = []

    async def attempt(point: ForkPoint) -> Response:
        tried.append(point.seq)
        raise ProblemError(problem)

    with pytest.raises(ProblemError) as raised:
        await forks(Rows(FOUND)).run_at(PARENT, command(keyed=True), NEWEST, attempt)
    assert (raised.value.problem, len(tried)) == (problem, tries)


MADE = FOUND._replace(seq=7)


@pytest.mark.parametrize(
    ("made", "found", "at"),
    [
        (MADE, FOUND._replace(seq=9), ForkAt(seq=9)),
        (MADE, FOUND._replace(seq=9), ForkAt(turn=2)),
        (MADE._replace(turn=1), FOUND._replace(seq=9), ForkAt(turn=2)),
        (MADE, FOUND._replace(is_there=False, seq=7), ForkAt(turn=9)),
        (MADE, None, ForkAt(turn=9)),
    ],
)
async def test_a_key_that_made_a_fork_elsewhere_is_refused(
    made: FoundPoint, found: FoundPoint | None, at: ForkAt
) -> None:
    with pytest.raises(ProblemError) as raised:
        await forks(Rows(made, found, made=MadeFork("t-1", 7))).point(PARENT, command(keyed=True), at)
    assert raised.value.problem.type.slug == "idempotency-conflict"
    assert "at seq 7" in raised.value.problem.detail


@pytest.mark.parametrize("at", [ForkAt(turn=2), ForkAt()], ids=["by-then-open", "the-newest-then"])
async def test_a_key_that_made_a_fork_of_what_has_gone_on_since_gets_it_again(at: ForkAt) -> None:
    rows = Rows(MADE._replace(turn=2), FOUND._replace(seq=9), made=MadeFork("t-1", 7))
    assert (await forks(rows).point(PARENT, command(keyed=True), at)).seq == 7


@pytest.mark.parametrize(
    ("found", "at", "slug", "detail"),
    [
        (None, ForkAt(seq=1), "thread-not-found", "no thread"),
        (FOUND._replace(quarantined="seq 3: no"), ForkAt(), "not-forkable", "seq 3: no"),
        (FOUND._replace(status="importing"), ForkAt(), "not-forkable", "imported"),
        (FOUND._replace(forks=PARENTS_MAX), ForkAt(), "not-forkable", "100 times"),
        (FOUND._replace(is_there=False), ForkAt(turn=9), "fork-point", "no turn 9"),
        (FOUND, ForkAt(seq=21), "fork-point", "no record with seq 21; its last is 20"),
        (FOUND._replace(chain=None, seq=0), ForkAt(seq=1), "fork-point", "nothing settled"),
        (FOUND._replace(config={"model": 3}), ForkAt(), "not-forkable", "version"),
    ],
)
async def test_what_cannot_be_forked_is_refused(found: FoundPoint | None, at: ForkAt, slug: str, detail: str) -> None:
    refusal = await refused(Rows(found), at)
    assert refusal[0] == slug
    assert detail in refusal[1]


async def test_an_ephemeral_thread_is_not_forked() -> None:
    parent = PARENT._replace(thread=ThreadId("e-1"))
    assert (await refused(Rows(FOUND), parent=parent))[0] == "not-forkable"

    class Nothing(Known):
        async def require(self, _: ThreadKey) -> None:
            raise ProblemError(no_such_thread())

    with pytest.raises(ProblemError) as raised:
        await forks(Rows(FOUND), Nothing()).point(parent, command(), NEWEST)
    assert raised.value.problem.type.slug == "thread-not-found"


async def test_a_configuration_that_was_in_force_is_patched_together() -> None:
    records: list[Any] = [
        {"config": {"model": "then"}},
        {"patch": {"instructions": "a"}},
        {"patch": {"model": "later"}},
    ]
    earlier = FOUND._replace(config_seq=21)
    point = await forks(Rows(earlier, configs=records)).point(PARENT, command(), ForkAt(seq=20))
    assert point.config == Config(model="later", instructions="a")
    assert point.config.model_fields_set == set(Config.model_fields)
    assert (await refused(Rows(earlier), ForkAt(seq=20)))[0] == "fork-point"
    for configs in ([*records, {"patch": {}}], [records[0], None]):
        assert (await refused(Rows(earlier, configs=configs), ForkAt(seq=20)))[0] == "state-out-of-reach"
