"""Who may call a model next: limits per process and per tenant, and fairness by the cost already used.

Costs are tokens. Of the tenants that wait and are below their own limit, the one that has used least comes next. A
tenant that was away starts where the least of the active ones is, so that nobody saves up a right to the whole process.
A call is charged what calls cost on average when it starts, and the truth when it ends.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Generic, Self, TypeVar

TOKENS_EXPECTED_AT_FIRST = 1_000.0
AVERAGE_WEIGHT = 0.05
TENANTS_REMEMBERED_MAX = 10_000

WaiterT = TypeVar("WaiterT")


class FairQueue(Generic[WaiterT]):
    """Pure: says who may start; `WaiterT` is whatever the caller wakes."""

    def __init__(self, calls_max: int, calls_per_tenant_max: int) -> None:
        self._calls_max = calls_max
        self._calls_per_tenant_max = calls_per_tenant_max
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[WaiterT]] = {}
        self._used: dict[str, float] = {}
        self._floor = 0.0
        self.expected_tokens = TOKENS_EXPECTED_AT_FIRST
        self.running_count = 0

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def try_take(self, tenant: str) -> bool:
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
        """A call ended that was charged so much at its start. Who starts now, by tenant; they have their places."""
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
        if not self._waiting.get(tenant, True):
            del self._waiting[tenant]
        if not self._running.get(tenant, 1):
            del self._running[tenant]
        if len(self._used) > TENANTS_REMEMBERED_MAX:
            active = {*self._running, *self._waiting}
            self._used = {name: used for name, used in self._used.items() if name in active or used > self._floor}


class Slot:
    """The right to one model call, from `async with` on. Say `used` before its end; else it counts as free."""

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
    def __init__(self, calls_max: int, calls_per_tenant_max: int) -> None:
        self.queue: FairQueue[asyncio.Future[float]] = FairQueue(calls_max, calls_per_tenant_max)

    def slot(self, tenant: str) -> Slot:
        """`async with`; where there is room it does not yield to the event loop."""
        return Slot(self, tenant)

    async def wait(self, tenant: str) -> float:
        """What the place, once given, was charged."""
        place: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.queue.wait(tenant, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release(tenant, place.result(), None)
            else:
                self.queue.stop_waiting(tenant, place)
            raise

    def release(self, tenant: str, charged: float, tokens: float | None) -> None:
        starting = deque(self.queue.release(tenant, charged, tokens))
        while starting:
            given_to, place = starting.popleft()
            if not place.cancelled():
                place.set_result(self.queue.expected_tokens)
            else:
                # Its task was cancelled and has not run since: the place goes on to the next.
                starting.extend(self.queue.release(given_to, self.queue.expected_tokens, None))
