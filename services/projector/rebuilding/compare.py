"""Comparing two generations at the same position of the log, by checksums per view and tenant.

A checksum does not depend on the order of rows, and the database computes it where the rows are: so a comparison moves
no rows, and names the tenants whose rows differ. `verification.rows` then finds the rows.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import asyncpg

from services.chassis.postgres.sql_files import SqlFiles
from services.projector.generations import schema_sql
from services.projector.generations.generations import TABLES, checksum_columns
from services.projector.settings import ProjectorSettings

NO_TENANT = ""
"""The tenant of rows that have none: positions, and dead letters whose key cannot be read."""


class Checksum(NamedTuple):
    rows: int
    checksum: str
    """A sum over the hashes of the rows with all of their columns."""


class Difference(NamedTuple):
    """One view and tenant whose rows differ. A side without any row is None."""

    view: str
    tenant: str
    """`NO_TENANT` for rows without a tenant."""
    live: Checksum | None
    built: Checksum | None

    def __str__(self) -> str:
        whose = f" of tenant {self.tenant}" if self.tenant else ""
        live, built = (0 if side is None else side.rows for side in (self.live, self.built))
        if live == built:
            return f"{self.view}{whose}: {live} rows in both, with other content"
        return f"{self.view}{whose}: {live} rows in the live generation, {built} in the built one"


Checksums = Mapping[tuple[str, str], Checksum]
"""The checksums by view and tenant."""


async def checksums_by_tenant(connection: asyncpg.Connection, schema: str, settings: ProjectorSettings) -> Checksums:
    """Return the checksums of the views that the generation has. A view that it lacks is left out."""
    checksums: dict[tuple[str, str], Checksum] = {}
    for view in TABLES:
        columns = await connection.fetch(_sql()["view_columns"], f"{schema}.{view}")
        if not columns:
            continue
        # A generation of an older version may lack views and columns: what both have is compared.
        there = {row["attname"] for row in columns}
        compared = schema_sql.columns_or_all([name for name in checksum_columns(view) if name in there])
        query = schema_sql.checksums_by_tenant(schema, view, compared, has_tenants="tenant" in there)
        rows = await connection.fetch(query, timeout=settings.limits.rebuild_seconds_max)
        checksums |= {(view, row[0]): Checksum(row[1], row[2]) for row in rows}
    return checksums


async def differences_between(
    live: asyncpg.Connection,
    live_schema: str,
    built: asyncpg.Connection,
    built_schema: str,
    settings: ProjectorSettings,
) -> list[Difference]:
    """Return where the two generations differ. Each connection decides the snapshot in which its side is read."""
    of_live, of_built = await asyncio.gather(
        checksums_by_tenant(live, live_schema, settings), checksums_by_tenant(built, built_schema, settings)
    )
    return differences(of_live, of_built)


def differences(live: Checksums, built: Checksums) -> list[Difference]:
    """Return the differences, sorted by view and tenant."""
    keys = sorted(live.keys() | built.keys())
    return [Difference(*key, live.get(key), built.get(key)) for key in keys if live.get(key) != built.get(key)]


@cache
def _sql() -> SqlFiles:
    return SqlFiles(Path(__file__).with_name("sql"))
