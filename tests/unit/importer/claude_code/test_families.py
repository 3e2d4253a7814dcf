"""Sub-agents of Claude Code, imported beside the sessions that began them: on a log and a store in memory."""

from pathlib import Path

from schemas.events import Lineage
from schemas.ids import call_id
from tests.support.sessions.import_family import Family
from tests.support.sessions.made import write_nested_agents
from tests.support.worlds.imports import ThreadLog


def lineage_of(log: ThreadLog) -> Lineage:
    assert log.state.lineage is not None
    return log.state.lineage


async def test_a_sub_agent_of_a_sub_agent_is_the_child_of_that_one(tmp_path: Path) -> None:
    family = Family("claude-code")
    session, middle, last = write_nested_agents(tmp_path)
    top = family.log(await family.take(session))
    child = family.log(await family.take(middle))
    family.begin()
    grandchild = family.log(await family.take(last))
    assert (lineage_of(child).parent, lineage_of(child).depth) == (top.key.thread, 1)
    found = lineage_of(grandchild)
    assert (found.parent, found.call, found.depth) == (child.key.thread, call_id(1, 1, 0), 2)


async def test_it_waits_within_its_import_for_the_one_that_began_it(tmp_path: Path) -> None:
    family = Family("claude-code")
    session, middle, last = write_nested_agents(tmp_path)
    family.log(await family.take(session))
    assert (await family.take(last)).waits_for == session.stem
    child = family.log(await family.take(middle))
    assert lineage_of(family.log(await family.take(last))).parent == child.key.thread
