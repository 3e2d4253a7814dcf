"""Ingest and projector, wired as in their `__main__`. Ingest is asked as an ASGI server asks it: without sockets."""

import asyncio
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import orjson

from schemas.ids import ThreadKey
from services.chassis.catalog.reader import CatalogReader
from services.ingest.__main__ import accept_limits, commands_of, known_threads, live_limits, request_rules
from services.ingest.app import create_app
from services.ingest.commands.forks import Forks
from services.ingest.commands.tools import Tools
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.http.auth import SUBJECT_HEADER, TENANT_HEADER, DevAuthenticator
from services.ingest.limits import IngestLimits
from services.ingest.metrics import IngestMetrics
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.routes.children import ChildRoutes
from services.ingest.routes.events import EventRoutes
from services.ingest.routes.inputs import InputRoutes
from services.ingest.routes.lineage import LineageRoutes
from services.ingest.routes.parameters import PageSizes
from services.ingest.routes.plans import PlanRoutes
from services.ingest.routes.threads import ThreadRoutes
from services.ingest.routes.tool_calls import ToolCallRoutes
from services.ingest.settings import IngestSettings
from services.ingest.streams.event_stream import StreamOptions
from services.ingest.streams.live import Watches
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings
from tests.support.limits import with_limits
from tests.support.memory.relay import MemoryRelayStore
from tests.support.worlds.services import Process

if TYPE_CHECKING:
    from tests.simulation.world import SimulationWorld

INGEST: dict[str, Any] = {
    "ingest_auth": "dev",
    "ingest_verdict_wait_seconds": 3,
    "ingest_stream_lag_records_max": 20,
}
"""What differs from the defaults: short waits, and little in memory, so that its edges are met."""
INGEST_LIMITS = IngestLimits(views_wait_seconds=2, heartbeat_seconds=5)
LIVE: dict[str, Any] = {
    "behind_seconds": 4,
    "catch_up_seconds": 4,
    "warm_records": 3,
    "grace_seconds": 1,
    "ring_bytes_max": 60_000,
}
PROJECTOR: dict[str, Any] = {
    "projector_rebuild_workers": 1,
    "projector_states_max": 1,
    "drain_seconds": 2,
}


@cache
def ingest_settings(instance: str) -> IngestSettings:
    return settings_of(IngestSettings, INGEST | {"instance": instance})


@cache
def projector_settings(instance: str) -> ProjectorSettings:
    model = with_limits(ProjectorSettings, reclaim_seconds=4, look_seconds=2, retry_seconds_max=1)
    return settings_of(model, PROJECTOR | {"instance": instance})


def settings_of(model: Any, changed: dict[str, Any]) -> Any:
    """What the machine's environment says of them is no part of a test."""
    fields = {name: info.get_default(call_default_factory=True) for name, info in model.model_fields.items()}
    return model.model_construct(**fields | changed)


class GoneError(Exception):
    """The connection broke."""


class Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body: dict[str, Any] = orjson.loads(body) if body else {}

    @property
    def problem(self) -> str:
        """The last part of a problem's type."""
        return str(self.body.get("type", "")).rpartition("/")[2]


