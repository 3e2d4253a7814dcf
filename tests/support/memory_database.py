"""A database in memory, of which nothing is the services' own: the generations of the views, and what goes wrong with it.

A question takes `pause` on its way there and again on its way back; the answer is of the instant in between. Nothing
else takes time. What goes wrong is what the test says: `is_away`, `lose_last`, `drop`, `refuses`, and sessions that end.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from schemas.ids import ThreadKey
from schemas.state import FOLD_VERSION
from schemas.topics import THREAD_EVENTS
from services.projector.errors import GenerationGoneError, StoreAwayError, StoredPosition
from services.projector.generations import check_generation
from services.projector.projections.batch import PROJECTION_VERSION, Batch, Kept
from services.projector.store import Claim, Generation, Span
from tests.support.memory_tables import Journal, Refuses, Tables

TOPIC: Final = THREAD_EVENTS.name
T = TypeVar("T")
Pause = Callable[[], Awaitable[None]]
Status = Literal["building", "scratch", "live", "old"]


class AwayError(Exception):
    """Each port has its own error for it."""


class LockedError(Exception):
    """Somebody else has it, and was waited for long enough."""


@dataclass(slots=True, eq=False)
class Made:
    """A generation."""

    generation: Generation
    status: Status
    tables: Tables


class MemoryDatabase:
    """`refuses` makes it refuse what is written for a record."""

    def __init__(self, pause: Pause | None = None, *, refuses: Refuses | None = None) -> None:
        self.pause = pause
        self.refuses = refuses
        self.commits = 0
        self.journal = Journal()
        self.generations: dict[int, Made] = {}
        self.went_back = 0
        """How often what was committed was not there any more: lost, or dropped."""
        self._numbers = 0
        self._is_away = False
        self._crashes = 0
        self._changes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._swap: Swap | None = None
        """The one that is under way."""
        self._alone: Session | None = None

    # What a test does to it

    @property
    def is_away(self) -> bool:
        return self._is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        self._is_away = is_away
        self._end_sessions()

    def lose_last(self, commits: int) -> int:
        """A crash: questions under way get no answer, and the last batches were never written.

        Claims are durable, and with them what was committed before. Returns how many batches were lost.
        """
        self._crashes += 1
        lost = self.journal.lose_last(commits)
        self.went_back += lost > 0
        self._end_sessions()
        return lost

    def drop(self) -> None:
        """Every generation. A projector that looks for the live one makes the next."""
        self.generations.clear()
        self.journal.flushed()
        self.went_back += 1
        self._end_sessions()

    def next_offset(self, partition: int) -> int:
        return next_offset(self.tables, partition)

    # What there is

    @property
    def made_live(self) -> Made | None:
        return next((made for made in self.generations.values() if made.status == "live"), None)

    @property
    def generation(self) -> Generation | None:
        """The live one."""
        live = self.made_live
        return None if live is None else live.generation

    @property
    def tables(self) -> Tables | None:
        """Of the live one."""
        live = self.made_live
        return None if live is None else live.tables

    def make(self, cluster_id: str, status: Status) -> Made:
        self._numbers += 1
        generation = Generation(self._numbers, FOLD_VERSION, PROJECTION_VERSION, cluster_id, TOPIC)
        made = self.generations[self._numbers] = Made(generation, status, Tables(self.journal))
        self.journal.flushed()
        return made

    # The projector's `Stores`

    async def live(self, cluster_id: str) -> Generation:
        def find() -> Generation:
            made = self.made_live or self.make(cluster_id, "live")
            return made.generation

        try:
            live = await self.question(find, lambda: self.made_live is None and self._alone is not None)
        except AwayError as error:
            raise StoreAwayError(str(error)) from error
        check_generation(live, cluster_id)
        return live

    def open(self, generation: Generation) -> "MemoryStore":
        return MemoryStore(self, generation)

    # Questions

    async def ask(self, read: Callable[[Tables | None], T]) -> T:
        """Of the live generation. Raises AwayError. What was asked may have been done all the same, when the answer is
        lost on its way back.
        """
        return await self.question(lambda: read(self.tables))

    async def question(self, act: Callable[[], T], has_to_wait: Callable[[], bool] = lambda: False) -> T:
        crashes = self._crashes
        if self.pause is not None:
            await self.pause()
        self._check(crashes)
        while has_to_wait():
            await self.change()
            self._check(crashes)
        answer = act()
        if self.pause is not None:
            await self.pause()
            self._check(crashes)
        return answer

    def is_locked(self, generation: Generation) -> bool:
        """Its positions, by a swap."""
        swap = self._swap
        return swap is not None and swap.old is not None and swap.old.generation == generation

    def _check(self, crashes: int) -> None:
        if self._is_away or crashes != self._crashes:
            raise AwayError("the test turned it off" if self._is_away else "it crashed meanwhile")

    # Changes

    def committed(self) -> None:
        self.commits += 1
        self.changed()

    def changed(self) -> None:
        self._changes += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def change(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    # Sessions

    def session(self) -> "Session":
        return Session(self)

    def _end_sessions(self) -> None:
        self._alone, self._swap = None, None
        self.changed()


def next_offset(tables: Tables | None, partition: int) -> int:
    at = None if tables is None else tables.positions.get(partition)
    return 0 if at is None else at.next_offset


class MemoryStore:
    """Implements the projector's `GenerationStore`."""

    def __init__(self, database: MemoryDatabase, generation: Generation) -> None:
        self.generation = generation
        self._database = database

    async def close(self) -> None:
        pass

    async def claim(self, partitions: Iterable[int], owner: str, cluster_id: str) -> dict[int, Claim]:
        return await self._ask(lambda tables: tables.claim(partitions, owner, cluster_id), waits_for_swaps=True)

    async def positions(self) -> dict[int, StoredPosition]:
        return await self._ask(Tables.stored_positions)

    async def load(self, keys: Sequence[ThreadKey]) -> dict[ThreadKey, Kept]:
        def read(tables: Tables) -> dict[ThreadKey, Kept]:
            found = ((key, tables.state(key)) for key in keys)
            return {key: Kept(row.state, row.quarantined, is_stored=True) for key, row in found if row is not None}

        return await self._ask(read)

    async def write(self, batch: Batch, spans: Sequence[Span]) -> None:
        def commit(tables: Tables) -> None:
            tables.commit(batch, spans, self._database.refuses)
            self._database.committed()

        await self._ask(commit, waits_for_swaps=True)

    async def _ask(self, act: Callable[[Tables], T], *, waits_for_swaps: bool = False) -> T:
        database, generation = self._database, self.generation

        def act_if_there() -> T:
            made = database.generations.get(generation.number)
            if made is None:
                raise GenerationGoneError(f"{generation.schema} is not there")
            return act(made.tables)

        try:
            return await database.question(act_if_there, lambda: waits_for_swaps and database.is_locked(generation))
        except AwayError as error:
            raise StoreAwayError(str(error)) from error


