from dataclasses import replace

import pytest

from schemas.config import Config, Environment
from schemas.events import EffectClass
from schemas.state import ThreadState
from services.tool_executor.claiming.claim import (
    Attempt,
    Verdict,
    before_running,
    claimable,
    claimed_by_others,
    environment,
    is_own_claim,
    is_settled,
    while_running,
)
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    USER,
    History,
    approved,
    cancel_requested,
    claim_id,
    claimed,
    created,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)

LEASE_MS = 30_000


def dispatched_history(effect: EffectClass = "unsafe", count: int = 1, importing: bool = False) -> History:
    actor = IMPORTER if importing else USER
    history = History()
    history.apply(created(importing=importing), actor)
    history.apply(submitted("i1"), actor)
    by = IMPORTER if importing else "service:runtime"
    history.apply(turn_started(history.state), by)
    history.apply(step_started(history.state), by)
    history.apply(step_finished(history.state, calls=[proposed(index) for index in range(count)]), by)
    for name in list(history.state.calls):
        history.apply(approved(history.call(name)), by)
        history.apply(dispatched(history.call(name), effect), by)
    return history


def attempt_of(history: History, executor: str = "E1", pure: bool = False) -> Attempt:
    call = history.only_call
    return Attempt(call.call, call.attempt, claim_id(claimed(call, executor)), pure, history.now_ms, LEASE_MS)


def before(history: History, attempt: Attempt, later_ms: int = 0) -> Verdict:
    return before_running(history.state, attempt, attempt.appended_ms + later_ms)


# What may be claimed


def test_dispatched_calls_of_the_pool_are_claimable_in_their_order() -> None:
    history = dispatched_history(count=3)
    history.apply(claimed(history.call("1.1.1")), EXECUTOR)
    assert [call.call for call in claimable(history.state, "builtin")] == ["1.1.0", "1.1.2"]
    assert claimable(history.state, "gpu") == []


def test_nothing_is_claimable_between_turns_or_while_cancelling() -> None:
    assert claimable(History().idle().state, "builtin") == []
    history = dispatched_history()
    cancelling = replace(history.state.turn, cancelling="user")  # type: ignore[type-var]  # a turn is open
    assert claimable(replace(history.state, turn=cancelling), "builtin") == []


def test_nothing_is_claimed_or_watched_while_importing() -> None:
    history = dispatched_history(importing=True)
    assert claimable(history.state, "builtin") == []
    history.apply(claimed(history.only_call), IMPORTER)
    assert claimed_by_others(history.state, "builtin", "E2") == []


def test_claims_of_others_and_of_a_former_self_are_watched() -> None:
    history = dispatched_history(count=2)
    history.apply(claimed(history.call("1.1.0"), "e/old"), EXECUTOR)
    assert [call.call for call in claimed_by_others(history.state, "builtin", "e/new")] == ["1.1.0"]
    assert claimed_by_others(history.state, "builtin", "e/old") == []
    assert claimed_by_others(history.state, "gpu", "e/new") == []
    assert is_own_claim(history.call("1.1.0"), "e/old")
    assert not is_own_claim(history.call("1.1.0"), "e/new")
    assert not is_own_claim(history.call("1.1.1"), "e/old")


# Before it runs


def test_a_claim_waits_until_it_is_read_back_then_runs() -> None:
    history = dispatched_history()
    attempt = attempt_of(history)
    assert before(history, attempt) == "wait"
    history.apply(claimed(history.only_call), EXECUTOR)
    assert before(history, attempt) == "run"
    assert before(history, attempt, LEASE_MS - 1) == "run"


def test_a_claim_read_back_after_its_lease_never_ran() -> None:
    """Others count the lease too: they may have called it lost."""
    history = dispatched_history()
    attempt = attempt_of(history)
    history.apply(claimed(history.only_call), EXECUTOR)
    assert before(history, attempt, LEASE_MS) == "never_ran"


def test_a_claim_read_back_while_cancelling_never_ran() -> None:
    history = dispatched_history()
    attempt = attempt_of(history)
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(cancel_requested(history.state), USER)
    assert before(history, attempt) == "never_ran"


