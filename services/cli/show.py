"""A thread's events as a person reads them in a terminal. Pure: events in, text out."""

import json
import re
from typing import Final

from pydantic import JsonValue

from services.client.sse import Fact, JsonObject, Live

HASH: Final = re.compile(r"=[0-9a-f]{64}$")
"""Values that no person reads."""
LINE_CHARACTERS_MAX: Final = 160
"""Longest line of a record."""
RESULT_LINES_MAX: Final = 6
"""Lines of a tool's result that are shown."""
LOST: Final = " (run again where that is safe; else unknown, until somebody settles it)"

SETTLED_BY_PEOPLE: Final = frozenset(
    {"tool_call.approved", "tool_call.denied", "tool_call.approval_expired", "tool_call.resolved"}
)
"""Kinds of events by which people, or policies for them, settle calls."""

DIM, BOLD, RED, GREEN, YELLOW, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


def line(fact: Fact) -> str:
    """Return one line for a record: seq, time, what it is, and the verdict if it had no effect."""
    time = str(fact.body["time"])[11:23]
    verdict = "" if fact.applied else f"  {fact.effect}: {fact.body['reason']}"
    return f"{fact.seq:>5}  {time}  {fact.kind:<28} {shortened(_about(fact), LINE_CHARACTERS_MAX)}{verdict}".rstrip()


def shortened(text: str, characters: int) -> str:
    """Return the text in one line, cut with an ellipsis."""
    flat = " ".join(text.split())
    return flat if len(flat) <= characters else f"{flat[: characters - 1]}…"


