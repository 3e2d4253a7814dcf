from pathlib import Path

import pytest

from services.importer.lines import FileSource, Line, Wanted


def file(tmp_path: Path, content: bytes, line_bytes_max: int = 1000) -> FileSource:
    path = tmp_path / "session.jsonl"
    path.write_bytes(content)
    return FileSource(path, line_bytes_max)


def lines(tmp_path: Path, content: bytes, line_bytes_max: int = 1000) -> list[Line]:
    source = file(tmp_path, content, line_bytes_max)
    once = list(source)
    assert list(source) == once, "a source can be read again"
    last = once[-1].number if once else 0
    again = source.some(bytearray([1] * (last + 1)))
    assert [line for line in again if line.record is not None] == [line for line in once if line.record is not None]
    return once


def test_lines_end_at_newline_bytes_alone(tmp_path: Path) -> None:
    content = '{"a":"x\u2028y\u0085z"}\n{"b":1}\r\n'.encode()
    assert [line.record for line in lines(tmp_path, content)] == [{"a": "x\u2028y\u0085z"}, {"b": 1}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not json\n", "no JSON"),
        (b"[1,2]\n", "no object"),
        (b'"text"\n', "no object"),
        (b'{"a":1', "torn"),
        (b"\xff\xfe\n", "no JSON"),
        (b"[" * 5000 + b"\n", "no JSON"),
    ],
)
def test_a_bad_line_is_given_without_a_record(tmp_path: Path, content: bytes, problem: str) -> None:
    good = b'{"good":true}\n'
    found = lines(tmp_path, good + content, 10_000)
    assert [line.record for line in found] == [{"good": True}, None]
    assert found[1] == Line(2, None, problem)


def test_a_last_line_without_an_end_is_read_where_it_is_whole(tmp_path: Path) -> None:
    assert lines(tmp_path, b'{"a":1}') == [Line(1, {"a": 1}, None, 7)]


def test_blank_lines_count_as_lines_and_are_left_out(tmp_path: Path) -> None:
    assert lines(tmp_path, b'\n  \n{"a":1}\n') == [Line(3, {"a": 1}, None, 8)]


def test_lone_surrogates_and_broken_utf8_are_replaced(tmp_path: Path) -> None:
    found = lines(tmp_path, b'{"a":"x\\ud800y","n":1}\n{"b":"caf\xe9"}\n')
    assert [line.record for line in found] == [{"a": "x\ufffdy", "n": 1}, {"b": "caf\ufffd"}]


def test_a_line_that_is_too_long_is_read_past(tmp_path: Path) -> None:
    content = b'{"a":"' + b"x" * (3 << 20) + b'"}\n{"b":1}\n'
    assert lines(tmp_path, content) == [Line(1, None, "too long"), Line(2, {"b": 1}, None, 8)]
    assert lines(tmp_path, content[: 2 << 20]) == [Line(1, None, "too long")]


def test_a_line_of_just_the_longest_length_is_read(tmp_path: Path) -> None:
    content = b'{"a":"xxxx"}'
    for end in (b"", b"\n"):
        assert lines(tmp_path, content + end, len(content)) == [Line(1, {"a": "xxxx"}, None, len(content + end))]


def test_some_lines_are_read_and_the_others_are_not(tmp_path: Path) -> None:
    source = file(tmp_path, b'{"a":1}\n{"b":2}\n{"c":3}\n{"d":4}\n')
    assert [line.number for line in source.some(bytearray([0, 1, 0, 1]))] == [1, 3]
    assert [line.number for line in source.some(bytearray([0, 0, 1, 0, 0, 0, 0]))] == [2]
    assert list(source.some(bytearray())) == []


@pytest.mark.parametrize("held_bytes_max", [0, 8, 24, 100])
@pytest.mark.parametrize("links", [(), (3,), (5,), (3, 5), (1, 6)])
def test_wanted_lines_come_in_their_order_held_or_not(
    held_bytes_max: int, links: tuple[int, ...], tmp_path: Path
) -> None:
    source = file(tmp_path, b"".join(b'{"a":%d}\n' % number for number in range(1, 7)))
    wanted = Wanted(held_bytes_max)
    for line in source:
        if line.number in {2, 4}:
            wanted.want(line)
    for number in links:
        wanted.want_number(number)
    for _ in range(2):
        assert [line.number for line in wanted.lines(source)] == sorted({2, 4, *links})
