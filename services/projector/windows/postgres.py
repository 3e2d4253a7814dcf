"""Cells and positions of the windows in Postgres.

They are in the schema `threadlog`, outside of the generations: a rebuild of the views does not count anything again.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pydantic_core

from services.chassis.postgres.sql_files import SqlFiles
from services.projector.generations.database import Link, columns_of
from services.projector.settings import ProjectorSettings
from services.projector.windows.windows import Cell, CellKey, OvertakenError, Position


class PostgresWindowStore:
    """Implements `WindowStore`, for one task at a time."""

    def __init__(self, dsn: str, settings: ProjectorSettings) -> None:
        self._link = Link(dsn, settings, "threadlog")
        self._sql = SqlFiles(Path(__file__).with_name("sql"))

    async def close(self) -> None:
        await self._link.close()

    async def positions(self, cluster_id: str, partitions: Iterable[int]) -> dict[int, Position]:
        async with self._link.connected() as connection:
            rows = await connection.fetch(self._sql["select_window_positions"], cluster_id, sorted(partitions))
        return {row["partition"]: Position(*list(row.values())[1:]) for row in rows}

    async def forget_positions(self, cluster_id: str, partitions: Iterable[int]) -> None:
        async with self._link.connected() as connection:
            await connection.execute(self._sql["delete_window_positions"], cluster_id, sorted(partitions))

    async def load(self, cluster_id: str, keys: Sequence[CellKey]) -> dict[CellKey, Cell]:
        if not keys:
            return {}
        async with self._link.connected() as connection:
            rows = await connection.fetch(
                self._sql["select_window_cells"], cluster_id, *map(list, zip(*keys, strict=True))
            )
        return {
            CellKey(row["tenant"], row["minute"], row["partition"]): Cell(
                row["counted_to"], row["waiting"], row["unknown"], pydantic_core.from_json(row["counts"])
            )
            for row in rows
        }

    async def write(
        self, cluster_id: str, cells: Mapping[CellKey, Cell], moved: Mapping[int, tuple[Position, Position]]
    ) -> None:
        if not moved:
            return
        positions = [(partition, before.next_offset, *after) for partition, (before, after) in sorted(moved.items())]
        rows = [
            (*key, cell.counted_to, cell.waiting, cell.unknown, _json(cell.counts))
            for key, cell in sorted(cells.items())
        ]
        async with self._link.connected() as connection, connection.transaction():
            # Wait for the disk: what is counted is not counted again, so it has to be there after a crash, too.
            await connection.execute("set local synchronous_commit = on")
            found = await connection.fetch(self._sql["move_window_positions"], cluster_id, *columns_of(positions))
            if len(found) != len(moved):
                stored = await connection.fetch(self._sql["select_window_positions"], cluster_id, sorted(moved))
                if {row[0]: tuple(row.values())[1:] for row in stored} == {p: after for p, (_, after) in moved.items()}:
                    return  # an earlier try has written it, and its answer was lost
                overtaken = sorted(moved.keys() - {row["partition"] for row in found})
                raise OvertakenError(f"partitions {overtaken} are counted by another worker, or were reset")
            if rows:
                await connection.execute(self._sql["upsert_window_cells"], cluster_id, *columns_of(rows))

    async def delete_before(self, minute_ms: int, cells_max: int) -> int:
        """Delete at most this number of old cells; return how many were deleted."""
        async with self._link.connected() as connection:
            done: str = await connection.execute(self._sql["delete_window_cells"], minute_ms, cells_max)
        return int(done.rsplit(maxsplit=1)[-1])


def _json(counts: Mapping[str, int]) -> bytes:
    return pydantic_core.to_json({name: counts[name] for name in sorted(counts)})
