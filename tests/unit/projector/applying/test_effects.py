"""What the relay decides: whatever fails, comes twice or does not fit, the first copies of effects are all, in order."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import canonical_json
from schemas.envelope import from_headers
from schemas.ids import EventId
from schemas.other_topics.effects import EffectRow, Facts, ThreadEffect, decode_effect, encode_effect
from services.projector.applying.effects import FromMemory, FromStore, PartitionRelay, effect_row
from services.projector.projections.events import event_row
from tests.support.recorded.walks import CHOICES, Choice, walk
from tests.unit.projector.projections.test_facts import applied

ROW = EffectRow("acme", "t-1", 1, 0, 0, "e", "input.submitted", 1_000, "applied", None, None)


def rows_between(from_offset: int, to_offset: int, gaps: set[int]) -> list[EffectRow]:
    """Of a log in which some records have no seq."""
    return [ROW._replace(offset=offset) for offset in range(from_offset, to_offset) if offset not in gaps]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 12)),
        st.tuples(st.just("send"), st.integers(1, 8)),
        st.tuples(st.just("fail"), st.integers(1, 8)),
        st.tuples(st.just("short"), st.integers(1, 8)),
        st.tuples(st.just("while_sending"), st.integers(1, 8)),
        st.tuples(st.just("restart"), st.integers(0, 6)),
        st.tuples(st.just("again"), st.integers(1, 8)),
    ),
    max_size=60,
)


@given(STEPS, st.sets(st.integers(0, 60)), st.integers(0, 9), st.integers(0, 5))
def test_first_copies_are_complete_and_in_order(
    steps: list[tuple[str, int]], gaps: set[int], held_max: int, start: int
) -> None:
    relay = PartitionRelay(start, start, held_max)
    committed, topic = start, list[int]()

    def commit(count: int) -> None:
        nonlocal committed
        relay.commit(committed, committed + count, rows_between(committed, committed + count, gaps))
        committed += count

    def send(most: int, *, is_short: bool = False, meanwhile: int = 0) -> None:
        chunk = relay.next(most)
        if meanwhile:
            commit(meanwhile)
        match chunk:
            case FromMemory(rows, to_offset):
                assert len(rows) <= most
            case FromStore(from_offset, to_offset):
                assert from_offset == relay.published and to_offset <= committed
                if is_short:  # the database lost its last commits
                    to_offset = from_offset + (to_offset - from_offset) // 2
                rows = rows_between(from_offset, to_offset, gaps)
            case None:
                return
        topic.extend(row.offset for row in rows)
        relay.sent(to_offset)

    for step, number in steps:
        match step:
            case "commit":
                commit(number)
            case "send":
                send(number)
            case "short":
                send(number, is_short=True)
            case "while_sending":
                send(number, meanwhile=number)
            case "fail":  # perhaps it arrived all the same
                chunk = relay.next(number)
                if isinstance(chunk, FromMemory):
                    topic.extend(row.offset for row in chunk.rows)
            case "again":  # a projector that starts again commits what is committed
                relay.commit(
                    max(start, committed - number), committed, rows_between(committed - number, committed, gaps)
                )
            case "restart":  # with a stored position that is behind
                relay = PartitionRelay(max(start, relay.published - number), committed, held_max)
        assert len(relay.held) <= held_max
    while relay.behind:
        send(5)
    first = list(dict.fromkeys(topic))
    assert first == [row.offset for row in rows_between(start, committed, gaps)]
    # What consumers do: skip what is not beyond the last.
    seen, last = list[int](), -1
    for offset in topic:
        if offset > last:
            seen.append(offset)
            last = offset
    assert seen == first


def test_who_keeps_up_reads_nothing_again() -> None:
    relay = PartitionRelay(0, 0, 100)
    for number in range(20):
        relay.commit(number * 3, number * 3 + 3, rows_between(number * 3, number * 3 + 3, set()))
        chunk = relay.next(100)
        assert isinstance(chunk, FromMemory)
        relay.sent(chunk.to_offset)
    assert relay.behind == 0


def test_who_was_behind_keeps_up_again_though_there_is_always_more() -> None:
    relay = PartitionRelay(0, 10, 100)
    chunk = relay.next(100)
    assert chunk == FromStore(0, 10)
    relay.commit(10, 13, rows_between(10, 13, set()))  # while that is on its way
    relay.sent(10)
    assert isinstance(relay.next(100), FromMemory)


@given(st.lists(CHOICES, min_size=1, max_size=40))
def test_effects_are_the_same_bytes_whoever_makes_them(choices: list[Choice]) -> None:
    for one in applied(walk(choices)):
        row = effect_row(event_row(one, 3, b"{}"))
        # As jsonb gives its keys back: the shorter first.
        again = row
        if row.facts is not None:
            facts = Facts.model_validate_json(row.facts).model_dump(exclude_none=True)
            names = sorted(facts, key=lambda name: (len(name), name))
            again = row._replace(facts=_spaced({name: facts[name] for name in names}))
        made = encode_effect(row)
        assert encode_effect(again) == made
        read = decode_effect(made.value)
        assert read is not None
        assert made.value == canonical_json(read.model_dump(mode="json", exclude_none=True))
        assert (read.partition, read.offset, read.seq) == (3, one.record.offset, one.after.seq)
        assert made.key == one.record.key.to_bytes()
        headers = dict(made.headers)
        envelope = from_headers(EventId("e"), headers)
        assert headers["ce_id"] == f"3-{one.record.offset}".encode()
        assert (envelope.time_ms, envelope.cause) == (one.record.time_ms, one.record.id)


def _spaced(facts: dict[str, object]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {_text(value)}' for name, value in facts.items()) + "}").encode()


def _text(value: object) -> str:
    return canonical_json(value).decode()  # type: ignore[arg-type]


def test_what_is_no_effect_is_none() -> None:
    assert decode_effect(None) is None
    assert decode_effect(b"{}") is None
    assert decode_effect(b"\xff") is None


def test_a_field_that_is_not_known_is_no_reason_to_refuse() -> None:
    value = encode_effect(ROW).value[:-1] + b',"zone":1}'
    assert isinstance(decode_effect(value), ThreadEffect)
