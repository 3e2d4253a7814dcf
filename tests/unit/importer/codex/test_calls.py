"""How calls of Codex ended, in each version's form."""

import pytest

from services.importer.codex.calls import End, changes_of, child_of, end_of_output, shown_of, whole_of

HEADING = "Chunk ID: 0a6f7e\nWall time: 0.0001 seconds\n"


@pytest.mark.parametrize(
    ("tool", "output", "end"),
    [
        ("shell", '{"output":"a\\n","metadata":{"exit_code":0,"duration_seconds":0.0}}', End("succeeded", 0)),
        ("shell", '{"output":"a\\n","metadata":{"exit_code":1,"duration_seconds":0.0}}', End("failed", 1)),
        (
            "shell",
            '{"output":"command timed out after 9 milliseconds\\n","metadata":{"exit_code":124}}',
            End("timed_out", 124),
        ),
        ("shell", '{"output":"timeout 1 x","metadata":{"exit_code":124}}', End("failed", 124)),
        ("shell", '{"output":"cut off', End("failed", None, '{"output":"cut off')),
        ("look", '{"output":"no metadata"}', End("succeeded")),
        ("look", '{"output":1,"metadata":{"exit_code":0}}', End("succeeded", 0)),
        ("shell_command", "Exit code: 0\nWall time: 0 seconds\nOutput:\nx", End("succeeded", 0)),
        ("shell_command", "Exit code: -1\nOutput:\n", End("failed", -1)),
        ("exec_command", f"{HEADING}Process exited with code 0\nOutput:\nx", End("succeeded", 0)),
        ("exec_command", f"Command: /bin/bash -lc 'x'\n{HEADING}Process exited with code 2\n", End("failed", 2)),
        (
            "exec_command",
            f"{HEADING}Process running with session ID 7\nOutput:\n{HEADING}Process exited with code 1\n",
            End("succeeded"),
        ),
        ("exec_command", "Wall time: 1.1 seconds\naborted by user", End("cancelled", None, "aborted by user")),
        ("exec_command", "aborted by user after 1.1s", End("cancelled", None, "aborted by user after 1.1s")),
        ("exec_command", "exec command rejected by user", End("denied", None, "exec command rejected by user")),
        ("exec_command", "Wall time: soon", End("failed", None, "Wall time: soon")),
        (
            "shell_command",
            "execution error: Sandbox(Signal(9))",
            End("failed", None, "execution error: Sandbox(Signal(9))"),
        ),
        ("shell", "error: no such lines\nmore", End("failed", None, "error: no such lines")),
        ("apply_patch", "no such lines", End("failed", None, "no such lines")),
        ("no_such_tool", "unsupported call: no_such_tool", End("failed", None, "unsupported call: no_such_tool")),
        ("update_plan", "Plan updated", End("succeeded")),
        ("multi_agent_v1.spawn_agent", '{"agent_id":"a"}', End("succeeded")),
        ("multi_agent_v1.spawn_agent", "no room", End("failed", None, "no room")),
        ("exec", "Script completed\nOutput:\n", End("succeeded")),
        ("exec", f"Script completed\nOutput:\n{HEADING}Process exited with code 1\n", End("succeeded")),
        ("exec", "Script failed\nOutput:\n", End("failed", None, "Script failed")),
        ("exec", [{"type": "input_text", "text": "Script failed\nOutput:\n"}], End("failed", None, "Script failed")),
        ("view_image", [{"type": "input_image", "image_url": "data:"}], End("succeeded")),
        ("mcp__a__b", {"content": "x", "success": True}, End("succeeded")),
        ("mcp__a__b", {"content": "x", "success": False}, End("failed")),
        ("mcp__a__b", {"content": "aborted", "success": False}, End("cancelled", None, "aborted")),
        ("mcp__a__b", None, End("succeeded")),
    ],
)
def test_the_end_of_a_call(tool: str, output: object, end: End) -> None:
    assert end_of_output(tool, output) == end


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ('{"output":"a","metadata":{}}', "a"),
        ('{"output":1}', '{"output":1}'),
        ('{"output":', '{"output":'),
        (f"{HEADING}Process exited with code 0\nOutput:\na\nOutput:\nb", "a\nOutput:\nb"),
        ("plain", "plain"),
    ],
)
def test_what_a_command_printed_is_what_follows_the_heading(output: str, printed: str) -> None:
    assert shown_of(output) == printed


def test_an_output_is_kept_whole_where_more_of_it_is_there_than_was_shown() -> None:
    assert whole_of("ab", f"{HEADING}\nOutput:\nab") is None
    assert whole_of("abc", [{"text": "ab"}]) is not None
    whole = whole_of("abc", f"{HEADING}\nOutput:\na…c")
    assert whole is None
    whole = whole_of("a long output", f"{HEADING}\nOutput:\na…t")
    assert whole is not None
    assert (whole.content, whole.media_type) == (b"a long output", "text/plain")
    assert whole_of(None, "x") is None
    assert whole_of("", None) is None


def test_changes_that_are_none() -> None:
    assert changes_of(None) == ()
    assert changes_of({"/a": "x", "/b": {"type": "add"}, "/c": {"type": "novelty", "content": "x"}}) == ()


@pytest.mark.parametrize("output", [None, "plain", '{"agent_id":', '{"agent_id":1}'])
def test_a_result_that_names_no_thread(output: object) -> None:
    assert child_of(output) is None
