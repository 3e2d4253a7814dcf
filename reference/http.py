"""Writes the reference in docs/http.md from the API's own description: `python -m reference.http`.

The part of the page above the mark is written by people and kept. Everything below it comes from the OpenAPI document
and the examples, and a test fails while the page differs from them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from services.ingest.app import openapi_document
from services.ingest.http.openapi import Example, read_examples
from services.ingest.http.problems import CATALOGUE

PAGE = Path(__file__).parents[1] / "docs" / "http.md"
MARK = "<!-- From here on written by `python -m reference.http`. -->\n"

_REF_PREFIX = "#/components/schemas/"


def with_reference(page: str) -> str:
    """Return the page with the reference of today. Raises ValueError if the page has lost its mark."""
    prose, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE} has lost its mark: {MARK}")
    return prose + MARK + reference(openapi_document())


def reference(document: dict[str, Any]) -> str:
    """Return the reference of an OpenAPI document as Markdown: operations by path, models by name, and all problems."""
    lines = ["", "## Operations", ""]
    examples = read_examples()
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            lines += _operation(method.upper(), path, operation)
            lines += _example(method.upper(), examples[operation["operationId"]])
    lines += ["## Bodies and answers", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema(name, schema)
    lines += ["## Problems", "", "| type | status | title | what to do |", "|---|---|---|---|"]
    lines += [f"| `{p.slug}` | {p.status} | {p.title} | {p.advice} |" for p in CATALOGUE]
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {method} {path}", "", f"{operation['summary']}. `{operation['operationId']}`", "")
    description = operation.get("description", "").strip()
    if description:
        yield from (description, "")
    parameters = [parameter for parameter in operation.get("parameters", []) if parameter["in"] != "path"]
    if parameters:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
        for parameter in parameters:
            meaning = " ".join(parameter.get("description", "").split())
            yield f"| `{parameter['name']}` | {parameter['in']} | {_type(parameter['schema'])} | {meaning} |"
        yield ""
    if "requestBody" in operation:
        body = operation["requestBody"]
        optional = "" if body["required"] else ", which may be left out"
        yield from (f"Body: {_content(body)}{optional}.", "")
    for status, answer in sorted(operation["responses"].items()):
        if status < "400":
            yield f"- {status}: {_content(answer)}"
    problems = [status for status in sorted(operation["responses"]) if status >= "400"]
    yield from (f"- problems: {', '.join(problems)}", "")


def _example(method: str, example: Example) -> Iterator[str]:
    request = [f"{method} {example.path}", *[f"{name}: {value}" for name, value in example.headers.items()]]
    if example.request is not None:
        request.append(_json(example.request))
    if example.sends is not None:
        request.append(example.sends)
    yield from ("```text", *request, "```", "")
    if example.response is not None:
        yield from (f"answers {example.status}:", "", "```json", _json(example.response), "```", "")
    if example.answers is not None:
        yield from (f"answers {example.status}:", "", "```text", example.answers, "```", "")
    if example.stream is not None:
        yield from ("or, as a stream:", "", "```text", example.stream.strip(), "```", "")
    if example.refusal is not None:
        yield from (f"Another is refused, {example.refusal['status']}:", "")
        yield from ("```json", _json(example.refusal), "```", "")


def _json(value: JsonValue) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _content(described: dict[str, Any]) -> str:
    """Return the models or media types of a body or an answer. JSON is named by its model alone."""
    kinds = []
    for media_type, content in described.get("content", {}).items():
        schema = _type(content["schema"]) if content.get("schema") else ""
        kinds.append(schema if media_type == "application/json" and schema else f"`{media_type}`")
    return " or ".join(kinds) or "nothing"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if schema.get("description"):
        yield from (" ".join(schema["description"].split()), "")
    if not schema.get("properties"):
        return
    required = set(schema.get("required", ()))
    yield from ("| field | type | meaning |", "|---|---|---|")
    for field, described in schema["properties"].items():
        needed = ", required" if field in required else ""
        meaning = " ".join(described.get("description", "").split())
        yield f"| `{field}` | {_type(described)}{needed} | {meaning} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    """Return a type in words. Parts of JSON Schema that the API does not use are left out."""
    match schema:
        case {"$ref": reference_}:
            name = str(reference_).removeprefix(_REF_PREFIX)
            return f"[{name}](#{name.lower()})"
        case {"anyOf": options} | {"oneOf": options}:
            return " or ".join(_type(option) for option in options)
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array"}:
            return f"list of {_type(schema.get('items', {}))}"
        case {"type": kind}:
            return f"{kind}{_limits(schema)}"
        case _:
            return "any JSON"


def _limits(schema: dict[str, Any]) -> str:
    named = {"minimum": "from", "maximum": "to", "minLength": "at least", "maxLength": "at most", "format": ""}
    limits = " ".join(f"{word} {schema[name]}".strip() for name, word in named.items() if name in schema)
    return f" ({limits})" if limits else ""


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
