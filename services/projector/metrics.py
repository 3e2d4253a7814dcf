"""The metrics of the projector, of a rebuild and of the windows' worker.

A rebuild inside of a projector has a second `ProjectorMetrics` in a registry of its own, so that its batches do not
count as those of the live views. None of the labels has values that a tenant chooses.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from schemas.errors import FAULTS
from services.chassis.process.bulk_histogram import BulkHistogram
from services.chassis.process.metrics import DATABASE_SECONDS

BATCH_RECORDS = (1, 10, 30, 100, 300, 1_000, 3_000, 10_000)
DELAY_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.2, 0.3, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0)


@dataclass(frozen=True, slots=True)
class RebuildMetrics:
    """Metrics of `threadlog rebuild`, and of a projector that builds its own generation before it starts."""

    done_records: Gauge
    log_records: Gauge
    paused: Gauge
    building: Gauge

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "RebuildMetrics":
        return cls(
            done_records=Gauge(
                "threadlog_rebuild_done_records",
                "Records of the log that are in the generation that this process builds, or has built.",
                registry=registry,
            ),
            log_records=Gauge(
                "threadlog_rebuild_log_records",
                "Records of the log that the generation has to contain, as of the last look.",
                registry=registry,
            ),
            paused=Gauge(
                "threadlog_rebuild_paused",
                "1 while the rebuild waits because the live generation is behind.",
                registry=registry,
            ),
            building=Gauge(
                "threadlog_rebuild_generation",
                "Number of the generation that this process builds; 0 if it builds none.",
                registry=registry,
            ),
        )


@dataclass(frozen=True, slots=True)
class ProjectorMetrics:
    """The projector counts these."""

    records: Counter
    batch_records: Histogram
    write_seconds: Histogram
    load_seconds: Histogram
    retries: Counter
    fenced: Counter
    dead_letters: Counter
    dead_letters_unpublished: Counter
    quarantined: Counter
    lag_records: Gauge
    lag_seconds: Gauge
    delay_seconds: BulkHistogram
    generation: Gauge
    states_loaded: Counter
    effects_published: Counter
    effects_read_again: Counter
    effects_retries: Counter
    effects_behind: Gauge
    rebuild: RebuildMetrics

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "ProjectorMetrics":
        made = cls(
            records=Counter(
                "threadlog_projector_records",
                "Records whose rows are committed, by what the fold made of them and their kind.",
                ["effect", "kind"],
                registry=registry,
            ),
            batch_records=Histogram(
                "threadlog_projector_batch_records", "Records per commit.", buckets=BATCH_RECORDS, registry=registry
            ),
            write_seconds=Histogram(
                "threadlog_projector_write_seconds",
                "Seconds that a batch's transaction takes, each try counted on its own.",
                buckets=DATABASE_SECONDS,
                registry=registry,
            ),
            load_seconds=Histogram(
                "threadlog_projector_load_seconds",
                "Seconds that reading the states of a batch's threads takes, if they are not in memory.",
                buckets=DATABASE_SECONDS,
                registry=registry,
            ),
            retries=Counter(
                "threadlog_projector_retries",
                "Tries that failed because the database is away or cannot write now.",
                registry=registry,
            ),
            fenced=Counter(
                "threadlog_projector_fenced",
                "Restarts from what is stored, because partitions had another owner, another position or no tables.",
                registry=registry,
            ),
            dead_letters=Counter(
                "threadlog_projector_dead_letters",
                "Records that cannot be read or stored, by what is wrong with them.",
                ["fault"],
                registry=registry,
            ),
            dead_letters_unpublished=Counter(
                "threadlog_projector_dead_letters_unpublished",
                "Dead letters that are only in the table, because their topic refused them.",
                registry=registry,
            ),
            quarantined=Counter(
                "threadlog_projector_quarantined_threads",
                "Threads that are quarantined because the database refused one of their rows.",
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_projector_lag_records",
                "Records that are not in the views yet, of the partitions that this process owns, as of the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_projector_lag_seconds",
                "Seconds since the log ended where the views are now, for the partition that is furthest behind.",
                registry=registry,
            ),
            delay_seconds=BulkHistogram(
                "threadlog_projector_delay_seconds",
                "Seconds from a record's time on the log to the commit of its rows.",
                DELAY_SECONDS,
                registry,
            ),
            generation=Gauge(
                "threadlog_projector_generation",
                "Number of the generation that this process writes.",
                registry=registry,
            ),
            states_loaded=Counter(
                "threadlog_projector_states_loaded",
                "Thread states that were read from the database.",
                registry=registry,
            ),
            effects_published=Counter(
                "threadlog_projector_effects_published",
                "Effects that thread-effects has acknowledged. After a crash some are published again.",
                registry=registry,
            ),
            effects_read_again=Counter(
                "threadlog_projector_effects_read_again",
                "Effects that were read back from the database, because they were no longer in memory.",
                registry=registry,
            ),
            effects_retries=Counter(
                "threadlog_projector_effects_retries",
                "Tries to publish effects that failed because the log or the database is away.",
                registry=registry,
            ),
            effects_behind=Gauge(
                "threadlog_projector_effects_behind",
                "Committed records whose effects are not published yet, of the partitions that this process owns.",
                registry=registry,
            ),
            rebuild=RebuildMetrics.register(registry),
        )
        for fault in FAULTS:
            made.dead_letters.labels(fault)
        return made


@dataclass(frozen=True, slots=True)
class RollupsMetrics:
    """The worker of the windows counts these."""

    effects: Counter
    repeated: Counter
    late: Counter
    unreadable: Counter
    cells_written: Counter
    cells_deleted: Counter
    write_seconds: Histogram
    retries: Counter
    lag_records: Gauge
    lag_seconds: Gauge

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "RollupsMetrics":
        return cls(
            effects=Counter(
                "threadlog_rollups_effects", "Records of thread-effects that are counted in windows.", registry=registry
            ),
            repeated=Counter(
                "threadlog_rollups_effects_repeated",
                "Effects that were published before, and do not count a second time.",
                registry=registry,
            ),
            late=Counter(
                "threadlog_rollups_effects_late",
                "Effects that came too late for their minute, and count in no minute.",
                registry=registry,
            ),
            unreadable=Counter(
                "threadlog_rollups_effects_unreadable",
                "Records of thread-effects that are not effects.",
                registry=registry,
            ),
            cells_written=Counter(
                "threadlog_rollups_cells_written",
                "Cells of windows that were written. A cell counts each time.",
                registry=registry,
            ),
            cells_deleted=Counter(
                "threadlog_rollups_cells_deleted", "Cells that were deleted because they are old.", registry=registry
            ),
            write_seconds=Histogram(
                "threadlog_rollups_write_seconds",
                "Seconds that writing a batch's cells takes, retries included.",
                buckets=DATABASE_SECONDS,
                registry=registry,
            ),
            retries=Counter(
                "threadlog_rollups_retries", "Tries that failed because the database is away.", registry=registry
            ),
            lag_records=Gauge(
                "threadlog_rollups_lag_records",
                "Records that are in no window yet, of the partitions that this process owns, as of the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_rollups_lag_seconds",
                "Seconds since thread-effects ended where the windows are now, for the partition furthest behind.",
                registry=registry,
            ),
        )
