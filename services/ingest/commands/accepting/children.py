"""Turn a request for a child thread into the events that create it. Pure, like `accept`.

A child that a person or a backend starts has its parent's configuration and place in the tree. No call of the parent
waits for it: the parent is not told of the child's end, and cancelling the parent does not stop the child.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from schemas.events import Event, InputSubmitted, Lineage, ThreadCreated
from schemas.ids import EventId, ThreadKey, derive_thread
from services.ingest.commands.accepting.accept import NO_SIZES, OF_CREATION, Accepted, AcceptLimits, Command, content_of
from services.ingest.commands.accepting.lineage import ForkPoint, patched
from services.ingest.http.auth import Principal
from services.ingest.http.problems import CHILD_TOO_DEEP, THREAD_CLOSING, Problem
from services.ingest.http.requests import CreateChild


def child_command(principal: Principal, parent: ThreadKey, idempotency_key: str, *, keyed: bool) -> Command:
    """Return the command that creates a child of `parent`. The child's id is derived from the parent and the key."""
    route = f"threads/{parent.thread}/children"
    thread = derive_thread(principal.tenant, principal.subject, route, idempotency_key)
    return Command(principal, route, ThreadKey(principal.tenant, thread), idempotency_key, keyed)


def create_child(
    command: Command,
    request: CreateChild,
    point: ForkPoint,
    limits: AcceptLimits,
    depth_max: int,
    sizes: Mapping[str, int] = NO_SIZES,
) -> Accepted | Problem:
    """Accept a child. `point` describes the parent now; `depth_max` is the service's limit, and the parent's own may be
    lower.
    """
    config = patched(point.config, request.config, limits)
    if isinstance(config, Problem):
        return config
    depth = point.depth + 1
    own = point.config.limits.child_depth
    allowed = depth_max if own is None else min(depth_max, own)
    if depth > allowed:
        detail = f"A child would be {depth} generations below the topmost thread; {allowed} are allowed."
        return Problem(CHILD_TOO_DEEP, detail)
    parent = point.parent.thread
    lineage = Lineage(kind="child", parent=parent, seq=point.seq, chain=point.chain, depth=depth)
    created = ThreadCreated(config=config, title=request.title or None, labels=request.labels, lineage=lineage)
    events: list[tuple[EventId, Event]] = [(command.event_id(ThreadCreated), created)]
    shown: dict[str, JsonValue] = {}
    if request.input is not None:
        content = content_of(request.input, limits, sizes)
        if isinstance(content, Problem):
            return content
        input_id = command.event_id(InputSubmitted)
        events.append((input_id, InputSubmitted(input=input_id, items=content)))
        shown["input"] = input_id
    refusal = None
    if point.is_closing:
        refusal = Problem(THREAD_CLOSING, f"The thread {parent} is closing, or closed; it gets no children any more.")
    return Accepted(command, tuple(events), "nothing", shown=shown, kinds=OF_CREATION, refusal=refusal)
