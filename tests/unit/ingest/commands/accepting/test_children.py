"""What a request for a child thread becomes."""

from dataclasses import replace
from typing import Any

import pytest

from schemas.config import Config
from schemas.config import Limits as OwnLimits
from schemas.events import InputSubmitted, Lineage, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.ingest.commands.accepting.accept import Accepted, Command
from services.ingest.commands.accepting.children import child_command, create_child
from services.ingest.commands.accepting.lineage import ForkPoint
from services.ingest.http.problems import ARTIFACT_MISSING, CHILD_TOO_DEEP, INVALID_REQUEST, THREAD_CLOSING, ProblemType
from services.ingest.http.requests import CreateChild, FirstInput, NamedArtifact
from tests.unit.ingest.commands.accepting.test_accept import ANN, LIMITS, accepted, refused

PARENT = ThreadKey(TenantId("acme"), ThreadId("t-1"))
CONFIG = Config(model="one", instructions="Be brief.")
POINT = ForkPoint(PARENT, 8, "c" * 64, 1, CONFIG, 3, None)
DEPTH_MAX = 3


def command(key: str = "k", parent: ThreadKey = PARENT) -> Command:
    return child_command(ANN, parent, key, keyed=True)


def begotten(point: ForkPoint = POINT, depth_max: int = DEPTH_MAX, **fields: Any) -> Accepted:
    return accepted(create_child(command(), CreateChild(**fields), point, LIMITS, depth_max))


def made(outcome: Accepted) -> ThreadCreated:
    event = outcome.events[0][1]
    assert isinstance(event, ThreadCreated)
    return event


def test_a_child_is_one_event_on_a_thread_of_its_own() -> None:
    outcome = begotten()
    created = made(outcome)
    assert (created.config, created.title, created.labels) == (CONFIG, None, {})
    assert created.lineage == Lineage(kind="child", parent="t-1", seq=8, chain="c" * 64, depth=2)
    assert (len(outcome.events), outcome.needs, outcome.refusal) == (1, "nothing", None)


def test_its_id_is_that_of_the_request_and_its_parent() -> None:
    other = ThreadKey(PARENT.tenant, ThreadId("t-2"))
    keys = [command(), command("l"), command("k", other)]
    assert command().key == keys[0].key and len({each.key for each in keys}) == 3


def test_with_an_input_it_begins_at_once() -> None:
    outcome = begotten(title="Helper", labels={"a": "b"}, config={"model": "two"}, input=FirstInput(text="go"))
    input_id, submitted = outcome.events[1]
    assert isinstance(submitted, InputSubmitted)
    assert outcome.shown == {"input": input_id} and submitted.input == input_id
    created = made(outcome)
    assert (created.title, created.labels, created.config.model) == ("Helper", {"a": "b"}, "two")


@pytest.mark.parametrize(("depth", "own", "service"), [(3, None, 3), (1, 1, 3), (0, 0, 3), (1, 9, 1)])
def test_one_that_would_be_too_deep_is_refused(depth: int, own: int | None, service: int) -> None:
    config = CONFIG.model_copy(update={"limits": OwnLimits(child_depth=own)})
    point = replace(POINT, depth=depth, config=config)
    assert refused(create_child(command(), CreateChild(), point, LIMITS, service)) is CHILD_TOO_DEEP
    above = replace(point, depth=depth - 1)
    if depth > 0:
        assert made(accepted(create_child(command(), CreateChild(), above, LIMITS, service))).lineage is not None


def test_a_thread_that_closes_gets_none_unless_it_had_it_before() -> None:
    """An earlier try of the same command stands."""
    outcome = begotten(replace(POINT, is_closing=True))
    assert outcome.refusal is not None and outcome.refusal.type is THREAD_CLOSING


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"config": {"model": 3}}, INVALID_REQUEST),
        (
            {"input": FirstInput(items=(NamedArtifact(type="artifact", sha256="0" * 64, media_type="a/b"),))},
            ARTIFACT_MISSING,
        ),
    ],
)
def test_what_cannot_be_taken_is_refused(fields: dict[str, Any], problem: ProblemType) -> None:
    assert refused(create_child(command(), CreateChild(**fields), POINT, LIMITS, DEPTH_MAX)) is problem
