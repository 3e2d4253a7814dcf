"""What requests to fork, rewind and compact become. Pure, like `accept`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from schemas.canonical import canonical_json
from schemas.config import CONFIG_BYTES_MAX, Config, merge_patch
from schemas.events import ContextCompactionRequested, Event, InputSubmitted, Lineage, ThreadCreated, ThreadRewound
from schemas.ids import EventId, ThreadKey, derive_thread
from schemas.thread import COMPACTING_ALREADY
from services.ingest.commands.accepting.accept import (
    NO_SIZES,
    OF_CREATION,
    Accepted,
    AcceptLimits,
    Command,
    config_problem,
    content_of,
    one,
    too_large,
)
from services.ingest.http.auth import Principal
from services.ingest.http.problems import Problem
from services.ingest.http.requests import ForkThread, RewindThread


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """What the views say of the parent, and of the settled seq that was found."""

    parent: ThreadKey
    seq: int
    chain: str
    depth: int
    config: Config
    """In force at the seq."""
    turn: int | None
    """The turn that was open there."""
    asked: int | None
    """The seq that was asked for, where one was."""
    is_closing: bool = False
    """Whether the parent is closing now, or closed."""


def fork_command(principal: Principal, parent: ThreadKey, idempotency_key: str, *, keyed: bool) -> Command:
    route = f"threads/{parent.thread}/fork"
    thread = derive_thread(principal.tenant, principal.subject, route, idempotency_key)
    return Command(principal, route, ThreadKey(principal.tenant, thread), idempotency_key, keyed)


def fork_thread(
    command: Command,
    request: ForkThread,
    point: ForkPoint,
    limits: AcceptLimits,
    sizes: Mapping[str, int] = NO_SIZES,
) -> Accepted | Problem:
    config = patched(point.config, request.config, limits)
    if isinstance(config, Problem):
        return config
    lineage = Lineage(kind="fork", parent=point.parent.thread, seq=point.seq, chain=point.chain, depth=point.depth)
    created = ThreadCreated(config=config, title=request.title or None, labels=request.labels, lineage=lineage)
    events: list[tuple[EventId, Event]] = [(command.event_id(ThreadCreated), created)]
    shown: dict[str, JsonValue] = {"fork": _told(point)}
    if request.input is not None:
        content = content_of(request.input, limits, sizes)
        if isinstance(content, Problem):
            return content
        input_id = command.event_id(InputSubmitted)
        events.append((input_id, InputSubmitted(input=input_id, items=content)))
        shown["input"] = input_id
    return Accepted(command, tuple(events), "nothing", judged=True, shown=shown, kinds=OF_CREATION)


def rewind_thread(command: Command, request: RewindThread) -> Accepted:
    return one(command, ThreadRewound(to_turn=request.to_turn), judged=True)


def compact_thread(command: Command) -> Accepted:
    """A second request while one stands changes nothing, and is answered as the first."""
    accepted = one(command, ContextCompactionRequested(), judged=True)
    return replace(accepted, alike=frozenset({COMPACTING_ALREADY}))


def patched(config: Config, patch: dict[str, JsonValue] | None, limits: AcceptLimits) -> Config | Problem:
    if patch is None:
        return config
    problem = config_problem(patch, limits)
    if problem is not None:
        return problem
    merged = merge_patch(config.model_dump(mode="json"), patch)
    return too_large("A configuration", len(canonical_json(merged)), CONFIG_BYTES_MAX) or Config.model_validate(
        merged, strict=False
    )


def _told(point: ForkPoint) -> dict[str, JsonValue]:
    """At which seq it was forked, and why that is not what one may have expected."""
    notes = []
    if point.asked is not None and point.asked != point.seq:
        notes.append(f"At seq {point.asked} a step was under way, or its calls were not settled; it is left out.")
    if point.turn is not None:
        notes.append(f"Turn {point.turn} was open: the fork has what was settled of it, and none of it goes on there.")
    return {"parent": point.parent.thread, "seq": point.seq, "open_turn": point.turn, "note": " ".join(notes) or None}
