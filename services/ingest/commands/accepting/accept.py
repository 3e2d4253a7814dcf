"""What a request becomes: events with their ids, or a problem. Pure: what it must know of the thread is an argument.

An event's id is derived from tenant, principal, route, thread, key and kind, where the key is the Idempotency-Key that
the client sent, or one drawn for this request. So the same command has the same ids however often it comes, and the
fold counts it once; `earlier` recognises it before the append where the views know it already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import pydantic
from pydantic import JsonValue

from schemas.canonical import canonical_json
from schemas.codec import first_error
from schemas.config import Config, merge_patch
from schemas.events import (
    ContentItem,
    Event,
    InputSubmitted,
    InputWithdrawn,
    TextItem,
    ThreadArchived,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadCreated,
    ThreadDescribed,
    ThreadUnarchived,
    TurnCancelRequested,
)
from schemas.ids import EPHEMERAL_PREFIX, DataHash, EventId, ThreadId, ThreadKey, derive_command, derive_thread
from schemas.thread import (
    ARCHIVED_ALREADY,
    CLOSED,
    CLOSING_ALREADY,
    CONFLICT,
    NOT_ARCHIVED,
    Effect,
    Verdict,
    cancelling_already,
)
from services.ingest.http.auth import Principal
from services.ingest.http.problems import (
    ARTIFACT_MISSING,
    IDEMPOTENCY_CONFLICT,
    INVALID_REQUEST,
    QUEUE_FULL,
    THREAD_CLOSING,
    TOO_LARGE,
    Problem,
)
from services.ingest.http.requests import (
    CancelTurn,
    CloseThread,
    ConfigRequest,
    Content,
    CreateThread,
    PatchThread,
    SubmitInput,
)

CREATE_ROUTE = "threads"
OF_CREATION = frozenset[type[Event]]({ThreadCreated, InputSubmitted})
OF_PATCHES = frozenset[type[Event]]({ThreadDescribed, ThreadConfigured, ThreadArchived, ThreadUnarchived})

NO_SIZES: Mapping[str, int] = {}
CLOSED_ALREADY = frozenset({CLOSING_ALREADY, CLOSED})
ARCHIVED_AS_ASKED = frozenset({ARCHIVED_ALREADY, NOT_ARCHIVED})


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    input_bytes_max: int
    result_bytes_max: int
    config_bytes_max: int
    default_config: Config


@dataclass(frozen=True, slots=True)
class Command:
    """Who wants what of which thread, and by which key it is told apart from any other command."""

    principal: Principal
    route: str
    """The path below the thread, such as `inputs` or `turns/3/cancel`."""
    key: ThreadKey
    idempotency_key: str
    """As it was sent, or drawn."""
    keyed: bool
    """Whether it was sent."""

    def event_id(self, event: type[Event]) -> EventId:
        tenant, subject = self.principal.tenant, self.principal.subject
        return derive_command(tenant, subject, self.route, self.key.thread, self.idempotency_key, event.kind)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Events to append, in this order."""

    command: Command
    events: tuple[tuple[EventId, Event], ...]
    needs: Literal["nothing", "thread", "room"] = "thread"
    """What there has to be before the append: no more than the log, the thread, or room in its queue."""
    judged: bool = False
    """Whether the answer waits for what the fold made of it, asked or not."""
    shown: Mapping[str, JsonValue] = field(default_factory=dict)
    """What the answer says beside the ids of the events."""
    kinds: frozenset[type[Event]] = frozenset()
    """What commands of this route may become. One that became something else under this key had another body."""
    alike: frozenset[Verdict] = frozenset()
    """Verdicts that come to the same as taking effect: what was asked for had been asked for before."""
    refusal: Problem | None = None
    """Why it is refused now. An earlier try of it may have come before that."""

    def absent(self) -> list[EventId]:
        """Ids of what this command could have become, and did not."""
        present = {type(event) for _, event in self.events}
        return [self.command.event_id(kind) for kind in self.kinds - present]