class Session:
    """A connection on which generations are made, swapped and dropped. It ends with the process that has it, and with
    the database: `lost` then does what the server does.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def lost(self) -> None:
        database = self._database
        if database._alone is self:
            database._alone = None
        if database._swap is not None and database._swap.session is self:
            database._swap = None
        database.changed()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Raises LockedError where somebody else makes or removes generations."""

        def lock() -> None:
            if self._database._alone is not None:
                raise LockedError
            self._database._alone = self

        await self._database.question(lock)
        try:
            yield
        finally:
            self.lost()

    @asynccontextmanager
    async def swap(self, new: Generation, old: Generation | None) -> AsyncIterator["Swap"]:
        """Raises LockedError, AwayError."""
        database = self._database

        def lock() -> Swap:
            if database._swap is not None:
                raise LockedError
            made = None if old is None else database.generations[old.number]
            database._swap = swap = Swap(self, made)
            return swap

        def commit() -> None:
            if database._swap is not swap:
                raise AwayError("the transaction is over")
            database._swap = None
            if swap.old is not None:
                swap.old.tables.take_from_owners()
                swap.old.status = "old"
            database.generations[new.number].status = "live"
            database.journal.flushed()
            database.changed()

        swap = await database.question(lock)
        try:
            yield swap
            await database.question(commit)
        finally:
            if database._swap is swap:
                database._swap = None
                database.changed()


@dataclass(slots=True, eq=False)
class Swap:
    """A transaction. Nobody writes the old generation until it is over."""

    session: Session
    old: Made | None

    @property
    def positions(self) -> dict[int, int]:
        """Of the old one."""
        return {} if self.old is None else {p: at.next_offset for p, at in self.old.tables.positions.items()}
