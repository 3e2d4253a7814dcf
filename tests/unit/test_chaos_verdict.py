"""What `make chaos` calls wrong: each of its zeros with a log, a ledger or a client that breaks it."""

from collections.abc import Mapping

import pytest

from schemas.ids import idempotency_key
from services.client.sse import Fact
from tests.chaos.followers import Followed
from tests.chaos.ledger import PREFIX
from tests.chaos.load import Acknowledged
from tests.chaos.report import late, violations
from tests.chaos.verdict import Judgement, ThreadStory, judge, story_of
from tests.support.recorded.histories import (
    EXECUTOR,
    KEY,
    USER,
    History,
    approved,
    cancel_requested,
    claimed,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_finished,
    step_started,
    submitted,
    turn_ended,
)

CALL = "1.1.0"


def with_running(effect: str) -> History:
    history = History().with_calls(proposed(0, f"{PREFIX}{effect}"))
    history.apply(approved(history.only_call, by="policy:never"))
    history.apply(dispatched(history.only_call, effect))  # type: ignore[arg-type]
    history.apply(claimed(history.only_call), EXECUTOR)
    return history


def ended(history: History) -> History:
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "fine"))
    history.apply(turn_ended(history.state))
    return history


def with_end(effect: str, outcome: str) -> History:
    history = with_running(effect)
    history.apply(finished(history.only_call, outcome), EXECUTOR)  # type: ignore[arg-type]
    return ended(history)


def judged(
    history: History,
    *,
    effects: int = 0,
    acknowledged: tuple[Acknowledged, ...] = (),
    followed: tuple[Followed, ...] = (),
    ids: Mapping[int, list[str]] | None = None,
) -> Judgement:
    story = ThreadStory(KEY, 0)
    for record in history.records:
        story.take(record)
    ledger = {idempotency_key(KEY, CALL): effects}
    return judge({KEY: story}, {0: ids_of(history)} if ids is None else ids, ledger, acknowledged, followed)


def ids_of(history: History) -> list[str]:
    """Of the partition, in which other threads have records of their own."""
    by_offset = {record.offset: record.id for record in history.records}
    return [by_offset.get(offset, "") for offset in range(history.state.offset + 1)]


def note_of(history: History, name: str = "i1") -> Acknowledged:
    record = next(record for record in history.records if getattr(record.data, "input", None) == name)
    return Acknowledged(KEY, name, record.id, 0, record.offset, "queue", False)


def seen_by_client(history: History) -> Followed:
    followed = Followed(KEY)
    for fact in facts(history):
        followed.take(fact)
    return followed


def facts(history: History) -> list[Fact]:
    told = zip(history.records, history.verdicts, strict=True)
    return [
        Fact.of({"seq": at, "type": record.kind, "id": record.id, "effect": verdict.effect})
        for at, (record, verdict) in enumerate(told, 1)
    ]


def test_a_session_as_it_should_be() -> None:
    history = with_end("unsafe", "succeeded")
    found = judged(history, effects=1, acknowledged=(note_of(history),), followed=(seen_by_client(history),))
    assert found.faulted == {}
    assert found.inputs == {"acknowledged": 1, "lost": 0}
    assert found.turns == {"ended": 1, "ended_twice": 0, "open": 0}
    assert found.clients == {"gaps": 0, "repeats": 0}
    assert found.calls["unsafe"] == {
        "executed": 1,
        "doubled": 0,
        "unknown": 0,
        "falsely_unknown": 0,
        "falsely_certain": 0,
    }
    assert found.outcomes == {"completed": 1}


def test_an_input_whose_record_is_not_where_the_client_was_told() -> None:
    history = with_end("unsafe", "succeeded")
    note = note_of(history)
    for wrong in (note._replace(offset=note.offset + 1), note._replace(partition=3), note._replace(offset=10_000)):
        assert judged(history, effects=1, acknowledged=(wrong,)).inputs["lost"] == 1


