"""Each row of the list of races that the rules of `schemas.thread` must survive, by its name.

A and B are two owners that both believe that they own the thread. What is decided before another record lands is made
first (`make`) and appended later (`add`). One row is not here: *state goes back* is about where readers of the log
start, and belongs to the frame that follows it (`services/chassis`).
"""

import pytest

from schemas.events import (
    InputWithdrawn,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
)
from schemas.ids import derive_command
from schemas.state import is_active
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    KEY,
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
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)


def test_burned_id():
    log = History().idle()
    log.apply(submitted("i1"), USER)
    stale = log.make(turn_started(log.state))
    log.apply(InputWithdrawn(input="i1"), USER)
    assert log.add(stale).effect == "superseded"
    log.apply(submitted("i2"), USER)
    again = log.make(turn_started(log.state))
    assert again.record.id == stale.record.id
    assert again.record.data_hash != stale.record.data_hash
    assert log.add(again).effect == "applied"


def test_cancelled_with_an_approved_call():
    log = History().with_approved_call()
    log.apply(cancel_requested(log.state), USER)
    assert log.only_call.outcome == "cancelled"
    log.apply(turn_ended(log.state, "aborted"))
    assert log.state.turn is None


def test_unseen_answer():
    log = History().in_step()
    seen_by_a = log.state
    answer_of_a = log.make(step_finished(seen_by_a, "done"))
    ahead = log.make(turn_ended(seen_by_a)).record
    log.apply(step_finished(log.state, calls=[proposed(0)]))  # B's
    end_of_a = log.make(turn_ended(seen_by_a).model_copy(update={"follows": answer_of_a.record.data_hash}))
    log.apply(approved(log.only_call, by="policy:never"))
    log.apply(dispatched(log.only_call, "pure"))
    log.apply(claimed(log.only_call), EXECUTOR)
    log.apply(finished(log.only_call), EXECUTOR)
    assert ahead.id == end_of_a.record.id
    assert log.add(answer_of_a).effect == "superseded"
    assert log.add(end_of_a).effect == "superseded"
    assert log.state.turn is not None


def test_other_tool_same_arguments():
    log = History().in_step()
    reads = log.fork()
    reads.apply(step_finished(log.state, calls=[proposed(0, "read_file", {"path": "a"})]))
    approval_of_b = log.make(approved(reads.only_call, by="policy:never"))
    log.apply(step_finished(log.state, calls=[proposed(0, "delete_file", {"path": "a"})]))  # A's
    assert log.add(approval_of_b).effect == "superseded"
    assert log.only_call.status == "proposed"


def test_completed_though_cancelled():
    log = History().in_turn()
    a = log.fork()
    batch = [a.apply(step_started(a.state)), a.apply(step_finished(a.state, "done")), a.apply(turn_ended(a.state))]
    log.apply(cancel_requested(log.state), USER)
    assert [log.add(made).effect for made in batch] == ["rejected", "rejected", "superseded"]
    assert log.state.turn is not None
    log.apply(turn_ended(log.state, "aborted"))
    assert log.state.last_outcome == "aborted"


def test_cancelled_over_an_unread_answer():
    """Whoever ends the turn goes on with what was said in it: with the next turn's model call, in the same batch."""
    log = History().in_step()
    log.apply(submitted("i2", "interrupt"), USER)
    b = log.fork()
    ahead = [b.apply(turn_ended(b.state, "aborted")), b.apply(turn_started(b.state)), b.apply(step_started(b.state))]
    log.apply(step_finished(log.state, "late, and kept"))  # A's
    assert [log.add(made).effect for made in ahead] == ["superseded", "rejected", "rejected"]
    log.apply(turn_ended(log.state, "aborted"))
    assert log.state.last_outcome == "aborted"


def test_completed_over_a_failed_step():
    log = History().in_step()
    log.apply(step_finished(log.state, "fine"))
    late_end = log.make(turn_ended(log.state))
    log.apply(submitted("i2", "steer"), USER)
    log.apply(step_started(log.state))
    log.apply(step_failed(log.state))
    assert log.add(late_end).effect == "superseded"
    assert log.state.turn is not None


def test_answer_to_another_start():
    log = History().in_turn()
    before_steering = log.state
    log.apply(submitted("s", "steer"), USER)
    start_of_a = log.make(step_started(before_steering, owner="A"))
    answer_of_a = log.make(step_finished(History(state=before_steering).after(start_of_a), "done"))
    log.apply(step_started(log.state, owner="B"))
    assert log.add(start_of_a).effect == "superseded"
    assert log.add(answer_of_a).effect == "superseded"
    assert log.state.turn is not None and log.state.turn.step is not None