class Stream:
    """An open response, as a client reads it. Everything is done in the client's context but `sent`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[int] = loop.create_future()
        """The status."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done once the client has gone."""
        self.is_over = False
        self._chunks: list[bytes] = []
        self._news = asyncio.Event()

    def sent(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            if not self.opened.done():
                self.opened.set_result(message["status"])
        else:
            self._chunks.append(message.get("body", b""))
            self.is_over = not message.get("more_body", False)
            self._news.set()

    def broken(self) -> None:
        self.is_over = True
        self._news.set()
        if not self.opened.done():
            self.opened.set_result(0)

    async def read(self) -> bytes:
        """What has come; nothing once it is over."""
        while not self._chunks and not self.is_over:
            self._news.clear()
            await self._news.wait()
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    async def read_all(self) -> bytes:
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class ThreadReads:
    """In place of `Reads`: whether the views hold a thread."""

    def __init__(self, views: Any) -> None:
        self._views = views

    async def thread(self, key: ThreadKey) -> bytes | None:
        row = await self._views.thread_row(key, 0)
        return orjson.dumps({"seq": row.seq}) if row.exists else None


class IngestProcess(Process):
    """As `services.ingest.__main__`."""

    world: "SimulationWorld"

    async def start(self, instance_id: str | None = None, group: str = "") -> "IngestProcess":
        await self._inside(self._start())
        return self

    async def _start(self) -> None:
        world = self.world
        settings = ingest_settings(self.name)
        views = cast("Any", world.store)
        metrics = world.metrics(IngestMetrics.build)
        self.watches = Watches(self.log, views, views, replace(live_limits(settings), **LIVE))
        known = known_threads(settings, INGEST_LIMITS, self.log, views, world.options.partitions)
        commands = commands_of(settings, INGEST_LIMITS, self.log, known, views, self.watches, world.clock, metrics)
        self.tools = Tools(CatalogReader(self.log))
        limits, named = accept_limits(settings), NamedArtifacts(cast("Any", None))
        at_least = AtLeastWaits(known, views, INGEST_LIMITS.at_least_wait_seconds)
        pages = PageSizes(INGEST_LIMITS.page_default, INGEST_LIMITS.page_max)
        forks = Forks(views, known)
        # The other groups serve reads that nobody in the simulation asks for.
        groups = (
            InputRoutes(commands, limits, named),
            ThreadRoutes(commands, limits, named, known, views, cast("Any", ThreadReads(views)), at_least, pages),
            EventRoutes(
                known,
                self.watches,
                at_least,
                pages,
                StreamOptions(INGEST_LIMITS.heartbeat_seconds, INGEST_LIMITS.send_seconds_max),
            ),
            ToolCallRoutes(commands, limits, known, views, self.tools),
            LineageRoutes(commands, limits, named, forks),
            PlanRoutes(commands, limits, known, views),
            ChildRoutes(commands, limits, named, forks, settings.child_depth),
        )
        rules = request_rules(settings, DevAuthenticator())
        self.app = create_app(groups, rules, requests_max=settings.ingest_requests_max, metrics=metrics)
        await self.watches.open()
        self.spawn(self.watches.run(), "live reader")
        self.spawn(self.tools.follow(), "catalog")
        self.is_up = True

    async def _stop(self) -> None:
        self.is_up = False
        self.watches.stop()
        await asyncio.sleep(0)
        await self.watches.close()

    def request(self, method: str, path: str, who: str, headers: dict[str, str], body: Any) -> Stream:
        """Connects, and returns at once."""
        stream = Stream()
        if not self.is_alive or not self.is_up:
            stream.broken()
            return stream
        self.gone.add_done_callback(lambda _: stream.broken())
        tenant, _, subject = who.partition("/")
        sent = {"host": "localhost", "content-type": "application/json", TENANT_HEADER: tenant, SUBJECT_HEADER: subject}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in (sent | headers).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.spawn(self._serve(scope, b"" if body is None else orjson.dumps(body), stream), f"{method} {path}")
        return stream

    async def _serve(self, scope: dict[str, Any], body: bytes, stream: Stream) -> None:
        bodies = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if bodies:
                return bodies.pop()
            await asyncio.wait([stream.closed])
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            stream.sent(message)

        try:
            await self.app(scope, cast("Any", receive), cast("Any", send))
        except Exception as error:  # noqa: BLE001 - a request that raises is never right
            self.world.problems.append(error)
        finally:
            stream.broken()

    def held_states(self) -> dict[ThreadKey, Any]:
        return {thread.key: thread.state for thread in self.watches._threads.values() if thread.is_ready}


class ProjectorProcess(Process):
    """As `services.projector.__main__`."""

    world: "SimulationWorld"

    async def start(self, instance_id: str | None = None, group: str = "") -> "ProjectorProcess":
        await self._inside(self._start())
        return self

    async def _start(self) -> None:
        world = self.world
        self.stopping = asyncio.Event()
        self.projector = await Projector.start(
            self.log,
            world.store,
            projector_settings(self.name),
            world.clock,
            world.metrics(ProjectorMetrics.register),
            self.incarnation,
            MemoryRelayStore(world.store),
        )
        self.running = self.spawn(self.projector.run(self.stopping), "projector")
        self.is_up = True

    async def _stop(self) -> None:
        self.stopping.set()
        await asyncio.wait([self.running])
