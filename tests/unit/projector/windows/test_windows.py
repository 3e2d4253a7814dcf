"""Cells are what the effects come to: in any batching, with copies, with crashes and with workers that overtake."""

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.other_topics.effects import Facts, ThreadEffect, decode_effect, encode_effect
from schemas.other_topics.windows import MINUTE_MS, OTHER
from services.chassis.sketch import bin_of, quantiles
from services.projector.applying.effects import effect_row
from services.projector.projections.events import event_row
from services.projector.windows.windows import (
    Cell,
    CellKey,
    GapError,
    Position,
    Rules,
    Taken,
    Windows,
    count_effect,
    place,
    take,
)
from tests.support.recorded.walks import CHOICES, Choice, walk
from tests.unit.projector.projections.test_facts import applied

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 1_790_000_000_000
RULES = Rules(late_ms=DAY_MS, ahead_ms=300_000, names_max=3, cells_max=2)


class Store:
    """What is written, all at once."""

    def __init__(self) -> None:
        self.cells: dict[CellKey, Cell] = {}
        self.positions: dict[int, Position] = {}

    def load(self, keys: Iterable[CellKey]) -> dict[CellKey, Cell]:
        return {key: self.cells[key].copy() for key in keys if key in self.cells}

    def write(self, cells: Mapping[CellKey, Cell], moved: Mapping[int, tuple[Position, Position]]) -> bool:
        if any(self.positions.get(partition, Position()) != before for partition, (before, _) in moved.items()):
            return False
        self.cells |= {key: cell.copy() for key, cell in cells.items()}
        self.positions |= {partition: after for partition, (_, after) in moved.items()}
        return True


def count(windows: Windows, store: Store, taken: Sequence[Taken], *, crash: bool = False) -> bool:
    plan = windows.plan(taken)
    cells = windows.count(plan, store.load(windows.missing(plan)))
    if crash:
        return False
    if not store.write(cells, plan.moved):
        return False
    windows.written(plan, cells)
    return True


def held(store: Store, partitions: Iterable[int] = (0, 1)) -> Windows:
    windows = Windows(RULES)
    windows.hold(store.positions, partitions)
    return windows


def random_effects(rng: random.Random, number: int) -> list[ThreadEffect]:
    """Of one partition, in order: times mostly go on, some are hours or days behind, some ahead of every clock."""
    effects = []
    time_ms = NOW_MS
    for offset in range(number):
        time_ms += rng.randrange(60_000)
        shown_ms = time_ms - rng.choice([0, 0, 0, 0, 90_000, 5 * HOUR_MS, 30 * HOUR_MS])
        if rng.random() < 0.02:
            shown_ms = time_ms + 400 * DAY_MS
        facts = rng.choice(
            [
                None,
                Facts(inputs=1),
                Facts(
                    turn=1, turn_ms=rng.randrange(90_000), outcome=rng.choice(["completed", "failed"]), reason="limit"
                ),
                Facts(tool=f"t{rng.randrange(5)}", tool_ms=rng.randrange(5_000), outcome="succeeded"),
                Facts(model="m", input_tokens=rng.randrange(100), output_tokens=3),
                Facts(waiting=rng.choice([-1, 1])),
                Facts(unknown=rng.choice([-1, 1])),
            ]
        )
        effects.append(
            ThreadEffect(
                tenant=f"tenant-{rng.randrange(2)}",
                thread="t",
                seq=offset + 1,
                type="x.y",
                effect="applied",
                partition=0,
                offset=offset * 2,
                id="e",
                time_ms=shown_ms,
                facts=facts,
            )
        )
    return effects


def topic_of(rng: random.Random, effects: Sequence[ThreadEffect]) -> list[Taken]:
    """As the relay writes it: again and again it starts from a position that is behind."""
    topic: list[Taken] = []
    at = 0
    while at < len(effects):
        for effect in effects[at : at + rng.randrange(1, 20)]:
            topic.append(Taken(0, len(topic), effect.time_ms + rng.randrange(1_000), effect))
            at += 1
        if rng.random() < 0.3:
            at = max(0, at - rng.randrange(6))
        if rng.random() < 0.1:
            topic.append(Taken(0, len(topic), 0, None))
    # Published when everything of it had happened: clocks that run ahead are seen for what they are.
    return [taken._replace(published_ms=NOW_MS + 40 * HOUR_MS) for taken in topic]


def straight(topic: Sequence[Taken]) -> Store:
    store = Store()
    windows = held(store)
    for taken in topic:
        assert count(windows, store, [taken])
    return store


