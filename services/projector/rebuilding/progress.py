"""The progress of a rebuild, for whoever started it and for its metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from services.projector.metrics import RebuildMetrics
from services.projector.rebuilding.compare import Difference


@dataclass(frozen=True, slots=True)
class Progress:
    phase: Literal["reading", "comparing", "swapping", "done"]
    generation: int
    records_done: int
    records_total: int
    """The records to read as of now. They are counted by offsets, so gaps count, too."""
    seconds: float
    records_now: int = 0
    """Records that this run has read. The others were in the generation when it began."""
    is_paused: bool = False
    """Whether the rebuild waits, because the live generation is behind."""
    differences: Sequence[Difference] = ()
    """The differences from the live generation, after the comparison."""

    @property
    def records_per_second(self) -> float:
        return self.records_now / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds left at the rate of this run; None before anything was read."""
        rate = self.records_per_second
        return (self.records_total - self.records_done) / rate if rate else None

    def show_in(self, metrics: RebuildMetrics) -> None:
        """Set the metrics of the rebuild. Once it is done, no generation is being built."""
        metrics.done_records.set(self.records_done)
        metrics.log_records.set(self.records_total)
        metrics.paused.set(self.is_paused)
        metrics.building.set(0 if self.phase == "done" else self.generation)


OnProgress = Callable[[Progress], None]
