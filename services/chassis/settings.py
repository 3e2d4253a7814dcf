"""The settings that all services share: environment variables with the prefix `THREADLOG_`.

Each service subclasses `Settings` in its own `settings.py`. A default stands in these classes and nowhere else.
A field says in its type who sets it: `Everybody[str]`, `Some[bool]` or `Limit[int]`. Readers of `.env.example` see the
fields in these groups.
"""

from enum import Enum
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.topics import PARTITIONS_DEFAULT

MIB: Final = 1_048_576
T = TypeVar("T")


class Group(Enum):
    """Who sets a setting; the value is the heading in `.env.example`."""

    EVERYBODY = "What every deployment sets: addresses, credentials, names"
    SOME = "What some deployments set: the defaults suit the others"
    LIMITS = "Limits: how much, how many, how long"


Everybody: TypeAlias = Annotated[T, Group.EVERYBODY]
Some: TypeAlias = Annotated[T, Group.SOME]
Limit: TypeAlias = Annotated[T, Group.LIMITS]
ROLE: Final = r"^([a-z_][a-z0-9_]{0,62})?$"
"""The name of a role of Postgres, or an empty text for none."""
HEARTBEAT_INTERVAL_MS_MAX: Final = 1_500
"""A longer interval would make takeovers of partitions slower."""
REQUEST_TIMEOUT_MS_MIN: Final = 15_000
"""A loaded broker may answer late; an answer after this time is no longer worth waiting for."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_", extra="ignore", frozen=True)

    instance: Everybody[str] = Field(default="0", pattern=r"^[A-Za-z0-9._-]{1,48}$")
    """The name of this process among the processes of its service. Membership in consumer groups is static by it, so it
    must stay the same over restarts. Two live processes of one service with the same name push each other out.
    """

    kafka_bootstrap_servers: Everybody[str] = "127.0.0.1:9092"
    """Addresses at which the Kafka cluster is found: host:port, separated by commas."""
    kafka_idempotence: Some[bool] = True
    """Whether appends are idempotent. Set it to false only for a broker without InitProducerId, such as the embedded
    one; a retry may then store a batch twice.
    """
    kafka_fetch_max_wait_ms: Some[int] = Field(default=500, ge=1)
    """How long the broker may hold a fetch that finds no record. Use 5 to 20 for a broker that does not wake a waiting
    fetch when a record arrives.
    """
    kafka_session_timeout_ms: Some[int] = Field(default=6_000, ge=1_000)
    """The partitions of a member that has vanished move to others after this time. Make it longer than a restart takes.
    Apache Kafka refuses less than 6 s unless it is configured otherwise.
    """
    kafka_static_membership: Some[bool] = True
    """Whether a restarted process gets its partitions back at once, by its name. Set it to false for the embedded
    broker, where every join of a named member takes 6 s; a restarted member then waits until its old session has timed
    out.
    """
    kafka_start_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    """How long a starting service waits for its broker before it gives up."""
    kafka_delivery_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    """How long an append may wait for the broker's acknowledgement before it fails."""

    topic_partitions: Some[int] = Field(default=PARTITIONS_DEFAULT, ge=1)
    """Partitions of each topic of events. Choose it before the first `threadlog topics apply` and keep it: with another
    number, threads are looked for in the wrong partitions.
    """
    topic_replication_factor: Some[int] = Field(default=1, ge=1)
    """Copies of each partition in the cluster. Clusters with three brokers or more should use 3."""

    postgres_dsn: Everybody[str] = Field(default="postgresql://threadlog@127.0.0.1:5432/threadlog", repr=False)
    """Connection string of the Postgres database."""
    postgres_pool_max: Limit[int] = Field(default=8, ge=1)
    """Connections that this process opens at most. Postgres must allow the sum over all processes."""
    postgres_command_timeout_seconds: Limit[float] = Field(default=30, gt=0)
    """How long one statement may take."""

    artifacts_url: Everybody[str] = Field(
        default="file:///var/lib/threadlog/artifacts", pattern=r"^(file:///|s3://|gs://|az://)."
    )
    """Where large outputs, uploads and file history are kept: a folder (file:///…), or a bucket, with or without a
    path, of S3 or a compatible store (s3://…), Google (gs://…) or Azure (az://…). Credentials and endpoints come from
    the variables of their own tools, such as AWS_ENDPOINT_URL. All services must see the same store.
    """
    artifact_bytes_max: Limit[int] = Field(default=1024 * MIB, ge=MIB)
    """The largest artifact that can be stored."""
    artifacts_grace_seconds: Some[float] = Field(default=86_400, ge=0)
    """How long an artifact that nothing refers to is kept after its last upload or use. Then `threadlog artifacts
    collect` moves it out of reach, and deletes it after the same time again. Use more than 6 hours: events of ephemeral
    threads are kept that long, and no view lists the artifacts they refer to.
    """

    child_depth: Limit[int] = Field(default=3, ge=0, le=100)
    """Generations of child threads that may exist below a topmost thread. 0 allows no children."""

    log_format: Some[Literal["json", "console"]] = "json"
    """Format of log lines: `json` for machines, `console` for people."""
    log_level: Some[Literal["debug", "info", "warning", "error"]] = "info"
    """The least level of log lines that are written."""

    probes_host: Some[str] = "127.0.0.1"
    """Address at which /livez, /readyz and /metrics are served. Probes from another machine need 0.0.0.0."""
    probes_port: Some[int] = Field(default=0, ge=0, le=65_535)
    """Port of /livez, /readyz and /metrics. 0 takes a free port and logs it."""

    drain_seconds: Limit[float] = Field(default=10, gt=0)
    """How long a stopping service may finish its work or hand it over before it is cancelled."""

    @property
    def kafka_heartbeat_interval_ms(self) -> int:
        """The pause between two heartbeats of a group's member.

        At most a quarter of the session timeout: three heartbeats in a row may be lost without the member losing its
        partitions. A member learns of a rebalance with its next heartbeat, so a longer session does not stretch it.
        """
        return min(HEARTBEAT_INTERVAL_MS_MAX, self.kafka_session_timeout_ms // 4)

    @property
    def kafka_request_timeout_ms(self) -> int:
        """How long a broker may take for one request.

        Joining a group can take as long as a session, because the broker waits for the members it knows, so the
        timeout is well above that.
        """
        return max(REQUEST_TIMEOUT_MS_MIN, 5 * self.kafka_session_timeout_ms // 2)

    @property
    def postgres_role(self) -> str:
        """The role that connections to Postgres act as, which a setting of each service names.

        Empty: connections act as the login.
        """
        return ""
