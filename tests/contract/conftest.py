"""views      Views, without any generation: in memory, then in Postgres
postgres   InPostgres, for what only a real database can be made to do
"""

from collections.abc import AsyncIterator

import pytest

from tests.support.stored.view_harness import InMemory, InPostgres, Views, in_postgres


@pytest.fixture(params=["memory", "postgres"])
def views(request: pytest.FixtureRequest) -> Views:
    if request.param == "memory":
        return InMemory()
    return request.getfixturevalue("postgres")  # type: ignore[no-any-return]  # the fixture below


@pytest.fixture
async def postgres(fresh_database: str, postgres_dsn: str) -> AsyncIterator[InPostgres]:
    async with in_postgres(fresh_database, postgres_dsn) as made:
        yield made
