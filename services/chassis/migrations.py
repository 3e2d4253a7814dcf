"""Forward-only migrations of what is not a view: numbered `.sql` files beside the service that owns the tables.

A file is named `0001_what_it_does.sql`; numbers start at 1 and have no gaps. Each runs in one transaction together with
the row that says so. An applied file never changes: its checksum is compared on every run. Idempotent by that table,
and safe to run at the same time from several places by an advisory lock.

Before them come the roles, which they may grant to; after them, every time, the files in the folder `always`: grants
and policies, which can be given again.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from schemas.errors import ThreadlogError
from services.chassis.roles import create_roles
from services.chassis.sql_files import SqlFiles

ADVISORY_LOCK: Final = 0x7468_7265_6164  # "thread"
_FILE = re.compile(r"(\d{4})_[a-z0-9_]+")


class MigrationError(ThreadlogError):
    """The files and what the database has of them do not fit together."""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def read_migrations(folder: Path) -> tuple[Migration, ...]:
    migrations: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.stem)
        if match is None or int(match[1]) != len(migrations) + 1:
            raise MigrationError(
                f"{path} must be named {len(migrations) + 1:04}_words_in_lower_case.sql: numbers have no gaps"
            )
        migrations.append(Migration(int(match[1]), path.stem, path.read_text()))
    return tuple(migrations)


async def migrate(connection: asyncpg.Connection, owner: str, folder: Path) -> tuple[str, ...]:
    """Apply what is missing; return the names of what was applied now. `connection` must not be in a transaction."""
    migrations = read_migrations(folder)
    always = [path.read_text() for path in sorted((folder / "always").glob("*.sql"))]
    sql = SqlFiles(Path(__file__).with_name("sql"))
    await connection.execute(sql["migrations_lock"], ADVISORY_LOCK)
    try:
        await create_roles(connection)
        await connection.execute(sql["migrations_schema"])
        await connection.execute(sql["migrations_table"])
        applied = await connection.fetch(sql["migrations_applied"], owner)
        missing = missing_migrations(owner, migrations, [(row["name"], row["sha256"]) for row in applied])
        for migration in missing:
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(
                    sql["migrations_insert"], owner, migration.number, migration.name, migration.sha256
                )
        for grants in always:
            async with connection.transaction():
                await connection.execute(grants)
    finally:
        await connection.execute(sql["migrations_unlock"], ADVISORY_LOCK)
    return tuple(migration.name for migration in missing)


def missing_migrations(
    owner: str, migrations: Sequence[Migration], applied: Sequence[tuple[str, str]]
) -> Sequence[Migration]:
    """`applied`: name and sha256 of each that the database has, in order. Raise MigrationError where they differ."""
    for (name, sha256), migration in zip(applied, migrations, strict=False):
        if name != migration.name or sha256 != migration.sha256:
            raise MigrationError(
                f"migration {name} of {owner} was applied with other content than {migration.name}.sql has now; "
                "put the file back and write a new one for the change"
            )
    if len(applied) > len(migrations):
        raise MigrationError(
            f"the database has {applied[-1][0]} of {owner}, which this version does not know; run the newer version"
        )
    return migrations[len(applied) :]
