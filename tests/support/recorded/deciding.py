"""Situations for `decide`, and what it decides in them."""

from collections.abc import Container
from dataclasses import replace
from typing import TypeVar

from pydantic import JsonValue

from schemas.config import Config
from schemas.events import (
    Confirmed,
    Context,
    Event,
    ProposedCall,
)
from schemas.tools import Catalog, CatalogSource, ToolSpec
from services.runtime.deciding.decide import decide
from services.runtime.deciding.decisions import Append, Calling, Decisions, DropModelCall, LookAgain, World
from services.runtime.settings import RuntimeSettings
from tests.support.recorded.histories import (
    EXECUTOR,
    NO_HASH,
    USER,
    History,
    approved,
    claimed,
    created,
    dispatched,
    finished,
    step_finished,
    step_started,
    submitted,
    turn_started,
)

E = TypeVar("E", bound=Event)
SHELL = ToolSpec(name="shell")
READ = ToolSpec(name="read", effect="pure")
SEND = ToolSpec(name="send", effect="idempotent", parallel=True, max_attempts=2, timeout_seconds=5)
ASK = ToolSpec(name="ask", timeout_seconds=7)
BUILTIN = CatalogSource(source="builtin", pool="builtin", tools=(SHELL, READ, SEND))
CLIENT = CatalogSource(source="crm", pool="client", tools=(ASK,))
LIMITS = replace(
    RuntimeSettings.model_construct().limits(),
    steps_per_turn=5,
    turn_seconds=3_600,
    parallel_calls=2,
    model_tries=2,
    calls_per_step=3,
)
SHOWN = Context(confirmed_seq=1, items=0, hash=NO_HASH)
MINE = "A"


def no_complaint(tool: ToolSpec, args: dict[str, JsonValue], malformed: str | None) -> str | None:
    return None if malformed is None else f"not an object: {malformed}"


class EverythingStored(Container[object]):
    """The log has acknowledged whatever was sent to other threads."""

    def __contains__(self, _: object) -> bool:
        return True


def world(history: History, **fields: object) -> World:
    known = World(
        owner=MINE,
        agent_version="7",
        catalog=Catalog({"builtin": BUILTIN, "crm": CLIENT}),
        limits=LIMITS,
        confirmed=Confirmed(seq=history.state.seq, chain=history.state.chain),
        context=lambda: SHOWN,
        arguments_problem=no_complaint,
        stored=EverythingStored(),
    )
    return replace(known, **fields)


def decided(history: History, after_seconds: float = 0, **fields: object) -> Decisions:
    return decide(history.key, history.state, history.now_ms + int(1000 * after_seconds), world(history, **fields))


def appended(history: History, kind: type[E], after_seconds: float = 0, **fields: object) -> E:
    """The one event that is decided, which has to fit."""
    (append,) = [each for each in decided(history, after_seconds, **fields) if not isinstance(each, DropModelCall)]
    assert isinstance(append, Append), append
    assert isinstance(append.event, kind), append.event
    history.apply(append.event, append.actor)
    return append.event


def looks_again(history: History, after_seconds: float = 0, **fields: object) -> float:
    """Seconds from now, where nothing else is decided."""
    (look,) = decided(history, after_seconds, **fields)
    assert isinstance(look, LookAgain)
    return (look.at_ms - history.now_ms) / 1000 - after_seconds


def idle(**config: object) -> History:
    history = History()
    history.apply(created(config=Config(model="scripted:test", **config)), USER)
    return history


def in_turn(**config: object) -> History:
    history = idle(**config)
    history.apply(submitted("i1"), USER)
    history.apply(turn_started(history.state))
    return history


def in_step(**config: object) -> History:
    history = in_turn(**config)
    history.apply(step_started(history.state))
    return history


def calling(history: History) -> Calling:
    turn = history.state.turn
    assert turn is not None and turn.step is not None
    return Calling(turn.turn, turn.step.step, turn.step.attempt, turn.step.starts[-1])


def with_calls(*calls: ProposedCall, **config: object) -> History:
    history = in_step(**config)
    history.apply(step_finished(history.state, calls=calls))
    return history


def with_approved(*calls: ProposedCall, **config: object) -> History:
    history = with_calls(*calls, **config)
    for call in list(history.state.calls.values()):
        history.apply(approved(call, by="policy:never"))
    return history


def settle(history: History, name: str) -> None:
    history.apply(dispatched(history.call(name)))
    history.apply(claimed(history.call(name)), EXECUTOR)
    history.apply(finished(history.call(name)), EXECUTOR)
