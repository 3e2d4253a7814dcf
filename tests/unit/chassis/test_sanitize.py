import pytest

from schemas.canonical import canonical_json
from services.chassis.sanitize import DEPTH_MAX, sanitize_json, sanitize_text


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (1, 1),
        (2**53, "9007199254740992"),
        (1e17, "1e+17"),
        (0.5, 0.5),
        (1e300, 1e300),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, True),
        (None, None),
        ({"a": [2**60, "x\x00"]}, {"a": ["1152921504606846976", "x\u2400"]}),
        (("a", 1), ["a", 1]),
        ({1: object}, {"1": str(object)}),
    ],
)
def test_what_is_stored_can_be_encoded(given: object, stored: object) -> None:
    assert sanitize_json(given) == stored
    canonical_json(sanitize_json(given))


def test_nesting_has_a_limit() -> None:
    nested: object = 1
    for _ in range(2 * DEPTH_MAX):
        nested = [nested]
    canonical_json(sanitize_json(nested))


def test_lone_surrogates_show() -> None:
    assert sanitize_text("a\ud800b") == "a\ufffdb"
