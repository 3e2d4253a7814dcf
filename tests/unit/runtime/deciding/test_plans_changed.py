"""What becomes of a plan's tasks when another version, a cancel or a close comes."""

from schemas.events import (
    InputSubmitted,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadCreated,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
)
from schemas.state import is_active
from services.runtime.deciding.decisions import AppendTo, LookAgain
from tests.support.recorded.histories import (
    RUNTIME,
    USER,
    cancel_requested,
    submitted,
    turn_ended,
    turn_started,
)
from tests.support.recorded.planning import (
    CALL,
    backed,
    calling,
    child_id,
    end_of,
    result_of,
    sent,
    settled,
    statuses,
    tasks,
)


class TestReplanning:
    def test_a_task_that_is_kept_goes_on_with_its_child(self):
        history = backed()
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"a": "", "d": "a"})), USER)
        decisions = settled(history)
        assert statuses(history) == {"a": "running", "c": "running", "b": "cancelled", "d": "pending"}
        assert history.state.plan.tasks["a"].child == child_id(1, "a")
        assert [append.key.thread for append in sent(decisions, ThreadCreated)] == [child_id(1, "a"), child_id(1, "c")]
        assert [append.key.thread for append in sent(decisions, TurnCancelRequested)] == [child_id(1, "c")]
        end_of(history, "a")
        settled(history)
        assert statuses(history)["d"] == "running"

    def test_one_that_is_left_out_is_stopped(self):
        history = backed({"a": ""})
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"b": ""})), USER)
        decisions = settled(history)
        child = child_id(1, "a")
        order = [type(each.event) for each in decisions if isinstance(each, AppendTo) and each.key.thread == child]
        assert order == [ThreadCreated, InputSubmitted, InputWithdrawn, TurnCancelRequested]
        assert not sent(settled(history, is_ahead=True), TurnCancelRequested)
        end_of(history, "a", "cancelled", "stopped")
        assert statuses(history) == {"b": "running", "a": "cancelled"}

    def test_and_given_up_where_it_does_not_end(self):
        history = backed({"a": ""})
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"b": ""})), USER)
        settled(history)
        looks = [each.at_ms for each in settled(history) if isinstance(each, LookAgain)]
        assert looks
        history.now_ms += 1_000_000
        settled(history)
        assert statuses(history)["a"] == "cancelled"
        assert "may still be ending" in str(history.state.plan.tasks["a"].result)

    def test_one_that_failed_begins_anew(self):
        history = backed({"a": ""})
        end_of(history, "a", "failed", "no")
        settled(history)
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"a": ""})), USER)
        settled(history)
        assert history.state.plan.tasks["a"].child == child_id(2, "a")

    def test_a_call_is_told_that_another_version_took_its_place(self):
        history = calling()
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"a": ""})), USER)
        settled(history)
        finished = result_of(history)
        assert finished.outcome == "failed"
        assert finished.result == {
            "version": 1,
            "status": "superseded",
            "reason": "version 2 of the plan was proposed in its place",
        }
        assert statuses(history) == {"a": "running", "c": "running", "b": "cancelled"}

    def test_a_call_waits_on_while_another_version_waits_for_its_answer(self):
        history = calling({"a": ""}, plan_approval="always")
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        settled(history)
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"z": ""})), USER)
        settled(history)
        assert history.call(CALL).status == "running"
        history.apply(PlanRejected(plan_version=2, by=USER, reason="no"), USER)
        settled(history)
        assert history.call(CALL).status == "running"
        end_of(history, "a")
        settled(history)
        assert result_of(history).outcome == "succeeded"


class TestStopping:
    def test_a_cancelled_turn_stops_what_its_call_had_planned(self):
        history = calling()
        history.apply(cancel_requested(history.state), USER)
        decisions = settled(history)
        assert statuses(history) == {"a": "running", "b": "cancelled", "c": "running"}
        assert history.state.plan.tasks["b"].result == "turn 1 is being cancelled"
        stopped = [append.key.thread for append in sent(decisions, TurnCancelRequested)]
        assert stopped == [child_id(1, "a"), child_id(1, "c")]
        end_of(history, "a", "cancelled", "stopped")
        end_of(history, "c")
        settled(history)
        assert result_of(history).outcome == "cancelled"
        assert history.state.turn is None

    def test_within_the_grace_time(self):
        history = calling({"a": ""})
        history.apply(cancel_requested(history.state), USER)
        settled(history)
        assert history.state.turn is not None
        history.now_ms += 1_000_000
        settled(history)
        assert statuses(history) == {"a": "cancelled"}
        assert history.state.turn is None

    def test_a_version_that_waits_dies_with_its_turn(self):
        history = calling(plan_approval="always")
        history.apply(cancel_requested(history.state), USER)
        settled(history)
        assert history.state.plan.rejection == "turn 1 is being cancelled"
        assert history.state.turn is None
        assert history.state.plan.waiting is None

    def test_one_whose_call_is_over_is_noticed_whenever(self):
        """Its turn was ended by another owner, before this one."""
        history = calling(plan_approval="always")
        call = history.call(CALL)
        history.apply(cancel_requested(history.state), USER)
        gone = ToolCallFinished(call=CALL, attempt=1, claim=call.claim or "", outcome="cancelled")
        history.apply(gone, RUNTIME)
        history.apply(turn_ended(history.state, "aborted"))
        assert is_active(history.state)
        settled(history)
        assert history.state.plan.rejection == "the call that proposed it is over"
        assert not is_active(history.state)

    def test_a_persons_plan_goes_on_without_a_turn(self):
        history = backed({"a": ""})
        history.apply(submitted("i1"), USER)
        history.apply(turn_started(history.state))
        history.apply(cancel_requested(history.state), USER)
        decisions = settled(history)
        assert isinstance(history.encoded[-1].record.data, TurnEnded)
        assert statuses(history) == {"a": "running"}
        assert not sent(decisions, TurnCancelRequested)

    def test_a_thread_closes_after_its_tasks(self):
        history = backed()
        history.apply(ThreadCloseRequested(), USER)
        decisions = settled(history)
        assert statuses(history)["b"] == "cancelled"
        assert len(sent(decisions, TurnCancelRequested)) == 2
        end_of(history, "a", "cancelled", "stopped")
        settled(history)
        assert history.state.status == "closing"
        history.now_ms += 1_000_000
        settled(history)
        assert isinstance(history.encoded[-1].record.data, ThreadClosed)
        assert statuses(history) == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}

    def test_and_takes_no_answer_any_more(self):
        history = backed(plan_approval="always")
        history.apply(ThreadCloseRequested(), USER)
        settled(history)
        assert history.state.plan.rejection == "the thread is being closed"
        assert history.state.status == "closed"
