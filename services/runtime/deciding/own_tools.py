"""Tools that the runtime runs itself, in the pool `thread`: each is a pure function of the thread's state.

Such a call has no executor, so its dispatch is its claim as well. From then on the tool's function decides what
happens, until an event settles the call: events of this thread, events of other threads, and what to look up. A
function of the state survives a takeover without further ado, as everything that is decided here does.

Each runtime puts the same entry into the tool catalog.
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
"""Decides what to do about a running call. If `turn.cancelling` is set, the function settles the call within the grace
time that it allows itself.
"""
WhyRefused: TypeAlias = Callable[[ThreadState, Turn, Call, Limits, World], tuple[str, str] | None]
"""Returns the policy that refuses a proposed call, and the reason in words for the model; None if the call is fine. Its
arguments fit the tool's schema already.
"""


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
"""The tools by name. A name is never reused: calls may be running while runtimes of two versions take turns."""

ENTRY: Final = CatalogSource(
    source=THREAD_SOURCE, pool=THREAD_POOL, tools=tuple(tool.spec for tool in OWN_TOOLS.values())
)


def own_tool(tool: CatalogTool | None) -> OwnTool | None:
    return OWN_TOOLS.get(tool.spec.name) if tool is not None and tool.pool == THREAD_POOL else None


def own_tool_of(call: Call) -> OwnTool | None:
    """Return the tool of a dispatched call that a runtime runs; None for a call of an executor.

    None, too, for a tool that only a newer runtime knows: its call waits for that runtime.
    """
    return OWN_TOOLS.get(call.tool) if call.pool == THREAD_POOL else None
