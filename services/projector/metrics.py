from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class ProjectorMetrics:
    """All metrics of the projector."""

    records: Counter
    """Records whose rows are committed, by what they came to."""
    batch_records: Histogram
    write_seconds: Histogram
    """One batch's transaction, retries left out."""
    retries: Counter
    """Tries that the database did not take."""
    fenced: Counter
    """Batches given up because their partitions had another owner or position."""
    dead_letters: Counter
    dead_letters_unpublished: Counter
    """In the table only: their topic refused them."""
    quarantined: Counter
    """Threads set aside because the database refused a row."""
    lag_records: Gauge
    """Records of the assigned partitions that are not in the views, as of the last look."""
    delay_seconds: Gauge
    """From a record's time to its commit, the last of the last batch."""
    generation: Gauge
    states_loaded: Counter

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "ProjectorMetrics":
        sizes = (1, 10, 30, 100, 300, 1_000, 3_000, 10_000)
        return cls(
            Counter("threadlog_projector_records", "Records projected", ["effect"], registry=registry),
            Histogram("threadlog_projector_batch_records", "Records per commit", buckets=sizes, registry=registry),
            Histogram("threadlog_projector_write_seconds", "Seconds of a batch's transaction", registry=registry),
            Counter("threadlog_projector_retries", "Writes tried again", registry=registry),
            Counter("threadlog_projector_fenced", "Batches given up at the fence", registry=registry),
            Counter("threadlog_projector_dead_letters", "Records that cannot be read or stored", registry=registry),
            Counter("threadlog_projector_dead_letters_unpublished", "Not on their topic", registry=registry),
            Counter("threadlog_projector_quarantined_threads", "Threads set aside", registry=registry),
            Gauge("threadlog_projector_lag_records", "Records that are not in the views", registry=registry),
            Gauge("threadlog_projector_delay_seconds", "From a record's time to its commit", registry=registry),
            Gauge("threadlog_projector_generation", "Number of the live generation", registry=registry),
            Counter("threadlog_projector_states_loaded", "States read from the database", registry=registry),
        )
