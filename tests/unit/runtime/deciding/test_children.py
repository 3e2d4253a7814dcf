"""What is decided about child threads: how one begins, what its parent waits for, how its end is told."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.canonical import call_hash
from schemas.config import Config
from schemas.config import Limits as OwnLimits
from schemas.events import (
    InputSubmitted,
    InputWithdrawn,
    Lineage,
    RequestedCall,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadCreated,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import TenantId, ThreadId, ThreadKey, derive_child, derive_child_input
from schemas.state import NOTHING
from schemas.tools import Catalog
from services.runtime.deciding import children
from services.runtime.deciding.children import Origin
from services.runtime.deciding.decisions import Append, AppendTo, ChildEnd, Decision, LookAgain, ReadChild, World
from services.runtime.deciding.own_tools import ENTRY
from tests.support.recorded.deciding import (
    BUILTIN,
    LIMITS,
    appended,
    calling,
    decided,
    idle,
    in_step,
    looks_again,
    settle,
    with_approved,
    with_calls,
    world,
)
from tests.support.recorded.histories import (
    KEY,
    USER,
    History,
    cancel_requested,
    created,
    finished,
    proposed,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)

CATALOG = Catalog({"builtin": BUILTIN, "runtime": ENTRY})
CHILD = children.child_of(KEY, Origin("1.1.0"))
FIRST = derive_child_input(CHILD)
LOOK = LIMITS.child_look_seconds
GRACE = LIMITS.deadline_grace_seconds
DONE = ChildEnd("succeeded", "42")


def spawn(index: int = 0, **args: Any) -> Any:
    return proposed(index, "spawn_thread", {"task": "count", **args})


def spawned(**config: Any) -> History:
    """A call of spawn_thread is running."""
    args = config.pop("args", {})
    history = with_approved(spawn(**args), **config)
    dispatched = appended(history, ToolCallDispatched, catalog=CATALOG)
    assert (dispatched.pool, dispatched.last, dispatched.effect) == ("thread", True, "idempotent")
    return history


def waits(history: History, after_seconds: float = 0, **fields: Any) -> list[Decision]:
    return list(decided(history, after_seconds, catalog=CATALOG, **fields))


def sent(history: History, after_seconds: float = 0, **fields: Any) -> list[Any]:
    return [each.event for each in waits(history, after_seconds, **fields) if isinstance(each, AppendTo)]


def begun(history: History, after_seconds: float = 0, **fields: Any) -> ThreadCreated:
    created_, submitted_ = sent(history, after_seconds, **fields)[:2]
    assert isinstance(submitted_, InputSubmitted) and isinstance(created_, ThreadCreated)
    return created_


def looks(history: History, after_seconds: float = 0, **fields: Any) -> float:
    """Seconds from now."""
    (look,) = [each for each in waits(history, after_seconds, **fields) if isinstance(each, LookAgain)]
    return (look.at_ms - history.now_ms) / 1000 - after_seconds


# Ids


def test_children_of_one_call_of_one_thread_have_one_id() -> None:
    other = ThreadKey(TenantId("other"), KEY.thread)
    ids = [derive_child(KEY, "1.1.0"), derive_child(KEY, "1.1.1"), derive_child(other, "1.1.0")]
    assert derive_child(KEY, "1.1.0") == ids[0] and len(set(ids)) == 3
    assert children.child_of(KEY, Origin(None, 2, "build")) == (KEY.tenant, derive_child(KEY, "task 2 build"))


def test_the_child_of_an_ephemeral_thread_is_ephemeral() -> None:
    assert ThreadKey(KEY.tenant, derive_child(ThreadKey(KEY.tenant, ThreadId("e-1")), "1.1.0")).ephemeral
    assert not CHILD.ephemeral


# The proposal


def test_it_is_approved_and_dispatched_as_any_other() -> None:
    history = with_calls(spawn())
    appended(history, ToolCallApproved, catalog=CATALOG)
    appended(history, ToolCallDispatched, catalog=CATALOG)
    assert history.call("1.1.0").status == "running" and history.state.turn is not None
    assert history.state.turn.children == 1


@pytest.mark.parametrize(
    ("args", "config", "limits", "says"),
    [
        ({}, {}, {"child_depth": 0}, "1 generations below the topmost thread; 0 are"),
        ({}, {"limits": OwnLimits(child_depth=0)}, {}, "0 are"),
        ({}, {"limits": OwnLimits(children_per_turn=0)}, {}, "may begin 0 child threads"),
        ({}, {"limits": OwnLimits(turn_tokens=110)}, {}, "no tokens left"),
        ({}, {}, {"turn_tokens": 100}, "no tokens left"),
        ({"tools": ["read", "rm", "dd"]}, {}, {}, "you do not have: rm, dd."),
        ({"tools": ["shell"]}, {"tools": ("read", "spawn_thread")}, {}, "you do not have: shell."),
    ],
)
def test_what_is_beyond_a_limit_is_denied_with_the_reason(
    args: dict[str, Any], config: dict[str, Any], limits: dict[str, Any], says: str
) -> None:
    history = with_calls(spawn(**args), **config)
    denied = appended(history, ToolCallDenied, catalog=CATALOG, limits=replace(LIMITS, **limits))
    assert says in denied.reason and denied.by.startswith("policy:")


def test_children_are_counted_over_the_steps_of_a_turn() -> None:
    limits = replace(LIMITS, children_per_turn=2, calls_per_step=9)
    history = spawned()
    history.apply(finished(history.call("1.1.0")))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, calls=[spawn(0), spawn(1)]))
    first, second = waits(history, limits=limits)
    assert isinstance(first, Append) and isinstance(second, Append)
    assert isinstance(first.event, ToolCallApproved) and isinstance(second.event, ToolCallDenied)
    assert "may begin 2 child threads" in second.event.reason


def test_a_child_counts_its_depth() -> None:
    history = History()
    lineage = Lineage(kind="child", parent="p", seq=1, chain="0" * 64, call="1.1.0", depth=2)
    history.apply(created(config=Config(model="m"), lineage=lineage), USER)
    history.apply(submitted("i1"), USER)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, calls=[spawn()]))
    denied = appended(history, ToolCallDenied, catalog=CATALOG, limits=replace(LIMITS, child_depth=2))
    assert "3 generations" in denied.reason
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, calls=[spawn()]))
    appended(history, ToolCallApproved, catalog=CATALOG)
    appended(history, ToolCallDispatched, catalog=CATALOG)
    lineage_below = begun(history).lineage
    assert lineage_below is not None and lineage_below.depth == 3


# The beginning


def test_it_begins_with_what_the_call_asks_for() -> None:
    args = {"title": "Count", "instructions": "be brief", "tools": ["read"], "model": "small"}
    history = spawned(instructions="be long", tools=None, approval="never", args=args)
    first, second = sent(history)
    state = history.state
    assert first.config == Config(model="small", instructions="be brief", tools=("read",), approval="never")
    assert first.title == "Count"
    assert first.lineage == Lineage(
        kind="child", parent=KEY.thread, seq=state.seq, chain=state.chain, call="1.1.0", depth=1
    )
    assert second.input == FIRST and [item.text for item in second.items] == ["count"]
    assert {each.key for each in waits(history) if isinstance(each, AppendTo)} == {CHILD}


def test_it_has_its_parents_settings_otherwise() -> None:
    history = spawned(instructions="be long", tools=("read", "spawn_thread"), approval="never")
    made = begun(history)
    assert made.config == history.state.config and made.title is None


@pytest.mark.parametrize(
    ("own", "service", "left"),
    [(None, 0, None), (200, 0, 90), (None, 150, 40), (200, 150, 40), (150, 200, 40)],
)
def test_its_tokens_are_at_most_what_its_parents_turn_has_left(own: int | None, service: int, left: int | None) -> None:
    """110 of them are used."""
    limits = replace(LIMITS, turn_tokens=service)
    history = spawned(limits=OwnLimits(turn_tokens=own, steps_per_turn=4))
    assert begun(history, limits=limits).config.limits == OwnLimits(turn_tokens=left, steps_per_turn=4)


def test_it_begins_once_the_call_was_read_back() -> None:
    history = spawned()
    assert sent(history, is_ahead=True) == []
    assert len(sent(history)) == 2


def test_it_is_looked_up_now_and_then() -> None:
    history = spawned()
    assert not any(isinstance(each, ReadChild) for each in waits(history))
    assert looks(history) == LOOK
    assert ReadChild(CHILD, FIRST) in waits(history, LOOK)
    assert looks(history, LOOK) == LOOK
    read_ms = history.now_ms + 1000 * LOOK
    assert not any(isinstance(each, ReadChild) for each in waits(history, LOOK + 1, children_read_ms=read_ms))
    assert looks(history, LOOK + 1, children_read_ms=read_ms) == LOOK - 1


# The end, as the parent looks it up


@pytest.mark.parametrize("is_ahead", [True, False])
def test_an_end_that_was_looked_up_is_the_calls(is_ahead: bool) -> None:
    history = spawned()
    claim = history.call("1.1.0").claim
    fields = {"catalog": CATALOG, "children": {CHILD.thread: DONE}, "is_ahead": is_ahead}
    event = appended(history, ToolCallFinished, **fields)
    assert (event.claim, event.outcome) == (claim, "succeeded")
    assert event.result == {"thread": CHILD.thread, "content": [{"type": "text", "text": "42"}]}


def test_another_childs_end_is_not() -> None:
    history = spawned()
    assert not any(isinstance(each, Append) for each in waits(history, children={"another": DONE}))


# Stopping


def stopped(history: History, after_seconds: float = 0, **fields: Any) -> bool:
    *_, withdrawn, cancelled = [*sent(history, after_seconds, **fields), None, None][:4]
    return withdrawn == InputWithdrawn(input=FIRST) and cancelled == TurnCancelRequested(turn=1, reason="parent")


def test_a_cancelled_turn_stops_its_children_and_waits_for_all_below_them() -> None:
    history = spawned()
    assert not stopped(history)
    history.apply(cancel_requested(history.state), USER)
    assert stopped(history) and begun(history)
    assert not sent(history, is_ahead=True)
    assert looks(history) == LOOK - 1
    gone = GRACE * (1 + LIMITS.child_depth)
    read_ms = history.now_ms + 1000 * (gone - 1)
    assert looks(history, gone - 1, children_read_ms=read_ms) == 1
    event = appended(history, ToolCallFinished, gone, catalog=CATALOG)
    assert event.outcome == "cancelled" and "grace time" in str(event.result)
    end = appended(history, TurnEnded, gone, catalog=CATALOG)
    assert (end.outcome, end.unknown_calls) == ("aborted", ())


def test_its_end_comes_before_that() -> None:
    history = spawned()
    history.apply(cancel_requested(history.state), USER)
    end = ChildEnd("cancelled", "stopped")
    event = appended(history, ToolCallFinished, catalog=CATALOG, children={CHILD.thread: end})
    assert event.outcome == "cancelled"


def test_the_deepest_thread_waits_for_one_more_grace_time() -> None:
    limits = replace(LIMITS, child_depth=0)
    history = spawned()
    history.apply(cancel_requested(history.state), USER)
    read_ms = history.now_ms + 2000 * GRACE
    assert looks(history, 2 * GRACE - 1, limits=limits, children_read_ms=read_ms) == 1


def test_cancelling_waits_for_executors_and_children_beside_each_other() -> None:
    history = with_approved(proposed(0), spawn(1))
    for _ in range(2):
        event = next(each for each in waits(history) if isinstance(each, Append)).event
        history.apply(event)
    assert [call.status for call in history.state.calls.values()] == ["dispatched", "running"]
    history.apply(cancel_requested(history.state), USER)
    # The dispatched call was cancelled at once.
    assert [call.status for call in history.state.calls.values()] == ["settled", "running"]
    assert sent(history)


def test_a_child_that_does_not_end_in_time_is_stopped_and_given_up() -> None:
    history = spawned()
    deadline = (history.call("1.1.0").deadline_ms - history.now_ms) / 1000
    assert not stopped(history, deadline - 1)
    assert stopped(history, deadline)
    gone = deadline + GRACE * (1 + LIMITS.child_depth)
    event = appended(history, ToolCallFinished, gone, catalog=CATALOG)
    assert event.outcome == "timed_out"


def test_one_that_is_not_in_the_log_yet_is_not_given_up_and_is_sent_again() -> None:
    """The result names it, so the call waits until the log has it."""
    history = spawned()
    history.apply(cancel_requested(history.state), USER)
    gone = GRACE * (1 + LIMITS.child_depth)
    read_ms = history.now_ms + 1000 * gone
    fields: dict[str, Any] = {"stored": (), "children_read_ms": read_ms}
    assert not any(isinstance(each, Append) for each in waits(history, gone, **fields))
    assert stopped(history, gone, **fields) and begun(history, gone, **fields)
    assert looks(history, gone, **fields) == LOOK
    event = appended(history, ToolCallFinished, gone, catalog=CATALOG)
    assert event.outcome == "cancelled"


def test_closing_cancels_stops_and_ends() -> None:
    history = spawned()
    history.apply(ThreadCloseRequested(), USER)
    assert stopped(history)
    history.apply(finished(history.call("1.1.0"), "cancelled"))
    end = appended(history, TurnEnded, catalog=CATALOG)
    assert (end.outcome, end.reason) == ("aborted", "cancelled: close")
    appended(history, ThreadClosed, catalog=CATALOG)


# The budget


def test_a_turn_that_has_used_its_tokens_takes_no_further_step() -> None:
    history = with_approved(proposed(0), limits=OwnLimits(turn_tokens=110))
    settle(history, "1.1.0")
    end = appended(history, TurnEnded)
    assert (end.outcome, end.reason) == ("failed", "the turn has used 110 tokens; 110 are its limit")


@pytest.mark.parametrize(("own", "service"), [(None, 0), (111, 0), (None, 111), (111, 500)])
def test_one_that_has_not_goes_on(own: int | None, service: int) -> None:
    history = with_approved(proposed(0), limits=OwnLimits(turn_tokens=own))
    settle(history, "1.1.0")
    (step,) = decided(history, limits=replace(LIMITS, turn_tokens=service))
    assert isinstance(step, Append) and step.event.kind == "step.started"


def test_an_answer_beyond_it_is_an_answer() -> None:
    history = in_step(limits=OwnLimits(turn_tokens=50))
    history.apply(step_finished(history.state, "done"))
    assert appended(history, TurnEnded).outcome == "completed"


# The child's side


def as_child(**origin: Any) -> History:
    """Its first input waits."""
    history = History(key=CHILD)
    lineage = Lineage(kind="child", parent=KEY.thread, seq=1, chain="0" * 64, depth=1, **origin)
    history.apply(created(config=Config(model="m"), lineage=lineage))
    history.apply(submitted(FIRST))
    return history


def own_end(history: History, answer: str | None = "42") -> ChildEnd | None:
    """By the last record."""
    before, after = history.states[-2:]
    return children.own_end(CHILD, before, after, history.records[-1], lambda turn, step: answer)


def in_childs_step(**origin: Any) -> History:
    history = as_child(**(origin or {"call": "1.1.0"}))
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    return history


def test_the_end_of_the_turn_that_took_its_first_input_is_its_end() -> None:
    history = in_childs_step()
    history.apply(step_finished(history.state, "42"))
    assert own_end(history) is None
    history.apply(turn_ended(history.state))
    assert own_end(history) == DONE
    assert own_end(history, answer=None) is None
    history.apply(submitted("more"), USER)
    assert own_end(history) is None
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "43"))
    history.apply(turn_ended(history.state))
    assert own_end(history) is None


@pytest.mark.parametrize(
    ("outcome", "told", "says"),
    [
        ("failed", "failed", "The child thread failed: no money. Its last answer was: 42"),
        ("interrupted", "failed", "The child thread failed: no money. Its last answer was: 42"),
        ("aborted", "cancelled", "The child thread was cancelled: no money. Its last answer was: 42"),
    ],
)
def test_an_end_without_success_says_why(outcome: Any, told: str, says: str) -> None:
    history = in_childs_step()
    history.apply(step_failed(history.state, retriable=False))
    history.apply(turn_ended(history.state, outcome).model_copy(update={"reason": "no money"}))
    assert own_end(history) == ChildEnd(told, says)  # type: ignore[arg-type]  # of the table


def test_it_says_so_where_there_is_no_reason() -> None:
    assert children.child_end("aborted", None, "").text == "The child thread was cancelled: aborted."
    assert children.child_end(None, None, "").text == "The child thread was cancelled: no reason is given."


def test_a_task_that_was_withdrawn_has_ended() -> None:
    history = as_child(call="1.1.0")
    history.apply(InputWithdrawn(input=FIRST))
    end = ChildEnd("cancelled", "The child thread was cancelled: its task was withdrawn before it began.")
    assert own_end(history) == end


def test_so_has_one_whose_thread_was_closed_before_it_began() -> None:
    history = as_child(call="1.1.0")
    history.apply(ThreadCloseRequested(), USER)
    assert own_end(history) is not None


def empty(**origin: Any) -> History:
    """It was created, and has no task yet."""
    history = History(key=CHILD)
    lineage = Lineage(kind="child", parent=KEY.thread, seq=1, chain="0" * 64, depth=1, **origin)
    history.apply(created(config=Config(model="m"), lineage=lineage))
    return history


def test_what_a_person_says_before_the_task_is_there_waits_for_it() -> None:
    history = empty(plan_version=2, task="build")
    assert list(decided(history)) == []
    history.apply(submitted("early"), USER)
    assert list(decided(history)) == [LookAgain(history.state.created_ms + 1000 * GRACE)]
    history.apply(submitted(FIRST))
    assert appended(history, TurnStarted).inputs[0] == FIRST


def test_the_first_turn_takes_the_task_even_where_a_person_has_asked_for_a_call_before() -> None:
    history = empty(plan_version=2, task="build")
    asked = RequestedCall(tool="read", args={}, call_hash=call_hash("read", {}), by=USER)
    history.apply(submitted("early").model_copy(update={"call": asked}), USER)
    history.apply(submitted(FIRST))
    assert appended(history, TurnStarted).inputs == (FIRST,)


def test_where_no_task_comes_the_child_answers_like_any_other_thread() -> None:
    history = empty(plan_version=2, task="build")
    history.apply(submitted("early"), USER)
    assert appended(history, TurnStarted, GRACE + 1).inputs == ("early",)


@pytest.mark.parametrize("origin", [{"call": "1.1.0"}, {}])
def test_children_of_calls_and_of_people_wait_for_nothing(origin: dict[str, Any]) -> None:
    history = empty(**origin)
    history.apply(submitted("i1"), USER)
    assert appended(history, TurnStarted).inputs == ("i1",)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_task_that_comes_to_a_closing_child_has_ended(is_closed: bool) -> None:
    history = empty(plan_version=2, task="build")
    history.apply(ThreadCloseRequested(), USER)
    assert own_end(history) is None
    if is_closed:
        history.apply(ThreadClosed())
    assert history.append(submitted(FIRST)).effect == "rejected"
    assert own_end(history) == children.child_end(None, children.WITHDRAWN, "")
    assert history.append(submitted("another"), USER).effect == "rejected"
    assert own_end(history) is None


@pytest.mark.parametrize(
    "lineage",
    [
        None,
        Lineage(kind="fork", parent="p", seq=1, chain="0" * 64),
        Lineage(kind="child", parent="p", seq=1, chain="0" * 64),
    ],
)
def test_nobody_waits_for_a_thread_that_no_call_and_no_task_asked_for(lineage: Lineage | None) -> None:
    history = History(key=CHILD)
    history.apply(created(config=Config(model="m"), lineage=lineage))
    history.apply(submitted(FIRST))
    history.apply(InputWithdrawn(input=FIRST))
    assert own_end(history) is None
    told = children.tell_parent(CHILD, history.state, _world(ended=DONE))
    assert list(told) == []


def _world(**fields: Any) -> World:
    return world(idle(), **fields)


def test_its_end_is_the_result_of_its_parents_call() -> None:
    """As the parent's own runtime would append it: with the same id, and under the claim that its dispatch is."""
    parent = spawned()
    history = in_childs_step()
    (told,) = children.tell_parent(CHILD, history.state, _world(ended=DONE))
    assert isinstance(told, AppendTo) and told.key == KEY
    by_parent = appended(spawned(), ToolCallFinished, catalog=CATALOG, children={CHILD.thread: DONE})
    assert told.event == by_parent
    parent.apply(told.event)
    assert parent.state.calls["1.1.0"].outcome == "succeeded"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_its_end_is_that_of_its_parents_task(outcome: Any) -> None:
    history = in_childs_step(plan_version=2, task="build")
    (told,) = children.tell_parent(CHILD, history.state, _world(ended=ChildEnd(outcome, "42")))
    assert isinstance(told, AppendTo) and told.key == KEY
    assert told.event == children.task_ended(2, "build", CHILD.thread, ChildEnd(outcome, "42"))


