"""Random sessions: every event of an import takes effect, and imports of snapshots come to the import of the whole."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import AnswerText, Failure, InputSubmitted, TextItem, Usage
from services.importer.model import (
    Call,
    Compaction,
    Discarded,
    Header,
    Input,
    Origin,
    Piece,
    Plan,
    PlanTask,
    Rollback,
    Step,
    Title,
    Turn,
)
from tests.support.worlds.imports import ImportWorld, ended_turns, shown, unknown

HERE = Origin(1)
TEXTS = st.sampled_from(["yes", "no", "a\x00b", "lone \ud800", "line\u2028separator", ""])


@st.composite
def calls(draw: st.DrawFn, name: str) -> Call:
    end = draw(st.sampled_from(["succeeded", "failed", "timed_out", "cancelled", "denied", "unknown"]))
    return Call(
        source_id=name,
        tool=draw(st.sampled_from(["shell", "Bash"])),
        args={"command": draw(TEXTS), "big": draw(st.sampled_from([1, 2**60]))},
        end=end,  # type: ignore[arg-type]  # one of them
        origin=HERE,
        result=draw(TEXTS) if end not in {"unknown", "denied"} else None,
        started_ms=draw(st.none() | st.integers(0, 100)),
        ended_ms=draw(st.none() | st.integers(0, 100)),
    )


@st.composite
def steps(draw: st.DrawFn, name: str) -> Step:
    if draw(st.integers(0, 5)) == 0:
        return Step(name, HERE, error=Failure(kind="api", message=draw(TEXTS)))
    made = tuple([draw(calls(f"{name}-{index}")) for index in range(draw(st.integers(0, 2)))])
    answer = (AnswerText(text=draw(TEXTS)),)
    return Step(name, HERE, items=answer, calls=made, usage=Usage(input_tokens=1), response_id=name)


def plan() -> st.SearchStrategy[Plan]:
    statuses = st.sampled_from(["pending", "running", "succeeded", "failed", "cancelled"])
    tasks = st.lists(st.builds(PlanTask, st.sampled_from("abc"), TEXTS, statuses), max_size=3)
    return tasks.map(lambda found: Plan(tuple(found), HERE))


@st.composite
def turns(draw: st.DrawFn, name: str) -> Turn:
    pieces: list[Step | Compaction | Plan | Input] = []
    for index in range(draw(st.integers(0, 4))):
        here = f"{name}.{index}"
        kind = draw(st.integers(0, 9))
        if kind == 0:
            pieces.append(Input(f"steer {here}", (TextItem(text=here),), HERE, steers=True))
        elif kind == 1:
            pieces.append(Compaction(f"sum {here}", HERE))
        elif kind == 2:
            pieces.append(draw(plan()))
        else:
            pieces.append(draw(steps(here)))
    began = draw(st.integers(1, 2))
    inputs = tuple([Input(f"{name} {n}", (TextItem(text=draw(TEXTS)),), HERE) for n in range(began)])
    outcome = draw(st.sampled_from(["completed", "aborted", "failed", "interrupted"]))
    return Turn(name, inputs, tuple(pieces), outcome, "recorded", HERE)  # type: ignore[arg-type]  # one of them


@st.composite
def sessions(draw: st.DrawFn) -> list[Piece]:
    pieces: list[Piece] = [Header("codex", "s1", HERE, title=draw(st.none() | st.just("t")))]
    for number in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 3)) == 0:
            between: list[st.SearchStrategy[Piece]] = [
                st.just(Compaction(f"sum {number}", HERE)),
                plan(),
                st.integers(1, 3).map(lambda count: Rollback(count, HERE)),
                st.just(Title("other", HERE)),
                st.just(Discarded(Input(f"dropped {number}", (TextItem(text="x"),), HERE), "never taken")),
            ]
            pieces.append(draw(st.one_of(between)))
        pieces.append(draw(turns(f"turn {number}")))
    return pieces


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    """An earlier one, which may end within a turn, and the whole."""
    whole = draw(sessions())
    length = draw(st.integers(1, len(whole)))
    part = whole[:length]
    last = part[-1]
    if isinstance(last, Turn) and draw(st.booleans()):
        kept = draw(st.integers(0, len(last.pieces)))
        pieces = list(last.pieces[:kept])
        if pieces and isinstance(pieces[-1], Step) and pieces[-1].calls:
            calls_cut = tuple([replace(call, end="unknown", result=None) for call in pieces[-1].calls])
            pieces[-1] = replace(pieces[-1], calls=calls_cut)
        part = [*part[:-1], replace(last, pieces=tuple(pieces), outcome="interrupted", is_open=True)]
    return part, whole


def came_to(world: ImportWorld, pieces: list[Piece]) -> tuple[object, ...]:
    log = world.log(world.key_of(pieces[0]))  # type: ignore[arg-type]  # a header
    return ended_turns(log), shown(log), log.state.status, unknown(log)


@given(sessions())
def test_every_event_takes_effect_and_importing_again_appends_nothing(pieces: list[Piece]) -> None:
    world = ImportWorld()
    log = world.run(pieces)
    assert log.state.status == "active" and not log.state.live and log.state.turn is None and not log.state.queue
    assert len(ended_turns(log)) == sum(isinstance(piece, Turn) for piece in pieces)
    count = len(log.records)
    world.run(pieces)
    world.run(pieces, "the same, elsewhere")
    assert len(log.records) == count


@given(snapshots())
def test_a_snapshot_and_then_the_whole_come_to_the_whole(both: tuple[list[Piece], list[Piece]]) -> None:
    part, whole = both
    at_once, one_by_one = ImportWorld(), ImportWorld()
    at_once.run(whole)
    one_by_one.run(part, "part")
    one_by_one.run(whole, "whole")
    assert came_to(one_by_one, whole) == came_to(at_once, whole)
    log = one_by_one.log(one_by_one.key_of(whole[0]))  # type: ignore[arg-type]  # a header
    count = len(log.records)
    one_by_one.run(part, "part")
    one_by_one.run(whole, "whole")
    assert len(log.records) == count


@given(sessions(), st.integers(0, 60), st.integers(0, 60))
def test_an_import_that_died_goes_on_where_it_stopped(pieces: list[Piece], first: int, second: int) -> None:
    at_once, interrupted = ImportWorld(), ImportWorld()
    at_once.run(pieces)
    interrupted.run(pieces, stop_after=first)
    interrupted.run(pieces, stop_after=second)
    interrupted.run(pieces)
    assert came_to(interrupted, pieces) == came_to(at_once, pieces)
    ids = [record.id for log in interrupted.threads.values() for record, _, _ in log.records]
    assert len(ids) == len(set(ids))


@given(snapshots(), st.integers(0, 60))
def test_a_longer_snapshot_goes_on_after_an_import_that_died(
    both: tuple[list[Piece], list[Piece]], stop_after: int
) -> None:
    part, whole = both
    at_once, world = ImportWorld(), ImportWorld()
    at_once.run(whole)
    world.run(part, "part", stop_after)
    world.run(whole, "whole")
    assert came_to(world, whole) == came_to(at_once, whole)


@given(sessions())
@settings(max_examples=30)
def test_what_went_on_live_is_never_imported_into(pieces: list[Piece]) -> None:
    world = ImportWorld()
    log = world.run(pieces[:2] if isinstance(pieces[1], Turn) else pieces)
    world.live(log, InputSubmitted(input="live", items=(TextItem(text="go on"),)))
    assert log.state.live
    count = len(log.records)
    world.run(pieces, "longer")
    world.run(pieces, "longer still")
    assert len(log.records) == count
