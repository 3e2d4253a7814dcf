"""A database that is not as it has to be: every service and every command that works with it ends with one line that
says what to do, and a status that is not 0. One that is merely away is waited for by services, and by nobody else.

All of them are processes as an operator starts them; no broker answers, so none of them gets any further.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import asyncpg
import pytest

from services.chassis.postgres.roles import EXECUTOR, INGEST, PROJECTOR, ROLES, RUNTIME, create_roles
from services.chassis.settings import Settings
from services.cli.database import migrate_all
from services.cli.local.embedded import embedded_postgres, free_port
from tests.conftest import SERVICES as SERVICES_OF_THE_RUN
from tests.support.processes.services import database

SERVICES: Final = ("ingest", "runtime", "tool-executor", "projector")
CREATE_KEY: Final = ("keys", "create", "--tenant", "acme", "--subject", "ann", "--scope", "ops")
COMMANDS: Final = (
    ("rebuild",),
    ("generations", "list"),
    ("verify", "--all"),
    CREATE_KEY,
    ("keys", "revoke", "0123456789abcdef"),
)
NOBODY_ANSWERS: Final = "127.0.0.1:1"
SECRET: Final = "s3cret-of-the-dsn"
SECONDS_MAX: Final = 120


class Ended(NamedTuple):
    what: str
    status: int
    lines: list[str]
    """Of its standard error."""

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


async def run(arguments: Sequence[str], dsn: str, environment: Mapping[str, str]) -> Ended:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.cli", *arguments),
        env={
            **os.environ,
            "THREADLOG_POSTGRES_DSN": dsn,
            "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": NOBODY_ANSWERS,
            "THREADLOG_KAFKA_START_TIMEOUT_SECONDS": "0.5",
            **environment,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(" ".join(arguments), process.returncode, errors.decode().splitlines())


async def services(dsn: str, **environment: str) -> list[Ended]:
    return await asyncio.gather(*[run(("services", "run", name), dsn, environment) for name in SERVICES])


async def commands(dsn: str, *, all_of_them: bool = False) -> list[Ended]:
    """One that works with the views, and one that does not."""
    asked = [*COMMANDS, ("migrate",)] if all_of_them else [COMMANDS[0], CREATE_KEY]
    return await asyncio.gather(*[run(command, dsn, {}) for command in asked])


def assert_said(ended: Sequence[Ended], *expected: str, status: int | None = None) -> None:
    for each in ended:
        assert each.status != 0 if status is None else each.status == status, each
        assert len(each.lines) == 1, (each.what, each.said)
        assert each.lines[0].startswith("threadlog: "), each
        for text in expected:
            assert text in each.lines[0], each
        assert SECRET not in each.said, each


def with_login(dsn: str, login: str) -> str:
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()


@contextlib.asynccontextmanager
async def administering(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def migrated(fresh_database: str) -> str:
    await migrate_all(Settings(postgres_dsn=fresh_database))
    return fresh_database


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("nonsense", "THREADLOG_POSTGRES_DSN is no connection string such as postgresql://user:password@host:5432/"),
        (f"postgresql://u:{SECRET}@127.0.0.1:123456/x", "THREADLOG_POSTGRES_DSN is no connection string"),
    ],
)
async def test_a_text_that_is_no_connection_string(dsn: str, expected: str) -> None:
    assert_said([*await services(dsn), *await commands(dsn)], expected)


async def test_a_database_that_is_away_is_waited_for_by_services_alone() -> None:
    dsn = f"postgresql://ann:{SECRET}@127.0.0.1:{free_port()}/threadlog"
    address = dsn.rpartition("@")[2].partition("/")[0]
    ended = await commands(dsn, all_of_them=True)
    assert_said(ended, f"no database answers at {address}", "THREADLOG_POSTGRES_DSN")
    for each in await services(dsn):
        assert '"event":"database_away"' in each.lines[0], each
        assert f"no database answers at {address}" in each.lines[0], each
        assert "broker_awaited" in each.said, "it went on, to its broker"
        assert SECRET not in each.said


async def test_a_database_that_does_not_exist(postgres_dsn: str) -> None:
    dsn = urlsplit(postgres_dsn)._replace(path="/no_such_database").geturl()
    ended = [*await services(dsn), *await commands(dsn)]
    assert_said(ended, "has no database no_such_database; create it, or correct the name in THREADLOG_POSTGRES_DSN")


async def test_a_database_without_tables(migrated: str, postgres_dsn: str) -> None:
    async with database(postgres_dsn) as empty:  # the server has the roles by now, from the other database
        assert_said(
            [*await services(empty), *await commands(empty)], "has no threadlog tables; run `threadlog migrate`"
        )


async def test_a_login_that_is_no_member_of_the_role(migrated: str) -> None:
    login = "threadlog_test_nobody"
    async with administering(migrated) as connection:
        await connection.execute(f"create role {login} login")
        try:
            ended = await services(with_login(migrated, login))
            for each, role in zip(ended, (INGEST, RUNTIME, EXECUTOR, PROJECTOR), strict=True):
                assert_said([each], f"`grant {role} to {login}`", status=2)
            assert_said(await commands(with_login(migrated, login)), f"to {login}`")
            # Without a role it acts as the login, and that has no rights.
            bare = await services(
                with_login(migrated, login),
                THREADLOG_INGEST_POSTGRES_ROLE="",
                THREADLOG_RUNTIME_POSTGRES_ROLE="",
                THREADLOG_EXECUTOR_POSTGRES_ROLE="",
                THREADLOG_PROJECTOR_POSTGRES_ROLE="",
            )
            assert_said(bare, login, status=2)
            # Members can start: they get as far as the broker.
            for role in (INGEST, RUNTIME, EXECUTOR, PROJECTOR):
                await connection.execute(f"grant {role} to {login}")
            for each in await services(with_login(migrated, login)):
                assert "broker_awaited" in each.said, each
                assert "threadlog: " not in each.said, each
        finally:
            await connection.execute(f"drop role {login}")


async def test_a_migration_that_is_missing(migrated: str) -> None:
    async with administering(migrated) as connection:
        await connection.execute(
            """delete from threadlog.migrations where (owner, number) in
            (select owner, max(number) from threadlog.migrations group by owner)"""
        )
        made = await connection.fetch(
            """select format('drop %s if exists %s cascade', case c.relkind when 'r' then 'table' else 'view' end,
                c.oid::regclass) from pg_class as c
            where c.relnamespace in ('threadlog'::regnamespace, 'ingest'::regnamespace) and c.relkind in ('r', 'v')
                and c.relname not in ('migrations', 'generations', 'relay_positions', 'window_cells', 'window_positions',
                    'api_keys')"""
        )
        for row in made:
            await connection.execute(row[0])
    ended = [*await services(migrated), await run(COMMANDS[0], migrated, {})]
    assert_said(ended, "the database lacks", "run `threadlog migrate`")
    assert (await run(("migrate",), migrated, {})).status == 0


async def test_a_row_of_the_migrations_without_its_table(migrated: str) -> None:
    async with administering(migrated) as connection:
        await connection.execute(
            "drop table ingest.api_keys, ingest.import_files, ingest.imports; drop table threadlog.relay_positions"
        )
    [ingest, *others] = await services(migrated)
    message = "says that 0003_relay_positions of projector was applied, but threadlog.relay_positions is not there"
    ended = [ingest, *others, *await asyncio.gather(run(COMMANDS[0], migrated, {}), run(("migrate",), migrated, {}))]
    assert_said(ended, message, "restore it from a backup")
    async with administering(migrated) as connection:
        await connection.execute("create table threadlog.relay_positions ()")
    assert_said([await run(("services", "run", "ingest"), migrated, {})], "0001_api_keys of ingest", status=2)
    assert_said([await run(("migrate",), migrated, {})], "number >= 1`, and run `threadlog migrate`")
    async with administering(migrated) as connection:
        await connection.execute("delete from threadlog.migrations where owner = 'ingest' and number >= 1")
    assert (await run(("migrate",), migrated, {})).status == 0


async def test_a_table_without_its_row_of_the_migrations(migrated: str) -> None:
    async with administering(migrated) as connection:
        await connection.execute("delete from threadlog.migrations where owner = 'ingest'")
    message = "ingest.api_keys is there, but threadlog.migrations does not say that 0001_api_keys of ingest was applied"
    ended = [await run(("services", "run", "ingest"), migrated, {}), await run(("migrate",), migrated, {})]
    assert_said(ended, message, "insert into threadlog.migrations")
    said = ended[1]
    for _ in range(2):  # each migration of ingest is asked for by itself
        async with administering(migrated) as connection:
            await connection.execute(said.lines[0].rpartition("`insert ")[2].removesuffix("`").join(("insert ", "")))
        said = await run(("migrate",), migrated, {})
    assert said.status == 0


async def test_a_database_that_is_newer(migrated: str) -> None:
    async with administering(migrated) as connection:
        await connection.execute(
            """insert into threadlog.migrations (owner, number, name, sha256)
            values ('projector', 99, '0099_of_the_future', ''), ('ingest', 99, '0099_of_the_future', '')"""
        )
    ended = [*await services(migrated), await run(("migrate",), migrated, {}), await run(COMMANDS[0], migrated, {})]
    assert_said(
        ended, "the database is newer than this version of threadlog: it has 0099_of_the_future", "run the newer"
    )


async def test_a_migration_whose_file_was_changed(migrated: str) -> None:
    async with administering(migrated) as connection:
        await connection.execute("update threadlog.migrations set sha256 = 'x' where number = 1")
    ended = [*await services(migrated), await run(("migrate",), migrated, {})]
    assert_said(ended, "was applied with other content", "put the file back")


# A server of its own: what would disturb others on a shared one


@pytest.fixture
def folder(pytestconfig: pytest.Config) -> Path:
    """Not pytest's own, which only its user may look into: Postgres runs as another one where we are root."""
    return pytestconfig.stash[SERVICES_OF_THE_RUN].new_folder()