def test_an_input_that_took_no_effect() -> None:
    history = History().ended_turn()
    history.append(submitted("i1"), USER)  # the same input id again
    note = note_of(history)._replace(input="never seen")
    assert judged(history, acknowledged=(note,)).inputs["lost"] == 1
    assert judged(history, acknowledged=(note._replace(is_undecided=True),)).inputs["lost"] == 0


def test_a_turn_and_an_input_that_nobody_has_finished() -> None:
    history = History().in_turn()
    history.apply(submitted("i2"), USER)
    found = judged(history, acknowledged=(note_of(history), note_of(history, "i2")))
    assert found.turns == {"ended": 0, "ended_twice": 0, "open": 1}
    assert found.inputs["lost"] == 0, "it still waits in the queue"
    assert "turn 1" in found.faulted[KEY][0]


def test_an_unknown_call_that_nobody_has_settled() -> None:
    history = with_running("unsafe")
    history.apply(lost(history.only_call))
    history.apply(cancel_requested(history.state), USER)
    history.apply(turn_ended(history.state, "aborted"))
    found = judged(history, effects=1)
    assert found.turns == {"ended": 1, "ended_twice": 0, "open": 1}
    history.apply(resolved(history.only_call), USER)
    assert judged(history, effects=1).faulted == {}


@pytest.mark.parametrize("effect", ["idempotent", "reconcilable", "unsafe"])
def test_an_effect_that_happened_twice(effect: str) -> None:
    found = judged(with_end(effect, "succeeded"), effects=2)
    assert found.calls[effect]["doubled"] == 1
    assert KEY in found.faulted


def test_an_effect_that_a_person_had_happen_again() -> None:
    history = with_running("unsafe")
    history.apply(lost(history.only_call))
    history.apply(resolved(history.only_call, "again"), USER)
    history.apply(dispatched(history.only_call))
    history.apply(claimed(history.only_call, "E2"), EXECUTOR)
    history.apply(finished(history.only_call), EXECUTOR)
    ended(history)
    assert judged(history, effects=2).calls["unsafe"]["doubled"] == 0
    assert judged(history, effects=3).calls["unsafe"]["doubled"] == 1


def test_a_pure_call_may_run_twice() -> None:
    found = judged(with_end("pure", "succeeded"), effects=2)
    assert found.calls["pure"]["doubled"] == 1
    assert found.faulted == {}


@pytest.mark.parametrize(("outcome", "effects"), [("succeeded", 0), ("failed", 1), ("timed_out", 1), ("cancelled", 1)])
def test_a_log_that_is_falsely_certain(outcome: str, effects: int) -> None:
    found = judged(with_end("unsafe", outcome), effects=effects)
    assert found.calls["unsafe"]["falsely_certain"] == 1
    assert judged(with_end("unsafe", outcome), effects=1 - effects).calls["unsafe"]["falsely_certain"] == 0


def test_a_call_that_was_never_run_though_the_ledger_has_it() -> None:
    history = History().with_calls(proposed(0, f"{PREFIX}unsafe"))
    history.apply(cancel_requested(history.state), USER)
    history.apply(turn_ended(history.state, "aborted"))
    assert judged(history, effects=1).calls["unsafe"]["falsely_certain"] == 1


def test_what_a_person_said_of_an_unknown_call_is_not_the_logs_certainty() -> None:
    history = with_running("unsafe")
    history.apply(lost(history.only_call))
    history.apply(resolved(history.only_call, "failed"), USER)
    ended(history)
    assert judged(history, effects=1).calls["unsafe"] == {
        "executed": 1,
        "doubled": 0,
        "unknown": 1,
        "falsely_unknown": 0,
        "falsely_certain": 0,
    }
    assert judged(history, effects=0).calls["unsafe"]["falsely_unknown"] == 1


