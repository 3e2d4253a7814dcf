"""Turn a request about a thread, an input or a turn into events with their ids, or into a problem.

Everything here is pure: what a function must know of the thread is an argument.

An event's id is derived from tenant, principal, route, thread, key and kind. The key is the Idempotency-Key that the
client sent, or one drawn for this request. So the same command has the same ids however often it comes, and the fold
counts it once. `earlier` recognises a repeated command before the append if the views know it already; this only saves
the append.
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
"""Events that a command which creates a thread may become."""
OF_PATCHES = frozenset[type[Event]]({ThreadDescribed, ThreadConfigured, ThreadArchived, ThreadUnarchived})
"""Events that a patch of a thread may become."""

NO_SIZES: Mapping[str, int] = {}
CLOSED_ALREADY = frozenset({CLOSING_ALREADY, CLOSED})
"""Verdicts that answer a request to close as if it had taken effect: the thread was closing or closed before."""
ARCHIVED_AS_ASKED = frozenset({ARCHIVED_ALREADY, NOT_ARCHIVED})
"""Verdicts that answer a request to archive as if it had taken effect: the thread was in that condition before."""


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """How large the parts of a request may be, and what a thread has that is created without a configuration."""

    input_bytes_max: int
    """Bytes of an input's text, of a plan, or of edited arguments, as UTF-8."""
    result_bytes_max: int
    """Bytes of a call's result, as canonical JSON."""
    config_bytes_max: int
    """Bytes of a configuration or of its patch, as canonical JSON."""
    default_config: Config
    """The configuration that a request to create a thread is merged into."""


@dataclass(frozen=True, slots=True)
class Command:
    """Who wants what of which thread, and the key that tells this command from all others."""

    principal: Principal
    route: str
    """The path below the thread, such as `inputs` or `turns/3/cancel`."""
    key: ThreadKey
    idempotency_key: str
    """The key that the client sent, or the one drawn for this request."""
    keyed: bool
    """Whether the client sent the key. Without a key nobody can repeat the command, so nobody looks for earlier tries.
    """

    def event_id(self, event: type[Event]) -> EventId:
        """Return the id of this command's event of the given type. It is the same at each try."""
        tenant, subject = self.principal.tenant, self.principal.subject
        return derive_command(tenant, subject, self.route, self.key.thread, self.idempotency_key, event.kind)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A command that may be appended: its events in order, and what the append and the answer need."""

    command: Command
    events: tuple[tuple[EventId, Event], ...]
    needs: Literal["nothing", "thread", "room"] = "thread"
    """What must exist before the append: only the log, the thread, or room in the thread's queue."""
    judged: bool = False
    """Whether the answer waits for the effect even if the client did not ask for it: the effect can be a refusal."""
    shown: Mapping[str, JsonValue] = field(default_factory=dict)
    """Members of the answer beside the ids of the events."""
    kinds: frozenset[type[Event]] = frozenset()
    """Events that commands of this route may become. An earlier command with this key that became another of them had
    another body.
    """
    alike: frozenset[Verdict] = frozenset()
    """Verdicts that mean the same as taking effect: somebody had asked for the same before."""
    refusal: Problem | None = None
    """The problem that refuses the command now. It applies only if no earlier try of the command is in the log."""

    def absent(self) -> list[EventId]:
        """Return the ids of events that a command with this key could have become, and that this command did not
        become.
        """
        present = {type(event) for _, event in self.events}
        return [self.command.event_id(kind) for kind in self.kinds - present]


class CallFacts(NamedTuple):
    """What the views know of a tool call; `accepting.calls` decides by it."""

    tool: str
    attempt: int
    pool: str | None
    claim: str | None
    """The event id of the claim in force. For client tools it is the id of the dispatch."""


# Threads


def create_command(principal: Principal, idempotency_key: str, *, keyed: bool) -> Command:
    """Return the command that creates a thread. The thread's id is derived from the key, so a repeated request names
    the same thread.
    """
    thread = derive_thread(principal.tenant, principal.subject, CREATE_ROUTE, idempotency_key)
    return Command(principal, CREATE_ROUTE, ThreadKey(principal.tenant, thread), idempotency_key, keyed)


def create_thread(
    command: Command, request: CreateThread, limits: AcceptLimits, sizes: Mapping[str, int] = NO_SIZES
) -> Accepted | Problem:
    """Accept a new thread, with a first input if the request has one. `sizes` are the bytes of the named artifacts that
    exist, by hash.
    """
    config = limits.default_config
    if request.config is not None:
        wanted = request.config.model_dump(mode="json", exclude_unset=True)
        problem = too_large("The configuration", len(canonical_json(wanted)), limits.config_bytes_max)
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
    """Accept changes of a thread: one event each for description, configuration and archive. A patch that changes
    nothing is refused.
    """
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
    """Accept that a thread closes. A thread that is closing already answers the same."""
    return replace(one(command, ThreadCloseRequested(reason=request.reason)), alike=CLOSED_ALREADY)


