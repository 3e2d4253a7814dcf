import base64

import pytest

from services.ingest.problems import BAD_CURSOR, ProblemError
from services.ingest.reads import AtLeast, decode_cursor, encode_cursor, parse_at_least


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


def test_at_least() -> None:
    assert parse_at_least("7") == AtLeast(None, 7)
    assert parse_at_least("3:41") == AtLeast(3, 41)


@pytest.mark.parametrize("text", ["", ":", "1:", ":1", "a", "1:2:3", "-1", "1.5", "٣", "9" * 19])
def test_at_least_is_a_position_or_a_seq(text: str) -> None:
    with pytest.raises(ProblemError):
        parse_at_least(text)
