"""Records that no reader can use, on Kafka and Postgres: each class is set aside where it belongs, told to operators,
and shown by a rebuild once a release can read it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client import CollectorRegistry

from schemas import codec
from schemas.codec import Encoded
from schemas.events import InputSubmitted
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS, THREAD_EVENTS_DLQ, TOPICS
from services.chassis.clock import SystemClock
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import apply, topic_specs
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.port import Outgoing, TopicPartition
from services.chassis.postgres.connections import open_pool
from services.cli.local.embedded import Running
from services.ingest.__main__ import wire
from services.ingest.limits import IngestLimits
from services.ingest.metrics import IngestMetrics
from services.ingest.settings import IngestSettings
from services.projector.generations.generations import migrate
from services.projector.generations.postgres_store import PostgresStores
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.rebuilding.rebuild import rebuild
from tests.support.recorded.bad_records import bad_records, changed, hashed
from tests.support.recorded.histories import USER, History, proposed, step_finished, submitted
from tests.support.simulated.waiting import PATIENCE_SECONDS
from tests.support.worlds.projector import PARTITIONS, settings_of, until

pytestmark = pytest.mark.kafka
TOPIC = THREAD_EVENTS.name
DLQ = THREAD_EVENTS_DLQ.name
PAGE_MAX = 3


class Place:
    """Kafka, a database, a projector, and operators who ask."""

    def __init__(self, dsn: str, kafka: str, log: KafkaLog, http: httpx2.AsyncClient) -> None:
        self.dsn = dsn
        self.kafka = kafka
        self.settings = settings_of(dsn, topic_partitions=PARTITIONS)
        self.log = log
        self.http = http
        self.registry = CollectorRegistry()
        self.begins: dict[int, int] = {}
        """Where the test began to write."""

    @contextlib.asynccontextmanager
    async def projector(self) -> AsyncIterator[None]:
        metrics = ProjectorMetrics.register(self.registry)
        stores = PostgresStores(self.dsn, self.settings)
        projector = await Projector.start(self.log, stores, self.settings, SystemClock(), metrics, "one")
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(projector.run(stopping))
            yield
            stopping.set()

    def home(self, key: ThreadKey) -> int:
        return self.log.partition_for(key.to_bytes(), PARTITIONS)

    async def append(self, partition: int, *records: Outgoing) -> list[int]:
        return [(await self.log.appender.append(TOPIC, partition, [record]))[0] for record in records]

    async def append_without_key(self, partition: int) -> int:
        """As a foreign producer can."""
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka)
        await producer.start()
        try:
            stored = await producer.send_and_wait(TOPIC, b"{}", partition=partition)
        finally:
            await producer.stop()
        offset: int = stored.offset
        return offset

    async def append_history(self, key: ThreadKey, encoded: list[Encoded]) -> list[int]:
        return await self.append(self.home(key), *[plain(key, made) for made in encoded])

    async def all_shown(self) -> None:
        tps = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        ends = await self.log.end_offsets(tps)
        connection = await asyncpg.connect(self.dsn)
        try:
            await until(
                lambda: connection.fetchval("select coalesce(sum(next_offset), 0) from views.positions"),
                lambda shown: shown == sum(ends.values()),
            )
        finally:
            await connection.close()

    async def letters(self, **asked: Any) -> list[dict[str, Any]]:
        """All of them, page by page, but those that earlier tests left on the topic."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(100):
            answer = await self.http.get(
                "/v1/ops/dead-letters", params={**asked, **({"cursor": cursor} if cursor else {})}
            )
            assert answer.status_code == 200, answer.text
            page = answer.json()["data"]
            assert len(page) <= PAGE_MAX
            found += [letter for letter in page if letter["offset"] >= self.begins[letter["partition"]]]
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                return found
        raise AssertionError("the pages do not end")

    async def items(self, key: ThreadKey) -> list[str]:
        connection = await asyncpg.connect(self.dsn)
        try:
            rows = await connection.fetch(
                "select content ->> 'text' as text from views.items where tenant = $1 and thread = $2 order by seq",
                *key,
            )
        finally:
            await connection.close()
        return [row["text"] for row in rows]


