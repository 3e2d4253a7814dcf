"""What `threadlog verify` finds: logs and views that somebody has altered, on a real broker and a real database."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator

import asyncpg
import orjson
import pytest

from schemas.canonical import data_hash
from schemas.events import ArtifactRecorded, Lineage, PlanApproved, PlanProposed, Task
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.readers import AssignedReader
from services.chassis.log.port import Outgoing
from services.chassis.postgres.sql_files import SqlFiles
from services.cli.local.embedded import Running
from services.projector.generations.errors import BusyError, OtherLogError
from services.projector.generations.generations import FOLDER, TABLES, checksum_columns, migrate
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.settings import ProjectorSettings
from services.projector.verification.rows import KeyColumn, Restriction, Side, compare_rows
from services.projector.verification.verify import VerifyError
from tests.support.limits import with_limits
from tests.support.recorded.histories import USER, History, compacted, created
from tests.support.recorded.walks import GO_ON, walk
from tests.support.simulated.waiting import PATIENCE_SECONDS
from tests.support.worlds.projector import key_of
from tests.support.worlds.verification import (
    PARTITIONS,
    Tamper,
    VerifyPlace,
    delete_beginning,
    outgoing,
    verify_place,
    whole_turn,
    with_header,
)

TOPIC = THREAD_EVENTS.name


@pytest.fixture
async def database(fresh_database: str) -> str:
    await migrate(fresh_database)
    return fresh_database


# The log


def _altered_value(records: list[Outgoing]) -> list[Outgoing]:
    changed = records[1]._replace(value=(records[1].value or b"").replace(b"tests", b"fests"))
    assert changed != records[1]
    return [records[0], changed, *records[2:]]


def _altered_hash(records: list[Outgoing]) -> list[Outgoing]:
    return [records[0], with_header(records[1], "ce_datahash", b"0" * 64), *records[2:]]


def _forged(records: list[Outgoing]) -> list[Outgoing]:
    """With the hash that fits."""
    [_, changed] = _altered_value(records[:2])
    return [records[0], with_header(changed, "ce_datahash", data_hash(changed.value or b"").encode()), *records[2:]]


def _other_id(records: list[Outgoing]) -> list[Outgoing]:
    return [records[0], with_header(records[1], "ce_id", b"00000000-0000-4000-8000-000000000000"), *records[2:]]


def _removed(records: list[Outgoing]) -> list[Outgoing]:
    return [*records[:3], *records[4:]]


def _inserted(records: list[Outgoing]) -> list[Outgoing]:
    return [*records[:3], records[1], *records[3:]]


def _swapped(records: list[Outgoing]) -> list[Outgoing]:
    return [records[0], records[2], records[1], *records[3:]]


def _untouched(records: list[Outgoing]) -> list[Outgoing]:
    return records


TAMPERED: dict[Tamper, tuple[str, str]] = {
    _untouched: ("", ""),
    _altered_value: ("hash", "hash"),
    _altered_hash: ("hash", "hash"),
    _forged: ("chain", "chain"),
    _other_id: ("chain", "chain"),
    _removed: ("log", "chain"),
    _inserted: ("chain", "chain"),
    _swapped: ("chain", "chain"),
}
"""What is found first: in views that were built before, and in those that were built after. One partition each."""


def _turns(key: ThreadKey) -> list[Outgoing]:
    return outgoing(whole_turn(whole_turn(History(key))))


@pytest.mark.kafka
async def test_each_alteration_of_the_log_is_found(database: str, own_kafka: Running) -> None:
    """A log in whose partitions different things were done, and views from before and from after that."""
    broker = own_kafka.address
    async with verify_place(database, broker, {}) as place:
        keys = [place.key_in(partition) for partition in range(PARTITIONS)]
        written = {partition: _turns(key) for partition, key in enumerate(keys)}
        await place.append(written)
        await place.project()
        whole = await place.verify()
        assert (whole.findings, whole.first, whole.records) == (0, None, sum(map(len, written.values())))
        assert whole.rows["events"] == whole.records and whole.rows["turns"] == 2 * PARTITIONS
        assert await place.schema() == f"views_g{whole.generation}"

    altered = {
        partition: tamper(written[partition]) for partition, tamper in enumerate(TAMPERED) if partition < PARTITIONS
    }
    async with verify_place(database, broker, altered) as place:
        report = await place.verify()
        assert report.by_check["hash"] == 2 and report.by_check["chain"] >= 5 and report.by_view["events"] > 5
        assert {finding.check for finding in report.firsts} == {"log", "hash", "chain", "view"}
        for key, (before, _) in zip(keys, TAMPERED.values(), strict=True):
            report = await place.verify(key)
            assert (report.first.check if report.first else "") == before, report.firsts
            assert bool(report.by_view) == bool(before), report.to_json()
            if report.first is not None and before != "log":
                assert (report.first.tenant, report.first.thread) == key

        await place.rebuild()
        report = await place.verify()
        assert report.by_view == {} and report.by_check["hash"] == 2 and report.by_check["chain"] >= 5
        for key, (_, after) in zip(keys, TAMPERED.values(), strict=True):
            report = await place.verify(key)
            assert (report.first.check if report.first else "") == after, report.firsts
            assert report.by_view == {}
        known = await place.verify(keys[1], accepted=[(1, 1)])
        assert known.by_check.get("hash") is None and known.by_check["chain"] == 2


@pytest.mark.kafka
async def test_records_that_are_gone_from_an_end_are_found_while_the_views_remember_them(
    database: str, own_kafka: Running
) -> None:
    """Views that were built afterwards know nothing of them: no later record names the last ones of a thread."""
    broker = own_kafka.address
    async with verify_place(database, broker, {}) as place:
        key = place.key_in(3)
        records = _turns(key)
        await place.append({3: records})
        await place.project()
    async with verify_place(database, broker, {3: records[:-1]}) as place:
        report = await place.verify()
        assert report.first is not None and report.first.check == "log" and "gone from its end" in report.first.what
        assert report.first.key == {"partition": 3, "offset": len(records) - 1}
        assert report.by_view["events"] == 1 and report.by_view["positions"] == 1
        assert (await place.verify(key)).by_view["events"] == 1
        await place.rebuild()
        assert (await place.verify()).findings == 0
    async with verify_place(database, broker, {3: records}) as place:
        await place.rebuild()
        await delete_beginning(broker, 3, 2)
        report = await place.verify()
        assert report.first is not None
        assert report.first.what == f"offsets 0 to 1 are not in partition 3 of {TOPIC}"
        assert report.by_view["events"] > 0
        await place.rebuild()
        assert (await place.verify()).by_check.keys() >= {"log", "chain"}


@pytest.mark.kafka
async def test_a_parent_that_is_not_as_its_children_say_is_found(database: str, own_kafka: Running) -> None:
    async with verify_place(database, own_kafka.address, {}) as place:
        parent, fork, child = [place.key_in(partition) for partition in (1, 4, 6)]
        said = whole_turn(History(parent))
        lineage = Lineage(kind="fork", parent=parent.thread, seq=5, chain=said.states[5].chain)
        forked = History(fork)
        forked.apply(created().model_copy(update={"lineage": lineage}), USER)
        working = History(child)
        asked_at = lineage.model_copy(
            update={"kind": "child", "seq": 7, "chain": said.states[7].chain, "call": "1.1.0"}
        )
        working.apply(created().model_copy(update={"lineage": asked_at}), USER)
        for history in (forked, working, said):  # a child's partition may be further than its parent's
            await place.append_history(history)
        await place.project()
        assert (await place.verify()).findings == 0
        assert [(await place.verify(key)).findings for key in (parent, fork, child)] == [0, 0, 0]
        altered = {1: _forged(outgoing(said)), 4: outgoing(forked), 6: outgoing(working)}
    async with verify_place(database, own_kafka.address, altered) as place:
        await place.rebuild()
        report = await place.verify()
        assert report.by_check == {"lineage": 2, "chain": 1}
        finding = next(finding for finding in report.firsts if finding.check == "lineage")
        assert finding.tenant == fork.tenant and finding.log_says is not None
        assert finding.view_says in {said.states[5].chain, said.states[7].chain}
        for key in (fork, child):
            alone = await place.verify(key)
            assert alone.by_check == {"lineage": 1}
            assert alone.first is not None and parent.thread in alone.first.what


# Rows


@pytest.fixture
async def rich(database: str, own_kafka: Running) -> AsyncIterator[VerifyPlace]:
    """Views none of which is empty."""
    async with verify_place(database, own_kafka.address, {}) as place:
        rng = random.Random(7)
        histories = [
            walk([(rng.randrange(2 * GO_ON), rng.randrange(48), rng.randrange(4)) for _ in range(80)], key_of(number))
            for number in range(24)
        ]
        histories[0].append(ArtifactRecorded(sha256="0" * 64, size=1, media_type="text/plain", name="notes"), USER)
        summarised = whole_turn(History(place.key_in(2, "zeta")))
        summarised.apply(compacted(summarised.state))
        records: dict[int, list[Outgoing]] = {2: [Outgoing(b"nobody", b"x", (("a", b"b"),), 5)]}
        planned = History(key_of(40)).idle()
        planned.apply(PlanProposed(plan_version=1, tasks=(Task(id="look", title="Look"),)), USER)
        planned.apply(PlanApproved(plan_version=1, by=USER), USER)
        for history in (*histories, planned, whole_turn(summarised)):
            partition = place.log.partition_for(history.key.to_bytes(), PARTITIONS)
            records.setdefault(partition, []).extend(outgoing(history))
        await place.append(records)
        await place.project()
        yield place


CHANGED = {
    "text": "{0} || 'x'",
    "boolean": "not {0}",
    "timestamp with time zone": "{0} + interval '1 second'",
    "jsonb": """'{{"altered": true}}'::jsonb""",
    "json": "replace({0}::text, '\"seq\":', '\"seq\": ')::json",
    "text[]": "array_append({0}, 'x')",
    "uuid": "gen_random_uuid()",
    "bytea": "'\\x00'::bytea || {0}",
}
"""By type; numbers go up."""


async def _columns(place: VerifyPlace, table: str) -> tuple[list[str], dict[str, str]]:
    """The primary key, and the other columns that the log determines, with their types."""
    schema = await place.schema()
    rows = await place.connection.fetch(
        "select a.attname, format_type(a.atttypid, null) as type, "
        "exists (select from pg_index i where i.indrelid = a.attrelid and i.indisprimary and a.attnum = any(i.indkey)) "
        "as is_key from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped "
        "order by a.attnum",
        f"{schema}.{table}",
    )
    determined = checksum_columns(table)
    keys = [row["attname"] for row in rows if row["is_key"]]
    others = {
        row["attname"]: row["type"]
        for row in rows
        if not row["is_key"] and (not determined or row["attname"] in determined)
    }
    return keys, others


@pytest.mark.kafka
async def test_in_each_view_a_row_that_is_other_gone_or_too_many_is_found(rich: VerifyPlace) -> None:
    clean = await rich.verify()
    assert clean.findings == 0, clean.to_json()
    assert all(clean.rows[table] > 0 for table in TABLES), clean.rows
    schema, connection = await rich.schema(), rich.connection
    await connection.execute("create schema saved")
    for table in TABLES:
        await connection.execute(f"create table saved.{table} as select * from {schema}.{table}")

    expected: dict[str, str] = {}
    for table in TABLES:
        _, others = await _columns(rich, table)
        expected[table] = list(others)[-1]
        assert await _alter(connection, f"{schema}.{table}", *list(others.items())[-1])
    await _expect(rich, {table: f"{table}.{column} is not" for table, column in expected.items()})

    shown = [table for table in TABLES if table != "positions"]
    for table in shown:
        deleted = await connection.execute(
            f"delete from {schema}.{table} where ctid = (select ctid from {schema}.{table} limit 1)"
        )
        assert deleted == "DELETE 1"
    await _expect(rich, dict.fromkeys(shown, "lacks a row"))
    await connection.execute(f'delete from {schema}.positions where "partition" = 2')
    unplaced = await rich.verify()  # the views hold what their positions do not speak of
    assert unplaced.first is not None and unplaced.first.what == "events has a row that the log does not come to"
    await connection.execute(f'insert into {schema}.positions select * from saved.positions where "partition" = 2')

    for table in TABLES:
        planted = '{"partition": 99, "offset": 99, "thread": "planted"}'
        await connection.execute(
            f"insert into {schema}.{table} "
            f"select (jsonb_populate_record(t, $1::text::jsonb)).* from {schema}.{table} t limit 1",
            planted,
        )
    await _expect(rich, dict.fromkeys(TABLES, "has a row that the log does not come to"))
    assert (await rich.verify()).findings == 0


async def _expect(place: VerifyPlace, found: dict[str, str]) -> None:
    """One difference in each view; then they are as they were."""
    report = await place.verify()
    assert report.by_check == {"view": len(found)}
    assert report.by_view == dict.fromkeys(found, 1)
    for finding in report.firsts:
        assert found[str(finding.view)] in finding.what
        assert finding.key is not None
    thread = next(finding for finding in report.firsts if finding.view == "events")
    alone = await place.verify(ThreadKey(TenantId(str(thread.tenant)), ThreadId(str(thread.thread))))
    assert alone.by_view["events"] == 1 and alone.by_check["view"] == sum(alone.by_view.values())
    schema = await place.schema()
    for table in TABLES:
        await place.connection.execute(f"delete from {schema}.{table}")
        await place.connection.execute(f"insert into {schema}.{table} select * from saved.{table}")


@pytest.mark.kafka
async def test_each_column_of_each_view_is_compared_and_named(rich: VerifyPlace) -> None:
    schema, connection = await rich.schema(), rich.connection
    await connection.execute("create schema folded")
    compared = 0
    for table in TABLES:
        await connection.execute(f"create table folded.{table} (like {schema}.{table} including all)")
        await connection.execute(f"insert into folded.{table} select * from {schema}.{table}")
        sql = SqlFiles(FOLDER / "verification" / "sql")["verify_keys"]
        keys = [KeyColumn(*row) for row in await connection.fetch(sql, f"{schema}.{table}")]
        names, others = await _columns(rich, table)
        assert [key.name for key in keys] and {key.name for key in keys} == set(names)
        sides = [Side(connection, name, 10) for name in ("folded", schema)]
        async with connection.transaction():
            assert await compare_rows(table, keys, sides[0], sides[1], Restriction()) == (0, None)
        for column, kind in others.items():
            with contextlib.suppress(_UndoError):
                async with connection.transaction():
                    assert await _alter(connection, f"{schema}.{table}", column, kind), f"{table}.{column}"
                    rows, first = await compare_rows(table, keys, sides[0], sides[1], Restriction())
                    assert rows == 1 and first is not None
                    assert (first.view, first.column) == (table, column)
                    assert first.log_says != first.view_says
                    raise _UndoError
            compared += 1
    assert compared > 120


class _UndoError(Exception):
    pass


async def _alter(connection: asyncpg.Connection, table: str, column: str, kind: str) -> bool:
    """In one row, which has a value there if one has."""
    name = f'"{column}"'
    changed = CHANGED.get(kind, "{0} + 1000").format(name)
    null = {"text": "'x'", "uuid": "gen_random_uuid()", "text[]": "'{x}'"}.get(kind, "'1'")
    if "time" in kind:
        null = "now()"
    if kind == "boolean":
        null = "true"
    done: str = await connection.execute(
        f"update {table} set {name} = coalesce({changed}, {null}) "
        f"where ctid = (select ctid from {table} order by {name} is null limit 1)"
    )
    return done == "UPDATE 1"


# While services run


@pytest.mark.kafka
async def test_it_works_while_others_write(rich: VerifyPlace) -> None:
    stopping = asyncio.Event()
    written = 0

    async def write() -> None:
        nonlocal written
        while not stopping.is_set():
            await rich.append_history(whole_turn(History(rich.key_in(written % PARTITIONS, f"w-{written}"))))
            written += 1
            await asyncio.sleep(0)

    async with rich.projecting(), asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        reports = [await rich.verify() for _ in range(4)]
        key = rich.key_in(0, "w-0")
        alone = await rich.verify(key)
        stopping.set()
    assert [report.findings for report in (*reports, alone)] == [0] * 5, reports
    assert written > 20 and reports[0].records < reports[-1].records
    assert alone.thread == str(key) and alone.rows["events"] == 12
    assert {"reading", "checking", "comparing", "done"} >= {progress.phase for progress in rich.progress}


@pytest.mark.kafka
async def test_what_a_killed_one_left_is_cleaned_up_by_the_next(rich: VerifyPlace) -> None:
    environment = os.environ | {
        "THREADLOG_POSTGRES_DSN": rich.settings.postgres_dsn,
        "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": rich.settings.kafka_bootstrap_servers,
        "THREADLOG_PROJECTOR_BATCH_RECORDS_MAX": "5",
    }

    left: list[str] = []

    async def start() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "verify", "--all", "--json"),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not set(await rich.scratches()) - set(left) and process.returncode is None:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.02)
        return process

    killed = await start()
    with pytest.raises(BusyError):
        await rich.verify()
    killed.kill()
    await killed.wait()
    left += await rich.scratches()
    assert len(left) == 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await _is_free(rich):  # noqa: ASYNC110  # the event is the database's
            await asyncio.sleep(0.05)
    stopped = await start()
    assert left[0] not in await rich.scratches()
    stopped.send_signal(signal.SIGTERM)
    assert await stopped.wait() == 128 + signal.SIGTERM
    assert await rich.scratches() == []
    whole = await start()
    out, err = await whole.communicate()
    assert whole.returncode == 0, err.decode()
    assert orjson.loads(out)["ok"] is True
    await rich.connection.execute(f"update {await rich.schema()}.turns set steps = steps + 1 where turn = 1")
    found = await start()
    out, _ = await found.communicate()
    assert found.returncode == 1
    assert orjson.loads(out)["first"]["column"] == "steps"
    assert await rich.scratches() == []


async def _is_free(place: VerifyPlace) -> bool:
    try:
        async with MaintenanceLock(place.settings.postgres_dsn, place.settings):
            return True
    except BusyError:
        return False


@pytest.mark.kafka
async def test_an_export_needs_the_log_alone(database: str, own_kafka: Running) -> None:
    async with verify_place(database, own_kafka.address, {}) as place:
        key = place.key_in(5)
        history = whole_turn(History(key))
        await place.append_history(history)
        await place.append({5: [Outgoing(b"acme/another", b"{}")]})
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "export", key.thread, "--tenant", key.tenant),
            env=os.environ
            | {
                "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": own_kafka.address,
                "THREADLOG_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/nothing",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        head, *records, state, context = [orjson.loads(line) for line in out.splitlines()]
        assert (head["thread"], head["partition"]) == (key.thread, 5)
        assert [record["id"] for record in records] == [record.id for record in history.records]
        assert [record["chain"] for record in records] == [state.chain for state in history.states[1:]]
        assert orjson.dumps(records[1]["data"], option=orjson.OPT_SORT_KEYS) == history.encoded[1].value
        assert (state["chain"], context["count"]) == (history.state.chain, 5)


@pytest.mark.kafka
async def test_what_cannot_be_verified_is_said(
    database: str, own_kafka: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with verify_place(database, own_kafka.address, {}) as place:
        with pytest.raises(VerifyError, match="there are no views"):
            await place.verify()
        await place.append({0: [Outgoing(b"nobody", b"x")]})
        await place.project()
        usual = place.settings
        place.settings = with_limits(ProjectorSettings, verify_idle_seconds=0.2).model_construct(**dict(usual))
        with monkeypatch.context() as patched:
            patched.setattr(AssignedReader, "poll", _nothing)
            with pytest.raises(VerifyError, match=r"gave nothing for 0\.2 s, though it does not end there: 0:0"):
                await place.verify()
        assert await place.scratches() == []
        assert (await place.verify()).findings == 0
        with pytest.raises(VerifyError, match="neither the log nor the views have a thread no/such"):
            await place.verify(ThreadKey(TenantId("no"), ThreadId("such")))
        await place.connection.execute("update threadlog.generations set cluster_id = 'another cluster'")
        with pytest.raises(OtherLogError, match="another cluster"):
            await place.verify()


async def _nothing(_: object, timeout_ms: int) -> list[object]:
    await asyncio.sleep(timeout_ms / 1000)
    return []
