import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from reference.http import MARK, PAGE, reference, with_reference
from services.ingest.app import openapi_document
from services.ingest.http.problems import CATALOGUE
from tests.unit.ingest.world import World


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def dangling(document: dict[str, Any]) -> set[str]:
    wanted = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', orjson.dumps(document).decode()))
    return wanted - set(document["components"]["schemas"])


def test_every_reference_leads_somewhere() -> None:
    assert dangling(openapi_document()) == set()


def test_a_reference_to_nowhere_is_found() -> None:
    assert dangling({"components": {"schemas": {}}, "a": {"$ref": "#/components/schemas/B"}}) == {"B"}


def test_every_operation_is_described() -> None:
    seen = set()
    for name, operation in operations(openapi_document()):
        assert operation["summary"], name
        assert {"401", "403", "500", "503"} <= set(operation["responses"]), name
        seen.add(operation["operationId"])
    assert len(seen) == len(list(operations(openapi_document())))
    assert seen >= {"create_thread", "submit_input", "cancel_turn", "events", "list_items", "decide_call"}


def test_commands_describe_their_body_and_reads_have_none() -> None:
    for name, operation in operations(openapi_document()):
        assert ("requestBody" in operation) == (not name.startswith(("get ", "head "))), name


def test_every_problem_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [problem.slug for problem in CATALOGUE if f"| `{problem.slug}` |" not in page] == []


def test_the_page_is_up_to_date() -> None:
    assert with_reference(PAGE.read_text()) == PAGE.read_text(), "run `python -m reference.http`"


def test_a_page_without_its_mark_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="mark"):
        with_reference("# A page\n")
    assert with_reference(f"# A page\n{MARK}old").endswith(reference(openapi_document()))


async def test_the_document_is_served() -> None:
    answer = await World().client.get("/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == orjson.loads(orjson.dumps(openapi_document()))
