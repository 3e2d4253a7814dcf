"""How far a rebuild is: what it tells whoever started it, and what its metrics show."""

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
    """What there is to read, as of now: offsets, so that gaps count."""
    seconds: float
    records_now: int = 0
    """Of those done, what this run has read; the others were there when it began."""
    is_paused: bool = False
    """The live generation is behind and has the machine for itself."""
    differences: Sequence[Difference] = ()
    """Once compared."""

    @property
    def records_per_second(self) -> float:
        return self.records_now / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        rate = self.records_per_second
        return (self.records_total - self.records_done) / rate if rate else None

    def show_in(self, metrics: RebuildMetrics) -> None:
        metrics.done_records.set(self.records_done)
        metrics.log_records.set(self.records_total)
        metrics.paused.set(self.is_paused)
        metrics.building.set(0 if self.phase == "done" else self.generation)


OnProgress = Callable[[Progress], None]
