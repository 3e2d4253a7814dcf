"""Whatever happens to the lines of a session: no exception, and no prompt that gets lost without a word."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from services.importer.lines import FileSource, Line, Record
from services.importer.model import Call, Counts, Header, Input, Piece, Step, Turn
from tests.support.sessions.codex_records import pieces_of

REDUCED = Path(__file__).resolve().parents[1] / "support" / "sessions" / "codex"
SESSIONS = {path.name: list(FileSource(path)) for path in sorted(REDUCED.glob("*.jsonl"))}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def prompts_in(lines: list[Line]) -> set[str]:
    """Texts that a person wrote, as events or items tell of them."""
    return {text for line in lines if line.record is not None for text in _prompt(line.record)}


def _prompt(record: Record) -> list[str]:
    payload = record.get("payload", record)
    if payload.get("type") == "user_message":
        return [payload["message"]]
    item = payload.get("item")
    if isinstance(item, dict) and item.get("type") == "UserMessage":
        return [part["text"] for part in item["content"]]
    if payload.get("type") == "message" and payload.get("role") == "user":
        return [part["text"] for part in payload["content"] if not part["text"].startswith("<")]
    return []


def prompts_of(pieces: list[Piece]) -> set[str]:
    turns = [piece for piece in pieces if isinstance(piece, Turn)]
    sent = [one for turn in turns for one in (*turn.inputs, *[p for p in turn.pieces if isinstance(p, Input)])]
    return {item.text for one in sent for item in one.items if item.type == "text"}


def check(pieces: list[Piece]) -> None:
    """What holds of any pieces."""
    assert not pieces or isinstance(pieces[0], Header)
    assert [piece for piece in pieces[1:] if isinstance(piece, Header)] == []
    turns = [piece for piece in pieces if isinstance(piece, Turn)]
    assert all(not turn.is_open for turn in turns[:-1])
    steps = [piece for turn in turns for piece in turn.pieces if isinstance(piece, Step)]
    calls = [call for step in steps for call in step.calls]
    for names in ([turn.source_id for turn in turns], [step.source_id for step in steps], _names(calls)):
        assert len(set(names)) == len(names)


def _names(calls: list[Call]) -> list[str]:
    return [call.source_id for call in calls]


@st.composite
def disordered(draw: st.DrawFn) -> list[Line]:
    """Lines that were dropped, doubled and shuffled, of one session."""
    lines = SESSIONS[draw(st.sampled_from(sorted(SESSIONS)))]
    kept = draw(st.lists(st.sampled_from(lines), max_size=2 * len(lines)))
    how = draw(st.sampled_from(["as drawn", "in order", "mostly whole"]))
    if how == "in order":
        kept.sort(key=lambda line: line.number)
    elif how == "mostly whole":
        dropped = {line.number for line in kept[:5]}
        kept = [line for line in lines if line.number not in dropped]
    return kept


@given(disordered())
def test_lines_may_be_lost_and_doubled_and_in_any_order(lines: list[Line]) -> None:
    counts = Counts()
    pieces = pieces_of(lines, counts)
    check(pieces)
    assert counts.records == len(lines)
    assert prompts_in(lines) <= prompts_of(pieces)


@given(st.sampled_from(sorted(SESSIONS)), st.data())
def test_anything_may_stand_anywhere_in_a_record(name: str, data: st.DataObject) -> None:
    lines = SESSIONS[name]
    changed: list[Line] = []
    touched = data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=6))
    for place, line in enumerate(lines):
        if place in touched:
            record = json.loads(orjson.dumps(line.record))
            _change(record, data)
            changed.append(Line(line.number, record))
        else:
            changed.append(line)
    counts = Counts()
    pieces = pieces_of(changed, counts)
    check(pieces)
    whole = [line for place, line in enumerate(lines) if place not in touched]
    assert prompts_in(whole) <= prompts_of(pieces)


def _change(record: dict[str, Any], data: st.DataObject) -> None:
    """Puts anything in the place of one value, or takes it away."""
    at: Any = record
    for _ in range(data.draw(st.integers(0, 4))):
        inner = [value for value in (at.values() if isinstance(at, dict) else at) if isinstance(value, dict | list)]
        if not any(inner):
            break
        at = data.draw(st.sampled_from([value for value in inner if value]))
    place = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at)))))
    if data.draw(st.booleans()):
        at[place] = data.draw(VALUES)
    else:
        del at[place]


ODD: list[Any] = [None, [], {"a": []}]


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*path, name)
        yield from places(part, (*path, name))


def test_every_value_of_every_kind_of_record_may_be_of_another_type() -> None:
    seen: set[tuple[object, ...]] = set()
    for lines in SESSIONS.values():
        for line in lines:
            for path in places(line.record):
                payload = (line.record or {}).get("payload", {})
                kinds = (payload.get("type"), (payload.get("item") or {}).get("type"))
                if (kinds, path) in seen:
                    continue
                seen.add((kinds, path))
                for value in ODD:
                    record = json.loads(orjson.dumps(line.record))
                    at = record
                    for name in path[:-1]:
                        at = at[name]
                    at[path[-1]] = value
                    check(
                        pieces_of([changed if changed is not line else Line(line.number, record) for changed in lines])
                    )
    assert len(seen) > 300


@given(st.lists(st.dictionaries(st.text(max_size=8), VALUES, max_size=4), max_size=6))
def test_records_of_any_kind_are_counted(records: list[Record]) -> None:
    counts = Counts()
    check(pieces_of([Line(number, record) for number, record in enumerate(records, 1)], counts))
    assert counts.records == len(records)


@given(st.sampled_from(sorted(SESSIONS)), st.data())
def test_what_a_beginning_gives_all_of_it_gives(name: str, data: st.DataObject) -> None:
    lines = SESSIONS[name]
    end = data.draw(st.integers(0, len(lines)))
    settled = [piece for piece in pieces_of(lines[:end]) if not isinstance(piece, Header)]
    settled = [piece for piece in settled if not getattr(piece, "is_open", False)]
    assert settled == [piece for piece in pieces_of(lines) if not isinstance(piece, Header)][: len(settled)]
