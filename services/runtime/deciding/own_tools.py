"""Tools that the runtime runs itself, in the pool `thread`: each is a pure function of the thread's state.

Dispatching such a call is its claim. From then on its function says what it does, until an event settles it: events of
its own thread, of other threads, and what to look up. Each runtime puts the same entry into the tool catalog.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from schemas.ids import ThreadKey
from schemas.state import Call, ThreadState, Turn
from schemas.tools import THREAD_POOL, THREAD_SOURCE, CatalogSource, CatalogTool, ToolSpec
from services.runtime.deciding import children, plans
from services.runtime.deciding.decisions import Decisions, World
from services.runtime.deciding.limits import Limits

Advance: TypeAlias = Callable[[ThreadKey, ThreadState, Turn, Call, int, Limits, World], Decisions]
"""What to do about a running call, at this time. `turn.cancelling` says that it has to come to an end: the function
settles the call within the grace time that it allows itself.
"""
WhyRefused: TypeAlias = Callable[[ThreadState, Turn, Call, Limits, World], tuple[str, str] | None]
"""The policy that refuses a proposed call whose arguments fit the tool's schema, and why, in words for the model."""


@dataclass(frozen=True, slots=True)
class OwnTool:
    spec: ToolSpec
    advance: Advance
    why_refused: WhyRefused


OWN_TOOLS: Final[Mapping[str, OwnTool]] = {
    tool.spec.name: tool
    for tool in (
        OwnTool(children.SPAWN_THREAD, children.advance, children.why_refused),
        OwnTool(plans.UPDATE_PLAN, plans.advance_call, plans.why_refused),
    )
}
"""Each name is the tool's for ever: calls of it may be running while runtimes are replaced."""

ENTRY: Final = CatalogSource(
    source=THREAD_SOURCE, pool=THREAD_POOL, tools=tuple(tool.spec for tool in OWN_TOOLS.values())
)


def own_tool(tool: CatalogTool | None) -> OwnTool | None:
    return OWN_TOOLS.get(tool.spec.name) if tool is not None and tool.pool == THREAD_POOL else None


def own_tool_of(call: Call) -> OwnTool | None:
    """Of a dispatched call. None also for a tool that only a newer runtime knows: its call waits for that."""
    return OWN_TOOLS.get(call.tool) if call.pool == THREAD_POOL else None
