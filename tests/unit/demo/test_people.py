"""The demo's second person decides by what they find: in the API's lists, and in the ledger outside."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from demo.evidence import Evidence
from demo.people import STEERING, SecondPerson
from demo.releases import Release, Releases
from demo.repository import UnittestRun
from demo.stage import DemoError, Screen
from services.client.client import ThreadlogClient
from tests.unit.cli.test_commands import fact_of
from tests.unit.client.fake_server import Answer, FakeServer, json_answer

ROW = {
    "call": "1.2.0",
    "tool": "publish_release",
    "args": {"version": "1.0.1"},
    "call_hash": "ab",
    "attempt": 1,
    "effect": "unsafe",
    "evidence": "no heartbeat",
    "idempotency_key": "k",
}
RELEASE = Release("1.0.1", "notes", "k")
ENDED = fact_of(3, "turn.ended", turn=1, outcome="completed")


class Api:
    """One thread with these facts, of which these calls are listed; a denial comes too late."""

    def __init__(self, *facts: bytes, listed: list[dict[str, Any]] | None = None) -> None:
        self.commands: list[tuple[str, Any]] = []
        self._facts = facts
        self._listed = [ROW] if listed is None else listed

    def handle(self, request: httpx2.Request) -> Answer:
        if request.method == "POST":
            self.commands.append((request.url.path.rpartition("/")[2], orjson.loads(request.content)))
            if b"deny" in request.content:
                return json_answer({"decided": {"by": "user:bob", "decision": "approved"}}, 409)
            return json_answer({"thread": "t1", "input": "i1"}, 202)
        if "text/event-stream" in request.headers["accept"]:
            return Answer(200, [*self._facts, ENDED])
        return json_answer({"data": self._listed, "next_cursor": None})


async def take_part(api: Api, ledger: Path, *released: Release) -> Evidence:
    releases = Releases(ledger, "nowhere")
    for release in released:
        publishing = asyncio.create_task(releases.publish(release))
        await releases.published.wait()
        publishing.cancel()  # who asked for it is gone
    evidence = Evidence(is_scripted=True, tests_before=UnittestRun(1, ""))
    client = ThreadlogClient("http://threadlog.test", transport=FakeServer(api.handle))
    await SecondPerson(client, client, releases, Screen(), evidence, steers=2).take_part("t1")
    return evidence


LOST = (fact_of(1, "turn.started", turn=1), fact_of(2, "tool_call.lost", call="1.2.0"))
ASKED = (fact_of(1, "turn.started", turn=1), fact_of(2, "tool_call.approval_requested", call="1.2.0"))


async def test_a_release_that_is_in_the_ledger_has_succeeded(tmp_path: Path) -> None:
    api = Api(*LOST)
    evidence = await take_part(api, tmp_path / "ledger", RELEASE)
    [(path, body)] = api.commands
    assert (path, body["attempt"], body["decision"], body["result"]) == (
        "resolution",
        1,
        "succeeded",
        "1.0.1 is published.",
    )
    assert evidence.unknown_listed == ["1.2.0"]


@pytest.mark.parametrize("released", [(), (RELEASE._replace(key="of another call"),)])
async def test_a_release_that_is_not_there_has_failed(tmp_path: Path, released: tuple[Release, ...]) -> None:
    api = Api(*LOST)
    await take_part(api, tmp_path / "ledger", *released)
    [(path, body)] = api.commands
    assert (path, body["decision"]) == ("resolution", "failed")


async def test_a_lost_call_that_is_not_unknown_is_left_alone(tmp_path: Path) -> None:
    api = Api(*LOST, listed=[])
    evidence = await take_part(api, tmp_path / "ledger")
    assert api.commands == []
    assert evidence.unknown_listed == []


async def test_a_call_that_waits_is_approved_as_it_is_listed(tmp_path: Path) -> None:
    api = Api(*ASKED)
    evidence = await take_part(api, tmp_path / "ledger")
    assert [(path, body["decision"], body["call_hash"]) for path, body in api.commands] == [
        ("decision", "approve", "ab"),
        ("decision", "deny", "ab"),
    ]
    assert evidence.approvals_listed == ["1.2.0"]
    assert evidence.told_of_decisions == {"1.2.0": "user:bob"}


async def test_a_call_that_waits_and_is_not_listed_fails_the_demo(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"does not list 1\.2\.0"):
        await take_part(Api(*ASKED, listed=[]), tmp_path / "ledger")


async def test_the_turn_is_steered_once(tmp_path: Path) -> None:
    facts = [fact_of(step, "step.started", turn=1, step=step) for step in (1, 2)]
    api = Api(*facts)
    evidence = await take_part(api, tmp_path / "ledger")
    assert api.commands == [("inputs", {"text": STEERING, "mode": "steer", "expected_turn": 1})]
    assert evidence.steering == "i1"
