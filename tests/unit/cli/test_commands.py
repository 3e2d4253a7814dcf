import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx2
import orjson
import pytest
from typer.testing import CliRunner

from services.cli import chat
from services.cli.__main__ import app, main
from services.cli.chat import Chat
from services.cli.local.dev import KAFKA_VARIABLE, settings_of
from services.client.client import ThreadlogClient
from tests.unit.client.fake_server import Answer, FakeServer, fact_event, json_answer

COMMANDS = [
    ["dev"],
    ["chat"],
    ["tail"],
    ["services", "run"],
    ["services", "list"],
    ["topics", "apply"],
    ["topics", "check"],
    ["migrate"],
    ["rebuild"],
    ["verify"],
    ["export"],
    ["keys", "create"],
    ["keys", "revoke"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize("command", [["rebuild"], ["migrate"], ["services", "run", "projector"]], ids=" ".join)
def test_a_wrong_setting_is_named_in_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THREADLOG_POSTGRES_POOL_MAX", "s3cret")
    monkeypatch.setattr("sys.argv", ["threadlog", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and "s3cret" not in said
    assert said.startswith("threadlog: THREADLOG_POSTGRES_POOL_MAX: Input should be a valid integer")


def test_a_service_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(app, ["services", "run", "nothing"])
    assert result.exit_code == 2
    assert "tool-executor" in result.output


def test_settings_are_those_that_a_service_would_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_VARIABLE, "elsewhere:1")
    environment = {KAFKA_VARIABLE: "here:1", "THREADLOG_KAFKA_IDEMPOTENCE": "false", "THREADLOG_INGEST_PORT": "1"}
    settings = settings_of(environment)
    assert (settings.kafka_bootstrap_servers, settings.kafka_idempotence) == ("here:1", False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A thread `t1` whose turn ends once it was cancelled."""
    cancelled = False

    def handle(request: httpx2.Request) -> Answer:
        nonlocal cancelled
        match request.method, request.url.path:
            case "POST", path if path.endswith("/cancel"):
                cancelled = True
                return json_answer({"thread": "t1"}, 202)
            case "POST", _:
                return json_answer({"thread": "t1"}, 202)
            case _ if "text/event-stream" not in request.headers["accept"]:
                fact = {"seq": 1, "type": "thread.created", "effect": "applied", "data": {}}
                return json_answer({"events": [fact], "next_after": 1, "end": True})
        after = int(request.url.params["after"])
        facts = [fact_of(1, "thread.created"), fact_of(2, "turn.started", turn=1)]
        if cancelled:
            facts.append(fact_of(3, "turn.ended", turn=1, outcome="aborted", reason="user"))
        return Answer(200, facts[after:])

    found = FakeServer(handle)
    monkeypatch.setattr(chat, "connect", lambda *_: ThreadlogClient("http://threadlog.test", transport=found))
    yield found
    assert found.closed


def fact_of(seq: int, kind: str, **data: Any) -> bytes:
    body = orjson.dumps({"seq": seq, "type": kind, "effect": "applied", "data": data})
    return fact_event(seq, kind).partition(b"data: ")[0] + b"data: " + body + b"\n\n"


async def test_an_interrupt_cancels_the_turn(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    chatting = Chat({"model": "m"}, None, colors=False)
    await chatting.open("", None, "")
    asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGINT)
    await chatting.turn("hello")
    await chatting.close()
    assert chatting.thread == "t1"
    assert [request.url.path for request in server.requests if request.method == "POST"] == [
        "/v1/threads",
        "/v1/threads/t1/turns/1/cancel",
    ]
    assert orjson.loads(server.requests[0].content) == {"input": {"text": "hello"}, "config": {"model": "m"}}
    assert "the turn ended: aborted (user)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "decision"),
    [("y", {"decision": "approve"}), ("", {"decision": "deny", "reason": chat.REFUSAL}), (None, None)],
)
async def test_a_person_decides_about_a_call(
    monkeypatch: pytest.MonkeyPatch, answer: str | None, decision: dict[str, str] | None
) -> None:
    decided: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> Answer:
        if request.method == "POST":
            if request.url.path != "/v1/threads":
                decided.append(request)
            return json_answer({"thread": "t1"}, 202)
        facts = [fact_of(1, "turn.started", turn=1)]
        facts.append(fact_of(2, "tool_call.approval_requested", call="1.1.0", call_hash="ab", reason="policy"))
        if decided:
            facts.append(fact_of(3, "turn.ended", turn=1, outcome="completed"))
        return Answer(200, facts[int(request.url.params["after"]) :])

    monkeypatch.setattr(chat, "connect", lambda *_: ThreadlogClient("http://t.test", transport=FakeServer(handle)))
    monkeypatch.setattr(chat, "_ask", lambda _: answer)
    chatting = Chat({}, None, colors=False)
    await chatting.open("", None, "")
    await chatting.turn("hello")
    await chatting.close()
    [request] = decided
    if decision is None:
        assert request.url.path == "/v1/threads/t1/turns/1/cancel"
    else:
        assert request.url.path == "/v1/threads/t1/tool-calls/1.1.0/decision"
        assert orjson.loads(request.content) == {"call_hash": "ab", **decision}


class WaitingThread:
    """A thread `t1` of which a turn waits for a person, and ends once it has what it waits for."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, facts: list[bytes], *, lists: str = "/v1/unknown-calls"
    ) -> None:
        """`lists` is the path that lists its call."""
        self.commands: list[tuple[str, Any]] = []
        self._facts = facts
        self._lists = lists
        connected = ThreadlogClient("http://threadlog.test", transport=FakeServer(self._handle))
        monkeypatch.setattr(chat, "connect", lambda *_: connected)

    def _handle(self, request: httpx2.Request) -> Answer:
        path, params = request.url.path.removeprefix("/v1/threads"), request.url.params
        if request.method == "POST":
            if path not in {"", "/t1/inputs"} or b"steer" in request.content:
                self.commands.append((path, orjson.loads(request.content)))
            return json_answer({"thread": "t1"}, 202)
        if path in {"/v1/approvals", "/v1/unknown-calls"}:
            assert (params["thread"], int(params["at_least"])) == ("t1", len(self._facts))
            row = {"call": "1.1.0", "call_hash": "ab", "attempt": 2}
            return json_answer({"data": [row] if path == self._lists else [], "next_cursor": None})
        if path == "/t1":
            return json_answer({"config": {"plan_approval": "always" if self._lists == "/t1/plan" else "never"}})
        if path == "/t1/plan":
            assert int(params["at_least"]) == len(self._facts)
            status = "in_force" if self.commands else "waiting"
            return json_answer({"data": [{"version": 2, "status": status}], "next_cursor": None})
        facts = list(self._facts)
        if self.commands:
            facts.append(fact_of(len(facts) + 1, "turn.ended", turn=1, outcome="completed"))
        if "text/event-stream" in request.headers["accept"]:
            return Answer(200, facts[int(params["after"]) :])
        events = [orjson.loads(fact.partition(b"data: ")[2]) for fact in facts]
        return json_answer({"events": events, "next_after": len(events), "end": True})


LOST_CALL = [
    fact_of(1, "turn.started", turn=1),
    fact_of(2, "tool_call.lost", call="1.1.0", attempt=1, evidence="no heartbeat"),
]
NOT_THERE = {"attempt": 2, "decision": "again", "note": "it is not there"}
RESOLVED: list[tuple[list[str | None], tuple[str, Any]]] = [
    (
        ["S", "I looked"],
        (
            "/t1/tool-calls/1.1.0/resolution",
            {"attempt": 2, "decision": "succeeded", "result": "I looked", "note": "I looked"},
        ),
    ),
    (["again", "it is not there"], ("/t1/tool-calls/1.1.0/resolution", NOT_THERE)),
    (["f", None], ("/t1/turns/1/cancel", {})),
    ([None], ("/t1/turns/1/cancel", {})),
]


@pytest.mark.parametrize(("answers", "command"), RESOLVED)
async def test_a_person_settles_an_unknown_call(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | None], command: tuple[str, Any]
) -> None:
    thread = WaitingThread(monkeypatch, LOST_CALL)
    left = list(answers)
    monkeypatch.setattr(chat, "_ask", lambda _: left.pop(0))
    chatting = Chat({}, None, colors=False)
    await chatting.open("", None, "")
    await chatting.turn("hello")
    await chatting.close()
    assert thread.commands == [command]
    assert left == []


async def test_a_lost_call_that_is_run_again_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = WaitingThread(monkeypatch, LOST_CALL, lists="nowhere")
    monkeypatch.setattr(chat, "_ask", pytest.fail)
    chatting = Chat({}, None, colors=False)
    await chatting.open("", None, "")
    asyncio.get_running_loop().call_later(0.2, signal.raise_signal, signal.SIGINT)
    await chatting.turn("hello")
    await chatting.close()
    assert thread.commands == [("/t1/turns/1/cancel", {})]


@pytest.mark.parametrize(
    ("lists", "answers", "command"),
    [
        ("/v1/approvals", ["y"], ("/t1/tool-calls/1.1.0/decision", {"decision": "approve", "call_hash": "ab"})),
        ("/v1/unknown-calls", ["a", "it is not there"], ("/t1/tool-calls/1.1.0/resolution", NOT_THERE)),
    ],
)
async def test_a_chat_goes_on_with_a_turn_that_waits_for_a_person(
    monkeypatch: pytest.MonkeyPatch, lists: str, answers: list[str], command: tuple[str, Any]
) -> None:
    thread = WaitingThread(monkeypatch, LOST_CALL, lists=lists)
    left = list(answers)
    monkeypatch.setattr(chat, "_ask", lambda _: left.pop(0))
    chatting = Chat({}, "t1", colors=False)
    await chatting.open("", None, "")
    await chatting.close()
    assert thread.commands == [command]


PLANNED = [
    fact_of(1, "turn.started", turn=1),
    fact_of(2, "plan.proposed", plan_version=2, tasks=[{"id": "a", "title": "A"}]),
]


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        ("y", ("/t1/plan/2/decision", {"decision": "approve"})),
        ("", ("/t1/plan/2/decision", {"decision": "reject", "reason": chat.REFUSAL})),
        (None, ("/t1/turns/1/cancel", {})),
    ],
)
@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_person_answers_a_plan(
    monkeypatch: pytest.MonkeyPatch, answer: str | None, command: tuple[str, Any], goes_on: bool
) -> None:
    thread = WaitingThread(monkeypatch, PLANNED, lists="/t1/plan")
    asked: list[str] = []

    def answering(question: str) -> str | None:
        asked.append(question)
        return answer

    monkeypatch.setattr(chat, "_ask", answering)
    chatting = Chat({}, "t1" if goes_on else None, colors=False)
    await chatting.open("", None, "")
    if not goes_on:
        await chatting.turn("hello")
    await chatting.close()
    assert thread.commands == [command]
    assert asked == ["follow plan 2? [y/N] "]


