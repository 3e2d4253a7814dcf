"""A rebuild as it is, its few statements answered by the database in memory.

`rebuilding_in_memory` puts a connection of the twin in the place of asyncpg's, and what generations are made, listed and
removed with; all else of `services.projector.rebuilding.rebuild`, `swap`, `exclusive` and `build` is their own.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, TypeVar
from unittest.mock import patch

import asyncpg

from schemas.state import FOLD_VERSION
from services.projector.generations import database as real_database
from services.projector.generations import generations as real
from services.projector.generations import postgres_store
from services.projector.generations.store import Generation
from services.projector.projections.batch import PROJECTION_VERSION
from services.projector.settings import ProjectorSettings
from tests.support.memory.database import (
    TOPIC,
    AwayError,
    LockedError,
    Made,
    MemoryDatabase,
    MemoryStore,
    Session,
    Status,
)

T = TypeVar("T")
GENERATION: Final = re.compile(r"views_g(\d+)\.positions")
DATABASES: Final[dict[str, MemoryDatabase]] = {}
"""By what stands for a DSN."""
OnConnected = Callable[["MemoryConnection"], None]


class Row(tuple[Any, ...]):
    """By place and by name."""

    __slots__ = ()
    NAMES: ClassVar = (
        "number",
        "fold_version",
        "projection_version",
        "cluster_id",
        "topic",
        "status",
        "created_at",
        "live_since",
        "bytes",
    )

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(self.NAMES.index(place) if isinstance(place, str) else place)


class MemoryConnection:
    """As much of asyncpg's as a rebuild uses."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database
        self.session = Session(database)

    def is_closed(self) -> bool:
        return self.session.is_closed()

    def terminate(self) -> None:
        self.session.close()

    async def close(self, timeout: float | None = None) -> None:  # asyncpg's
        self.session.close()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return _errors_as_asyncpg(self.session.transaction())

    async def execute(self, statement: str, *, timeout: float | None = None) -> None:  # asyncpg's
        """What changes no rows."""
        if not statement.startswith(("set local ", "lock table ", "analyze ")):
            raise NotImplementedError(statement)
        await self.ask(lambda: None)

    async def fetchval(self, statement: str, *_: object) -> Any:
        if "pg_try_advisory_lock" in statement:
            return await self.ask(self.session.is_alone)
        if "deadlock_timeout" in statement:
            return 1_000
        raise NotImplementedError(statement)

    async def fetch(self, statement: str, *_: object) -> list[tuple[Any, ...]]:
        if "pg_total_relation_size" in statement:
            made_all = self.database.generations
            return await self.ask(lambda: [_listed(made_all[number]) for number in sorted(made_all)])
        named = GENERATION.search(statement)
        if named is None:
            raise NotImplementedError(statement)
        made = self._made(int(named[1]))
        positions = made.tables.positions
        if statement.startswith("update"):
            return await self.ask(lambda: self._take_positions(made))
        if "last_record" in statement:
            return await self.ask(lambda: [(p, at.next_offset, at.last_record) for p, at in positions.items()])
        return await self.ask(lambda: [(TOPIC, p, at.next_offset) for p, at in positions.items()])

    async def ask(self, act: Callable[[], T]) -> T:
        try:
            return await self.session.ask(act)
        except AwayError as error:
            raise ConnectionError(str(error)) from error
        except LockedError as error:
            raise asyncpg.LockNotAvailableError from error

    def _made(self, number: int) -> Made:
        made = self.database.generations.get(number)
        if made is None:
            raise asyncpg.UndefinedTableError(f"views_g{number} is not there")
        return made

    def _take_positions(self, made: Made) -> list[tuple[Any, ...]]:
        self.session.lock_positions(made.generation)
        self.session.at_commit(made.tables.take_from_owners)
        return [(partition, at.next_offset) for partition, at in made.tables.positions.items()]


def _listed(made: Made) -> Row:
    generation = made.generation
    versions = (generation.fold_version, generation.projection_version)
    return Row((generation.number, *versions, generation.cluster_id, generation.topic, made.status, 0, None, 1))


@contextlib.asynccontextmanager
async def _errors_as_asyncpg(transaction: AbstractAsyncContextManager[None]) -> Any:
    try:
        async with transaction:
            yield
    except AwayError as error:
        raise ConnectionError(str(error)) from error


# In the place of `services.projector.generations.generations`


async def live_generation(connection: MemoryConnection) -> Generation | None:
    return await connection.ask(lambda: connection.database.generation)


async def unfinished_generations(connection: MemoryConnection, status: Status = "building") -> list[Generation]:
    made = connection.database.generations
    return await connection.ask(lambda: [one.generation for one in made.values() if one.status == status])


async def is_there(connection: MemoryConnection, generation: Generation) -> bool:
    return await connection.ask(lambda: generation.number in connection.database.generations)


async def admit_log(connection: MemoryConnection, cluster_id: str, partitions: int, *, is_new: bool = False) -> None:
    await connection.database.admit(cluster_id, partitions, is_new=is_new)


async def create_generation(connection: MemoryConnection, cluster_id: str, status: Status = "building") -> Generation:
    """Its number is taken in any case."""
    database = connection.database
    number = await connection.ask(database.next_number)
    generation = Generation(number, FOLD_VERSION, PROJECTION_VERSION, cluster_id, TOPIC)
    connection.session.at_commit(lambda: database.put(generation, status))
    return generation


async def drop_generation(connection: MemoryConnection, generation: Generation) -> None:
    generations = connection.database.generations
    await connection.ask(
        lambda: connection.session.at_commit(lambda: generations.pop(generation.number, None) and None)
    )


async def make_live(connection: MemoryConnection, generation: Generation, old: Generation | None) -> None:
    def swap() -> None:
        generations = connection.database.generations
        if old is not None:
            generations[old.number].status = "old"
        generations[generation.number].status = "live"

    await connection.ask(lambda: connection.session.at_commit(swap))


# Wiring


@contextlib.contextmanager
def rebuilding_in_memory(on_connected: OnConnected = lambda _: None) -> Iterator[None]:
    """For what was imported from the projector by then. `on_connected` hears of each connection."""

    async def connect(dsn: str, settings: ProjectorSettings, schema: str | None = None) -> MemoryConnection:
        await asyncio.sleep(0)
        database = DATABASES[dsn]
        if database.is_away:
            raise ConnectionRefusedError("the test turned it off")
        connection = MemoryConnection(database)
        on_connected(connection)
        return connection

    def store(dsn: str, settings: ProjectorSettings, generation: Generation) -> MemoryStore:
        return MemoryStore(DATABASES[dsn], generation)

    twins: Mapping[Any, Callable[..., Any]] = {
        real_database.connect: connect,
        postgres_store.PostgresStore: store,
        real.live_generation: live_generation,
        real.unfinished_generations: unfinished_generations,
        real.is_there: is_there,
        real.admit_log: admit_log,
        real.create_generation: create_generation,
        real.drop_generation: drop_generation,
        real.make_live: make_live,
    }
    with contextlib.ExitStack() as patched:
        for module in [module for name, module in sys.modules.items() if name.startswith("services.projector.")]:
            for original, twin in twins.items():
                if getattr(module, original.__name__, None) is original:
                    patched.enter_context(patch.object(module, original.__name__, twin))
        yield
