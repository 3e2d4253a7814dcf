"""Sessions of any length, in the forms of both tools; reduced to what an importer reads."""

import json
from pathlib import Path
from typing import TextIO, TypeAlias

Record: TypeAlias = dict[str, object]

TIME = "2026-01-01T00:00:00.000Z"
THOUGHT_BYTES = 1_200
"""Of an encrypted thought, as most responses of reasoning models have one."""
CONTEXT = {
    "cwd": "/w",
    "approval_policy": "on-request",
    "sandbox_policy": {"mode": "workspace-write", "network_access": False, "exclude_tmpdir_env_var": False},
    "model": "gpt-5-codex",
    "effort": "medium",
    "summary": "auto",
}
LINE = "the quick brown fox jumps over the lazy dog, 0123456789\n"


def write_codex(path: Path, turns: int, output_bytes: int = 2_000, calls: int = 1) -> None:
    """Turns of some calls, one after the other, and an answer, as Codex 0.36 writes them."""
    with path.open("w") as file:
        _codex(file, "session_meta", {"id": "made", "timestamp": TIME, "cwd": "/w", "cli_version": "0.36.0"})
        for number in range(turns):
            _codex_turn(file, number, output_bytes, calls)


def _codex(file: TextIO, kind: str, payload: object) -> None:
    file.write(json.dumps({"timestamp": TIME, "type": kind, "payload": payload}) + "\n")


def _codex_turn(file: TextIO, number: int, output_bytes: int, calls: int) -> None:
    question, answer = f"question {number}", f"answer {number}"
    output = json.dumps({"output": _printed(output_bytes), "metadata": {"exit_code": 0, "duration_seconds": 0.1}})

    def said(role: str, kind: str, text: str) -> None:
        _codex(file, "response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}]})

    def counted(step: int) -> None:
        last = {"input_tokens": 1, "output_tokens": 1}
        total = number * (calls + 1) + step + 1
        info = {"total_token_usage": {"input_tokens": total, "output_tokens": total}, "last_token_usage": last}
        _codex(file, "event_msg", {"type": "token_count", "info": info})

    said("user", "input_text", question)
    _codex(file, "event_msg", {"type": "user_message", "message": question})
    thought = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": _printed(THOUGHT_BYTES)}
    for index in range(calls):
        _codex(file, "turn_context", CONTEXT)
        counted(index)
        _codex(file, "response_item", thought)
        call = {"type": "function_call", "name": "shell", "arguments": '{"command":["ls","-1"]}'}
        _codex(file, "response_item", {**call, "call_id": f"call_{number}_{index}"})
        ended = {"type": "function_call_output", "call_id": f"call_{number}_{index}", "output": output}
        _codex(file, "response_item", ended)
    _codex(file, "turn_context", CONTEXT)
    _codex(file, "event_msg", {"type": "agent_message", "message": answer})
    counted(calls)
    said("assistant", "output_text", answer)


def _printed(output_bytes: int) -> str:
    return (LINE * (output_bytes // len(LINE) + 1))[:output_bytes]


def write_claude(path: Path, turns: int, output_bytes: int = 2_000, calls: int = 1) -> None:
    """Turns of some calls, one after the other, and an answer, as Claude Code 2.0 writes them."""
    parent: str | None = None
    with path.open("w") as file:
        for number in range(turns):
            parent = _claude_turn(file, number, output_bytes, calls, parent)


def write_claude_branch(path: Path, *, is_left: bool) -> None:
    """Two turns; or, once a person went back to the first and on from there, a third one in place of the second."""
    with path.open("w") as file:
        first = _claude_turn(file, 0, 100, 1, None)
        _claude_turn(file, 1, 100, 1, first)
        if is_left:
            _claude_turn(file, 2, 100, 1, first)


def _claude_turn(file: TextIO, number: int, output_bytes: int, calls: int, parent: str | None) -> str | None:
    output = _printed(output_bytes)
    said: list[tuple[str, Record, Record]] = [("user", {"role": "user", "content": f"question {number}"}, {})]
    for index in range(calls):
        name = f"toolu_{number:08}{index:04}"
        use: Record = {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": "ls -1"}}
        result = {"type": "tool_result", "tool_use_id": name, "content": output, "is_error": False}
        ran: Record = {"stdout": output, "stderr": "", "interrupted": False, "isImage": False}
        said.append(("assistant", _claude_message(f"{number}-{index}", use, "tool_use"), {}))
        said.append(("user", {"role": "user", "content": [result]}, {"toolUseResult": ran}))
    text: Record = {"type": "text", "text": f"answer {number}"}
    said.append(("assistant", _claude_message(f"{number}-end", text, "end_turn"), {}))
    for place, (kind, message, more) in enumerate(said):
        uuid = f"{number:08x}-0000-4000-8000-{place:012x}"
        record = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/w",
            "sessionId": "made",
            "version": "2.0.65",
            "type": kind,
            "message": message,
            "uuid": uuid,
            "timestamp": TIME,
            **more,
        }
        file.write(json.dumps(record) + "\n")
        parent = uuid
    return parent


def _claude_message(name: str, block: Record, stop_reason: str) -> Record:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3}
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [block],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def write_nested_agents(folder: Path) -> tuple[Path, Path, Path]:
    """A session of Claude Code 2.0, a sub-agent of it, and a sub-agent of that one, each in a file of its own. All name
    the session alone.
    """
    recorded = Path(__file__).parent / "claude"
    session, agent = "5e550007-0000-4000-8000-000000000000", "a58020f"
    lines = (recorded / "2.0.65_08_subagent.jsonl").read_text().splitlines(keepends=True)
    places = (folder / f"{session}.jsonl", folder / "agent-middle.jsonl", folder / f"agent-{agent}.jsonl")
    places[0].write_text("".join(lines).replace(agent, "middle"))
    middle = "".join([line for line in lines if "queue-operation" not in line])
    for old, new in (
        ('"isSidechain":false', '"isSidechain":true,"agentId":"middle"'),
        ('uuid":"u', 'uuid":"m'),
        ('parentUuid":"u', 'parentUuid":"m'),
        ('"msg_', '"msg_m'),
        ("call_14", "call_m"),
        ("Delegate the counting to a helper.", "COUNT-LINES: count the lines of hello.py"),
    ):
        middle = middle.replace(old, new)
    places[1].write_text(middle)
    places[2].write_bytes((recorded / "2.0.65_08_subagent--agent-a58020f.jsonl").read_bytes())
    return places
