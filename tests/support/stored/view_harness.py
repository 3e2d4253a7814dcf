"""The views behind each of their ports, in Postgres and in memory: what the contract suites run on."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import asyncpg
import orjson

from schemas.codec import Record
from schemas.ids import EventId, ThreadKey
from schemas.state import NOTHING
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Incoming
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.threads.postgres_states import PostgresStates
from services.chassis.threads.states import KeyStore, StateStore
from services.ingest.commands import views as ingest_views
from services.ingest.commands.accepting.accept import CallFacts
from services.ingest.commands.accepting.plans import PlanFacts
from services.ingest.commands.commands import EarlierCommands
from services.ingest.commands.existence import ThreadRows
from services.ingest.commands.forks import ForkRows, PostgresForkRows
from services.ingest.commands.refusals import Standings
from services.ingest.database import Database, statements
from services.ingest.streams.frames import FoldedRecord, fact_json, folded_record
from services.ingest.streams.history import PAGE_BYTES_MAX, History, PostgresHistory
from services.projector.applying.effects import RelayStore
from services.projector.applying.postgres_relay import PostgresRelayStore
from services.projector.generations.generations import drop_views, migrate
from services.projector.generations.postgres_store import PostgresStore, PostgresStores
from services.projector.generations.store import Generation, GenerationStore, Stores
from services.projector.projections.batch import Batch, Kept
from services.projector.settings import ProjectorSettings, RollupsSettings
from services.projector.windows.postgres import PostgresWindowStore
from services.projector.windows.windows import WindowStore
from services.runtime import transcript_store
from services.runtime.transcript_store import PostgresTranscripts, TranscriptStore
from tests.support.memory.relay import MemoryRelayStore
from tests.support.memory.views import MemoryViews
from tests.support.memory.windows import MemoryWindowStore
from tests.support.recorded import histories
from tests.support.recorded.histories import KEY, plain_turn
from tests.support.recorded.walks import as_read
from tests.support.stored.applying import applier_of
from tests.support.stored.views_equal import decode_incoming

TOPIC = THREAD_EVENTS.name
CLUSTER = "cluster"
HOME = 3
"""The partition of every key."""
SECONDS_MAX = 5.0


class States(StateStore, KeyStore, Protocol):
    pass


class CommandViews(ThreadRows, EarlierCommands, Standings, Protocol):
    async def call_facts(self, key: ThreadKey, call: str) -> CallFacts | None: ...

    async def plan_facts(self, key: ThreadKey, event_id: EventId) -> PlanFacts: ...


class Views(Protocol):
    """One database."""

    @property
    def stores(self) -> Stores: ...

    @property
    def states(self) -> States: ...

    @property
    def transcripts(self) -> TranscriptStore: ...

    @property
    def commands(self) -> CommandViews: ...

    @property
    def forks(self) -> ForkRows: ...

    @property
    def relay(self) -> RelayStore: ...

    @property
    def windows(self) -> WindowStore: ...

    def history(self, page_bytes_max: int = PAGE_BYTES_MAX) -> History: ...

    async def drop(self) -> None: ...

    async def go_away(self) -> None: ...

    async def come_back(self) -> None: ...


async def open_store(views: Views) -> GenerationStore:
    """Of the live generation."""
    return views.stores.open(await views.stores.live(CLUSTER))


async def advance(views: Views, records: Sequence[Incoming], partition: int = HOME) -> None:
    """As a projector that has the partition from now on."""
    store = await open_store(views)
    settings = ProjectorSettings()
    async with applier_of(store.generation, settings, store=store, partition_of=lambda _: partition) as applier:
        await applier.submit(records)
        await applier.settle()


class InMemory:
    def __init__(self) -> None:
        self._views = views = MemoryViews()
        self.stores: Stores = views
        self.states: States = views
        self.transcripts: TranscriptStore = views
        self.commands: CommandViews = views
        self.forks: ForkRows = views
        self.relay: RelayStore = MemoryRelayStore(views)
        self.windows: WindowStore = MemoryWindowStore(views)

    def history(self, page_bytes_max: int = PAGE_BYTES_MAX) -> History:
        self._views.page_bytes_max = page_bytes_max
        return self._views

    async def drop(self) -> None:
        self._views.drop()

    async def go_away(self) -> None:
        self._views.is_away = True

    async def come_back(self) -> None:
        self._views.is_away = False


class _StoresToClose(PostgresStores):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, ProjectorSettings())
        self.opened: list[PostgresStore] = []

    def open(self, generation: Generation) -> PostgresStore:
        store = super().open(generation)
        self.opened.append(store)
        return store


@dataclass
class InPostgres:
    dsn: str
    server_dsn: str
    pool: asyncpg.Pool

    def __post_init__(self) -> None:
        database = Database(TenantPool(self.pool), SECONDS_MAX)
        self.stores = _StoresToClose(self.dsn)
        self.relay: RelayStore = PostgresRelayStore(self.dsn, ProjectorSettings())
        self.windows: WindowStore = PostgresWindowStore(self.dsn, RollupsSettings())
        self.states: States = PostgresStates(self.pool)
        self.transcripts: TranscriptStore = PostgresTranscripts(self.pool, _sql_beside(transcript_store.__file__))
        sql = statements()
        self.forks: ForkRows = PostgresForkRows(database, sql)
        self.commands: CommandViews = ingest_views.CommandViews(database, sql, poll_seconds=0.02)

    def history(self, page_bytes_max: int = PAGE_BYTES_MAX) -> History:
        return PostgresHistory(TenantPool(self.pool), SECONDS_MAX, page_bytes_max)

    async def drop(self) -> None:
        await drop_views(self.dsn, ProjectorSettings())

    async def go_away(self) -> None:
        """It takes no connections, and has ended those that there were."""
        await self._allow_connections(False)
        await self._on_server("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", self._name)

    async def come_back(self) -> None:
        await self._allow_connections(True)

    @property
    def _name(self) -> str:
        return urlsplit(self.dsn).path[1:]

    async def _allow_connections(self, are_allowed: bool) -> None:
        await self._on_server(f'alter database "{self._name}" allow_connections {are_allowed}')

    async def _on_server(self, statement: str, *arguments: object) -> None:
        connection = await asyncpg.connect(self.server_dsn)
        try:
            await connection.execute(statement, *arguments)
        finally:
            await connection.close()


@asynccontextmanager
async def in_postgres(dsn: str, server_dsn: str) -> AsyncIterator[InPostgres]:
    await migrate(dsn)
    pool = await open_pool(
        dsn,
        application_name="test",
        size_min=0,
        size_max=2,
        command_timeout_seconds=SECONDS_MAX,
        connect_timeout_seconds=SECONDS_MAX,
    )
    views = InPostgres(dsn, server_dsn, pool)
    try:
        yield views
    finally:
        for store in views.stores.opened:
            await store.close()
        await views.relay.close()
        await views.windows.close()
        pool.terminate()


def _sql_beside(module: str) -> SqlFiles:
    return SqlFiles(Path(module).with_name("sql"))


# Records, and what is shown of them


def read_of(*given: histories.History, partition: int = HOME) -> list[Incoming]:
    """As one partition has them: one after the other, without gaps."""
    records = [record for history in given for record in as_read(history, partition)]
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


def a_turn() -> list[Incoming]:
    return read_of(plain_turn(histories.History()))


def batch_of(records: Sequence[Incoming], known: dict[ThreadKey, Kept] | None = None, partition: int = HOME) -> Batch:
    batch = Batch(TOPIC, known or {}, lambda _: partition, dead_letter_bytes_max=1_000)
    for incoming in records:
        batch.take(incoming, decode_incoming(incoming))
    batch.finish()
    return batch


def folded(records: Sequence[Incoming]) -> list[object]:
    """One thread's records as the live side shows them."""
    state, shown = NOTHING, []
    for seq, incoming in enumerate(records, start=1):
        record = decode_incoming(incoming)
        assert isinstance(record, Record)
        state, verdict = fold(state, record)
        shown.append(folded_record(record, incoming.value, seq, verdict, incoming.partition))
    return as_told(shown)


def as_told(records: Sequence[FoldedRecord]) -> list[object]:
    """As a client reads them: the order of keys, and spaces, are Postgres'."""
    return [orjson.loads(fact_json(record)) for record in records]


async def told(history: History, key: ThreadKey = KEY) -> list[object]:
    return as_told(await history.page(key, 0, 1_000, 1_000))
