"""Records of Codex, for what no genuine session at hand shows."""

from collections.abc import Iterable
from typing import Any

from services.importer.codex.session import normalise
from services.importer.companions import NoCompanions
from services.importer.lines import Line
from services.importer.model import Counts, Header, Piece, Turn

SESSION = "0a111111-2222-4333-8444-555555555555"


class Session:
    """Lines as they come, a second apart."""

    def __init__(self, version: str = "0.80.0", **meta: Any) -> None:
        self.records: list[dict[str, Any]] = []
        self.add("session_meta", {"id": SESSION, "cwd": "/work", "cli_version": version, **meta})

    def add(self, kind: str, payload: dict[str, Any]) -> "Session":
        number = len(self.records)
        stamp = f"2026-11-29T16:{number // 60:02}:{number % 60:02}.000Z"
        self.records.append({"timestamp": stamp, "type": kind, "payload": payload})
        return self

    def event(self, kind: str, **payload: Any) -> "Session":
        return self.add("event_msg", {"type": kind, **payload})

    def item(self, kind: str, **payload: Any) -> "Session":
        return self.add("response_item", {"type": kind, **payload})

    def completed(self, item: dict[str, Any], **payload: Any) -> "Session":
        return self.event("item_completed", item=item, **payload)

    def prompt(self, text: str) -> "Session":
        self.user_item(text)
        return self.event("user_message", message=text)

    def user_item(self, text: str, **more: Any) -> "Session":
        return self.item("message", role="user", content=[{"type": "input_text", "text": text}], **more)

    def answer(self, text: str) -> "Session":
        self.event("agent_message", message=text)
        return self.item("message", role="assistant", content=[{"type": "output_text", "text": text}])

    def call(self, call_id: str, name: str = "shell_command", arguments: str = "{}", **more: Any) -> "Session":
        return self.item("function_call", call_id=call_id, name=name, arguments=arguments, **more)

    def output(self, call_id: str, output: Any) -> "Session":
        return self.item("function_call_output", call_id=call_id, output=output)

    def context(self, model: str = "gpt") -> "Session":
        return self.add("turn_context", {"model": model, "cwd": "/work"})

    def tokens(self, total: int, last: int) -> "Session":
        info = {"total_token_usage": {"input_tokens": total}, "last_token_usage": {"input_tokens": last}}
        return self.event("token_count", info=info)

    def lines(self) -> list[Line]:
        return [Line(number, record) for number, record in enumerate(self.records, 1)]

    def pieces(self, counts: Counts | None = None) -> list[Piece]:
        return pieces_of(self.lines(), counts)


def pieces_of(lines: Iterable[Line], counts: Counts | None = None, name: str = "session.jsonl") -> list[Piece]:
    return list(normalise(lines, Counts() if counts is None else counts, companions=NoCompanions(name)))


def turns_of(pieces: Iterable[Piece]) -> list[Turn]:
    return [piece for piece in pieces if isinstance(piece, Turn)]


def header_of(pieces: list[Piece]) -> Header:
    header = pieces[0]
    assert isinstance(header, Header)
    return header
