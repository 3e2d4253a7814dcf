"""The statement that changes rows of a view, made from the declaration of its columns.

All changes of a view within a batch are one UPDATE from arrays, one array per column: one round trip and one plan,
however many rows change. Every statement is made once, when this module is imported, and a test prepares each of them
against a real generation.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from services.projector.columns import MERGED, THREAD_STATES, THREADS, ViewTable

_RESERVED: Final = frozenset({"offset", "partition"})
"""Names that SQL uses itself: they are quoted."""

_ROW_OF: Final[Mapping[str, str]] = {
    # By the primary key: a lookup by the text `call` would have no index.
    "tool_calls": (
        "t.tenant = c.tenant and t.thread = c.thread and t.turn = split_part(c.call, '.', 1)::bigint\n"
        "    and t.step = split_part(c.call, '.', 2)::bigint and t.index = split_part(c.call, '.', 3)::int"
    ),
}
"""How a view's row is found where its key is not its primary key."""


def change_statement(table: ViewTable) -> str:
    """Return the UPDATE of a view. Its parameters are the arrays of `table.changed_columns`, in that order."""
    assigned = [f"{_name(column)} = c.{_name(column)}" for column in table.replaced]
    assigned += [f"{_name(column)} = coalesce({_given(table, column)}, t.{_name(column)})" for column in table.changing]
    arrays = [f"${number}::{_array(table, column)}" for number, column in enumerate(table.changed_columns, start=1)]
    of_row = _ROW_OF.get(table.name) or " and ".join([f"t.{_name(key)} = c.{_name(key)}" for key in table.key])
    return (
        f"update {table.name} t set\n    "  # of names that this program declares
        + ",\n    ".join(assigned)
        + f"\nfrom unnest({', '.join(arrays)})\n"
        + f"    as c ({', '.join(map(_name, table.changed_columns))})\n"
        + f"where {of_row}"
    )


def parameters_of(table: ViewTable, changed: Sequence[tuple[object, ...]]) -> Sequence[tuple[object, ...]]:
    """Return the rows of a change as the statement takes them: a list becomes text, joined by commas.

    Postgres has no array of arrays of different lengths. None of the lists holds a text with a comma in it: they are
    names of calls, such as 3.1.0.
    """
    for at in _LISTS[table.name]:
        changed = [(*row[:at], _joined(row[at]), *row[at + 1 :]) for row in changed]
    return changed


def _joined(value: object) -> object:
    return ",".join(value) if isinstance(value, list) else value


def _given(table: ViewTable, column: str) -> str:
    return f"string_to_array(c.{_name(column)}, ',')" if _is_list(table, column) else f"c.{_name(column)}"


def _array(table: ViewTable, column: str) -> str:
    return "text[]" if _is_list(table, column) else f"{table.types[column]}[]"


def _is_list(table: ViewTable, column: str) -> bool:
    return table.types[column].endswith("[]")


def _name(column: str) -> str:
    return f'"{column}"' if column in _RESERVED else column


CHANGE: Final[Mapping[str, str]] = {
    table.name: change_statement(table) for table in (THREAD_STATES, THREADS, *MERGED.values())
}
"""The statement of each view whose rows change, by the view's name."""
_LISTS: Final[Mapping[str, Sequence[int]]] = {
    table.name: [at for at, column in enumerate(table.changed_columns) if _is_list(table, column)]
    for table in (THREAD_STATES, THREADS, *MERGED.values())
}
"""Where lists are among the columns of a change: looked up for every batch, so it is made once."""
