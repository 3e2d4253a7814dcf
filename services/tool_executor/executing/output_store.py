"""Puts the attachments of a tool's end into the artifact store, before the end is recorded.

The order is the point: once an event names an artifact, the artifact must be there, wherever this process dies. If it
dies after the store and before the append, an unnamed artifact is left behind, which the collector removes.

A store that is away does not change how the call ended. The result goes out shortened and says what could not be kept.
So this never fails, and it takes no longer than its limit.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

import structlog
from pydantic import JsonValue

from services.chassis.artifacts.store import ArtifactError, ArtifactStore
from services.tool_executor.attachments import STORE_SECONDS, Attachment, Spool
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest, ToolRunner

CANCELLED_SECONDS: Final = 3.0
"""How long the store may take for a call that was cancelled: a drain or a person waits for its end."""
NOT_TOLD: Final = frozenset({"lost", "cancelled", "not_started"})
"""Outcomes whose events have no room for a result, so that nothing could name the artifacts."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OutputStoreLimits:
    seconds: float = STORE_SECONDS
    """Time for everything that one call leaves."""
    cancelled_seconds: float = CANCELLED_SECONDS
    """The same for a call that was cancelled."""


class OutputStore:
    """A `ToolRunner` around another one, whose attachments it stores."""

    def __init__(
        self,
        tools: ToolRunner,
        store: ArtifactStore,
        metrics: ExecutorMetrics,
        limits: OutputStoreLimits = OutputStoreLimits(),
    ) -> None:
        self._tools = tools
        self._store = store
        self._metrics = metrics
        self._limits = limits

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        end = await self._tools.run(request, emit, cancelled)
        if not end.attachments:
            return end
        try:
            if end.outcome in NOT_TOLD:
                return replace(end, attachments=())
            return await self._kept(request.tenant, end, cancelled)
        finally:
            for attachment in end.attachments:
                if isinstance(attachment.content, Spool):
                    attachment.content.close()

    async def _kept(self, tenant: str, end: ToolEnd, cancelled: asyncio.Event) -> ToolEnd:
        seconds = self._limits.cancelled_seconds if cancelled.is_set() else self._limits.seconds
        kept: list[Attachment] = []
        try:
            async with asyncio.timeout(seconds):
                for attachment in end.attachments:
                    await self._put(tenant, attachment)
                    kept.append(attachment)
        except (ArtifactError, TimeoutError, OSError) as error:
            log.warning("output_not_kept", tenant=tenant, error=str(error) or type(error).__name__)
        # In their order: after the first failure the rest is not tried, since a store that is away fails them all.
        lost = end.attachments[len(kept) :]
        self._metrics.artifacts.labels("true").inc(len(kept))
        self._metrics.artifacts.labels("false").inc(len(lost))
        told = [*(_where(one) for one in kept if one.is_output), *(_not_kept(one) for one in lost)]
        return replace(
            end,
            result=with_texts(end.result, told),
            artifacts=[
                {"sha256": one.sha256, "size": one.size, "media_type": one.media_type, "name": one.name} for one in kept
            ],
            attachments=(),
        )

    async def _put(self, tenant: str, attachment: Attachment) -> None:
        content = attachment.content
        chunks = content if isinstance(content, bytes) else _pieces(content)
        await self._store.put(tenant, attachment.sha256, chunks, attachment.media_type)


def with_texts(result: JsonValue, texts: list[str]) -> JsonValue:
    """Return the result with more texts at its end. A result that is no object stays as it is."""
    if not texts or not isinstance(result, dict):
        return result
    content = result.get("content")
    shown = content if isinstance(content, list) else []
    added: list[JsonValue] = [{"type": "text", "text": text} for text in texts]
    return {**result, "content": [*shown, *added]}


def _where(one: Attachment) -> str:
    """Return the line that tells the model how to read the whole of an output."""
    more = f"; {one.left_out} bytes after them were not kept" if one.left_out else ""
    return (
        f"[{one.name}: all {one.size} bytes are kept{more}. Read any part with read_artifact: "
        f'{{"sha256": "{one.sha256}", "offset": 0}}]'
    )


def _not_kept(one: Attachment) -> str:
    return f"[{one.name}: its {one.size} bytes could not be kept, because the artifact store did not take them.]"


async def _pieces(spool: Spool) -> AsyncIterator[bytes]:
    """Yield the spool's content, reading the disk in a thread: an output may have hundreds of megabytes."""
    pieces = spool.pieces()
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
