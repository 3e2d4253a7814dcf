"""Parameters that several routes have, and what routes do with them."""

from typing import Annotated, Literal, TypeVar

from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from schemas.config import Frozen
from schemas.ids import TenantId, ThreadId, ThreadKey, is_name, parse_call_id
from services.chassis.clock import draw_id
from services.ingest import body
from services.ingest.accept import Accepted, Command
from services.ingest.auth import Principal, Scope
from services.ingest.dependencies import Dependencies, authorized, dependencies
from services.ingest.problems import NOT_FOUND, VIEWS_BEHIND, Problem, ProblemError, no_such_thread
from services.ingest.reads import parse_at_least

ThreadPath = Annotated[str, Path(description="Id of the thread.")]
CallPath = Annotated[str, Path(description="Id of the tool call: turn.step.index, such as `3.1.0`.")]
TurnPath = Annotated[int, Path(description="Number of the turn.", ge=1, le=2**53 - 1)]
InputPath = Annotated[str, Path(description="Id of the input.")]
Wait = Annotated[
    Literal["applied"] | None,
    Query(description="`applied`: answer once it is known what the command came to, with 409 where it took no effect."),
]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="1 to 200 visible ASCII characters. The same key and body count once and are answered alike.",
    ),
]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.", max_length=500)]
Limit = Annotated[int | None, Query(description="Entries of a page.", ge=1, le=1_000)]
AtLeastQuery = Annotated[
    str | None,
    Query(
        description="Wait until the views hold this: `partition:offset` of a command's answer, or a seq of the thread.",
        max_length=60,
    ),
]

JSON = "application/json"
Model = TypeVar("Model", bound=Frozen)


def thread_key(tenant: TenantId, thread: str) -> ThreadKey:
    """Raises ProblemError: what cannot name a thread is one that does not exist."""
    if not is_name(thread):
        raise ProblemError(no_such_thread())
    return ThreadKey(tenant, ThreadId(thread))


async def command_of(
    request: Request, thread: str, route: str, idempotency_key: str | None, scope: Scope = "threads:write"
) -> Command:
    """Raises ProblemError."""
    principal = await authorized(request, scope)
    sent = body.checked_key(idempotency_key)
    key = thread_key(principal.tenant, thread)
    return Command(principal, route, key, sent or draw_id(), sent is not None)


async def read_body(request: Request, model: type[Model], *, optional: bool = False) -> Model:
    settings = dependencies(request).settings
    return await body.read_body(
        request,
        model,
        bytes_max=settings.ingest_body_bytes_max,
        timeout_seconds=settings.ingest_body_timeout_seconds,
        optional=optional,
    )


async def run(request: Request, accepted: Accepted | Problem, wait: str | None) -> Response:
    if isinstance(accepted, Problem):
        raise ProblemError(accepted)
    return await dependencies(request).commands.run(accepted, wait=wait is not None)


async def reader_of(request: Request) -> tuple[Dependencies, Principal]:
    return dependencies(request), await authorized(request, "threads:read")


def checked_call(call: str) -> str:
    if parse_call_id(call) is None:
        raise ProblemError(Problem(NOT_FOUND, "A tool call is named turn.step.index, such as 3.1.0."))
    return call


async def wait_at_least(found: Dependencies, at_least: str | None, key: ThreadKey | None) -> None:
    """Raises ProblemError (views-behind) where the views do not come so far in time."""
    if at_least is None:
        return
    wanted = parse_at_least(at_least)
    if not await found.views.reached(wanted.partition, wanted.value, key, found.settings.ingest_at_least_wait_seconds):
        raise ProblemError(Problem(VIEWS_BEHIND, f"The views have not come to {at_least} in time."))


def page_limit(found: Dependencies, limit: int | None) -> int:
    return min(limit or found.settings.ingest_page_default, found.settings.ingest_page_max)
