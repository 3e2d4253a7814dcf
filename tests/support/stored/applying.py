"""The projector's writing half without its loop: records straight into a generation."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from schemas.ids import ThreadKey
from services.chassis.clock import SystemClock
from services.projector.applying.apply import Applier, PublishDeadLetters
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation, GenerationStore
from services.projector.metrics import ProjectorMetrics
from services.projector.projections.dead_letters import DeadLetter
from services.projector.settings import ProjectorSettings

PARTITIONS = 12


async def publish_nothing(dead: object) -> None:
    pass


@asynccontextmanager
async def applier_of(
    generation: Generation,
    settings: ProjectorSettings,
    *,
    partitions: Iterable[int] = range(PARTITIONS),
    partition_of: Callable[[ThreadKey], int] = lambda _: 3,
    publish: PublishDeadLetters = publish_nothing,
    store: GenerationStore | None = None,
    owner: str = "test",
) -> AsyncIterator[Applier]:
    """It has claimed the partitions. Every key is at home in partition 3 unless the test says otherwise."""
    store = store or PostgresStore(settings.postgres_dsn, settings, generation)
    metrics = ProjectorMetrics.register(CollectorRegistry())
    applier = Applier(store, partition_of, publish, SystemClock(), settings, metrics)
    applier.hold(await store.claim(partitions, owner, "cluster"))
    try:
        yield applier
    finally:
        await applier.abandon()
        await store.close()


class DeadLetters:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.published: list[DeadLetter] = []

    async def __call__(self, dead: Iterable[DeadLetter]) -> None:
        self.published += dead
