"""`threadlog services run projector`: the projector is wired here, and nowhere else."""

import sys
from functools import partial

from prometheus_client import CollectorRegistry

from services.chassis.clock import SystemClock, draw_id
from services.chassis.process.lifecycle import Lifecycle, run_service
from services.chassis.process.telemetry import configure_logging
from services.chassis.service import open_service
from services.projector.applying.postgres_relay import PostgresRelayStore
from services.projector.generations.postgres_store import PostgresStores
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.rebuilding.upgrade import done_before, own_generation_live
from services.projector.settings import ProjectorSettings


class Waits:
    """Tells whether the projector had to wait since the last look, for its database or for another owner's partitions.

    While it waits for one of these it does not count as standing still, and /livez does not fail.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._seen = self._count()

    def __call__(self) -> bool:
        before, self._seen = self._seen, self._count()
        return self._seen != before

    def _count(self) -> float:
        names = ("threadlog_projector_retries_total", "threadlog_projector_fenced_total")
        return sum([self._registry.get_sample_value(name) or 0.0 for name in names])


async def serve(settings: ProjectorSettings, lifecycle: Lifecycle) -> None:
    """Run a projector. One that is newer than the live views first builds its own generation, if the settings
    say so.
    """
    registry = CollectorRegistry()
    metrics = ProjectorMetrics.register(registry)
    projector: Projector | None = None

    def not_ready() -> str | None:
        return None if projector is not None and projector.is_ready else "no partitions yet"

    async with open_service(settings, lifecycle, "projector", registry, not_ready=not_ready) as service:
        stores = PostgresStores(settings.postgres_dsn, settings)
        building = own_generation_live(service.log, stores, settings.postgres_dsn, settings, metrics)
        if not await done_before(lifecycle.stopping, building):
            return
        relay_store = PostgresRelayStore(settings.postgres_dsn, settings) if settings.projector_effects else None
        projector = await Projector.start(
            service.log, stores, settings, SystemClock(), metrics, draw_id()[:8], relay_store
        )
        service.measure_lag(projector.positions, metrics.lag_records, metrics.lag_seconds, Waits(registry))
        await projector.run(lifecycle.stopping)


def main() -> int:
    settings = ProjectorSettings()
    configure_logging(settings.log_format, "projector", settings.instance, settings.log_level)
    return run_service(partial(serve, settings), settings.drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