class CallFacts(NamedTuple):
    """What the views say of a tool call; see `calls`."""

    tool: str
    attempt: int
    pool: str | None
    claim: str | None
    """Event id of the claim in force; in the pool `client`, of the dispatch."""


# Threads


def create_command(principal: Principal, idempotency_key: str, *, keyed: bool) -> Command:
    thread = derive_thread(principal.tenant, principal.subject, CREATE_ROUTE, idempotency_key)
    return Command(principal, CREATE_ROUTE, ThreadKey(principal.tenant, thread), idempotency_key, keyed)


def create_thread(
    command: Command, request: CreateThread, limits: AcceptLimits, sizes: Mapping[str, int] = NO_SIZES
) -> Accepted | Problem:
    """`sizes`: of the artifacts that its input names and that are there."""
    config = limits.default_config
    if request.config is not None:
        wanted = request.config.model_dump(mode="json", exclude_unset=True)
        problem = too_large("A configuration", len(canonical_json(wanted)), limits.config_bytes_max)
        if problem is not None:
            return problem
        merged = merge_patch(config.model_dump(mode="json", exclude_unset=True), wanted)
        config = Config.model_validate(merged, strict=False)
    if request.ephemeral:
        key = ThreadKey(command.key.tenant, ThreadId(EPHEMERAL_PREFIX + command.key.thread))
        command = replace(command, key=key)
    created = ThreadCreated(config=config, title=request.title or None, labels=request.labels)
    events: list[tuple[EventId, Event]] = [(command.event_id(ThreadCreated), created)]
    if request.input is None:
        return Accepted(command, tuple(events), "nothing", kinds=OF_CREATION)
    content = content_of(request.input, limits, sizes)
    if isinstance(content, Problem):
        return content
    input_id = command.event_id(InputSubmitted)
    events.append((input_id, InputSubmitted(input=input_id, items=content)))
    return Accepted(command, tuple(events), "nothing", shown={"input": input_id}, kinds=OF_CREATION)


def patch_thread(command: Command, request: PatchThread, limits: AcceptLimits) -> Accepted | Problem:
    given = request.model_fields_set
    events: list[Event] = []
    if "title" in given or "labels" in given:
        events.append(
            ThreadDescribed(
                title=(request.title or "") if "title" in given else None,
                labels=(request.labels or {}) if "labels" in given else None,
            )
        )
    if request.config is not None:
        problem = config_problem(request.config, limits)
        if problem is not None:
            return problem
        events.append(ThreadConfigured(patch=request.config))
    if request.archived is not None:
        events.append(ThreadArchived() if request.archived else ThreadUnarchived())
    if not events:
        return Problem(INVALID_REQUEST, "The patch changes nothing.", {"errors": []})
    with_ids = tuple([(command.event_id(type(event)), event) for event in events])
    return Accepted(command, with_ids, kinds=OF_PATCHES, alike=ARCHIVED_AS_ASKED)


def close_thread(command: Command, request: CloseThread) -> Accepted:
    return replace(one(command, ThreadCloseRequested(reason=request.reason)), alike=CLOSED_ALREADY)


def config_problem(patch: dict[str, JsonValue], limits: AcceptLimits) -> Problem | None:
    """Whether the patch could fit any configuration: each field has a default but the model."""
    problem = too_large("A configuration", len(canonical_json(patch)), limits.config_bytes_max)
    if problem is not None:
        return problem
    try:
        merged = merge_patch({"model": "any"}, patch)
        assert isinstance(merged, dict), "a patch that is an object gives one"
        ConfigRequest.model_validate({"model": None, **merged}, strict=False)
    except pydantic.ValidationError as error:
        complaint = first_error(error)
        return Problem(INVALID_REQUEST, f"config.{complaint}", {"errors": [{"place": "config", "detail": complaint}]})
    return None


# Inputs and turns


