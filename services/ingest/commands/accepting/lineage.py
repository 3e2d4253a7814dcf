"""Turn a request to fork, rewind or compact a thread into events. Pure, like `accept`."""

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
    """What the views know of the parent thread at the settled seq where it is forked."""

    parent: ThreadKey
    seq: int
    """The settled seq: no step was under way there."""
    chain: str
    """The parent's hash chain at the seq, which the fork's first record names."""
    depth: int
    """Generations of child threads between the parent and its topmost thread."""
    config: Config
    """The configuration that was in force at the seq."""
    turn: int | None
    """The turn that was open at the seq; None if there was none."""
    asked: int | None
    """The seq that the client named; None if it named none."""
    is_closing: bool = False
    """Whether the parent is closing now, or closed."""


def fork_command(principal: Principal, parent: ThreadKey, idempotency_key: str, *, keyed: bool) -> Command:
    """Return the command that forks `parent`. The fork's id is derived from the parent and the key."""
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
    """Accept a fork of a thread, with a first input if the request has one."""
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
    """Accept that the thread continues after an earlier turn. Later turns stay in its history and leave its context."""
    return one(command, ThreadRewound(to_turn=request.to_turn), judged=True)


def compact_thread(command: Command) -> Accepted:
    """Accept a request to compact the context. A second request while one is waiting is answered like the first."""
    accepted = one(command, ContextCompactionRequested(), judged=True)
    return replace(accepted, alike=frozenset({COMPACTING_ALREADY}))


def patched(config: Config, patch: dict[str, JsonValue] | None, limits: AcceptLimits) -> Config | Problem:
    """Return the configuration with the patch applied, or the problem of the patch or of the result's size."""
    if patch is None:
        return config
    problem = config_problem(patch, limits)
    if problem is not None:
        return problem
    merged = merge_patch(config.model_dump(mode="json"), patch)
    return too_large("The configuration", len(canonical_json(merged)), CONFIG_BYTES_MAX) or Config.model_validate(
        merged, strict=False
    )


def _told(point: ForkPoint) -> dict[str, JsonValue]:
    """Return at which seq the thread was forked, and why that may differ from what the client expected."""
    notes = []
    if point.asked is not None and point.asked != point.seq:
        notes.append(f"At seq {point.asked} a step was under way, or its calls were not settled; it is left out.")
    if point.turn is not None:
        notes.append(f"Turn {point.turn} was open: the fork has what was settled of it, and none of it goes on there.")
    return {"parent": point.parent.thread, "seq": point.seq, "open_turn": point.turn, "note": " ".join(notes) or None}
