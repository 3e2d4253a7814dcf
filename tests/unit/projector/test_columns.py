"""The declared columns are those of the tables: same names, same types, and none that is written nowhere."""

import re

import pytest

from services.projector.columns import MERGED, THREAD_STATES, THREADS, ViewTable, view_table
from services.projector.generations.generations import FOLDER, TABLES
from services.projector.projections import artifacts, dead_letters, events, usage

_TABLE = re.compile(r"^create table (\w+) \(\n(.*?)\n\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r'^    "?(\w+)"? ([a-z]+(?:\[\])?)(?: not null)?,$', re.MULTILINE)
CREATED = {
    name: dict(_COLUMN.findall(body))
    for name, body in _TABLE.findall((FOLDER / "generations" / "sql" / "generation.sql").read_text())
}
DECLARED = (THREAD_STATES, THREADS, *MERGED.values())


@pytest.mark.parametrize("table", DECLARED, ids=lambda table: table.name)
def test_a_declaration_has_the_columns_and_types_of_its_table(table: ViewTable) -> None:
    assert dict(table.types) == CREATED[table.name]


@pytest.mark.parametrize("module", [artifacts, dead_letters, events, usage], ids=lambda module: module.__name__)
def test_a_view_whose_rows_never_change_names_all_of_its_columns(module: object) -> None:
    name = str(getattr(module, "__name__", "")).rpartition(".")[2]
    assert set(getattr(module, "COLUMNS", ())) == CREATED[name].keys()


def test_every_table_but_the_positions_is_declared() -> None:
    declared = {table.name for table in DECLARED} | {"artifacts", "dead_letters", "events", "usage"}
    assert set(TABLES) == CREATED.keys() == declared | {"positions"}


def test_a_column_that_is_declared_twice_is_refused() -> None:
    with pytest.raises(AssertionError, match="declares a column twice"):
        view_table("made", key="tenant text", written_once="tenant text")
