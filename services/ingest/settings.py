"""Settings of the ingest service, beyond those that all services share."""

import ipaddress
from typing import Literal

from pydantic import Field

from schemas.errors import ThreadlogError
from services.chassis.postgres.roles import INGEST
from services.chassis.postgres.tenancy import PER_TENANT_MAX
from services.chassis.settings import MIB, ROLE, Everybody, Limit, Settings, Some

KIB = 1_024


class UnsafeSettingsError(ThreadlogError):
    """The settings would let anybody in; the service refuses to start with them."""


class IngestSettings(Settings):
    """What two deployments of ingest set differently. Everything else is a constant beside the code that uses it."""

    ingest_postgres_role: Some[str] = Field(default=INGEST, pattern=ROLE)
    """The role that ingest takes in Postgres: one of those that `threadlog migrate` makes. The login must be a member
    of it. Empty: ingest keeps the login's own role. Rows of tenants are read as threadlog_reader in any case.
    """
    ingest_host: Everybody[str] = "127.0.0.1"
    """Address at which the HTTP API listens. Clients on other machines need 0.0.0.0, or the address of an interface."""
    ingest_port: Everybody[int] = Field(default=8080, ge=0, le=65_535)
    """Port of the HTTP API. 0 takes a free port and logs it."""
    ingest_auth: Everybody[Literal["keys", "dev"]] = "keys"
    """`keys` asks for an API key with every request. `dev` believes the headers X-Threadlog-Tenant and
    X-Threadlog-Subject, and is refused unless ingest_host is a loopback address.
    """
    ingest_key_cache_seconds: Some[float] = Field(default=30, gt=0)
    """How long an API key is believed before it is looked up again. A revoked key is refused after this time."""

    ingest_default_model: Everybody[str] = Field(default="scripted", min_length=1)
    """The model of threads that are created without one."""
    ingest_default_instructions: Some[str | None] = None
    """The instructions of threads that are created without any."""

    ingest_body_bytes_max: Limit[int] = Field(default=2 * MIB, ge=KIB)
    """Bytes of a request body. A larger body is refused before it is read to its end. JSON with escapes can be longer
    than the record that it becomes.
    """
    ingest_input_bytes_max: Limit[int] = Field(default=256 * KIB, ge=1)
    """Bytes of the text of one input, of one plan, or of the edited arguments of one call as JSON."""
    ingest_result_bytes_max: Limit[int] = Field(default=32 * KIB, ge=1)
    """Bytes of the result of one client tool call, as JSON."""
    ingest_config_bytes_max: Limit[int] = Field(default=128 * KIB, ge=KIB)
    """Bytes of a thread's configuration, or of a patch of it, as JSON."""
    ingest_queue_inputs_max: Limit[int] = Field(default=100, ge=1)
    """Inputs that may wait in a thread's queue. The limit acts before the append, so a race of two processes may exceed
    it by a few.
    """

    ingest_requests_max: Limit[int] = Field(default=1_000, ge=1)
    """Requests that this process answers at once. A stream counts until it has begun. Further requests are refused as
    overloaded.
    """
    ingest_appends_per_tenant_max: Limit[int] = Field(default=200, ge=1)
    """Commands of one tenant that may wait for the broker at once."""
    ingest_queries_per_tenant_max: Limit[int] = Field(default=PER_TENANT_MAX, ge=1)
    """Queries of one tenant that may run at once, out of as many as there are connections
    (THREADLOG_POSTGRES_POOL_MAX). Further queries of that tenant wait; those of other tenants do not.
    """
    ingest_query_timeout_seconds: Limit[float] = Field(default=5, gt=0)
    """How long one query for a request may take, waiting for a connection included."""
    ingest_verdict_wait_seconds: Limit[float] = Field(default=10, gt=0)
    """How long a command waits for its effect before it is answered as undecided."""

    ingest_streams_max: Limit[int] = Field(default=20_000, ge=1)
    """Streams that may be open at once in this process."""
    ingest_stream_lag_records_max: Limit[int] = Field(default=1_000, ge=1)
    """Records that a stream may be behind its thread. A stream further behind is cut, and its client comes back with
    its cursor.
    """
    ingest_transfers_max: Limit[int] = Field(default=64, ge=1)
    """Uploads and downloads of artifacts at once. Each upload may need as much disk for temporary files as the largest
    artifact (THREADLOG_ARTIFACT_BYTES_MAX).
    """
    ingest_transfers_per_tenant_max: Limit[int] = Field(default=16, ge=1)
    """Uploads and downloads of one tenant at once."""

    import_file_bytes_max: Limit[int] = Field(default=1024 * MIB, ge=1)
    """Bytes of one session's file in an import. Each of its records needs an index of some bytes in memory."""
    import_lease_seconds: Some[float] = Field(default=30, gt=0)
    """How long an import stays with a worker that gives no sign of life. Then another worker continues it."""

    ops_stuck_seconds: Some[int] = Field(default=300, ge=1)
    """A thread for which a service should act is listed as stuck after so long without progress."""
    ops_step_seconds: Some[int] = Field(default=900, ge=1)
    """How long an open step may make no progress before it is listed as stuck. Use more than
    THREADLOG_RUNTIME_MODEL_TIMEOUT_SECONDS.
    """
    ops_refresh_seconds: Some[float] = Field(default=60, gt=0)
    """How often the metrics of what is open and what is stuck are brought up to date."""

    @property
    def postgres_role(self) -> str:
        return self.ingest_postgres_role


def require_safe(settings: IngestSettings) -> None:
    """Refuse settings that let everybody in: dev authentication at an address that other machines can reach.

    Raises UnsafeSettingsError, whose text says what to set.
    """
    if settings.ingest_auth == "dev" and not is_loopback(settings.ingest_host):
        raise UnsafeSettingsError(
            f"THREADLOG_INGEST_AUTH=dev lets everybody act for every tenant, and THREADLOG_INGEST_HOST="
            f"{settings.ingest_host} can be reached from other machines. Bind to 127.0.0.1, or set "
            f"THREADLOG_INGEST_AUTH=keys and make a key with `threadlog keys create`."
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host, which may be written in brackets."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
