"""One declaration for each operation of the API: requests are read by it, and the API is described from it.

An operation is a method with the decorator `operation`. The decorator names method, path, scope, answer and problems;
the docstring is its description, and the signature names everything that the request carries:

- `caller: Principal` comes first: who asks, once it is sure that they have the scope.
- Then one argument for each `{part}` of the path, in order, annotated with a `PathPart`, which reads and describes it.
- A subclass of `Parameters` has the parameters of query and headers as its fields.
- A subclass of `Body` is the JSON body.
- `Request` is the request itself, for the few operations that stream a body or choose between media types.

Every request is read in the same order: authorization, query and headers, path, body. So nobody learns anything about a
thread before they have been authorized, and a body is only read for a request that is otherwise in order.

What a declaration needs is worked out once, when it is made. Reading a command's request costs a few dictionary
lookups and one call of pydantic, and nothing at all for parameters if the request has none.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin

import pydantic
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.ids import TenantId
from services.ingest.http.auth import Authenticator, Principal, Scope, authorize
from services.ingest.http.body import invalid_request, read_body
from services.ingest.http.problems import ProblemError, ProblemType
from services.ingest.http.requests import Body

HEADER: Final = "header"
"""Marks a field of `Parameters` that is read from a header; other fields are read from the query."""
_DECLARED: Final = "declared_operation"

Handler = Callable[..., Awaitable[Response]]
HandlerT = TypeVar("HandlerT", bound=Handler)
Read = TypeVar("Read")


class Parameters(BaseModel):
    """The parameters of an operation. Every field has a default, which is used if the request lacks the parameter."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class PathPart(Generic[Read]):
    """A part of a path: how it is read, and what it means."""

    read: Callable[[TenantId, str], Read]
    """Raises ProblemError if the text cannot name anything; such a part is answered like one that does not exist."""
    description: str


BODY_SECONDS: Final = 10.0
"""How long a client may take to send a request body. Bodies are small, uploads of artifacts have a limit of their own.
"""


class RequestRules(NamedTuple):
    """What holds for all requests."""

    authenticator: Authenticator
    body_bytes_max: int
    body_timeout_seconds: float = BODY_SECONDS


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    scopes: Sequence[Scope]
    """The caller needs all of them; the first that is missing is named in the refusal."""
    summary: str
    description: str
    answer: type[BaseModel] | None
    """The model of the answer; None if the answer is not JSON."""
    statuses: Sequence[int]
    """The statuses of success."""
    problems: Sequence[ProblemType]
    """The problems beside those that every operation has."""
    content: Mapping[str, Any]
    """Media types of the answer other than JSON, with their schemas."""
    sends: Mapping[str, Any]
    """Media types of a body other than JSON, with their schemas."""
    parts: Mapping[str, PathPart[Any]]
    parameters: type[Parameters] | None
    body: type[Body] | None
    body_required: bool
    """Whether a request without a body is refused. Otherwise it means the same as an empty object."""
    takes_request: bool


def operation(
    method: str,
    path: str,
    *scopes: Scope,
    summary: str,
    answer: type[BaseModel] | None,
    statuses: Sequence[int] = (200,),
    problems: Iterable[ProblemType] = (),
    content: Mapping[str, Any] | None = None,
    sends: Mapping[str, Any] | None = None,
    body_required: bool = True,
) -> Callable[[HandlerT], HandlerT]:
    """Declare the method below it as an operation of the API. Raises TypeError if path and signature do not fit."""

    def declare(handler: HandlerT) -> HandlerT:
        arguments = _Arguments(handler)
        names = re.findall(r"{(\w+)}", path)
        if len(names) != len(arguments.parts):
            raise TypeError(f"{handler.__qualname__} does not take the parts of {path}, one argument for each")
        setattr(
            handler,
            _DECLARED,
            Operation(
                name=handler.__name__,
                method=method,
                path=path,
                scopes=scopes,
                summary=summary,
                description=inspect.getdoc(handler) or "",
                answer=answer,
                statuses=statuses,
                problems=tuple(problems),
                content=content or {},
                sends=sends or {},
                parts=dict(zip(names, arguments.parts, strict=True)),
                parameters=arguments.parameters,
                body=arguments.body,
                body_required=body_required,
                takes_request=arguments.takes_request,
            ),
        )
        return handler

    return declare


