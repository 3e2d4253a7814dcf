"""When a quiet thread is said to make no progress, and when it waits for good reasons."""

import pytest

from schemas.events import ThreadCloseRequested, ThreadImportStarted, TurnCancelRequested
from services.ingest.operations.no_progress import ASK_BOTH, ASK_EXECUTOR, ASK_RUNTIME, Quiet, Stall, stall
from tests.support.recorded.deciding import idle, in_step, in_turn, settle, with_approved, with_calls
from tests.support.recorded.histories import (
    EXECUTOR,
    USER,
    History,
    approval_requested,
    claimed,
    dispatched,
    lost,
    proposed,
    step_failed,
    submitted,
)

QUIET = Quiet(thread_ms=300_000, step_ms=900_000)


def after(history: History, seconds: float) -> Stall | None:
    return stall(history.state, history.state.updated_ms + int(1000 * seconds), QUIET)


def found(history: History, seconds: float = 301) -> Stall:
    """It is stalled by then, and was not while the thread had shown something lately."""
    assert after(history, 299) is None
    stalled = after(history, seconds)
    assert stalled is not None
    return stalled


def test_an_input_that_no_turn_takes() -> None:
    history = idle()
    assert after(history, 10_000) is None
    history.apply(submitted("i1"), USER)
    assert found(history) == Stall("Inputs wait (1), and no turn is started.", ASK_RUNTIME)


def test_a_thread_that_nobody_closes() -> None:
    history = idle()
    history.apply(ThreadCloseRequested(), USER)
    assert "closing" in found(history).detail


def test_a_turn_whose_first_step_nobody_starts() -> None:
    assert "nothing starts the next" in found(in_turn()).detail


def test_a_model_has_longer() -> None:
    history = in_step()
    assert after(history, 899) is None
    stalled = after(history, 901)
    assert stalled is not None and stalled.detail.startswith("Step 1.1 asked its model")


def test_a_failed_step_waits_for_its_next_try() -> None:
    history = in_step()
    retry_at_ms = history.now_ms + 200_000
    failed = step_failed(history.state).model_copy(update={"retry_at_ms": retry_at_ms})
    history.apply(failed)
    assert stall(history.state, retry_at_ms + 299_000, QUIET) is None
    stalled = stall(history.state, retry_at_ms + 301_000, QUIET)
    assert stalled is not None and "overloaded" in stalled.detail


def test_a_cancelled_turn_that_nobody_ends() -> None:
    history = in_step()
    history.apply(TurnCancelRequested(turn=1, reason="user"), USER)
    assert found(history) == Stall("Turn 1 is cancelled, and nothing ends it.", ASK_RUNTIME)


def test_a_call_that_survives_its_cancel() -> None:
    history = running()
    history.apply(TurnCancelRequested(turn=1, reason="user"), USER)
    assert found(history) == Stall("Turn 1 is cancelled, and 1.1.0 has not ended.", ASK_BOTH)


def running() -> History:
    history = with_approved(proposed(0))
    history.apply(dispatched(history.only_call))
    history.apply(claimed(history.only_call), EXECUTOR)
    return history


def test_a_tool_has_its_time() -> None:
    history = running()
    call = history.only_call
    over_ms = max(call.deadline_ms, call.claimed_ms + call.timeout_ms)
    assert stall(history.state, over_ms + 299_000, QUIET) is None
    stalled = stall(history.state, over_ms + 301_000, QUIET)
    assert stalled is not None and "does not say how it ended" in stalled.detail


def test_a_dispatched_call_that_nobody_claims() -> None:
    history = with_approved(proposed(0))
    history.apply(dispatched(history.only_call))
    stalled = found(history)
    assert (stalled.detail, stalled.what_to_do) == (
        "Call 1.1.0 of shell waits in pool builtin; nobody claims it.",
        ASK_EXECUTOR,
    )


def test_a_call_that_is_approved_and_not_dispatched() -> None:
    history = with_approved(proposed(0))
    assert found(history).detail == "Call 1.1.0 of shell is approved, and nothing comes of it."


def test_an_approval_waits_until_it_expires_and_holds_back_what_comes_after_it() -> None:
    history = with_calls(proposed(0), proposed(1))
    expires_ms = history.now_ms + 3_600_000
    history.apply(approval_requested(history.call("1.1.0"), expires_ms))
    assert stall(history.state, expires_ms + 299_000, QUIET) is None
    stalled = stall(history.state, expires_ms + 301_000, QUIET)
    assert stalled is not None and "expired" in stalled.detail


@pytest.mark.parametrize(("on_unknown", "is_stalled"), [("wait", False), ("end", True)])
def test_an_unknown_call_waits_for_a_person_unless_the_turn_should_end(on_unknown: str, is_stalled: bool) -> None:
    history = with_approved(proposed(0), on_unknown=on_unknown)
    history.apply(dispatched(history.only_call))
    history.apply(claimed(history.only_call), EXECUTOR)
    history.apply(lost(history.only_call))
    assert history.only_call.status == "unknown"
    assert (after(history, 100_000) is not None) is is_stalled


def test_settled_calls_want_the_next_step() -> None:
    history = with_approved(proposed(0))
    settle(history, "1.1.0")
    assert found(history).detail.startswith("Turn 1 has finished 1 steps")


def test_an_import_is_its_importers() -> None:
    history = idle()
    history.apply(ThreadImportStarted(source="x"), "import:x")
    assert after(history, 100_000) is None