@given(st.integers(0, 2**32))
def test_cells_do_not_depend_on_batches_crashes_or_who_counts(seed: int) -> None:
    rng = random.Random(seed)
    topic = topic_of(rng, random_effects(rng, 60))
    expected = straight(topic)
    store = Store()
    workers = [held(store), held(store)]
    while store.positions.get(0, Position()).next_offset < len(topic):
        windows = rng.choice(workers)
        start = windows.positions()[0]
        batch = topic[start : start + rng.randrange(1, 25)]
        if not count(windows, store, batch, crash=rng.random() < 0.2):
            workers[workers.index(windows)] = held(store)  # overtaken, or killed: it starts again
        if rng.random() < 0.05:  # everything is counted once more, on the cells that there are
            store.positions.clear()
            workers = [held(store), held(store)]
    assert store.cells == expected.cells


@given(st.integers(0, 2**32))
def test_the_standing_of_calls_is_the_sum_of_all_that_ever_came(seed: int) -> None:
    rng = random.Random(seed)
    effects = random_effects(rng, 60)
    store = straight(topic_of(rng, effects))
    for name in ("waiting", "unknown"):
        wanted = sum(getattr(effect.facts, name) or 0 for effect in effects if effect.facts is not None)
        assert sum(getattr(cell, name) for cell in store.cells.values()) == wanted


@given(st.lists(CHOICES, min_size=1, max_size=60))
def test_counts_of_any_history_are_those_of_its_facts(choices: list[Choice]) -> None:
    said = applied(walk(choices))
    store, topic = Store(), []
    for number, one in enumerate(said):
        made = encode_effect(effect_row(event_row(one, 0, b"{}")))
        topic.append(take(0, number, made.value, one.record.time_ms))
    assert count(held(store), store, topic)
    total: dict[str, int] = {}
    for cell in store.cells.values():
        for name, value in cell.counts.items():
            total[name] = total.get(name, 0) + value
    after = said[-1].after
    ended = sum(value for name, value in total.items() if name.startswith("turns/"))
    assert ended == after.last_turn - (after.turn is not None)
    assert ended == sum(value for name, value in total.items() if name.startswith("turn_times/"))
    effects = [decode_effect(encode_effect(effect_row(event_row(one, 0, b"{}"))).value) for one in said]
    assert total.get("inputs", 0) == sum(1 for one in effects if one is not None and one.facts and one.facts.inputs)


def effect(offset: int, *, time_ms: int = NOW_MS, **facts: object) -> ThreadEffect:
    return ThreadEffect(
        tenant="acme",
        thread="t",
        seq=1,
        type="x.y",
        effect="applied",
        partition=0,
        offset=offset,
        id="e",
        time_ms=time_ms,
        facts=Facts.model_validate(facts),
    )


def test_an_hour_late_is_counted_in_its_minute_and_two_days_are_not() -> None:
    store, windows = Store(), Windows(RULES)
    windows.hold({}, [0])
    late = NOW_MS - 2 * DAY_MS
    topic = [effect(0, inputs=1), effect(1, time_ms=NOW_MS - HOUR_MS, inputs=1), effect(2, time_ms=late, inputs=1)]
    topic.append(effect(3, time_ms=late, waiting=1))
    plan = windows.plan([Taken(0, number, NOW_MS, one) for number, one in enumerate(topic)])
    assert (plan.counts.effects, plan.counts.late) == (4, 2)
    cells = windows.count(plan, {})
    store.write(cells, plan.moved)
    by_minute = {key.minute_ms: cell for key, cell in store.cells.items()}
    minute = NOW_MS // MINUTE_MS * MINUTE_MS
    assert by_minute[minute].counts == {"inputs": 1}
    assert by_minute[minute - HOUR_MS].counts == {"inputs": 1}
    first_open = (NOW_MS - DAY_MS) // MINUTE_MS * MINUTE_MS
    assert (by_minute[first_open].counts, by_minute[first_open].waiting) == ({}, 1)
    assert len(by_minute) == 3


def test_a_clock_that_runs_ahead_makes_nothing_late() -> None:
    windows = Windows(RULES)
    windows.hold({}, [0])
    topic = [effect(0, time_ms=NOW_MS + 900 * DAY_MS, inputs=1), effect(1, inputs=1)]
    plan = windows.plan([Taken(0, number, NOW_MS, one) for number, one in enumerate(topic)])
    assert plan.counts.late == 0
    assert windows.watermark_ms() == 0
    windows.written(plan, {})
    assert windows.watermark_ms() == NOW_MS + RULES.ahead_ms


