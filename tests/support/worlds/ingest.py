"""Ingest processes on a real database: a simulated log, the real projector and the real live reader around them."""

import asyncio
import contextlib
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry

from schemas.codec import Record, decode, encode
from schemas.events import Event
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import NOTHING, ThreadState
from schemas.thread import fold
from schemas.tools import CatalogSource
from schemas.topics import EPHEMERAL_EVENTS, THREAD_EVENTS, THREAD_EVENTS_DLQ, THREAD_PROGRESS, TOOL_CATALOG
from services.chassis.clock import SystemClock
from services.chassis.log.port import Outgoing
from services.chassis.postgres.connections import open_pool
from services.ingest.__main__ import wire
from services.ingest.database import statements
from services.ingest.limits import IngestLimits
from services.ingest.metrics import IngestMetrics
from services.ingest.settings import IngestSettings
from services.projector.generations.postgres_store import PostgresStores
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings
from tests.support.limits import with_limits
from tests.support.simulated.log import SimulatedBroker
from tests.support.worlds.declared_answers import DeclaredAnswers

SQL = statements()
PARTITIONS = 4


class Place:
    """A log, a database, and as many ingest processes as a test wants."""

    def __init__(self, dsn: str, stack: contextlib.AsyncExitStack) -> None:
        self.dsn = dsn
        self._stack = stack
        topics = {
            topic.name: PARTITIONS for topic in (THREAD_EVENTS, EPHEMERAL_EVENTS, THREAD_PROGRESS, THREAD_EVENTS_DLQ)
        }
        self.broker = SimulatedBroker({**topics, TOOL_CATALOG.name: 1}, SystemClock())
        self.log = self.broker.connect("services")
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="threadlog-artifacts-"))
        self.artifacts_url = Path(folder).as_uri()

    async def project(self) -> None:
        settings = with_limits(ProjectorSettings, batch_interval_idle_seconds=0.001)(postgres_dsn=self.dsn)
        metrics = ProjectorMetrics.register(CollectorRegistry())
        log = self.broker.connect("projector")
        projector = await Projector.start(
            log, PostgresStores(self.dsn, settings), settings, SystemClock(), metrics, "1"
        )
        stopping = asyncio.Event()
        running = asyncio.create_task(projector.run(stopping))

        async def stop() -> None:
            stopping.set()
            await running
            await log.close()

        self._stack.push_async_callback(stop)

    async def ingest(self, dsn: str | None = None, **given: Any) -> httpx2.AsyncClient:
        """`given`: settings, and fields of IngestLimits."""
        own = {field.name for field in fields(IngestLimits)}
        limits = IngestLimits(**{name: value for name, value in given.items() if name in own})
        given = {name: value for name, value in given.items() if name not in own}
        settings = IngestSettings(**({"ingest_auth": "dev", "artifacts_url": self.artifacts_url} | given))
        log = self.broker.connect("ingest")
        pool = await open_pool(
            dsn or self.dsn,
            application_name="test",
            size_min=0,
            size_max=4,
            command_timeout_seconds=5,
            connect_timeout_seconds=5,
        )
        wired = wire(settings, log, pool, SystemClock(), IngestMetrics.build(CollectorRegistry()), PARTITIONS, limits)
        await wired.watches.open()
        tasks = [asyncio.create_task(wired.watches.run()), asyncio.create_task(wired.tools.follow())]
        transport = httpx2.ASGITransport(DeclaredAnswers(wired.app))
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)

        async def stop() -> None:
            await client.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await wired.watches.close()
            pool.terminate()
            await log.close()

        self._stack.push_async_callback(stop)
        return client

    async def offer(self, source: CatalogSource) -> None:
        """What an executor would publish of its tools."""
        record = Outgoing(source.source.encode(), source.model_dump_json().encode())
        await self.log.appender.append(TOOL_CATALOG.name, 0, [record])

    def state(self, thread: str) -> ThreadState:
        key = ThreadKey(TenantId("dev"), ThreadId(thread))
        state = NOTHING
        for incoming in self.broker.records(THREAD_EVENTS.name, self.log.partition_for(key.to_bytes(), PARTITIONS)):
            record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset)
            if isinstance(record, Record) and record.key == key:
                state = fold(state, record).state
        return state

    async def append(self, thread: str, event: Event, actor: str = "service:runtime") -> str:
        """What another service would append; the position, for `at_least`."""
        key = ThreadKey(TenantId("dev"), ThreadId(thread))
        partition = self.log.partition_for(key.to_bytes(), PARTITIONS)
        made = encode(key, event, source="runtime/test", actor=actor, time_ms=SystemClock().now_ms())
        outgoing = Outgoing(key.to_bytes(), made.value, made.headers)
        [offset] = await self.log.appender.append(THREAD_EVENTS.name, partition, [outgoing])
        return f"{partition}:{offset}"


def position(answer: httpx2.Response) -> str:
    found = answer.json()["position"]
    return f"{found['partition']}:{found['offset']}"
