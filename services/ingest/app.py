"""The application: routes, problems, and the gate that every request passes."""

import asyncio
import inspect
import time
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ingest.dependencies import Dependencies
from services.ingest.http import openapi
from services.ingest.http.body import invalid_request
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
from services.ingest.routes import (
    artifacts,
    children,
    events,
    file_history,
    imports,
    inputs,
    lineage,
    plans,
    reads,
    state,
    threads,
    tool_calls,
    usage,
)
from services.ingest.routes.operations import stuck as ops
from services.ingest.routes.operations import windows as ops_windows

METHODS = ("GET", "POST", "PATCH", "HEAD", "OPTIONS", "PUT", "DELETE")
OTHER = "other"


def create_app(dependencies: Dependencies) -> FastAPI:
    app = FastAPI(
        title=openapi.TITLE,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.dependencies = dependencies
    # As they are, not by include_router: that would match each request twice.
    app.router.routes.extend(api_routes())
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Gate, requests_max=dependencies.settings.ingest_requests_max, metrics=dependencies.metrics)
    app.openapi = openapi_document  # type: ignore[method-assign]  # FastAPI's way to describe more than it sees
    return app


def api_routes() -> list[APIRoute]:
    """In the order in which requests are matched: the most frequent first."""
    routes = []
    for routed in (
        inputs,
        threads,
        events,
        reads,
        state,
        tool_calls,
        lineage,
        plans,
        children,
        imports,
        usage,
        artifacts,
        file_history,
        ops,
        ops_windows,
    ):
        for route in routed.router.routes:
            assert isinstance(route, APIRoute)
            route.operation_id = route.name
            if list(inspect.signature(route.endpoint).parameters) == ["request"]:
                # FastAPI describes it and has nothing to parse for it: half of the cost of an empty request.
                route.app = request_response(route.endpoint)
            routes.append(route)
    return routes


@cache
def openapi_document() -> dict[str, Any]:
    return openapi.describe(api_routes())


class Gate:
    """Counts and limits the requests whose answer has not begun. Pure ASGI: no task, no copy of the body."""

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
        if self._under_way >= self._max:
            self._metrics.requests_refused.inc()
            answer = Problem(OVERLOADED, f"{self._max} requests are under way.").response()
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
            # The process ends, and whoever serves HTTP would answer a bare 500: a client could not tell it from a bug.
            if has_begun:
                raise
            answer = Problem(STOPPING, "The service is ending; what was asked may have been done.").response()
            answer.headers["connection"] = "close"
            await answer(scope, receive, counted)
        finally:
            if not has_begun:
                self._under_way -= 1

    def _count(self, asked: str, status: int, seconds: float) -> None:
        method = asked if asked in METHODS else OTHER
        counter = self._counters.get((method, status))
        if counter is None:
            counter = self._counters[method, status] = self._metrics.requests.labels(method, str(status))
        counter.inc()
        self._seconds[method].observe(seconds)


async def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return error.problem.response()


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return invalid_request(error.errors()).response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == METHOD_NOT_ALLOWED.status:
        response = Problem(METHOD_NOT_ALLOWED, f"{request.method} does not fit this path.").response()
        response.headers.update(error.headers or {})
        return response
    return Problem(NOT_FOUND, "There is no such path.").response()


async def _failed(_request: Request, _error: Exception) -> Response:
    return Problem(INTERNAL, "An unexpected error; it was logged.").response()