def submit_input(
    command: Command, request: SubmitInput, limits: AcceptLimits, sizes: Mapping[str, int] = NO_SIZES
) -> Accepted | Problem:
    """`sizes`: of the artifacts that it names and that are there."""
    content = content_of(request, limits, sizes)
    if isinstance(content, Problem):
        return content
    input_id = command.event_id(InputSubmitted)
    submitted = InputSubmitted(input=input_id, items=content, mode=request.mode, expected_turn=request.expected_turn)
    judged = request.mode == "reject" or request.expected_turn is not None
    return Accepted(command, ((input_id, submitted),), "room", judged, {"input": input_id})


def queue_problem(queued: int, inputs_max: int) -> Problem | None:
    """`queued`: how many inputs wait in the thread, as far as this process knows."""
    if queued < inputs_max:
        return None
    return Problem(QUEUE_FULL, f"{queued} inputs wait in the thread; {inputs_max} may.")


def closing_problem(*, is_closing: bool) -> Problem | None:
    """`is_closing`: as far as this process knows. What it does not know, the fold does."""
    return Problem(THREAD_CLOSING, "The thread is closing, or closed.") if is_closing else None


def withdraw_input(command: Command, input_id: str) -> Accepted:
    return one(command, InputWithdrawn(input=input_id), judged=True, shown={"input": input_id})


def cancel_turn(command: Command, turn: int, request: CancelTurn) -> Accepted:
    """A second cancel changes nothing, and is answered as the first; one of a turn that has ended is refused."""
    requested = TurnCancelRequested(turn=turn, reason="user", note=request.note, discard=request.discard)
    return replace(one(command, requested, judged=True), alike=frozenset({cancelling_already(turn)}))


def content_of(request: Content, limits: AcceptLimits, sizes: Mapping[str, int]) -> tuple[ContentItem, ...] | Problem:
    missing = sorted(request.named() - sizes.keys())
    if missing:
        return Problem(ARTIFACT_MISSING, f"There is no artifact {', '.join(missing)}.", {"missing": list(missing)})
    content = request.content(sizes)
    content_bytes = sum(len(item.text.encode()) for item in content if isinstance(item, TextItem))
    return too_large("An input", content_bytes, limits.input_bytes_max) or content


# Shared with the other modules of this room


def one(
    command: Command,
    event: Event,
    *,
    judged: bool = False,
    shown: Mapping[str, JsonValue] | None = None,
    kinds: frozenset[type[Event]] = frozenset(),
) -> Accepted:
    with_id = (command.event_id(type(event)), event)
    return Accepted(command, (with_id,), judged=judged, shown=shown or {}, kinds=kinds)


def too_large(what: str, size_bytes: int, bytes_max: int) -> Problem | None:
    if size_bytes <= bytes_max:
        return None
    return Problem(TOO_LARGE, f"{what} may have {bytes_max} bytes; this one has {size_bytes}.")


# Commands that came before


class Stored(NamedTuple):
    """The first record with an id, as it stands in the log."""

    id: EventId
    kind: str
    data_hash: DataHash
    partition: int
    offset: int
    seq: int | None
    """None where only its append is known."""
    effect: Effect | None
    reason: str | None


def earlier(
    sent: Sequence[tuple[EventId, DataHash]], absent: Sequence[EventId], stored: Mapping[EventId, Stored]
) -> list[Stored] | Problem:
    """What the views know of a command with this key, or that another command had it.

    `absent` are the ids that the key would have given to what is not in this command. A command's records are appended
    together: where views that have caught up hold a part of them, the earlier command was another one.
    """
    if any(event_id in stored for event_id in absent):
        return conflict()
    found = []
    for event_id, data_hash in sent:
        known = stored.get(event_id)
        if known is not None and known.data_hash != data_hash:
            return conflict()
        if known is not None:
            found.append(known)
    return found


def conflict() -> Problem:
    return Problem(IDEMPOTENCY_CONFLICT, "An earlier command with this Idempotency-Key had another body.")


def is_conflict(effect: Effect | None, reason: str | None) -> bool:
    return effect == CONFLICT.effect and reason == CONFLICT.reason
