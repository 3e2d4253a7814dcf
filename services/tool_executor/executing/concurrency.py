"""How many calls run at once: in total, for one tenant, and for one tool.

A call beyond these limits is left dispatched and its thread waits here. Any executor of the pool may claim it
meanwhile, which is why nothing is claimed in advance: a claim that waits for a slot would keep the call from an
executor that has one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from prometheus_client import Gauge

from services.tool_executor.executing.work import Followed, Partition


class CallSlots:
    """Counts the calls that are claimed or run, against the three limits."""

    def __init__(self, most: int, most_per_tenant: int, most_per_tool: int, taken: Gauge) -> None:
        self.taken = 0
        self.idle = asyncio.Event()
        """Set while nothing runs; a drain waits for it."""
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


class WaitingThreads:
    """Threads with a dispatched call that found no slot, in the order in which they came.

    When a slot becomes free, `look_at` is called for each of them in turn. A thread that finds no slot again adds
    itself anew and so goes to the end, which keeps one tenant at its own limit from blocking the others.
    """

    def __init__(self, slots: CallSlots, look_at: Callable[[Partition, Followed], None], gauge: Gauge) -> None:
        self.threads: dict[Followed, Partition] = {}
        self._slots = slots
        self._look_at = look_at
        self._gauge = gauge
        self._shown = 0
        self._is_offering = False

    def add(self, partition: Partition, followed: Followed) -> None:
        self.threads[followed] = partition
        self._show()

    def remove(self, followed: Followed) -> None:
        self.threads.pop(followed, None)

    def offer_soon(self) -> None:
        """Offer the free slots at the next turn of the event loop.

        A slot becomes free in the middle of looking at a thread, whose state must not be looked at from inside itself.
        Several slots that become free in one turn are offered together.
        """
        if self.threads and not self._is_offering:
            self._is_offering = True
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        self._is_offering = False
        # Only as many as wait now: a thread that adds itself anew must not be looked at for ever.
        for _ in range(len(self.threads)):
            if self._slots.are_full():
                break
            followed = next(iter(self.threads))
            self._look_at(self.threads.pop(followed), followed)
        self._show()

    def _show(self) -> None:
        """Report the difference: executors of several topics in one process share the gauge."""
        self._gauge.inc(len(self.threads) - self._shown)
        self._shown = len(self.threads)
