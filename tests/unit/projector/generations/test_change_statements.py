"""The statements that are made of the declared columns, written out where they are not plain."""

from services.projector.columns import MERGED, view_table
from services.projector.generations.change_statements import CHANGE, change_statement, parameters_of


def test_a_statement_replaces_some_columns_and_leaves_others_where_nothing_is_given() -> None:
    table = view_table(
        "made",
        key="tenant text, partition int",
        written_once="name text",
        replaced="offset bigint",
        changing="status text, calls text[]",
        by_statement="hidden_at bigint",
    )
    assert change_statement(table) == (
        "update made t set\n"
        '    "offset" = c."offset",\n'
        "    status = coalesce(c.status, t.status),\n"
        "    calls = coalesce(string_to_array(c.calls, ','), t.calls)\n"
        "from unnest($1::text[], $2::int[], $3::bigint[], $4::text[], $5::text[])\n"
        '    as c (tenant, "partition", "offset", status, calls)\n'
        'where t.tenant = c.tenant and t."partition" = c."partition"'
    )


def test_a_call_is_found_by_its_primary_key() -> None:
    assert "t.call = c.call" not in CHANGE["tool_calls"]
    assert "t.index = split_part(c.call, '.', 3)::int" in CHANGE["tool_calls"]


def test_lists_are_given_joined_and_nothing_stays_nothing() -> None:
    turns = MERGED["turns"]
    rows = [
        tuple(["1.1.0", "1.1.1"] if column == "unknown_calls" else 1 for column in turns.changed_columns),
        tuple([] if column == "unknown_calls" else 2 for column in turns.changed_columns),
        tuple(None for _ in turns.changed_columns),
    ]
    assert [row[-1] for row in parameters_of(turns, rows)] == ["1.1.0,1.1.1", "", None]
    assert [row[:-1] for row in parameters_of(turns, rows)] == [row[:-1] for row in rows]