class Conversation:
    """Shows what a chat shows: answers as they come, calls and their results. It remembers what was shown live."""

    def __init__(self, *, colors: bool, result_lines_max: int = RESULT_LINES_MAX) -> None:
        self._colors = colors
        self._result_lines_max = result_lines_max
        self._shown: dict[tuple[int, int, int], str] = {}
        self._last_step = (0, 0)
        self._heard: dict[str, str] = {}
        """Call → the output that was shown live."""
        self._waiting: dict[str, tuple[str, bool]] = {}
        """Id of a steering input that no step has taken yet → its text, and whether it is for the open turn only."""
        self._at_line_start = True
        self.open_turn: int | None = None

    def live(self, event: Live) -> str:
        """Return what to print for a sign of life. Text that comes after its answer is dropped."""
        data = event.data
        if event.kind == "tool_output":
            call, text = str(data["call"]), str(data["text"])
            self._heard[call] = self._heard.get(call, "") + text
            return self._write(self._paint(DIM, text))
        place = (_int(data, "turn"), _int(data, "step"), _int(data, "attempt"))
        if place[:2] <= self._last_step:
            return ""  # late: the answer is here already
        reasoning = data.get("reasoning")
        if reasoning is not None:
            return self._write(self._paint(DIM, str(reasoning)))
        before = "" if place in self._shown or not self._shown else self._new_line()
        text = str(data.get("text") or "")
        self._shown[place] = self._shown.get(place, "") + text
        return before + self._write(text)

    def fact(self, fact: Fact) -> str:
        """Return what to print for a record. A record without effect prints nothing."""
        if not fact.applied:
            return ""
        data = fact.data
        match fact.kind:
            case "turn.started":
                self.open_turn = _int(data, "turn")
                return ""
            case "step.finished":
                return self._step_finished(data)
            case "step.failed":
                error = data.get("error")
                message = str(error.get("message")) if isinstance(error, dict) else ""
                again = "asked again" if data.get("retriable") else "given up"
                return self._own_line(RED, f"the model failed ({again}): {shortened(message, LINE_CHARACTERS_MAX)}")
            case "input.submitted" | "step.started":
                return self._steering(fact)
            case _ if fact.kind in SETTLED_BY_PEOPLE:
                return self._settled_by_people(fact)
            case "tool_call.approval_requested":
                return self._own_line(YELLOW, f"{data['call']} waits for approval: {data['reason']}")
            case "tool_call.finished":
                return self._finished(data)
            case "tool_call.lost":
                return self._own_line(YELLOW, f"{data['call']} lost: {data['evidence']}{LOST}")
            case "plan.proposed" | "plan.approved" | "plan.rejected" | "task.updated":
                return self._plan(fact)
            case "turn.cancel_requested":
                return self._own_line(YELLOW, "cancelling …")
            case "turn.recovered":
                return self._own_line(YELLOW, f"taken over by another process: {data['found']}")
            case "turn.ended":
                return self._turn_ended(data)
            case _:
                return ""

    def note(self, text: str) -> str:
        """Return a note of whoever shows the conversation, on a line of its own."""
        return self._own_line(YELLOW, text)

    def _steering(self, fact: Fact) -> str:
        """Return a line when an input steers the turn, and one when a step takes it."""
        data = fact.data
        if fact.kind == "input.submitted":
            if data.get("mode") != "steer":
                return ""
            text = _said(data)
            self._waiting[str(data["input"])] = text, data.get("expected_turn") is not None
            return self._own_line(YELLOW, f"{fact.body['actor']} steers: {text}")
        inputs = data.get("inputs")
        taken = [self._waiting.pop(str(each), None) for each in (inputs if isinstance(inputs, list) else [])]
        place = f"turn {data['turn']}, step {data['step']}"
        return "".join([self._own_line(YELLOW, f"{place} takes it up: {each[0]}") for each in taken if each])

    def _settled_by_people(self, fact: Fact) -> str:
        """Return a line for a decision. Of a policy's decisions only denials are worth one."""
        data = fact.data
        call, by = data["call"], data.get("by")
        match fact.kind:
            case "tool_call.approved":
                is_policy = str(by).startswith("policy:")
                return "" if is_policy else self._own_line(GREEN, f"{call} approved by {by}")
            case "tool_call.denied":
                return self._own_line(
                    RED, f"{call} denied by {by}: {shortened(str(data['reason']), LINE_CHARACTERS_MAX)}"
                )
            case "tool_call.approval_expired":
                return self._own_line(RED, f"{call} denied: nobody decided in time")
            case _:
                note = f": {shortened(str(data['note']), LINE_CHARACTERS_MAX)}" if data.get("note") else ""
                return self._own_line(GREEN, f"{call} settled as {data['decision']} by {fact.body['actor']}{note}")

    def _plan(self, fact: Fact) -> str:
        data = fact.data
        version = data["plan_version"]
        match fact.kind:
            case "plan.proposed":
                written = self._own_line(BOLD, f"plan, version {version}:")
                for task in _objects(data, "tasks"):
                    needed = task.get("depends_on")
                    after = f" (after {', '.join(map(str, needed))})" if isinstance(needed, list) and needed else ""
                    line_ = shortened(f"{task['id']}: {task['title']}{after}", LINE_CHARACTERS_MAX)
                    written += self._own_line(BOLD, f"  {line_}")
                return written
            case "plan.approved":
                is_policy = str(data["by"]).startswith("policy:")
                return "" if is_policy else self._own_line(GREEN, f"plan {version} approved by {data['by']}")
            case "plan.rejected":
                reason = shortened(str(data["reason"]), LINE_CHARACTERS_MAX)
                return self._own_line(RED, f"plan {version} rejected by {data['by']}: {reason}")
            case _:
                color = {"running": DIM, "succeeded": GREEN}.get(str(data["status"]), RED)
                result = data.get("result")
                told = "" if result is None else f": {_result_text(result)}"
                return self._own_line(
                    color, shortened(f"task {data['task']} {data['status']}{told}", LINE_CHARACTERS_MAX)
                )

    def _step_finished(self, data: JsonObject) -> str:
        turn, step, attempt = _int(data, "turn"), _int(data, "step"), _int(data, "attempt")
        text = "".join([str(item["text"]) for item in _objects(data, "items") if item.get("type") == "text"])
        shown = self._shown.get((turn, step, attempt), "")
        self._shown.clear()
        self._last_step = (turn, step)
        written = ""
        if not text.startswith(shown):  # another attempt's answer won
            shown, written = "", self._new_line()
        written += self._write(text[len(shown) :])
        written += self._new_line()
        for call in _objects(data, "calls"):
            args = shortened(json.dumps(call.get("args"), ensure_ascii=False), LINE_CHARACTERS_MAX)
            written += self._own_line(BOLD, f"▸ {turn}.{step}.{call['index']} {call['tool']} {args}")
        return written

    def _finished(self, data: JsonObject) -> str:
        outcome = str(data["outcome"])
        color = GREEN if outcome == "succeeded" else RED
        written = self._own_line(color, f"{data['call']} {outcome} ({data.get('milliseconds', 0)} ms)")
        result = data.get("result")
        text = (result if isinstance(result, str) else _result_text(result)).strip()
        if text == self._heard.pop(str(data["call"]), "").strip():
            return written
        lines = text.splitlines()
        for shown in lines[: self._result_lines_max]:
            written += self._own_line(DIM, f"  {shown[:LINE_CHARACTERS_MAX]}")
        if len(lines) > self._result_lines_max:
            written += self._own_line(DIM, f"  … {len(lines) - self._result_lines_max} lines more")
        return written

    def _turn_ended(self, data: JsonObject) -> str:
        self.open_turn = None
        outcome, reason = str(data["outcome"]), data.get("reason")
        dropped = [text for text, is_for_this_turn in self._waiting.values() if is_for_this_turn]
        self._waiting.clear()
        untaken = "".join([self._own_line(YELLOW, f"the turn did not take up: {text}") for text in dropped])
        if outcome == "completed":
            return untaken or self._new_line()
        return untaken + self._own_line(YELLOW, f"the turn ended: {outcome}{f' ({reason})' if reason else ''}")

    def _own_line(self, color: str, text: str) -> str:
        return self._new_line() + self._write(self._paint(color, text)) + self._new_line()

    def _new_line(self) -> str:
        return "" if self._at_line_start else self._write("\n")

    def _write(self, text: str) -> str:
        if text:
            self._at_line_start = text.endswith("\n")
        return text

    def _paint(self, color: str, text: str) -> str:
        return f"{color}{text}{PLAIN}" if self._colors and text else text


