"""How calls of Codex ended, in each version's form.

    0.29, 0.36   the output is JSON, `{"output": …, "metadata": {"exit_code": N}}`
    0.80         a text that begins `Exit code: N`
    from 0.118   a text with `Process exited with code N` in its heading
    from 0.171   also an item of what was run, with status, exit code and times

A call that failed before anything ran has a plain text in all of them.
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import JsonValue

from services.importer.codex.records import texts_of, word
from services.importer.model import Blob, CallEnd, Change

TELL_EXIT_CODE = frozenset({"shell", "container.exec", "local_shell", "shell_command", "exec_command", "apply_patch"})
"""Tools that tell an exit code whenever they ran something: a plain text of theirs is a failure."""
ANSWER_IN_JSON = frozenset({"spawn_agent", "wait_agent", "wait", "close_agent", "send_input", "resume_agent"})
"""Tools whose result is a JSON object: a plain text of theirs is a failure."""

_HEADING = re.compile(
    r"Wall time: [\d.]+ seconds?\n(?:Process exited with code (-?\d{1,10})|Process running with session ID"
    r"|(aborted by user))"
)
_EXIT_CODE = re.compile(r"Exit code: (-?\d{1,10})\n")
_REJECTED = ("exec command rejected", "patch rejected", "rejected by user", "rejected:")
"""Texts of calls that a person or a policy refused."""
_FAILED = (
    "unsupported call",
    "unsupported custom tool call",
    "failed to parse function arguments",
    "error: ",
    "err: ",
    "execution error",
    "tool call error",
    "apply_patch verification failed",
    "user rejected MCP tool call",
    "user cancelled MCP tool call",
    "Script failed",
)
"""Texts of calls that failed before anything ran."""
_SCRIPT = "Script "
"""What the tool `exec`, which runs JavaScript, says of a script. Below it is whatever the script printed."""
_SCRIPT_FAILED = "Script failed"
"""What `exec` says of a script that threw. It says nothing of the commands that the script ran."""
_TIMED_OUT = "command timed out after "


@dataclass(frozen=True, slots=True)
class End:
    """The end of a call, with the exit status of a command where the file has it."""

    end: CallEnd
    exit_code: int | None = None
    reason: str | None = None


def end_of_output(tool: str, output: object) -> End:
    """Return how a call ended. `output` is as its record has it: a text, content parts, or an object with `content` and
    `success`.
    """
    if type(output) is dict:
        inner = end_of_output(tool, output.get("content"))
        return inner if output.get("success") is not False or inner.end != "succeeded" else End("failed")
    if type(output) is list:
        first = next(iter(texts_of(output)), "")
        return End("failed", None, _first_line(first)) if first.startswith(_SCRIPT_FAILED) else End("succeeded")
    if type(output) is not str:
        return End("succeeded")
    if output.startswith('{"output":'):
        told = _end_in_json(output)
        if told is not None:
            return told
    if output.startswith(_SCRIPT):
        return _end_in_words(tool, output)
    code = _EXIT_CODE.match(output)
    if code is not None:
        return _by_code(int(code[1]), output)
    heading = _HEADING.search(output) if "Wall time: " in output else None
    if heading is not None:
        if heading[1] is not None:
            return _by_code(int(heading[1]), output)
        return End("cancelled", None, heading[2]) if heading[2] is not None else End("succeeded")
    return _end_in_words(tool, output)


def _end_in_json(output: str) -> End | None:
    """Return the end that JSON of 0.29 and 0.36 tells, or None where it is another JSON."""
    try:
        value = orjson.loads(output)
    except orjson.JSONDecodeError:
        return None
    metadata = value.get("metadata")
    code = metadata.get("exit_code") if type(metadata) is dict else None
    if type(code) is not int:
        return None
    shown = value.get("output")
    return _by_code(code, shown if type(shown) is str else "")


def _by_code(code: int, output: str) -> End:
    """Return the end by an exit status. The shell's timeout has the status 124."""
    if code == 0:
        return End("succeeded", 0)
    return End("timed_out" if code == 124 and _TIMED_OUT in output[:400] else "failed", code)


def _end_in_words(tool: str, output: str) -> End:
    """Return the end of a call whose output is only words. A tool that reports an exit status whenever it ran something
    did not run.
    """
    if output.startswith("aborted"):
        return End("cancelled", None, _first_line(output))
    if output.startswith(_REJECTED):
        return End("denied", None, _first_line(output))
    name = tool.rpartition(".")[2]
    if output.startswith(_FAILED) or name in TELL_EXIT_CODE:
        return End("failed", None, _first_line(output))
    if name in ANSWER_IN_JSON and not output.startswith("{"):
        return End("failed", None, _first_line(output))
    return End("succeeded")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:500]


def arguments_of(written: object) -> tuple[dict[str, JsonValue], str | None]:
    """Return the arguments of a function call. If they are not an object, they are empty, and what the model wrote is
    returned beside them.
    """
    if type(written) is dict:
        return written, None
    if type(written) is not str:
        return {}, None
    try:
        value = orjson.loads(written)
    except orjson.JSONDecodeError:
        return {}, written
    return (value, None) if type(value) is dict else ({}, written)


def shown_of(output: str) -> str:
    """Return what a command printed, as far as the model was shown it, without the heading."""
    if output.startswith('{"output":'):
        try:
            value = orjson.loads(output).get("output")
        except orjson.JSONDecodeError:
            return output
        return value if type(value) is str else output
    heading, found, printed = output.partition("\nOutput:\n")
    return printed if found else heading


def whole_of(printed: object, output: object) -> Blob | None:
    """Return everything that a command printed, where that is more than the model was shown."""
    if type(printed) is not str or not printed:
        return None
    shown = shown_of(output) if type(output) is str else ""
    if len(printed) <= len(shown):
        return None
    return Blob(printed.encode(errors="replace"), "text/plain", "output.txt")


def changes_of(changes: object) -> tuple[Change, ...]:
    """Return the files whose contents the record contains. Of an update it contains only the difference."""
    if type(changes) is not dict:
        return ()
    found: list[Change] = []
    for path, change in changes.items():
        content = change.get("content") if type(change) is dict else None
        if type(content) is not str:
            continue
        blob = Blob(content.encode(errors="replace"), "text/plain", path.rpartition("/")[2] or path)
        if change.get("type") == "add":
            found.append(Change(path, after=blob))
        elif change.get("type") == "delete":
            found.append(Change(path, before=blob))
    return tuple(found)


def child_of(output: object) -> str | None:
    """Return the thread that a call began, or None."""
    if type(output) is not str or not output.startswith("{"):
        return None
    try:
        value: Any = orjson.loads(output)
    except orjson.JSONDecodeError:
        return None
    return word(value.get("agent_id")) if type(value) is dict else None
