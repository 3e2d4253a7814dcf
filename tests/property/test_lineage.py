"""The context of forks, and of their forks, by the pure functions: over turns, rewinds and compactions of all kinds."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.transcript import Item, inherited
from tests.support.recorded.contexts import (
    apply_to,
    context_as_of,
    context_history,
    family,
    forked_at,
    settled_seqs,
    transcript_of,
)
from tests.support.recorded.histories import History

KEYS = [ThreadKey(TenantId("acme"), ThreadId(f"t-{number}")) for number in range(4)]
SEEDS = st.integers(0, 2**32)


def families(seed: int) -> list[History]:
    return family(random.Random(seed), KEYS, 6)


def digests(items: list[Item]) -> list[str]:
    return [item.digest for item in items]


@given(SEEDS)
@settings(max_examples=20)
def test_each_call_has_a_name_of_its_own_and_one_result(seed: int) -> None:
    histories = families(seed)
    for history in histories:
        for seq in settled_seqs(history):
            context = context_as_of(histories, history, seq)
            calls = [item.call for item in context if item.kind == "tool_call"]
            results = [item.call for item in context if item.kind == "tool_result"]
            assert len(set(calls)) == len(calls)
            assert sorted(map(str, calls)) == sorted(map(str, results))
            assert all(item.call == item.content.get("call") for item in context)


@given(SEEDS)
@settings(max_examples=20)
def test_a_fork_begins_with_what_its_parent_showed_and_a_summary_of_its_own_stands_for_it(seed: int) -> None:
    histories = families(seed)
    by_thread = {history.key.thread: history for history in histories}
    for history in histories[1:]:
        lineage = history.state.lineage
        assert lineage is not None
        parents = context_as_of(histories, by_thread[ThreadId(lineage.parent)], lineage.seq)
        for seq in range(1, len(history.states)):
            own = transcript_of(history, seq)
            context = context_as_of(histories, history, seq)
            if not own.lacks_inherited:
                assert all(item.thread is None for item in context)
                assert context[0].kind == "summary"
                continue
            assert digests(context[: len(parents)]) == digests(parents)
            assert all(item.thread is not None for item in context[: len(parents)])
            alone = transcript_of(history, seq)
            alone.inherited = ()
            assert context[len(parents) :] == alone.context()


@given(SEEDS)
@settings(max_examples=20)
def test_what_comes_after_the_fork_in_the_parent_changes_nothing_of_it(seed: int) -> None:
    rng = random.Random(seed)
    parent = context_history([(rng.randrange(8), rng.randrange(100)) for _ in range(6)], KEYS[0])
    seq = rng.choice(settled_seqs(parent))
    lineage = forked_at(parent, seq)
    transcript = transcript_of(parent, seq)
    then = inherited(parent.key.thread, transcript.context())
    apply_to(transcript, parent, seq)
    assert transcript.forked is None
    fork = context_history([(0, 0)], KEYS[1], lineage)
    assert [item.content for item in context_as_of([parent, fork], fork, 1)] == [item.content for item in then]


def test_what_is_inherited_has_to_be_said_before_a_fork_shows_its_context() -> None:
    parent = context_history([(0, 0)], KEYS[0])
    fork = context_history([(0, 0)], KEYS[1], forked_at(parent, parent.state.seq))
    transcript = transcript_of(fork)
    assert transcript.lacks_inherited
    try:
        transcript.context()
    except ValueError as error:
        assert "t-0" in str(error)
    else:
        raise AssertionError("a context without what is inherited")


def test_plan_and_loaded_skills_are_not_inherited_and_calls_that_may_have_run_are() -> None:
    summary = Item(
        5, 0, "summary", 1, None, 5,
        {"kind": "summary", "text": "so far", "through_seq": 4,
         "state": {"plan": {"version": 1, "tasks": []}, "skills": [{"name": "review", "version": "1.0.0"}],
                   "unknown_calls": [{"call": "1.1.0", "tool": "shell"}]}},
        "d" * 64,
    )  # fmt: skip
    [shown] = inherited("t-0", [summary])
    assert shown.content["state"] == {"unknown_calls": [{"call": "1.1.0", "tool": "shell"}]}
    assert inherited("t-1", [shown]) == (shown,)
