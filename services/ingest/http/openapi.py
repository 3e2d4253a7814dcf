"""The description of the API: what FastAPI cannot see, because bodies are read and answers written by hand.

Each operation has an example in `examples/`, named after it: one conversation with the service, step by step.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from services.ingest.http import requests
from services.ingest.http.answers import ProblemAnswer
from services.ingest.http.problems import (
    FORBIDDEN,
    INTERNAL,
    INVALID_REQUEST,
    MALFORMED_JSON,
    MALFORMED_KEY,
    MEDIA_TYPE,
    OVERLOADED,
    TOO_LARGE,
    UNAUTHENTICATED,
    UNSTORABLE,
    UNSUPPORTED_MEDIA_TYPE,
    VIEWS_UNAVAILABLE,
    ProblemType,
)

TITLE = "threadlog"
VERSION = "1"
DESCRIPTION = """
Durable agent sessions. Commands are appended to a log and answered with 202 once the log has acknowledged them; what
they came to is decided by their place in the log, and can be waited for (`wait=applied`). Reads come from views that
follow the log; `at_least` makes a read wait until the views hold a position that a command has answered.

Errors are problems (RFC 9457). A POST with an `Idempotency-Key` can be sent again: the same key and body count once
and are answered alike.
"""
BODIES: tuple[type[BaseModel], ...] = (
    requests.CreateThread,
    requests.PatchThread,
    requests.CreateImport,
    requests.SubmitInput,
    requests.WithdrawInput,
    requests.CancelTurn,
    requests.RestoreFiles,
    requests.CloseThread,
    requests.DecideCall,
    requests.PostResult,
    requests.ResolveCall,
    requests.CreateChild,
    requests.ForkThread,
    requests.RewindThread,
    requests.CompactThread,
    requests.ProposePlan,
    requests.DecidePlan,
)
MODELS: tuple[type[BaseModel], ...] = (*BODIES, ProblemAnswer)
ALWAYS = (UNAUTHENTICATED, FORBIDDEN, OVERLOADED, INTERNAL)
OF_READS = (VIEWS_UNAVAILABLE, INVALID_REQUEST)
WITH_CONTENT = (200, 206)
OF_BODIES = (MALFORMED_JSON, MALFORMED_KEY, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, UNSTORABLE)

EXAMPLES = Path(__file__).with_name("examples")

_REF = "#/components/schemas/{model}"


class Example(BaseModel):
    """A request and its answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    headers: dict[str, str] = {}
    request: JsonValue = None
    status: int
    response: JsonValue = None
    stream: str | None = None
    """The answer as server-sent events."""
    sends: str | None = None
    """The request's body, where it is no JSON."""
    answers: str | None = None
    """The answer, where it is no JSON."""
    refusal: dict[str, JsonValue] | None = None
    """The problem that another request to the same path is answered with."""


def read_examples(folder: Path = EXAMPLES) -> dict[str, Example]:
    """By operation."""
    return {path.stem: Example.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))}


def answers(
    model: type[BaseModel] | None,
    statuses: Iterable[int],
    problems: Iterable[ProblemType],
    content: Mapping[str, Any] | None = None,
) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`. `content`: what the answer is where it is no JSON."""
    described: dict[int | str, dict[str, Any]] = {
        status: {"description": _SUCCESS[status]}
        | ({} if model is None else {"model": model})
        | ({} if content is None or status not in WITH_CONTENT else {"content": dict(content)})
        for status in statuses
    }
    by_status: dict[int, list[ProblemType]] = {}
    for problem in (*ALWAYS, *problems):
        by_status.setdefault(problem.status, []).append(problem)
    for status, of_status in sorted(by_status.items()):
        described[status] = {
            "description": "; ".join(f"{problem.title} (`{problem.slug}`)" for problem in of_status) + ".",
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model=ProblemAnswer.__name__)}}},
        }
    return described


def command(model: type[BaseModel], *, required: bool = True, waits: bool = True) -> dict[str, Any]:
    """For the `openapi_extra` of a command's route: what it reads by hand."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {
        "parameters": [_WAIT, _KEY] if waits else [_KEY],
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}},
    }


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    document = get_openapi(title=TITLE, version=VERSION, description=DESCRIPTION, routes=routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, definitions = models_json_schema([(model, "validation") for model in MODELS], ref_template=_REF)
    schemas.update(definitions["$defs"])
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: `tl_<id>_<secret>`."}
    }
    document["security"] = [{"key": []}]
    examples = read_examples()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["parameters"] = [*_path_parameters(path, operation), *operation.get("parameters", ())]
            _show(examples, operation)
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    return document


def _show(examples: Mapping[str, Example], operation: dict[str, Any]) -> None:
    """Put the operation's example where OpenAPI has its parts."""
    example = examples.get(operation["operationId"])
    if example is None:
        return
    if example.request is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = example.request
    content = operation["responses"][str(example.status)].get("content", {})
    if example.response is not None:
        content.setdefault("application/json", {})["example"] = example.response
    if example.stream is not None:
        content["text/event-stream"]["example"] = example.stream
    if example.refusal is not None:
        operation["responses"][str(example.refusal["status"])]["content"][MEDIA_TYPE]["example"] = example.refusal


def _path_parameters(path: str, operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that the operation does not describe itself."""
    described = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": _IN_PATHS[name]}
        for name in re.findall(r"{(\w+)}", path)
        if name not in described
    ]


_IN_PATHS = {
    "thread": "Id of the thread.",
    "input": "Id of the input.",
    "turn": "Number of the turn, from 1.",
    "version": "Of the plan, from 1.",
    "call": "Id of the tool call: turn.step.index, such as `3.1.0`.",
    "event_id": "Id of the command's event.",
    "import": "Id of the import.",
    "sha256": "Of the artifact: 64 lower-case hexadecimal digits.",
}
_WAIT = {
    "name": "wait",
    "in": "query",
    "schema": {"enum": ["applied"]},
    "description": "Answer once it is known what the command came to, with 409 where it took no effect.",
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "description": "The same key and body count once and are answered alike.",
}
_SUCCESS = {
    200: "It took effect, or here it is.",
    201: "Stored; it was not there before.",
    202: "Recorded. Without `wait=applied`, or where the wait was too long, its effect is not known yet.",
    206: "The range that was asked for.",
    304: "It is the one that you have.",
}
