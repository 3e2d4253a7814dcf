"""Run a command: append its events and answer. The order is always: give each event its id, append it durably, fold it,
show it.

Commands are idempotent by their events' ids (`accepting.accept`). A command with an Idempotency-Key is first looked for
among those that this process appended, then in the `events` view. What neither knows yet, the fold recognises as a
duplicate. While the database is away the second step is left out; the fold alone remembers a thread's last 256
commands.

If the process dies before the append, nothing has happened. If it dies after the append and before the answer, the
client tries again with its key and gets the answer of the first try. No step in between writes anything.

The answer is either quick (202, the positions) or waits for the effect (200, or the problem that nothing took effect).
It waits if the client asks for that or if the command can be refused.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, assert_never

import orjson
from pydantic import JsonValue
from starlette.responses import Response

from schemas.codec import Encoded, encode
from schemas.errors import LimitError
from schemas.events import ThreadCreated
from schemas.ids import DataHash, EventId, ThreadKey
from schemas.topics import topic_of
from services.chassis.clock import Clock
from services.chassis.log.port import Appender, LogError, Outgoing
from services.ingest.commands.accepting.accept import (
    Accepted,
    Command,
    Stored,
    closing_problem,
    conflict,
    earlier,
    is_conflict,
    queue_problem,
)
from services.ingest.commands.existence import KnownThreads
from services.ingest.commands.refusals import Refusals
from services.ingest.http.problems import (
    LOG_UNAVAILABLE,
    NOT_APPLIED,
    THREAD_CLOSING,
    TOO_LARGE,
    TOO_MANY_APPENDS,
    VIEWS_UNAVAILABLE,
    Problem,
    ProblemError,
)
from services.ingest.lru_cache import LruCache
from services.ingest.metrics import IngestMetrics
from services.ingest.streams.live import Judged

JSON = "application/json"
RECENT_COMMANDS_MAX: Final = 10_000
"""Commands with an Idempotency-Key whose answer this process remembers: more than come while a client tries again. What
is forgotten costs one query of the views and no correctness.
"""


class Verdicts(Protocol):
    """The live reader, as commands see it."""

    async def verdict(self, key: ThreadKey, offset: int, timeout_seconds: float) -> Judged | None:
        """Return what the fold decided about the thread's record at this offset; None if that is not known in time."""
        ...

    def note_created(self, key: ThreadKey, offset: int) -> None:
        """Learn that the thread has no record below this offset, so that it can be folded without its row."""
        ...


class FoundCommands(NamedTuple):
    first: Mapping[EventId, Stored]
    """The first record with each id, as far as the view holds one."""
    begins_at: int | None
    """The view's position if the thread has no record below it; None if it has one."""


