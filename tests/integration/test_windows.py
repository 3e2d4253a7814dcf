"""Windows in Postgres: written once whoever counts, and read merged."""

import datetime as dt
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from schemas.envelope import TIME_MS_MAX
from schemas.other_topics.windows import MINUTE_MS
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.roles import INGEST, ROLLUPS
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.sketch import bin_of
from services.cli.database import migrate_all
from services.ingest.database import Database, statements
from services.ingest.http.problems import ProblemError
from services.ingest.operations.windows import OpsWindows, WindowFilter, WindowPage
from services.projector.settings import RollupsSettings
from services.projector.windows.postgres import PostgresWindowStore
from services.projector.windows.windows import Cell, CellKey, OvertakenError, Position

AT = 1_790_000_000_000 // MINUTE_MS * MINUTE_MS
START, CLUSTER = Position(), "cluster"


@pytest.fixture
async def settings(fresh_database: str) -> RollupsSettings:
    made = RollupsSettings(postgres_dsn=fresh_database)
    assert made.postgres_role == ROLLUPS
    await migrate_all(made)
    return made


@pytest.fixture
async def store(settings: RollupsSettings) -> AsyncIterator[PostgresWindowStore]:
    made = PostgresWindowStore(settings.postgres_dsn, settings)
    yield made
    await made.close()


@pytest.fixture
async def windows(settings: RollupsSettings) -> AsyncIterator[OpsWindows]:
    pool = await open_pool(
        settings.postgres_dsn,
        application_name="test",
        size_min=0,
        size_max=2,
        command_timeout_seconds=10,
        connect_timeout_seconds=5,
        role=INGEST,
    )
    yield OpsWindows(Database(TenantPool(pool), 10), statements())
    pool.terminate()


def key(minute: int, tenant: str = "acme", partition: int = 0) -> CellKey:
    return CellKey(tenant, AT + minute * MINUTE_MS, partition)


async def read(windows: OpsWindows, cursor: str | None = None, limit: int = 100, **chosen: Any) -> Any:
    given = {"from_ms": AT, "to_ms": AT + 60 * MINUTE_MS, "step_minutes": 1} | chosen
    page = json.loads(await windows.page(WindowFilter(**given), cursor, limit))
    WindowPage.model_validate(page)
    return page


async def test_what_is_written_is_read_back_and_only_its_owner_goes_on(store: PostgresWindowStore) -> None:
    cells = {key(0): Cell(7, 1, -1, {"inputs": 2}), key(1, "other", 3): Cell(9, 0, 0, {})}
    first = {0: (START, Position(8, 8, AT)), 3: (START, Position(10, 11, AT + 5))}
    await store.write(CLUSTER, cells, first)
    assert await store.load(CLUSTER, [*cells, key(5)]) == cells
    assert await store.load("another", list(cells)) == {}
    assert await store.positions(CLUSTER, [0, 3, 4]) == {0: Position(8, 8, AT), 3: Position(10, 11, AT + 5)}
    assert await store.positions("another", [0]) == {}
    await store.write(CLUSTER, cells, first)  # the answer was lost
    with pytest.raises(OvertakenError, match="another worker"):
        await store.write(CLUSTER, {key(0): Cell(99, 5, 5, {})}, {0: (START, Position(9, 9, AT))})
    moved = {0: (Position(8, 8, AT), Position(9, 9, AT)), 3: (START, Position(12, 12, AT))}
    with pytest.raises(OvertakenError):
        await store.write(CLUSTER, {key(0): Cell(99, 5, 5, {})}, moved)
    assert await store.load(CLUSTER, list(cells)) == cells
    await store.forget_positions(CLUSTER, [0])
    # Who counts again writes no cell back that is further on.
    await store.write(CLUSTER, {key(0): Cell(6, 0, 0, {})}, {0: (START, Position(3, 3, AT))})
    assert await store.load(CLUSTER, list(cells)) == cells


async def test_old_cells_go_except_those_on_which_a_sum_rests(
    store: PostgresWindowStore, windows: OpsWindows, settings: RollupsSettings
) -> None:
    cells = {key(minute): Cell(minute, int(minute == 2), 0, {"inputs": 1}) for minute in range(6)}
    await store.write(CLUSTER, cells, {0: (START, Position(8, 8, AT))})
    assert await store.delete_before(AT + 4 * MINUTE_MS, 2) == 2
    assert await store.delete_before(AT + 4 * MINUTE_MS, 9) == 1
    page = await read(windows)
    assert [(window["inputs"], window["waiting"]) for window in page["data"]] == [(1, 1), (1, 1), (1, 1)]


