"""What becomes of a plan: who answers it, when its tasks run, what its call is told."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from schemas.config import Config
from schemas.config import Limits as OwnLimits
from schemas.events import (
    InputSubmitted,
    Lineage,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    Task,
    TaskUpdated,
    TextItem,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadCreated,
    ToolCallDenied,
    TurnCancelRequested,
    service_event_id,
)
from schemas.ids import ThreadKey
from schemas.plan import TaskState, is_busy
from schemas.state import is_active
from services.chassis.catalog.tool_arguments import ArgumentCheck
from services.runtime.deciding import plans
from services.runtime.deciding.children import TITLE_CHARACTERS_MAX
from services.runtime.deciding.decisions import Append, ChildEnd, LookAgain, ReadChild
from services.runtime.deciding.own_tools import ENTRY
from services.runtime.deciding.plans import UPDATE_PLAN, task_text
from tests.support.recorded.deciding import LIMITS, idle, with_calls
from tests.support.recorded.histories import (
    KEY,
    NO_HASH,
    RUNTIME,
    USER,
    History,
    approval_requested,
    approved,
    cancel_requested,
    created,
    dispatched,
    proposed,
    step_finished,
    step_started,
    submitted,
    turn_started,
)
from tests.support.recorded.planning import (
    CALL,
    PLAN,
    advancing,
    backed,
    calling,
    child_id,
    end_of,
    result_of,
    sent,
    settled,
    statuses,
    tasks,
    tasks_of,
)


class TestAnswers:
    def test_by_policy(self):
        history = calling()
        assert history.state.plan.in_force == 1
        approved = next(made.record for made in history.encoded if made.record.kind == "plan.approved")
        assert approved.actor == "policy:never"
        assert statuses(history) == {"a": "running", "b": "pending", "c": "running"}

    @pytest.mark.parametrize("of_call", [True, False])
    def test_by_a_person(self, of_call: bool):
        history = calling(plan_approval="always") if of_call else backed(plan_approval="always")
        assert history.state.plan.waiting == 1
        assert not sent(settled(history), ThreadCreated)
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        settled(history)
        assert statuses(history)["a"] == "running"

    def test_a_turn_that_waits_for_a_person_does_not_use_its_time(self):
        history = calling(plan_approval="always")
        assert history.state.turn is not None and history.state.turn.waiting_since_ms is not None

    def test_a_rejection_is_what_the_model_is_told(self):
        history = calling(plan_approval="always")
        history.apply(PlanRejected(plan_version=1, by=USER, reason="too much at once"), USER)
        settled(history)
        finished = result_of(history)
        assert finished.outcome == "failed"
        assert finished.result == {"version": 1, "status": "rejected", "reason": "too much at once"}

    def test_what_waits_is_approved_where_nobody_has_to_be_asked_any_more(self):
        history = backed(plan_approval="always")
        history.apply(ThreadConfigured(patch={"plan_approval": "never"}), USER)
        assert is_active(history.state)
        settled(history)
        assert history.state.plan.in_force == 1

    def test_an_answer_dies_with_its_version(self):
        history = backed(plan_approval="always")
        history.apply(PlanProposed(plan_version=2, tasks=tasks({"z": ""})), USER)
        late = history.append(PlanApproved(plan_version=1, by=USER), USER)
        assert late.effect == "superseded"
        settled(history)
        assert (history.state.plan.waiting, history.state.plan.in_force) == (2, None)

    def test_more_tasks_than_are_allowed(self):
        history = idle()
        history.apply(PlanProposed(plan_version=1, tasks=tasks({f"t{n}": "" for n in range(65)})), USER)
        settled(history)
        assert history.state.plan.rejection == "the plan has 65 tasks; 64 are allowed"

    def test_below_the_deepest_thread(self):
        lineage = Lineage(kind="child", parent="p", seq=1, chain=NO_HASH, call="1.1.0", depth=LIMITS.child_depth)
        history = History()
        history.apply(created(config=Config(model="scripted:test"), lineage=lineage), RUNTIME)
        history.apply(PlanProposed(plan_version=1, tasks=tasks({"a": ""})), USER)
        settled(history)
        assert "4 generations below the topmost thread, and 3 are allowed" in (history.state.plan.rejection or "")

    def test_until_the_time_of_its_call_is_over(self):
        history = calling(plan_approval="always")
        call = history.call(CALL)
        history.now_ms = call.deadline_ms
        settled(history)
        assert history.state.plan.rejection == "the time of the call that proposed it is over"
        assert result_of(history).outcome == "failed"


class TestClosed:
    """`thread.closed` may come of an owner that lags behind: from when a thread is closing, its plan only comes to rest."""

    def test_no_version_is_approved_any_more(self):
        history = backed({"a": ""}, plan_approval="always")
        history.apply(ThreadCloseRequested(), USER)
        closing = ("rejected", "the thread is closing")
        assert history.append(PlanApproved(plan_version=1, by=USER), USER) == closing
        settled(history)
        assert (history.state.status, history.state.plan.waiting) == ("closed", None)
        assert not is_busy(history.state.plan)

    def test_no_task_begins_any_more(self):
        history = idle()
        history.apply(PlanProposed(plan_version=1, tasks=tasks({"a": ""})), USER)
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        behind = TaskUpdated(plan_version=1, task="a", status="running", child=child_id(1, "a"))
        history.apply(ThreadCloseRequested(), USER)
        assert history.append(behind) == ("rejected", "the thread is closing")
        settled(history)
        assert (history.state.status, statuses(history)) == ("closed", {"a": "cancelled"})

    def test_nothing_is_decided_about_a_plan_over_which_its_thread_was_closed(self):
        history = backed({"a": ""})
        history.apply(ThreadCloseRequested(), USER)
        history.apply(ThreadClosed(), RUNTIME)
        assert settled(history) == []


class TestTime:
    def test_a_task_that_runs_longer_than_its_call_may_is_told_to_stop_before_it_is_given_up(self):
        history = calling({"a": ""})
        call = history.call(CALL)
        history.now_ms = call.deadline_ms - 1
        assert not sent(settled(history), TurnCancelRequested)
        history.now_ms = call.deadline_ms
        decisions = settled(history)
        assert [append.key.thread for append in sent(decisions, TurnCancelRequested)] == [child_id(1, "a")]
        assert statuses(history) == {"a": "running"}
        [gone_ms] = [each.at_ms for each in decisions if isinstance(each, LookAgain)]
        assert call.deadline_ms < gone_ms
        history.now_ms = call.deadline_ms + 1_000_000
        settled(history)
        assert statuses(history) == {"a": "cancelled"}
        assert result_of(history).outcome == "failed"


class TestProposals:
    @pytest.mark.parametrize(
        ("graph", "why"),
        [
            ({"a": "b"}, "This is not a plan: task 'a' depends on 'b', which is no task of this plan."),
            ({"a": "b", "b": "a"}, "This is not a plan: tasks wait for each other: a, b, a."),
        ],
    )
    def test_what_is_no_graph_is_refused(self, graph: dict[str, str], why: str):
        history = calling(graph)
        denied = [made.record.data for made in history.encoded if isinstance(made.record.data, ToolCallDenied)]
        assert [(event.by, event.reason) for event in denied] == [("policy:arguments", why)]

    def test_so_is_what_is_beyond_the_limits(self):
        history = calling({f"t{n}": "" for n in range(65)})
        (denied,) = [made.record.data for made in history.encoded if isinstance(made.record.data, ToolCallDenied)]
        assert denied.by == "policy:limits"
        assert denied.reason == "The plan has 65 tasks; 64 are allowed. Work on it yourself."

    def test_of_far_too_many_tasks_none_is_looked_at(self):
        args = {"tasks": [{}] * 1_001}
        assert [misfit.detail for misfit in ArgumentCheck().misfits(UPDATE_PLAN, args)] == [
            "has 1001 items; 1000 are allowed"
        ]

    @pytest.mark.parametrize("args", [{"tasks": tasks_of({"a": "a"})}, {"tasks": [{"id": ""}]}])
    def test_an_edited_call_may_be_no_plan_either(self, args: dict[str, object]):
        history = with_calls(proposed(0, "update_plan", args))
        history.apply(approval_requested(history.call(CALL)))
        history.apply(approved(history.call(CALL)), USER)
        history.apply(dispatched(history.call(CALL), "idempotent", pool="thread"))
        settled(history)
        finished = result_of(history)
        assert finished.outcome == "failed"
        assert str(finished.result).startswith("This is not a plan")
        assert history.state.plan.last_version == 0

    def test_a_call_that_is_cancelled_before_it_has_proposed(self):
        history = with_calls(proposed(0, "update_plan", {"tasks": tasks_of(PLAN)}))
        history.apply(approved(history.call(CALL)), USER)
        history.apply(dispatched(history.call(CALL), "idempotent", pool="thread"))
        history.apply(cancel_requested(history.state), USER)
        settled(history)
        assert result_of(history).outcome == "cancelled"
        assert history.state.plan.last_version == 0
        assert history.state.turn is None

    def test_of_a_step_one_after_the_other(self):
        first, second = (proposed(n, "update_plan", {"tasks": tasks_of({name: ""})}) for n, name in enumerate("ab"))
        history = with_calls(first, second)
        settled(history)
        assert history.call("1.1.1").status == "approved"
        end_of(history, "a")
        settled(history)
        assert history.state.plan.in_force == 2
        assert history.state.plan.tasks["b"].status == "running"


class TestTasks:
    def test_run_in_the_order_of_their_dependencies(self):
        history = calling()
        end_of(history, "a")
        settled(history)
        assert statuses(history) == {"a": "succeeded", "b": "running", "c": "running"}

    def test_no_more_at_once_than_the_limit(self):
        history = calling(dict.fromkeys("abcdef", ""), limits=OwnLimits(parallel_tasks=2))
        assert list(statuses(history).values()).count("running") == 2
        end_of(history, "a")
        settled(history)
        assert [name for name, status in statuses(history).items() if status == "running"] == ["b", "c"]

    def test_a_task_is_told_to_run_once_its_child_is_in_the_log(self):
        history = backed(plan_approval="always")
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        assert not sent(settled(history, stored=(), is_ahead=True), ThreadCreated)
        decisions = settled(history, stored=())
        assert set(statuses(history).values()) == {"pending"}
        created_ = sent(decisions, ThreadCreated)
        assert [append.key.thread for append in created_] == [child_id(1, "a"), child_id(1, "c")]
        assert not sent(decisions, InputSubmitted)
        assert (created_[0].event.lineage.seq, created_[0].event.lineage.task) == (history.state.seq, "a")
        stored = {(created_[1].key, service_event_id(created_[1].key, created_[1].event))}
        settled(history, stored=stored)
        assert statuses(history) == {"a": "pending", "b": "pending", "c": "running"}
        assert history.state.plan.tasks["c"].child == child_id(1, "c")

    def test_no_child_is_created_that_has_to_wait_for_its_turn(self):
        history = backed({"a": "", "b": "", "c": ""}, plan_approval="always", limits=OwnLimits(parallel_tasks=2))
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        created_ = sent(settled(history, stored=()), ThreadCreated)
        assert [append.key.thread for append in created_] == [child_id(1, "a"), child_id(1, "b")]

    def test_nor_one_of_a_version_that_is_over(self):
        history = backed(plan_approval="always")
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        history.apply(ThreadCloseRequested(), USER)
        assert not sent(settled(history, stored=()), ThreadCreated)
        assert set(statuses(history).values()) == {"cancelled"}

    def test_a_child_begins_once_the_task_was_read_back(self):
        history = calling()
        assert not sent(settled(history, is_ahead=True), ThreadCreated)
        decisions = settled(history)
        begun = sent(decisions, ThreadCreated)
        assert [append.key for append in begun] == [ThreadKey(KEY.tenant, child_id(1, name)) for name in "ac"]
        lineage = begun[0].event.lineage
        assert (lineage.kind, lineage.parent, lineage.plan_version, lineage.task, lineage.depth) == (
            *("child", KEY.thread, 1, "a"),
            1,
        )
        assert (lineage.seq, lineage.chain) == (history.state.seq, history.state.chain)
        assert begun[0].event.title == "A"
        asked = sent(decisions, InputSubmitted)
        assert [append.event.items for append in asked] == [(TextItem(text="A"),), (TextItem(text="C"),)]

    def test_a_child_may_use_what_is_left_to_the_turn(self):
        history = calling(limits=OwnLimits(turn_tokens=1_000))
        begun = sent(settled(history), ThreadCreated)
        assert {append.event.config.limits.turn_tokens for append in begun} == {890}
        between = backed(limits=OwnLimits(turn_tokens=1_000))
        assert {append.event.config.limits.turn_tokens for append in sent(settled(between), ThreadCreated)} == {1_000}

    def test_one_of_a_persons_version_has_nothing_of_a_turn_that_happens_to_be_open(self):
        history = idle(limits=OwnLimits(turn_tokens=100))
        history.apply(submitted("i1"), USER)
        history.apply(turn_started(history.state))
        history.apply(step_started(history.state))
        history.apply(step_finished(history.state, "there"))
        history.apply(ThreadConfigured(patch={"instructions": "be brief", "plan_approval": "always"}), USER)
        assert history.state.turn is not None and history.state.turn.input_tokens == 100
        history.apply(PlanProposed(plan_version=1, tasks=tasks({"a": ""})), USER)
        assert not any(isinstance(each, Append) for each in plans.advance(*advancing(history)))
        history.apply(PlanApproved(plan_version=1, by=USER), USER)
        [running] = plans.advance(*advancing(history))
        assert isinstance(running, Append)
        history.apply(running.event, running.actor)
        [begun] = sent(plans.advance(*advancing(history)), ThreadCreated)
        assert begun.event.config == history.state.config
        assert begun.event.config.limits.turn_tokens == 100

    def test_a_long_title_is_cut(self):
        history = idle()
        history.apply(PlanProposed(plan_version=1, tasks=(Task(id="a", title="x" * 500),)), USER)
        (begun,) = sent(settled(history), ThreadCreated)
        assert begun.event.title == "x" * TITLE_CHARACTERS_MAX

    def test_what_a_child_is_asked(self):
        history = idle()
        graph = (
            Task(id="a", title="A"),
            Task(id="b", title="B"),
            Task(id="c", title="C", depends_on=("a", "b"), instructions="Do it."),
        )
        history.apply(PlanProposed(plan_version=1, tasks=graph), USER)
        settled(history)
        end_of(history, "a", result={"found": [2]})
        end_of(history, "b", result=None)
        plan = history.state.plan
        assert task_text(plan, graph[2]) == (
            'C\n\nDo it.\n\nResults of the tasks before it:\n\na (A): {"found":[2]}\n\nb (B): no result was reported'
        )

    def test_a_failure_stops_those_that_depend_on_it(self):
        history = calling({"a": "", "b": "a", "c": "b a", "d": ""})
        end_of(history, "a", "failed", "it broke")
        settled(history)
        assert statuses(history) == {"a": "failed", "b": "cancelled", "c": "cancelled", "d": "running"}
        assert history.state.plan.tasks["c"].result == "the task 'a' has failed"
        end_of(history, "d")
        settled(history)
        finished = result_of(history)
        assert finished.outcome == "failed"
        assert finished.result == {
            "version": 1,
            "status": "ended",
            "tasks": [
                {"id": "a", "status": "failed", "result": "it broke"},
                {"id": "b", "status": "cancelled", "result": "the task 'a' has failed"},
                {"id": "c", "status": "cancelled", "result": "the task 'a' has failed"},
                {"id": "d", "status": "succeeded", "result": "done"},
            ],
        }

    def test_a_task_may_have_nothing_to_tell(self):
        history = calling({"a": ""})
        end_of(history, "a", result=None)
        settled(history)
        assert result_of(history).result == {
            "version": 1,
            "status": "ended",
            "tasks": [{"id": "a", "status": "succeeded"}],
        }

    def test_of_a_long_chain_each_task_is_looked_at_once(self):
        looks = 0

        class Needed(tuple[str, ...]):
            __slots__ = ()

            def __iter__(self) -> Iterator[str]:
                nonlocal looks
                looks += 1
                return super().__iter__()

        history = backed({"t0": ""})
        end_of(history, "t0", "failed", "it broke")
        [first] = history.state.plan.tasks.values()
        chain = {
            f"t{n}": TaskState(Task.model_construct(id=f"t{n}", title="T", depends_on=Needed([f"t{n - 1}"])))
            for n in range(300, 0, -1)
        }
        history.state.plan = replace(history.state.plan, tasks={**chain, "t0": first})
        moves = plans.advance(*advancing(history))
        assert {move.event.task for move in moves} == set(chain)
        assert {move.event.result for move in moves} == {"the task 't0' has failed"}
        assert looks <= 4 * len(chain)

    def test_so_does_a_task_that_was_cancelled(self):
        history = backed({"a": "", "b": "a"})
        end_of(history, "a", "cancelled", None)
        settled(history)
        assert history.state.plan.tasks["b"].result == "the task 'a' was cancelled"
        assert not is_active(history.state)

    def test_an_end_that_nobody_told_is_looked_up(self):
        history = backed({"a": ""})
        decisions = settled(history)
        (look,) = [each for each in decisions if isinstance(each, LookAgain)]
        assert look.at_ms == history.now_ms + 1000 * LIMITS.child_look_seconds
        history.now_ms = look.at_ms
        decisions = settled(history)
        child = ThreadKey(KEY.tenant, child_id(1, "a"))
        assert [each.key for each in decisions if isinstance(each, ReadChild)] == [child]
        settled(history, children={child.thread: ChildEnd("succeeded", "42")})
        assert history.state.plan.tasks["a"].result == "42"

    @pytest.mark.parametrize(
        ("outcome", "status"),
        [("succeeded", "succeeded"), ("failed", "failed"), ("timed_out", "failed"), ("cancelled", "cancelled")],
    )
    def test_what_an_end_is_to_the_task(self, outcome, status: str):
        history = backed({"a": ""})
        settled(history, children={child_id(1, "a"): ChildEnd(outcome, "x")})
        assert statuses(history) == {"a": status}

    def test_results_share_what_the_call_may_tell(self):
        graph = {f"t{n}": "" for n in range(30)}
        history = calling(graph, limits=OwnLimits(parallel_tasks=4))
        for name in graph:
            settled(history)
            end_of(history, name, result="x" * 4_000)
        settled(history)
        shown = result_of(history).result
        assert isinstance(shown, dict)
        assert all(0 < len(task["result"]) <= 32 * 1024 // 30 for task in shown["tasks"])
        assert shown["tasks"][0]["result"].endswith(f"the whole answer is in thread {child_id(1, 't0')}]")


def test_the_tool_is_there_for_models():
    assert UPDATE_PLAN in ENTRY.tools
    assert UPDATE_PLAN.effect == "idempotent"
    assert not UPDATE_PLAN.parallel