class EarlierCommands(Protocol):
    """The `events` view, as commands see it."""

    async def find(self, key: ThreadKey, partition: int, ids: Sequence[EventId]) -> FoundCommands:
        """Return the first records with these ids. Raises ProblemError (views-unavailable)."""
        ...

    async def find_after(
        self, key: ThreadKey, event_id: EventId, partition: int, offset: int, timeout_seconds: float
    ) -> Stored | None:
        """Return the first record with this id once the view holds the position; None if that takes too long.

        Raises ProblemError (views-unavailable).
        """
        ...


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of commands, of which the settings give some and constants the others."""

    record_bytes_max: int
    """Bytes of one record, key and headers among them."""
    appends_per_tenant_max: int
    """Commands of one tenant that may wait for the broker at once."""
    queue_inputs_max: int
    """Inputs that may wait in one thread."""
    recent_max: int
    """Commands with a key whose answers this process remembers."""
    verdict_wait_seconds: float
    """How long a command waits for its effect before it is answered as undecided."""


class Commands:
    """Appends accepted commands and answers them. One object serves all requests of the process."""

    def __init__(
        self,
        *,
        appender: Appender,
        known: KnownThreads,
        earlier_commands: EarlierCommands,
        verdicts: Verdicts,
        clock: Clock,
        instance: str,
        limits: CommandLimits,
        metrics: IngestMetrics,
        refusals: Refusals,
    ) -> None:
        self._refusals = refusals
        self._appender = appender
        self._known = known
        self._earlier = earlier_commands
        self._verdicts = verdicts
        self._clock = clock
        self._source = f"ingest/{instance}"
        self._limits = limits
        self._metrics = metrics
        self._recent: LruCache[Command, Sequence[Stored]] = LruCache(limits.recent_max)
        self._under_way: Counter[str] = Counter()

    async def run(self, accepted: Accepted, *, wait: bool) -> Response:
        """Run an accepted command and return the answer. `wait`: the client asks for the effect.

        Raises ProblemError. A refusal that was found while accepting counts only if no earlier try is known, because
        that try's answer stands.
        """
        encoded = self._encode(accepted)
        stored = await self._stored_earlier(accepted, encoded) if accepted.command.keyed else None
        if stored is None and accepted.refusal is not None:
            raise ProblemError(accepted.refusal)
        if stored is None:
            stored = await self._require_or_find(accepted, encoded)
        if stored is None:
            stored = await self._append(accepted, encoded)
        if not (wait or accepted.judged):
            return _answer(202, _body(accepted, [item._replace(effect=None) for item in stored]))
        return await self._answer_with_verdicts(accepted, stored)

    async def _require_or_find(self, accepted: Accepted, encoded: Sequence[Encoded]) -> Sequence[Stored] | None:
        """Require what the command needs; return the records of an earlier try if the thread has closed since.

        A closed thread stays closed, so a client that is told so does not ask again. An earlier try of the same command
        may have come before the closing, and may be in the log while the views do not hold it yet.
        """
        try:
            await self._require(accepted)
        except ProblemError as error:
            if error.problem.type is not THREAD_CLOSING or not accepted.command.keyed:
                raise
            await self._known.catch_up(accepted.command.key)
            stored = await self._stored_earlier(accepted, encoded)
            if stored is None:
                raise
            return stored
        return None

    async def _require(self, accepted: Accepted) -> None:
        """Raise ProblemError if what the command needs is missing: the thread, or room in its queue."""
        match accepted.needs:
            case "nothing":
                pass
            case "thread":
                await self._known.require(accepted.command.key)
            case "room":
                queued = await self._known.queued(accepted.command.key)
                is_closing = self._known.is_closing(accepted.command.key)
                problem = closing_problem(is_closing=is_closing) or queue_problem(queued, self._limits.queue_inputs_max)
                if problem is not None:
                    raise ProblemError(problem)
            case _:
                assert_never(accepted.needs)

    def _encode(self, accepted: Accepted) -> list[Encoded]:
        """Encode the events. Raises ProblemError (too-large) if one does not fit into a record."""
        command = accepted.command
        now_ms = self._clock.now_ms()
        try:
            return [
                encode(
                    command.key,
                    event,
                    source=self._source,
                    actor=command.principal.actor,
                    time_ms=now_ms,
                    event_id=event_id,
                    bytes_max=self._limits.record_bytes_max,
                )
                for event_id, event in accepted.events
            ]
        except LimitError as error:
            raise ProblemError(Problem(TOO_LARGE, str(error))) from error

    async def _stored_earlier(self, accepted: Accepted, encoded: Sequence[Encoded]) -> Sequence[Stored] | None:
        """Return the records of an earlier try; None if none is known. Raises ProblemError if the key was another
        command's.

        A part of the records in the view means that the view is in the middle of them, or that the earlier command was
        another. Waiting for the view tells the two apart.
        """
        sent = [(item.record.id, item.record.data_hash) for item in encoded]
        recent = self._recent.get(accepted.command)
        if recent is not None and [(item.id, item.data_hash) for item in recent] == sent:
            return recent
        try:
            if recent is not None:
                # What this process appended with the key may not be the first that the log has with it.
                await self._known.catch_up(accepted.command.key)
            found = await self._look_up(accepted, sent)
            if 0 < len(found) < len(sent):
                await self._known.catch_up(accepted.command.key)
                found = await self._look_up(accepted, sent)
        except ProblemError as error:
            if error.problem.type is not VIEWS_UNAVAILABLE:
                raise
            if recent is not None:
                raise ProblemError(conflict()) from None
            # Commands go on without the database: the fold recognises the id if it is one of the last.
            self._metrics.lookups_skipped.inc()
            return None
        if 0 < len(found) < len(sent) or (recent is not None and not found):
            raise ProblemError(conflict())
        return found or None

    async def _look_up(self, accepted: Accepted, sent: Sequence[tuple[EventId, DataHash]]) -> list[Stored]:
        """Ask the `events` view for the command's records, and for records that its key would have given to others."""
        key, absent = accepted.command.key, accepted.absent()
        ids = [*[event_id for event_id, _ in sent], *absent]
        found = await self._earlier.find(key, self._known.partition(key), ids)
        if found.begins_at is not None and accepted.needs == "nothing":
            self._verdicts.note_created(key, found.begins_at)
        answer = earlier(sent, absent, found.first)
        if isinstance(answer, Problem):
            raise ProblemError(answer)
        return answer

    async def _append(self, accepted: Accepted, encoded: Sequence[Encoded]) -> list[Stored]:
        """Append the events as one batch, and remember them.

        Raises ProblemError: too-many-appends before anything is sent, log-unavailable if the log did not acknowledge.
        In the latter case the command may be in the log all the same.
        """
        key = accepted.command.key
        if self._under_way[key.tenant] >= self._limits.appends_per_tenant_max:
            detail = f"{self._limits.appends_per_tenant_max} commands of this tenant wait for the log. Try again soon."
            raise ProblemError(Problem(TOO_MANY_APPENDS, detail))
        partition = self._known.partition(key)
        raw_key = key.to_bytes()
        records = [Outgoing(raw_key, item.value, item.headers, item.record.time_ms) for item in encoded]
        self._under_way[key.tenant] += 1
        # Counted before the append, so that inputs that come at once do not all find the last free place.
        on_the_way = self._known.submitting(key) if accepted.needs == "room" else contextlib.nullcontext()
        try:
            with on_the_way:
                offsets = await self._appender.append(topic_of(key).name, partition, records)
        except LogError as error:
            self._metrics.appends_failed.inc()
            raise ProblemError(Problem(LOG_UNAVAILABLE, f"{error}. The command may have been stored.")) from error
        finally:
            self._under_way[key.tenant] -= 1
            if not self._under_way[key.tenant]:
                del self._under_way[key.tenant]
        stored = [
            Stored(item.record.id, item.record.kind, item.record.data_hash, partition, offset, None, None, None)
            for item, offset in zip(encoded, offsets, strict=True)
        ]
        self._note(accepted.command, stored)
        return stored

    def _note(self, command: Command, stored: Sequence[Stored]) -> None:
        """Remember what the append says about the thread, its queue and this key."""
        if stored[0].kind == ThreadCreated.kind:
            self._known.note_created(command.key)
            if not command.keyed:  # With a key an earlier try may have created it, at a lower offset.
                self._verdicts.note_created(command.key, stored[0].offset)
        for item in stored:
            self._known.note_append(command.key, item.kind, item.offset)
        if command.keyed:
            self._recent.put(command, stored)

    async def _answer_with_verdicts(self, accepted: Accepted, stored: Sequence[Stored]) -> Response:
        """Answer with what the fold decided. Raises ProblemError if the command took no effect.

        A command of several events is answered by the first of them that did not take effect. If one effect is not
        known in time, the whole answer is undecided: 202, with the address at which to ask.
        """
        judged = [await self._judged(accepted.command.key, item) for item in stored]
        decided = [item for item in judged if item is not None]
        if len(decided) < len(stored):
            self._metrics.undecided.inc()
            return _answer(202, _body(accepted, stored) | _how_to_ask(accepted, stored))
        telling = next((item for item in decided if item.effect != "applied"), decided[-1])
        if telling.effect == "applied" or (telling.effect, telling.reason) in accepted.alike:
            return _answer(200, _told(accepted, decided, telling))
        if is_conflict(telling.effect, telling.reason):
            raise ProblemError(conflict())
        refused = next(event for event_id, event in accepted.events if event_id == telling.id)
        explained = await self._refusals.explain(accepted.command.key, refused, telling)
        if isinstance(explained, Stored):
            return _answer(200, _told(accepted, [explained], explained))
        detail = f"{telling.kind} was {telling.effect}: {telling.reason}. {explained.sentence}".rstrip()
        raise ProblemError(Problem(NOT_APPLIED, detail, {**_told(accepted, decided, telling), **explained.more}))

    async def _judged(self, key: ThreadKey, item: Stored) -> Stored | None:
        """Return the record with its effect; None if it is not known in time. A duplicate gets the answer of the first
        record with its id.
        """
        if item.effect is not None:
            return item
        wait_seconds = self._limits.verdict_wait_seconds
        judged = await self._verdicts.verdict(key, item.offset, wait_seconds)
        if judged is None:
            return None
        self._known.note_state(key, judged.state)
        if judged.verdict.effect != "duplicate":
            return item._replace(seq=judged.seq, effect=judged.verdict.effect, reason=judged.verdict.reason)
        try:
            return await self._earlier.find_after(key, item.id, item.partition, item.offset, wait_seconds)
        except ProblemError:
            # The append is done. Without the views the client learns only that, as if the effect were late.
            return None


