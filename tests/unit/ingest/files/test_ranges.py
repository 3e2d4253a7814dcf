import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.files.ranges import ByteRange, Unsatisfiable, range_of

ETAG = '"abc"'
TEXT = bytes(range(100))


@pytest.mark.parametrize(
    ("header", "size", "wanted"),
    [
        (None, 10, None),
        ("bytes=0-0", 10, ByteRange(0, 1)),
        ("bytes=2-4", 10, ByteRange(2, 5)),
        ("bytes=2-99", 10, ByteRange(2, 10)),
        ("bytes=9-", 10, ByteRange(9, 10)),
        ("Bytes= 9-", 10, ByteRange(9, 10)),
        ("bytes=-3", 10, ByteRange(7, 10)),
        ("bytes=-30", 10, ByteRange(0, 10)),
        ("bytes=10-", 10, Unsatisfiable(10)),
        ("bytes=99-100", 10, Unsatisfiable(10)),
        ("bytes=-0", 10, Unsatisfiable(10)),
        ("bytes=0-", 0, Unsatisfiable(0)),
        ("bytes=-5", 0, Unsatisfiable(0)),
        ("bytes=-", 10, None),
        ("bytes=4-2", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("items=0-1", 10, None),
        ("bytes=a-b", 10, None),
        ("bytes=٣-٤", 10, None),
        ("bytes=1-" + "9" * 40, 10, None),
    ],
)
def test_a_header_names_one_range_or_the_whole(header: str | None, size: int, wanted: object) -> None:
    assert range_of(header, None, ETAG, size) == wanted


@pytest.mark.parametrize(("if_range", "wanted"), [(ETAG, ByteRange(0, 1)), ('"other"', None), (f"W/{ETAG}", None)])
def test_a_condition_on_another_version_gives_the_whole(if_range: str, wanted: object) -> None:
    assert range_of("bytes=0-0", if_range, ETAG, 10) == wanted


@given(st.integers(0, 120), st.none() | st.integers(0, 120))
def test_a_range_is_what_slicing_says(first: int, last: int | None) -> None:
    header = f"bytes={first}-{'' if last is None else last}"
    match range_of(header, None, ETAG, len(TEXT)):
        case ByteRange() as found:
            assert TEXT[found.first : found.end] == TEXT[first : None if last is None else last + 1]
            assert found.content_range(len(TEXT)) == f"bytes {found.first}-{found.end - 1}/100"
        case Unsatisfiable() as refused:
            assert not TEXT[first:]
            assert refused.content_range() == "bytes */100"
        case None:
            assert last is not None and last < first
