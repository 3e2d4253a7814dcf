"""How operations are declared, and how requests are read by their declarations."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import httpx2
import orjson
import pytest
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import TenantId
from services.ingest.app import GROUPS, create_app
from services.ingest.http.answers import Answer, json_answer
from services.ingest.http.auth import DevAuthenticator, Principal
from services.ingest.http.operation import (
    HEADER,
    Parameters,
    PathPart,
    RequestRules,
    operation,
    operations_of,
    routes_of,
)
from services.ingest.http.problems import NOT_FOUND, Problem, ProblemError
from services.ingest.http.requests import Body
from tests.unit.ingest.world import World

RULES = RequestRules(DevAuthenticator(), 100, 1.0)


def number(_tenant: TenantId, text: str) -> int:
    if not text.isdecimal():
        raise ProblemError(Problem(NOT_FOUND, "It is no number."))
    return int(text)


NumberPart = Annotated[int, PathPart(number, "A number.")]


class Told(Answer):
    caller: str
    number: int
    many: list[str] | None
    limit: int | None
    key: str | None
    text: str


class Asked(Parameters):
    many: list[str] | None = None
    limit: Annotated[int | None, Field(ge=1, alias="at-most")] = None
    key: Annotated[str | None, HEADER, Field(alias="X-Key", max_length=3)] = None


class Said(Body):
    text: str = "nothing"


@dataclass(frozen=True, slots=True)
class Group:
    tag: ClassVar = "test"

    @operation("POST", "/a/{number}", "threads:write", summary="Tell", answer=Told, body_required=False)
    async def tell(self, caller: Principal, at: NumberPart, parameters: Asked, body: Said) -> Response:
        return json_answer(
            Told(
                caller=caller.subject,
                number=at,
                many=parameters.many,
                limit=parameters.limit,
                key=parameters.key,
                text=body.text,
            )
        )

    @operation("GET", "/b", "threads:read", "ops", summary="Look", answer=None)
    async def look(self, _caller: Principal, request: Request) -> Response:
        return Response(request.method)


def client() -> httpx2.AsyncClient:
    metrics = World().metrics
    app: Starlette = create_app([Group()], RULES, requests_max=10, metrics=metrics)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")


async def told(path: str, **given: Any) -> Any:
    async with client() as http:
        answer = await http.post(path, **given)
    return orjson.loads(answer.content)


async def test_a_request_is_read_as_it_is_declared() -> None:
    empty = {"caller": "dev", "number": 7, "many": None, "limit": None, "key": None, "text": "nothing"}
    assert await told("/a/7") == empty
    assert await told("/a/7?other=1", json={}) == empty
    full = await told("/a/7?many=a&many=b&at-most=3", json={"text": "hello"}, headers={"x-key": "k"})
    assert full == {**empty, "many": ["a", "b"], "limit": 3, "key": "k", "text": "hello"}
    last = await told("/a/7?at-most=3&at-most=4")
    assert last["limit"] == 4


async def test_everything_that_is_wrong_is_named_with_its_place() -> None:
    problem = await told("/a/7?at-most=0", headers={"x-key": "long"})
    assert [error["place"] for error in problem["errors"]] == ["query.at-most", "header.X-Key"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/a/x?at-most=0", {"host": "elsewhere.example"}, 403),
        ("/a/x?at-most=0", {}, 422),
        ("/a/x", {}, 404),
        ("/a/7", {}, 400),
    ],
)
async def test_a_request_is_read_in_one_order(path: str, headers: dict[str, str], status: int) -> None:
    """Authorization, query and headers, path, body: each of these requests has all the faults of those after it."""
    answer = await told(path, content=b"{", headers={"content-type": "application/json", **headers})
    assert answer["status"] == status


async def test_only_what_is_declared_is_answered() -> None:
    async with client() as http:
        assert (await http.get("/b")).text == "GET"
        head = await http.request("HEAD", "/b")
        assert (head.status_code, head.headers["allow"]) == (405, "GET")
        assert (await http.get("/b/")).status_code == 404


def test_a_path_and_a_signature_that_do_not_fit_are_refused() -> None:
    async def too_few(self: object, caller: Principal) -> Response:
        raise NotImplementedError

    async def unknown(self: object, caller: Principal, other: int) -> Response:
        raise NotImplementedError

    async def nobody(self: object, parameters: Asked) -> Response:
        raise NotImplementedError

    async def disordered(self: object, caller: Principal, body: Said, parameters: Asked) -> Response:
        raise NotImplementedError

    for path, handler in (("/{number}", too_few), ("/", unknown), ("/", nobody), ("/", disordered)):
        with pytest.raises(TypeError, match=handler.__name__):
            operation("GET", path, "ops", summary="", answer=None)(handler)


async def test_the_routes_are_those_that_are_described() -> None:
    """Every group of the description is served, once, in its order."""
    served = [(route.path, route.methods) for route in World().app.routes[1:]]  # type: ignore[attr-defined]
    assert served == [(each.path, {each.method}) for group in GROUPS for each in operations_of(group)]
    assert [route.name for route in routes_of(Group(), RULES)] == ["tell", "look"]
