"""`threadlog export`: a thread out of a log, complete enough to be the log again."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.canonical import canonical_json, data_hash
from schemas.codec import Record, decode
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import NOTHING, dump_state
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from schemas.transcript import Transcript, context_hash, transcript_changes
from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Outgoing
from services.cli import export as export_module
from services.cli.__main__ import app
from services.cli.export import ExportError, export
from services.cli.exported import VERSION, Exported
from tests.support.recorded.histories import KEY, History, plain_turn
from tests.support.recorded.walks import CHOICES, Choice, as_read, walk
from tests.support.simulated.log import SimulatedBroker

TOPIC = THREAD_EVENTS.name
OTHER = ThreadKey(TenantId("acme"), ThreadId("t-2"))

Line = dict[str, Any]


def lines_of(records: Sequence[Incoming], key: ThreadKey = KEY) -> tuple[list[Line], list[Line]]:
    """Those of records, and what follows them."""
    exported = Exported(key)
    raw = [line for record in records if (line := exported.record(record)) is not None]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in raw)
    return [json.loads(line) for line in raw], [json.loads(line) for line in exported.tail().splitlines()]


def value_of(line: Line) -> bytes | None:
    """The bytes that the record has on the log, from the export alone."""
    if "value_base64" not in line:
        return canonical_json(line["data"])
    encoded = line["value_base64"]
    return None if encoded is None else base64.b64decode(encoded)


def headers_of(line: Line) -> tuple[tuple[str, bytes], ...]:
    def raw(value: Any) -> bytes:
        return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])

    return tuple([(name, raw(value)) for name, value in line["headers"]])


def log_of(lines: Sequence[Line], key: ThreadKey = KEY) -> list[Incoming]:
    return [
        Incoming(TOPIC, 0, line["offset"], line["timestamp_ms"], key.to_bytes(), value_of(line), headers_of(line))
        for line in lines
    ]


VALUES = st.sampled_from(
    [None, b"", b"null", b"{", b"\xff", b'{"b":1,"a":2}', b'{ "a":\n1.50 }', b'{"a":NaN}', b"[1e400]"]
)
ODD = st.tuples(st.integers(0, 100), VALUES, st.sampled_from([b"\xfe", b"1.0"]))


@given(st.lists(CHOICES, min_size=1, max_size=40), st.lists(ODD, max_size=5))
@settings(max_examples=100)
def test_an_export_is_the_log_and_what_it_comes_to(choices: list[Choice], odd: list[tuple[int, bytes, bytes]]) -> None:
    records = as_read(walk(choices))
    for place, value, version in odd:
        like = records[place % len(records)]
        headers = tuple((dict(like.headers) | {"ce_specversion": version}).items())
        records.insert(place % len(records), like._replace(value=value, headers=headers))
    records = [record._replace(offset=offset) for offset, record in enumerate(records)]
    strangers = [record._replace(key=OTHER.to_bytes()) for record in records[:3]]
    lines, (state, context) = lines_of([*strangers, *records])
    assert log_of(lines) == records

    folded, transcript = NOTHING, Transcript()
    for record, line in zip(records, lines, strict=True):
        decoded = decode(record.key, record.headers, record.value, record.offset, record.timestamp_ms)
        assert isinstance(decoded, Record)
        before = folded
        folded, verdict = fold(before, decoded)
        transcript.apply(transcript_changes(before, folded, decoded, verdict))
        assert (line["seq"], line["chain"]) == (folded.seq, folded.chain)
        assert (line["effect"], line["reason"]) == verdict
        assert (line["id"], line["type"]) == (decoded.id, decoded.kind)
        assert line["data_hash"] == data_hash(value_of(line) or b"")
    assert (state["seq"], state["chain"]) == (folded.seq, folded.chain)
    assert state["state"] == json.loads(dump_state(folded))
    items = transcript.context()
    assert (context["hash"], context["count"]) == (context_hash(items), len(items))
    assert [item["seq"] for item in context["items"]] == [item.seq for item in items]


def test_a_canonical_value_is_in_the_line_byte_for_byte() -> None:
    history = plain_turn(History())
    exported = Exported(KEY)
    for record in as_read(history):
        line = exported.record(record)
        assert line is not None and line.endswith(b',"data":' + (record.value or b"") + b"}\n")
        assert b"value_base64" not in line
    assert exported.tail().startswith(b'{"kind":"state"')
    assert b'"state":' + dump_state(history.state) + b"}\n" in exported.tail()


def test_a_record_without_an_id_is_shown_and_has_no_seq() -> None:
    [record, *_] = as_read(History().idle())
    lines, (state, _) = lines_of([record._replace(headers=())])
    assert (lines[0]["kind"], lines[0]["reason"]) == ("unreadable", "the header ce_id is missing")
    assert "seq" not in lines[0] and state["seq"] == 0
    assert log_of(lines) == [record._replace(headers=())]


# Out of a log


async def _log(*histories: History) -> Any:
    broker = SimulatedBroker({TOPIC: 4}, SystemClock())
    log = broker.connect("export")
    for history in histories:
        key = history.key.to_bytes()
        records = [Outgoing(key, made.value, made.headers, made.record.time_ms) for made in history.encoded]
        await log.appender.append(TOPIC, log.partition_for(key, 4), records)
    return log


async def test_an_export_has_a_header_the_records_and_an_end() -> None:
    log = await _log(plain_turn(History()), plain_turn(History(OTHER)))
    file, again = io.BytesIO(), io.BytesIO()
    await export(log, KEY, file, 5)
    head, *records, state, context = [json.loads(line) for line in file.getvalue().splitlines()]
    assert (head["kind"], head["format"], head["version"]) == ("header", "threadlog-export", VERSION)
    assert (head["tenant"], head["thread"], head["topic"]) == (*KEY, TOPIC)
    assert head["partition"] == log.partition_for(KEY.to_bytes(), 4)
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert (state["kind"], context["kind"]) == ("state", "context")
    await export(log, KEY, again, 5)
    assert again.getvalue() == file.getvalue(), "an export says nothing of when it was made"
    with pytest.raises(ExportError, match="has no record of acme/nobody"):
        await export(log, ThreadKey(TenantId("acme"), ThreadId("nobody")), io.BytesIO(), 5)
    await log.close()


async def test_a_log_that_gives_nothing_ends_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await _log(plain_turn(History()))
    opened = log.reader

    async def silent(offsets: Any) -> Any:
        reader = await opened(offsets)

        async def poll(timeout_ms: int) -> list[Any]:
            return []

        monkeypatch.setattr(reader, "poll", poll)
        return reader

    monkeypatch.setattr(log, "reader", silent)
    with pytest.raises(ExportError, match=r"gave nothing for 0\.01 s, at offset 0"):
        await export(log, KEY, io.BytesIO(), 0.01)


def test_a_file_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def half(key: ThreadKey, file: Any, idle_seconds: float) -> None:
        file.write(b"{}\n")
        if key.thread == "broken":
            raise ExportError("the log is away")

    monkeypatch.setattr(export_module, "_export", half)
    output = tmp_path / "thread.jsonl"
    run = CliRunner().invoke(app, ["export", "broken", "--tenant", "acme", "--output", str(output)])
    assert run.exit_code == 1 and "the log is away" in run.output
    assert list(tmp_path.iterdir()) == []
    run = CliRunner().invoke(app, ["export", "whole", "--tenant", "acme", "--output", str(output)])
    assert run.exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["thread.jsonl"] and output.read_bytes() == b"{}\n"
    run = CliRunner().invoke(app, ["export", "not a name"])
    assert run.exit_code == 1 and "is not the name of a thread" in run.output
