"""A second client that answers approvals, and a person who settles unknown calls by looking into the ledger. Both know
only what the API lists for them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

from services.client.client import Accepted, JsonObject, Resolution, ThreadlogClient
from tests.chaos.ledger import Ledger
from tests.chaos.load import TENANTS, Door

LOOK_SECONDS = 0.5
APPROVE_SHARE = 0.8
ANSWER_TWICE_SHARE = 0.2
"""Approvals that two clients answer at the same time."""
THINK_SECONDS = 1.5
"""At most, before a decision."""
PATIENCE_SECONDS = 10.0
"""How long a person lets an unknown call be before looking into the ledger: whoever still runs it has ended by then."""
HOOK_SECONDS = 30.0
"""How long a person leaves reconcilable calls to their executor."""
READ_BACK_SECONDS = 1.0
"""An answered call may be listed for so long."""

Rows = list[JsonObject]


class Asked(NamedTuple):
    """What somebody is asked about, once."""

    thread: str
    call: str
    attempt: int


class People:
    def __init__(self, door: Door, ledger: Ledger, rng: random.Random) -> None:
        self._door = door
        self._ledger = ledger
        self._rng = rng
        self._busy: set[Asked] = set()
        self._unknown_since: dict[Asked, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for tenant in TENANTS:
                tasks.create_task(self._decide_all(tenant, tasks))
                tasks.create_task(self._resolve_all(tenant, tasks))

    async def _decide_all(self, tenant: str, tasks: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for row in await self._rows(tenant, "bob", "approvals", lambda client: client.approvals()):
                asked = _asked(row)
                if asked not in self._busy:
                    self._busy.add(asked)
                    tasks.create_task(self._decide(tenant, asked, row))

    async def _decide(self, tenant: str, asked: Asked, row: JsonObject) -> None:
        await asyncio.sleep(self._rng.uniform(0, THINK_SECONDS))
        approve = self._rng.random() < APPROVE_SHARE
        subjects = ("bob", "eve") if self._rng.random() < ANSWER_TWICE_SHARE else ("bob",)

        def decide(client: ThreadlogClient) -> Awaitable[Accepted]:
            return client.decide(asked.thread, asked.call, str(row["call_hash"]), approve=approve, reason="asked")

        await asyncio.gather(*[self._door.ask(tenant, subject, "decision", decide) for subject in subjects])
        await asyncio.sleep(READ_BACK_SECONDS)
        self._busy.discard(asked)

    async def _resolve_all(self, tenant: str, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for row in await self._rows(tenant, "pat", "unknown calls", lambda client: client.unknown_calls()):
                asked = _asked(row)
                since = self._unknown_since.setdefault(asked, loop.time())
                patience = HOOK_SECONDS if row["effect"] == "reconcilable" else PATIENCE_SECONDS
                if asked not in self._busy and loop.time() - since >= patience:
                    self._busy.add(asked)
                    tasks.create_task(self._resolve(tenant, asked, row))

    async def _resolve(self, tenant: str, asked: Asked, row: JsonObject) -> None:
        decision: Resolution
        if self._ledger.by_key().get(str(row["idempotency_key"])):
            decision = "succeeded"
        elif row["turn_status"] == "open" and self._rng.random() < 0.5:
            decision = "again"
        else:
            decision = self._rng.choice(("failed", "abandoned"))
        result = "it is in the ledger" if decision == "succeeded" else None
        await self._door.ask(
            tenant,
            "pat",
            f"resolution {decision}",
            lambda client: client.resolve(*asked, decision, note="looked into the ledger", result=result),
        )
        await asyncio.sleep(READ_BACK_SECONDS)
        self._busy.discard(asked)

    async def _rows(
        self, tenant: str, subject: str, what: str, read: Callable[[ThreadlogClient], Awaitable[JsonObject]]
    ) -> Rows:
        page = await self._door.ask(tenant, subject, f"list of {what}", read)
        return [] if page is None else cast("Rows", page["data"])


def _asked(row: JsonObject) -> Asked:
    return Asked(str(row["thread"]), str(row["call"]), int(str(row["attempt"])))
