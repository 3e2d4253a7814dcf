"""A watch as an ASGI response, and the route that makes one."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, cast

import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from schemas.other_topics.progress import Delta
from services.chassis.log.port import Outgoing
from services.ingest.__main__ import request_rules
from services.ingest.app import create_app
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads
from services.ingest.http.auth import SCOPES, Principal
from services.ingest.http.problems import ProblemError, no_such_thread
from services.ingest.limits import LIMITS
from services.ingest.metrics import IngestMetrics
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.routes.events import EventRoutes
from services.ingest.routes.parameters import PageSizes
from services.ingest.settings import IngestSettings
from services.ingest.streams.event_stream import EventStream, StreamOptions
from services.ingest.streams.frames import HEARTBEAT
from services.ingest.streams.watched_thread import TailLimits
from tests.support.recorded.histories import History, plain_turn, turn_ended
from tests.support.simulated.virtual_time import run_virtual
from tests.support.worlds.live import CREATED, DESCRIBED, KEY, LiveWorld, live_limits, live_world

OPTIONS = StreamOptions(heartbeat_seconds=15, send_seconds_max=30)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        run_virtual(test(**fixtures))

    return run


class Connection:
    """The server's side of one HTTP request, and the client's: what was sent, and when it leaves."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.sends = 0
        self.is_complete = False
        self.reads = asyncio.Event()
        """Whether the client takes what is sent."""
        self.reads.set()
        self._gone = asyncio.Event()
        self._requested = False

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        if not self._requested:
            self._requested = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        await self.reads.wait()
        self.sends += 1
        self.body += message["body"]
        self.is_complete = not message.get("more_body", False)

    def events(self) -> list[tuple[str | None, str, Any]]:
        """Id, event, data of each."""
        found = []
        for frame in self.body.split(b"\n\n")[:-1]:
            fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if not line.startswith(b":"))
            if fields:
                seq = fields.get(b"id")
                data = orjson.loads(fields[b"data"])
                found.append((None if seq is None else seq.decode(), fields[b"event"].decode(), data))
        return found

    def kinds(self) -> list[str]:
        return [event for _, event, _ in self.events()]


async def streaming(world: LiveWorld, after: int = 0, **options: Any) -> tuple[Connection, asyncio.Task[None]]:
    watch = await world.watches.watch(KEY, after)
    response = EventStream(watch, await watch.next(0), options.pop("stream_options", OPTIONS), **options)
    connection = Connection()
    task = asyncio.create_task(response({"type": "http"}, connection.receive, connection.send))
    await asyncio.sleep(0.05)
    return connection, task


@virtual
async def test_records_go_out_as_server_sent_events() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        connection, task = await streaming(world)
        await world.append(DESCRIBED, CREATED)
        await asyncio.sleep(0.05)
        assert connection.status == 200
        assert connection.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert [(seq, event) for seq, event, _ in connection.events()] == [
            ("1", "thread.created"),
            ("2", "thread.described"),
            ("3", "thread.created"),
        ]
        _, _, last = connection.events()[-1]
        assert (last["effect"], last["reason"]) == ("superseded", "the thread exists")
        assert last["position"] == {"partition": 0, "offset": 2}
        assert last["data"]["config"]["model"] == "scripted"
        assert connection.sends == 2, "one send for what one poll brought"
        connection.leave()
        await task
        assert world.watches.counts.watches == 0


@virtual
async def test_a_quiet_stream_sends_heartbeats() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        connection, _ = await streaming(world)
        await asyncio.sleep(31)
        assert connection.body.endswith(b"\n\n" + HEARTBEAT + HEARTBEAT)


@virtual
async def test_a_stream_without_anything_yet_begins_with_a_heartbeat() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        connection, _ = await streaming(world, after=1)
        assert (connection.status, connection.body) == (200, HEARTBEAT)


@virtual
async def test_until_turn_end_closes_after_the_end_that_applied() -> None:
    async with live_world() as world:
        history = plain_turn(History(KEY))
        rejected = turn_ended(history.states[-2])
        await _append_all(world, history)
        connection, task = await streaming(world, until_turn_end=True)
        await task
        assert connection.is_complete
        assert connection.kinds()[-1] == "turn.ended"
        # Only the past turn's end is there, and one that comes to nothing: the stream waits for the next.
        connection, task = await streaming(world, after=history.state.seq, until_turn_end=True)
        await world.append(rejected, DESCRIBED)
        await asyncio.sleep(1)
        assert connection.kinds() == ["turn.ended", "thread.described"]
        assert not task.done()


@virtual
async def test_effects_applied_leaves_out_the_rest_and_keeps_deltas() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        connection, _ = await streaming(world, applied_only=True)
        await world.append(CREATED)
        await world.append_progress(Delta(turn=1, step=1, attempt=1, text="x"))
        await world.append(DESCRIBED)
        await asyncio.sleep(0.1)
        assert [(seq, event) for seq, event, _ in connection.events()] == [
            ("1", "thread.created"),
            (None, "delta"),
            ("3", "thread.described"),
        ]


@virtual
async def test_a_slow_client_is_cut_with_its_cursor() -> None:
    async with live_world(live_limits(warm_records=0, tail=TailLimits(records_max=2))) as world:
        await world.append(CREATED)
        connection, task = await streaming(world)
        connection.reads.clear()
        for _ in range(6):
            await world.append(DESCRIBED)
        connection.reads.set()
        await task
        assert connection.events()[-1] == (None, "cut", {"after": 2, "reason": "the client is too slow"})
        assert [seq for seq, _, _ in connection.events()] == ["1", "2", None]
        assert connection.is_complete


