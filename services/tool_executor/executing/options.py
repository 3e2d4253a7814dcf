"""What an executor is told when it is built: who it is, and its limits."""

from dataclasses import dataclass, field

from schemas.topics import THREAD_EVENTS
from services.tool_executor.claiming.reconcile import ReconcileLimits


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
    append_retry_ms: int
    output_interval_ms: int
    topic: str = THREAD_EVENTS.name
    """The topic whose threads it follows."""
    reconcile: ReconcileLimits = field(default_factory=ReconcileLimits)
    reconcile_answer_seconds: float = 30.0
    reconciles_max: int = 8

    @property
    def executor(self) -> str:
        """The name under which it claims calls."""
        return f"{self.instance}/{self.incarnation}"
