"""The examples of the API's description: one for each operation, and each of the shapes that the models have."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pydantic
import pytest

from services.ingest.app import GROUPS, openapi_document
from services.ingest.http.answers import ProblemAnswer
from services.ingest.http.openapi import EXAMPLES, Example, read_examples
from services.ingest.http.operation import Operation, operations_of
from services.ingest.http.problems import ALWAYS, CATALOGUE, TYPE_PREFIX

OPERATIONS = {declared.name: declared for group in GROUPS for declared in operations_of(group)}


def misshapen(model: type[pydantic.BaseModel], value: object) -> str | None:
    try:
        model.model_validate_json(json.dumps(value))
    except pydantic.ValidationError as error:
        return str(error)
    return None


def complaints(declared: Operation, example: Example) -> list[str]:
    found = []
    if re.fullmatch(re.sub(r"{\w+}", "[^/]+", declared.path), example.path.partition("?")[0]) is None:
        found.append("its path is another operation's")
    if declared.body is None:
        found += ["it has a body"] if example.request is not None else []
    else:
        found += [misshapen(declared.body, example.request) or ""]
    if example.status not in declared.statuses:
        found.append("its status is not one of the operation's")
    if declared.answer is None:
        found += ["its answer is no JSON"] if example.response is not None else []
    else:
        found += [misshapen(declared.answer, example.response) or ""]
    if example.refusal is not None:
        types = {TYPE_PREFIX + problem.slug: (problem.status, problem.title) for problem in CATALOGUE}
        status, title = example.refusal.get("status"), example.refusal.get("title")
        statuses = {problem.status for problem in (*ALWAYS, *declared.problems)}
        found += [misshapen(ProblemAnswer, example.refusal) or ""]
        if types.get(str(example.refusal["type"])) != (status, title) or status not in statuses:
            found.append("its refusal is not one of the operation's")
    return [complaint for complaint in found if complaint]


def without(folder: Mapping[str, Example], operations: Mapping[str, Any]) -> set[str]:
    return set(operations) ^ set(folder)


def test_every_operation_has_an_example() -> None:
    assert without(read_examples(), OPERATIONS) == set(), f"one file for each operation in {EXAMPLES}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_example_has_the_shape_of_its_models(operation: str) -> None:
    assert complaints(OPERATIONS[operation], read_examples()[operation]) == []


def test_what_is_wrong_with_an_example_is_found() -> None:
    good = read_examples()
    assert without({"decide_call": good["decide_call"]}, {"decide_call": 0, "post_result": 0}) == {"post_result"}
    decision, listing = good["decide_call"], good["list_turns"]
    assert isinstance(decision.request, dict) and isinstance(decision.refusal, dict)
    for operation, broken, complaint in (
        ("decide_call", {"path": "/v1/threads"}, "another operation's"),
        ("decide_call", {"request": decision.request | {"decision": "perhaps"}}, "perhaps"),
        ("decide_call", {"request": None}, "DecideCall"),
        ("decide_call", {"response": {"thread": "t"}}, "position"),
        ("decide_call", {"refusal": decision.refusal | {"status": 418}}, "refusal"),
        ("list_turns", {"request": {}}, "it has a body"),
    ):
        example = (decision if operation == "decide_call" else listing).model_copy(update=broken)
        assert complaint in " ".join(complaints(OPERATIONS[operation], example)), complaint


def test_the_description_shows_the_examples() -> None:
    shown = openapi_document()["paths"]["/v1/threads/{thread}/tool-calls/{call}/decision"]["post"]
    example = read_examples()["decide_call"]
    assert shown["requestBody"]["content"]["application/json"]["example"] == example.request
    assert shown["responses"]["200"]["content"]["application/json"]["example"] == example.response
    assert shown["responses"]["409"]["content"]["application/problem+json"]["example"] == example.refusal
    stream = openapi_document()["paths"]["/v1/threads/{thread}/events"]["get"]["responses"]["200"]["content"]
    assert stream["text/event-stream"]["example"].startswith("id: ")
