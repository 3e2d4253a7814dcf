import mcp_types
import pytest

from schemas.tools import ToolSpec
from services.tool_executor.offering import catalog
from services.tool_executor.offering.catalog import (
    builtin_entry,
    client_entry,
    mcp_entry,
    suggested_effect,
    under_policy,
)
from services.tool_executor.offering.tools_file import ClientTool, McpServerConfig, ReconcileSection, ToolPolicy

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}, "required": ["path"]}
CONFIG = McpServerConfig(command="x")


def tool(name: str, schema=None, **annotations) -> mcp_types.Tool:
    return mcp_types.Tool(
        name=name, input_schema=schema or SCHEMA, annotations=mcp_types.ToolAnnotations(**annotations)
    )


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        (None, "unsafe"),
        (mcp_types.ToolAnnotations(), "unsafe"),
        (mcp_types.ToolAnnotations(read_only_hint=True), "pure"),
        (mcp_types.ToolAnnotations(idempotent_hint=True), "idempotent"),
        (mcp_types.ToolAnnotations(read_only_hint=False, idempotent_hint=False), "unsafe"),
    ],
)
def test_annotations_suggest_an_effect(annotations, effect):
    assert suggested_effect(annotations) == effect


def test_the_operators_policy_decides():
    spec = ToolSpec(name="x", effect="pure", parallel=True)
    assert under_policy(spec, ToolPolicy()) == spec
    assert under_policy(spec, ToolPolicy(enabled=False)) is None
    unsafe = under_policy(spec, ToolPolicy(effect="unsafe", max_attempts=1, description="d"))
    assert (unsafe.effect, unsafe.parallel, unsafe.max_attempts, unsafe.description) == ("unsafe", False, 1, "d")
    assert under_policy(spec, ToolPolicy(effect="unsafe", parallel=True)).parallel
    assert under_policy(ToolSpec(name="x"), ToolPolicy(effect="pure")).parallel


def test_builtin_entry():
    specs = [ToolSpec(name="a"), ToolSpec(name="b")]
    entry = builtin_entry("p", specs, {"a": ToolPolicy(enabled=False), "b": ToolPolicy(timeout_seconds=7)})
    assert (entry.source, entry.pool) == ("builtin", "p")
    assert [(spec.name, spec.timeout_seconds) for spec in entry.tools] == [("b", 7)]


def test_mcp_entry_leaves_out_what_cannot_be_offered(monkeypatch):
    monkeypatch.setattr(catalog, "TOOLS_PER_SERVER_MAX", 6)
    listed = [
        tool("good", read_only_hint=True),
        tool("good"),
        tool("has space"),
        tool("off"),
        tool("broken", schema={"type": "nonsense"}),
        tool("x" * 65),
        tool("one_too_many"),
    ]
    tools = mcp_entry("p", "s", CONFIG, listed, {"off": ToolPolicy(enabled=False)})
    assert tools.entry.source == "mcp:s"
    assert [spec.name for spec in tools.entry.tools] == ["good"]
    assert tools.entry.tools[0].effect == "pure"
    assert set(tools.left_out) == {"good", "has space", "off", "broken", "x" * 65, "one_too_many"}
    assert "no JSON Schema" in tools.left_out["broken"]
    assert "no name that models accept" in tools.left_out["has space"]
    assert "twice" in tools.left_out["good"]


def test_prefix_and_bound_arguments():
    config = McpServerConfig(command="x", prefix="git_", bound_arguments={"path": "{cwd}"})
    tools = mcp_entry("p", "s", config, [tool("log")], {})
    assert tools.server_names == {"git_log": "log"}
    (spec,) = tools.entry.tools
    assert spec.input_schema == {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []}


def test_a_schema_without_properties_stays_as_it_is():
    tools = mcp_entry("p", "s", CONFIG, [tool("any", schema={"type": "object"})], {})
    assert tools.entry.tools[0].input_schema == {"type": "object"}


def test_people_see_by_what_a_reconcilable_tool_is_asked_about():
    policy = ToolPolicy(effect="reconcilable", reconcile=ReconcileSection(command=("/usr/bin/check-charge", "--json")))
    assert under_policy(ToolSpec(name="x"), policy).reconcile == "command:check-charge"
    assert under_policy(ToolSpec(name="x"), ToolPolicy()).reconcile is None


def test_a_tool_that_only_answers_for_another_need_not_be_offered():
    policies = {
        "pay": ToolPolicy(effect="reconcilable", reconcile=ReconcileSection(tool="lookup")),
        "lookup": ToolPolicy(enabled=False),
        "off": ToolPolicy(enabled=False),
    }
    tools = mcp_entry("p", "s", CONFIG, [tool("pay"), tool("lookup", read_only_hint=True), tool("off")], policies)
    assert [(spec.name, spec.reconcile) for spec in tools.entry.tools] == [("pay", "tool:lookup")]
    assert tools.server_names == {"pay": "pay", "lookup": "lookup"}
    assert tools.specs["lookup"].effect == "pure"
    assert set(tools.left_out) == {"lookup", "off"}


def test_client_tools_are_a_source_and_a_pool_of_their_own():
    entry = client_entry({"ask": ClientTool(description="Ask.", input_schema=SCHEMA, timeout_seconds=60)})
    assert (entry.source, entry.pool) == ("client", "client")
    (spec,) = entry.tools
    assert spec == ToolSpec(name="ask", description="Ask.", input_schema=SCHEMA, timeout_seconds=60)
    assert client_entry({}).tools == ()