@pytest.fixture
def own_server(folder: Path) -> Iterator[str]:
    """It asks everybody but its administrator for a password, and has no roles yet."""
    folder.chmod(0o755)
    rules = folder / "hba.conf"
    rules.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    rules.chmod(0o644)
    with embedded_postgres(folder, options={"hba_file": str(rules)}) as running:
        yield running.address


@pytest.fixture
async def owned_by_ann(own_server: str) -> str:
    """The DSN of its administrator, to an empty database that belongs to a login with a password."""
    async with administering(own_server) as connection:
        await connection.execute(f"create role ann login password '{SECRET}'")
        await connection.execute("create database threadlog owner ann")
    return urlsplit(own_server)._replace(path="/threadlog").geturl()


@pytest.mark.parametrize(("login", "name"), [(f"ann:{SECRET}-not", "ann"), ("ann", "ann"), (f"bob:{SECRET}", "bob")])
async def test_a_login_that_is_refused(owned_by_ann: str, login: str, name: str) -> None:
    """Its password is wrong, or missing, or there is no such login."""
    dsn = with_login(owned_by_ann, login)
    ended = await asyncio.gather(run(("services", "run", "ingest"), dsn, {}), run(("migrate",), dsn, {}))
    assert_said(ended, f"does not let {name} in", "correct user or password in THREADLOG_POSTGRES_DSN")


