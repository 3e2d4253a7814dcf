"""Watches the claims of other executors in the partitions of this one, and declares silent ones lost.

A former process under the same name counts as another executor: its claims carry another incarnation. Several
executors may see the same silence. Each appends the same event, with an id derived from the claim, and the first
counts.
"""

from functools import partial

from schemas.events import ToolCallLost
from schemas.state import Call
from services.tool_executor.claiming.claim import claimed_by_others
from services.tool_executor.executing.appends import Appends
from services.tool_executor.executing.leases import Leases
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.work import Followed, Partition
from services.tool_executor.metrics import ExecutorMetrics


class ForeignClaims:
    def __init__(self, leases: Leases, appends: Appends, options: ExecutorOptions, metrics: ExecutorMetrics) -> None:
        self.leases = leases
        self._appends = appends
        self._options = options
        self._metrics = metrics

    def watch(self, partition: Partition, followed: Followed) -> None:
        """Watch exactly the foreign claims that are in force now."""
        others = {
            call.call: call for call in claimed_by_others(followed.state, self._options.pool, self._options.executor)
        }
        for name, claim in list(followed.work.watched.items()):
            if name not in others or others[name].claim != claim:
                self.leases.unwatch(followed.key, claim)
                del followed.work.watched[name]
        for name, call in others.items():
            if name in followed.work.watched or call.claim is None:
                continue
            followed.work.watched[name] = call.claim
            lease_ms = 1000 * (call.lease_seconds or self._options.lease_seconds)
            declare_lost = partial(self._declare_lost, partition, followed, call)
            self.leases.watch(followed.key, call.claim, partition.number, lease_ms, declare_lost)

    def unwatch(self, followed: Followed) -> None:
        for claim in followed.work.watched.values():
            self.leases.unwatch(followed.key, claim)
        followed.work.watched.clear()

    def _declare_lost(self, partition: Partition, followed: Followed, call: Call) -> None:
        """Append the loss. A failed append needs no care: the watch calls again until the claim is gone."""
        self._metrics.lost.inc()
        evidence = f"{call.executor} showed no heartbeat for its lease of {call.lease_seconds} s"
        lost = ToolCallLost(call=call.call, attempt=call.attempt, claim=call.claim, evidence=evidence)
        self._appends.events(partition.number, followed.key, [lost])
