"""Environment variables that earlier versions read, and what became of them.

A service that starts with one of them in its environment logs a warning that names it, and the command `threadlog`
prints one: a value that somebody set on purpose must not be dropped without a word. The name is written without its
prefix `THREADLOG_`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "THREADLOG_"

SHARED: Final[Mapping[str, str]] = {
    "ARTIFACTS_TIMEOUT_SECONDS": "is always 30 s",
    "KAFKA_BUSY_PAUSE_MS": "is always 2 ms",
    "KAFKA_BUSY_THREADS": "is always 8",
    "KAFKA_COMMIT_INTERVAL_MS": "is always 2 s",
    "KAFKA_FETCH_BYTES_MAX": "is always 4 MiB",
    "KAFKA_HEARTBEAT_INTERVAL_MS": "is 1.5 s, or a quarter of THREADLOG_KAFKA_SESSION_TIMEOUT_MS if that is shorter",
    "KAFKA_POLL_RECORDS_MAX": "is always 5000",
    "KAFKA_REQUEST_TIMEOUT_MS": "is 15 s, or 2.5 times THREADLOG_KAFKA_SESSION_TIMEOUT_MS if that is longer",
    "LAG_LOOK_SECONDS": "is always 5 s",
    "LIVE_STUCK_SECONDS": "is always 300 s",
    "OUTBOX_BATCH_BYTES_MAX": "is always 1 MiB",
    "OUTBOX_LOSSY_BYTES_MAX": "is always 1 MiB",
    "OUTBOX_QUEUE_BYTES_MAX": "is always 64 MiB",
    "POSTGRES_CONNECT_TIMEOUT_SECONDS": "is always 5 s",
    "POSTGRES_POOL_MIN": "is always 0, so that a service starts while its database is away",
    "QUARANTINE_REFOLD_FIRST_SECONDS": "is always 5 s",
    "QUARANTINE_REFOLD_MOST_SECONDS": "is always 300 s",
    "QUARANTINE_REPORT_SECONDS": "is always 10 s",
}
"""What all services read. Each entry says in a clause what holds now, such as `is always 2 ms`."""

INGEST: Final[Mapping[str, str]] = {
    "IMPORT_AGAIN_SECONDS": "is always 5 s",
    "IMPORT_FILES_MAX": "is always 2000",
    "IMPORT_LINE_BYTES_MAX": "is always 64 MiB",
    "IMPORT_NICENESS": "is always 10",
    "IMPORT_POLL_SECONDS": "is always 5 s",
    "IMPORT_TRIES_MAX": "is always 20",
    "IMPORT_VIEWS_WAIT_SECONDS": "is always 60 s",
    "INGEST_AT_LEAST_WAIT_SECONDS": "is always 5 s",
    "INGEST_BODY_TIMEOUT_SECONDS": "is always 10 s",
    "INGEST_DIFFS_AT_ONCE_MAX": "is always 2",
    "INGEST_DIFF_BYTES_MAX": "is always 2 MiB",
    "INGEST_DIFF_FILE_BYTES_MAX": "is always 1 MiB",
    "INGEST_EPHEMERAL_TAIL_BYTES_MAX": "is always 16 MiB",
    "INGEST_EPHEMERAL_TAIL_RECORDS_MAX": "is always 20000",
    "INGEST_EXISTENCE_WAIT_SECONDS": "is always 3 s",
    "INGEST_FORK_CONFIGURATIONS_MAX": "is always 1000",
    "INGEST_KEEP_ALIVE_SECONDS": "is always 30 s",
    "INGEST_KEY_CACHE_MAX": "is always 10000",
    "INGEST_KEY_STALE_SECONDS": "is always 600 s",
    "INGEST_KNOWN_THREADS_MAX": "is always 20000",
    "INGEST_LIVE_BEHIND_SECONDS": "is always 10 s",
    "INGEST_LIVE_CATCH_UPS_MAX": "is always 8",
    "INGEST_LIVE_CATCH_UP_RECORDS_MAX": "is always 200000",
    "INGEST_LIVE_CATCH_UP_SECONDS": "is always 15 s",
    "INGEST_LIVE_GRACE_SECONDS": "is always 2 s",
    "INGEST_LIVE_RING_BYTES_MAX": "is always 64 MiB",
    "INGEST_LIVE_WARM_RECORDS": "is always 500",
    "INGEST_PAGE_DEFAULT": "is always 50",
    "INGEST_PAGE_MAX": "is always 500",
    "INGEST_POSITION_POLL_MS": "is always 15 ms",
    "INGEST_RECENT_COMMANDS_MAX": "is always 10000",
    "INGEST_RECORD_BYTES_MAX": "is always 1 MiB",
    "INGEST_STATE_AT_ONCE_MAX": "is always 2",
    "INGEST_STATE_BYTES_MAX": "is always 64 MiB",
    "INGEST_STATE_ITEMS_MAX": "is always 50000",
    "INGEST_STATE_LOG_READS_MAX": "is always 1000",
    "INGEST_STATE_RECORDS_MAX": "is always 200000",
    "INGEST_STATE_SECONDS": "is always 10 s",
    "INGEST_STREAM_HEARTBEAT_SECONDS": "is always 15 s",
    "INGEST_STREAM_LAG_BYTES_MAX": "is always 2 MiB",
    "INGEST_STREAM_SEND_SECONDS": "is always 30 s",
    "INGEST_THREADS_LOOKED_AT_MAX": "is always 1000",
    "INGEST_UPLOAD_SECONDS": "is always 3600 s",
    "INGEST_USAGE_DAYS_MAX": "is always 400",
    "OPS_CANDIDATES_MAX": "is always 5000",
    "OPS_DEAD_LETTER_BYTES_MAX": "is always 2 KiB",
    "OPS_FRESH_SECONDS": "is always 5 s",
    "OPS_LOOK_SECONDS": "is always 10 s",
    "OPS_PROGRESS_RECORDS_MAX": "is always 2000",
    "OPS_THREADS_MAX": "is always 500",
    "OPS_WINDOWS_HOURS_MAX": "is always 744",
}

PROJECTOR: Final[Mapping[str, str]] = {
    "PROJECTOR_BATCH_BYTES_MAX": "is always 16 MiB",
    "PROJECTOR_BATCH_INTERVAL_IDLE_MS": "is always 15 ms",
    "PROJECTOR_BATCH_INTERVAL_MS": "is always 120 ms",
    "PROJECTOR_BUSY_RECORDS_PER_SECOND": "is always 1500",
    "PROJECTOR_COMPARE_WAIT_SECONDS": "is always 60 s",
    "PROJECTOR_DEAD_LETTER_BYTES_MAX": "is always 256 KiB",
    "PROJECTOR_EFFECTS_BATCH_RECORDS_MAX": "is always 1000",
    "PROJECTOR_EFFECTS_HELD_MAX": "is always 2000",
    "PROJECTOR_EFFECTS_POSITION_SECONDS": "is always 1 s",
    "PROJECTOR_LAST_RECORD_SECONDS": "is always 10 s",
    "PROJECTOR_LOOK_SECONDS": "is always 5 s",
    "PROJECTOR_PAUSE_AFTER_SECONDS": "is always 1 s",
    "PROJECTOR_REBUILD_LOOK_SECONDS": "is always 1 s",
    "PROJECTOR_REBUILD_SECONDS_MAX": "is always 24 h",
    "PROJECTOR_RECLAIM_SECONDS": "is always 10 s",
    "PROJECTOR_RETRY_SECONDS": "is always 0.1 s",
    "PROJECTOR_RETRY_SECONDS_MAX": "is always 5 s",
    "PROJECTOR_SWAP_LOCK_SECONDS": "is always 2 s",
    "PROJECTOR_SWAP_TRIES_MAX": "is always 200",
    "PROJECTOR_TRANSACTION_IDLE_SECONDS": "is always 10 s",
    "PROJECTOR_VERIFY_IDLE_SECONDS": "is always 60 s",
    "PROJECTOR_VERIFY_ROUNDS_MAX": "is always 20",
    "PROJECTOR_VERIFY_SECONDS_MAX": "is always 24 h",
}

ROLLUPS: Final[Mapping[str, str]] = {
    "ROLLUPS_AHEAD_SECONDS": "is always 300 s",
    "ROLLUPS_BATCH_MAX": "is always 5000",
    "ROLLUPS_CELLS_MAX": "is always 10000",
    "ROLLUPS_FLUSH_SECONDS": "is always 1 s",
    "ROLLUPS_LATE_SECONDS": "is always 24 h",
    "ROLLUPS_NAMES_MAX": "is always 50",
    "ROLLUPS_PRUNE_CELLS_MAX": "is always 10000",
    "ROLLUPS_PRUNE_SECONDS": "is always 600 s",
}

RUNTIME: Final[Mapping[str, str]] = {
    "RUNTIME_ANSWER_BYTES_MAX": "is always 524288",
    "RUNTIME_APPEND_RETRY_SECONDS": "is always 1 s",
    "RUNTIME_CALLS_PER_STEP": "is always 64",
    "RUNTIME_CHILDREN_PER_TURN": "is always 16; a thread's `limits.children_per_turn` may be less",
    "RUNTIME_CHILD_LOOK_SECONDS": "is always 10 s",
    "RUNTIME_DELTA_INTERVAL_MS": "is always 20 ms",
    "RUNTIME_DISPATCH_WAIT_SECONDS": "is always 600 s",
    "RUNTIME_MODEL_TRIES": "is always 3; a thread's `limits.model_tries` may be less",
    "RUNTIME_PARALLEL_CALLS": "is always 8; a thread's `limits.parallel_calls` may be less",
    "RUNTIME_PARALLEL_TASKS": "is always 4; a thread's `limits.parallel_tasks` may be less",
    "RUNTIME_PLAN_TASKS": "is always 64",
    "RUNTIME_RETRY_BASE_SECONDS": "is always 1 s",
    "RUNTIME_RETRY_MOST_SECONDS": "is always 60 s",
}

EXECUTOR: Final[Mapping[str, str]] = {
    "EXECUTOR_APPEND_RETRY_SECONDS": "is always 1 s",
    "EXECUTOR_KEEP_SECONDS": "is always 30 s",
    "EXECUTOR_KILL_SECONDS": "is always a second more than THREADLOG_EXECUTOR_GRACE_SECONDS",
    "EXECUTOR_OUTPUT_INTERVAL_MS": "is always 50 ms",
    "EXECUTOR_RECONCILES_MAX": "is always 8",
    "EXECUTOR_RECONCILE_FIRST_SECONDS": "is always 2 s",
    "EXECUTOR_RECONCILE_MOST_SECONDS": "is always 300 s",
    "EXECUTOR_RECONCILE_TRIES": "is always 10",
    "EXECUTOR_SKILL_BYTES_MAX": "is always 16 MiB",
    "EXECUTOR_SKILL_FILES_MAX": "is always 1000",
    "EXECUTOR_SKILL_FILE_BYTES_MAX": "is always 4 MiB",
}

REMOVED: Final[Mapping[str, str]] = {**SHARED, **INGEST, **PROJECTOR, **ROLLUPS, **RUNTIME, **EXECUTOR}


def removed_in(environment: Iterable[str]) -> list[str]:
    """Return a sentence for each variable of the environment that is no longer read, sorted by name.

    Names are compared without regard to case, as the settings are read.
    """
    names = sorted(name for name in environment if name.upper().startswith(PREFIX))
    clauses = [(name, REMOVED.get(name.upper().removeprefix(PREFIX))) for name in names]
    return [f"{name} is no longer read: it {clause}" for name, clause in clauses if clause is not None]
