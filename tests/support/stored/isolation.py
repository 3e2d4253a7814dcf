"""What the database itself lets each role see: a check that says everything it finds, so that whoever takes one of its
rules away can see that it is missed.

`fill` puts rows of two tenants into every table that has a column `tenant`; `offences` then looks at the catalog, and
at every relation through every role's eyes, within the caller's transaction.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final, NamedTuple

import asyncpg

from services.chassis.postgres.roles import (
    EXECUTOR,
    INGEST,
    KEYS,
    MEMBERS,
    OPERATOR,
    PROJECTOR,
    READER,
    ROLES,
    ROLLUPS,
    RUNTIME,
)

TENANTS: Final = ("acme", "umbrella")
OUTSIDE: Final = ("threadlog", "ingest")
"""Schemas beside those of the generations."""
OPEN: Final = ("views.generation",)
"""Views of what belongs to no tenant, which need not ask for their reader's rights."""
SECRET: Final = ("ingest.api_keys",)
"""Tables of tenants that no reader sees."""

VALUES: Final[Mapping[str, str]] = {
    "text": "'x'",
    "int4": "1",
    "int8": "1",
    "float8": "1",
    "numeric": "1",
    "bool": "false",
    "json": "'{}'",
    "jsonb": "'{}'",
    "uuid": "gen_random_uuid()",
    "timestamptz": "now()",
    "bytea": "''",
    "_text": "'{}'",
    "_int8": "'{}'",
    "_int4": "'{}'",
}


class Relation(NamedTuple):
    name: str
    """`schema.name`"""
    is_table: bool
    has_tenant: bool
    is_bound: bool
    """Of a table: its policies bind everybody, its owner too. Of a view: it asks for the rights of who reads it."""


async def relations(connection: asyncpg.Connection) -> list[Relation]:
    rows = await connection.fetch(
        """
        select n.nspname || '.' || c.relname, c.relkind in ('r', 'p'), a.attname is not null,
            case when c.relkind in ('r', 'p') then c.relrowsecurity and c.relforcerowsecurity
                else coalesce(c.reloptions @> array['security_invoker=true'], false) end
        from pg_class as c
        join pg_namespace as n on n.oid = c.relnamespace
        left join pg_attribute as a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
        where c.relkind in ('r', 'p', 'v', 'm')
            and (n.nspname = any ($1::text[]) or n.nspname = 'views' or n.nspname ~ '^views_g[0-9]+$')
        order by 1
        """,
        OUTSIDE,
    )
    return [Relation(*row) for row in rows]


async def fill(connection: asyncpg.Connection) -> None:
    """A row per tenant in each table of tenants; of calls, one that waits and one that is unknown."""
    await connection.execute("set session_replication_role = replica")  # rows stand for themselves: no foreign keys
    for table in await relations(connection):
        if not table.is_table or not table.has_tenant:
            continue
        columns = await connection.fetch(
            """
            select column_name, udt_name from information_schema.columns
            where table_schema || '.' || table_name = $1 and column_name <> 'tenant' and is_nullable = 'NO'
            """,
            table.name,
        )
        names = ", ".join(f'"{row["column_name"]}"' for row in columns)
        for number, tenant in enumerate(TENANTS, start=1):
            # Tables whose keys do not begin with the tenant get other values for each.
            values = [
                f"'{tenant}'"
                if row["udt_name"] == "text"
                else f"{number}"
                if row["udt_name"] in {"int4", "int8"}
                else None
                for row in columns
            ]
            given = ", ".join(value or VALUES[row["udt_name"]] for value, row in zip(values, columns, strict=True))
            await connection.execute(f"insert into {table.name} (tenant, {names}) values ('{tenant}', {given})")
    for schema in {table.name.partition(".")[0] for table in await relations(connection) if "views_g" in table.name}:
        await connection.execute(f"update {schema}.tool_calls set status = 'waiting'")
        await connection.execute(
            f"""insert into {schema}.tool_calls select (jsonb_populate_record(c, '{{"call": "2", "index": 9, "status": "unknown"}}')).*
            from {schema}.tool_calls as c"""
        )
    await connection.execute("reset session_replication_role")


async def offences(connection: asyncpg.Connection, within: Collection[str] | None = None) -> list[str]:
    """In a transaction of the caller, as somebody whom no policy binds. `within` some relations, or all."""
    found = await _of_roles(connection)
    for relation in await relations(connection):
        if within is not None and relation.name not in within:
            continue
        if relation.is_table:
            if relation.has_tenant:
                found += await _of_table(connection, relation)
        elif not relation.is_bound and relation.name not in OPEN:
            found.append(f"the view {relation.name} does not ask for the rights of who reads it")
        if relation.has_tenant:
            found += await _of_reads(connection, relation)
    return found


