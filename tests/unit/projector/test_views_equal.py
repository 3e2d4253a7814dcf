"""The comparison finds any row, column or position that is not as the log says, and names it."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.events import ArtifactRecorded
from services.chassis.log.port import Incoming
from tests.support.memory.tables import TABLES, Tables, first_difference
from tests.support.recorded.histories import KEY, NO_HASH, History, plain_turn
from tests.support.recorded.plans import planned
from tests.support.recorded.walks import as_read
from tests.support.stored.views_equal import fold_from_zero


def folded(records: list[Incoming]) -> Tables:
    return fold_from_zero({0: records}, lambda _: 0)


def records() -> list[Incoming]:
    history = planned(plain_turn(History()))
    history.apply(ArtifactRecorded(sha256=NO_HASH, size=1, media_type="text/plain"))
    read = as_read(history)
    return [*read, read[-1]._replace(offset=read[-1].offset + 1, key=b"nobody")]


def test_the_same_log_gives_the_same_views() -> None:
    assert first_difference(folded(records()), folded(records())) is None


@pytest.mark.parametrize("table", TABLES)
def test_a_missing_row_and_one_too_many_are_found(table: str) -> None:
    whole, lacking = folded(records()), folded(records())
    whose = next(iter(lacking.groups(table)))
    lacking._groups[table][whose].popitem()
    assert (first_difference(whole, lacking) or "").startswith(f"{table}/{whose[0]}/")
    assert "it is missing" in (first_difference(whole, lacking) or "")
    assert "should not be there" in (first_difference(lacking, whole) or "")


def with_other_bytes(tables: Tables) -> None:
    row = tables.state(KEY)
    assert row is not None
    tables._groups["thread_states"][KEY][()] = row._replace(raw=b"{}")


def further(tables: Tables) -> None:
    tables.positions[0] = tables.positions[0]._replace(next_offset=9)


def with_outcome(tables: Tables) -> None:
    rows = tables._groups["turns"][KEY]
    rows[1,] = rows[1,] | {"outcome": "failed"}


def with_reason(tables: Tables) -> None:
    rows = tables._groups["events"][KEY]
    rows[3,] = (*rows[3,][:14], "late", *rows[3,][15:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (further, "positions/0: next_offset is 9, not"),
        (with_other_bytes, f"thread_states/{KEY}: raw is b'{{}}', not"),
        (with_outcome, f"turns/{KEY}/1: outcome is 'failed', not 'completed'"),
        (with_reason, f"events/{KEY}/3: reason is 'late', not None"),
    ],
)
def test_what_differs_is_named(change: Callable[[Tables], Any], message: str) -> None:
    found = folded(records())
    change(found)
    assert (first_difference(folded(records()), found) or "").startswith(message)
