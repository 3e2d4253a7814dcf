"""The attempts that this process has taken up, and the slots that they take.

Runs belong to the process and not to its partitions. When a partition goes away and comes back while a tool runs, the
attempt is found here again, so it is neither claimed nor denied nor run a second time. A run is therefore forgotten
only once its end is acknowledged and the state that this process sees agrees.
"""

from typing import TypeAlias

from schemas.ids import ThreadKey
from services.tool_executor.executing.concurrency import CallSlots, WaitingThreads
from services.tool_executor.executing.work import Run

RunName: TypeAlias = tuple[str, int]
"""Call and attempt."""


class Runs:
    """Finds and forgets runs, and takes and frees the slot of each."""

    def __init__(self, slots: CallSlots, waiting: WaitingThreads) -> None:
        self.by_thread: dict[ThreadKey, dict[RunName, Run]] = {}
        self._slots = slots
        self._waiting = waiting

    def of(self, key: ThreadKey) -> list[Run]:
        return list(self.by_thread.get(key, {}).values())

    def find(self, key: ThreadKey, call: str, attempt: int) -> Run | None:
        return self.by_thread.get(key, {}).get((call, attempt))

    def has_any(self, key: ThreadKey) -> bool:
        return key in self.by_thread

    def is_under_way(self, key: ThreadKey, call: str) -> bool:
        """Return whether an attempt of the call has begun here whose end is not in the log."""
        return any(run.attempt.call == call and not run.recorded for run in self.of(key))

    def add(self, run: Run) -> None:
        self.by_thread.setdefault(run.key, {})[run.attempt.call, run.attempt.attempt] = run

    def take_slot(self, run: Run) -> None:
        run.has_slot = True
        self._slots.take(run.key.tenant, run.tool)

    def release_slot(self, run: Run) -> None:
        """Free the run's slot and offer it to threads that wait. Does nothing the second time."""
        if not run.has_slot:
            return
        run.has_slot = False
        self._slots.release(run.key.tenant, run.tool)
        self._waiting.offer_soon()

    def forget(self, run: Run) -> None:
        """Drop the run and its slot. From then on a claim of it that is read would be denied."""
        self.release_slot(run)
        runs = self.by_thread.get(run.key, {})
        runs.pop((run.attempt.call, run.attempt.attempt), None)
        if not runs:
            self.by_thread.pop(run.key, None)

    def cancel_all(self) -> None:
        for runs in self.by_thread.values():
            for run in runs.values():
                run.cancelled.set()
