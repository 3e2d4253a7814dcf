"""Snapshots of one session, the second after an import of the first that died at any of its events."""

import pytest

from schemas.events import AnswerText, Confirmed, StepFinished, TextItem, TurnEnded, Usage
from schemas.state import CHAIN_START
from services.importer.model import Header, Input, Origin, Piece, Step, Turn
from tests.support.worlds.imports import ImportWorld, ThreadLog, ended_turns, shown

HERE = Origin(line=1)
HEADER = Header(tool="codex", source_id="s1", origin=HERE)


def step(name: str, tokens: int) -> Step:
    return Step(source_id=name, origin=HERE, items=(AnswerText(text=name),), usage=Usage(input_tokens=tokens))


def turn(name: str, *steps: Step, is_open: bool = False) -> Turn:
    return Turn(
        source_id=name,
        inputs=(Input(source_id=f"{name} 0", items=(TextItem(text=name),), origin=HERE),),
        pieces=steps,
        outcome="interrupted" if is_open else "completed",
        end_evidence="recorded",
        origin=HERE,
        is_open=is_open,
    )


PART: list[Piece] = [HEADER, turn("one", step("a", 3), is_open=True)]
WHOLE: list[Piece] = [HEADER, turn("one", step("a", 3), step("b", 4)), turn("two", step("c", 5))]


def tokens(log: ThreadLog) -> int:
    applied = [record.data for record, verdict, _ in log.records if verdict.effect == "applied"]
    return sum(data.usage.input_tokens for data in applied if isinstance(data, StepFinished))


@pytest.mark.parametrize("stop_after", range(12))
def test_a_turn_that_was_told_in_part_is_told_again_and_counts_once(stop_after: int) -> None:
    at_once, world = ImportWorld(), ImportWorld()
    whole = at_once.run(WHOLE)
    world.run(PART, "part", stop_after)
    log = world.run(WHOLE, "whole")
    assert (shown(log), ended_turns(log)) == (shown(whole), ended_turns(whole))
    assert tokens(log) == tokens(whole) == 12


def test_ends_confirm_what_was_read_alone() -> None:
    """Others may append between two events of an import, so that no position that it counted ahead need hold."""
    world = ImportWorld()
    first = world.run(PART, "part")
    read = Confirmed(seq=first.state.seq, chain=first.state.chain)
    log = world.run(WHOLE, "whole")
    ends = [record.data.confirmed for record, _, _ in log.records if isinstance(record.data, TurnEnded)]
    assert ends == [Confirmed(seq=0, chain=CHAIN_START), read, read]
