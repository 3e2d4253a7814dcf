"""Whatever happens to the lines of a session, reading it ends, and no prompt is lost without a trace."""

import functools
import io
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.importer.claude_code.records import Kind, content_of, kind_of
from services.importer.lines import read_lines
from services.importer.model import Compaction, Counts, Discarded, Header, Input, Piece, Plan, Step, Title, Turn
from tests.support.sessions.claude_sessions import FOLDER, MadeCompanions, Script, calls_of, lines_of, pieces_of

COUNTED = ("duplicate uuid", "another session")


def scripted() -> bytes:
    """What no genuine session at hand holds: branches, sub-agents within the file, steering, two compactions."""
    script = Script(version="1.0.98")
    script.prompt("First")
    first = script.call("call-1", "Task", prompt="Count A")
    agent = Script(version="1.0.98", sidechain=True, prefix="s", records=script.records)
    agent.prompt("Count A")
    agent.call("call-s", command="wc")
    agent.result("call-s", "4")
    agent.answer("4 lines.")
    script.result("call-1", "4 lines.", kept={"isAsync": True, "agentId": "a1"})
    script.compaction("One.")
    script.add("attachment", attachment={"type": "queued_command", "prompt": "Quietly", "commandMode": "prompt"})
    script.answer("Done.")
    script.prompt("Second")
    script.line("queue-operation", operation="enqueue", content="Later")
    script.compaction("Two.", "manual")
    script.prompt("<command-name>/review</command-name>")
    script.prompt("Review it.", isMeta=True)
    script.answer("Fine.")
    script.at(first).prompt("Another way")
    script.answer("Well.")
    script.prompt("<task-notification><task-id>a1</task-id></task-notification>")
    script.prompt("[Request interrupted by user]")
    return lines_of(script.records)


@functools.cache
def sessions() -> list[list[bytes]]:
    contents = [path.read_bytes() for path in sorted(FOLDER.glob("*.jsonl"))]
    return [content.splitlines(keepends=True) for content in [*contents, scripted()]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [inner for name, part in parts for inner in paths(part, (*path, name))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for name in path[:-1]:
        value = value[name]
    value[path[-1]] = new


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    lines = list(draw(st.sampled_from(sessions())))
    for _ in range(draw(st.integers(1, 6))):
        if not lines:
            break
        place = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "repeat", "swap", "value", "value", "value", "cut", "foreign", "bytes"])):
            case "drop":
                del lines[place]
            case "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[place])
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[place], lines[other] = lines[other], lines[place]
            case "value":
                lines[place] = altered(draw, lines[place])
            case "cut":
                lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))] + b"\n"
            case "foreign":
                lines.insert(place, draw(st.sampled_from(draw(st.sampled_from([part for part in sessions() if part])))))
            case "bytes":
                lines[place] = lines[place].replace(b"prompt", b"\xff\x00").replace(b"The", b"\\ud800")
    if draw(st.booleans()):
        lines = draw(st.permutations(lines))
    return b"".join(lines)


def altered(draw: st.DrawFn, line: bytes) -> bytes:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    places = paths(record)
    if places:
        put(record, draw(st.sampled_from(places)), draw(json_values))
    try:
        return orjson.dumps(record) + b"\n"
    except (TypeError, orjson.JSONEncodeError):
        return line


@given(content=damaged())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_damage_is_never_fatal_and_loses_no_prompt(content: bytes) -> None:
    check(content)


@pytest.mark.parametrize("place", range(len(sessions())))
def test_lines_in_any_order_lose_no_prompt(place: int) -> None:
    lines = sessions()[place]
    for turned in (lines[::-1], lines[1::2] + lines[::2], lines[len(lines) // 2 :] + lines[: len(lines) // 2]):
        check(b"".join(turned))


def check(content: bytes) -> None:
    counts = Counts()
    pieces = pieces_of(content, MadeCompanions("session.jsonl"), counts)
    lines = list(read_lines(io.BytesIO(content)))
    assert counts.records == sum(line.record is not None for line in lines)
    assert counts.bad_lines == sum(line.record is None for line in lines)
    skipped = {"warm-up agent", "internal agent"} & counts.not_understood.keys()
    if not skipped:
        shown = shown_inputs(pieces)
        prompts = [line for line in lines if line.record is not None and is_prompt(line.record)]
        lost = [line.record for line in prompts if line.number not in shown]
        assert len(lost) <= sum(counts.not_understood.get(name, 0) for name in COUNTED), lost
        if not counts.not_understood:
            assert told_calls([line.record for line in lines if line.record is not None]) <= {
                call.source_id for call in calls_of(pieces)
            }
    names = [piece.source_id for piece in pieces if isinstance(piece, Header)]
    assert len(set(names)) == len(names)
    assert pieces == [] or isinstance(pieces[0], Header)
    calls = [call.source_id for call in calls_of(pieces)]
    assert len(set(calls)) == len(calls)
    for piece in pieces:
        well_formed(piece)


def is_prompt(record: dict[str, Any]) -> bool:
    return kind_of(record) is Kind.PROMPT and "Warmup" not in str(record.get("message"))


def told_calls(records: list[dict[str, Any]]) -> set[str]:
    answers = [r for r in records if kind_of(r) is Kind.ANSWER and r.get("isApiErrorMessage") is not True]
    contents = [content for record in answers if isinstance(content := content_of(record), list)]
    blocks = [block for content in contents for block in content if isinstance(block, dict)]
    names = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    return {name for name in names if isinstance(name, str) and name}


def shown_inputs(pieces: list[Piece]) -> set[int]:
    """Lines of what was given as an input, whatever became of it."""
    found: list[Input] = []
    for piece in pieces:
        if isinstance(piece, Turn):
            found += piece.inputs
            found += [part for part in piece.pieces if isinstance(part, Input)]
        elif isinstance(piece, Discarded):
            found.append(piece.input)
    return {item.origin.line for item in found}


def well_formed(piece: Piece) -> None:
    match piece:
        case Turn():
            assert piece.outcome != "completed" or any(isinstance(part, Step) for part in piece.pieces)
            assert all(not item.steers for item in piece.inputs)
            for part in piece.pieces:
                assert isinstance(part, Step | Compaction | Plan | Input)
                assert not isinstance(part, Input) or part.steers
                for call in part.calls if isinstance(part, Step) else ():
                    assert isinstance(call.args, dict)
                    assert (call.end == "denied") == (call.approval == "denied")
        case Title():
            assert piece.title
        case _:
            pass


def test_a_long_chain_of_parents_is_followed_without_recursion() -> None:
    script = Script()
    for number in range(3000):
        script.prompt(f"P{number}")
    script.records.reverse()
    check(lines_of(script.records))


def test_deep_nesting_in_what_a_call_was_given() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"a": [deep]}
    script = Script()
    script.prompt("Do it")
    script.call("call-1", command=deep)
    script.result("call-1", [deep])
    check(lines_of(script.records))


def test_separators_and_zero_bytes_in_text_are_text() -> None:
    script = Script()
    script.prompt("a\u2028b\u0085c\x00d")
    script.answer("e\u2029f")
    check(lines_of(script.records))