def _about(fact: Fact) -> str:
    """Return the part of the data that says most, in a few words."""
    data = fact.data
    match fact.kind:
        case "input.submitted":
            return _said(data)
        case "step.finished":
            said = [str(item.get("text", "")) for item in _objects(data, "items")]
            calls = [f"{call['tool']}(…)" for call in _objects(data, "calls")]
            return f"{data['turn']}.{data['step']} {' '.join([*said, *calls])}"
        case "tool_call.finished":
            return f"{data['call']} {data['outcome']} {_result_text(data.get('result'))}"
        case "turn.ended":
            return f"{data['turn']} {data['outcome']} {data.get('reason') or ''}"
        case _:
            words = [f"{name}={value}" for name, value in data.items() if isinstance(value, str | int)]
            return " ".join([word for word in words if not HASH.search(word)])


def _said(data: JsonObject) -> str:
    return " ".join([str(item.get("text", item.get("name"))) for item in _objects(data, "items")])


def _result_text(result: JsonValue) -> str:
    """A tool's text where the result has the shape of MCP's content, else the JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        parts = [str(part["text"]) for part in _objects(result, "content") if isinstance(part.get("text"), str)]
        if parts:
            return "\n".join(parts)
    return "" if result is None else json.dumps(result, ensure_ascii=False)


def _objects(data: JsonObject, name: str) -> list[JsonObject]:
    value = data.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _int(data: JsonObject, name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else 0
