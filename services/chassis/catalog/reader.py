"""The tool catalog, followed: the compacted topic `tool-catalog` read from its beginning."""

import asyncio

import pydantic
import structlog

from schemas.tools import Catalog, CatalogSource
from schemas.topics import TOOL_CATALOG
from services.chassis.log.port import Incoming, Log, LogError, Reader, TopicPartition

log = structlog.get_logger()

POLL_MS = 1_000
RETRY_SECONDS = 0.5
"""After an error of the log, during which the catalog stays as it was."""


class CatalogReader:
    def __init__(self, log_: Log) -> None:
        self._log = log_
        self.catalog = Catalog()
        self.ready = asyncio.Event()
        """Set once the catalog has been read up to its end as of the start."""

    async def run(self) -> None:
        """Until cancelled. Raises LogError where the log cannot be read any more."""
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
        """With the end as of now. A service that runs already does not end because the log is away at this moment."""
        while True:
            try:
                begin = (await self._log.begin_offsets([tp]))[tp]
                end = (await self._log.end_offsets([tp]))[tp]
                return await self._log.reader({tp: begin}), end
            except LogError as error:
                await _pause_after(error)

    def _apply(self, record: Incoming) -> None:
        source = (record.key or b"").decode("utf-8", "replace")
        try:
            entry = None if record.value is None else CatalogSource.model_validate_json(record.value)
        except pydantic.ValidationError as error:
            log.warning("catalog_entry_refused", source=source, offset=record.offset, error=str(error)[:500])
            return
        self.catalog = self.catalog.with_source(source, entry)


async def _pause_after(error: LogError) -> None:
    if not error.retriable:
        raise error
    log.warning("catalog_reader_failed", error=str(error))
    await asyncio.sleep(RETRY_SECONDS)