def test_a_claim_that_lost_is_forgotten() -> None:
    history = dispatched_history()
    attempt = attempt_of(history)
    history.apply(claimed(history.only_call, "E2"), EXECUTOR)
    assert before(history, attempt) == "forget"


def test_a_claim_for_a_call_that_was_cancelled_is_forgotten() -> None:
    history = dispatched_history()
    attempt = attempt_of(history)
    history.apply(cancel_requested(history.state), USER)
    assert history.only_call.settled
    assert before(history, attempt) == "forget"
    history.apply(turn_ended(history.state, "aborted"))
    assert before(history, attempt) == "forget"


def test_a_claim_for_an_earlier_attempt_is_forgotten() -> None:
    history = dispatched_history("idempotent")
    attempt = attempt_of(history)
    history.apply(lost(history.only_call))
    assert before(history, attempt) == "forget"
    history.apply(dispatched(history.only_call, "idempotent"))
    assert before(history, attempt) == "forget"


# While it runs


def running(effect: EffectClass = "unsafe") -> tuple[History, Attempt]:
    history = dispatched_history(effect)
    attempt = attempt_of(history)
    history.apply(claimed(history.only_call), EXECUTOR)
    return history, attempt


def test_what_runs_goes_on() -> None:
    history, attempt = running()
    assert while_running(history.state, attempt) == "run"


def test_it_stops_when_its_turn_is_cancelled() -> None:
    history, attempt = running()
    history.apply(cancel_requested(history.state), USER)
    assert while_running(history.state, attempt) == "stop"


def test_it_stops_when_its_turn_is_over() -> None:
    history, attempt = running()
    history.apply(lost(history.only_call))
    history.apply(turn_ended(history.state, "failed"))
    assert history.only_call.status == "unknown"
    assert while_running(history.state, attempt) == "stop"


def test_it_stops_when_another_settled_it() -> None:
    history, attempt = running()
    history.apply(lost(history.only_call))
    history.apply(resolved(history.only_call), USER)
    assert while_running(history.state, attempt) == "stop"
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "fine"))
    assert while_running(history.state, attempt) == "stop"


def test_what_was_taken_for_lost_goes_on_until_a_later_attempt() -> None:
    """Its end is the proof of what it did, and settles the unknown call."""
    history, attempt = running("idempotent")
    history.apply(lost(history.only_call))
    assert while_running(history.state, attempt) == "run"
    history.apply(dispatched(history.only_call, "idempotent"))
    assert while_running(history.state, attempt) == "stop"


def test_a_pure_call_goes_on_whoever_claimed_it() -> None:
    history = dispatched_history("pure")
    attempt = attempt_of(history, pure=True)
    assert while_running(history.state, attempt) == "run"
    history.apply(claimed(history.only_call, "E2"), EXECUTOR)
    assert while_running(history.state, attempt) == "run"
    history.apply(finished(history.only_call), EXECUTOR)
    assert while_running(history.state, attempt) == "stop"


# After it


def test_an_end_is_settled_once_nothing_speaks_of_the_attempt_as_under_way() -> None:
    history = dispatched_history("idempotent")
    attempt = attempt_of(history)
    assert not is_settled(history.state, attempt)
    history.apply(claimed(history.only_call), EXECUTOR)
    assert not is_settled(history.state, attempt)
    history.apply(lost(history.only_call))
    assert is_settled(history.state, attempt)
    history.apply(dispatched(history.only_call, "idempotent"))
    assert is_settled(history.state, attempt)
    assert is_settled(ThreadState(), attempt)


# Where it runs


def test_the_environment_is_that_of_the_turns_configuration() -> None:
    history = History()
    config = Config(model="m", environment=Environment(cwd="src", variables=("LANG",)), permission_profile="read-only")
    history.apply(created(config=config), USER)
    history.apply(submitted("i1"), USER)
    history.apply(turn_started(history.state))
    assert environment(history.state.turn) == {"cwd": "src", "profile": "read-only", "variables": ["LANG"]}


@pytest.mark.parametrize("state", [ThreadState(), History().idle().state])
def test_without_a_turn_there_is_none(state: ThreadState) -> None:
    assert environment(state.turn) == {}