def plain(key: ThreadKey, made: Encoded) -> Outgoing:
    return Outgoing(key.to_bytes(), made.value, made.headers, made.record.time_ms)


@pytest.fixture
async def place(fresh_database: str, own_kafka: Running) -> AsyncIterator[Place]:
    await migrate(fresh_database)
    settings = IngestSettings(
        ingest_auth="dev",
        postgres_dsn=fresh_database,
        kafka_bootstrap_servers=own_kafka.address,
    )
    limits = IngestLimits(page_max=PAGE_MAX)
    async with kafka_topics(settings) as topics:
        await apply(topics, topic_specs(TOPICS, PARTITIONS, 1))
    log = await KafkaLog.open(settings, "test")
    pool = await open_pool(
        fresh_database,
        application_name="test",
        size_min=0,
        size_max=2,
        command_timeout_seconds=5,
        connect_timeout_seconds=5,
    )
    wired = wire(settings, log, pool, SystemClock(), IngestMetrics.build(CollectorRegistry()), PARTITIONS, limits)
    transport = httpx2.ASGITransport(wired.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:
        place = Place(fresh_database, own_kafka.address, log, http)
        ends = await log.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        place.begins = {tp.partition: end for tp, end in ends.items()}
        yield place
    pool.terminate()
    await log.close()


def refused_row(key: ThreadKey) -> tuple[list[Encoded], Outgoing]:
    """A thread, and its record with a number that no JSON of Postgres can hold."""
    history = History(key).in_step()
    before = list(history.encoded)
    made = history.make(step_finished(history.state, calls=[proposed(0, args={"number": 8.5e307})]))
    sent = plain(key, made)
    return before, hashed(sent._replace(value=(made.value or b"").replace(b"8.5e+307", b"8.5e+900")))


async def test_each_class_is_told_to_operators_and_no_partition_stands_still(place: Place) -> None:
    key, refused = ThreadKey(TenantId("acme"), ThreadId("bad")), ThreadKey(TenantId("acme"), ThreadId("refused"))
    history = History(key).idle()
    home = place.home(key)
    bad = bad_records(key, history.encoded[0])
    at: dict[str, tuple[int, int]] = {}
    await place.append_history(key, history.encoded)
    for fault, record in bad.items():
        at[fault] = home, (await place.append(home, record))[0]
    at["no_key"] = home, await place.append_without_key(home)
    elsewhere = (home + 1) % PARTITIONS
    at["wrong_partition"] = elsewhere, (await place.append(elsewhere, plain(key, history.encoded[0])))[0]
    before, row = refused_row(refused)
    await place.append_history(refused, before)
    at["row_refused"] = place.home(refused), (await place.append(place.home(refused), row))[0]
    after = history.make(submitted("late"), USER)
    await place.append_history(key, [after])
    async with place.projector():
        await place.all_shown()
        letters = await place.letters()

    assert {letter["fault"]: (letter["partition"], letter["offset"]) for letter in letters} == at
    for letter in letters:
        assert letter["topic"] == TOPIC and letter["reason"] and letter["at"].endswith("Z")
        count = place.registry.get_sample_value("threadlog_projector_dead_letters_total", {"fault": letter["fault"]})
        assert count is not None and count >= 1, letter["fault"]
    by_fault = {letter["fault"]: letter for letter in letters}
    assert by_fault["bad_key"]["key"] == "no slash" and by_fault["bad_key"]["thread"] is None
    assert by_fault["no_key"]["key"] is None and by_fault["no_value"]["value"] is None
    assert (by_fault["hash_mismatch"]["tenant"], by_fault["hash_mismatch"]["seq"]) == ("acme", 5)
    assert ["ce_actor", "root"] in by_fault["bad_header"]["headers"]
    assert len(await place.items(key)) == 1  # the good input behind all of them
    await _letters_are_on_their_topic(place, at)


async def _letters_are_on_their_topic(place: Place, at: dict[str, tuple[int, int]]) -> None:
    reader = await place.log.reader({TopicPartition(DLQ, number): 0 for number in range(PARTITIONS)})
    told: dict[str, tuple[int, int]] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while told.keys() < at.keys():
            for headers in [dict(record.headers) for _, records in await reader.poll(500) for record in records]:
                partition, offset = int(headers["threadlog_partition"]), int(headers["threadlog_offset"])
                if offset >= place.begins[partition]:
                    told[headers["threadlog_fault"].decode()] = partition, offset
    await reader.close()
    assert told == at


async def test_operators_choose_by_tenant_place_class_and_time(place: Place) -> None:
    others = [ThreadKey(TenantId(tenant), ThreadId("t")) for tenant in ("chosen", "other")]
    start_ms = SystemClock().now_ms()
    for number, key in enumerate(others * 4):
        made = History(key).idle().encoded[0]
        broken = plain(key, made)._replace(headers=changed(made.headers, "ce_datahash", b"0" * 64))
        await place.append(place.home(key), broken._replace(timestamp_ms=start_ms + number))
    async with place.projector():
        await place.all_shown()
        of_one = await place.letters(tenant="chosen")
        assert [letter["tenant"] for letter in of_one] == ["chosen"] * 4  # over two pages
        assert [letter["at"] for letter in of_one] == sorted([letter["at"] for letter in of_one], reverse=True)
        assert await place.letters(tenant="chosen", fault="no_key") == []
        assert await place.letters(tenant="chosen", since=of_one[1]["at"]) == of_one[:2]
        home = place.home(others[0])
        assert await place.letters(tenant="chosen", topic=TOPIC, partition=home) == of_one
        assert await place.letters(tenant="chosen", partition=(home + 1) % PARTITIONS) == []
        assert await place.letters(topic="another") == []
        everything = await place.letters()
        assert [letter for letter in everything if letter["tenant"] == "chosen"] == of_one
        for asked, slug in (
            ({"cursor": "x"}, "bad-cursor"),
            ({"since": "yesterday"}, "invalid-request"),
            ({"fault": "ugly"}, "invalid-request"),
            ({"topic": "a\x00"}, "invalid-request"),
            ({"tenant": "no/name"}, "invalid-request"),
            ({"partition": -1}, "invalid-request"),
        ):
            refused = await place.http.get("/v1/ops/dead-letters", params=asked)
            assert refused.json()["type"].rpartition("/")[2] == slug, asked


class Older(InputSubmitted):
    """As a release would have it that knows no mode but queue."""

    def model_post_init(self, _: object) -> None:
        if self.mode != "queue":
            raise ValueError(f"mode {self.mode} is not known")


async def test_what_an_older_release_refused_is_shown_after_a_rebuild_with_one_that_reads_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ThreadKey(TenantId("acme"), ThreadId("newer"))
    history = History(key).idle()
    steering = history.make(submitted("i1", mode="steer"), USER)
    with monkeypatch.context() as older:
        older.setitem(codec._NEWEST, "dev.threadlog.input.submitted.v1", Older)
        async with place.projector():
            await place.append_history(key, [*history.encoded, steering])
            await place.all_shown()
            [letter] = await place.letters(tenant="acme", fault="wrong_shape")
            assert (letter["thread"], letter["seq"]) == ("newer", len(history.encoded) + 1)
            assert "mode steer is not known" in letter["reason"]
            assert await place.items(key) == []
    await rebuild(place.log, place.dsn, place.settings, lambda _: None)
    assert [each for each in await place.letters(tenant="acme") if each["thread"] == "newer"] == []
    assert len(await place.items(key)) == 1