async def test_a_plan_that_a_policy_answers_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = WaitingThread(monkeypatch, PLANNED, lists="nowhere")
    monkeypatch.setattr(chat, "_ask", pytest.fail)
    chatting = Chat({}, None, colors=False)
    await chatting.open("", None, "")
    asyncio.get_running_loop().call_later(0.2, signal.raise_signal, signal.SIGINT)
    await chatting.turn("hello")
    await chatting.close()
    assert thread.commands == [("/t1/turns/1/cancel", {})]


async def test_a_line_that_is_typed_during_a_turn_steers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = WaitingThread(monkeypatch, [fact_of(1, "turn.started", turn=1)])
    lines, keyboard = os.pipe()
    try:
        chatting = Chat({}, None, colors=False, lines=lines)
        await chatting.open("", None, "")
        asyncio.get_running_loop().call_later(0.1, os.write, keyboard, b"  and the changelog\n")
        await chatting.turn("hello")
        await chatting.close()
    finally:
        os.close(lines)
        os.close(keyboard)
    assert thread.commands == [("/t1/inputs", {"text": "and the changelog", "mode": "steer", "expected_turn": 1})]


async def test_a_chat_goes_on_with_a_thread_after_what_was_said(server: FakeServer) -> None:
    chatting = Chat({}, "t1", colors=False)
    await chatting.open("", None, "")
    asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGINT)
    await chatting.turn("more")
    await chatting.close()
    follows = [r for r in server.requests if "text/event-stream" in r.headers.get("accept", "")]
    assert follows[0].url.params["after"] == "1"
    assert next(r.url.path for r in server.requests if r.method == "POST") == "/v1/threads/t1/inputs"


def test_a_dialogue_in_the_terminal(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["  ", ""])

    def ask(_prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", ask)
    result = CliRunner().invoke(app, ["chat", "--model", "m"])
    assert result.exit_code == 0, result.output
    assert server.requests == []