async def test_migrating_without_being_a_superuser(owned_by_ann: str) -> None:
    ann = with_login(owned_by_ann, f"ann:{SECRET}")
    assert_said(await services(owned_by_ann), "has no role threadlog_", "run `threadlog migrate`, which makes it")
    assert_said([await run(("migrate",), ann, {})], "the login ann may not `create role threadlog_", "administrator")
    async with administering(owned_by_ann) as connection:
        await connection.execute("alter role ann createrole")
        refused = await run(("migrate",), ann, {})
        assert_said([refused], "`create role threadlog_projector nologin noinherit bypassrls`", "administrator")
        for statement in refused.lines[0].split("`")[1:4:2]:  # as it was told
            await connection.execute(statement)
    for _ in range(2):
        migrating = await run(("migrate",), ann, {})
        assert migrating.status == 0, migrating
    app = with_login(owned_by_ann, f"app:{SECRET}")
    async with administering(owned_by_ann) as connection:
        await connection.execute(f"create role app login password '{SECRET}'")
        for role in (INGEST, RUNTIME, EXECUTOR, PROJECTOR, "threadlog_keys"):
            await connection.execute(f"grant {role} to app")
    for each in await services(app):
        assert "broker_awaited" in each.said, each
    key = await run(CREATE_KEY, app, {})
    assert key.status == 0, key


