"""The columns of the views whose rows change: each is declared here once, with its type.

Everything else is derived from these declarations: the tuples that `rows` and `threads` make, the columns that COPY
names, and the statements that change rows (`generations.change_statements`). `generations/sql/generation.sql` creates
the tables, and is the public contract with its comments. A test holds the declarations against it, so a column that is
added to only one of the two fails that test.

A column changes in one of two ways:

- `changing`: None leaves the value as it is. Changes of a row can then be merged in any batching.
- `replaced`: every change of the row writes the column, None included. A column that can become null again is of this
  kind, because a merge could not tell "becomes null" from "stays as it is".

Views whose rows never change (`events`, `usage`, `artifacts`, `dead_letters`) name their columns beside their row.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Table = Literal["turns", "steps", "tool_calls", "items", "plans", "tasks"]
"""A view whose rows change column by column, so that changes of a row can be merged."""


class ViewTable(NamedTuple):
    """A table of a generation. The order of the columns is the order of the tuples that are written."""

    name: str
    types: Mapping[str, str]
    """The Postgres type of each column."""
    key: tuple[str, ...]
    """What a change finds its row by. Unique, though not always the primary key: see `tool_calls`."""
    written_once: tuple[str, ...]
    """Columns that keep the value that they have when the row is made."""
    replaced: tuple[str, ...]
    changing: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a new row."""
        return (*self.key, *self.written_once, *self.replaced, *self.changing)

    @property
    def changed_columns(self) -> tuple[str, ...]:
        """The columns of a change: the key, then what may differ."""
        return (*self.key, *self.replaced, *self.changing)


def view_table(
    name: str, *, key: str, written_once: str, replaced: str = "", changing: str = "", by_statement: str = ""
) -> ViewTable:
    """Declare a table: each argument lists columns as the table's definition does, `name type, name type`.

    `by_statement` lists columns that no row brings: statements over many rows set them.
    """
    groups = [_columns(group) for group in (key, written_once, replaced, changing, by_statement)]
    types = {column: type_ for group in groups for column, type_ in group.items()}
    assert len(types) == sum(map(len, groups)), f"{name} declares a column twice"
    return ViewTable(name, types, *[tuple(group) for group in groups[:4]])


def _columns(declared: str) -> dict[str, str]:
    pairs = [column.split() for column in declared.split(",") if column.strip()]
    return {pair[0]: pair[1] for pair in pairs}


THREAD_STATES: Final = view_table(
    "thread_states",
    key="tenant text, thread text",
    written_once="topic text, partition int",
    replaced="offset bigint, fold_version int, active boolean, quarantined text, state json",
)

THREADS: Final = view_table(
    "threads",
    key="tenant text, thread text",
    written_once="""
        partition int, created_at timestamptz, lineage_kind text, parent text, parent_seq bigint, parent_call text,
        parent_plan_version bigint, parent_task text, depth bigint
    """,
    # In full: a title can be removed, and a thread has no open turn again and again.
    replaced="""
        status text, title text, archived boolean, updated_at timestamptz, seq bigint, turn bigint, last_turn bigint,
        last_outcome text, queued int, waiting_calls int, unknown_calls int, config_seq bigint, plan_version bigint
    """,
    # The large ones are written only where they differ; neither is ever null.
    changing="labels jsonb, config jsonb",
)

MERGED: Final[Mapping[Table, ViewTable]] = {
    "turns": view_table(
        "turns",
        key="tenant text, thread text, turn bigint",
        written_once="""
            inputs text[], model text, agent_version text, config_seq bigint, base bigint, started_seq bigint,
            started_at timestamptz
        """,
        changing="""
            status text, outcome text, reason text, cancel_cause text, cancelled_at timestamptz,
            recovered_at timestamptz, recovered_by text, steps bigint, input_tokens bigint, output_tokens bigint,
            waited_ms bigint, ended_seq bigint, ended_at timestamptz, unknown_calls text[]
        """,
    ),
    "steps": view_table(
        "steps",
        key="tenant text, thread text, turn bigint, step bigint",
        written_once="inputs text[], started_seq bigint, started_at timestamptz",
        changing="""
            status text, attempts bigint, failures int, model text, owner text, context_seq bigint,
            context_items bigint, context_hash text, tools_hash text, attempt_at timestamptz, error_kind text,
            error text, retriable boolean, retry_at timestamptz, finished_seq bigint, finished_at timestamptz,
            finished_attempt bigint, stop_reason text, response_id text, calls int, input_tokens bigint,
            output_tokens bigint, cached_tokens bigint, reasoning_tokens bigint
        """,
    ),
    "tool_calls": view_table(
        "tool_calls",
        # Records name a call by this text, which has the three numbers of the primary key in it.
        key="tenant text, thread text, call text",
        written_once="""
            turn bigint, step bigint, index int, tool text, malformed text, proposed_seq bigint,
            proposed_at timestamptz
        """,
        changing="""
            status text, outcome text, args jsonb, call_hash text, effect text, pool text, approval_reason text,
            approval_requested_at timestamptz, approval_expires_at timestamptz, decision text, decided_by text,
            decided_at timestamptz, decision_reason text, attempts bigint, lost_attempts int,
            dispatched_at timestamptz, deadline_at timestamptz, timeout_ms bigint, idempotency_key text, claim uuid,
            executor text, started_at timestamptz, lease_seconds bigint, evidence text, resolution text,
            resolved_by text, note text, milliseconds bigint, changes jsonb, artifacts jsonb, settled_seq bigint,
            settled_at timestamptz, settled_by uuid, resolved_at timestamptz
        """,
    ),
    "items": view_table(
        "items",
        key="tenant text, thread text, seq bigint, part int",
        written_once="kind text, content jsonb, digest text, input text, call text",
        changing="turn bigint, step bigint, place bigint, dropped text",
        by_statement="rewound_at bigint, compacted_at bigint",
    ),
    "plans": view_table(
        "plans",
        key="tenant text, thread text, version bigint",
        written_once="tasks jsonb, proposed_seq bigint, proposed_at timestamptz, proposed_by text, call text",
        changing="""
            status text, decided_seq bigint, decided_at timestamptz, decided_by text, decision_reason text,
            superseded_seq bigint, superseded_at timestamptz
        """,
    ),
    "tasks": view_table(
        "tasks",
        key="tenant text, thread text, version bigint, task text",
        written_once="place int, title text, instructions text, depends_on text[], left_out boolean",
        changing="""
            status text, child text, result jsonb, changed_seq bigint, started_at timestamptz, ended_at timestamptz
        """,
    ),
}
"""The views whose changes are merged within a batch, in the order in which they are written."""
