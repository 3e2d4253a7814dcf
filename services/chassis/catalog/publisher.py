"""Publish a process's own tools on the topic `tool-catalog`: an entry per source, written if it is new or has changed.

Every executor of a pool, and every runtime, writes the same entries; the topic is compacted by source. An entry stays
when its process stops: others may run its tools, and calls of a tool that nobody runs wait for a process that does.
Idempotent by source: if the process dies before or after the append, the next start compares and writes again if
needed.
"""

import structlog

from schemas.tools import CatalogSource
from schemas.topics import TOOL_CATALOG
from services.chassis.catalog.reader import CatalogReader
from services.chassis.clock import Clock
from services.chassis.log.port import Log, Outgoing

log = structlog.get_logger()


class Publisher:
    def __init__(self, log_: Log, clock: Clock, catalog: CatalogReader) -> None:
        self._log = log_
        self._clock = clock
        self._catalog = catalog

    async def publish(self, entry: CatalogSource) -> None:
        """Write the entry unless the catalog has an equal one. Waits until the catalog has been read to its end."""
        await self._catalog.ready.wait()
        if self._catalog.catalog.sources.get(entry.source) == entry:
            return
        value = entry.model_dump_json().encode()
        record = Outgoing(entry.source.encode(), value, (), self._clock.now_ms())
        await self._log.appender.append(TOOL_CATALOG.name, 0, [record])
        log.info("tools_published", source=entry.source, pool=entry.pool, tools=len(entry.tools))