def test_turn_with_more_inputs():
    log = History().idle()
    log.apply(submitted("a"), USER)
    a = log.fork()
    turn_of_a = a.apply(turn_started(a.state, ["a"]))
    step_of_a = a.apply(step_started(a.state))
    log.apply(submitted("b"), USER)
    log.apply(turn_started(log.state, ["a", "b"]))
    assert log.add(turn_of_a).effect == "superseded"
    assert log.add(step_of_a).effect == "superseded"


def test_retry_that_forgets():
    log = History().in_turn()
    log.apply(submitted("s", "steer"), USER)
    log.apply(step_started(log.state))
    log.apply(step_failed(log.state))
    assert log.append(step_started(log.state, inputs=[])).effect == "rejected"
    assert log.append(step_started(log.state)).effect == "applied"


@pytest.mark.parametrize("lands", ["configured", "rewound"])
def test_settings_just_before(lands: str):
    log = History().ended_turn()
    log.apply(submitted("i2"), USER)
    decided = log.make(turn_started(log.state))
    log.apply(ThreadConfigured(patch={"model": "other"}) if lands == "configured" else ThreadRewound(to_turn=1), USER)
    assert log.add(decided).effect == "superseded"
    log.apply(turn_started(log.state))
    assert log.state.turn is not None and log.state.config is not None
    assert log.state.turn.config.model == log.state.config.model


def test_child_input_twice():
    log = History().idle()
    once = log.make(submitted("task"))
    assert log.add(once).effect == "applied"
    log.apply(turn_started(log.state))
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "done"))
    log.apply(turn_ended(log.state))
    assert log.add(once).effect == "duplicate"
    assert log.append(submitted("task", text="in other words")).effect == "duplicate"
    assert log.state.queue == ()


def test_unknown_and_cancel():
    log = History().with_unknown_call()
    log.apply(cancel_requested(log.state), USER)
    assert log.only_call.status == "unknown"
    unnamed = turn_ended(log.state, "aborted").model_copy(update={"unknown_calls": ()})
    assert log.append(unnamed).effect == "superseded"
    log.apply(turn_ended(log.state, "aborted"))
    log.apply(resolved(log.only_call, "succeeded"), USER)
    assert log.only_call.outcome == "succeeded"


def test_may_have_run_and_cancel():
    log = History().with_running_call("idempotent")
    log.apply(lost(log.only_call))
    assert log.only_call.status == "repeatable"
    log.apply(cancel_requested(log.state), USER)
    assert log.only_call.status == "unknown"


def test_may_have_run_and_a_last_attempt_that_nobody_claimed():
    log = History().with_running_call("idempotent")
    log.apply(lost(log.only_call))
    log.apply(dispatched(log.only_call, "idempotent", last=True))
    log.apply(lost(log.only_call))
    assert log.only_call.status == "unknown"


def test_again_after_last():
    log = History().with_unknown_call(last=True)
    log.apply(resolved(log.only_call, "again"), USER)
    log.apply(dispatched(log.only_call))
    assert (log.only_call.status, log.only_call.attempt) == ("dispatched", 2)


def test_again_too_late():
    log = History().with_unknown_call()
    log.apply(turn_ended(log.state, "interrupted"))
    effect, reason = log.append(resolved(log.only_call, "again"), USER)
    assert (effect, reason) == ("rejected", "turn 1 is over: the call cannot run again in it")
    assert log.only_call.status == "unknown"


def test_second_opinion():
    log = History().with_unknown_call()
    second = log.make(resolved(log.only_call, "again"), USER)
    log.apply(resolved(log.only_call, "again"), USER)
    log.apply(dispatched(log.only_call))
    log.apply(claimed(log.only_call), EXECUTOR)
    log.apply(lost(log.only_call))
    assert log.only_call.status == "unknown"
    assert log.add(second).effect == "superseded"
    assert log.only_call.status == "unknown"


def test_not_started_while_cancelling():
    log = History().with_running_call()
    log.apply(cancel_requested(log.state), USER)
    assert log.only_call.status == "running"
    log.apply(finished(log.only_call, "not_started"), EXECUTOR)
    assert log.only_call.outcome == "cancelled"
    log.apply(turn_ended(log.state, "aborted"))


def test_lost_against_a_fresh_claim():
    log = History().with_dispatched_call()
    without_claim = log.make(lost(log.only_call))
    log.apply(claimed(log.only_call), EXECUTOR)
    assert log.add(without_claim).effect == "superseded"
    assert log.only_call.status == "running"


