"""What requests to fork, rewind and compact become."""

from dataclasses import replace

import pytest
from pydantic import JsonValue

from schemas.config import CONFIG_BYTES_MAX, Config
from schemas.events import ContextCompactionRequested, InputSubmitted, ThreadCreated, ThreadRewound
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.thread import COMPACTING_ALREADY
from services.ingest.commands.accepting.accept import Accepted, Command
from services.ingest.commands.accepting.lineage import (
    ForkPoint,
    compact_thread,
    fork_command,
    fork_thread,
    rewind_thread,
)
from services.ingest.http.problems import ARTIFACT_MISSING, INVALID_REQUEST, TOO_LARGE, ProblemType
from services.ingest.http.requests import FirstInput, ForkThread, NamedArtifact, RewindThread
from tests.unit.ingest.commands.accepting.test_accept import ANN, LIMITS, accepted, refused

PARENT = ThreadKey(TenantId("acme"), ThreadId("t-1"))
CONFIG = Config(model="one", instructions="Be brief.")
POINT = ForkPoint(PARENT, 8, "c" * 64, 2, CONFIG, None, None)


def command(key: str = "k") -> Command:
    return fork_command(ANN, PARENT, key, keyed=True)


def made(outcome: Accepted) -> ThreadCreated:
    event = outcome.events[0][1]
    assert isinstance(event, ThreadCreated)
    return event


def test_a_fork_is_one_event_on_a_thread_of_its_own() -> None:
    forking = accepted(fork_thread(command(), ForkThread(), POINT, LIMITS))
    created = made(forking)
    assert (created.config, created.title, created.labels) == (CONFIG, None, {})
    assert created.lineage is not None
    assert created.lineage.model_dump(exclude_none=True) == {
        "kind": "fork",
        "parent": "t-1",
        "seq": 8,
        "chain": "c" * 64,
        "depth": 2,
    }
    assert len(forking.events) == 1
    assert (forking.needs, forking.judged) == ("nothing", True)
    assert forking.command.key.thread not in {"t-1", command("l").key.thread}
    assert command().key == forking.command.key


def test_with_an_input_it_goes_on_at_once() -> None:
    request = ForkThread(title="Other", labels={"a": "b"}, input=FirstInput(text="go on"))
    forking = accepted(fork_thread(command(), request, POINT, LIMITS))
    input_id, submitted = forking.events[1]
    assert isinstance(submitted, InputSubmitted)
    assert forking.shown["input"] == input_id == submitted.input
    assert (made(forking).title, made(forking).labels) == ("Other", {"a": "b"})


@pytest.mark.parametrize(
    ("asked", "turn", "note"),
    [
        (None, None, None),
        (8, None, None),
        (11, None, "At seq 11 a step was under way"),
        (None, 3, "Turn 3 was open"),
        (11, 3, "it is left out. Turn 3 was open"),
    ],
)
def test_the_answer_says_where_it_was_forked_and_why(asked: int | None, turn: int | None, note: str | None) -> None:
    point = ForkPoint(PARENT, 8, "c" * 64, 0, CONFIG, turn, asked)
    shown = accepted(fork_thread(command(), ForkThread(), point, LIMITS)).shown["fork"]
    assert isinstance(shown, dict)
    assert (shown["parent"], shown["seq"], shown["open_turn"]) == ("t-1", 8, turn)
    assert (shown["note"] is None) if note is None else (note in str(shown["note"]))


def test_the_configuration_is_the_parents_with_the_patch() -> None:
    request = ForkThread(config={"model": "two", "instructions": None})
    created = made(accepted(fork_thread(command(), request, POINT, LIMITS)))
    assert (created.config.model, created.config.instructions) == ("two", None)


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({"model": 3}, INVALID_REQUEST),
        ({"model": None}, INVALID_REQUEST),
        ({"model": ""}, INVALID_REQUEST),
        ({"limits": {"turn_tokens": 0}}, INVALID_REQUEST),
        ({"instructions": "x" * 1_000}, TOO_LARGE),
    ],
)
def test_a_patch_that_makes_no_configuration_is_refused(patch: dict[str, JsonValue], problem: ProblemType) -> None:
    assert refused(fork_thread(command(), ForkThread(config=patch), POINT, LIMITS)) is problem


def test_forks_of_forks_do_not_add_up_to_a_configuration_that_is_too_large() -> None:
    large = CONFIG.model_copy(update={"instructions": "x" * (CONFIG_BYTES_MAX - 300)})
    patch: dict[str, JsonValue] = {"model_settings": {"stop": "y" * 300}}
    point = replace(POINT, config=large)
    accepted(fork_thread(command(), ForkThread(), point, LIMITS))
    assert refused(fork_thread(command(), ForkThread(config=patch), point, LIMITS)) is TOO_LARGE


def test_an_input_that_cannot_be_taken_is_refused() -> None:
    long = ForkThread(input=FirstInput(text="x" * 21))
    assert refused(fork_thread(command(), long, POINT, LIMITS)) is TOO_LARGE
    named = NamedArtifact(type="artifact", sha256="a" * 64, media_type="text/plain")
    missing = ForkThread(input=FirstInput(items=(named,)))
    assert refused(fork_thread(command(), missing, POINT, LIMITS)) is ARTIFACT_MISSING


def test_a_rewind_and_a_request_for_a_summary_wait_for_what_they_come_to() -> None:
    rewinding = rewind_thread(command(), RewindThread(to_turn=0))
    assert rewinding.events[0][1] == ThreadRewound(to_turn=0)
    assert (rewinding.judged, rewinding.needs) == (True, "thread")
    compacting = compact_thread(command())
    assert compacting.events[0][1] == ContextCompactionRequested()
    assert compacting.judged
    assert COMPACTING_ALREADY in compacting.alike
