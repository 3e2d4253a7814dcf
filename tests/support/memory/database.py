"""A database in memory, of which nothing is the services' own: the generations of the views, and what goes wrong with it.

A question takes `pause` on its way there and again on its way back; the answer is of the instant in between. Nothing
else takes time. What goes wrong is what the test says: `is_away`, `lose_last`, `drop`, `refuses`, and sessions that end.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from schemas.ids import ThreadKey
from schemas.state import FOLD_VERSION
from schemas.topics import THREAD_EVENTS
from services.chassis.log_partitions import require_same
from services.projector.generations.errors import GenerationGoneError, StoreAwayError, StoredPosition
from services.projector.generations.generations import check_generation
from services.projector.generations.store import Claim, Generation, Span
from services.projector.projections.batch import PROJECTION_VERSION, Batch, Kept
from services.projector.windows.windows import Cell, CellKey, Position
from tests.support.memory.tables import Journal, Refuses, Tables

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
        self.relay_positions: dict[Any, tuple[str, int]] = {}
        """Outside of the generations: cluster and offset, by topic and partition."""
        self.window_positions: dict[int, Position] = {}
        self.window_cells: dict[CellKey, Cell] = {}
        self.logs: dict[str, int] = {}
        """Partitions by cluster."""
        self.went_back = 0
        """How often what was committed was not there any more: lost, or dropped."""
        self._numbers = 0
        self._is_away = False
        self.crashes = 0
        self._changes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._alone: Session | None = None
        """Who may make and remove generations."""
        self._locked: tuple[Session, Generation] | None = None
        """Whose positions nobody else can write."""

    # What a test does to it

    @property
    def is_away(self) -> bool:
        return self._is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        self._is_away = is_away
        if is_away:
            self.crashes += 1
            self._end_sessions()
        self.changed()

    def lose_last(self, commits: int) -> int:
        """A crash: questions under way get no answer, and the last batches were never written.

        Claims are durable, and with them what was committed before. Returns how many batches were lost.
        """
        self.crashes += 1
        lost = self.journal.lose_last(commits)
        self.went_back += lost > 0
        self._end_sessions()
        return lost

    def drop(self, *, altogether: bool = False) -> None:
        """Every generation, and what is outside of them only where all is dropped. A projector that looks for the live
        one makes the next. Connections end.
        """
        self.crashes += 1
        self.generations.clear()
        if altogether:
            for outside in (self.relay_positions, self.window_positions, self.window_cells):
                outside.clear()
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
        return self.put(Generation(self.next_number(), FOLD_VERSION, PROJECTION_VERSION, cluster_id, TOPIC), status)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def put(self, generation: Generation, status: Status) -> Made:
        made = self.generations[generation.number] = Made(generation, status, Tables(self.journal))
        self.journal.flushed()
        return made

    # The projector's `Stores`

    async def admit(self, cluster_id: str, partitions: int, *, is_new: bool = False) -> None:
        """At once, and also while it is away."""
        if is_new:
            self.logs.pop(cluster_id, None)
        require_same(TOPIC, self.logs.setdefault(cluster_id, partitions), partitions)

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
        crashes = self.crashes
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

    def _check(self, crashes: int) -> None:
        if self._is_away or crashes != self.crashes:
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

    # Locks

    def lock_all(self, session: "Session") -> bool:
        if self._alone is None:
            self._alone = session
        return self._alone is session

    def lock_positions(self, session: "Session", generation: Generation) -> None:
        if self._locked is not None:
            raise LockedError
        self._locked = (session, generation)

    def is_locked(self, generation: Generation) -> bool:
        return self._locked is not None and self._locked[1] == generation

    def unlock(self, session: "Session", *, of_transaction: bool = False) -> None:
        if self._locked is not None and self._locked[0] is session:
            self._locked = None
        if self._alone is session and not of_transaction:
            self._alone = None
        self.changed()

    def _end_sessions(self) -> None:
        self._alone, self._locked = None, None
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
        numbers = list(partitions)
        return await self._ask(
            lambda tables: tables.claim(numbers, owner, cluster_id),
            # A row that nobody has made yet is not locked.
            lambda tables: any(number in tables.positions for number in numbers),
        )

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

        await self._ask(commit, lambda _: True)

    async def _ask(self, act: Callable[[Tables], T], wants_lock: Callable[[Tables], bool] = lambda _: False) -> T:
        database, generation = self._database, self.generation

        def act_if_there() -> T:
            made = database.generations.get(generation.number)
            if made is None:
                raise GenerationGoneError(f"{generation.schema} is not there")
            return act(made.tables)

        def has_to_wait() -> bool:
            made = database.generations.get(generation.number)
            return made is not None and database.is_locked(generation) and wants_lock(made.tables)

        try:
            return await database.question(act_if_there, has_to_wait)
        except AwayError as error:
            raise StoreAwayError(str(error)) from error


class Session:
    """A connection. It ends with the process that has it, and with the database; its locks go with it."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._crashes = database.crashes
        self._is_closed = False
        self._at_commit: list[Callable[[], None]] | None = None
        """What the transaction that is open does; None where none is."""

    def is_closed(self) -> bool:
        return self._is_closed or self._database.is_away or self._crashes != self._database.crashes

    def close(self) -> None:
        self._is_closed = True
        self._database.unlock(self)

    async def ask(self, act: Callable[[], T]) -> T:
        """Raises AwayError, and whatever `act` raises."""

        def act_if_open() -> T:
            if self.is_closed():
                raise AwayError("the connection is closed")
            return act()

        return await self._database.question(act_if_open)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._at_commit = []
        try:
            yield
            await self.ask(self._commit)
        finally:
            self._at_commit = None
            self._database.unlock(self, of_transaction=True)

    def at_commit(self, act: Callable[[], None]) -> None:
        """At once where no transaction is open."""
        if self._at_commit is None:
            act()
        else:
            self._at_commit.append(act)

    def _commit(self) -> None:
        assert self._at_commit is not None
        for act in self._at_commit:
            act()
        self._database.journal.flushed()
        self._database.changed()

    # Locks

    def is_alone(self) -> bool:
        """Takes the right to make and to remove generations, where nobody else has it."""
        return self._database.lock_all(self)

    def lock_positions(self, generation: Generation) -> None:
        """Until the transaction is over. Raises LockedError."""
        self._database.lock_positions(self, generation)
