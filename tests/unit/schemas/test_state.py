import pydantic
import pytest

from schemas.events import ThreadCloseRequested
from schemas.state import (
    NOTHING,
    QueuedInput,
    ThreadState,
    dump_state,
    is_active,
    load_state,
    make,
    unknown_calls,
    unsettled_calls,
    waits_for_others,
)
from tests.support.recorded.histories import (
    EXECUTOR,
    USER,
    History,
    approval_requested,
    approved,
    cancel_requested,
    claimed,
    denied,
    dispatched,
    finished,
    lost,
    plain_turn,
    proposed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
)


def test_states_are_stored_and_loaded():
    for history in (plain_turn(History()), History().with_unknown_call(), History().in_step()):
        for state in history.states:
            assert load_state(dump_state(state)) == state
    assert load_state(dump_state(NOTHING)) == ThreadState()


@pytest.mark.parametrize("raw", [b"", b"{", b'{"seq":"x"}', b'{"status":"odd"}', b"[]"])
def test_what_is_no_state(raw: bytes):
    with pytest.raises(pydantic.ValidationError):
        load_state(raw)


def test_nothing_is_not_active():
    assert not is_active(NOTHING)
    assert not NOTHING.exists


def test_where_something_would_be_decided_a_thread_is_active():
    log = History().idle()
    assert not is_active(log.state)
    log.apply(submitted("i1"), USER)
    assert is_active(log.state)
    log = plain_turn(History())
    assert not is_active(log.state)
    log.apply(ThreadCloseRequested(), USER)
    assert is_active(log.state)


@pytest.mark.parametrize(("effect", "active"), [("reconcilable", True), ("unsafe", False)])
def test_an_unknown_call_is_somebodys_to_reconcile(effect, active: bool):
    log = History().with_running_call(effect)
    log.apply(lost(log.only_call))
    log.apply(turn_ended(log.state, "failed"))
    assert is_active(log.state) == active


def test_calls_by_their_turn():
    log = History().with_calls(proposed(0), proposed(1))
    log.apply(denied(log.call("1.1.0")), USER)
    assert [call.call for call in unsettled_calls(log.state, 1)] == ["1.1.1"]
    assert unsettled_calls(log.state, 2) == []
    log = History().with_unknown_call()
    assert [call.call for call in unknown_calls(log.state)] == ["1.1.0"]
    assert [call.call for call in unknown_calls(log.state, 1)] == ["1.1.0"]
    assert unknown_calls(log.state, 2) == []


def test_a_turn_whose_children_work_waits_for_others():
    log = History().with_calls(proposed(0, "spawn_thread"), proposed(1))
    for name in ("1.1.0", "1.1.1"):
        log.apply(approved(log.call(name)), USER)
    log.apply(dispatched(log.call("1.1.0"), "idempotent", pool="thread"))
    assert not waits_for_others(log.state)
    log.apply(dispatched(log.call("1.1.1")))
    log.apply(claimed(log.call("1.1.1")), EXECUTOR)
    assert not waits_for_others(log.state)
    log.apply(finished(log.call("1.1.1")), EXECUTOR)
    assert waits_for_others(log.state)
    log.apply(finished(log.call("1.1.0")))
    assert not waits_for_others(log.state)


def test_a_turn_waits_for_people():
    log = History().idle()
    assert not waits_for_others(log.state)
    log.in_turn()
    assert not waits_for_others(log.state)
    log.apply(step_started(log.state))
    assert not waits_for_others(log.state)
    log = History().with_calls(proposed(0), proposed(1))
    log.apply(approval_requested(log.call("1.1.0")))
    assert not waits_for_others(log.state)
    log.apply(approval_requested(log.call("1.1.1")))
    assert waits_for_others(log.state)
    log.apply(approved(log.call("1.1.1")), USER)
    log.apply(dispatched(log.call("1.1.1"), pool="client"))
    assert not waits_for_others(log.state)
    log.apply(lost(log.call("1.1.1")))
    assert waits_for_others(log.state)
    log.apply(cancel_requested(log.state), USER)
    assert waits_for_others(log.state)


def test_unknown_calls_of_earlier_turns_are_no_calls_of_the_open_one():
    log = History().with_unknown_call()
    log.apply(turn_ended(log.state, "failed"))
    log.in_turn("i2")
    assert unsettled_calls(log.state, 2) == []
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, calls=[proposed(0), proposed(1)]))
    assert [call.call for call in log.state.calls.values()] == ["1.1.0", "2.1.0", "2.1.1"]
    assert [call.call for call in unsettled_calls(log.state, 2)] == ["2.1.0", "2.1.1"]
    assert not waits_for_others(log.state)
    for call in ("2.1.0", "2.1.1"):
        log.apply(approval_requested(log.call(call)))
    assert waits_for_others(log.state)
    assert [call.call for call in unsettled_calls(load_state(dump_state(log.state)), 2)] == ["2.1.0", "2.1.1"]


def test_a_value_is_made_with_its_defaults_and_in_the_order_of_its_fields():
    by_its_class = QueuedInput("i1", "queue", 3, held=True)
    made = make(QueuedInput, held=True, seq=3, mode="queue", input="i1")
    assert made == by_its_class
    assert list(vars(made)) == list(vars(by_its_class))