def config_problem(patch: dict[str, JsonValue], limits: AcceptLimits) -> Problem | None:
    """Return why the patch fits no configuration, or None. Every field but the model has a default, so a model is
    assumed.
    """
    problem = too_large("The configuration", len(canonical_json(patch)), limits.config_bytes_max)
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
    """Accept an input. `sizes` are the bytes of the named artifacts that exist, by hash."""
    content = content_of(request, limits, sizes)
    if isinstance(content, Problem):
        return content
    input_id = command.event_id(InputSubmitted)
    submitted = InputSubmitted(input=input_id, items=content, mode=request.mode, expected_turn=request.expected_turn)
    judged = request.mode == "reject" or request.expected_turn is not None
    return Accepted(command, ((input_id, submitted),), "room", judged, {"input": input_id})


def queue_problem(queued: int, inputs_max: int) -> Problem | None:
    """Return the problem of a full queue, or None. `queued` is how many inputs wait as far as this process knows."""
    if queued < inputs_max:
        return None
    return Problem(QUEUE_FULL, f"The queue is full: {queued} of {inputs_max} inputs are waiting.")


def closing_problem(*, is_closing: bool) -> Problem | None:
    """Return the problem of a closing thread, or None. What this process does not know, the fold refuses later."""
    return Problem(THREAD_CLOSING, "The thread is closing, or closed.") if is_closing else None


def withdraw_input(command: Command, input_id: str) -> Accepted:
    """Accept that an input is taken back. Only the fold knows whether a step has taken the input before."""
    return one(command, InputWithdrawn(input=input_id), judged=True, shown={"input": input_id})


def cancel_turn(command: Command, turn: int, request: CancelTurn) -> Accepted:
    """Accept that a turn is cancelled. A second cancel changes nothing and is answered like the first; the cancel of an
    ended turn is refused.
    """
    requested = TurnCancelRequested(turn=turn, reason="user", note=request.note, discard=request.discard)
    return replace(one(command, requested, judged=True), alike=frozenset({cancelling_already(turn)}))


def content_of(request: Content, limits: AcceptLimits, sizes: Mapping[str, int]) -> tuple[ContentItem, ...] | Problem:
    """Return the items of an input, or the problem that artifacts are missing or the text is too large."""
    missing = sorted(request.named() - sizes.keys())
    if missing:
        return Problem(ARTIFACT_MISSING, f"There is no artifact {', '.join(missing)}.", {"missing": list(missing)})
    content = request.content(sizes)
    content_bytes = sum(len(item.text.encode()) for item in content if isinstance(item, TextItem))
    return too_large("The input", content_bytes, limits.input_bytes_max) or content


# Shared with the other modules of this room


def one(
    command: Command,
    event: Event,
    *,
    judged: bool = False,
    shown: Mapping[str, JsonValue] | None = None,
    kinds: frozenset[type[Event]] = frozenset(),
) -> Accepted:
    """Accept a command that becomes a single event."""
    with_id = (command.event_id(type(event)), event)
    return Accepted(command, (with_id,), judged=judged, shown=shown or {}, kinds=kinds)


def too_large(what: str, size_bytes: int, bytes_max: int) -> Problem | None:
    """Return the problem of a part of the request that is larger than its limit, or None."""
    if size_bytes <= bytes_max:
        return None
    return Problem(TOO_LARGE, f"{what} has {size_bytes} bytes; the limit is {bytes_max}.")


# Commands that came before
#
# A repeated command must get the answer of its first try, whatever the thread has become since.


class Stored(NamedTuple):
    """The first record with an id, as the log has it."""

    id: EventId
    kind: str
    data_hash: DataHash
    partition: int
    offset: int
    seq: int | None
    """The record's number in its thread; None while only the append is known."""
    effect: Effect | None
    """What the fold decided; None while only the append is known."""
    reason: str | None


def earlier(
    sent: Sequence[tuple[EventId, DataHash]], absent: Sequence[EventId], stored: Mapping[EventId, Stored]
) -> list[Stored] | Problem:
    """Return the records of an earlier try of this command, or the problem that the key belongs to another command.

    `absent` are the ids that the key would have given to events that this command has not. All records of a command are
    appended together. If views that have caught up hold only a part of them, the earlier command was another one.
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
    """Return the problem of an Idempotency-Key that was used for another body."""
    return Problem(IDEMPOTENCY_CONFLICT, "An earlier command with this Idempotency-Key had another body.")


def is_conflict(effect: Effect | None, reason: str | None) -> bool:
    """Return whether the fold refused the record because its id was used with other data."""
    return effect == CONFLICT.effect and reason == CONFLICT.reason