def test_names_beyond_the_limit_are_others() -> None:
    cell = Cell()
    for number in range(6):
        count_effect(cell, effect(number, tool=f"t{number}", tool_ms=10, outcome="failed"), 3, is_late=False)
    assert {name: value for name, value in cell.counts.items() if name.startswith("tool_calls/")} == {
        "tool_calls/t0": 1,
        "tool_calls/t1": 1,
        "tool_calls/t2": 1,
        f"tool_calls/{OTHER}": 3,
    }
    assert cell.counts["failures/tool_call/failed"] == 6


def test_a_lost_attempt_is_a_failure_and_a_record_without_facts_is_nothing() -> None:
    lost = effect(0).model_copy(update={"type": "tool_call.lost", "facts": None})
    cell = Cell()
    count_effect(cell, lost, 3, is_late=False)
    count_effect(cell, lost.model_copy(update={"offset": 1, "effect": "superseded"}), 3, is_late=False)
    assert cell.counts == {"failures/tool_call/lost": 1}


def test_a_failed_model_call_and_tokens_count_by_kind_and_model() -> None:
    cell = Cell()
    count_effect(cell, effect(0, error_kind="overloaded"), 3, is_late=False)
    count_effect(cell, effect(1, model="m", input_tokens=5, output_tokens=0, cached_tokens=2), 3, is_late=False)
    assert cell.counts == {"failures/step/overloaded": 1, "responses/m": 1, "input_tokens/m": 5, "cached_tokens/m": 2}


def test_what_comes_again_is_not_counted_again() -> None:
    cell = Cell()
    count_effect(cell, effect(4, inputs=1), 3, is_late=False)
    count_effect(cell, effect(4, inputs=1), 3, is_late=False)
    count_effect(cell, effect(3, inputs=1), 3, is_late=False)
    assert (cell.counted_to, cell.counts) == (4, {"inputs": 1})


def test_what_is_missing_is_an_error_and_what_is_fetched_twice_is_not() -> None:
    windows = Windows(RULES)
    windows.hold({0: Position(5, 0, 0)}, [0])
    assert windows.plan([Taken(0, 4, 0, None), Taken(1, 9, 0, None), Taken(0, 5, 0, None)]).counts.unreadable == 1
    with pytest.raises(GapError):
        windows.plan([Taken(0, 6, 0, None)])


def test_what_was_never_counted_begins_where_the_topic_does() -> None:
    """Not at what was under way to whom counted it before all was dropped."""
    windows = Windows(RULES)
    windows.hold({}, [0], {0: 3})
    with pytest.raises(GapError):
        windows.plan([Taken(0, 4, 0, None)])
    assert windows.plan([Taken(0, 3, 0, None)]).moved[0][1].next_offset == 4


def test_an_effect_of_another_partition_is_none_of_ours() -> None:
    made = encode_effect(effect_row(event_row(applied(walk([(13, 0, 0)]))[0], 7, b"{}")))
    assert take(7, 0, made.value, 0).effect is not None
    assert take(8, 0, made.value, 0).effect is None
    assert take(8, 0, b"?", 0).effect is None


def test_a_minute_begins_at_its_beginning() -> None:
    assert place(NOW_MS, NOW_MS, DAY_MS) == (NOW_MS // MINUTE_MS * MINUTE_MS, False)
    assert place(NOW_MS - DAY_MS, NOW_MS, DAY_MS).is_late is False
    assert place(NOW_MS - DAY_MS - MINUTE_MS, NOW_MS, DAY_MS).is_late is True


@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=200), st.integers(1, 5))
def test_quantiles_of_merged_sketches_are_those_of_all_values(values: list[int], parts: int) -> None:
    bins: dict[str, int] = {}
    for part in range(parts):
        of_part: dict[str, int] = {}
        for value in values[part::parts]:
            of_part[bin_of(value)] = of_part.get(bin_of(value), 0) + 1
        for name, number in of_part.items():
            bins[name] = bins.get(name, 0) + number
    found = quantiles(bins, [0.5, 0.99, 1.0])
    assert found is not None
    ordered = sorted(values)
    for share, value in zip([0.5, 0.99, 1.0], found, strict=True):
        exact = ordered[int(share * (len(ordered) - 1))]
        assert abs(value - exact) <= 0.0101 * exact
    assert quantiles({}, [0.5]) is None
