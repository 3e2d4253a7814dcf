"""The description of the API, in OpenAPI 3.1: written from the declarations by which requests are read.

Nothing is described here that is not used: parameters and bodies are the models that requests are read with, and the
tests hold answers to the models that they have here. Each operation has an example in `examples/`, named after it: one
conversation with the service, step by step.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from services.ingest.http.answers import JSON, ProblemAnswer
from services.ingest.http.operation import Operation, Parameters, place_of
from services.ingest.http.problems import ALWAYS, MEDIA_TYPE, ProblemType

TITLE = "threadlog"
VERSION = "1"
DESCRIPTION = """
Durable agent sessions. Commands are appended to a log and answered with 202 once the log has acknowledged them. Their
place in the log decides their effect, and `wait=applied` waits for it. Reads come from views that follow the log;
`at_least` makes a read wait until the views hold a position from the answer of a command.

Errors are problems (RFC 9457). A POST with an `Idempotency-Key` can be sent again: the same key and body count once
and get the same answer.
"""
EXAMPLES = Path(__file__).with_name("examples")

_REF = "#/components/schemas/{model}"
_WITH_CONTENT = (200, 206)
"""Statuses whose answers have a body of another media type than JSON."""


class Example(BaseModel):
    """An example of an operation: a request and its answer. The tests hold it to the models of the operation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    headers: dict[str, str] = {}
    request: JsonValue = None
    status: int
    response: JsonValue = None
    stream: str | None = None
    """The answer as server-sent events."""
    sends: str | None = None
    """The request's body, if it is not JSON."""
    answers: str | None = None
    """The answer, if it is not JSON."""
    refusal: dict[str, JsonValue] | None = None
    """The answer of another request to the same path, which is refused."""


class Tagged(NamedTuple):
    """An operation, and the heading under which it is listed."""

    tag: str
    operation: Operation


def read_examples(folder: Path = EXAMPLES) -> dict[str, Example]:
    """Return the examples by operation."""
    return {path.stem: Example.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))}


def describe(operations: Iterable[Tagged]) -> dict[str, Any]:
    """Return the OpenAPI document of these operations."""
    examples = read_examples()
    paths: dict[str, dict[str, Any]] = {}
    bodies: list[type[BaseModel]] = [ProblemAnswer]
    answers: list[type[BaseModel]] = []
    for tag, declared in operations:
        described = _described(tag, declared)
        _show(examples.get(declared.name), described)
        paths.setdefault(declared.path, {})[declared.method.lower()] = described
        if declared.body is not None:
            bodies.append(declared.body)
        if declared.answer is not None:
            answers.append(declared.answer)
    # A field with a default may be missing in a request, and is always there in an answer.
    schemas = {**_without_nulls(_schemas(answers, "serialization")), **_schemas(bodies, "validation")}
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "description": DESCRIPTION, "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key: `tl_<id>_<secret>`."}
            },
        },
        "security": [{"key": []}],
    }


def _schemas(models: Iterable[type[BaseModel]], mode: JsonSchemaMode) -> dict[str, Any]:
    """Return the schemas of these models, and of all that they refer to, by name."""
    _, definitions = models_json_schema([(model, mode) for model in dict.fromkeys(models)], ref_template=_REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def _described(tag: str, declared: Operation) -> dict[str, Any]:
    """Return the Operation Object. A part of the path is text for OpenAPI, however it is read."""
    described: dict[str, Any] = {
        "tags": [tag],
        "summary": declared.summary,
        "description": declared.description,
        "operationId": declared.name,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
                "description": part.description,
            }
            for name, part in declared.parts.items()
        ],
        "responses": _answers(declared),
    }
    if not declared.description:
        del described["description"]
    if declared.parameters is not None:
        described["parameters"] += _parameters(declared.parameters)
    if declared.body is not None:
        content = {JSON: {"schema": _reference(declared.body)}}
        described["requestBody"] = {"required": declared.body_required, "content": content}
    elif declared.sends:
        described["requestBody"] = {"required": True, "content": dict(declared.sends)}
    return described


def _parameters(model: type[Parameters]) -> list[dict[str, Any]]:
    """Return the fields of a model as parameters, in their order, by the names that clients send."""
    # The schema of the whole model is made once; each of its properties is the schema of a parameter.
    schemas = model.model_json_schema()["properties"]
    described = []
    for field, info in model.model_fields.items():
        name = info.alias or field
        schema = _without_nulls(schemas[name])
        meaning = schema.pop("description", None)
        parameter = {"name": name, "in": place_of(info), "required": False, "schema": schema}
        described.append(parameter if meaning is None else parameter | {"description": meaning})
    return described


def _answers(declared: Operation) -> dict[str, Any]:
    """Return the answers by status. Problems of one status share an entry, since OpenAPI has one for each status."""
    described: dict[str, Any] = {}
    for status in declared.statuses:
        content = {} if declared.answer is None else {JSON: {"schema": _reference(declared.answer)}}
        if status in _WITH_CONTENT:
            content |= declared.content
        described[str(status)] = {"description": _SUCCESS[status]} | ({"content": content} if content else {})
    by_status: dict[int, list[ProblemType]] = {}
    for problem in (*ALWAYS, *declared.problems):
        by_status.setdefault(problem.status, []).append(problem)
    for status, of_status in sorted(by_status.items()):
        described[str(status)] = {
            "description": "; ".join(f"{problem.title} (`{problem.slug}`)" for problem in of_status) + ".",
            "content": {MEDIA_TYPE: {"schema": _reference(ProblemAnswer)}},
        }
    return described


def _without_nulls(schema: Any) -> Any:
    """Return a schema without its defaults of null, which say no more than that a field may be left out."""
    match schema:
        case dict():
            return {name: _without_nulls(value) for name, value in schema.items() if value is not None}
        case list():
            return [_without_nulls(value) for value in schema]
        case _:
            return schema


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    """Return a reference by the name of the class, which is what pydantic names the schema."""
    return {"$ref": _REF.format(model=model.__name__)}


def _show(example: Example | None, described: dict[str, Any]) -> None:
    """Put the operation's example where OpenAPI has its parts."""
    if example is None:
        return
    if example.request is not None:
        described["requestBody"]["content"][JSON]["example"] = example.request
    content = described["responses"][str(example.status)].get("content", {})
    if example.response is not None:
        content[JSON]["example"] = example.response
    if example.stream is not None:
        content["text/event-stream"] = {**content["text/event-stream"], "example": example.stream}
    if example.refusal is not None:
        described["responses"][str(example.refusal["status"])]["content"][MEDIA_TYPE]["example"] = example.refusal


_SUCCESS = {
    # What a status means is the same for every operation that has it.
    200: "The command took effect, or the answer has what was asked for.",
    201: "The artifact was stored and is new.",
    202: "The command was recorded. Its effect is not known: without `wait=applied`, or because the wait was too long.",
    206: "The answer has the range that was asked for.",
    304: "The artifact is the one that you have.",
}
