"""docs/views.md from sql/generation.sql: `python -m services.projector.reference > docs/views.md`. A test compares."""

import re
import sys
from typing import NamedTuple

from schemas.effects import Facts
from services.projector.generations import FOLDER, VIEWS

_TABLE = re.compile(r"^create table (\w+) \(\n(.*?)\n\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r'^    "?(\w+)"? ((?:[a-z]+)(?:\[\])?)( not null)?,?$')
_KEY = re.compile(r"^    primary key \((.*)\)$", re.MULTILINE)
_ABOUT = re.compile(r"^comment on (?:table|view) (\w+) is '(.*)';$", re.MULTILINE)
_ABOUT_COLUMN = re.compile(r"""^comment on column (\w+)\."?(\w+)"? is '(.*)';$""", re.MULTILINE)
_VIEW = re.compile(r"^create view (approvals|unknown_calls) as\nselect (.*?)\nfrom", re.MULTILINE | re.DOTALL)

INTRODUCTION = """# The views

Read models in Postgres, made from `thread-events` by the projector: a public contract, column by column. They can be
dropped at any time and come back the same from the log (`threadlog rebuild`, or a restart of the projector).

Read them in the schema `views`. What is there points at the live *generation*, a schema `views_g<number>` with tables
of the same names; a rebuild makes the next generation beside it and re-points all views in one transaction. The row of
`views.generation` says which one is live, and of which fold and projection.

- The tenant is the first column of every key and index: name it in every query.
- `seq` is the number of a record within its thread, without gaps: the cursor of clients. Times are those that the
  records carry.
- Nothing is shown before it is in the log. How far each partition is shown is in `positions`: to read your own write,
  wait until `next_offset` is above its offset.
- What a model sees of a thread:

      select kind, content from views.items
      where tenant = $1 and thread = $2 and place is not null
          and dropped is null and rewound_at is null and compacted_at is null
      order by kind <> 'summary', place, seq, part

"""


class Column(NamedTuple):
    name: str
    type: str
    about: str


def reference() -> str:
    sql = (FOLDER / "sql" / "generation.sql").read_text()
    about = {name: _unquoted(text) for name, text in _ABOUT.findall(sql)}
    described = {(table, column): _unquoted(text) for table, column, text in _ABOUT_COLUMN.findall(sql)}
    bodies = dict(_TABLE.findall(sql))
    selected = dict(_VIEW.findall(sql))
    parts = [INTRODUCTION]
    for view in sorted(VIEWS, key=lambda name: (name in {"thread_states", "positions"}, VIEWS.index(name))):
        parts.append(f"## {view}\n\n{about[view]}\n\n")
        if view in selected:
            names = [part.split(" as ")[-1].strip() for part in selected[view].split(",")]
            parts.append(f"Columns of `tool_calls`: {', '.join([f'`{name}`' for name in names])}.\n\n")
            continue
        (key,) = _KEY.findall(bodies[view])
        parts.append(f"Key: `{key.replace(chr(34), '')}`.\n\n| column | type | |\n|---|---|---|\n")
        parts += [f"| `{name}` | {type_} | {text} |\n" for name, type_, text in _columns(view, bodies[view], described)]
        parts.append("\n")
        if view == "events":
            parts.append(_facts())
    return "".join(parts).rstrip() + "\n"


def _facts() -> str:
    """What the column `events.facts` may hold."""
    rows = [
        f"| `{name}` | {'number' if 'int' in str(field.annotation) else 'text'} | {field.description} |\n"
        for name, field in Facts.model_fields.items()
    ]
    return f"### facts\n\n| key | type | |\n|---|---|---|\n{''.join(rows)}\n"


def _columns(view: str, body: str, described: dict[tuple[str, str], str]) -> list[Column]:
    columns = []
    for line in body.splitlines():
        match = _COLUMN.match(line)
        if match is not None:
            kind = match[2] if match[3] else f"{match[2]}, may be null"
            columns.append(Column(match[1], kind, described.get((view, match[1]), "")))
    if view == "tool_calls":
        columns.append(Column("result", "jsonb, may be null", "What came of it, once settled: from `items`."))
    return columns


def _unquoted(text: str) -> str:
    return text.replace("''", "'")


if __name__ == "__main__":
    sys.stdout.write(reference())
