"""The cells of the operations windows, in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from services.projector.generations.errors import StoreAwayError
from services.projector.windows.windows import Cell, CellKey, OvertakenError, Position
from tests.support.memory.database import AwayError, MemoryDatabase

T = TypeVar("T")


class MemoryWindowStore:
    """Implements `WindowStore`. All that it writes is durable. One cluster is all there is."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def close(self) -> None:
        pass

    async def positions(self, cluster_id: str, partitions: Iterable[int]) -> dict[int, Position]:
        stored = self._database.window_positions
        return await self._ask(lambda: {p: stored[p] for p in partitions if p in stored})

    async def forget_positions(self, cluster_id: str, partitions: Iterable[int]) -> None:
        def forget() -> None:
            for partition in partitions:
                self._database.window_positions.pop(partition, None)

        await self._ask(forget)

    async def load(self, cluster_id: str, keys: Sequence[CellKey]) -> dict[CellKey, Cell]:
        stored = self._database.window_cells
        return await self._ask(lambda: {key: stored[key].copy() for key in keys if key in stored})

    async def write(
        self, cluster_id: str, cells: Mapping[CellKey, Cell], moved: Mapping[int, tuple[Position, Position]]
    ) -> None:
        def write() -> None:
            database = self._database
            stored = {partition: database.window_positions.get(partition, Position()) for partition in moved}
            if moved and all(stored[partition] == after for partition, (_, after) in moved.items()):
                return
            if any(stored[partition].next_offset != before.next_offset for partition, (before, _) in moved.items()):
                raise OvertakenError("another worker counts these partitions")
            database.window_positions |= {partition: after for partition, (_, after) in moved.items()}
            for key, cell in cells.items():
                known = database.window_cells.get(key)
                if known is None or known.counted_to < cell.counted_to:
                    database.window_cells[key] = cell.copy()
            database.journal.flushed()

        await self._ask(write)

    async def delete_before(self, minute_ms: int, cells_max: int) -> int:
        def delete() -> int:
            cells = self._database.window_cells
            old = [
                key for key, cell in cells.items() if key.minute_ms < minute_ms and not (cell.waiting or cell.unknown)
            ]
            for key in old[:cells_max]:
                del cells[key]
            return len(old[:cells_max])

        return await self._ask(delete)

    async def _ask(self, act: Callable[[], T]) -> T:
        try:
            return await self._database.question(act)
        except AwayError as error:
            raise StoreAwayError(str(error)) from error