async def test_partitions_and_minutes_are_merged(store: PostgresWindowStore, windows: OpsWindows) -> None:
    times = [*range(10, 1_000, 10)]
    bins: dict[str, int] = {}
    for value in times:
        bins[f"turn_times/{bin_of(value)}"] = bins.get(f"turn_times/{bin_of(value)}", 0) + 1
    one = {"inputs": 2, "turns/completed": 3, "tool_calls/shell": 1, "tool_ms/shell": 500, "failures/other": 1}
    two = {"inputs": 1, "turns/failed": 1, "turns/completed": 1, "failures/turn/limit/x": 1, "responses/a/b": 2}
    three = {"input_tokens/a/b": 70, "responses/a/b": 1, "failures/step/overloaded": 4, "tool_times/zero": 2}
    await store.write(
        CLUSTER,
        {
            key(-90): Cell(0, 5, 1, {}),
            key(0): Cell(1, -1, 0, one),
            key(0, partition=1): Cell(1, 2, 0, two),
            key(1, partition=1): Cell(2, -3, 0, three),
            key(7): Cell(9, 0, 1, bins),
            key(7, "other"): Cell(9, 0, 0, {"inputs": 1}),
        },
        {0: (START, Position(8, 8, AT)), 1: (START, Position(8, 8, AT))},
    )
    page = await read(windows)
    assert [(window["tenant"], window["waiting"], window["unknown"]) for window in page["data"]] == [
        ("acme", 6, 1),
        ("acme", 3, 1),
        ("acme", 3, 2),
        ("other", 0, 0),
    ]
    first = page["data"][0]
    assert first["inputs"] == 3 and first["turns"] == {"completed": 4, "failed": 1}
    assert first["tools"] == [{"tool": "shell", "calls": 1, "seconds": 0.5}]
    assert first["failures"] == [
        {"what": "other", "reason": "other", "count": 1},
        {"what": "turn", "reason": "limit/x", "count": 1},
    ]
    assert page["data"][1]["models"][0]["input_tokens"] == 70
    assert page["data"][1]["tool_seconds"] == {"count": 2, "p50": 0, "p99": 0}
    found = page["data"][2]["turn_seconds"]
    assert found["count"] == len(times)
    assert abs(found["p50"] - 0.5) <= 0.01 and abs(found["p99"] - 0.98) <= 0.02

    by_step = await read(windows, step_minutes=5, from_ms=AT + MINUTE_MS, to_ms=AT + 8 * MINUTE_MS)
    begins = {
        dt.datetime.fromisoformat(window["at"]).timestamp() * 1000 % (5 * MINUTE_MS) for window in by_step["data"]
    }
    assert begins == {0}
    ours = [window for window in by_step["data"] if window["tenant"] == "acme"]
    assert sum(window["inputs"] for window in ours) == 3
    assert ours[-1]["waiting"] == 3
    assert [window["tenant"] for window in (await read(windows, tenant="other"))["data"]] == ["other"]

    paged, cursor = [], None
    while True:
        part = await read(windows, cursor, 1)
        paged += part["data"]
        cursor = part["next_cursor"]
        if cursor is None:
            break
        assert len(part["data"]) == 1
    assert paged == page["data"]
    with pytest.raises(ProblemError):
        await read(windows, "nonsense")


async def test_the_last_step_of_time_can_be_asked_for(windows: OpsWindows) -> None:
    page = await read(windows, from_ms=TIME_MS_MAX - 3_600_000, to_ms=TIME_MS_MAX, step_minutes=1_440)
    assert page == {"data": [], "next_cursor": None}


async def test_only_operators_see_all_tenants(store: PostgresWindowStore, settings: RollupsSettings) -> None:
    cells = {key(0): Cell(1, 0, 0, {"inputs": 1}), key(0, "other"): Cell(1, 0, 0, {"inputs": 1})}
    await store.write(CLUSTER, cells, {0: (START, Position(8, 8, AT))})
    connection = await asyncpg.connect(settings.postgres_dsn)
    try:
        for role, tenant, seen in (
            ("threadlog_reader", "acme", {"acme"}),
            ("threadlog_reader", "", set[str]()),
            ("threadlog_operator", "", {"acme", "other"}),
        ):
            async with connection.transaction():
                await connection.execute(f"set local role {role}")
                await connection.execute("select set_config('app.tenant_id', $1, true)", tenant)
                rows = await connection.fetch("select tenant from threadlog.window_cells")
            assert {row["tenant"] for row in rows} == seen
    finally:
        await connection.close()