def test_what_an_executor_was_told_by_the_downstream_has_to_be_true() -> None:
    for decision, effects in (("failed", 1), ("succeeded", 0)):
        history = with_running("reconcilable")
        history.apply(lost(history.only_call))
        history.apply(resolved(history.only_call, decision), EXECUTOR)  # type: ignore[arg-type]
        ended(history)
        assert judged(history, effects=effects).calls["reconcilable"]["falsely_certain"] == 1
        assert judged(history, effects=1 - effects).calls["reconcilable"]["falsely_certain"] == 0


def test_again_by_an_executor_allows_no_second_effect() -> None:
    history = with_running("reconcilable")
    history.apply(lost(history.only_call))
    history.apply(resolved(history.only_call, "again"), EXECUTOR)
    history.apply(dispatched(history.only_call, "reconcilable"))
    history.apply(claimed(history.only_call, "E2"), EXECUTOR)
    history.apply(finished(history.only_call), EXECUTOR)
    assert judged(ended(history), effects=2).calls["reconcilable"]["doubled"] == 1


def test_gaps_and_repeats() -> None:
    history = with_end("unsafe", "succeeded")
    one, two, three, *rest = facts(history)
    followed = Followed(KEY)
    for fact in (one, three, two, *rest):
        followed.take(fact)
    assert judged(history, effects=1, followed=(followed,)).clients == {"gaps": 1, "repeats": 1}


def test_a_client_that_saw_another_record_or_not_all() -> None:
    history = with_end("unsafe", "succeeded")
    other, short = seen_by_client(history), seen_by_client(history)
    other.effects[3] = "superseded"
    del short.ids[-1], short.effects[-1]
    assert judged(history, effects=1, followed=(other,)).clients["gaps"] == 1
    assert judged(history, effects=1, followed=(short,)).clients["gaps"] == 1


def test_the_story_tells_each_record_and_its_verdict() -> None:
    history = with_end("unsafe", "succeeded")
    history.append(claimed(with_running("unsafe").only_call, "late"), EXECUTOR)
    story = ThreadStory(KEY, 0)
    for record in history.records:
        story.take(record)
    lines = story_of(story)
    assert len(lines) == len(history.records)
    assert "tool_call.started" in lines[-1]
    assert "superseded" in lines[-1]


def test_a_time_is_over_its_limit_with_the_lease_counted() -> None:
    def row(p50: int) -> dict[str, int | None]:
        return {"p50": p50, "p99": 99_999, "max": 99_999, "samples": 3}

    assert late({"runtime, restarted": row(3_000), "runtime, gone": row(10_000)}) == []
    assert late({"tool-executor, lease, restarted": row(8_000), "tool-executor, lease, gone": row(15_000)}) == []
    assert len(late({"runtime, restarted": row(3_001), "tool-executor, lease, gone": row(15_001)})) == 2
    assert late({"ingest, gone": {"p50": None, "p99": None, "max": None, "samples": 0}}) == []


def test_what_must_be_zero() -> None:
    calls = {
        effect: {"executed": 9, "doubled": 0, "unknown": 3, "falsely_unknown": 1, "falsely_certain": 0}
        for effect in ("pure", "idempotent", "reconcilable", "unsafe")
    }
    right = {
        "inputs": {"acknowledged": 9, "lost": 0},
        "turns": {"ended": 9, "ended_twice": 0, "open": 0},
        "calls": calls,
        "clients": {"gaps": 0, "repeats": 0},
        "contradictions": 0,
        "views_equal": True,
    }
    assert violations(right) == []
    assert len(violations({**right, "inputs": {"acknowledged": 9, "lost": 1}})) == 1
    assert len(violations({**right, "turns": {"ended": 9, "ended_twice": 1, "open": 2}})) == 2
    assert len(violations({**right, "clients": {"gaps": 1, "repeats": 1}})) == 2
    assert len(violations({**right, "views_equal": False, "contradictions": 1})) == 2
    for effect, counts in calls.items():
        wrong = {**calls, effect: {**counts, "doubled": 1, "falsely_certain": 1}}
        assert len(violations({**right, "calls": wrong})) == (1 if effect == "pure" else 2)
