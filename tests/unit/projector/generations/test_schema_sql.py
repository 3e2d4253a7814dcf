"""The statements that name an identifier, where their text depends on more than that."""

from services.projector.generations import schema_sql


def test_no_limit_of_time_is_none_at_all() -> None:
    assert schema_sql.set_lock_timeout(0.05) == "set local lock_timeout = 50"
    assert schema_sql.set_lock_timeout(0.0001) == "set local lock_timeout = 1"
    assert schema_sql.set_idle_timeout(0) == "set local idle_in_transaction_session_timeout = 1"


def test_columns_are_quoted_and_none_named_are_all() -> None:
    assert schema_sql.columns_or_all(["offset", "topic"]) == '"offset", "topic"'
    assert schema_sql.columns_or_all([]) == "*"


def test_a_row_is_found_by_the_columns_of_its_key() -> None:
    assert schema_sql.one_row("views_g3", "turns", ["status"], ["tenant", "turn"]) == (
        'select "status"::text from views_g3.turns where "tenant" = $1 and "turn" = $2'
    )


def test_checksums_of_a_view_without_tenants_come_under_the_empty_text() -> None:
    assert schema_sql.checksums_by_tenant("g", "v", "*", has_tenants=False).startswith("select '', count(*), ")
    assert schema_sql.checksums_by_tenant("g", "v", "*", has_tenants=True).startswith("select coalesce(r.tenant, ''), ")
