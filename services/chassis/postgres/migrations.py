"""Forward-only migrations of what is not a view: numbered `.sql` files beside the service that owns the tables.

A file is named `0001_what_it_does.sql`; numbers start at 1 and have no gaps. Each file runs in one transaction together
with the row that records it. So if the process dies between two files, the next run continues with the second one; it
never meets half a file. An applied file never changes: its checksum is compared on every run. Running again is
idempotent by that table, and running at the same time from several places is safe by an advisory lock.

Roles are created first, because migrations may grant to them. The files in the folder `always` run last, on every run:
grants and policies, which can be given again.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg

from services.chassis.errors import SetupError
from services.chassis.postgres.roles import create_roles
from services.chassis.postgres.sql_files import SqlFiles

MIGRATIONS: Final[Mapping[str, Path]] = {
    owner: Path(__file__).parents[2] / owner / "migrations" for owner in ("projector", "ingest")
}
"""The folder of each owner, in the order in which they are applied."""

ADVISORY_LOCK: Final = 0x7468_7265_6164  # "thread"
"""One number for all runners on a database. Postgres releases the lock when a runner's connection ends."""
_FILE = re.compile(r"(\d{4})_[a-z0-9_]+")
_MADE_OR_DROPPED = re.compile(r"(?im)^(create|drop) (?:table|view) (?:if (?:not )?exists )?([a-z_]+\.[a-z_]+)")


class MigrationError(SetupError):
    """The files and what the database has of them do not match."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration is one file."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """The checksum that is stored when the file is applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return self.name


def read_migrations(folder: Path) -> tuple[Migration, ...]:
    """Return the migrations of a folder in their order. Raise MigrationError if a name or a number is wrong."""
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
    """Apply what is missing; return the names of what was applied now.

    `connection` must not be in a transaction: each file has its own. Raise MigrationError or RolesError.
    """
    migrations = read_migrations(folder)
    sql = _sql()
    always = [path.read_text() for path in sorted((folder / "always").glob("*.sql"))]
    await connection.execute(sql["migrations_lock"], ADVISORY_LOCK)
    try:
        await create_roles(connection)
        await connection.execute(sql["migrations_schema"])
        await connection.execute(sql["migrations_table"])
        applied = await connection.fetch(sql["migrations_applied"], owner)
        missing = missing_migrations(owner, migrations, [(row["name"], row["sha256"]) for row in applied])
        await _check_halves(connection, owner, migrations[: len(applied)], missing)
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
        if not connection.is_closed():
            await connection.execute(sql["migrations_unlock"], ADVISORY_LOCK)
    return tuple(migration.name for migration in missing)


async def check_migrations(connection: asyncpg.Connection, owner: str, folder: Path) -> None:
    """Raise MigrationError unless the database is as this version would leave it."""
    migrations = read_migrations(folder)
    applied = await connection.fetch(_sql()["migrations_applied"], owner)
    missing = missing_migrations(owner, migrations, [(row["name"], row["sha256"]) for row in applied])
    await _check_halves(connection, owner, migrations[: len(applied)], missing)
    if missing:
        raise MigrationError(f"the database lacks {', '.join(map(str, missing))} of {owner}; run `threadlog migrate`")


async def _check_halves(
    connection: asyncpg.Connection, owner: str, applied: Sequence[Migration], missing: Sequence[Migration]
) -> None:
    """Raise MigrationError if tables and recorded migrations contradict each other.

    A migration and its row are written in one transaction, so one without the other was made by hand. What to do about
    it depends on which was meant, and only a person knows that.
    """
    made = made_by(applied)
    ahead = {name: migration for name, migration in made_by(missing).items() if name not in made}
    rows = await connection.fetch(_sql()["migrations_objects"], [*made, *ahead])
    there = {row["name"] for row in rows}
    for name, migration in made.items():
        if name not in there:
            forget = f"delete from threadlog.migrations where owner = '{owner}' and number >= {migration.number}"  # noqa: S608 - for people to run
            raise MigrationError(
                f"threadlog.migrations says that {migration} of {owner} was applied, but {name} is not there; restore "
                f"it from a backup, or drop what {owner}'s migrations from there on have made, `{forget}`, and run "
                "`threadlog migrate`, which makes it anew and empty"
            )
    for name, migration in ahead.items():
        if name in there:
            row = f"'{owner}', {migration.number}, '{migration}', '{migration.sha256}'"
            remember = f"insert into threadlog.migrations (owner, number, name, sha256) values ({row})"  # noqa: S608 - as above
            raise MigrationError(
                f"{name} is there, but threadlog.migrations does not say that {migration} of {owner} was applied; drop "
                f"it and run `threadlog migrate`, or, if it is as that file makes it, `{remember}`"
            )


def made_by(migrations: Iterable[Migration]) -> dict[str, Migration]:
    """Return the tables and views, as `schema.name`, that exist after these migrations, with the one that made each."""
    made: dict[str, Migration] = {}
    for migration in migrations:
        for verb, name in _MADE_OR_DROPPED.findall(migration.sql):
            if verb.lower() == "create":
                made[name] = migration
            else:
                made.pop(name, None)
    return made


def missing_migrations(
    owner: str, migrations: Sequence[Migration], applied: Sequence[tuple[str, str]]
) -> Sequence[Migration]:
    """Return the migrations that the database lacks.

    `applied` are name and sha256 of each that it has, in order. Raise MigrationError if one of them differs from its
    file, or if the database has migrations that this version does not know.
    """
    for (name, sha256), migration in zip(applied, migrations, strict=False):
        if name != migration.name or sha256 != migration.sha256:
            raise MigrationError(
                f"migration {name} of {owner} was applied with other content than {migration.name}.sql has now; "
                "put the file back and write a new one for the change"
            )
    if len(applied) > len(migrations):
        raise MigrationError(
            f"the database is newer than this version of threadlog: it has {applied[-1][0]} of {owner}, which is not "
            "known here; run the newer version"
        )
    return migrations[len(applied) :]


@cache
def _sql() -> SqlFiles:
    return SqlFiles(Path(__file__).with_name("sql"))
