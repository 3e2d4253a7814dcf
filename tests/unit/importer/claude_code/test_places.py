from hypothesis import given
from hypothesis import strategies as st

from services.importer.claude_code.places import SLOTS, Places

hashes = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.integers(0, 5).map(lambda n: n * SLOTS)


@given(st.lists(hashes, max_size=60), st.lists(hashes, max_size=10))
def test_it_is_a_dictionary(put: list[int], asked: list[int]) -> None:
    places, expected = Places(), dict[int, int]()
    for place, key in enumerate(put):
        assert places.put(key, place) == expected.setdefault(key, place)
    assert [places.get(key) for key in put + asked] == [expected.get(key, -1) for key in put + asked]


def test_it_grows_and_keeps_what_it_has() -> None:
    places = Places()
    keys = [number * SLOTS * 7 - 3 for number in range(5 * SLOTS)]
    assert [places.put(key, place) for place, key in enumerate(keys)] == list(range(len(keys)))
    assert [places.get(key) for key in keys] == list(range(len(keys)))
    assert places.get(1) == -1
