"""The application: the routes of all groups, what errors become, and the gate that every request passes.

A request passes, from the outside in: Starlette's last resort, which logs an unexpected error; the `Gate`; the handlers
of errors below; the router, which tries the routes in the order of `GROUPS`; and the endpoint that `operation` made.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import orjson
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ingest.http import openapi
from services.ingest.http.openapi import Tagged
from services.ingest.http.operation import RequestRules, operations_of, routes_of
from services.ingest.http.problems import (
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    OVERLOADED,
    STOPPING,
    Problem,
    ProblemError,
)
from services.ingest.metrics import IngestMetrics
from services.ingest.routes.artifacts import ArtifactRoutes
from services.ingest.routes.children import ChildRoutes
from services.ingest.routes.events import EventRoutes
from services.ingest.routes.file_history import FileHistoryRoutes
from services.ingest.routes.imports import ImportRoutes
from services.ingest.routes.inputs import InputRoutes
from services.ingest.routes.lineage import LineageRoutes
from services.ingest.routes.operations.stuck import StuckRoutes
from services.ingest.routes.operations.windows import WindowRoutes
from services.ingest.routes.plans import PlanRoutes
from services.ingest.routes.reads import ReadRoutes
from services.ingest.routes.state import StateRoutes
from services.ingest.routes.threads import ThreadRoutes
from services.ingest.routes.tool_calls import ToolCallRoutes
from services.ingest.routes.usage import UsageRoutes

GROUPS: Final = (
    InputRoutes,
    ThreadRoutes,
    EventRoutes,
    ReadRoutes,
    StateRoutes,
    ToolCallRoutes,
    LineageRoutes,
    PlanRoutes,
    ChildRoutes,
    ImportRoutes,
    UsageRoutes,
    ArtifactRoutes,
    FileHistoryRoutes,
    StuckRoutes,
    WindowRoutes,
)
"""All groups of routes, in the order in which requests are matched: the most frequent first."""

METHODS: Final = ("GET", "POST", "PATCH", "HEAD", "OPTIONS", "PUT", "DELETE")
OTHER: Final = "other"
"""The label of all other methods in metrics: a client can invent any number of them."""


def create_app(
    groups: Sequence[object], rules: RequestRules, *, requests_max: int, metrics: IngestMetrics
) -> Starlette:
    """Serve the groups of routes, which are instances of classes in `GROUPS`, in their order.

    The description is that of all groups, so that it is the same wherever it is read.
    """
    routes = [Route("/v1/openapi.json", _openapi)]
    for group in groups:
        routes += routes_of(group, rules)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, requests_max=requests_max, metrics=metrics)],
        exception_handlers={ProblemError: _problem, HTTPException: _http, Exception: _failed},
    )
    # A path with a slash too many is no path of the API; the default would answer it with a redirect.
    app.router.redirect_slashes = False
    return app


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document, made once. It needs no service: the declarations are those of the classes."""
    return openapi.describe([Tagged(group.tag, found) for group in GROUPS for found in operations_of(group)])


@cache
def _openapi_bytes() -> bytes:
    return orjson.dumps(openapi_document())


async def _openapi(_request: Request) -> Response:
    return Response(_openapi_bytes(), media_type="application/json")


class Gate:
    """Counts and limits the requests whose answer has not begun.

    A stream that has begun no longer counts: it may stay open for hours and has a limit of its own. The gate is plain
    ASGI, with no task and no copy of the body, because every request pays for it.
    """

    def __init__(self, app: ASGIApp, requests_max: int, metrics: IngestMetrics) -> None:
        self._app = app
        self._max = requests_max
        self._metrics = metrics
        self._under_way = 0
        self._counters: dict[tuple[str, int], Counter] = {}
        self._seconds = {method: metrics.request_seconds.labels(method) for method in (*METHODS, OTHER)}
        metrics.requests_under_way.set_function(lambda: self._under_way)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Before anything else: at the limit, a refusal has to be the cheapest thing that the service does.
        if self._under_way >= self._max:
            self._metrics.requests_refused.inc()
            answer = Problem(OVERLOADED, f"The service is at its limit of {self._max} requests under way.").response()
            await answer(scope, receive, send)
            return
        started = time.perf_counter()
        has_begun = False

        async def counted(message: Message) -> None:
            nonlocal has_begun
            if not has_begun and message["type"] == "http.response.start":
                has_begun = True
                self._under_way -= 1
                self._count(scope["method"], message["status"], time.perf_counter() - started)
            await send(message)

        self._under_way += 1
        try:
            await self._app(scope, receive, counted)
        except asyncio.CancelledError:
            # The process ends. The server would answer with a bare 500, which a client could not tell from a bug.
            if has_begun:
                raise
            answer = Problem(
                STOPPING, "The service is stopping. The request may or may not have taken effect."
            ).response()
            # The client has to connect again, which leads it to another instance.
            answer.headers["connection"] = "close"
            await answer(scope, receive, counted)
        finally:
            if not has_begun:
                self._under_way -= 1

    def _count(self, requested: str, status: int, seconds: float) -> None:
        # The children of a metric are kept here: looking them up by their labels costs more than counting.
        method = requested if requested in METHODS else OTHER
        counter = self._counters.get((method, status))
        if counter is None:
            counter = self._counters[method, status] = self._metrics.requests.labels(method, str(status))
        counter.inc()
        self._seconds[method].observe(seconds)


async def _problem(_request: Request, error: Exception) -> Response:
    """Answer an expected error of an operation, wherever it was raised."""
    assert isinstance(error, ProblemError)
    return error.problem.response()


async def _http(request: Request, error: Exception) -> Response:
    """Answer what the router refuses, as a problem like all others."""
    assert isinstance(error, HTTPException)
    if error.status_code == METHOD_NOT_ALLOWED.status:
        response = Problem(
            METHOD_NOT_ALLOWED, f"This path does not take {request.method}; see /v1/openapi.json."
        ).response()
        response.headers.update(error.headers or {})
        return response
    return Problem(NOT_FOUND, "The API has no such path; see /v1/openapi.json.").response()


async def _failed(_request: Request, _error: Exception) -> Response:
    """Say nothing about the error, which may contain data of others; Starlette raises it again for the log."""
    return Problem(INTERNAL, "An unexpected error occurred and was logged.").response()
