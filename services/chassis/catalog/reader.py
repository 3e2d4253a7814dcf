"""Follow the tool catalog: read the compacted topic `tool-catalog` from its beginning, and then on.

The topic is small, an entry per source, so every process reads all of it at its start and keeps it in memory.
"""

import asyncio
from typing import Final

import pydantic
import structlog

from schemas.tools import Catalog, CatalogSource
from schemas.topics import TOOL_CATALOG
from services.chassis.log.port import Incoming, Log, LogError, Reader, TopicPartition

log = structlog.get_logger()

POLL_MS: Final = 1_000
"""How long one poll waits. The broker answers at once if there is an entry, so it delays nothing."""
RETRY_SECONDS: Final = 0.5
"""Pause after a temporary error of the log. The catalog stays as it was."""


class CatalogReader:
    """The catalog as of the records that were read. `catalog` is replaced as a whole, so it can be kept as a value."""

    def __init__(self, log_: Log) -> None:
        self._log = log_
        self.catalog = Catalog()
        self.ready = asyncio.Event()
        """Set once the catalog has been read up to the end that it had at the start."""

    async def run(self) -> None:
        """Follow the catalog until cancelled. Raise LogError if the log cannot be read any more."""
        tp = TopicPartition(TOOL_CATALOG.name, 0)
        reader, end = await self._open(tp)
        try:
            while True:
                if reader.position(tp) >= end:
                    self.ready.set()
                try:
                    polled = await reader.poll(POLL_MS)
                except LogError as error:
                    await _pause_after(error)
                    continue
                for _, records in polled:
                    for record in records:
                        self._apply(record)
        finally:
            await reader.close()

    async def _open(self, tp: TopicPartition) -> tuple[Reader, int]:
        """Return a reader from the beginning, and the end as of now. Tried again while the log is away."""
        while True:
            try:
                begin = (await self._log.begin_offsets([tp]))[tp]
                end = (await self._log.end_offsets([tp]))[tp]
                return await self._log.reader({tp: begin}), end
            except LogError as error:
                await _pause_after(error)

    def _apply(self, record: Incoming) -> None:
        """Take in an entry. One that cannot be read is logged and skipped: the source keeps its entry from before."""
        source = (record.key or b"").decode("utf-8", "replace")
        try:
            entry = None if record.value is None else CatalogSource.model_validate_json(record.value)
        except pydantic.ValidationError as error:
            log.warning("catalog_entry_refused", source=source, offset=record.offset, error=str(error)[:500])
            return
        self.catalog = self.catalog.with_source(source, entry)


async def _pause_after(error: LogError) -> None:
    """Wait before the next try; raise an error that another try does not help."""
    if not error.retriable:
        raise error
    log.warning("catalog_reader_failed", error=str(error))
    await asyncio.sleep(RETRY_SECONDS)
