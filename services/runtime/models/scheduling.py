"""Who may call a model next: limits per process and per tenant, and fairness by the cost already used.

Costs are tokens. Of the tenants that wait and are below their own limit, the one that has used least comes next. A
tenant that was away starts where the least of the active ones is, so nobody saves up a right to the whole process.

What a call costs is known only when it ends. So it is charged the average at its start, and corrected to the truth at
its end. Without the first charge a tenant could start many calls before the first of them is counted.

`FairQueue` is the rule, without asyncio; `ModelSlots` lets coroutines wait for it. The queue is per process: several
runtimes share no counts, and each has its own partitions.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Generic, Self, TypeVar

TOKENS_EXPECTED_AT_FIRST = 1_000.0
"""Tokens that a call is charged before any has ended."""
AVERAGE_WEIGHT = 0.05
"""Weight of one call in the running average, which so follows about the last twenty calls."""
TENANTS_REMEMBERED_MAX = 10_000
"""Tenants whose use is kept. Beyond it those that are idle and no better off than a newcomer are forgotten."""

WaiterT = TypeVar("WaiterT")


class FairQueue(Generic[WaiterT]):
    """Says who may start. It is pure: `WaiterT` is whatever the caller wakes."""

    def __init__(self, calls_max: int, calls_per_tenant_max: int) -> None:
        self._calls_max = calls_max
        self._calls_per_tenant_max = calls_per_tenant_max
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[WaiterT]] = {}
        self._used: dict[str, float] = {}
        self._floor = 0.0
        """Least use of the active tenants so far. It only grows; a tenant that becomes active starts here."""
        self.expected_tokens = TOKENS_EXPECTED_AT_FIRST
        self.running_count = 0

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def try_take(self, tenant: str) -> bool:
        """Take a slot if one is free for this tenant, and charge the expected cost for it."""
        if self.running_count >= self._calls_max or self._running.get(tenant, 0) >= self._calls_per_tenant_max:
            return False
        self._take(tenant)
        return True

    def wait(self, tenant: str, waiter: WaiterT) -> None:
        self._become_active(tenant)
        self._waiting.setdefault(tenant, deque()).append(waiter)

    def stop_waiting(self, tenant: str, waiter: WaiterT) -> None:
        waiters = self._waiting.get(tenant)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            self._tidy(tenant)

    def release(self, tenant: str, charged: float, tokens: float | None) -> list[tuple[str, WaiterT]]:
        """Give a slot back and return who starts now, with their tenants; their slots are taken already.

        `charged` is what the call was charged at its start; `tokens` is what it used; None counts as nothing used.
        """
        if tokens is not None:
            self.expected_tokens += AVERAGE_WEIGHT * (tokens - self.expected_tokens)
        self._used[tenant] = self._used.get(tenant, self._floor) + (tokens or 0.0) - charged
        self._running[tenant] -= 1
        self.running_count -= 1
        self._tidy(tenant)
        starting: list[tuple[str, WaiterT]] = []
        while self.running_count < self._calls_max and (following := self._next_tenant()) is not None:
            starting.append((following, self._waiting[following].popleft()))
            self._take(following)
            self._tidy(following)
        return starting

    def _next_tenant(self) -> str | None:
        """Return the tenant below its own limit that waits and has used least."""
        ready = [name for name in self._waiting if self._running.get(name, 0) < self._calls_per_tenant_max]
        return min(ready, key=lambda name: self._used.get(name, self._floor), default=None)

    def _take(self, tenant: str) -> None:
        self._become_active(tenant)
        self._floor = max(self._floor, min(self._used[name] for name in {*self._running, *self._waiting, tenant}))
        self._used[tenant] += self.expected_tokens
        self._running[tenant] = self._running.get(tenant, 0) + 1
        self.running_count += 1

    def _become_active(self, tenant: str) -> None:
        if tenant not in self._running and tenant not in self._waiting:
            self._used[tenant] = max(self._used.get(tenant, 0.0), self._floor)

    def _tidy(self, tenant: str) -> None:
        """Remove empty entries, so that the keys of `_running` and `_waiting` are the active tenants."""
        if not self._waiting.get(tenant, True):
            del self._waiting[tenant]
        if not self._running.get(tenant, 1):
            del self._running[tenant]
        if len(self._used) > TENANTS_REMEMBERED_MAX:
            active = {*self._running, *self._waiting}
            self._used = {name: used for name, used in self._used.items() if name in active or used > self._floor}


class Slot:
    """The right to one model call, held inside `async with`. A call that does not report `used` costs nothing."""

    def __init__(self, slots: "ModelSlots", tenant: str) -> None:
        self._slots = slots
        self._tenant = tenant
        self._tokens: float | None = None
        self._charged = 0.0

    def used(self, tokens: float) -> None:
        self._tokens = tokens

    async def __aenter__(self) -> Self:
        queue = self._slots.queue
        self._charged = queue.expected_tokens
        if not queue.try_take(self._tenant):
            self._charged = await self._slots.wait(self._tenant)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        self._slots.release(self._tenant, self._charged, self._tokens)


class ModelSlots:
    """Slots for model calls of this process, for coroutines to wait for."""

    def __init__(self, calls_max: int, calls_per_tenant_max: int) -> None:
        self.queue: FairQueue[asyncio.Future[float]] = FairQueue(calls_max, calls_per_tenant_max)

    def slot(self, tenant: str) -> Slot:
        """Return a slot for `async with`. If one is free, entering it does not yield to the event loop."""
        return Slot(self, tenant)

    async def wait(self, tenant: str) -> float:
        """Wait for a slot and return what it was charged."""
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.queue.wait(tenant, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The slot came in the same moment as the cancel: it is taken, so somebody has to give it back.
                self.release(tenant, turn.result(), None)
            else:
                self.queue.stop_waiting(tenant, turn)
            raise

    def release(self, tenant: str, charged: float, tokens: float | None) -> None:
        """Give a slot back and wake whoever starts now."""
        starting = deque(self.queue.release(tenant, charged, tokens))
        while starting:
            given_to, turn = starting.popleft()
            if not turn.cancelled():
                turn.set_result(self.queue.expected_tokens)
            else:
                # Its task was cancelled and has not run since, so the slot goes to the next one.
                starting.extend(self.queue.release(given_to, self.queue.expected_tokens, None))
