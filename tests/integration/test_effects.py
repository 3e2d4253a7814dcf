"""thread-effects and the windows that are counted from it, on Kafka and Postgres, with processes that are killed."""

import asyncio
import contextlib
import json
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.canonical import canonical_json
from services.chassis.log.port import Outgoing, TopicPartition
from services.cli.local.embedded import Running
from services.cli.local.supervised import supervised
from services.cli.local.supervisor import Restarts
from services.projector.generations.generations import drop_views
from services.projector.rebuilding.rebuild import rebuild
from tests.support.recorded.histories import START_MS, History, plain_turn, troubled_turn
from tests.support.stored.window_sql import CELLS, COUNTED, cells, counts
from tests.support.worlds.effects import PARTITIONS, SECONDS, TOPIC, EffectsWorld, as_row, effects_world, first_copies
from tests.support.worlds.projector import key_of, settings_of, until

BREAK_CONNECTIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where application_name like 'threadlog-rollups%' and datname = current_database()"
)

pytestmark = [pytest.mark.kafka]


@pytest.fixture
async def world(own_kafka: Running, fresh_database: str, tmp_path: Path) -> AsyncIterator[EffectsWorld]:
    async with effects_world(own_kafka.address, fresh_database, tmp_path / "logs") as found:
        yield found


async def assert_effects_are_the_events(world: EffectsWorld) -> int:
    """Returns how many copies there are."""
    events, effects = await world.events(), await world.effects()
    copies = 0
    assert events.keys() == effects.keys()
    for partition, rows in events.items():
        wanted = [(*row[:-1], None if row[-1] is None else canonical_json(json.loads(row[-1]))) for row in rows]
        kept = first_copies(effects[partition])
        assert [as_row(effect) for effect in kept] == wanted
        # Copies say the same, and nothing is between that is no copy.
        by_offset = {effect.offset: effect for effect in kept}
        assert all(effect == by_offset[effect.offset] for effect in effects[partition])
        copies += len(effects[partition]) - len(kept)
    return copies


def history(number: int, hours: int = 0) -> History:
    """One that happened so many hours before the others."""
    made = plain_turn(History(key_of(number), now_ms=START_MS - hours * 3_600_000))
    return troubled_turn(made) if number % 3 == 0 else made


async def test_a_projector_killed_between_commit_and_publication_skips_nothing(world: EffectsWorld) -> None:
    """At random moments: some of them lie between."""
    rng = random.Random(5)
    restarts = Restarts(first_seconds=0.05, most_seconds=0.1, tries_max=100)
    world.supervisor.start("projector", restarts=restarts)
    await world.supervisor.wait_ready("projector")
    for number in range(72):
        await world.append(history(number))
        if number % 20 == 3:
            await world.append_raw(number % 4, Outgoing(b"nobody", b"x", (), 5))
        if number % 9 == 8:
            await asyncio.sleep(rng.random() / 4)
            world.supervisor.kill("projector")
            await world.supervisor.wait_ready("projector")
    await world.published()
    await assert_effects_are_the_events(world)


async def test_effects_that_cannot_be_published_are_told_later_and_keep_nothing_waiting(
    world: EffectsWorld, fresh_database: str
) -> None:
    """Rows are committed and nothing is published until the process dies: its successor finds them in `events`."""
    world.supervisor.start("projector", {"THREADLOG_PROJECTOR_EFFECTS": "false"})
    for number in range(100, 120):
        await world.append(history(number))
    await world.shown()
    told = sum([len(first_copies(effects)) for effects in (await world.effects()).values()])
    assert told + sum([len(history(number).records) for number in range(100, 120)]) == sum(
        map(len, (await world.events()).values())
    )
    world.supervisor.kill("projector")
    await world.supervisor.stop("projector")
    world.supervisor.start("projector")
    await world.published()
    await assert_effects_are_the_events(world)
    # A rebuild, and views that are dropped, publish nothing again.
    before = {partition: len(effects) for partition, effects in (await world.effects()).items()}
    await rebuild(world.log, fresh_database, settings_of(fresh_database), lambda _: None)
    await drop_views(fresh_database, settings_of(fresh_database))
    await world.append(history(120))
    await world.shown()
    await world.published()
    copies = await assert_effects_are_the_events(world)
    after = {partition: len(effects) for partition, effects in (await world.effects()).items()}
    assert sum(after.values()) - sum(before.values()) == len(history(120).records)
    # Without any stored position it goes on after the last effect of the topic.
    await world.supervisor.stop("projector")
    await world.connection.execute("truncate threadlog.relay_positions")
    await world.append(history(121))
    world.supervisor.start("projector")
    await world.published()
    assert await assert_effects_are_the_events(world) == copies


