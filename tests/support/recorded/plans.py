"""A thread with a plan that is changed midway, and with artifacts."""

from schemas.events import (
    Artifact,
    ArtifactRecorded,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    Task,
    TaskUpdated,
    ToolCallFinished,
)
from tests.support.recorded.histories import EXECUTOR, NO_HASH, RUNTIME, USER, History, finished

LOOK = Task(id="look", title="Look", instructions="Read the tests.")
MEND = Task(id="mend", title="Mend", depends_on=("look",))
TELL = Task(id="tell", title="Tell", depends_on=("mend",))
CLEAN = Task(id="clean", title="Clean up")
REPORT = Artifact(sha256=NO_HASH, size=12, media_type="text/plain", name="report.txt")


def planned(history: History) -> History:
    """Version 1 comes in force, 2 is rejected, 3 superseded by 4, which keeps two tasks of the first."""
    if not history.state.exists:
        history.idle()
    history.apply(PlanProposed(plan_version=1, tasks=(LOOK, MEND, CLEAN)), RUNTIME)
    history.apply(PlanApproved(plan_version=1, by=USER), USER)
    history.apply(TaskUpdated(plan_version=1, task="look", status="running", child="t-look"), RUNTIME)
    history.apply(TaskUpdated(plan_version=1, task="look", status="succeeded", result={"found": 2}), RUNTIME)
    history.apply(TaskUpdated(plan_version=1, task="mend", status="running", child="t-mend"), RUNTIME)
    history.apply(PlanProposed(plan_version=2, tasks=(TELL.model_copy(update={"depends_on": ()}),)), RUNTIME)
    history.apply(PlanRejected(plan_version=2, by=USER, reason="not yet"), USER)
    history.apply(PlanProposed(plan_version=3, tasks=(LOOK,)), RUNTIME)
    history.apply(PlanProposed(plan_version=4, tasks=(LOOK, MEND, TELL)), RUNTIME)
    history.apply(PlanApproved(plan_version=4, by=USER), USER)
    history.apply(TaskUpdated(plan_version=4, task="mend", status="failed", result="it broke"), RUNTIME)
    return history


def with_artifacts(history: History) -> History:
    """One that a client recorded, and two that came with a call's result."""
    history.with_running_call()
    history.apply(ArtifactRecorded(sha256=NO_HASH, size=3, media_type="image/png"), USER)
    done = finished(history.only_call)
    named: dict[str, object] = {"artifacts": (REPORT, Artifact(sha256="0" * 64, size=0, media_type="text/csv"))}
    history.apply(ToolCallFinished.model_validate(done.model_dump() | named), EXECUTOR)
    return history