def _body(accepted: Accepted, stored: Sequence[Stored]) -> dict[str, JsonValue]:
    """Return the members that all answers of commands have."""
    last = stored[-1]
    return {
        "thread": accepted.command.key.thread,
        **accepted.shown,
        "events": [_shown(item) for item in stored],
        "position": {"partition": last.partition, "offset": last.offset},
    }


def _told(accepted: Accepted, decided: Sequence[Stored], telling: Stored) -> dict[str, JsonValue]:
    """Return the answer's members with the effect. `telling` is the record whose effect is that of the whole
    command.
    """
    return _body(accepted, decided) | {"seq": telling.seq, "effect": telling.effect, "reason": telling.reason}


def _shown(item: Stored) -> JsonValue:
    """Return one record as an answer shows it: with its effect once that is known."""
    if item.effect is None:
        return {"id": item.id, "type": item.kind}
    return {"id": item.id, "type": item.kind, "seq": item.seq, "effect": item.effect, "reason": item.reason}


def _how_to_ask(accepted: Accepted, stored: Sequence[Stored]) -> dict[str, JsonValue]:
    """Return what an undecided answer says beside the ids: where to ask for the effect."""
    return {"undecided": True, "ask": f"/v1/threads/{accepted.command.key.thread}/commands/{stored[-1].id}"}


def _answer(status: int, body: dict[str, JsonValue]) -> Response:
    return Response(orjson.dumps(body), status, media_type=JSON)
