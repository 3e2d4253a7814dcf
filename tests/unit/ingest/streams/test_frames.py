import orjson
import pytest

from schemas.codec import Problem, Record
from schemas.ids import DataHash, EventId
from schemas.thread import APPLIED, Verdict
from services.ingest.streams.frames import FoldedRecord, cut_frame, fact_frame, fact_json, folded_record, progress_frame
from tests.support.recorded.histories import KEY, START_MS

FACT = FoldedRecord(
    3,
    "0d9b…",
    "turn.ended",
    START_MS,
    "service:runtime",
    None,
    "applied",
    None,
    2,
    17,
    b'{"turn":1,"text":"\\u00e9 ok"}',
)


def record(problem: Problem | None) -> Record:
    return Record(KEY, 1, EventId("x"), "other.thing", START_MS, "user:a", "test", None, DataHash(""), None, problem)


def test_a_fact_is_one_event_with_its_data_spliced_in() -> None:
    frame = fact_frame(FACT)
    assert frame.sse == b"id: 3\nevent: turn.ended\ndata: " + fact_json(FACT) + b"\n\n"
    assert frame.seq == 3
    body = orjson.loads(fact_json(FACT))
    assert list(body) == ["seq", "id", "type", "time", "actor", "cause", "effect", "reason", "position", "data"]
    assert body["position"] == {"partition": 2, "offset": 17}
    assert body["data"] == {"turn": 1, "text": "é ok"}


def test_whatever_a_record_holds_its_event_is_three_lines_of_json() -> None:
    odd = FACT._replace(
        kind="evil\nid: 99",
        actor='user:"\n',
        cause="c\\",
        reason="ré\x00\n\n",
        data=b'{\n"a":\r\n1}',
        effect="rejected",
    )
    frame = fact_frame(odd).sse
    lines = frame.split(b"\n")
    assert [line.partition(b":")[0] for line in lines] == [b"id", b"event", b"data", b"", b""]
    assert lines[1] == b"event: unreadable"
    body = orjson.loads(lines[2].removeprefix(b"data: "))
    assert (body["type"], body["actor"], body["reason"]) == ("evil\nid: 99", 'user:"\n', "ré\x00\n\n")
    assert body["data"] == {"a": 1}


@pytest.mark.parametrize("kind", ["", "a\rb", "\x85", "\u2028"])
def test_a_kind_that_is_no_line_is_not_one(kind: str) -> None:
    assert b"\nevent: unreadable\n" in fact_frame(FACT._replace(kind=kind)).sse


@pytest.mark.parametrize(
    ("problem", "value", "shown"),
    [
        (Problem(False, "unknown"), b'{"a":1}', b'{"a":1}'),
        (Problem(False, "unknown"), b"not json", None),
        (Problem(False, "unknown"), b'"\\u0000"', None),
        (Problem(False, "unknown"), b"NaN", None),
        (Problem(False, "unknown"), None, None),
        (Problem(True, "broken"), b'{"a":1}', None),
    ],
)
def test_what_is_not_understood_is_shown_where_it_is_json(
    problem: Problem, value: bytes | None, shown: bytes | None
) -> None:
    folded = folded_record(record(problem), value, 1, Verdict("ignored"), 0)
    assert folded.data == shown
    assert orjson.loads(fact_json(folded))["data"] == (None if shown is None else orjson.loads(shown))


def test_live_events_have_no_id() -> None:
    assert progress_frame("delta", b'{"a":\n1}').sse == b'event: delta\ndata: {"a": 1}\n\n'
    assert cut_frame(7, 'why "so"') == b'event: cut\ndata: {"after":7,"reason":"why \\"so\\""}\n\n'
    assert folded_record(record(None), None, 1, APPLIED, 0).data is None
