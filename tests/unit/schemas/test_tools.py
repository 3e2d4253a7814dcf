import pytest
from pydantic import ValidationError

from schemas.tools import Catalog, CatalogSource, ToolSpec, tools_hash


def source(name: str, *tools: str, pool: str = "p") -> CatalogSource:
    return CatalogSource(source=name, pool=pool, tools=tuple(ToolSpec(name=tool) for tool in tools))


def test_sources_merge_and_the_first_name_wins():
    catalog = Catalog().with_source("mcp:b", source("mcp:b", "x", "y", pool="b"))
    catalog = catalog.with_source("builtin", source("builtin", "x", pool="a"))
    assert catalog.find("x").source == "builtin"
    assert catalog.find("y").pool == "b"
    assert catalog.find("z") is None
    assert [(tool.spec.name, tool.source) for tool in catalog.shadowed] == [("x", "mcp:b")]
    assert [spec.name for spec in catalog.specs()] == ["x", "y"]
    assert [spec.name for spec in catalog.specs(["y", "nothing"])] == ["y"]


def test_a_source_is_replaced_and_taken_away():
    first = Catalog().with_source("a", source("a", "x"))
    second = first.with_source("a", source("a", "y"))
    assert first.find("x")
    assert second.find("x") is None
    assert not second.with_source("a", None).tools
    assert not second.with_source("unheard-of", None).shadowed


def test_the_hash_changes_with_the_tools_and_not_with_their_order():
    a, b = ToolSpec(name="a"), ToolSpec(name="b")
    assert tools_hash([a, b]) == tools_hash([b, a]) != tools_hash([a])
    assert tools_hash([a]) != tools_hash([a.model_copy(update={"description": "other"})])
    assert a.schema_hash == b.schema_hash
    assert a.content_hash != b.content_hash


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "é"])
def test_names_are_what_models_accept(name):
    with pytest.raises(ValidationError):
        ToolSpec(name=name)


def test_what_a_newer_executor_adds_is_ignored():
    entry = CatalogSource.model_validate_json('{"source":"s","pool":"p","tools":[{"name":"x","later":1}],"more":2}')
    assert entry.tools == (ToolSpec(name="x"),)
