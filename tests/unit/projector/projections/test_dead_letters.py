from pathlib import Path

from schemas.errors import FAULTS
from services.chassis.log.port import Incoming
from services.projector.projections.dead_letters import (
    COLUMNS,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    DeadLetter,
    dead_letter_record,
    dead_letter_row,
)
from tests.support.recorded.histories import KEY

HUGE = Incoming(
    "thread-events",
    3,
    77,
    1_000,
    b"k" * 5_000,
    b"v" * 5_000,
    tuple([(f"h{number}", b"\x00\xff" + b"x" * 5_000) for number in range(100)]),
)


def test_a_row_is_bounded_and_holds_nothing_that_a_database_refuses() -> None:
    row = dict(zip(COLUMNS, dead_letter_row(DeadLetter(HUGE, "bad \x00", "not_json", KEY, 9), 100), strict=True))
    assert (row["tenant"], row["thread"], row["seq"], row["reason"]) == (*KEY, 9, "bad \u2400")
    assert row["fault"] == "not_json"
    assert len(row["key"]) == KEY_BYTES_MAX
    assert (row["value"], row["value_bytes"]) == (b"v" * 100, 5_000)
    assert b"\\u0000" not in row["headers"] and len(row["headers"]) < HEADERS_MAX * (HEADER_BYTES_MAX + 20)


def test_what_is_missing_is_null() -> None:
    nothing = HUGE._replace(key=None, value=None, headers=())
    row = dict(zip(COLUMNS, dead_letter_row(DeadLetter(nothing, "bad", "no_key"), 100), strict=True))
    assert (row["key"], row["value"], row["value_bytes"], row["headers"]) == (None, None, 0, b"[]")
    record = dead_letter_record(DeadLetter(nothing, "bad", "no_key"), 100)
    assert (record.key, record.value) == (b"", None)


def test_the_record_says_where_it_comes_from() -> None:
    record = dead_letter_record(DeadLetter(HUGE, "bad", "bad_key"), 100)
    headers = dict(record.headers)
    assert len(record.value or b"") == 100 and record.timestamp_ms == 1_000
    assert headers["threadlog_topic"] == b"thread-events"
    assert headers["threadlog_partition"] == b"3"
    assert headers["threadlog_offset"] == b"77"
    assert headers["threadlog_reason"] == b"bad"
    assert headers["threadlog_fault"] == b"bad_key"
    assert headers["threadlog_value_bytes"] == b"5000"


def test_every_fault_is_explained_to_operators() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()
    section = page.partition("## Dead letters\n")[2].partition("\n## ")[0]
    assert [fault for fault in FAULTS if f"`{fault}`" not in section] == []
