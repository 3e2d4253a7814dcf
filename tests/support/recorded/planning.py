"""Histories with a plan, decided about until nothing is appended any more."""

from collections.abc import Iterable
from typing import Any

from schemas.events import (
    PlanProposed,
    Task,
    TaskUpdated,
    ToolCallFinished,
)
from schemas.ids import ThreadKey, derive_child
from schemas.state import ThreadState
from schemas.tools import Catalog
from services.runtime.deciding.decisions import Append, AppendTo, World
from services.runtime.deciding.limits import Limits
from services.runtime.deciding.own_tools import ENTRY
from tests.support.recorded.deciding import BUILTIN, LIMITS, decided, idle, with_calls, world
from tests.support.recorded.histories import (
    KEY,
    RUNTIME,
    USER,
    History,
    proposed,
)

CALL = "1.1.0"
OWN = {"catalog": Catalog({"builtin": BUILTIN, "runtime": ENTRY})}
PLAN = {"a": "", "b": "a", "c": ""}


def tasks_of(graph: dict[str, str]) -> list[dict[str, object]]:
    """`{"b": "a"}`: task b depends on a."""
    return [{"id": name, "title": name.upper(), "depends_on": needed.split()} for name, needed in graph.items()]


def tasks(graph: dict[str, str]) -> tuple[Task, ...]:
    return tuple(Task.model_validate(task, strict=False) for task in tasks_of(graph))


def child_id(version: int, task: str) -> str:
    return derive_child(KEY, f"task {version} {task}")


def settled(history: History, **fields: object) -> list[object]:
    """What is decided once nothing is appended any more; what was, has to fit."""
    for _ in range(40):
        decisions = decided(history, **{**OWN, **fields})
        appends = [decision for decision in decisions if isinstance(decision, Append)]
        if not appends:
            return list(decisions)
        for append in appends:
            history.apply(append.event, append.actor)
    raise AssertionError("it does not come to rest")


def kinds(history: History, after: int) -> list[str]:
    return [made.record.kind for made in history.encoded[after:]]


def calling(graph: dict[str, str] | None = None, **config: object) -> History:
    """A turn whose call of `update_plan` has proposed its version, as far as that goes without children."""
    call = proposed(0, "update_plan", {"tasks": tasks_of(PLAN if graph is None else graph)})
    history = with_calls(call, **config)
    settled(history)
    return history


def backed(graph: dict[str, str] | None = None, **config: object) -> History:
    """A person's version, between turns."""
    history = idle(**config)
    history.apply(PlanProposed(plan_version=1, tasks=tasks(PLAN if graph is None else graph)), USER)
    settled(history)
    return history


def statuses(history: History) -> dict[str, str]:
    return {name: standing.status for name, standing in history.state.plan.tasks.items()}


def end_of(history: History, task: str, status: str = "succeeded", result: object = "done", version: int = 1) -> None:
    """As the child's owner tells it."""
    child = history.state.plan.tasks[task].child
    history.apply(TaskUpdated(plan_version=version, task=task, status=status, child=child, result=result), RUNTIME)


def result_of(history: History) -> ToolCallFinished:
    (event,) = [made.record.data for made in history.encoded if made.record.kind == "tool_call.finished"]
    assert isinstance(event, ToolCallFinished)
    return event


def sent(decisions: Iterable[object], kind: type) -> list[Any]:
    return [each for each in decisions if isinstance(each, AppendTo) and isinstance(each.event, kind)]


def advancing(history: History) -> tuple[ThreadKey, ThreadState, int, Limits, World]:
    return history.key, history.state, history.now_ms, LIMITS, world(history, **OWN)