@virtual
async def test_a_client_that_never_reads_is_given_up() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        connection = Connection()
        connection.reads.clear()
        response = EventStream(watch, await watch.next(0), OPTIONS)
        await asyncio.wait_for(response({"type": "http"}, connection.receive, connection.send), 31)
        assert world.watches.counts.watches == 0


@virtual
async def test_stopping_cuts_streams() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        connection, task = await streaming(world)
        world.watches.stop()
        await task
        assert connection.events()[-1] == (None, "cut", {"after": 1, "reason": "the service is stopping"})


async def _append_all(world: LiveWorld, history: History) -> None:
    records = [Outgoing(KEY.to_bytes(), made.value, made.headers) for made in history.encoded]
    await world.append_raw(*records)


# The route


class Known:
    async def require(self, key: object) -> None:
        if key != KEY:
            raise ProblemError(no_such_thread())

    require_viewed = require


class Everybody:
    async def principal(self, headers: object) -> Principal:
        return Principal(KEY.tenant, "alice", SCOPES)


async def get(world: LiveWorld, path: str, **headers: str) -> Connection:
    """The answer of the application, a stream as far as it comes within a moment."""
    settings = IngestSettings(_env_file=None)  # type: ignore[call-arg]  # of pydantic-settings
    known, views = cast("KnownThreads", Known()), cast("ViewsAndFold", None)
    group = EventRoutes(
        known,
        world.watches,
        AtLeastWaits(known, views, LIMITS.at_least_wait_seconds),
        PageSizes(LIMITS.page_default, LIMITS.page_max),
        StreamOptions(),
    )
    metrics = IngestMetrics.build(CollectorRegistry())
    app = create_app([group], request_rules(settings, Everybody()), requests_max=10, metrics=metrics)
    connection = Connection()
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    task = asyncio.create_task(app(scope, connection.receive, connection.send))
    await asyncio.sleep(15)
    connection.leave()
    await task
    return connection


SSE = "text/event-stream"
PATH = f"/v1/threads/{KEY.thread}/events"


@virtual
async def test_the_cursor_is_taken_from_header_or_query() -> None:
    async with live_world() as world:
        await world.append(CREATED, DESCRIBED, DESCRIBED)
        first = await get(world, PATH, accept=SSE)
        assert [seq for seq, _, _ in first.events()] == ["1", "2", "3"]
        assert [seq for seq, _, _ in (await get(world, f"{PATH}?after=2", accept=SSE)).events()] == ["3"]
        again = await get(world, f"{PATH}?after=0", accept=SSE, last_event_id="1")
        assert [seq for seq, _, _ in again.events()] == ["2", "3"]


@virtual
async def test_a_page_is_json_from_the_views() -> None:
    async with live_world() as world:
        await world.append(CREATED, CREATED, DESCRIBED)
        world.project()
        page = orjson.loads((await get(world, f"{PATH}?limit=2")).body)
        assert [event["seq"] for event in page["events"]] == [1, 2]
        assert (page["next_after"], page["end"]) == (2, False)
        page = orjson.loads((await get(world, f"{PATH}?effects=applied")).body)
        assert [(event["seq"], event["effect"]) for event in page["events"]] == [(1, "applied"), (3, "applied")]
        assert (page["next_after"], page["end"]) == (3, True)
        both = [(await get(world, f"{PATH}{query}")).body for query in ("", "?effects=all")]
        assert both[0] == both[1]
        assert [event["effect"] for event in orjson.loads(both[0])["events"]] == ["applied", "superseded", "applied"]
        assert orjson.loads(both[0])["events"][1]["reason"] == "the thread exists"
        page = orjson.loads((await get(world, f"{PATH}?after=3")).body)
        assert page == {"events": [], "next_after": 3, "end": True}


@pytest.mark.parametrize(
    ("query", "status", "slug"),
    [
        ("after=x", 400, "bad-cursor"),
        ("after=-1", 400, "bad-cursor"),
        ("after=99999999999999999999", 400, "bad-cursor"),
        ("after=٣", 400, "bad-cursor"),
        ("after=2", 400, "bad-cursor"),
        ("effects=none", 422, "invalid-request"),
        ("at_least=x", 400, "bad-cursor"),
        ("until=tomorrow", 422, "invalid-request"),
        ("limit=0", 422, "invalid-request"),
        ("limit=100000", 422, "invalid-request"),
    ],
)
def test_bad_parameters_are_refused(query: str, status: int, slug: str) -> None:
    async def main() -> None:
        async with live_world() as world:
            await world.append(CREATED)
            answer = await get(world, f"{PATH}?{query}", accept=SSE)
            assert answer.status == status
            assert orjson.loads(answer.body)["type"].endswith(f"/{slug}")

    run_virtual(main())


@virtual
async def test_a_foreign_thread_is_no_thread() -> None:
    async with live_world() as world:
        assert (await get(world, "/v1/threads/other/events", accept=SSE)).status == 404


@virtual
async def test_without_database_a_new_stream_is_refused_with_a_status() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        world.views.is_away = True
        answer = await get(world, PATH, accept=SSE)
        assert answer.status == 503
        assert orjson.loads(answer.body)["type"].endswith("/views-unavailable")
        assert (await get(world, PATH)).status == 503


@virtual
async def test_history_that_cannot_be_read_has_a_status_too() -> None:
    async with live_world(live_limits(warm_records=0)) as world:
        await world.append(CREATED, DESCRIBED)
        world.project()
        keeper = await world.watches.watch(KEY, 2)
        world.views.is_away = True
        answer = await get(world, PATH, accept=SSE)
        assert answer.status == 503
        keeper.close()
        assert world.watches.counts.watches == 0
