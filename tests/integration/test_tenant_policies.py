"""Row-level security, where it is: in the database. Every rule is taken away in turn, and is missed."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.roles import INGEST, PROJECTOR, READER
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.settings import Settings
from services.chassis.threads.postgres_states import TenantStates
from services.chassis.threads.states import StatesUnavailableError
from services.cli.database import migrate_all
from services.ingest.database import statements
from services.ingest.streams.history import PostgresHistory
from services.projector.generations.generations import create_generation, ensure_live
from services.projector.settings import ProjectorSettings
from tests.support.stored.isolation import TENANTS, Relation, fill, offences, relations

SQL = statements()
WRITES = re.compile(r"(?im)^(?:insert|update|delete)\b")
"""What imports write about their jobs, which are no rows of the views."""
GIVEN: dict[str, Any] = {
    "text": "1.1.1",
    "int4": 0,
    "int8": 0,
    "bool": False,
    "jsonb": None,
    "timestamptz": None,
    "date": None,
    "uuid": UUID(int=0),
    "uuid[]": [UUID(int=0)],
    "text[]": None,
}


@pytest.fixture
async def connection(fresh_database: str) -> AsyncIterator[asyncpg.Connection]:
    """To a live generation and one beside it, with rows of two tenants everywhere; as an administrator."""
    await migrate_all(Settings(postgres_dsn=fresh_database))
    await ensure_live(fresh_database, ProjectorSettings(postgres_dsn=fresh_database), "cluster")
    opened = await asyncpg.connect(fresh_database)
    try:
        async with opened.transaction():
            await opened.execute(f"set local role {PROJECTOR}")
            await create_generation(opened, "cluster")
        await fill(opened)
        yield opened
    finally:
        await opened.close()


async def test_nobody_sees_more_than_they_should(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        assert await offences(connection) == []


async def test_the_check_looks_at_every_view_and_table(connection: asyncpg.Connection) -> None:
    looked_at = {relation.name for relation in await relations(connection) if relation.has_tenant}
    views = {"approvals", "artifacts", "dead_letters", "events", "items", "plans", "tasks", "thread_states", "threads"}
    views |= {"steps", "tool_calls", "turns", "unknown_calls", "usage"}
    assert {f"{schema}.{name}" for schema in ("views", "views_g1", "views_g2") for name in views} <= looked_at
    assert "ingest.api_keys" in looked_at


async def test_each_rule_is_missed_when_it_is_taken_away(connection: asyncpg.Connection) -> None:
    kept, tried = [], 0
    for name, statement in await rules_to_take_away(connection):
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(statement)
            tried += 1
            if not await offences(connection, {name}):
                kept.append(statement)
        finally:
            await transaction.rollback()
    assert kept == []
    assert tried > 100, "two generations of tables and views, with two policies and more each"


async def rules_to_take_away(connection: asyncpg.Connection) -> list[tuple[str, str]]:
    """The relation that a rule is about, and the statement that takes it away."""
    policies = await connection.fetch(
        "select schemaname || '.' || tablename, policyname from pg_policies order by 1, 2"
    )
    statements = [(table, f"drop policy {policy} on {table}") for table, policy in policies]
    for relation in await relations(connection):
        statements += [(relation.name, statement) for statement in _of_relation(relation)]
    of_roles = [
        f"alter role {READER} bypassrls",
        f"alter role {READER} superuser",
        f"alter role {READER} login",
        f"grant {PROJECTOR} to {READER}",
        f"create table public.own (); alter table public.own owner to {READER}",
    ]
    return statements + [("none", statement) for statement in of_roles]


def _of_relation(relation: Relation) -> list[str]:
    if not relation.has_tenant:
        return []
    if not relation.is_table:
        return [f"alter view {relation.name} set (security_invoker = false)"]
    return [
        f"alter table {relation.name} disable row level security",
        f"alter table {relation.name} no force row level security",
        f"create policy of_everybody on {relation.name} using (true); grant select on {relation.name} to public",
    ]


async def test_a_statement_that_names_another_tenant_gets_nothing(
    connection: asyncpg.Connection, fresh_database: str
) -> None:
    """Every statement of ingest that reads a tenant's rows, with a tenant that is not the transaction's."""
    pool = await open_pool(
        fresh_database,
        application_name="test",
        size_min=0,
        size_max=1,
        command_timeout_seconds=10,
        connect_timeout_seconds=10,
        role=INGEST,
    )
    rows, differ = TenantPool(pool), []
    statements = {
        name: text
        for name, text in SQL.items()
        if "tenant = $1" in text and not name.startswith("ops_") and not WRITES.search(text)
    }
    try:
        for name, text in statements.items():
            types = [each.name for each in (await connection.prepare(text)).get_parameters()]
            given = [GIVEN[kind] for kind in types[1:]]
            if types[-1] == "int8":
                given[-1] = 100  # how many rows at most
            if types[1:2] == ["text"]:
                given[0] = TENANTS[0]  # `fill` names a tenant's thread like the tenant
            if "split_part($3" in text:
                given[1] = "1.1.0"  # the id of a call
            own = await rows.fetch(TENANTS[0], text, TENANTS[0], *given)
            foreign = await rows.fetch(TENANTS[1], text, TENANTS[0], *given)
            nobodys = await rows.fetch(TENANTS[1], text, "nobody", *given)
            if foreign != nobodys:
                differ.append(name)
            if own != nobodys:
                statements[name] = ""
    finally:
        pool.terminate()
    assert differ == []
    assert sum(text == "" for text in statements.values()) >= 8, "most of them find something for the owner"


async def test_a_tenant_that_asks_for_much_leaves_connections_to_the_others(
    connection: asyncpg.Connection, fresh_database: str
) -> None:
    pool = await open_pool(
        fresh_database,
        application_name="test",
        size_min=0,
        size_max=3,
        command_timeout_seconds=60,
        connect_timeout_seconds=30,
        role=INGEST,
    )
    busy, quiet = TENANTS
    tenants = TenantPool(pool, per_tenant_max=2)
    # Each holds its connection until the lock is free, which it is at the end.
    lock = "select pg_advisory_xact_lock_shared(7)"
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(7)")
            asked = [asyncio.create_task(tenants.fetch(busy, lock)) for _ in range(6)]
            async with asyncio.timeout(30):
                for _ in range(3):
                    await tenants.fetch(quiet, "select 1")
            for task in asked[:4]:
                task.cancel()
            await asyncio.wait(asked[:4])
            assert not asked[4].done() and not asked[5].done()
        async with asyncio.timeout(30):
            await asyncio.gather(*asked[4:])
            assert len(await tenants.fetch(busy, "select 1")) == 1
    finally:
        pool.terminate()
    assert not tenants._shares


async def test_streams_wait_no_longer_for_a_connection_than_for_a_query(
    connection: asyncpg.Connection, fresh_database: str
) -> None:
    pool = await open_pool(
        fresh_database,
        application_name="test",
        size_min=0,
        size_max=1,
        command_timeout_seconds=60,
        connect_timeout_seconds=30,
        role=INGEST,
    )
    tenants, key = TenantPool(pool), ThreadKey(TenantId(TENANTS[0]), ThreadId("thread"))
    try:
        async with pool.acquire(), asyncio.timeout(30):
            with pytest.raises(StatesUnavailableError):
                await PostgresHistory(tenants, 0.1).page_of(key, 0, 10, applied_only=False)
            with pytest.raises(StatesUnavailableError):
                await TenantStates(tenants, 0.1).load_threads("thread-events", 0, [key])
        await PostgresHistory(tenants, 30).page_of(key, 0, 10, applied_only=False)
    finally:
        pool.terminate()


async def test_a_reader_changes_nothing_and_does_not_get_round_its_policies(connection: asyncpg.Connection) -> None:
    for statement in (
        "insert into views.threads (tenant, thread) values ('acme', 'x')",
        "update views.threads set title = 'x'",
        "delete from views_g1.threads",
        "truncate views_g1.threads",
        "alter table views_g1.threads disable row level security",
        "drop policy of_its_tenant on views_g1.threads",
        "set local row_security = off; select * from views.threads",
        f"set session authorization {READER}; set role {PROJECTOR}",
        "select * from ingest.api_keys",
        "create table views.more (n int)",
        "select pg_read_file('postgresql.conf')",
    ):
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(f"set local role {READER}; set local app.tenant_id = 'acme'")
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
                await connection.execute(statement)
        finally:
            await transaction.rollback()
            await connection.execute("reset session authorization")


async def test_generations_from_before_there_were_roles_are_bound(
    connection: asyncpg.Connection, fresh_database: str
) -> None:
    """As the version before left them: made by the login itself, open to whoever had been let in."""
    policies = await connection.fetch(
        "select schemaname || '.' || tablename, policyname from pg_policies where schemaname like 'views%'"
    )
    for table, policy in policies:
        await connection.execute(f"drop policy {policy} on {table}")
    for relation in await relations(connection):
        if not relation.name.startswith("views") or relation.name == "views.generation":
            continue
        await connection.execute(f"revoke all on {relation.name} from {READER}, threadlog_operator, {INGEST}")
        if relation.is_table:
            await connection.execute(f"alter table {relation.name} owner to current_user")
            await connection.execute(f"alter table {relation.name} disable row level security")
            await connection.execute(f"alter table {relation.name} no force row level security")
        else:
            await connection.execute(f"alter view {relation.name} owner to current_user")
            await connection.execute(f"alter view {relation.name} reset (security_invoker)")
    for number in (1, 2):
        await connection.execute(f"alter schema views_g{number} owner to current_user")
    async with connection.transaction():
        assert len(await offences(connection)) > 50
    await migrate_all(Settings(postgres_dsn=fresh_database))
    async with connection.transaction():
        assert await offences(connection) == []


def test_policies_are_made_where_they_are_made_again() -> None:
    """With every generation, or with every migration: not in a numbered file, which would be left as it was."""
    files = [path for path in Path("services").rglob("*.sql") if "create policy" in path.read_text()]
    assert len(files) >= 2
    assert [path for path in files if path.parent.name != "always" and path.name != "policies.sql"] == []
