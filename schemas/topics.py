"""Every topic, as data. A topic is declared here before anything uses it."""

from dataclasses import dataclass
from typing import Literal

from schemas.ids import ThreadKey

Service = Literal["ingest", "runtime", "tool_executor", "projector", "rollups", "customers"]

HOUR_MS = 3_600_000
FOREVER_MS = -1
RECORD_BYTES_MAX = 1_048_576
TOPIC_RECORD_BYTES_MAX = 2_097_152
PARTITIONS_DEFAULT = 12


@dataclass(frozen=True, slots=True)
class Topic:
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

TOPICS: tuple[Topic, ...] = (
    THREAD_EVENTS,
    THREAD_PROGRESS,
    THREAD_EFFECTS,
    EPHEMERAL_EVENTS,
    TOOL_CATALOG,
    THREAD_EVENTS_DLQ,
)


def topic_of(key: ThreadKey) -> Topic:
    """Where the events of this thread are."""
    return EPHEMERAL_EVENTS if key.ephemeral else THREAD_EVENTS


def partition_count(topic: Topic, partitions: int) -> int:
    """How many partitions a topic gets where thread-events has `partitions`."""
    return partitions if topic.partitioned_as_events else 1
