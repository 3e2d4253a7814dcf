"""Whether the views, after all that happened to them, are what a fold from the beginning of the log gives."""

import asyncio
from collections.abc import Mapping

import asyncpg

from schemas.ids import ThreadKey
from schemas.state import dump_state
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.settings import Settings
from services.projector.generations.generations import live_generation, view_checksums
from services.projector.rebuilding.rebuild import rebuild
from services.projector.settings import ProjectorSettings
from tests.chaos.verdict import ThreadStory

LOOK_SECONDS = 0.2
DIFFERENCES_MAX = 20


async def wait_for_views(dsn: str, ends: Mapping[int, int], seconds: float) -> list[str]:
    """Until they hold the log to these ends. What they do not hold in time."""
    behind = ["never looked"]
    try:
        async with asyncio.timeout(seconds):
            connection = await asyncpg.connect(dsn)
            try:
                while behind:
                    rows = await connection.fetch('select "partition", next_offset from views.positions')
                    stored = {row[0]: row[1] for row in rows}
                    behind = [
                        f"partition {at}: the views are at {stored.get(at)}, the log at {end}"
                        for at, end in ends.items()
                        if stored.get(at, 0) < end
                    ]
                    if behind:
                        await asyncio.sleep(LOOK_SECONDS)
            finally:
                connection.terminate()
    except TimeoutError:
        return behind
    return []


async def view_differences(log: KafkaLog, settings: Settings, stories: Mapping[ThreadKey, ThreadStory]) -> list[str]:
    """Against our own fold of the log, and against a generation that is built from offset 0 now, row for row."""
    dsn = settings.postgres_dsn
    connection = await asyncpg.connect(dsn)
    try:
        differences = await _state_differences(connection, stories)
        before = await live_generation(connection)
        assert before is not None, "the services ran"
        projector = ProjectorSettings(
            kafka_bootstrap_servers=settings.kafka_bootstrap_servers, postgres_dsn=dsn, instance="chaos"
        )
        after = await rebuild(log, dsn, projector, lambda _: None, keep_old=True)
        old = await view_checksums(connection, before.schema)
        new = await view_checksums(connection, after.schema)
        for name, (rows, checksum) in new.items():
            if old[name] != (rows, checksum):
                differences.append(f"{name}: {old[name][0]} rows, a fresh build has {rows}, and their checksums differ")
                differences += await _row_differences(connection, name, before.schema, after.schema)
    finally:
        await connection.close()
    return differences


async def _state_differences(connection: asyncpg.Connection, stories: Mapping[ThreadKey, ThreadStory]) -> list[str]:
    rows = await connection.fetch("select tenant, thread, state::text from views.thread_states")
    stored = {(tenant, thread): state for tenant, thread, state in rows}
    differences = []
    for key, story in stories.items():
        if stored.pop((key.tenant, key.thread), None) != dump_state(story.state).decode():
            differences.append(f"the stored state of {key} is not that of a fold from the beginning")
    differences += [f"the views have a state of {key}, of which the log has no record" for key in stored]
    return differences


async def _row_differences(connection: asyncpg.Connection, table: str, old: str, new: str) -> list[str]:
    columns = 'topic, "partition", next_offset, cluster_id' if table == "positions" else "*"
    found = []
    for one, other, where in ((old, new, "live"), (new, old, "fresh")):
        rows = await connection.fetch(
            f"select r::text from (select {columns} from {one}.{table}) r except all "
            f"select r::text from (select {columns} from {other}.{table}) r limit {DIFFERENCES_MAX}"
        )
        found += [f"  only {where}: {row[0][:300]}" for row in rows]
    return found
