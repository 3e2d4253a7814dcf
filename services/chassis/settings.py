"""The settings that all services share: environment variables with the prefix `THREADLOG_`.

Each service subclasses `Settings` in its own `settings.py`. A default stands in these classes and nowhere else.
A field says in its type who sets it: `Everybody[str]`, `Some[bool]` or `Limit[int]`. Readers of `.env.example` see the
fields in these groups.
"""

from enum import Enum
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.topics import PARTITIONS_DEFAULT

MIB = 1_048_576
T = TypeVar("T")


class Group(Enum):
    """Who sets a setting; the value is the heading in `.env.example`."""

    EVERYBODY = "What every deployment sets: addresses, credentials, names"
    SOME = "What some deployments set: the defaults suit the others"
    LIMITS = "Limits: how much, how many, how long"


Everybody: TypeAlias = Annotated[T, Group.EVERYBODY]
Some: TypeAlias = Annotated[T, Group.SOME]
Limit: TypeAlias = Annotated[T, Group.LIMITS]
ROLE = r"^([a-z_][a-z0-9_]{0,62})?$"
"""A role of Postgres, or none."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)

    instance: Everybody[str] = Field(default="0", pattern=r"^[A-Za-z0-9._-]{1,48}$")
    """Names this process among those of its service, and stays the same over its restarts: group membership is static
    by it. Two live processes of one service with the same name push each other out.
    """

    kafka_bootstrap_servers: Everybody[str] = "127.0.0.1:9092"
    kafka_idempotence: Some[bool] = True
    """Off only for brokers without InitProducerId, such as the embedded one; a retry may then store a batch twice."""
    kafka_fetch_max_wait_ms: Some[int] = Field(default=500, ge=1)
    """How long the broker may hold a fetch. 5 to 20 for brokers that do not wake a waiting fetch."""
    kafka_session_timeout_ms: Some[int] = Field(default=6_000, ge=1_000)
    """Apache Kafka refuses less than 6 s unless told otherwise. A vanished member's partitions move after this time."""
    kafka_static_membership: Some[bool] = True
    """Whether a restarted process takes its partitions back at once, by its name. Off for the embedded broker, where it
    would only make each join take 6 s; a member then comes back when its session has timed out.
    """
    kafka_heartbeat_interval_ms: Some[int] = Field(default=1_500, ge=100)
    kafka_request_timeout_ms: Limit[int] = Field(default=15_000, ge=1_000)
    """Must be longer than the session timeout: joining a group can take that long."""
    kafka_start_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    """How long a starting service waits for its broker."""
    kafka_delivery_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    """From an append to its failure when the broker does not acknowledge."""
    kafka_poll_records_max: Limit[int] = Field(default=5_000, ge=1)
    kafka_fetch_bytes_max: Limit[int] = Field(default=4 * MIB, ge=4 * MIB)
    """Of one answer of the broker. A reader that is behind holds about ten times as much; more makes it no faster."""
    kafka_busy_threads: Some[int] = Field(default=8, ge=1)
    """A reader that gets records of so many threads within 50 ms pauses between fetches, so that each brings more: CPU
    for a little latency.
    """
    kafka_busy_pause_ms: Some[int] = Field(default=2, ge=0)
    kafka_commit_interval_ms: Some[int] = Field(default=2_000, ge=100)
    """Committed offsets are for lag tools only, so they may be late."""
    outbox_batch_bytes_max: Limit[int] = Field(default=MIB, ge=1_024, le=MIB)
    outbox_queue_bytes_max: Limit[int] = Field(default=64 * MIB, ge=MIB)
    """Per partition. Beyond it an append fails at once instead of filling the memory."""
    outbox_lossy_bytes_max: Limit[int] = Field(default=MIB, ge=0)
    """Per partition. Progress that would queue behind more than this is dropped."""

    topic_partitions: Some[int] = Field(default=PARTITIONS_DEFAULT, ge=1)
    """Chosen once: with another number threads would be looked for in partitions where they are not."""
    topic_replication_factor: Some[int] = Field(default=1, ge=1)

    postgres_dsn: Everybody[str] = Field(default="postgresql://threadlog@127.0.0.1:5432/threadlog", repr=False)
    postgres_pool_min: Some[int] = Field(default=0, ge=0)
    """With 0 a service starts while its database is away."""
    postgres_pool_max: Limit[int] = Field(default=8, ge=1)
    postgres_command_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    postgres_connect_timeout_seconds: Limit[float] = Field(default=5, gt=0)

    artifacts_url: Everybody[str] = Field(
        default="file:///var/lib/threadlog/artifacts", pattern=r"^(file:///|s3://|gs://|az://)."
    )
    """Where large outputs, uploads and file history lie: a folder, or a bucket of S3 (and what speaks like it), Google
    or Azure, with or without a path. Credentials and endpoints come from the variables of their own tools, such as
    AWS_ENDPOINT_URL. All services have to see the same.
    """
    artifact_bytes_max: Limit[int] = Field(default=1024 * MIB, ge=MIB)
    """Of one artifact."""
    artifacts_grace_seconds: Some[float] = Field(default=86_400, ge=0)
    """How long an artifact that nothing names stays after its last upload or use, before `threadlog artifacts collect`
    sets it aside, and how long it lies there. Longer than events of ephemeral threads are kept (6 hours): no view lists
    what those name.
    """
    artifacts_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    """For one request to the store. An upload may take a second more for each MiB."""

    child_depth: Limit[int] = Field(default=3, ge=0, le=100)
    """How many generations of child threads there may be below the topmost thread."""

    log_format: Some[Literal["json", "console"]] = "json"
    log_level: Some[Literal["debug", "info", "warning", "error"]] = "info"

    probes_host: Some[str] = "127.0.0.1"
    probes_port: Some[int] = Field(default=0, ge=0, le=65_535)
    """Serves /livez, /readyz and /metrics. 0 takes a free port and logs it."""
    lag_look_seconds: Limit[float] = Field(default=5, gt=0)
    """From one look at the end of the log to the next: how exact the lag in seconds is, and how old the lag shown. Also
    from one look at its number of partitions to the next.
    """
    live_stuck_seconds: Limit[float] = Field(default=300, ge=60)
    """/livez answers 503 once the log answers and has records for this process, it waits for no database, and yet has
    not read one for so long.
    """

    quarantine_refold_first_seconds: Limit[float] = Field(default=5, gt=0)
    """How long a thread that could not be folded or decided is left alone before it is read anew. Each failure after
    that doubles it.
    """
    quarantine_refold_most_seconds: Limit[float] = Field(default=300, gt=0)
    quarantine_report_seconds: Limit[float] = Field(default=10, gt=0)
    """How often such a thread is reported on thread-progress, for as long as it is set aside."""

    drain_seconds: Limit[float] = Field(default=10, gt=0)
    """How long a stopping service may finish or hand over its work before it is ended."""

    @property
    def postgres_role(self) -> str:
        """What connections to Postgres act as; empty: as the login is. Each service has a setting for it."""
        return ""