def test_result_for_anothers_claim():
    log = History().with_dispatched_call()
    claim_of_b = claimed(log.only_call, "E2")
    log.apply(claimed(log.only_call, "E1"), EXECUTOR)
    assert log.append(claim_of_b, EXECUTOR).effect == "superseded"
    assert log.append(finished(log.only_call, claim=claim_id(claim_of_b)), EXECUTOR).effect == "superseded"
    assert log.only_call.status == "running"


def test_late_proof():
    log = History().with_unknown_call()
    proof = log.make(finished(log.only_call), EXECUTOR)
    log.apply(resolved(log.only_call, "again"), USER)
    log.apply(dispatched(log.only_call))
    claim = log.make(claimed(log.only_call, "E2"), EXECUTOR)
    assert log.add(proof).effect == "applied"
    assert log.only_call.outcome == "succeeded"
    assert log.add(claim).effect == "superseded"
    assert log.only_call.outcome == "succeeded"


def test_dead_owners_start():
    log = History().in_step()
    log.apply(step_failed(log.state))
    start_of_a, start_of_b = [log.make(step_started(log.state, owner=owner)) for owner in "AB"]
    assert log.add(start_of_a).effect == "applied"  # and A is dead
    assert log.add(start_of_b).effect == "superseded"
    log.apply(step_started(log.state, owner="B"))
    log.apply(step_finished(log.state, "done"))
    log.apply(turn_ended(log.state))


def test_predicted_chain():
    log = History().in_step()
    a = log.fork()
    batch = [a.apply(step_finished(a.state, "done")), a.apply(turn_ended(a.state))]
    log.add(batch[0])
    log.apply(submitted("i2"), USER)
    assert log.add(batch[1]).effect == "applied"
    assert log.state.chain != a.state.chain


@pytest.mark.parametrize(
    "event",
    [submitted("i1"), turn_started(History().idle().state, ["i1"]), cancel_requested(History().state)],
    ids=lambda event: event.kind,
)
def test_import_and_live_while_importing(event):
    log = History()
    log.apply(created(importing=True), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    for actor in (USER, "service:runtime"):
        assert log.append(event, actor).effect == "rejected"
    assert not is_active(log.state)


def test_import_and_live_afterwards():
    log = History()
    log.apply(created(importing=True), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    late = [log.make(turn_started(log.state), IMPORTER), log.make(submitted("i2"), IMPORTER)]
    log.apply(ThreadImportEnded(source="s"), IMPORTER)
    assert [log.add(made).effect for made in late] == ["rejected", "rejected"]
    assert log.state.turn is None


def test_import_leftovers():
    log = History()
    log.apply(created(importing=True), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    log.apply(ThreadImportEnded(source="s"), IMPORTER)
    assert log.state.queue == ()
    assert not is_active(log.state)


def test_close_during_a_dead_import():
    log = History().idle()
    log.apply(ThreadImportStarted(source="s"), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    log.apply(turn_started(log.state), IMPORTER)
    log.apply(ThreadCloseRequested(), USER)
    assert log.state.turn is None
    log.apply(ThreadClosed())
    assert log.state.status == "closed"


def test_held_queue():
    log = History().in_turn()
    log.apply(submitted("i2"), USER)
    log.apply(cancel_requested(log.state, "recovery"))
    log.apply(turn_ended(log.state, "interrupted"))
    assert not is_active(log.state)
    assert log.append(turn_started(log.state)).effect == "rejected"
    log.apply(submitted("i3"), USER)
    log.apply(turn_started(log.state, ["i2"]))


def test_held_queue_is_released_between_the_cancel_and_the_end():
    log = History().in_turn()
    log.apply(submitted("i2"), USER)
    log.apply(cancel_requested(log.state, "recovery"))
    log.apply(submitted("i3"), USER)
    log.apply(turn_ended(log.state, "interrupted"))
    assert [item.held for item in log.state.queue] == [False, False]
    log.apply(turn_started(log.state, ["i2"]))


def test_first_input_with_its_thread():
    log = History()
    command = ("acme", "ann", "POST /v1/threads", KEY.thread, "retry-me")
    events = [created(), submitted("i1")]
    ids = [derive_command(*command, event.kind) for event in events]
    assert ids[0] != ids[1]
    for effect in ("applied", "duplicate"):
        for event, event_id in zip(events, ids, strict=True):
            assert log.append(event, USER, event_id).effect == effect
    assert len(log.state.queue) == 1
