"""What counts as a thread's going on, what it is told twice, and how much it may be configured with."""

import pytest

from schemas.config import CONFIG_BYTES_MAX
from schemas.events import (
    PlanApproved,
    PlanProposed,
    Task,
    ThreadConfigured,
    ThreadImportEnded,
    ThreadImportStarted,
)
from schemas.state import REMEMBERED_INPUTS
from schemas.thread import fold
from tests.support.recorded.histories import (
    IMPORTER,
    RUNTIME,
    USER,
    History,
    created,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)

PLAN = PlanProposed(plan_version=1, tasks=(Task(id="a", title="A"),))


def imported() -> History:
    log = History()
    log.apply(created(importing=True), IMPORTER)
    log.apply(ThreadImportStarted(source="s"), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    log.apply(turn_started(log.state), IMPORTER)
    log.apply(step_started(log.state), IMPORTER)
    log.apply(step_finished(log.state, "done"), IMPORTER)
    log.apply(turn_ended(log.state), IMPORTER)
    return log


@pytest.mark.parametrize("by", [USER, RUNTIME])
def test_a_plan_that_was_proposed_since_is_not_set_aside_by_a_longer_snapshot(by: str) -> None:
    log = imported()
    log.apply(ThreadImportEnded(source="s"), IMPORTER)
    log.apply(PLAN, by)
    log.apply(PlanApproved(plan_version=1, by=USER), USER)
    gone_on = ("rejected", "the thread has gone on since the last import")
    assert log.append(ThreadImportStarted(source="s"), IMPORTER) == gone_on
    assert not log.state.plan.recorded


def test_one_that_the_session_proposed_is_none_of_that() -> None:
    log = imported()
    log.apply(PLAN, IMPORTER)
    log.apply(ThreadImportEnded(source="s"), IMPORTER)
    log.apply(ThreadImportStarted(source="s"), IMPORTER)


def test_an_input_that_the_open_turn_took_is_known_however_many_came_since() -> None:
    """Whoever takes over the parent of a child thread submits its task once more, as long as it is worked on."""
    log = History().in_turn()
    for number in range(REMEMBERED_INPUTS):
        log.apply(submitted(f"s{number}", "steer"), USER)
    assert "i1" not in log.state.inputs
    before = log.state
    assert log.append(submitted("i1")).effect == "duplicate"
    assert fold(before, log.records[-1]).state.queue == before.queue


def test_patches_do_not_add_up_to_a_configuration_that_no_child_could_begin_with() -> None:
    log = History().idle()
    for number in range(CONFIG_BYTES_MAX // 100_000):
        log.apply(ThreadConfigured(patch={"model_settings": {f"s{number}": "x" * 99_000}}), USER)
    before = log.state.config
    verdict = log.append(ThreadConfigured(patch={"model_settings": {"one more": "x" * 99_000}}), USER)
    assert verdict.effect == "rejected" and f"{CONFIG_BYTES_MAX} are allowed" in str(verdict.reason)
    assert log.state.config == before
    log.apply(ThreadConfigured(patch={"model_settings": None}), USER)
