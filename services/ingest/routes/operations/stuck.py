"""For operators: what stands still, and what cannot be read, of all tenants."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from starlette.responses import Response

from schemas.errors import Fault
from schemas.ids import NAME_PATTERN
from services.ingest.http.answers import json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import Parameters, operation
from services.ingest.http.problems import BAD_CURSOR, OF_READS
from services.ingest.operations.dead_letters import (
    PARTITION_MAX,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetters,
    as_text,
)
from services.ingest.operations.stuck import Ops, Stuck
from services.ingest.routes.parameters import Cursor, Limit, PageSizes, moment_of

TOPIC_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"
"""Names that Kafka allows."""


class DeadLettersParameters(Parameters):
    cursor: Cursor = None
    limit: Limit = None
    tenant: Annotated[
        str | None, Field(description="Only records whose key names this tenant.", pattern=NAME_PATTERN)
    ] = None
    topic: Annotated[str | None, Field(description="Only records of this topic.", pattern=TOPIC_PATTERN)] = None
    partition: Annotated[int | None, Field(description="Only records of this partition.", ge=0, le=PARTITION_MAX)] = (
        None
    )
    fault: Annotated[Fault | None, Field(description="Only faults of this class.")] = None
    since: Annotated[
        str | None,
        Field(description="Only records from this time of the broker on: RFC 3339, with a zone.", max_length=60),
    ] = None


@dataclass(frozen=True, slots=True)
class StuckRoutes:
    """What needs an operator. These operations read data of all tenants, so they have a scope of their own."""

    tag: ClassVar = "ops"

    ops: Ops
    dead_letters: DeadLetters
    pages: PageSizes

    @operation(
        "GET",
        "/v1/ops/stuck",
        "ops",
        summary="List threads and partitions that should make progress and do not",
        answer=Stuck,
    )
    async def list_stuck(self, _caller: Principal) -> Response:
        """Needs the scope `ops`. The list covers all tenants, with the reason and what to do."""
        return json_answer(await self.ops.stuck())

    @operation(
        "GET",
        "/v1/ops/dead-letters",
        "ops",
        summary="List records that could not be decoded or stored",
        answer=DeadLetterPage,
        problems=(BAD_CURSOR, *OF_READS),
    )
    async def list_dead_letters(self, _caller: Principal, parameters: DeadLettersParameters) -> Response:
        """Needs the scope `ops`. The list covers all tenants, the newest first. The records are on the topic
        `thread-events-dlq`, too.
        """
        chosen = DeadLetterFilter(
            parameters.tenant,
            parameters.topic,
            parameters.partition,
            parameters.fault,
            moment_of("since", parameters.since),
        )
        page = await self.dead_letters.page(chosen, parameters.cursor, self.pages.limit(parameters.limit))
        return json_answer(page.to_json(as_text))
