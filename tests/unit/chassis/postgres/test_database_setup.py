"""What a person is told of each thing that a database may have against a service."""

import asyncio
import errno
import socket

import asyncpg
import pytest

from services.chassis.postgres.database_setup import DatabaseAwayError, DatabaseSetupError, connect, explain, target
from services.chassis.postgres.migrations import Migration, made_by
from services.chassis.postgres.roles import RolesError, check_version
from services.chassis.settings import Settings

PASSWORD = "s3cret"
DSN = f"postgresql://ann:{PASSWORD}@db.example:5433/threads"
ROLE = "threadlog_ingest"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncpg.InvalidPasswordError("password authentication failed"), "db.example:5433 does not let ann in"),
        (asyncpg.InvalidAuthorizationSpecificationError('role "ann" does not exist'), "correct user or password"),
        (asyncpg.InvalidCatalogNameError("no"), "db.example:5433 has no database threads; create it"),
        (asyncpg.InvalidParameterValueError('role "threadlog_ingest" does not exist'), "has no role threadlog_ingest"),
        (
            asyncpg.InsufficientPrivilegeError('permission denied to set role "threadlog_reader"'),
            "the login ann is no member of the role threadlog_reader: let an administrator `grant threadlog_reader to ann`",
        ),
        (
            asyncpg.InsufficientPrivilegeError("permission denied for schema views"),
            "let its owner run `threadlog migrate`",
        ),
        (asyncpg.UndefinedTableError("no"), "the database threads has no threadlog tables; run `threadlog migrate`"),
        (asyncpg.InvalidSchemaNameError("no"), "run `threadlog migrate`"),
        (asyncpg.DiskFullError("no\nHINT: more"), "the disk of the database at db.example:5433 is full; free some"),
        (asyncpg.ReadOnlySQLTransactionError("no"), "a standby that takes no writes; name the primary"),
        (asyncpg.TooManyConnectionsError("sorry"), "no connection left (sorry)"),
        (TimeoutError(), "does not answer within 5 s"),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "no"),
            "no database answers at db.example:5433 (Connection refused)",
        ),
        (OSError("Multiple exceptions: [Errno 111] …"), "no database answers at db.example:5433 (connection failed)"),
        (socket.gaierror(socket.EAI_NONAME, "no"), "there is no host db.example:5433; correct it"),
        (socket.gaierror(socket.EAI_AGAIN, "no"), "no database answers at db.example:5433"),
        (ValueError(f"of {DSN}"), "THREADLOG_POSTGRES_DSN is no connection string"),
        (asyncpg.DataError("a\nb"), "the database threads at db.example:5433 refuses: a"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_it_is_one_line_that_says_what_to_do(error: Exception, expected: str) -> None:
    said = explain(error, Settings(postgres_dsn=DSN), ROLE)
    assert expected in said
    assert "\n" not in said
    assert PASSWORD not in said


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (DSN, ("ann", "db.example:5433", "threads")),
        ("postgresql://ann@/threads?host=/run/postgres", ("ann", "/run/postgres", "threads")),
        ("postgresql://ann@one:5432,two:5433/threads", ("ann", "one:5432,two:5433", "threads")),
        ("postgresql://ann@[::1]:5433/threads", ("ann", "[::1]:5433", "threads")),
        ("postgresql://ann@db/", ("ann", "db:5432", "ann")),
        ("postgresql://ann@[::1/x", ("?", "?", "?")),
    ],
)
def test_what_a_connection_string_names(
    dsn: str, expected: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPORT", raising=False)
    assert target(dsn) == expected


@pytest.mark.parametrize("dsn", ["nonsense", f"postgresql://ann:{PASSWORD}@127.0.0.1:123456/x", "postgresql://h:0/x"])
async def test_a_text_that_is_no_connection_string(dsn: str) -> None:
    with pytest.raises(DatabaseSetupError, match="no connection string") as raised:
        await connect(Settings(postgres_dsn=dsn), ROLE)
    assert PASSWORD not in str(raised.value)


async def test_a_database_that_is_away_is_no_error_of_the_setup(tmp_path: object) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(DatabaseAwayError, match="no database answers"):
            await connect(Settings(postgres_dsn=f"postgresql://ann@/x?host={tmp_path}"), ROLE)


class Old:
    async def fetchval(self, _query: str) -> int:
        return 140_012


async def test_a_postgres_that_is_too_old_is_refused() -> None:
    with pytest.raises(RolesError, match="this is Postgres 14; threadlog needs 15 or newer"):
        await check_version(Old())  # type: ignore[arg-type]  # all that is asked of a connection


def test_what_migrations_have_made() -> None:
    first = Migration(
        1, "0001_a", "create table a.x (n int);\ncreate view a.v as select 1;\n  create table not_this (n int)"
    )
    second = Migration(
        2, "0002_b", "drop view a.v;\ncreate table if not exists b.y (n int);\nalter table a.x add m int"
    )
    assert made_by([first]) == {"a.x": first, "a.v": first}
    assert made_by([first, second]) == {"a.x": first, "b.y": second}