async def _of_roles(connection: asyncpg.Connection) -> list[str]:
    found = [
        f"the role {row['rolname']} may do anything"
        for row in await connection.fetch(
            """select rolname from pg_roles where rolname = any ($1::text[])
            and (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolcanlogin
                 or rolbypassrls <> (rolname = $2))""",
            ROLES,
            PROJECTOR,
        )
    ]
    members = await connection.fetch(
        """select held.rolname, holder.rolname from pg_auth_members as m
        join pg_roles as held on held.oid = m.roleid join pg_roles as holder on holder.oid = m.member
        where holder.rolname = any ($1::text[])""",
        ROLES,
    )
    found += [f"the role {holder} is a member of {held}" for held, holder in members if (held, holder) not in MEMBERS]
    owners = await connection.fetch(
        """select distinct r.rolname from pg_shdepend as d join pg_roles as r on r.oid = d.refobjid
        where d.refclassid = 'pg_authid'::regclass and d.deptype = 'o' and r.rolname = any ($1::text[])""",
        ROLES,
    )
    return found + [f"the role {row['rolname']} owns something" for row in owners if row["rolname"] != PROJECTOR]


async def _of_table(connection: asyncpg.Connection, table: Relation) -> list[str]:
    """Forced: its owner sees no more than others, if the owner may not bypass row security."""
    if not table.is_bound:
        return [f"the policies of {table.name} do not bind everybody"]
    async with _undone(connection):
        await connection.execute("create role threadlog_test_owner")
        await connection.execute(
            f"grant usage, create on schema {table.name.partition('.')[0]} to threadlog_test_owner"
        )
        await connection.execute(f"alter table {table.name} owner to threadlog_test_owner")
        await connection.execute("set local role threadlog_test_owner")
        if await connection.fetchval(f"select count(*) from {table.name}"):
            return [f"an owner of {table.name} sees rows of tenants"]
    return []


async def _of_reads(connection: asyncpg.Connection, relation: Relation) -> list[str]:
    sees: dict[str, frozenset[str]] = {}
    for who in (*TENANTS, "nobody", "", "acme' or true --"):
        statement = "" if who == "nobody" else f"set local app.tenant_id = {_quoted(who)}"
        sees[f"{READER} for {who!r}"] = await _seen(connection, relation, READER, statement)
    for role in (OPERATOR, RUNTIME, EXECUTOR, INGEST, ROLLUPS, KEYS):
        sees[role] = await _seen(connection, relation, role, "")
    expected = dict.fromkeys(sees, frozenset[str]()) | _expected(relation)
    return [
        f"{who} sees rows of {sorted(tenants) or 'nobody'} in {relation.name} instead of {sorted(expected[who]) or 'nobody'}"
        for who, tenants in sees.items()
        if tenants != expected[who]
    ]


def _expected(relation: Relation) -> dict[str, frozenset[str]]:
    everybody = frozenset(TENANTS)
    if relation.name in SECRET:
        return dict.fromkeys((INGEST, KEYS), everybody)
    expected = {f"{READER} for {tenant!r}": frozenset((tenant,)) for tenant in TENANTS} | {OPERATOR: everybody}
    name = relation.name.partition(".")[2]
    if name in {"imports", "import_files"}:
        expected[INGEST] = everybody
    if name == "window_cells":
        expected[ROLLUPS] = everybody
    if name in {"thread_states", "threads", "items", "turns", "steps"}:
        expected[RUNTIME] = everybody
    if name == "thread_states":
        expected[EXECUTOR] = everybody
    return expected


async def _seen(connection: asyncpg.Connection, relation: Relation, role: str, statement: str) -> frozenset[str]:
    """The tenants whose rows a role sees; nobody's where it may not even ask."""
    try:
        async with _undone(connection):
            await connection.execute(f"set local role {role}")
            if statement:
                await connection.execute(statement)
            rows = await connection.fetch(f"select distinct tenant from {relation.name}")
    except asyncpg.InsufficientPrivilegeError:
        return frozenset()
    return frozenset(row["tenant"] for row in rows)


@contextlib.asynccontextmanager
async def _undone(connection: asyncpg.Connection) -> AsyncIterator[None]:
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
