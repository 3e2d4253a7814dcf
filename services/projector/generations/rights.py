"""Rights for generations that an older release made, before there were roles and policies.

Readers of this version need the policies. The work is idempotent: a generation that has policies is left as it is. Each
generation has a transaction of its own.
"""

from pathlib import Path
from typing import Final

import asyncpg

from services.chassis.postgres.roles import PROJECTOR
from services.chassis.postgres.sql_files import SqlFiles
from services.projector.generations import schema_sql

SQL: Final = Path(__file__).with_name("sql")


async def bind_generations(connection: asyncpg.Connection) -> list[str]:
    """Give rights and policies to generations without them; return their schemas.

    It runs after the migrations, which make the projector's role the owner of every generation.
    """
    sql = SqlFiles(SQL)
    unbound = await connection.fetch(sql["unbound_generations"])
    for row in unbound:
        async with connection.transaction():
            await connection.execute(schema_sql.set_role(PROJECTOR))
            await connection.execute(schema_sql.set_schema(row["schema"]))
            await connection.execute(sql["policies"])
    views = await connection.fetch(sql["unbound_views"])
    if views:
        async with connection.transaction():
            await connection.execute(schema_sql.set_role(PROJECTOR))
            for row in views:
                await connection.execute(schema_sql.bind_view(row["view"]))
            await connection.execute(sql["grants_of_views"])
    return [row["schema"] for row in unbound]
