"""Parameters that several routes have, and what routes do with them.

Commands are read by hand: FastAPI's own way to parameters costs a fifth of a command's time. It routes and describes
them (`openapi.command`), and parses the parameters of reads.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import structlog
from fastapi import Path, Query
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import Response

from schemas.config import Config, Frozen
from schemas.envelope import parse_time
from schemas.ids import TenantId, ThreadId, ThreadKey, is_name, parse_call_id
from services.chassis.artifacts.store import ArtifactInfo, ArtifactsUnavailableError
from services.chassis.clock import draw_id
from services.ingest.commands.accepting.accept import Accepted, Command
from services.ingest.dependencies import Dependencies, authorized, dependencies
from services.ingest.http import body
from services.ingest.http.auth import Principal, Scope
from services.ingest.http.problems import (
    ARTIFACT_MISSING,
    ARTIFACTS_UNAVAILABLE,
    BAD_CURSOR,
    INVALID_REQUEST,
    NOT_FOUND,
    VIEWS_BEHIND,
    Problem,
    ProblemError,
    no_such_thread,
)
from services.ingest.http.requests import Content
from services.ingest.reads.reads import parse_at_least

ThreadPath = Annotated[str, Path(description="Id of the thread.")]
ThreadQuery = Annotated[str | None, Query(description="Only this thread's.", max_length=200)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.", max_length=2_000)]
Limit = Annotated[int | None, Query(description="Entries of a page.", ge=1, le=1_000)]
AtLeastQuery = Annotated[
    str | None,
    Query(
        description="Wait until the views hold this: `partition:offset` of a command's answer, or a seq of the thread.",
        max_length=60,
    ),
]

logger = structlog.get_logger()

JSON = "application/json"
HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
TOUCHED_AT_ONCE = 8
"""Artifacts that one request names."""
TimeUnit = Literal["hours", "days"]
UNIT_MS: Mapping[TimeUnit, int] = {"hours": 3_600_000, "days": 86_400_000}
Model = TypeVar("Model", bound=Frozen)


# Commands


async def command_of(request: Request, route: str, scope: Scope = "threads:write") -> Command:
    """Raises ProblemError."""
    principal = await authorized(request, scope)
    sent = idempotency_key(request)
    key = thread_key(principal.tenant, request.path_params["thread"])
    return Command(principal, route, key, sent or draw_id(), sent is not None)


def idempotency_key(request: Request) -> str | None:
    return body.checked_key(request.headers.get("idempotency-key"))


async def read_body(request: Request, model: type[Model], *, optional: bool = False) -> Model:
    settings = dependencies(request).settings
    return await body.read_body(
        request,
        model,
        bytes_max=settings.ingest_body_bytes_max,
        timeout_seconds=settings.ingest_body_timeout_seconds,
        optional=optional,
    )


async def sizes_of_named(
    request: Request,
    tenant: TenantId,
    content: Content | None = None,
    config: Config | Mapping[str, JsonValue] | None = None,
) -> dict[str, int]:
    """Of the artifacts that an input names and that are there; the skills of a configuration have to be. They are
    touched, so that none is collected before the event that names it is in the log. Raises ProblemError.
    """
    skills = skills_of(config)
    named = skills | content.named() if content is not None else skills
    if not named:
        return {}
    store = dependencies(request).artifacts
    places = asyncio.Semaphore(TOUCHED_AT_ONCE)

    async def touched(sha256: str) -> ArtifactInfo | ArtifactsUnavailableError | None:
        async with places:
            try:
                return await store.touch(tenant, sha256)
            except ArtifactsUnavailableError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = {sha256: group.create_task(touched(sha256)) for sha256 in sorted(named)}
    sizes = {}
    for sha256, task in tasks.items():
        found = task.result()
        if isinstance(found, ArtifactsUnavailableError):
            raise ProblemError(store_unavailable(found)) from found
        if found is not None:
            sizes[sha256] = found.size
    missing = sorted(skills - sizes.keys())
    if missing:
        detail = f"There is no artifact {', '.join(missing)}, which a skill names."
        raise ProblemError(Problem(ARTIFACT_MISSING, detail, {"missing": list(missing)}))
    return sizes


def skills_of(config: Config | Mapping[str, JsonValue] | None) -> frozenset[str]:
    """The artifacts that its skills name. What of a patch is misshapen is refused elsewhere."""
    if isinstance(config, Config):
        return frozenset([skill.sha256 for skill in config.skills])
    skills = config.get("skills") if config is not None else None
    named = [skill.get("sha256") for skill in skills if isinstance(skill, dict)] if isinstance(skills, list) else []
    return frozenset([sha256 for sha256 in named if isinstance(sha256, str) and HASH.fullmatch(sha256) is not None])


def store_unavailable(error: ArtifactsUnavailableError) -> Problem:
    """Where the store lies and what it said is for operators: it is logged."""
    logger.warning("artifacts_unavailable", error=str(error))
    return Problem(ARTIFACTS_UNAVAILABLE, "The artifact store cannot be asked now.")


async def run(request: Request, accepted: Accepted | Problem) -> Response:
    if isinstance(accepted, Problem):
        raise ProblemError(accepted)
    return await dependencies(request).commands.run(accepted, wait=_waits(request))


def call_of(request: Request) -> str:
    call: str = request.path_params["call"]
    if parse_call_id(call) is None:
        raise ProblemError(Problem(NOT_FOUND, "A tool call is named turn.step.index, such as 3.1.0."))
    return call


def number_of(request: Request, name: str) -> int:
    text: str = request.path_params[name]
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) > 0):
        raise ProblemError(Problem(NOT_FOUND, f"A {name} is a number from 1."))
    return int(text)


def _waits(request: Request) -> bool:
    if not request.scope["query_string"]:
        return False
    wait = request.query_params.get("wait")
    if wait not in {None, "applied"}:
        errors: JsonValue = [{"place": "query.wait", "detail": "must be applied, or left out"}]
        raise ProblemError(Problem(INVALID_REQUEST, "wait must be `applied`, or left out.", {"errors": errors}))
    return wait is not None


# Reads


def thread_key(tenant: TenantId, thread: str) -> ThreadKey:
    """Raises ProblemError: what cannot name a thread is one that does not exist."""
    if not is_name(thread):
        raise ProblemError(no_such_thread())
    return ThreadKey(tenant, ThreadId(thread))


async def reader_of(request: Request) -> tuple[Dependencies, Principal]:
    return dependencies(request), await authorized(request, "threads:read")


async def wait_at_least(found: Dependencies, at_least: str | None, key: ThreadKey | None) -> None:
    """Raises ProblemError (views-behind) where the views do not come so far in time, and where the thread, whose seq it
    is, does not exist.
    """
    if at_least is None:
        return
    wanted = parse_at_least(at_least)
    if wanted.partition is not None and wanted.partition >= found.known.partitions:
        raise ProblemError(Problem(BAD_CURSOR, f"The log has no partition {wanted.partition}."))
    if wanted.partition is None and key is not None:
        await found.known.require(key)
    if not await found.views.reached(wanted.partition, wanted.value, key, found.settings.ingest_at_least_wait_seconds):
        raise ProblemError(Problem(VIEWS_BEHIND, f"The views have not come to {at_least} in time."))


def moment_of(name: str, text: str | None) -> int | None:
    """Milliseconds since 1970. Raises ProblemError (invalid-request), which names the parameter."""
    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        wanted = "an RFC 3339 time with a zone, such as 2026-01-31T12:00:00Z"
        errors: JsonValue = [{"place": f"query.{name}", "detail": f"must be {wanted}"}]
        raise ProblemError(Problem(INVALID_REQUEST, f"{name} is {wanted}.", {"errors": errors})) from None


def require_range(from_ms: int, to_ms: int, most: int, unit: TimeUnit) -> None:
    """Raises ProblemError."""
    if 0 <= from_ms < to_ms <= from_ms + most * UNIT_MS[unit]:
        return
    wanted = f"before `to`, after 1970, and by {most} {unit} at most"
    errors: JsonValue = [{"place": "query.from", "detail": f"must be {wanted}"}]
    raise ProblemError(Problem(INVALID_REQUEST, f"`from` has to be {wanted}.", {"errors": errors}))


def page_limit(found: Dependencies, limit: int | None) -> int:
    return min(limit or found.settings.ingest_page_default, found.settings.ingest_page_max)
