"""What the ingest service can be told, beyond what all services share."""

import ipaddress
from typing import Literal

from pydantic import Field

from schemas.errors import ThreadlogError
from schemas.topics import RECORD_BYTES_MAX
from services.chassis.postgres.roles import INGEST
from services.chassis.postgres.tenancy import PER_TENANT_MAX
from services.chassis.settings import MIB, ROLE, Settings

KIB = 1_024


class UnsafeSettingsError(ThreadlogError):
    """The settings would let anybody in; the service refuses to start with them."""


class IngestSettings(Settings):
    ingest_postgres_role: str = Field(default=INGEST, pattern=ROLE)
    """What it acts as in Postgres, of the roles that `threadlog migrate` makes: the login has to be a member. Empty: as
    the login is. What it reads for a tenant it reads as threadlog_reader all the same.
    """
    ingest_host: str = "127.0.0.1"
    ingest_port: int = Field(default=8080, ge=0, le=65_535)
    """0 takes a free port and logs it."""
    ingest_auth: Literal["keys", "dev"] = "keys"
    """`keys` asks for an API key with every request. `dev` believes the headers X-Threadlog-Tenant and
    X-Threadlog-Subject, and is refused unless ingest_host is a loopback address.
    """

    ingest_default_model: str = Field(default="scripted", min_length=1)
    """The model of threads that are created without one."""
    ingest_default_instructions: str | None = None
    """The instructions of threads that are created without any."""

    ingest_body_bytes_max: int = Field(default=2 * MIB, ge=KIB)
    """A request body above it is refused before it is read to its end. Escaped JSON can be longer than its record."""
    ingest_record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=KIB, le=RECORD_BYTES_MAX)
    ingest_input_bytes_max: int = Field(default=256 * KIB, ge=1)
    """Text of one input, or the edited arguments of one call as JSON."""
    ingest_result_bytes_max: int = Field(default=32 * KIB, ge=1)
    """Result of one client tool call, as JSON."""
    ingest_config_bytes_max: int = Field(default=128 * KIB, ge=KIB)
    """A thread's configuration, or a patch of it, as JSON."""
    ingest_queue_inputs_max: int = Field(default=100, ge=1)
    """Inputs that may wait in a thread's queue. Acts before the append; a race may overshoot it."""

    ingest_requests_max: int = Field(default=1_000, ge=1)
    """Requests that may be under way at once. A stream counts until it has begun."""
    ingest_appends_per_tenant_max: int = Field(default=200, ge=1)
    """Commands of one tenant that may wait for the broker at once."""
    ingest_body_timeout_seconds: float = Field(default=10, gt=0)
    """How long a client may take to send its request body."""
    ingest_keep_alive_seconds: int = Field(default=30, ge=1)
    ingest_verdict_wait_seconds: float = Field(default=10, gt=0)
    """How long a command waits for what the fold made of it before it is answered as undecided."""
    ingest_existence_wait_seconds: float = Field(default=3, gt=0)
    """How long an unknown thread is waited for until the views have passed the end of the log."""
    ingest_at_least_wait_seconds: float = Field(default=5, gt=0)
    """How long a read with `at_least` waits for the views."""
    ingest_position_poll_ms: int = Field(default=15, ge=1)
    """How often the views' positions are looked at while somebody waits for them."""
    ingest_query_timeout_seconds: float = Field(default=5, gt=0)
    ingest_queries_per_tenant_max: int = Field(default=PER_TENANT_MAX, ge=1)
    """Queries of one tenant that may be under way at once, of as many as there are connections
    (THREADLOG_POSTGRES_POOL_MAX); its others wait, and those of other tenants do not.
    """

    ingest_known_threads_max: int = Field(default=20_000, ge=1)
    """Threads whose existence this process remembers, so that writes to them need no database."""
    ingest_recent_commands_max: int = Field(default=10_000, ge=1)
    """Commands with an Idempotency-Key whose answer this process remembers."""
    ingest_key_cache_seconds: float = Field(default=30, gt=0)
    """How long an API key is believed before it is looked up again: a revoked one is refused after this time."""
    ingest_key_stale_seconds: float = Field(default=600, ge=0)
    """How long a known API key is still believed while the database is away."""
    ingest_key_cache_max: int = Field(default=10_000, ge=1)

    import_lease_seconds: float = Field(default=30, gt=0)
    """An import whose worker shows nothing for so long is taken up by another one."""
    import_poll_seconds: float = Field(default=5, gt=0)
    """How often an ingest looks for imports that nobody works on."""
    import_tries_max: int = Field(default=20, ge=1)
    """Times that an import is taken up before it is given up, its last error told."""
    import_again_seconds: float = Field(default=5, ge=0)
    """How long an import waits that was interrupted by an error that may pass."""
    import_views_wait_seconds: float = Field(default=60, gt=0)
    """How long an import waits for the views to come up with the log."""
    import_files_max: int = Field(default=2_000, ge=1)
    """Files of one import; `threadlog import` makes several imports of more."""
    import_file_bytes_max: int = Field(default=1024 * MIB, ge=1)
    """Of one session's file: each of its records costs an index of some bytes."""
    import_line_bytes_max: int = Field(default=64 * MIB, ge=KIB)
    """A longer line is counted as a bad one."""
    import_niceness: int = Field(default=10, ge=0, le=19)
    """Of the process that works on imports."""

    ingest_page_default: int = Field(default=50, ge=1)
    ingest_page_max: int = Field(default=500, ge=1)
    ingest_threads_looked_at_max: int = Field(default=1_000, ge=1)
    """For one page of a list of threads that is filtered; what is not found among so many is on the next page."""

    ingest_streams_max: int = Field(default=20_000, ge=1)
    """Streams that may be open at once."""
    ingest_stream_heartbeat_seconds: float = Field(default=15, gt=0)
    """A stream without events sends a comment this often."""
    ingest_stream_send_seconds: float = Field(default=30, gt=0)
    """How long a client may leave its connection unread before it is given up."""
    ingest_stream_lag_records_max: int = Field(default=1_000, ge=1)
    """A stream further behind its thread is cut; the client comes back with its cursor."""
    ingest_stream_lag_bytes_max: int = Field(default=2 * MIB, ge=KIB)
    ingest_ephemeral_tail_records_max: int = Field(default=20_000, ge=1)
    """Of an ephemeral thread that is followed; it has no other history. A cursor before them is refused."""
    ingest_ephemeral_tail_bytes_max: int = Field(default=16 * MIB, ge=KIB)
    ingest_transfers_max: int = Field(default=64, ge=1)
    """Uploads and downloads of artifacts that may be under way at once. Each upload may take the size of the largest
    artifact (THREADLOG_ARTIFACT_BYTES_MAX) of the disk for temporary files.
    """
    ingest_transfers_per_tenant_max: int = Field(default=16, ge=1)
    ingest_upload_seconds: float = Field(default=3_600, gt=0)
    """How long one upload may take."""
    ingest_diff_file_bytes_max: int = Field(default=MIB, ge=KIB)
    """Of a file's content, before or after. A larger one is named in a diff, and not shown."""
    ingest_diff_bytes_max: int = Field(default=2 * MIB, ge=KIB)
    """Of the diff of a turn."""
    ingest_diffs_at_once_max: int = Field(default=2, ge=1)
    """Diffs that are made at once."""
    ingest_live_ring_bytes_max: int = Field(default=64 * MIB, ge=0)
    """Newest records of all partitions, kept raw, so that a stream that starts a little behind needs no reader."""
    ingest_live_warm_records: int = Field(default=500, ge=0)
    """Per partition: how far before the log's end a starting process begins to read."""
    ingest_live_grace_seconds: float = Field(default=2, ge=0)
    """How long a thread is folded on after its last stream has gone."""
    ingest_live_behind_seconds: float = Field(default=10, gt=0)
    """How long a stream waits for views that have not come as far as it needs."""
    ingest_live_catch_ups_max: int = Field(default=8, ge=1)
    """Readers at once that fetch what the ring does not hold any more."""
    ingest_live_catch_up_records_max: int = Field(default=200_000, ge=1)
    """Records that one of them reads, of any thread, before the stream is refused because the views are behind."""
    ingest_live_catch_up_seconds: float = Field(default=15, gt=0)

    ingest_state_records_max: int = Field(default=200_000, ge=1)
    """Records that are folded for a thread's state at a seq; `threadlog export` reads the log and has no such limit."""
    ingest_state_bytes_max: int = Field(default=64 * MIB, ge=KIB)
    """Data of the records that are folded for it, or of the items that it shows, as stored."""
    ingest_state_items_max: int = Field(default=50_000, ge=1)
    """Items of the model's context that it shows."""
    ingest_state_log_reads_max: int = Field(default=1_000, ge=0)
    """Records that have to be read from the log for it, because the views do not hold them as they were written."""
    ingest_state_seconds: float = Field(default=10, gt=0)
    """How long it may take, waiting for others among it."""
    ingest_state_at_once_max: int = Field(default=2, ge=1)
    """States at a seq that are folded at once."""
    ingest_fork_configurations_max: int = Field(default=1_000, ge=1)
    """Records of configurations that are read for a fork at an earlier seq."""

    ops_stuck_seconds: int = Field(default=300, ge=1)
    """A thread for which a service should act and that has shown nothing for so long is listed as stuck."""
    ops_step_seconds: int = Field(default=900, ge=1)
    """How long an open step may show nothing. Longer than THREADLOG_RUNTIME_MODEL_TIMEOUT_SECONDS."""
    ops_candidates_max: int = Field(default=5_000, ge=1)
    """Quiet threads that are looked at when somebody asks what is stuck."""
    ops_threads_max: int = Field(default=500, ge=1)
    """Threads that are listed as stuck."""
    ops_progress_records_max: int = Field(default=2_000, ge=1)
    """Newest records of each partition of thread-progress that are read for reports of threads that were set aside."""
    ops_look_seconds: float = Field(default=10, gt=0)
    """How long the views, thread-progress and the broker, one after the other, may take to be asked."""
    ops_fresh_seconds: float = Field(default=5, ge=0)
    """What was found is told again to whoever asks within this time."""
    ops_refresh_seconds: float = Field(default=60, gt=0)
    """How often the metrics of what is open and what is stuck are brought up to date."""
    ops_dead_letter_bytes_max: int = Field(default=2_048, ge=0, le=MIB)
    """Of the value of a record that could not be read or stored, shown in their list."""
    ingest_usage_days_max: int = Field(default=400, ge=1)
    """How long a time the usage may be asked for at once."""
    ops_windows_hours_max: int = Field(default=744, ge=1)
    """How long a time the live windows may be asked for at once."""

    @property
    def postgres_role(self) -> str:
        return self.ingest_postgres_role


def require_safe(settings: IngestSettings) -> None:
    """Raises UnsafeSettingsError."""
    if settings.ingest_auth == "dev" and not is_loopback(settings.ingest_host):
        raise UnsafeSettingsError(
            f"THREADLOG_INGEST_AUTH=dev lets everybody act for every tenant, and THREADLOG_INGEST_HOST="
            f"{settings.ingest_host} can be reached from other machines. Bind to 127.0.0.1, or set "
            f"THREADLOG_INGEST_AUTH=keys and make a key with `threadlog keys create`."
        )


def is_loopback(host: str) -> bool:
    """Whether the host, written with or without brackets, is this machine and nobody else can reach it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