class _Arguments:
    """The arguments of a handler. Raises TypeError if they are not those of an operation, in order."""

    def __init__(self, handler: Handler) -> None:
        self.parts: list[PathPart[Any]] = []
        self.parameters: type[Parameters] | None = None
        self.body: type[Body] | None = None
        self.takes_request = False
        kinds = []
        _, *arguments = inspect.signature(handler).parameters.values()
        for argument in arguments:
            kind = argument.annotation
            if get_origin(kind) is None and isinstance(kind, type):
                kinds.append(self._take(kind))
                continue
            self.parts += [mark for mark in get_args(kind) if isinstance(mark, PathPart)]
            kinds.append("part")
        order = ["caller", *["part"] * len(self.parts), "parameters", "body", "request"]
        if kinds != [kind for kind in order if kind in kinds] or kinds[:1] != ["caller"]:
            raise TypeError(f"{handler.__qualname__} takes {kinds}; it has to take {order}, those that it needs")

    def _take(self, kind: type) -> str:
        if issubclass(kind, Principal):
            return "caller"
        if issubclass(kind, Parameters):
            self.parameters = kind
            return "parameters"
        if issubclass(kind, Body):
            self.body = kind
            return "body"
        self.takes_request = issubclass(kind, Request)
        return "request" if self.takes_request else kind.__name__


def operations_of(group: type) -> list[Operation]:
    """The operations that a class declares, in the order of its methods."""
    return [getattr(method, _DECLARED) for method in vars(group).values() if hasattr(method, _DECLARED)]


def routes_of(group: object, rules: RequestRules) -> list[Route]:
    """The routes to the operations of a group, in the order in which requests are matched."""
    routes = []
    for declared in operations_of(type(group)):
        route = Route(declared.path, _endpoint(declared, getattr(group, declared.name), rules), name=declared.name)
        # Starlette would answer HEAD wherever there is a GET; only what is declared is answered.
        route.methods = {declared.method}
        routes.append(route)
    return routes


def _endpoint(declared: Operation, handler: Handler, rules: RequestRules) -> Callable[[Request], Awaitable[Response]]:
    """Read a request as it is declared, and hand it to its method."""
    read_parameters = None if declared.parameters is None else ParametersReader(declared.parameters).read
    parts = [(name, part.read) for name, part in declared.parts.items()]
    model, optional, takes_request = declared.body, not declared.body_required, declared.takes_request
    authenticator, bytes_max, timeout_seconds = rules

    async def answer(request: Request) -> Response:
        caller = await authorize(authenticator, request.headers, *declared.scopes)
        parameters = None if read_parameters is None else read_parameters(request)
        arguments: list[Any] = [caller]
        for name, read in parts:
            arguments.append(read(caller.tenant, request.path_params[name]))
        if parameters is not None:
            arguments.append(parameters)
        if model is not None:
            arguments.append(
                await read_body(request, model, bytes_max=bytes_max, timeout_seconds=timeout_seconds, optional=optional)
            )
        if takes_request:
            arguments.append(request)
        return await handler(*arguments)

    return answer


class ParametersReader:
    """Reads the fields of one model from query and headers."""

    def __init__(self, model: type[Parameters]) -> None:
        self._model = model
        self._none_given = model()
        self._places: dict[str, str] = {}
        self._query: list[tuple[str, bool]] = []
        """Name of each parameter of the query, and whether it may be given several times."""
        self._headers: list[str] = []
        for field, info in model.model_fields.items():
            name = info.alias or field
            self._places[name] = place_of(info)
            if self._places[name] == HEADER:
                self._headers.append(name)
            else:
                kinds = (info.annotation, *get_args(info.annotation))
                self._query.append((name, any(get_origin(kind) is list for kind in kinds)))

    def read(self, request: Request) -> Parameters:
        """Raises ProblemError (invalid-request), which names every parameter that is wrong."""
        given: dict[str, str | list[str]] = {}
        if self._query and request.scope["query_string"]:
            query = request.query_params
            for name, is_many in self._query:
                if name in query:
                    given[name] = query.getlist(name) if is_many else query[name]
        for name in self._headers:
            value = request.headers.get(name)
            if value is not None:
                given[name] = value
        if not given:
            return self._none_given
        try:
            return self._model.model_validate(given)
        except pydantic.ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            placed = [{**detail, "loc": (self._places[str(detail["loc"][0])], *detail["loc"])} for detail in details]
            raise ProblemError(invalid_request(placed)) from None


def place_of(info: pydantic.fields.FieldInfo) -> str:
    """Where a parameter is read from, in the words of OpenAPI."""
    return HEADER if HEADER in info.metadata else "query"
