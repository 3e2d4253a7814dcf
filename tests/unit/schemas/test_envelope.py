import pytest

from schemas.envelope import TIME_MS_MAX, TIME_MS_MIN, format_time, parse_time


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2026-09-21T14:13:20.007Z", 1_790_000_000_007),
        ("0001-01-01T00:00:00.000Z", TIME_MS_MIN),
        ("9999-12-31T23:59:59.999Z", TIME_MS_MAX),
    ],
)
def test_times_are_written_and_read(text: str, time_ms: int):
    assert format_time(time_ms) == text
    assert parse_time(text) == time_ms


def test_other_zones_and_precisions_are_read():
    assert parse_time("1970-01-01T02:00:00.1239+02:00") == 123
    assert parse_time("1969-12-31T23:59:59.9999Z") == -1


@pytest.mark.parametrize(
    "text", ["", "now", "2026-09-21T14:13:20", "0001-01-01T00:00:00+01:00", "10000-01-01T00:00:00Z"]
)
def test_other_times_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_time(text)
