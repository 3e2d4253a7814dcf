"""Tools as executors declare them and as everybody else sees them: the values of the `tool-catalog` topic, merged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from json import dumps
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from schemas.events import EffectClass

TOOL_NAME_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
"""What every model provider accepts as the name of a tool."""

CLIENT_SOURCE = "client"
"""Catalog source of the tools that run in the customer's backend."""
CLIENT_POOL = "client"
"""Pool of the tools that run in the customer's backend. No executor claims their calls."""

THREAD_SOURCE = "runtime"
"""Catalog source of the tools that the runtime runs itself."""
THREAD_POOL = "thread"
"""Pool of the tools that the runtime runs itself, because they act on threads."""
SPAWN_THREAD_TOOL = "spawn_thread"
LOAD_SKILL_TOOL = "load_skill"
"""An executor's tool. The runtime records which version is loaded before it dispatches the call."""

IDEMPOTENCY_META_KEY = "dev.threadlog/idempotency-key"
"""Where an MCP server finds the idempotency key: in the call's `_meta`."""


class ToolSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str = ""
    input_schema: dict[str, JsonValue] = {"type": "object", "properties": {}}
    effect: EffectClass = "unsafe"
    """What running a call twice may do. pure: nothing; idempotent: nothing more, with the same idempotency key;
    reconcilable: the downstream can be asked by that key what happened; unsafe: anything.
    """
    parallel: bool = False
    """Whether calls that are not pure may run beside others of their step."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """How long one attempt may run."""
    max_attempts: int = Field(default=3, ge=1)
    """Attempts that policy allows, the first included."""
    on_request: bool = False
    """Whether only a principal can ask for a call of it; models are not offered it."""
    reconcile: str | None = None
    """For people: what is asked about an unknown call of it, such as `tool:lookup_charge` or `command:check-charge`."""

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Without the hashes of the original, which pydantic would copy along."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("content_hash", "schema_hash"):
            copied.__dict__.pop(name, None)
        return copied

    @cached_property
    def content_hash(self) -> str:
        return sha256(_canonical(self.model_dump(mode="json"))).hexdigest()

    @cached_property
    def schema_hash(self) -> str:
        return sha256(_canonical(self.input_schema)).hexdigest()


class CatalogSource(BaseModel):
    """One record of the catalog; its key is `source`, such as `builtin` or `mcp:git`. No value: the source is gone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str = Field(min_length=1, max_length=128)
    pool: str = Field(min_length=1, max_length=64)
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogTool:
    spec: ToolSpec
    pool: str
    source: str


@dataclass(frozen=True)
class Catalog:
    """All sources merged by tool name. A name that two sources declare belongs to the source whose name sorts first, so
    that every reader agrees; the others are `shadowed`.
    """

    sources: Mapping[str, CatalogSource] = field(default_factory=dict)

    def with_source(self, source: str, entry: CatalogSource | None) -> Self:
        """The catalog after a record for that key; None takes the source away."""
        kept = {name: kept_entry for name, kept_entry in self.sources.items() if name != source}
        return type(self)(kept if entry is None else kept | {source: entry})

    @cached_property
    def tools(self) -> Mapping[str, CatalogTool]:
        return {
            tool.spec.name: tool
            for name in sorted(self.sources, reverse=True)
            for tool in _tools_of(self.sources[name])
        }

    @cached_property
    def shadowed(self) -> tuple[CatalogTool, ...]:
        return tuple(
            tool
            for name in sorted(self.sources)
            for tool in _tools_of(self.sources[name])
            if self.tools[tool.spec.name].source != tool.source
        )

    def find(self, tool: str) -> CatalogTool | None:
        return self.tools.get(tool)

    def specs(self, names: Iterable[str] | None = None) -> tuple[ToolSpec, ...]:
        """In order of their names; of those named, or all. An unknown name is left out."""
        chosen = self.tools if names is None else set(names)
        return tuple(self.tools[name].spec for name in sorted(self.tools) if name in chosen)


def tools_hash(tools: Iterable[ToolSpec]) -> str:
    """Changes when any tool that the model is offered changes in anything; the order does not matter."""
    return sha256("\n".join(sorted(tool.content_hash for tool in tools)).encode()).hexdigest()


def _tools_of(entry: CatalogSource) -> Iterable[CatalogTool]:
    return (CatalogTool(spec=spec, pool=entry.pool, source=entry.source) for spec in entry.tools)


def _canonical(value: JsonValue) -> bytes:
    return dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
