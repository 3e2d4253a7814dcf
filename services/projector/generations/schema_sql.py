"""The statements that name a schema, a table or a role: an identifier cannot be a parameter, so they are made here.

All other statements lie in `.sql` files, but for the changes of rows, which `change_statements` makes of the declared
columns. No identifier here comes from outside:

- A schema is that of a generation, `views_g` and a number, or `views`.
- A view, a table or a column is one of those that `generations.TABLES` and the database's own catalog name.
- A role is a constant of `services.chassis.postgres.roles`.

Values are parameters here, too. The two limits of time are the exception, because `set local` takes none: they are made
of numbers.
"""

from collections.abc import Sequence
from typing import Final

CHECKSUM: Final = "coalesce(sum(hashtextextended(r::text, 0)::numeric), 0)::text as checksum"
"""A sum over the hashes of rows: it does not depend on their order, which differs between two generations."""
ROW_HASH: Final = "hashtextextended(r::text, 0)"


# The surroundings of a transaction


def set_role(role: str) -> str:
    return f"set local role {role}"


def set_schema(schema: str) -> str:
    """Put the schema first on the search path for the rest of the transaction: the `.sql` files name tables alone."""
    return f"set local search_path to {schema}"


def set_lock_timeout(seconds: float) -> str:
    """Limit how long each statement of the transaction waits for a lock. 0 would mean no limit, so 1 ms is the
    least.
    """
    return f"set local lock_timeout = {max(1, int(1000 * seconds))}"


def set_idle_timeout(seconds: float) -> str:
    """Let the database end the transaction if its client stands still for this time."""
    return f"set local idle_in_transaction_session_timeout = {max(1, int(1000 * seconds))}"


# A generation as a whole


def create_schema(schema: str) -> str:
    return f"create schema {schema}"


def drop_schema(schema: str) -> str:
    return f"drop schema if exists {schema} cascade"


def analyze_table(schema: str, table: str, columns: str) -> str:
    return f"analyze {schema}.{table} ({columns})"


# The stable views


def stable_view(view: str, schema: str, source: str) -> str:
    """Return what follows `create` and `create or replace`. The view checks the rights of whoever reads it."""
    return f"view views.{view} with (security_invoker = true) as select * from {schema}.{source}"  # noqa: S608


def drop_stable_view(view: str) -> str:
    return f"drop view views.{view}"


def bind_view(view: str) -> str:
    """Let a view that an older release made check the rights of whoever reads it."""
    return f"alter view {view} set (security_invoker = true)"


# Positions of one generation


def select_positions(schema: str) -> str:
    return f'select topic, "partition", next_offset from {schema}.positions'  # noqa: S608


def select_last_records(schema: str) -> str:
    """Select the positions with their digests. A generation of an older version may not have that column, so it is
    taken out of the row as JSON: it is then null.
    """
    return (
        "select \"partition\", next_offset, to_jsonb(p) ->> 'last_record' "  # noqa: S608
        f"from {schema}.positions p where topic = $1 and next_offset > 0"
    )


def lock_positions(schema: str) -> str:
    """Lock the whole table: a partition without a row could otherwise be claimed, and written, beside an update."""
    return f"lock table {schema}.positions in exclusive mode"


def take_positions(schema: str) -> str:
    """Raise all epochs, so that no projector that has claimed a partition can write it any more."""
    return (
        f"update {schema}.positions set owner = 'swapped', owner_epoch = owner_epoch + 1 "  # noqa: S608
        'returning "partition", next_offset'
    )


# Rows of one view


def columns_or_all(columns: Sequence[str]) -> str:
    """Return a select list of these columns, quoted; all of them if none is named."""
    return ", ".join([f'"{column}"' for column in columns]) or "*"


def select_columns(schema: str, view: str, columns: str) -> str:
    """Select columns of a view, to be prepared only: the answer to that has their names."""
    return f"select {columns} from {schema}.{view}"  # noqa: S608


def count_rows(schema: str, view: str) -> str:
    return f"select count(*) from {schema}.{view}"  # noqa: S608


def checksum(schema: str, view: str, columns: str) -> str:
    """Select the number of rows and their checksum."""
    return f"select count(*) as rows, {CHECKSUM} from (select {columns} from {schema}.{view}) as r"  # noqa: S608


def checksums_by_tenant(schema: str, view: str, columns: str, *, has_tenants: bool) -> str:
    """Select tenant, number of rows and checksum; rows without a tenant come under the empty text."""
    tenant = "coalesce(r.tenant, '')" if has_tenants else "''"
    return (
        f"select {tenant}, count(*), {CHECKSUM} "  # noqa: S608
        f"from (select {columns} from {schema}.{view}) as r group by 1"
    )


def hashed_rows(schema: str, view: str, columns: str, keys: str, order: str, condition: str) -> str:
    """Select key and hash of each row that meets the condition, in order."""
    return (
        f"select {keys}, {ROW_HASH} "  # noqa: S608
        f"from (select {columns} from {schema}.{view}) as r where {condition} order by {order}"
    )


def one_row(schema: str, view: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Select columns of one row as text; the parameters are the values of its key."""
    texts = ", ".join([f'"{name}"::text' for name in columns])
    condition = " and ".join([f'"{key}" = ${number}' for number, key in enumerate(keys, start=1)])
    return f"select {texts} from {schema}.{view} where {condition}"  # noqa: S608