async def counted(world: EffectsWorld) -> None:
    """All effects that are on the topic now are in windows."""
    tps = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    ends = {tp.partition: end for tp, end in (await world.log.end_offsets(tps)).items() if end}
    await world.reached('select "partition", next_offset from threadlog.window_positions', ends)


async def assert_windows_are_the_events(world: EffectsWorld) -> None:
    await world.published()
    await counted(world)
    wanted, found = await counts(world.connection, COUNTED), await counts(world.connection, CELLS)
    assert found == wanted
    assert sum(of_minute.get("inputs", 0) for of_minute in found.values()) > 0


async def test_windows_equal_a_count_over_events_whatever_becomes_of_their_worker(world: EffectsWorld) -> None:
    rng = random.Random(7)
    restarts = Restarts(first_seconds=0.05, most_seconds=0.1, tries_max=100)
    supervisor = world.supervisor
    supervisor.start("projector")
    supervisor.start("rollups", restarts=restarts)
    for number in range(200, 248):
        await world.append(history(number, hours=number % 5))
        await asyncio.sleep(0.02)
        if number % 12 == 5:
            await world.connection.execute(BREAK_CONNECTIONS)
        if number % 12 == 11:
            await supervisor.wait_ready("rollups")
            await asyncio.sleep(rng.random())
            supervisor.kill("rollups")
    await assert_windows_are_the_events(world)
    before = await cells(world.connection)

    # From nothing: no cells, no positions.
    await supervisor.stop("rollups")
    await world.connection.execute("truncate threadlog.window_cells, threadlog.window_positions")
    supervisor.start("rollups", restarts=restarts)
    await counted(world)
    assert await cells(world.connection) == before

    # Every effect comes once more: the cells know what they have counted.
    await supervisor.stop("rollups")
    await world.connection.execute("truncate threadlog.window_positions")
    supervisor.start("rollups", restarts=restarts)
    await counted(world)
    assert await cells(world.connection) == before

    # A second worker takes partitions over, and goes.
    second = supervisor.start("rollups", instance="2", restarts=restarts)
    await supervisor.wait_ready(second)
    for number in range(248, 260):
        await world.append(history(number))
    await assert_windows_are_the_events(world)
    supervisor.kill(second)
    await supervisor.stop(second)
    for number in range(260, 266):
        await world.append(history(number))
    await assert_windows_are_the_events(world)


async def test_the_reader_of_the_documentation_counts_each_turn_once(world: EffectsWorld, tmp_path: Path) -> None:
    """It is killed midway, and reads what the other tests have left on the topic, copies among it."""
    page = (Path(__file__).parents[2] / "docs" / "effects.md").read_text()
    program, file = tmp_path / "reader.py", tmp_path / "mine.db"
    call = f"asyncio.run(count_turns({world.kafka!r}, {str(file)!r}, {PARTITIONS}))"
    program.write_text(page.split("```python\n")[1].split("```")[0] + "\n\n" + call)
    world.supervisor.start("projector")
    for number in range(300, 310):
        await world.append(history(number))
    await world.published()
    wanted: dict[str, int] = {}
    for effects in (await world.effects()).values():
        for effect in first_copies(effects):
            if effect.facts is not None and effect.facts.turn_ms is not None:
                wanted[effect.tenant] = wanted.get(effect.tenant, 0) + 1

    async def counted() -> dict[str, int]:
        with contextlib.suppress(sqlite3.OperationalError):
            return dict(sqlite3.connect(file).execute("select * from turns"))
        return {}

    half = sum(wanted.values()) // 2
    for is_enough in (bool, lambda found: sum(found.values()) > half, lambda found: found == wanted):
        with supervised([sys.executable, str(program)], log=tmp_path / "reader.log", stop_signal=signal.SIGKILL):
            await until(counted, is_enough, SECONDS)
    assert await counted() == wanted
