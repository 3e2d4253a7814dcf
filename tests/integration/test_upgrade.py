"""What `threadlog migrate` says where the services of the release before still run."""

import asyncpg
import pytest

from services.chassis.settings import Settings
from services.cli import database
from services.cli.database import migrate_all
from services.projector.generations.generations import ensure_live
from tests.support.worlds.projector import settings_of


async def test_a_login_that_policies_bind_is_named_when_a_generation_is_bound(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(postgres_dsn=fresh_database)
    await migrate_all(settings)
    await ensure_live(fresh_database, settings_of(fresh_database), "cluster")
    connection = await asyncpg.connect(fresh_database)
    login = await connection.fetchval("select session_user")

    async def unbind() -> None:
        for policy in await connection.fetch(
            "select tablename, policyname from pg_policies where schemaname = 'views_g1'"
        ):
            await connection.execute(f"drop policy {policy[1]} on views_g1.{policy[0]}")
        await connection.execute("alter table views_g1.thread_states no force row level security")

    await unbind()
    await migrate_all(settings)
    assert capsys.readouterr().err == "", "a superuser passes them by"
    await unbind()
    # The tests' login is a superuser, since only that makes databases and roles for them.
    monkeypatch.setattr(database, "PASSES_POLICIES_BY", "select false")
    await migrate_all(settings)
    said = capsys.readouterr().err
    assert "views_g1 is bound" in said and f"`alter role {login} bypassrls`" in said
    await migrate_all(settings)
    assert capsys.readouterr().err == "", "once is enough"
    await connection.close()
