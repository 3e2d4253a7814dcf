"""What an executor is told when it is built: who it is, and its limits."""

from dataclasses import dataclass
from typing import Final

from schemas.topics import THREAD_EVENTS
from services.tool_executor.claiming.reconcile import ReconcileLimits

APPEND_RETRY_MS: Final = 1_000
"""The pause before an append that failed is repeated. The log's client has tried for its whole delivery timeout by
then, so a second more delays nothing that matters, and many failed ends do not hit a broker at once.
"""
OUTPUT_INTERVAL_MS: Final = 50
"""Output of a running tool within this time goes out as one progress record: more often than a person can read, and
rarely enough for a tool that prints single characters.
"""
RECONCILES_AT_ONCE_MAX: Final = 8
"""Hooks that run at once. A downstream that has just failed should not be met by a question for every lost call."""


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    instance: str
    incarnation: str
    """A drawn id. A process that was restarted under the same instance must not take its former claims for its own."""
    pool: str
    lease_seconds: int
    calls_max: int
    calls_per_tenant_max: int
    calls_per_tool_max: int
    reconcile: ReconcileLimits
    reconcile_answer_seconds: float
    """How long a reconcile hook may take to answer."""
    topic: str = THREAD_EVENTS.name
    """The topic whose threads it follows."""
    append_retry_ms: int = APPEND_RETRY_MS
    output_interval_ms: int = OUTPUT_INTERVAL_MS
    reconciles_max: int = RECONCILES_AT_ONCE_MAX

    @property
    def executor(self) -> str:
        """The name under which it claims calls."""
        return f"{self.instance}/{self.incarnation}"
