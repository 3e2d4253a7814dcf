"""A second person, with a client of their own: steers the turn, approves what waits, finds out what is unknown."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from demo.evidence import Evidence
from demo.releases import Release, Releases
from demo.stage import FIRST_PERSON, DemoError, Screen
from services.cli.show import shortened
from services.client.client import RefusedError, Resolution, ThreadlogClient
from services.client.sse import Fact, JsonObject

NAME: Final = "bob"
STEERING: Final = "Say in CHANGELOG.md, too, what changed."
SHOWN_CHARACTERS_MAX: Final = 160


class SecondPerson:
    def __init__(
        self,
        client: ThreadlogClient,
        first: ThreadlogClient,
        releases: Releases,
        screen: Screen,
        evidence: Evidence,
        steers: int,
    ) -> None:
        """`first` is a client of the first person, who decides, too, and later. `steers` is the step of the turn in
        which it is steered, or else in the next one that starts.
        """
        self._client = client
        self._first = first
        self._releases = releases
        self._screen = screen
        self._evidence = evidence
        self._steers = steers
        self._has_steered = False

    async def take_part(self, thread: str) -> None:
        """Act until the turn has ended."""
        async with aclosing(self._client.follow(thread, until_turn_end=True)) as events:
            async for event in events:
                if not isinstance(event, Fact) or not event.applied:
                    continue
                match event.kind:
                    case "step.started" if not self._has_steered and int(str(event.data["step"])) >= self._steers:
                        await self._steer(thread, int(str(event.data["turn"])))
                    case "tool_call.approval_requested":
                        await self._approve(thread, event)
                    case "tool_call.lost":
                        await self._settle(thread, event)
                    case _:
                        pass

    async def _steer(self, thread: str, turn: int) -> None:
        self._has_steered = True
        try:
            accepted = await self._client.submit(thread, STEERING, mode="steer", expected_turn=turn)
        except RefusedError as error:
            self._screen.tell(f"{NAME} wants to steer, and comes too late: {error}")
        else:
            self._evidence.steering = str(accepted.body["input"])

    async def _approve(self, thread: str, request: Fact) -> None:
        row = _row(await self._client.approvals(thread=thread, at_least=request.seq), request)
        if row is None:
            raise DemoError(f"GET /v1/approvals does not list {request.data['call']}, which waits for approval.")
        call, call_hash = str(row["call"]), str(row["call_hash"])
        self._evidence.approvals_listed.append(call)
        args = json.dumps(row["args"], ensure_ascii=False)
        self._tell(f"{NAME} reads in GET /v1/approvals: {call} {row['tool']} {args}")
        await self._client.decide(thread, call, call_hash, approve=True)
        try:
            await self._first.decide(thread, call, call_hash, approve=False, reason="I would rather wait.")
        except RefusedError as error:
            decided = error.body.get("decided")
            if isinstance(decided, dict):
                self._evidence.told_of_decisions[call] = str(decided["by"])
                self._tell(
                    f"{FIRST_PERSON} denies it a moment later: {error.status}, {decided['decision']} by {decided['by']}"
                )
            else:
                self._tell(f"{FIRST_PERSON} denies it a moment later: {error}")

    async def _settle(self, thread: str, lost: Fact) -> None:
        """Settle the call after a look at the world outside: the log cannot know."""
        row = _row(await self._client.unknown_calls(thread=thread, at_least=lost.seq), lost)
        if row is None:
            return  # it runs again, or is settled
        call = str(row["call"])
        self._evidence.unknown_listed.append(call)
        self._tell(f"{NAME} reads in GET /v1/unknown-calls: {call} {row['tool']} is {row['effect']}: {row['evidence']}")
        released = [release for release in self._releases.read() if release.key == row["idempotency_key"]]
        judged = _judged(released)
        self._tell(f"{NAME} looks into the ledger of the releases: {judged.note}")
        attempt = int(str(row["attempt"]))
        await self._client.resolve(thread, call, attempt, judged.decision, note=judged.note, result=judged.result)

    def _tell(self, text: str) -> None:
        self._screen.tell(shortened(text, SHOWN_CHARACTERS_MAX))


class _Judged(NamedTuple):
    decision: Resolution
    note: str
    result: str | None = None


def _judged(released: Sequence[Release]) -> _Judged:
    if not released:
        return _Judged("failed", "it is not there", "The release was not published.")
    versions = " and ".join([release.version for release in released])
    return _Judged("succeeded", f"{versions} is there, under the key of this call", f"{versions} is published.")


def _row(page: JsonObject, about: Fact) -> JsonObject | None:
    rows = page["data"]
    assert isinstance(rows, list)
    found = [row for row in rows if isinstance(row, dict) and row["call"] == about.data["call"]]
    return found[0] if found else None
