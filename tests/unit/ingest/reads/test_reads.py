import base64
import datetime as dt

import pytest

from services.ingest.http.problems import BAD_CURSOR, ProblemError
from services.ingest.operations import dead_letters
from services.ingest.reads import reads
from services.ingest.reads.reads import AtLeast, decode_cursor, encode_cursor, parse_at_least


def test_a_cursor_comes_back() -> None:
    assert decode_cursor(encode_cursor([3, -1]), (int, int)) == [3, -1]
    assert decode_cursor(encode_cursor([3, "t-1"]), (int, str)) == [3, "t-1"]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!!",
        "ä",
        "W10",
        encode_cursor([1]),
        encode_cursor([1, 2, 3]),
        encode_cursor(["1", "2"]),
        encode_cursor([1, True]),
        encode_cursor([1, -2]),
        encode_cursor([1, 2**63]),
        base64.urlsafe_b64encode(b'{"a": 1}').decode(),
        base64.urlsafe_b64encode(b"[" * 10_000).decode(),
        base64.urlsafe_b64encode(b"[1, 99999999999999999999999999]").decode(),
    ],
)
def test_what_no_list_gave_is_refused(cursor: str) -> None:
    with pytest.raises(ProblemError) as raised:
        decode_cursor(cursor, (int, int))
    assert raised.value.problem.type is BAD_CURSOR


@pytest.mark.parametrize("model", ["", "m 1", "a\tmodel\u00a0of 'ours'\u200b", "😀"])
def test_the_cursor_of_usage_names_any_model(model: str) -> None:
    assert reads._after_usage(encode_cursor(["2026-01-31", model])) == (dt.date(2026, 1, 31), model)


@pytest.mark.parametrize("model", ["a\\u0000", "\\ud800"])
def test_the_cursor_of_usage_names_nothing_that_the_database_cannot_hold(model: str) -> None:
    cursor = base64.urlsafe_b64encode(f'["2026-01-31", "{model}"]'.encode()).decode()
    with pytest.raises(ProblemError) as raised:
        reads._after_usage(cursor)
    assert raised.value.problem.type is BAD_CURSOR


@pytest.mark.parametrize("place", [[0, "t", 2**31, 0], [2**62, "t", 0, 0], [0, "", 0, 0], [0, "t", 0]])
def test_no_place_of_a_dead_letter(place: list[int | str]) -> None:
    with pytest.raises(ProblemError) as raised:
        dead_letters._place(encode_cursor(place))
    assert raised.value.problem.type is BAD_CURSOR


def test_at_least() -> None:
    assert parse_at_least("7") == AtLeast(None, 7)
    assert parse_at_least("3:41") == AtLeast(3, 41)


@pytest.mark.parametrize("text", ["", ":", "1:", ":1", "a", "1:2:3", "-1", "1.5", "٣", "9" * 19])
def test_at_least_is_a_position_or_a_seq(text: str) -> None:
    with pytest.raises(ProblemError):
        parse_at_least(text)