async def test_migrating_with_roles_that_an_administrator_has_made(owned_by_ann: str) -> None:
    login = "ann-of-ops"
    async with administering(owned_by_ann) as connection:
        await create_roles(connection)
        await connection.execute(f'alter role ann rename to "{login}"')
        await connection.execute(f"alter role \"{login}\" password '{SECRET}'")
        dsn = with_login(owned_by_ann, f"{login}:{SECRET}")
        refused = await run(("migrate",), dsn, {})
        assert_said([refused], f"is no member of {PROJECTOR}", "administrator")
        await connection.execute(refused.lines[0].split("`")[1])  # as it was told
    migrating = await run(("migrate",), dsn, {})
    assert migrating.status == 0, migrating


async def test_roles_that_may_do_more_than_they_should(owned_by_ann: str) -> None:
    await migrate_all(Settings(postgres_dsn=owned_by_ann))
    for statement, said in (
        ("alter role threadlog_reader bypassrls", "`alter role threadlog_reader nobypassrls`"),
        ("alter role threadlog_operator superuser", "`alter role threadlog_operator nosuperuser`"),
        (f"grant {PROJECTOR} to threadlog_reader", f"`revoke {PROJECTOR} from threadlog_reader`"),
    ):
        async with administering(owned_by_ann) as connection:
            await connection.execute(statement)
            ingest, migrating = (
                run(("services", "run", "ingest"), owned_by_ann, {}),
                run(("migrate",), owned_by_ann, {}),
            )
            ended = await asyncio.gather(ingest, migrating)
            assert_said(ended, said)
            await connection.execute(ended[0].lines[0].rpartition("`")[0].rpartition("`")[2])
    assert (await run(("migrate",), owned_by_ann, {})).status == 0


async def test_many_databases_of_one_server_migrate_at_once(own_server: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        dsns = [await stack.enter_async_context(database(own_server)) for _ in range(6)]
        await asyncio.gather(*[migrate_all(Settings(postgres_dsn=dsn)) for dsn in dsns for _ in range(2)])
        async with administering(own_server) as connection:
            made = await connection.fetchval("select count(*) from pg_roles where rolname = any ($1::text[])", ROLES)
        assert made == len(ROLES)


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    small = folder / "small"
    small.mkdir()
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=24m,mode=0777", "tmpfs", str(small)]
    if mount is None or unmount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a disk that fills up is a file system of its own, which takes the right to mount one")
    try:
        yield small
    finally:
        subprocess.run([unmount, "--lazy", str(small)], check=True)


async def test_a_disk_that_is_full(own_server: str, small_disk: Path) -> None:
    data = _folder_of_the_server(own_server, small_disk / "tablespace")
    async with administering(own_server) as connection:
        await connection.execute(f"create tablespace small location '{data}'")
        await connection.execute("create database threadlog tablespace small")
    dsn = urlsplit(own_server)._replace(path="/threadlog").geturl()
    filler = small_disk / "filler"
    with fill_up(filler):
        assert_said([await run(("migrate",), dsn, {})], "the disk of the database at", "is full; free some")
    assert (await run(("migrate",), dsn, {})).status == 0
    async with administering(dsn) as connection:
        assert await connection.fetchval("select count(*) from ingest.api_keys") == 0
    with fill_up(filler):
        made = await run(CREATE_KEY, dsn, {})
        assert_said([made], "the disk of the database at", "is full; free some")
        # Services that only read start all the same.
        assert "broker_awaited" in (await run(("services", "run", "runtime"), dsn, {})).said
    assert (await run(CREATE_KEY, dsn, {})).status == 0


def _folder_of_the_server(dsn: str, folder: Path) -> Path:
    folder.mkdir()
    shutil.chown(folder, Path(urlsplit(dsn).query.partition("=")[2]).owner())
    return folder


@contextlib.contextmanager
def fill_up(filler: Path) -> Iterator[None]:
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(4_096))
            file.flush()
    try:
        yield
    finally:
        filler.unlink()
