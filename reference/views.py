"""`python -m reference.views > docs/views.md` describes the views from generation.sql. A test compares.

The file of SQL is read as text, by patterns: so the page needs no database, and what it says is what the database shows
as comments of the same tables. The patterns rely on the form of that file, one column and one comment per line. The
tests notice a column that the patterns miss, since every column that is written must be on the page.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from schemas.other_topics.effects import Facts
from services.projector.generations.generations import FOLDER, SOURCES, VIEWS

_TABLE = re.compile(r"^create table (\w+) \(\n(.*?)\n\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r'^    "?(\w+)"? ((?:[a-z]+)(?:\[\])?)( not null)?,?$')
_KEY = re.compile(r"^    primary key \((.*)\)$", re.MULTILINE)
_ABOUT = re.compile(r"^comment on (?:table|view) (\w+) is '(.*)';$", re.MULTILINE)
_ABOUT_COLUMN = re.compile(r"""^comment on column (\w+)\."?(\w+)"? is '(.*)';$""", re.MULTILINE)
_VIEW = re.compile(r"^create view (approvals|unknown_calls) as\nselect (.*?)\nfrom", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r"^-- (.*?)\n(?!--)", re.DOTALL)

_MORE: Final = {"tool_calls": ("result", "jsonb, may be null"), "usage": ("counted", "boolean")}
"""Columns that the stable views add to those of their tables."""

QUERY_FILES: Final = tuple(sorted(Path(__file__).with_name("queries").glob("*.sql")))
"""The documented queries. A test runs each as it is, and checks the plan that it would have on large tables."""

INTRODUCTION = """# The views

Read models in Postgres, which the projector makes from `thread-events`. They are a public contract, column by column.
You can drop them at any time: `threadlog rebuild`, or a restart of the projector, makes the same rows from the log.

Read them in the schema `views`. Its views point at the live *generation*, a schema `views_g<number>` with tables of the
same names. A rebuild makes the next generation beside the live one and re-points all views in one transaction. The row
of `views.generation` names the live generation and the versions of its fold and projection.

- The tenant is the first column of every key and index. Name it in every query.
- `seq` numbers the records of a thread without gaps. Clients use it as their cursor.
- Times are those of the records.
- A view shows nothing that is not in the log. `positions` says how far each partition is shown. To read your own write,
  wait until `next_offset` is above the offset of your record.
- Page a list by its key, as the queries below do. Every page then costs the same, wherever it is in the list.

Types are those of Postgres. The content of `jsonb` columns is that of the events (see [the events](events.md)).
"""

QUERIES = """## Queries

An index answers each of these queries, in a time that does not grow with the length of a thread or the number of
threads; a test checks the plans. A query that leaves out the tenant, or has another order, may have no index. No index
finds threads by status, labels or title: a condition on one of these looks through the tenant's threads, in the order
of the query, until it has found enough.

"""


class Column(NamedTuple):
    name: str
    type: str
    about: str


def reference() -> str:
    """Return the whole page. The two views for services come last."""
    sql = (FOLDER / "generations" / "sql" / "generation.sql").read_text()
    about = {name: _unquoted(text) for name, text in _ABOUT.findall(sql)}
    described = {(table, column): _unquoted(text) for table, column, text in _ABOUT_COLUMN.findall(sql)}
    bodies = dict(_TABLE.findall(sql))
    selected = dict(_VIEW.findall(sql))
    parts = [INTRODUCTION]
    for view in sorted(VIEWS, key=lambda name: (name in {"thread_states", "positions"}, VIEWS.index(name))):
        parts.append(f"## {view}\n\n{about[view]}\n\n")
        columns = _columns("tool_calls" if view in selected else view, bodies, described)
        if view in selected:
            columns = list(_selected(view, selected[view], columns, described))
        else:
            (key,) = _KEY.findall(bodies[view])
            parts.append(f"Key: `{key.replace(chr(34), '')}`.\n\n")
        parts.append("| column | type | |\n|---|---|---|\n")
        parts += [f"| `{name}` | {type_} | {text} |\n" for name, type_, text in columns]
        parts.append("\n")
        if view == "events":
            parts.append(_facts())
    return "".join([*parts, QUERIES, *map(_query, QUERY_FILES)]).rstrip() + "\n"


def _query(path: Path) -> str:
    text = path.read_text().rstrip()
    title = _TITLE.match(text)
    assert title is not None, f"{path.name} begins with a comment that says what it answers"
    lines = text[title.end() :].splitlines()
    return title[1].replace("\n-- ", "\n") + "\n\n" + "\n".join([f"    {line}".rstrip() for line in lines]) + "\n\n"


def _selected(
    view: str, selected: str, columns: Sequence[Column], described: Mapping[tuple[str, str], str]
) -> Iterator[Column]:
    """Yield the columns of a view's select list: columns of `tool_calls`, some renamed, with a comment of their own."""
    by_name = {column.name: column for column in columns}
    for part in selected.split(","):
        source, _, name = part.strip().partition(" as ")
        name = name or source
        column = by_name[source]
        yield column._replace(name=name, about=described.get((view, name), column.about))


def _facts() -> str:
    """Return the section about the keys that the column `events.facts` may have."""
    rows = [
        f"| `{name}` | {'number' if 'int' in str(field.annotation) else 'text'} | {field.description} |\n"
        for name, field in Facts.model_fields.items()
    ]
    return f"### facts\n\n| key | type | |\n|---|---|---|\n{''.join(rows)}\n"


def _columns(view: str, bodies: Mapping[str, str], described: Mapping[tuple[str, str], str]) -> list[Column]:
    """Return the columns of a table in their order, and then those that its stable view adds."""
    columns = []
    for line in bodies[view].splitlines():
        match = _COLUMN.match(line)
        if match is not None:
            kind = match[2] if match[3] else f"{match[2]}, may be null"
            columns.append(Column(match[1], kind, described.get((view, match[1]), "")))
    more = _MORE.get(view)
    if more is not None:
        columns.append(Column(*more, described[SOURCES[view], more[0]]))
    return columns


def _unquoted(text: str) -> str:
    return text.replace("''", "'")


if __name__ == "__main__":
    sys.stdout.write(reference())
