"""Whether two generations at the same position hold the same rows, by view and tenant."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import asyncpg

from services.projector.generations.generations import CHECKSUM, TABLES, checksum_columns
from services.projector.settings import ProjectorSettings

NO_TENANT = ""


class Checksum(NamedTuple):
    rows: int
    checksum: str
    """Over all columns, whatever the order of the rows."""


class Difference(NamedTuple):
    view: str
    tenant: str
    """Empty for rows that are of no tenant."""
    live: Checksum | None
    built: Checksum | None

    def __str__(self) -> str:
        whose = f" of tenant {self.tenant}" if self.tenant else ""
        live, built = (0 if side is None else side.rows for side in (self.live, self.built))
        if live == built:
            return f"{self.view}{whose}: {live} rows in both, with other content"
        return f"{self.view}{whose}: {live} rows in the live generation, {built} in the built one"


Checksums = Mapping[tuple[str, str], Checksum]
"""By view and tenant."""


async def checksums_by_tenant(connection: asyncpg.Connection, schema: str, settings: ProjectorSettings) -> Checksums:
    """Of the views that this generation has."""
    checksums: dict[tuple[str, str], Checksum] = {}
    for view in TABLES:
        columns = await connection.fetch(
            "select attname from pg_attribute where attrelid = to_regclass($1) and attnum > 0 and not attisdropped",
            f"{schema}.{view}",
        )
        if not columns:
            continue
        tenant = "coalesce(r.tenant, '')" if ("tenant",) in map(tuple, columns) else "''"
        there = {row["attname"] for row in columns}
        # A generation of an older version may lack some of them.
        compared = [f'"{name}"' for name in checksum_columns(view) if name in there] or ["*"]
        query = (
            f"select {tenant}, count(*), {CHECKSUM} "  # noqa: S608
            f"from (select {', '.join(compared)} from {schema}.{view}) as r group by 1"
        )
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
    """Each side on its own connection, in whatever snapshot that has."""
    of_live, of_built = await asyncio.gather(
        checksums_by_tenant(live, live_schema, settings), checksums_by_tenant(built, built_schema, settings)
    )
    return differences(of_live, of_built)


def differences(live: Checksums, built: Checksums) -> list[Difference]:
    keys = sorted(live.keys() | built.keys())
    return [Difference(*key, live.get(key), built.get(key)) for key in keys if live.get(key) != built.get(key)]
