"""Turns that run a call which a principal asks for."""

import pytest

from schemas.events import (
    Event,
    InputSubmitted,
    ProposedCall,
    RequestedCall,
    StepFinished,
    StepStarted,
    TextItem,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    TurnEnded,
    TurnStarted,
)
from schemas.tools import Catalog, CatalogSource, ToolSpec
from services.runtime.deciding.calls import offered_tools
from services.runtime.deciding.decisions import CallModel, LoadTranscript
from tests.support.recorded.deciding import appended, decided
from tests.support.recorded.histories import (
    NO_HASH,
    USER,
    History,
    cancel_requested,
    claimed,
    created,
    finished,
    step_started,
    submitted,
)

RESTORE = ToolSpec(name="restore_files", effect="idempotent", on_request=True)
ASKED = RequestedCall(tool="restore_files", args={"files": []}, call_hash=NO_HASH, by="user:ann")
CATALOG = Catalog({"builtin": CatalogSource(source="builtin", pool="builtin", tools=(RESTORE, ToolSpec(name="shell")))})
CALL = "1.1.0"


def asked(name: str = "r1", call: RequestedCall = ASKED) -> Event:
    return InputSubmitted(input=name, items=(TextItem(text="put them back"),), mode="reject", call=call)


@pytest.fixture
def history() -> History:
    history = History()
    history.apply(created(), USER)
    history.apply(asked(), USER)
    return history


def runs(history: History) -> None:
    """Up to the dispatch of its call."""
    for kind in (TurnStarted, StepStarted, StepFinished, ToolCallApproved, ToolCallDispatched):
        appended(history, kind, catalog=CATALOG)


def test_it_asks_no_model_and_runs_its_call(history: History) -> None:
    appended(history, TurnStarted, catalog=CATALOG)
    assert appended(history, StepStarted, catalog=CATALOG).model == "requested"
    answer = appended(history, StepFinished, catalog=CATALOG)
    assert answer.calls == (ProposedCall(index=0, tool="restore_files", args={"files": []}, call_hash=NO_HASH),)
    assert answer.usage.input_tokens == 0
    approved = appended(history, ToolCallApproved, catalog=CATALOG)
    assert approved.by == "user:ann"
    dispatched = appended(history, ToolCallDispatched, catalog=CATALOG)
    assert (dispatched.tool, dispatched.pool, dispatched.args) == ("restore_files", "builtin", {"files": []})
    history.apply(claimed(history.call(CALL)))
    history.apply(finished(history.call(CALL)))
    ended = appended(history, TurnEnded, catalog=CATALOG)
    assert (ended.outcome, ended.reason) == ("completed", None)


def test_whoever_asks_has_approved_it_whatever_the_policy_says(history: History) -> None:
    history = History()
    config = created().config.model_copy(update={"approval": "always", "tools": ("shell",)})
    history.apply(created(config=config), USER)
    history.apply(asked(), USER)
    runs(history)


@pytest.mark.parametrize("outcome", ["failed", "timed_out"])
def test_a_call_that_fails_fails_the_turn(history: History, outcome: str) -> None:
    runs(history)
    history.apply(claimed(history.call(CALL)))
    history.apply(finished(history.call(CALL), outcome=outcome))
    ended = appended(history, TurnEnded, catalog=CATALOG)
    assert (ended.outcome, ended.reason) == ("failed", f"the requested call did not succeed: {outcome}")


def test_a_tool_that_is_not_there_is_refused_and_the_turn_fails(history: History) -> None:
    for kind in (TurnStarted, StepStarted, StepFinished):
        appended(history, kind)
    assert "no tool named 'restore_files'" in appended(history, ToolCallDenied).reason
    assert appended(history, TurnEnded).outcome == "failed"


def test_an_owner_that_takes_over_goes_on_without_asking_anew(history: History) -> None:
    appended(history, TurnStarted, catalog=CATALOG)
    step = appended(history, StepStarted, catalog=CATALOG, owner="B")
    assert step.owner == "B"
    assert history.state.turn is not None and history.state.turn.step is not None
    appended(history, StepFinished, catalog=CATALOG, taken_over=history.state.turn.step.starts[-1])


def test_a_step_that_another_failed_is_started_again(history: History) -> None:
    appended(history, TurnStarted, catalog=CATALOG)
    history.apply(step_started(history.state))
    assert history.state.turn is not None and history.state.turn.step is not None
    decisions = decided(history, catalog=CATALOG)
    assert not any(isinstance(decision, CallModel) for decision in decisions)


def test_it_waits_for_the_transcript_as_any_step_does(history: History) -> None:
    appended(history, TurnStarted, catalog=CATALOG)
    assert LoadTranscript() in decided(history, catalog=CATALOG, context=lambda: None)


def test_a_cancelled_one_ends(history: History) -> None:
    runs(history)
    history.apply(cancel_requested(history.state), USER)
    assert appended(history, TurnEnded, catalog=CATALOG).outcome == "aborted"


def test_it_has_a_turn_of_its_own() -> None:
    history = History()
    history.apply(created(config=created().config.model_copy(update={"one_turn_per_input": False})), USER)
    for event in (submitted("i1"), submitted("i2"), queued(asked("r1")), submitted("i3")):
        history.apply(event, USER)
    assert appended(history, TurnStarted).inputs == ("i1", "i2")


def test_it_goes_first_where_it_came_first() -> None:
    history = History()
    history.apply(created(), USER)
    for event in (queued(asked("r1")), submitted("i1")):
        history.apply(event, USER)
    assert appended(history, TurnStarted).inputs == ("r1",)


def test_what_steers_waits_for_the_next_turn(history: History) -> None:
    appended(history, TurnStarted, catalog=CATALOG)
    history.apply(submitted("s1", "steer"), USER)
    assert appended(history, StepStarted, catalog=CATALOG).inputs == ()
    for kind in (StepFinished, ToolCallApproved, ToolCallDispatched):
        appended(history, kind, catalog=CATALOG)
    history.apply(claimed(history.call(CALL)))
    history.apply(finished(history.call(CALL)))
    appended(history, TurnEnded, catalog=CATALOG)
    assert appended(history, TurnStarted, catalog=CATALOG).inputs == ("s1",)


def test_models_are_not_offered_what_only_principals_ask_for() -> None:
    assert [tool.name for tool in offered_tools(CATALOG, created().config)] == ["shell"]


def test_a_model_that_calls_it_is_refused() -> None:
    history = History()
    history.apply(created(), USER)
    history.apply(submitted("i1"), USER)
    appended(history, TurnStarted, catalog=CATALOG)
    started = appended(history, StepStarted, catalog=CATALOG)
    step = history.state.turn.step if history.state.turn else None
    assert step is not None
    call = ProposedCall(index=0, tool="restore_files", args={}, call_hash=NO_HASH)
    history.apply(
        StepFinished(
            turn=1, step=1, attempt=started.attempt, started=step.starts[-1], items=(), calls=(call,), stop_reason="x"
        )
    )
    assert "The tools are: shell" in appended(history, ToolCallDenied, catalog=CATALOG).reason


def queued(event: Event) -> Event:
    return event.model_copy(update={"mode": "queue"})
