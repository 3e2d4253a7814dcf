"""Where a thread can be forked: found by a few rows, however long the thread is.

A fork names a settled seq of its parent: no step is under way there, and every call of an open turn has ended. The seq
that the client names may lie inside a step. The fork then takes what was settled before that step, and says so.

A command that is sent again gets the seq that it got the first time, whatever has happened to the parent since. That
seq is read from the fork's own first record.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import orjson
import pydantic
from pydantic import JsonValue
from starlette.responses import Response

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
"""Detail of the problem that an ephemeral thread cannot be forked."""


class ForkAt(NamedTuple):
    """Where the client wants to fork: at a seq, or at the end of a turn. Both None: at the newest settled seq."""

    seq: int | None = None
    turn: int | None = None


class FoundPoint(NamedTuple):
    """What the views know of the place where a thread is to be forked."""

    newest: int
    """Number of the thread's last record in the views."""
    quarantined: str | None
    """Why the projector has set the thread aside; None if it has not."""
    status: str
    depth: int
    """Generations of child threads between the thread and its topmost one."""
    config_seq: int
    """Number of the record that made the configuration of now."""
    config: JsonValue
    """The configuration of now, as JSON."""
    forks: int
    """Forks above the thread in its lineage, counted up to the limit."""
    is_there: bool
    """Whether the thread has the turn that the client names."""
    asked: int
    """The seq that the client's wish means."""
    turn: int | None
    """The turn that is open at that seq; None if there is none."""
    seq: int
    """The newest settled seq at or before that one."""
    chain: str | None
    """The hash chain at the settled seq; None if the thread has no settled record there."""


class MadeFork(NamedTuple):
    """The lineage of a fork that an earlier try of the command made."""

    parent: str | None
    seq: int | None


class ForkRows(Protocol):
    """The views, as this module needs them. All methods raise ProblemError (views-unavailable)."""

    async def fork_point(self, key: ThreadKey, at: ForkAt) -> FoundPoint | None:
        """Return what the views know of the place; None if they do not know the thread."""
        ...

    async def fork_configs(self, key: ThreadKey, seq: int, most: int) -> Sequence[JsonValue]:
        """Return the data of the records that made the configuration at the seq, oldest first: `thread.created`, then
        patches.

        None stands for data that the views do not hold. At most `most` records are returned.
        """
        ...

    async def fork_made(self, key: ThreadKey, event_id: EventId) -> MadeFork | None:
        """Return the fork that the command with this id made before; None if it made none."""
        ...


class PostgresForkRows:
    """Implements `ForkRows`."""

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
    """Finds the place at which a fork or a child starts."""

    def __init__(self, rows: ForkRows, known: KnownThreads, configurations_max: int = CONFIGURATIONS_MAX) -> None:
        self._rows = rows
        self._known = known
        self._configurations_max = configurations_max

    async def run_at(
        self, parent: ThreadKey, command: Command, at: ForkAt, attempt: Callable[[ForkPoint], Awaitable[Response]]
    ) -> Response:
        """Find the place, and make the attempt there. Raises ProblemError.

        Two tries of one command may run at the same time, and find different places while the parent grows. The record
        that is second in the log conflicts with the first. Its try is made again, and finds the place of the first.
        """
        try:
            return await attempt(await self.point(parent, command, at))
        except ProblemError as error:
            if error.problem.type is not IDEMPOTENCY_CONFLICT:
                raise
        return await attempt(await self.point(parent, command, at))

    async def point(self, parent: ThreadKey, command: Command, at: ForkAt) -> ForkPoint:
        """Return the place, the same at each try of a command. Raises ProblemError that says why there is none."""
        await self._known.require(parent)
        if parent.ephemeral:
            raise ProblemError(Problem(NOT_FORKABLE, EPHEMERAL))
        made_at = await self._made_at(parent, command) if command.keyed else None
        if made_at is not None:
            point = await self._point(parent, ForkAt(made_at), asked=at.seq, is_again=True)
            if at != ForkAt() and not await self._leads_to(parent, at, point):
                raise ProblemError(Problem(IDEMPOTENCY_CONFLICT, f"With this key, a fork at seq {made_at} was made."))
            return point
        if at.seq is None:
            await self._known.catch_up(parent)
        return await self._point(parent, at, asked=at.seq, is_again=False)

    async def _made_at(self, parent: ThreadKey, command: Command) -> int | None:
        """Return the seq of the fork that an earlier try of the command made; None if there was no such try."""
        await self._known.catch_up(command.key)
        made = await self._rows.fork_made(command.key, command.event_id(ThreadCreated))
        return made.seq if made is not None and made.parent == parent.thread else None

    async def _leads_to(self, parent: ThreadKey, at: ForkAt, made: ForkPoint) -> bool:
        """Return whether the wish leads to the fork that was made, now or while the named turn was still open."""
        found = await self._rows.fork_point(parent, at)
        if found is None or not found.is_there:
            return False
        return found.seq == made.seq or (at.turn is not None and at.turn == made.turn)

    async def _point(self, parent: ThreadKey, at: ForkAt, *, asked: int | None, is_again: bool) -> ForkPoint:
        """Return the place for the wish. `is_again`: a fork was made there before, so what is forbidden by now does not
        matter.
        """
        found = await self._rows.fork_point(parent, at)
        if found is None or (at.seq is not None and at.seq > found.newest):
            # The record may be in the log and not in the views yet: wait, then ask once more.
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
        """Return the configuration that was in force at the seq. Raises ProblemError if it cannot be put together."""
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
    """Return why the thread cannot be forked there, or None."""
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
    """Apply the patches like the fold does: each to the whole configuration, defaults included."""
    config = records[0]["config"]
    for record in records[1:]:
        config = merge_patch(_valid(config).model_dump(mode="json"), record["patch"])
    return config


def _whole(config: JsonValue) -> Config:
    """Return the configuration with all its defaults, so that it has the same bytes wherever it was read."""
    return _valid(_valid(config).model_dump(mode="json"))


def _valid(config: JsonValue) -> Config:
    """Return the parsed configuration. Raises ProblemError if a newer release has written it."""
    try:
        return Config.model_validate_json(orjson.dumps(config))
    except pydantic.ValidationError as error:
        raise ProblemError(
            Problem(NOT_FORKABLE, "Its configuration is of a version that is not known here.")
        ) from error
