"""What this executor publishes in the catalog: built-in tools and tools of MCP servers, under the operator's policy.

A tool that cannot be offered is left out with a reason, and the others are offered all the same: one bad schema of a
server must not cost its other tools.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue, ValidationError

from schemas.events import EffectClass
from schemas.tools import CLIENT_POOL, CLIENT_SOURCE, CatalogSource, ToolSpec
from services.chassis.catalog.tool_arguments import schema_problem
from services.chassis.sanitize import sanitize_json, sanitize_text
from services.tool_executor.offering.tools_file import ClientTool, McpServerConfig, ToolPolicy

if TYPE_CHECKING:
    import mcp_types  # half a second at run time, which an executor without MCP servers need not wait for

BUILTIN_SOURCE = "builtin"
DESCRIPTION_CHARACTERS_MAX: Final = 4_096
"""Each description is part of every request to a model; a longer one costs more than it explains."""
TOOLS_PER_SERVER_MAX: Final = 512
"""The catalog entry of a source is one record, whose size is limited."""


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of one server: those that are offered, by the names the model sees, and why others are not."""

    entry: CatalogSource
    server_names: Mapping[str, str]
    """The server's own name of each tool, by its name in the catalog."""
    left_out: Mapping[str, str]
    """Why a tool is not offered, by the server's name for it."""
    specs: Mapping[str, ToolSpec]
    """All tools that can be called: those that are offered, and those that only reconcile hooks call."""


def builtin_entry(pool: str, specs: Sequence[ToolSpec], policies: Mapping[str, ToolPolicy]) -> CatalogSource:
    offered = (under_policy(spec, policies.get(spec.name, ToolPolicy())) for spec in specs)
    return CatalogSource(source=BUILTIN_SOURCE, pool=pool, tools=tuple(spec for spec in offered if spec is not None))


def client_entry(tools: Mapping[str, ClientTool]) -> CatalogSource:
    """Return the entry of the tools that backends run. It is in a pool of its own, so that no executor claims them."""
    specs = [ToolSpec(name=name, **tool.model_dump()) for name, tool in tools.items()]
    return CatalogSource(source=CLIENT_SOURCE, pool=CLIENT_POOL, tools=tuple(specs))


def mcp_source(server: str) -> str:
    """Return the name of the server as a source in the catalog. A source replaces its own tools only."""
    return f"mcp:{server}"


def mcp_entry(
    pool: str,
    server: str,
    config: McpServerConfig,
    tools: "Sequence[mcp_types.Tool]",
    policies: Mapping[str, ToolPolicy],
) -> McpTools:
    """Return what is offered of a server's tools, in the order in which the server lists them.

    A tool that is turned off for the model may still be called by a reconcile hook: that is what `enabled: false` is
    for with tools that look up what another one did.
    """
    specs: dict[str, ToolSpec] = {}
    names: dict[str, str] = {}
    offers: list[ToolSpec] = []
    left_out: dict[str, str] = {}
    asked = {policy.reconcile.tool for policy in policies.values() if policy.reconcile is not None}
    for tool in tools[:TOOLS_PER_SERVER_MAX]:
        spec = _spec_of(tool, config)
        if isinstance(spec, str):
            left_out[tool.name] = spec
            continue
        offered = under_policy(spec, policies.get(spec.name, ToolPolicy()))
        if spec.name in specs:
            left_out[tool.name] = "the server lists it twice"
            continue
        if offered is None:
            left_out[tool.name] = "turned off by policy"
        else:
            offers.append(offered)
        if offered is not None or spec.name in asked:
            specs[spec.name] = offered or spec
            names[spec.name] = tool.name
    left_out |= {tool.name: f"more than {TOOLS_PER_SERVER_MAX} tools" for tool in tools[TOOLS_PER_SERVER_MAX:]}
    entry = CatalogSource(source=mcp_source(server), pool=pool, tools=tuple(offers))
    return McpTools(entry, names, left_out, specs)


def under_policy(spec: ToolSpec, policy: ToolPolicy) -> ToolSpec | None:
    """Return the tool as the operator wants it; None if it is turned off."""
    if not policy.enabled:
        return None
    decided = policy.model_dump(exclude={"enabled", "reconcile"}, exclude_none=True)
    if policy.reconcile is not None:
        decided["reconcile"] = str(policy.reconcile)
    # Whether a tool may run in parallel follows from its effect, so a policy that changes the effect changes both.
    if policy.parallel is None and policy.effect not in {None, spec.effect}:
        decided["parallel"] = policy.effect == "pure"
    return spec.model_copy(update=decided)


def suggested_effect(annotations: "mcp_types.ToolAnnotations | None") -> EffectClass:
    """Return the effect that a server's hints suggest. Without hints, a tool may do anything.

    The hints come from a foreign program. An operator who does not trust them sets `effect` in the tools file.
    """
    if annotations is None:
        return "unsafe"
    if annotations.read_only_hint:
        return "pure"
    return "idempotent" if annotations.idempotent_hint else "unsafe"


def _spec_of(tool: "mcp_types.Tool", config: McpServerConfig) -> ToolSpec | str:
    """Return the tool, or the reason why it cannot be offered."""
    schema = sanitize_json(tool.input_schema)
    if not isinstance(schema, dict):
        return "its input schema is no JSON object"
    problem = schema_problem(schema)
    if problem is not None:
        return f"its input schema is no JSON Schema: {problem}"
    effect = suggested_effect(tool.annotations)
    description = sanitize_text(tool.description or tool.title or "")[:DESCRIPTION_CHARACTERS_MAX]
    try:
        return ToolSpec(
            name=f"{config.prefix}{tool.name}",
            description=description,
            input_schema=_without(schema, config.bound_arguments),
            effect=effect,
            parallel=effect == "pure",
        )
    except ValidationError:
        return f"`{config.prefix}{tool.name}` is no name that models accept: 1 to 64 letters, digits, _ and -"


def _without(schema: dict[str, JsonValue], bound: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return the schema without the arguments that the executor fills in, as the model sees it."""
    properties, required = schema.get("properties"), schema.get("required")
    shown = dict(schema)
    if isinstance(properties, dict):
        shown["properties"] = {name: value for name, value in properties.items() if name not in bound}
    if isinstance(required, list):
        shown["required"] = [name for name in required if name not in bound]
    return shown
