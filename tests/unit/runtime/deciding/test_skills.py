"""What a model is told of skills, and what is recorded before one is loaded."""

import pytest

from schemas.config import Config, Skill
from schemas.events import ProposedCall, SkillLoaded, ToolCallDenied, ToolCallDispatched
from schemas.state import LoadedSkill
from schemas.tools import Catalog, CatalogSource, ToolSpec
from services.runtime.deciding.calls import offered_tools
from services.runtime.deciding.decisions import Append
from services.runtime.deciding.skills import HEADING, instructions
from tests.support.recorded.deciding import SHELL, decided, with_calls
from tests.support.recorded.histories import History, proposed

REVIEW = Skill(name="review", version="1.0", sha256="a" * 64, description="Reviewing changes.")
NEWER = Skill(name="review", version="2.0", sha256="b" * 64)
LOADER = ToolSpec(
    name="load_skill",
    input_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    effect="pure",
    parallel=True,
)
CATALOG = Catalog({"builtin": CatalogSource(source="builtin", pool="builtin", tools=(SHELL, LOADER))})


def load(index: int = 0, name: str = "review") -> ProposedCall:
    return proposed(index, "load_skill", {"name": name})


def rested(history: History, **fields: object) -> None:
    for _ in range(20):
        appends = [each for each in decided(history, **{"catalog": CATALOG, **fields}) if isinstance(each, Append)]
        if not appends:
            return
        for append in appends:
            history.apply(append.event, append.actor)
    raise AssertionError("it does not come to rest")


def events(history: History, kind: type) -> list[object]:
    return [made.record.data for made in history.encoded if isinstance(made.record.data, kind)]


@pytest.mark.parametrize(
    ("own", "skills", "tools", "told"),
    [
        ("Be brief.", (), (LOADER,), "Be brief."),
        (None, (), (LOADER,), None),
        ("Be brief.", (REVIEW,), (SHELL,), "Be brief."),
        ("Be brief.", (REVIEW,), (LOADER,), f"Be brief.\n\n{HEADING}\n- review (1.0): Reviewing changes."),
        (None, (REVIEW, NEWER), (LOADER,), f"{HEADING}\n- review (1.0): Reviewing changes.\n- review (2.0)"),
    ],
)
def test_the_instructions_name_what_can_be_loaded(own, skills, tools, told) -> None:
    assert instructions(Config(model="m", instructions=own, skills=skills), tools) == told


def test_a_thread_without_skills_is_not_offered_to_load_any() -> None:
    assert [tool.name for tool in offered_tools(CATALOG, Config(model="m"))] == ["shell"]
    assert [tool.name for tool in offered_tools(CATALOG, Config(model="m", skills=(REVIEW,)))] == [
        "load_skill",
        "shell",
    ]


def test_the_version_is_on_record_before_the_call_is_dispatched() -> None:
    history = with_calls(load(), skills=(REVIEW,))
    rested(history)
    kinds = [made.record.kind for made in history.encoded]
    assert kinds.index("skill.loaded") < kinds.index("tool_call.dispatched")
    assert events(history, SkillLoaded) == [SkillLoaded(name="review", skill_version="1.0", sha256="a" * 64)]
    assert history.state.skills == {"review": LoadedSkill("1.0", "a" * 64)}


def test_calls_that_load_the_same_record_it_once() -> None:
    history = with_calls(load(0), load(1), skills=(REVIEW,))
    rested(history)
    assert len(events(history, SkillLoaded)) == 1
    assert len(events(history, ToolCallDispatched)) == 2


def test_what_is_loaded_is_not_recorded_again_unless_it_is_another_version() -> None:
    history = with_calls(load(), skills=(REVIEW,))
    history.apply(SkillLoaded(name="review", skill_version="1.0", sha256="a" * 64))
    rested(history)
    assert len(events(history, SkillLoaded)) == 1
    newer = with_calls(load(), skills=(REVIEW, NEWER))
    newer.apply(SkillLoaded(name="review", skill_version="1.0", sha256="a" * 64))
    rested(newer)
    assert newer.state.skills == {"review": LoadedSkill("2.0", "b" * 64)}


def test_a_skill_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    history = with_calls(load(name="reviews"), skills=(REVIEW,))
    rested(history)
    (denied,) = events(history, ToolCallDenied)
    assert isinstance(denied, ToolCallDenied)
    assert (denied.by, denied.reason) == (
        "policy:arguments",
        "There is no skill named 'reviews'. The skills are: review.",
    )
    assert not events(history, SkillLoaded)


def test_another_tool_of_that_name_is_no_loader() -> None:
    catalog = Catalog({"crm": CatalogSource(source="crm", pool="client", tools=(LOADER,))})
    history = with_calls(load(name="x"), skills=(REVIEW,))
    rested(history, catalog=catalog)
    assert events(history, ToolCallDispatched)
    assert not events(history, SkillLoaded)
