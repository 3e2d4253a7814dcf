"""Whatever is appended, projected, evicted, cut and reconnected in which order: every subscriber sees each seq once, in
order, with what the fold made of it.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import Encoded, encode
from schemas.config import Config
from schemas.events import Event, InputSubmitted, TextItem, ThreadCreated, ThreadDescribed, TurnCancelRequested
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.other_topics.progress import Delta, encode_progress
from schemas.topics import EPHEMERAL_EVENTS, THREAD_EVENTS, THREAD_PROGRESS
from services.chassis.log.port import Outgoing
from services.chassis.threads.states import StatesUnavailableError
from services.ingest.streams.frames import FoldedRecord, Frame
from services.ingest.streams.live import BehindError, LiveLimits, Watches
from services.ingest.streams.watch import Watch, WatchCutError
from services.ingest.streams.watched_thread import TailLimits
from tests.conftest import MACHINE_EXAMPLES
from tests.support.simulated.log import Faults, SimulatedBroker, SimulatedLog
from tests.support.simulated.virtual_time import EPOCH_MS, VirtualClock, run_virtual
from tests.support.stored.followed_views import FollowedViews

PARTITIONS = 2
KEYS = [ThreadKey(TenantId("acme"), ThreadId(name)) for name in ("a", "b", "c")]
EVENTS: list[Event] = [
    ThreadCreated(config=Config(model="scripted")),
    ThreadDescribed(title="x" * 300),
    InputSubmitted(input="i1", items=(TextItem(text="hello"),)),
    TurnCancelRequested(turn=1, reason="user"),
]

WEIGHTS = {
    "append": 12,
    "delta": 2,
    "project": 5,
    "watch": 4,
    "read": 24,
    "drop": 3,
    "wait": 6,
    "away": 1,
    "back": 2,
    "restart": 1,
}
CLIENTS_MAX = 8
LIMITS = st.builds(
    LiveLimits,
    watches_max=st.just(20_000),
    ring_bytes_max=st.sampled_from([0, 6_000, 20_000, 10**6]),
    warm_records=st.sampled_from([0, 3]),
    poll_ms=st.just(50),
    behind_seconds=st.just(0.2),
    tail=st.builds(TailLimits, st.sampled_from([1, 3, 1_000]), st.sampled_from([1, 2_000, 10**6])),
    grace_seconds=st.sampled_from([0, 2.0]),
    catch_ups_max=st.just(1),
    catch_up_seconds=st.just(5.0),
    history_page_records=st.sampled_from([1, 2, 100]),
)


@dataclass
class Client:
    key: ThreadKey
    cursor: int
    first: int = 0
    watch: Watch | None = None
    seen: list[FoldedRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = self.cursor

    def take(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.record is None:
                assert frame.sse.startswith(b"event: delta\n")
                assert b"\nid:" not in frame.sse
                continue
            assert frame.record.seq == frame.seq == self.cursor + 1
            assert frame.sse.startswith(f"id: {frame.seq}\nevent: {frame.record.kind}\n".encode())
            assert orjson.loads(frame.sse.split(b"\ndata: ")[1])["seq"] == frame.seq
            self.cursor = frame.seq
            self.seen.append(frame.record)

    def drop(self) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = None


class World:
    def __init__(self, limits: LiveLimits, seed: int) -> None:
        faults = Faults(seed, fetch_seconds_max=0.02, poll_records_max=3)
        topics = {topic.name: PARTITIONS for topic in (THREAD_EVENTS, EPHEMERAL_EVENTS, THREAD_PROGRESS)}
        self.limits = limits
        self.random = Random(seed)
        self.broker = SimulatedBroker(topics, VirtualClock(), faults=faults)
        self.views = FollowedViews(self.broker)
        self.oracle = FollowedViews(self.broker)
        self.producer = self.broker.connect()
        self.clients: list[Client] = []
        self.drawn = 0

    async def start(self) -> None:
        self.log: SimulatedLog = self.broker.connect()
        self.watches = Watches(self.log, self.views, self.views, self.limits)
        await self.watches.open()
        self.task = asyncio.create_task(self.watches.run())

    async def stop(self) -> None:
        for client in self.clients:
            client.drop()
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.watches.close()

    async def do(self, operation: str) -> None:
        draw = self.random
        key = draw.choice(KEYS)
        match operation:
            case "append":
                await self.append(key, draw.choice([0, 1, 1, 2, 2, 3, 4]))
            case "delta":
                self.append_delta(key)
            case "project":
                self.views.advance(draw.randrange(PARTITIONS), draw.randint(1, 6))
            case "watch" if len(self.clients) < CLIENTS_MAX:
                self.see_all()
                self.clients.append(Client(key, draw.randint(0, len(self.oracle.events(key)))))
            case "read" if self.clients:
                await self.read(draw.choice(self.clients))
            case "drop" if self.clients:
                draw.choice(self.clients).drop()
            case "wait":
                await asyncio.sleep(draw.choice([0, 0.001, 0.03, 0.1, 3.0]))
            case "away" | "back":
                self.views.is_away = operation == "away"
            case "restart":
                await self.stop()
                await self.start()

    def append_delta(self, key: ThreadKey) -> None:
        value, headers = encode_progress(Delta(turn=1, step=1, attempt=1, text="…"))
        raw_key = key.to_bytes()
        partition = self.producer.partition_for(raw_key, PARTITIONS)
        self.producer.appender.append_lossy(THREAD_PROGRESS.name, partition, [Outgoing(raw_key, value, headers)])

    async def append(self, key: ThreadKey, number: int) -> None:
        raw_key = key.to_bytes()
        partition = self.producer.partition_for(raw_key, PARTITIONS)
        if number == len(EVENTS):  # nobody's record, with the thread's key, on the wrong partition or without an id
            strays = [Outgoing(raw_key, b"?"), Outgoing(b"?", None)]
            await self.producer.appender.append(THREAD_EVENTS.name, partition, strays)
            return
        self.drawn += 1
        made: Encoded = encode(
            key,
            EVENTS[number],
            source="test",
            actor="user:test",
            time_ms=EPOCH_MS,
            event_id=derive("test", self.drawn),
        )
        [offset] = await self.producer.appender.append(
            THREAD_EVENTS.name, partition, [Outgoing(raw_key, made.value, made.headers)]
        )
        self.see_all()
        if len(self.oracle.events(key)) == 1:
            self.watches.note_created(key, offset)

    async def read(self, client: Client, wait_seconds: float = 0.02) -> None:
        try:
            if client.watch is None:
                client.watch = await self.watches.watch(client.key, client.cursor)
            client.take(list(await client.watch.next(wait_seconds)))
            assert client.watch.seq == client.cursor
        except (WatchCutError, StatesUnavailableError, BehindError):
            client.drop()

    def see_all(self) -> None:
        for partition in range(PARTITIONS):
            self.oracle.advance(partition)


@settings(max_examples=MACHINE_EXAMPLES)
@given(LIMITS, st.integers(0, 2**32), st.integers(1, 150))
def test_every_subscriber_sees_each_seq_once_in_order(limits: LiveLimits, seed: int, operations: int) -> None:
    run_virtual(_live(limits, seed, operations))


async def _live(limits: LiveLimits, seed: int, operations: int) -> None:
    world = World(limits, seed)
    await world.start()
    for operation in world.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=operations):
        await world.do(operation)
    world.see_all()
    world.views.is_away = False
    for partition in range(PARTITIONS):
        world.views.advance(partition)
    for client in world.clients:
        expected = world.oracle.events(client.key)[client.first :]
        for _ in range(400):
            if client.seen == expected:
                break
            await world.read(client, 0.2)
        assert client.seen == expected
    await world.stop()
    assert world.watches.counts.watches == 0
    assert world.watches.counts.folds_failed == 0
    await asyncio.sleep(limits.grace_seconds + 0.01)
    assert world.watches.counts.threads == 0
