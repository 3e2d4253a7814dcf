"""What the relay of effects stores and reads, in memory."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from services.projector.applying.effects import Rows, effect_row
from services.projector.generations.errors import GenerationGoneError, StoreAwayError
from services.projector.generations.store import Generation
from services.projector.projections import events
from tests.support.memory.database import AwayError, MemoryDatabase, next_offset
from tests.support.memory.tables import Undo

T = TypeVar("T")
PARTITION, OFFSET = (events.COLUMNS.index(name) for name in ("partition", "offset"))


class MemoryRelayStore:
    """Implements the projector's `RelayStore`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def close(self) -> None:
        pass

    async def positions(self, topic: str, cluster_id: str, partitions: Iterable[int]) -> dict[int, int]:
        def read() -> dict[int, int]:
            stored = self._database.relay_positions
            found = {partition: stored.get((topic, partition)) for partition in partitions}
            return {partition: at[1] for partition, at in found.items() if at is not None and at[0] == cluster_id}

        return await self._ask(read)

    async def begin(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        await self._ask(lambda: self._store(topic, cluster_id, positions))

    async def move(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        def move() -> None:
            stored = self._database.relay_positions
            ahead = {
                partition: offset
                for partition, offset in positions.items()
                if (at := stored.get((topic, partition))) is not None and at[0] == cluster_id and at[1] < offset
            }
            self._store(topic, cluster_id, ahead)

        await self._ask(move)

    async def read(self, generation: Generation, partition: int, from_offset: int, to_offset: int) -> Rows:
        def read() -> Rows:
            made = self._database.generations.get(generation.number)
            if made is None:
                raise GenerationGoneError(f"{generation.schema} is not there")
            at = made.tables.positions.get(partition)
            if at is None:
                return Rows([], from_offset)
            end = min(to_offset, next_offset(made.tables, partition))
            found = [
                row
                for rows in made.tables.groups("events").values()
                for row in rows.values()
                if row[PARTITION] == partition and from_offset <= row[OFFSET] < end
            ]
            return Rows([effect_row(row) for row in sorted(found, key=lambda row: row[OFFSET])], end)

        return await self._ask(read)

    def _store(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        """Not waited for by its commit: a crash may take it."""
        stored = self._database.relay_positions
        undo: Undo = []
        for partition, offset in positions.items():
            place = (topic, partition)
            undo.append((stored, place, stored.get(place)))
            stored[place] = (cluster_id, offset)
        if undo:
            self._database.journal.committed(undo)

    async def _ask(self, act: Callable[[], T]) -> T:
        try:
            return await self._database.question(act)
        except AwayError as error:
            raise StoreAwayError(str(error)) from error