def test_it_tells_whatever_else_it_does() -> None:
    history = in_childs_step(call="1.1.0")
    (told, *rest) = decided(history, ended=DONE, calling=calling(history))
    assert isinstance(told, AppendTo) and [type(each) for each in rest] == [LookAgain]
    assert looks_again(history, calling=calling(history)) > 0


def test_nothing_is_told_before_there_is_an_end() -> None:
    assert list(children.tell_parent(CHILD, as_child(call="1.1.0").state, _world())) == []
    assert list(children.tell_parent(CHILD, NOTHING, _world(ended=DONE))) == []


# Results


@pytest.mark.parametrize("text", ["x" * 40_000, "é" * 20_000, "x" * 32_768 + "é"])
def test_a_large_answer_is_cut_and_says_where_the_rest_is(text: str) -> None:
    told = str(children.result("c", ChildEnd("succeeded", text))["content"])
    shown = children.cut(text, children.RESULT_BYTES_MAX, "c")
    assert shown.endswith(f"\n[cut: {len(text.encode())} bytes; the whole answer is in thread c]")
    assert len(shown.encode()) <= children.RESULT_BYTES_MAX and shown[:100] == text[:100]
    assert "whole answer is in thread c" in told


def test_one_that_fits_is_whole() -> None:
    text = "x" * children.RESULT_BYTES_MAX
    assert children.cut(text, children.RESULT_BYTES_MAX, "c") == text


def test_the_text_of_an_answer_is_all_its_texts() -> None:
    contents: list[Any] = [
        {"kind": "message", "content": [{"type": "text", "text": "a"}, {"type": "artifact", "sha256": "0"}]},
        {"kind": "message", "content": [{"type": "text", "text": "b"}]},
        {"kind": "message", "content": "odd"},
    ]
    assert children.answer_text(contents) == "a\nb"
