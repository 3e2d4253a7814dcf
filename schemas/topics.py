"""Every topic is declared here, as data, before anything uses it."""

from dataclasses import dataclass
from typing import Literal

from schemas.ids import ThreadKey

Service = Literal["ingest", "runtime", "tool_executor", "projector", "rollups", "customers"]

HOUR_MS = 3_600_000
FOREVER_MS = -1
"""Kafka's value for a topic that keeps its records for ever."""
RECORD_BYTES_MAX = 1_048_576
"""The largest value that threadlog writes."""
TOPIC_RECORD_BYTES_MAX = 2_097_152
"""The largest record that the broker takes: a value of the size above, its headers and Kafka's own framing."""
PARTITIONS_DEFAULT = 12
"""Enough for some tens of processes. The number is chosen once: with another one, threads would be looked for where
they are not.
"""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as `threadlog topics apply` creates it."""

    name: str
    key: str
    holds: str
    retention_ms: int
    """-1 keeps records for ever."""
    cleanup_policy: Literal["delete", "compact"]
    partitioned_as_events: bool
    """Same partition count and key as thread-events, so that one partition number means the same threads."""
    producers: tuple[Service, ...]
    consumers: tuple[Service, ...]
    record_bytes_max: int = TOPIC_RECORD_BYTES_MAX


THREAD_EVENTS = Topic(
    name="thread-events",
    key="tenant/thread",
    holds="the facts; the authority",
    retention_ms=FOREVER_MS,
    cleanup_policy="delete",
    partitioned_as_events=True,
    producers=("ingest", "runtime", "tool_executor"),
    consumers=("ingest", "runtime", "tool_executor", "projector"),
)
"""The log itself."""
THREAD_PROGRESS = Topic(
    name="thread-progress",
    key="tenant/thread",
    holds="token deltas, tool output as it runs, heartbeats, quarantine reports; may be lost, changes nothing",
    retention_ms=HOUR_MS,
    cleanup_policy="delete",
    partitioned_as_events=True,
    producers=("runtime", "tool_executor"),
    consumers=("ingest", "tool_executor"),
)
"""Signs of life between two facts."""
THREAD_EFFECTS = Topic(
    name="thread-effects",
    key="tenant/thread",
    holds="what took effect, for whoever does not want to fold; at least once, in order",
    retention_ms=7 * 24 * HOUR_MS,
    cleanup_policy="delete",
    partitioned_as_events=True,
    producers=("projector",),
    consumers=("rollups", "customers"),
)
"""The log with its verdicts, for consumers that do not fold."""
EPHEMERAL_EVENTS = Topic(
    name="ephemeral-events",
    key="tenant/thread",
    holds="the same events for threads whose id starts with e-; they live an hour, and are never projected",
    retention_ms=6 * HOUR_MS,
    cleanup_policy="delete",
    partitioned_as_events=True,
    producers=("ingest", "runtime", "tool_executor"),
    consumers=("ingest", "runtime", "tool_executor"),
)
"""The log of threads that leave no history."""
TOOL_CATALOG = Topic(
    name="tool-catalog",
    key="tool source",
    holds="each executor pool's tools: name, description, JSON schema, effect class, limits",
    retention_ms=FOREVER_MS,
    cleanup_policy="compact",
    partitioned_as_events=False,
    producers=("tool_executor", "runtime"),
    consumers=("ingest", "runtime"),
)
"""What the executors offer."""
THREAD_EVENTS_DLQ = Topic(
    name="thread-events-dlq",
    key="as the source",
    holds="records that could not be decoded, with position and reason",
    retention_ms=FOREVER_MS,
    cleanup_policy="delete",
    partitioned_as_events=True,
    producers=("projector",),
    consumers=("customers",),
)
"""What no reader can use, with the reason."""

TOPICS: tuple[Topic, ...] = (
    THREAD_EVENTS,
    THREAD_PROGRESS,
    THREAD_EFFECTS,
    EPHEMERAL_EVENTS,
    TOOL_CATALOG,
    THREAD_EVENTS_DLQ,
)
"""Every topic. A topic that is not here does not exist for threadlog; one that nobody produces or consumes fails a
test.
"""


def topic_of(key: ThreadKey) -> Topic:
    """Return the topic that holds the thread's events."""
    return EPHEMERAL_EVENTS if key.ephemeral else THREAD_EVENTS


def partition_count(topic: Topic, partitions: int) -> int:
    """Return the number of partitions of a topic, where thread-events has `partitions`."""
    return partitions if topic.partitioned_as_events else 1
