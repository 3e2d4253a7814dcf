"""Where a thread can be forked: found by a few rows, however long the thread is.

A fork names a settled seq of its parent: no step is under way there, and no call of an open turn is without its end.
What was asked for may lie inside a step; then the fork takes what was settled before it, and says so. A command that is
sent again comes to the seq that it came to the first time, whatever the parent has come to since.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import orjson
import pydantic
from pydantic import JsonValue

from schemas.config import Config, merge_patch
from schemas.events import ThreadCreated
from schemas.ids import EventId, ThreadKey
from services.chassis.threads.contexts import PARENTS_MAX
from services.ingest.commands.accepting.accept import Command
from services.ingest.commands.accepting.lineage import ForkPoint
from services.ingest.commands.existence import KnownThreads
from services.ingest.database import Database
from services.ingest.http.problems import (
    FORK_POINT,
    IDEMPOTENCY_CONFLICT,
    NOT_FORKABLE,
    STATE_OUT_OF_REACH,
    Problem,
    ProblemError,
    no_such_thread,
)

CONFIGURATIONS_MAX: Final = 1_000
"""Records of configurations that are read for a fork at an earlier seq. Each is a patch that somebody sent by hand or
by program; more than a thousand in one thread is a mistake that must not cost every fork seconds.
"""
EPHEMERAL: Final = "An ephemeral thread leaves no history: it has no forks, and children by its own calls alone."


class ForkAt(NamedTuple):
    """What was asked for; the newest settled seq where both are None."""

    seq: int | None = None
    turn: int | None = None


class FoundPoint(NamedTuple):
    """What the views say of the place where a thread was asked to be forked."""

    newest: int
    quarantined: str | None
    status: str
    depth: int
    config_seq: int
    config: JsonValue
    """In force now."""
    forks: int
    """Threads above it by forks, counted up to the most that there may be."""
    is_there: bool
    """Whether the thread has the turn that was named."""
    asked: int
    turn: int | None
    """The turn that is open at the seq that was asked for."""
    seq: int
    """The newest settled one at or before that."""
    chain: str | None
    """At that seq; None where the thread has no such record."""


class MadeFork(NamedTuple):
    parent: str | None
    seq: int | None


class ForkRows(Protocol):
    """All raise ProblemError (views-unavailable)."""

    async def fork_point(self, key: ThreadKey, at: ForkAt) -> FoundPoint | None:
        """None where the views do not know the thread."""
        ...

    async def fork_configs(self, key: ThreadKey, seq: int, most: int) -> Sequence[JsonValue]:
        """Data of the records that made the configuration in force at the seq, the oldest first: a `thread.created`,
        then patches. None in place of what the views do not hold.
        """
        ...

    async def fork_made(self, key: ThreadKey, event_id: EventId) -> MadeFork | None:
        """What the command with this id made before."""
        ...


class PostgresForkRows:
    def __init__(self, database: Database, sql: Mapping[str, str]) -> None:
        self._database = database
        self._sql = sql

    async def fork_point(self, key: ThreadKey, at: ForkAt) -> FoundPoint | None:
        tenant, thread = key
        rows = await self._database.fetch(tenant, self._sql["fork_point"], tenant, thread, at.seq, at.turn, PARENTS_MAX)
        if not rows:
            return None
        found = {name: rows[0][name] for name in FoundPoint._fields}
        return FoundPoint(**{**found, "config": orjson.loads(found["config"])})

    async def fork_configs(self, key: ThreadKey, seq: int, most: int) -> Sequence[JsonValue]:
        tenant, thread = key
        rows = await self._database.fetch(tenant, self._sql["fork_configs"], tenant, thread, seq, most)
        return [None if row["data"] is None else orjson.loads(row["data"]) for row in rows]

    async def fork_made(self, key: ThreadKey, event_id: EventId) -> MadeFork | None:
        tenant, thread = key
        rows = await self._database.fetch(tenant, self._sql["fork_made"], tenant, thread, UUID(event_id))
        return MadeFork(rows[0]["parent"], rows[0]["seq"]) if rows else None


class Forks:
    def __init__(self, rows: ForkRows, known: KnownThreads, configurations_max: int = CONFIGURATIONS_MAX) -> None:
        self._rows = rows
        self._known = known
        self._configurations_max = configurations_max

    async def point(self, parent: ThreadKey, command: Command, at: ForkAt) -> ForkPoint:
        """Raises ProblemError."""
        await self._known.require(parent)
        if parent.ephemeral:
            raise ProblemError(Problem(NOT_FORKABLE, EPHEMERAL))
        made_at = await self._made_at(parent, command) if command.keyed else None
        if made_at is not None:
            point = await self._point(parent, ForkAt(made_at), asked=at.seq, is_again=True)
            if at != ForkAt() and not await self._comes_to(parent, at, point):
                raise ProblemError(Problem(IDEMPOTENCY_CONFLICT, f"With this key, a fork at seq {made_at} was made."))
            return point
        if at.seq is None:
            await self._known.catch_up(parent)
        return await self._point(parent, at, asked=at.seq, is_again=False)

    async def _made_at(self, parent: ThreadKey, command: Command) -> int | None:
        """The seq that an earlier try of the command came to."""
        await self._known.catch_up(command.key)
        made = await self._rows.fork_made(command.key, command.event_id(ThreadCreated))
        return made.seq if made is not None and made.parent == parent.thread else None

    async def _comes_to(self, parent: ThreadKey, at: ForkAt, made: ForkPoint) -> bool:
        """Whether that is where what is asked for is found, or was found while the turn that is named was open."""
        found = await self._rows.fork_point(parent, at)
        if found is None or not found.is_there:
            return False
        return found.seq == made.seq or (at.turn is not None and at.turn == made.turn)

    async def _point(self, parent: ThreadKey, at: ForkAt, *, asked: int | None, is_again: bool) -> ForkPoint:
        found = await self._rows.fork_point(parent, at)
        if found is None or (at.seq is not None and at.seq > found.newest):
            # In the log perhaps, and not in the views yet.
            await self._known.catch_up(parent)
            found = await self._rows.fork_point(parent, at)
        if found is None:
            raise ProblemError(no_such_thread())
        problem = _problem(at, found, is_again=is_again)
        if problem is not None:
            raise ProblemError(problem)
        config = await self._config(parent, found)
        is_closing = found.status in {"closing", "closed"}
        return ForkPoint(parent, found.seq, found.chain or "", found.depth, config, found.turn, asked, is_closing)

    async def _config(self, parent: ThreadKey, found: FoundPoint) -> Config:
        """In force at the seq."""
        if found.config_seq <= found.seq:
            return _whole(found.config)
        most = self._configurations_max
        records = await self._rows.fork_configs(parent, found.seq, most + 1)
        if not records:
            raise ProblemError(Problem(FORK_POINT, f"The thread did not exist yet at seq {found.seq}."))
        if len(records) > most or not all(isinstance(record, dict) for record in records):
            detail = f"The configuration at seq {found.seq} comes of more than {most} records, or is in the log alone."
            raise ProblemError(Problem(STATE_OUT_OF_REACH, detail))
        return _whole(_patched([record for record in records if isinstance(record, dict)]))


def _problem(at: ForkAt, found: FoundPoint, *, is_again: bool) -> Problem | None:
    if found.quarantined is not None:
        return Problem(NOT_FORKABLE, f"The views of the thread stand still: {found.quarantined}.")
    if not is_again and found.status == "importing":
        return Problem(NOT_FORKABLE, "The thread is being imported.")
    if not is_again and found.forks >= PARENTS_MAX:
        return Problem(NOT_FORKABLE, f"The thread is a fork of a fork, {PARENTS_MAX} times over; no more may be.")
    if not found.is_there:
        return Problem(FORK_POINT, f"The thread has no turn {at.turn}.")
    if at.seq is not None and at.seq > found.newest:
        return Problem(FORK_POINT, f"The thread has no record with seq {at.seq}; its last is {found.newest}.")
    if found.chain is None:
        return Problem(FORK_POINT, f"The thread has nothing settled at or before seq {found.asked}.")
    return None


def _patched(records: Sequence[Mapping[str, JsonValue]]) -> JsonValue:
    """As the fold does it: each patch on the whole configuration, with its defaults."""
    config = records[0]["config"]
    for record in records[1:]:
        config = merge_patch(_valid(config).model_dump(mode="json"), record["patch"])
    return config


def _whole(config: JsonValue) -> Config:
    """With its defaults given: the same bytes, wherever it was read."""
    return _valid(_valid(config).model_dump(mode="json"))


def _valid(config: JsonValue) -> Config:
    try:
        return Config.model_validate_json(orjson.dumps(config))
    except pydantic.ValidationError as error:
        raise ProblemError(
            Problem(NOT_FORKABLE, "Its configuration is of a version that is not known here.")
        ) from error
