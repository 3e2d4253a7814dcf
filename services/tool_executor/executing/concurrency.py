"""How many calls run at once: in all, of one tenant, of one tool. Beyond that a call stays dispatched."""

import asyncio
from collections import Counter

from prometheus_client import Gauge


class CallSlots:
    def __init__(self, most: int, most_per_tenant: int, most_per_tool: int, taken: Gauge) -> None:
        self.taken = 0
        self.idle = asyncio.Event()
        """Set while nothing runs."""
        self.idle.set()
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._most_per_tool = most_per_tool
        self._gauge = taken
        self._by_tenant: Counter[str] = Counter()
        self._by_tool: Counter[str] = Counter()

    def are_full(self) -> bool:
        return self.taken >= self._most

    def has_room(self, tenant: str, tool: str) -> bool:
        return (
            not self.are_full()
            and self._by_tenant[tenant] < self._most_per_tenant
            and self._by_tool[tool] < self._most_per_tool
        )

    def take(self, tenant: str, tool: str) -> None:
        self._change(tenant, tool, 1)

    def release(self, tenant: str, tool: str) -> None:
        self._change(tenant, tool, -1)

    def _change(self, tenant: str, tool: str, by: int) -> None:
        self.taken += by
        self._by_tenant[tenant] += by
        self._by_tool[tool] += by
        self._gauge.inc(by)
        if self.taken:
            self.idle.clear()
        else:
            self.idle.set()
