"""What the views tell of how a child thread ended, in Postgres and in memory: as the child's own owner would have."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from schemas.config import Config
from schemas.events import (
    AnswerReasoning,
    AnswerText,
    InputWithdrawn,
    Lineage,
    ThreadClosed,
    ThreadCloseRequested,
    TurnOutcome,
)
from schemas.ids import ThreadId, ThreadKey, derive_child_input
from services.chassis.postgres.sql_files import SqlFiles
from services.runtime import child_store
from services.runtime.child_store import ChildStore, PostgresChildren
from services.runtime.deciding import children
from services.runtime.deciding.decisions import ChildEnd
from tests.support.recorded.histories import (
    KEY,
    USER,
    History,
    created,
    denied,
    proposed,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)
from tests.support.stored.view_harness import InPostgres, Views, advance, read_of

LINEAGE = Lineage(kind="child", parent="parent", seq=1, chain="0" * 64, call="1.1.0", depth=1)


def store_of(views: Views) -> ChildStore:
    if isinstance(views, InPostgres):
        return PostgresChildren(views.pool, SqlFiles(Path(child_store.__file__).with_name("sql")))
    return cast("ChildStore", views.transcripts)


def child(name: str) -> History:
    """Its first input waits."""
    history = History(key=ThreadKey(KEY.tenant, ThreadId(name)))
    history.apply(created(config=Config(model="m"), lineage=LINEAGE))
    history.apply(submitted(derive_child_input(history.key)))
    return history


def answering(name: str) -> History:
    history = child(name)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    return history


def answered(name: str) -> History:
    """In two steps; the last one in two texts."""
    history = answering(name)
    history.apply(step_finished(history.state, "Let me see.", [proposed(0)]))
    history.apply(denied(history.only_call))
    history.apply(step_started(history.state))
    told = (AnswerReasoning(text="hm"), AnswerText(text="forty"), AnswerText(text="two é"))
    history.apply(step_finished(history.state).model_copy(update={"items": told}))
    return history


def failing(name: str) -> History:
    history = answering(name)
    history.apply(step_failed(history.state, retriable=False))
    return history


def ended(history: History, outcome: TurnOutcome = "completed", reason: str | None = None) -> History:
    history.apply(turn_ended(history.state, outcome).model_copy(update={"reason": reason}))
    return history


async def ends(views: Views, *given: History) -> Mapping[str, ChildEnd]:
    await advance(views, read_of(*given))
    inputs = {history.key.thread: derive_child_input(history.key) for history in given}
    return await store_of(views).find_ends(KEY.tenant, inputs)


async def test_one_that_goes_on_has_no_end(views: Views) -> None:
    assert await ends(views, child("c1"), answering("c2"), answered("c3")) == {}


async def test_one_that_answered_has_its_last_answer(views: Views) -> None:
    found = await ends(views, ended(answered("c1")), child("c2"))
    assert found == {"c1": ChildEnd("succeeded", "forty\ntwo é")}


async def test_it_stays_that_whatever_comes_after(views: Views) -> None:
    history = ended(answered("c1"))
    history.apply(submitted("more"), USER)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "something else"))
    history.apply(turn_ended(history.state))
    assert await ends(views, history) == {"c1": ChildEnd("succeeded", "forty\ntwo é")}


async def test_one_that_failed_says_why(views: Views) -> None:
    history = failing("c1")
    other = answered("c2")
    found = await ends(views, ended(history, "failed", "no such model"), ended(other, "failed", "too long"))
    assert found == {
        "c1": ChildEnd("failed", "The child thread failed: no such model."),
        "c2": ChildEnd("failed", "The child thread failed: too long. Its last answer was: forty\ntwo é"),
    }


async def test_one_whose_task_was_withdrawn_or_discarded_was_cancelled(views: Views) -> None:
    withdrawn, closed = child("c1"), child("c2")
    withdrawn.apply(InputWithdrawn(input=derive_child_input(withdrawn.key)))
    closed.apply(ThreadCloseRequested(), USER)
    end = children.child_end(None, children.WITHDRAWN, "")
    assert await ends(views, withdrawn, closed) == {"c1": end, "c2": end}


async def test_one_that_was_closed_before_it_had_a_task_was_cancelled(views: Views) -> None:
    empty, closing, closed = (History(key=ThreadKey(KEY.tenant, ThreadId(name))) for name in ("c1", "c2", "c3"))
    for history in (empty, closing, closed):
        history.apply(created(config=Config(model="m"), lineage=LINEAGE))
    for history in (closing, closed):
        history.apply(ThreadCloseRequested(), USER)
    closed.apply(ThreadClosed())
    assert closed.append(submitted(derive_child_input(closed.key))).effect == "rejected"
    end = children.child_end(None, children.WITHDRAWN, "")
    assert await ends(views, empty, closing, closed) == {"c2": end, "c3": end}


async def test_each_is_told_as_its_owner_would_have(views: Views) -> None:
    """By `own_end`, from the records alone."""
    given = [ended(answered("c1")), ended(answered("c2"), "failed", "too long"), ended(failing("c3"), "failed", None)]
    found = await ends(views, *given)
    for history in given:
        before, after = history.states[-2:]
        text = "forty\ntwo é" if before.turn is not None and before.turn.steps else ""
        told = children.own_end(history.key, before, after, history.records[-1], lambda turn, step, text=text: text)
        assert found[history.key.thread] == told


async def test_another_tenants_thread_and_another_input_are_not_told_of(views: Views) -> None:
    history = ended(answered("c1"))
    await advance(views, read_of(history))
    store = store_of(views)
    assert await store.find_ends("other", {"c1": derive_child_input(history.key)}) == {}
    assert await store.find_ends(KEY.tenant, {"c1": "another", "c9": "none"}) == {}
    assert await store.find_ends(KEY.tenant, {}) == {}


@pytest.mark.parametrize("how", ["away", "dropped"])
async def test_without_views_there_are_none(views: Views, how: str) -> None:
    history = ended(answered("c1"))
    inputs = {"c1": derive_child_input(history.key)}
    await advance(views, read_of(history))
    store = store_of(views)
    await (views.go_away() if how == "away" else views.drop())
    assert await store.find_ends(KEY.tenant, inputs) == {}
    if how == "away":
        await views.come_back()
        assert await store.find_ends(KEY.tenant, inputs) != {}
