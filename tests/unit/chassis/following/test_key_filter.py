from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import TenantId, ThreadId, ThreadKey
from services.chassis.following.key_filter import ROOM_MIN, KeyFilter


def key(number: int) -> ThreadKey:
    return ThreadKey(TenantId("acme"), ThreadId(f"thread-{number}"))


@given(st.sets(st.integers(0, 10_000), max_size=200))
def test_what_was_added_is_never_called_new(numbers: set[int]) -> None:
    known = KeyFilter(0)
    for number in numbers:
        known.add(key(number))
    assert all(key(number) in known for number in numbers)


def test_few_new_threads_seem_known_while_there_is_room() -> None:
    known = KeyFilter(ROOM_MIN)
    for number in range(2 * ROOM_MIN):
        known.add(key(number))
    assert not known.is_full
    mistaken = sum(key(number) in known for number in range(1_000_000, 1_010_000))
    assert mistaken < 200


def test_it_is_full_beyond_its_room() -> None:
    known = KeyFilter(0)
    for number in range(ROOM_MIN + 1):
        known.add(key(number))
    assert known.is_full
